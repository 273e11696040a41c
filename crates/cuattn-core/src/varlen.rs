//! A packed problem: sequences of any lengths, one after another, without padding.

use std::fmt;

use crate::{Alignment, DType, IndexType, Paging, ScoreMod, Window};

/// Extents of a packed problem. Only totals are known to the host; lengths are read on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VarlenShape {
    /// Sequences.
    pub batch: usize,
    /// Query tokens of all sequences together.
    pub total_q: usize,
    /// Key tokens of all sequences together (of the pool, where paged).
    pub total_kv: usize,
    /// Longest query sequence that can occur: a bound for plans and the reference, never trusted for safety.
    pub max_q_len: usize,
    /// Longest key sequence that can occur, likewise.
    pub max_kv_len: usize,
    /// Query heads; a multiple of `kv_heads`.
    pub q_heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Elements of a query or key vector.
    pub head_dim: usize,
    /// Elements of a value vector.
    pub v_head_dim: usize,
}

impl VarlenShape {
    /// Query heads that share one key head. 0 where `kv_heads` is 0.
    pub const fn group(&self) -> usize {
        match self.q_heads.checked_div(self.kv_heads) {
            Some(group) => group,
            None => 0,
        }
    }

    /// Whether there is no output element at all: such a problem is legal, and launches nothing.
    pub const fn is_empty(&self) -> bool {
        self.total_q == 0 || self.q_heads == 0
    }
}

/// Element strides of a packed `[tokens, heads, dim]` tensor whose last dimension is contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TokenStrides {
    /// From one token to the next.
    pub token: i64,
    /// From one head to the next.
    pub head: i64,
}

impl TokenStrides {
    /// Contiguous `[tokens, heads, dim]` (which is also `[tokens, heads * dim]`).
    pub const fn packed(heads: usize, dim: usize) -> Self {
        Self { token: (heads * dim) as i64, head: dim as i64 }
    }
}

/// A packed problem. `cu_seqlens_q` and `cu_seqlens_kv` are device arrays `[batch + 1]` of offsets, first 0, last the
/// total.
#[derive(Clone, Debug, PartialEq)]
pub struct VarlenProblem {
    /// Extents.
    pub shape: VarlenShape,
    /// Element type of q, k, v and o.
    pub dtype: DType,
    /// Strides of q: `[total_q, q_heads, head_dim]`.
    pub q: TokenStrides,
    /// Strides of k: `[total_kv, kv_heads, head_dim]`.
    pub k: TokenStrides,
    /// Strides of v: `[total_kv, kv_heads, v_head_dim]`.
    pub v: TokenStrides,
    /// Strides of o: `[total_q, q_heads, v_head_dim]`.
    pub o: TokenStrides,
    /// Factor on `q.k`.
    pub scale: f32,
    /// `c`: scores become `c * tanh(s / c)`.
    pub softcap: Option<f32>,
    /// The user's own score modification.
    pub score_mod: Option<ScoreMod>,
    /// Whether row at position `p` sees only keys `j <= p`.
    pub causal: bool,
    /// Where rows stand among their sequence's keys.
    pub alignment: Alignment,
    /// A band around each row's position.
    pub window: Window,
    /// Whether a float32 per query head joins the softmax.
    pub has_sinks: bool,
    /// Whether log-sum-exp is written: contiguous float32 `[q_heads, total_q]`.
    pub wants_log_sum_exp: bool,
    /// Element type of `cu_seqlens_q` and `cu_seqlens_kv`.
    pub offsets: IndexType,
    /// Whether a device array `[batch]` limits the valid keys of each allocated span (`seqused_kv`).
    pub has_used_lengths: bool,
    /// Whether a launch checks the offsets on the device and reports what it finds in a status word ([`OffsetFaults`]).
    /// The launch goes on either way: bad offsets never reach outside the stated token counts, but their results are
    /// meaningless.
    pub checks_offsets: bool,
    /// Where keys and values are paged: then `cu_seqlens_kv` only gives lengths, and `k`, `v` strides are of
    /// `[pages, page_size, kv_heads, dim]` with `page` as the stride between pages.
    pub paging: Option<VarlenPaging>,
}

/// Paging of a packed problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VarlenPaging {
    /// Page geometry and table.
    pub paging: Paging,
    /// Element stride of K from one page to the next.
    pub k_page: i64,
    /// Element stride of V from one page to the next.
    pub v_page: i64,
}

