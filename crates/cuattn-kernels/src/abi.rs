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
    /// Keys `j >= p - window_left`; negative for no limit.
    pub window_left: i64,
    /// Keys `j <= p + window_right`; negative for no limit, 0 for causal.
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
