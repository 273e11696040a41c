//! The kernels of the flash engine: fused online-softmax attention.

use crate::Variant;

pub mod mma;
pub mod simt;
pub mod sm90;
pub mod sm90_f32;

/// Smallest head size of the tensor-core paths, but for `mma` of packed sequences. A head of 8 wastes half of each product, and where
/// few keys share a row's weight the rounding of probabilities to 16 bits shows in the result.
pub const MIN_HEAD_DIM: usize = 16;

/// Query heads to fold into the rows of a tile: all of a group where that fills tiles of `block_rows` clearly better, else 1. Short
/// queries share each read of K and V among their heads; long ones are better off with one head a tile.
pub fn packed_heads(q_len: usize, group: usize, block_rows: usize) -> usize {
    let filled = |rows: usize| rows as f64 / rows.next_multiple_of(block_rows) as f64;
    if group > 1 && filled(q_len) < 0.9 * filled(q_len.saturating_mul(group)) { group } else { 1 }
}

/// The variants of the compile suite.
pub fn variants() -> Vec<Variant> {
    let mut all = mma::variants();
    all.extend(simt::variants());
    all.extend(sm90::variants());
    all.extend(sm90_f32::variants());
    all
}