/// What a device-side check found in the offsets: the status word, a set of bits. 0 is all well.
///
/// ```
/// use cuattn_core::OffsetFaults;
/// let faults = OffsetFaults(OffsetFaults::KV_DECREASES | OffsetFaults::KV_LAST_NOT_TOTAL);
/// assert!(!faults.is_empty());
/// assert_eq!(faults.to_string(), "cu_seqlens_kv decreases; the last entry of cu_seqlens_kv is not the token count");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct OffsetFaults(pub u32);

impl OffsetFaults {
    /// `cu_seqlens_q[0]` is not 0.
    pub const Q_FIRST_NOT_ZERO: u32 = 1 << 0;
    /// An entry of `cu_seqlens_q` is less than the one before it.
    pub const Q_DECREASES: u32 = 1 << 1;
    /// The last entry of `cu_seqlens_q` is not the query token count.
    pub const Q_LAST_NOT_TOTAL: u32 = 1 << 2;
    /// A query sequence is longer than the stated maximum.
    pub const Q_ABOVE_MAXIMUM: u32 = 1 << 3;
    /// `cu_seqlens_kv[0]` is not 0.
    pub const KV_FIRST_NOT_ZERO: u32 = 1 << 8;
    /// An entry of `cu_seqlens_kv` is less than the one before it.
    pub const KV_DECREASES: u32 = 1 << 9;
    /// The last entry of `cu_seqlens_kv` is not the key token count.
    pub const KV_LAST_NOT_TOTAL: u32 = 1 << 10;
    /// A key sequence is longer than the stated maximum.
    pub const KV_ABOVE_MAXIMUM: u32 = 1 << 11;
    /// An entry of `used_lengths` is negative, or more than its span holds.
    pub const USED_OUT_OF_RANGE: u32 = 1 << 16;

    /// Whether nothing was found.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for OffsetFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const TEXTS: [(u32, &str); 9] = [
            (OffsetFaults::Q_FIRST_NOT_ZERO, "cu_seqlens_q does not start at 0"),
            (OffsetFaults::Q_DECREASES, "cu_seqlens_q decreases"),
            (OffsetFaults::Q_LAST_NOT_TOTAL, "the last entry of cu_seqlens_q is not the token count"),
            (OffsetFaults::Q_ABOVE_MAXIMUM, "a query sequence is longer than max_q_len"),
            (OffsetFaults::KV_FIRST_NOT_ZERO, "cu_seqlens_kv does not start at 0"),
            (OffsetFaults::KV_DECREASES, "cu_seqlens_kv decreases"),
            (OffsetFaults::KV_LAST_NOT_TOTAL, "the last entry of cu_seqlens_kv is not the token count"),
            (OffsetFaults::KV_ABOVE_MAXIMUM, "a key sequence is longer than max_kv_len"),
            (OffsetFaults::USED_OUT_OF_RANGE, "an entry of used_lengths is outside its span"),
        ];
        if self.is_empty() {
            return f.write_str("no fault");
        }
        let mut separator = "";
        for (_, text) in TEXTS.iter().filter(|(bit, _)| self.0 & bit != 0) {
            write!(f, "{separator}{text}")?;
            separator = "; ";
        }
        Ok(())
    }
}

impl VarlenProblem {
    /// Plain attention over contiguous packed tensors with `scale = 1 / sqrt(head_dim)` and `i32` offsets.
    pub fn packed(shape: VarlenShape, dtype: DType) -> Self {
        Self {
            shape,
            dtype,
            q: TokenStrides::packed(shape.q_heads, shape.head_dim),
            k: TokenStrides::packed(shape.kv_heads, shape.head_dim),
            v: TokenStrides::packed(shape.kv_heads, shape.v_head_dim),
            o: TokenStrides::packed(shape.q_heads, shape.v_head_dim),
            scale: 1.0 / (shape.head_dim.max(1) as f32).sqrt(),
            softcap: None,
            score_mod: None,
            causal: false,
            alignment: Alignment::BottomRight,
            window: Window::default(),
            has_sinks: false,
            wants_log_sum_exp: false,
            offsets: IndexType::I32,
            has_used_lengths: false,
            checks_offsets: false,
            paging: None,
        }
    }
}
