//! Launch structs, mirrored field for field by `cuda/params.cuh`.

use bytemuck::{Pod, Zeroable};

/// Element strides of a `[batch, head, row, dim]` tensor.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub struct Strides {
    /// From one sequence to the next.
    pub batch: i64,
    /// From one head to the next.
    pub head: i64,
    /// From one row to the next.
    pub row: i64,
}

/// `MaskParams::alignment`: offset 0.
pub const ALIGN_TOP_LEFT: i32 = 0;
/// `MaskParams::alignment`: offset `keys - q_len`.
pub const ALIGN_BOTTOM_RIGHT: i32 = 1;
/// `MaskParams::alignment`: offset from `query_offsets`.
pub const ALIGN_PER_BATCH: i32 = 2;

/// `MaskParams::lengths`: all `kv_len` keys.
pub const LENGTHS_FULL: i32 = 0;
/// `MaskParams::lengths`: `key_lengths[batch]` keys.
pub const LENGTHS_PER_BATCH: i32 = 1;
/// `MaskParams::lengths`: `key_lengths[batch] + q_len` keys.
pub const LENGTHS_PAST_PLUS_QUERY: i32 = 2;

/// Which keys a row may see.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub struct MaskParams {
    /// Device address of the bias, or 0.
    pub bias: u64,
    /// Element stride of the bias from one sequence to the next.
    pub bias_batch: i64,
    /// Element stride of the bias from one query head to the next.
    pub bias_head: i64,
    /// Element stride of the bias from one query row to the next.
    pub bias_row: i64,
    /// Element stride of the bias from one key to the next.
    pub bias_key: i64,
    /// Device address of `[batch]` lengths, or 0.
    pub key_lengths: u64,
    /// Device address of `[batch]` offsets, or 0.
    pub query_offsets: u64,
    /// Keys `j >= p - window_left`; negative for no limit, else less than 2^30.
    pub window_left: i64,
    /// Keys `j <= p + window_right`; negative for no limit, 0 for causal, else less than 2^30.
    pub window_right: i64,
    /// Query rows of a sequence.
    pub q_len: i32,
    /// Keys of a sequence, before device lengths.
    pub kv_len: i32,
    /// Keys from here on are masked.
    pub bias_keys: i32,
    /// One of the `ALIGN_` constants.
    pub alignment: i32,
    /// One of the `LENGTHS_` constants.
    pub lengths: i32,
    /// 1 where `key_lengths` holds 64-bit integers.
    pub key_lengths_64: i32,
    /// 1 where `query_offsets` holds 64-bit integers.
    pub query_offsets_64: i32,
    /// Padding.
    pub reserved: i32,
}

/// What happens to a score before the softmax.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub struct ScoreParams {
    /// Device addresses of the user's buffers, or 0.
    pub buffers: [u64; 4],
    /// Factor on `q.k`.
    pub scale: f32,
    /// `c` of `c * tanh(s / c)`.
    pub softcap: f32,
}

/// Everything a fused attention kernel needs.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub struct FlashParams {
    /// Device address of the queries.
    pub q: u64,
    /// Device address of the keys.
    pub k: u64,
    /// Device address of the values.
    pub v: u64,
    /// Device address of the output.
    pub o: u64,
    /// Device address of one float32 a query head, or 0.
    pub sinks: u64,
    /// Device address of the log-sum-exp output, or 0.
    pub log_sum_exp: u64,
    /// Strides of q.
    pub q_strides: Strides,
    /// Strides of k.
    pub k_strides: Strides,
    /// Strides of v.
    pub v_strides: Strides,
    /// Strides of o.
    pub o_strides: Strides,
    /// Which keys a row may see.
    pub mask: MaskParams,
    /// What happens to a score before the softmax.
    pub score: ScoreParams,
    /// Sequences.
    pub batch: i32,
    /// Query heads.
    pub q_heads: i32,
    /// Key and value heads.
    pub kv_heads: i32,
    /// Elements of a query or key vector.
    pub head_dim: i32,
    /// Elements of a value vector.
    pub v_head_dim: i32,
    /// Query heads folded into the rows of a tile: 1, or all of a group.
    pub pack: i32,
    /// Tiles over the `q_len * pack` rows of a head unit.
    pub row_tiles: i32,
    /// Head units whose tiles are drawn together.
    pub section: i32,
}

