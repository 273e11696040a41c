//! The kernels of the flash engine: fused online-softmax attention.

use crate::Variant;

pub mod mma;
pub mod simt;
pub mod sm90;
pub mod sm90_f32;
pub mod tiles;

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

#[cfg(test)]
mod tests {
    use std::fmt::{self, Write};

    use super::{mma, simt, sm90, sm90_f32};
    use crate::{BiasKind, Element};

    const DIMS: [usize; 7] = [8, 64, 72, 128, 136, 192, 256];
    const BIASES: [BiasKind; 4] = [BiasKind::None, BiasKind::Element, BiasKind::F32, BiasKind::Boolean];

    const FLAGS: [[bool; 3]; 6] = [
        [false, false, false],
        [false, true, false],
        [true, false, false],
        [true, true, false],
        [false, false, true],
        [false, true, true],
    ];

    /// FNV-1a, over what is written.
    struct Hash(u64);

    impl Write for Hash {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            for byte in text.bytes() {
                self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
            Ok(())
        }
    }

    fn hash(write: impl FnOnce(&mut Hash) -> fmt::Result) -> u64 {
        let mut hash = Hash(0xcbf2_9ce4_8422_2325);
        write(&mut hash).unwrap();
        hash.0
    }

    fn sizes(dims: &[usize]) -> impl Iterator<Item = (usize, usize)> {
        dims.iter().flat_map(|&d| dims.iter().map(move |&dv| (d, dv)))
    }

    fn triples<const A: usize, const B: usize, const C: usize>(
        a: [usize; A],
        b: [usize; B],
        c: [usize; C],
    ) -> impl Iterator<Item = (usize, usize, usize)> {
        a.into_iter().flat_map(move |a| b.into_iter().flat_map(move |b| c.into_iter().map(move |c| (a, b, c))))
    }

    fn sm90_tiles(hash: &mut Hash) -> fmt::Result {
        for (head_dim, v_head_dim) in sizes(&DIMS) {
            for q_len in [1, 64, 65, 96, 97, 128, 129, 512, 1024, 2048, 2049, 4096, 1 << 20] {
                for (kv_len, heads, multiprocessors) in triples([1, 96, 97, 4096], [1, 8, 33, 1024], [1, 78, 132]) {
                    for [left, right, softcap] in FLAGS {
                        let edges = sm90::Edges { left, right };
                        let demand = sm90::Demand { q_len, kv_len, heads, edges, softcap, multiprocessors };
                        let plain = sm90::Sm90::plain(Element::Bf16, head_dim, v_head_dim, demand);
                        for bias in BIASES {
                            match plain.clone().with_bias(bias) {
                                Some(sm90) => writeln!(hash, "{}", sm90.tile)?,
                                None => writeln!(hash, "none")?,
                            }
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn sm90_f32_tiles(hash: &mut Hash) -> fmt::Result {
        for (d, dv) in sizes(&[8, 16, 40, 64, 72, 96, 128]) {
            writeln!(hash, "{}", sm90_f32::Sm90F32::plain(d, dv).tile)?;
        }
        Ok(())
    }

    fn mma_tiles(hash: &mut Hash) -> fmt::Result {
        // H200, A100, RTX 4090, B200, RTX 5090.
        let devices = [(9, 227, 228), (8, 163, 164), (8, 99, 100), (10, 227, 228), (12, 99, 100)];
        for (d, dv) in sizes(&DIMS) {
            for (compute_major, block, multiprocessor) in devices {
                let limits = mma::Limits {
                    compute_major,
                    shared_bytes_per_block: block << 10,
                    shared_bytes_per_multiprocessor: multiprocessor << 10,
                };
                for rows in [1, 63, 64, 65, 128, 4096] {
                    for keys in [1, 64, 128, 129, 4096] {
                        for (bias, bias_staged) in BIASES.into_iter().flat_map(|bias| [(bias, false), (bias, true)]) {
                            let plain = mma::Mma { bias, bias_staged, ..mma::Mma::plain(Element::Bf16, d, dv) };
                            match plain.with_best_tile(mma::Demand { rows, keys }, limits) {
                                Some(mma) => writeln!(hash, "{}", mma.tile)?,
                                None => writeln!(hash, "none")?,
                            }
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn simt_tiles(hash: &mut Hash) -> fmt::Result {
        for (head_dim, v_head_dim) in sizes(&[1, 7, 64, 65, 128, 129, 256, 1000]) {
            for rows in [1, 4, 5, 8, 16, 17, 32, 33, 64, 65, 128, 129, 512, 4096] {
                for (kv_heads, multiprocessors, shared) in
                    triples([1, 2, 7, 8, 16, 64, 1024], [1, 78, 108, 128, 132], [48, 99, 163, 227])
                {
                    let shared_bytes_per_block = shared << 10;
                    let demand = simt::Demand { rows, kv_heads, multiprocessors, shared_bytes_per_block };
                    writeln!(hash, "{}", simt::Simt::plain(Element::F32, head_dim, v_head_dim, demand).tile)?;
                }
            }
        }
        Ok(())
    }

    /// What is chosen over a grid of demands, path by path. A change of the code that chooses leaves these numbers as they are; one of
    /// the table of tiles changes those of its paths, and then they are written anew.
    #[test]
    fn only_the_table_changes_what_is_chosen() {
        let chosen = [hash(sm90_tiles), hash(sm90_f32_tiles), hash(mma_tiles), hash(simt_tiles)];
        let were = [0xbc49_6517_e3de_59c5, 0xd268_6525_6c94_c26e, 0x4872_c007_8b3d_36ee, 0xeb37_798d_bac7_f811];
        assert_eq!(chosen, were, "sm90, sm90_f32, mma and simt: {chosen:#018x?}");
    }
}