/// What the Hopper path needs beside [`FlashParams`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub struct Sm90Params {
    /// What every fused kernel needs.
    pub flash: FlashParams,
    /// Device address of a 32-bit counter that is 0 before the launch and after it.
    pub counter: u64,
    /// Tiles of the launch.
    pub tiles: i32,
    /// 0 where the map of K has one head for all, else 1.
    pub k_head_step: i32,
    /// 0 where the map of K has one sequence for all, else 1.
    pub k_batch_step: i32,
    /// 0 where the map of V has one head for all, else 1.
    pub v_head_step: i32,
    /// 0 where the map of V has one sequence for all, else 1.
    pub v_batch_step: i32,
    /// 0 where the map of the bias has one head for all, else 1.
    pub bias_head_step: i32,
    /// 0 where the map of the bias has one sequence for all, else 1.
    pub bias_batch_step: i32,
    /// Padding.
    pub reserved: i32,
}

/// What float32 on Hopper's tensor cores needs beside [`FlashParams`]. Everything behind `flash` is the launch's own memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub struct Sm90F32Params {
    /// What every fused kernel needs.
    pub flash: FlashParams,
    /// Device address of `[2, batch, heads, rows, dim]` f16 halves of q, the high ones first.
    pub q: u64,
    /// The same of k.
    pub k: u64,
    /// The same of v.
    pub v: u64,
    /// Device address of one [`HeadRange`] for each block that measures.
    pub parts: u64,
    /// Device address of one [`HeadRange`] for each head of q, then of k, then of v.
    pub ranges: u64,
    /// Device address of a 32-bit counter that is 0 before the launch and after it.
    pub counter: u64,
    /// Tiles of the launch.
    pub tiles: i32,
    /// 0 where the map of the bias has one head for all, else 1.
    pub bias_head_step: i32,
    /// 0 where the map of the bias has one sequence for all, else 1.
    pub bias_batch_step: i32,
    /// Padding.
    pub reserved: i32,
}

/// What the device finds out about a head of q, k or v.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct HeadRange {
    /// Bits of the largest magnitude.
    pub largest: u32,
    /// Of q and k the largest sum of a row's magnitudes, of v the smallest of the rows' largest magnitudes.
    pub row: f32,
}

/// Sequences packed one after another.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub struct PackedParams {
    /// Device address of `[batch + 1]` query starts.
    pub q_starts: u64,
    /// Device address of `[batch + 1]` key starts.
    pub kv_starts: u64,
    /// Device address of `[batch]` keys in use of each span, or 0.
    pub used_lengths: u64,
    /// Device address of `capacity` [`WorkItem`]s, or 0 where blocks look at the lengths themselves.
    pub schedule: u64,
    /// Query tokens.
    pub total_q: i32,
    /// Key tokens.
    pub total_kv: i32,
    /// 1 where starts and lengths in use are 64-bit integers.
    pub starts_64: i32,
    /// The most row tiles that there can be.
    pub capacity: i32,
    /// Keys, summed over heads, that tiles in flight should share; 0 for those of one head unit.
    pub section_keys: i32,
    /// Padding.
    pub reserved: i32,
}

/// Keys and values in pages.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub struct PageParams {
    /// Device address of the `[batch, max_pages]` table.
    pub table: u64,
    /// Rows of a page.
    pub page_size: i32,
    /// Columns of the table.
    pub max_pages: i32,
    /// Pages of the pool.
    pub pages: i32,
    /// Padding.
    pub reserved: i32,
}

/// [`FlashParams`] as kernels for packed sequences are compiled to take them.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub struct VarlenParams {
    /// What every fused kernel needs.
    pub flash: FlashParams,
    /// The sequences.
    pub packed: PackedParams,
    /// The pages; zeros without.
    pub pages: PageParams,
}

/// A row tile of a sequence, as the device lists them.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct WorkItem {
    /// First query token of the sequence.
    pub q_first: i32,
    /// Query tokens of the sequence.
    pub q_len: i32,
    /// First key token of the sequence.
    pub kv_first: i32,
    /// Keys in use of the sequence.
    pub kv_len: i32,
    /// Its number; negative where the item holds nothing.
    pub batch: i32,
    /// The item of the sequence's first tile.
    pub first_item: i32,
    /// Padding.
    pub reserved: [i32; 2],
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the compiler of the kernels makes of the same members.
    #[test]
    fn structs_have_the_size_that_the_device_sees() {
        assert_eq!(size_of::<MaskParams>(), 9 * 8 + 8 * 4);
        assert_eq!(size_of::<FlashParams>(), 6 * 8 + 4 * 24 + size_of::<MaskParams>() + 4 * 8 + 2 * 4 + 8 * 4);
        assert_eq!(size_of::<Sm90F32Params>(), size_of::<FlashParams>() + 6 * 8 + 4 * 4);
        assert_eq!(size_of::<PackedParams>(), 4 * 8 + 6 * 4);
        assert_eq!(size_of::<PageParams>(), 8 + 4 * 4);
        assert_eq!(size_of::<VarlenParams>(), size_of::<FlashParams>() + 56 + 24);
        assert_eq!(size_of::<WorkItem>(), 32);
    }
}
