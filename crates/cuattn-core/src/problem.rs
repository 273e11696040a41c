//! A dense attention problem: what is to be computed, with every shape and stride, and nothing of how.

use std::sync::Arc;

use crate::{DType, Mask};

/// Extents of a dense problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Sequences in the batch.
    pub batch: usize,
    /// Query heads; a multiple of `kv_heads`.
    pub q_heads: usize,
    /// Key and value heads. Query head `h` uses key head `h / (q_heads / kv_heads)`.
    pub kv_heads: usize,
    /// Query rows of a sequence.
    pub q_len: usize,
    /// Keys of a sequence: the longest, where per-batch lengths are given.
    pub kv_len: usize,
    /// Elements of a query or key vector.
    pub head_dim: usize,
    /// Elements of a value vector.
    pub v_head_dim: usize,
}

impl Shape {
    /// Query heads that share one key head. 0 where `kv_heads` is 0.
    pub const fn group(&self) -> usize {
        match self.q_heads.checked_div(self.kv_heads) {
            Some(group) => group,
            None => 0,
        }
    }

    /// Whether there is no output element at all: such a problem is legal, and launches nothing.
    pub const fn is_empty(&self) -> bool {
        self.batch == 0 || self.q_heads == 0 || self.q_len == 0
    }
}

/// Element strides of a `[batch, head, row, dim]` tensor whose last dimension is contiguous.
///
/// Any non-negative strides are legal, 0 included (broadcast); a cache whose capacity exceeds its length is just a
/// larger `head` or `batch` stride. With [`Paging`], `batch` of K and V is the stride between pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Strides {
    /// From one sequence to the next.
    pub batch: i64,
    /// From one head to the next.
    pub head: i64,
    /// From one row (token) to the next.
    pub row: i64,
}

impl Strides {
    /// Contiguous `[batch, heads, len, dim]`.
    pub const fn bhsd(heads: usize, len: usize, dim: usize) -> Self {
        Self { batch: (heads * len * dim) as i64, head: (len * dim) as i64, row: dim as i64 }
    }

    /// Contiguous `[batch, len, heads, dim]`.
    pub const fn bshd(heads: usize, len: usize, dim: usize) -> Self {
        Self { batch: (heads * len * dim) as i64, head: dim as i64, row: (heads * dim) as i64 }
    }
}

/// The stage at which scores can be handed out, in the order of computation (the four modes of ONNX `Attention`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScoreStage {
    /// `scale * q.k`.
    Raw,
    /// After softcap.
    Softcapped,
    /// After softcap, bias and masks; a masked key is -inf.
    Masked,
    /// After softmax; a row that sees no key is all zeros.
    Probabilities,
}

/// A request for the scores: a contiguous `[batch, q_heads, q_len, kv_len]` tensor at one stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ScoresOutput {
    /// At which stage.
    pub stage: ScoreStage,
    /// Element type it is written in: the problem's, or `F32`.
    pub dtype: DType,
}

/// Most user buffers that a [`ScoreMod`] may read.
pub const MAX_SCORE_MOD_BUFFERS: usize = 4;

/// A user's own change to each score, as a CUDA snippet: the body of
/// `float score_mod(float score, int batch, int head, int q, int k, const void* const (&buffers)[4])`.
///
/// It is applied after softcap and before bias and masks, to scores in natural units, and must return the new score;
/// returning -infinity masks the key. `q` and `k` count rows and keys from 0 within the sequence.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ScoreMod {
    /// The body: statements that end in a `return`.
    pub body: Arc<str>,
    /// How many of the four buffers the launch must supply.
    pub buffers: usize,
}

/// Keys and values in pages of fixed size, found through a device table `[batch, max_pages]` of `i32` page numbers.
///
/// Row `j` of sequence `b` is row `j % page_size` of page `table[b][j / page_size]`; entries beyond the sequence's
/// length are never read. K and V share the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Paging {
    /// Rows of a page.
    pub page_size: usize,
    /// Pages in the pool.
    pub pages: usize,
    /// Columns of the table.
    pub max_pages: usize,
}

/// A dense problem: every sequence has the same shape, though not the same lengths.
///
/// Build one with [`Problem::bhsd`] or [`Problem::bshd`] and set what differs from plain attention:
///
/// ```
/// use cuattn_core::{Alignment, DType, Mask, Problem, Shape};
/// let shape = Shape { batch: 2, q_heads: 32, kv_heads: 8, q_len: 512, kv_len: 512, head_dim: 128, v_head_dim: 128 };
/// let mut problem = Problem::bhsd(shape, DType::Bf16);
/// problem.mask = Mask::causal(Alignment::BottomRight);
/// problem.wants_log_sum_exp = true;
/// assert!(problem.validate().is_ok());
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// Extents.
    pub shape: Shape,
    /// Element type of q, k, v and o.
    pub dtype: DType,
    /// Strides of q: `[batch, q_heads, q_len, head_dim]`.
    pub q: Strides,
    /// Strides of k: `[batch, kv_heads, kv_len, head_dim]`, or of its pages.
    pub k: Strides,
    /// Strides of v: `[batch, kv_heads, kv_len, v_head_dim]`, or of its pages.
    pub v: Strides,
    /// Strides of o: `[batch, q_heads, q_len, v_head_dim]`. Rows must not overlap.
    pub o: Strides,
    /// Factor on `q.k`. Any finite number, 0 and negative ones included.
    pub scale: f32,
    /// `c`: scores become `c * tanh(s / c)`. Positive and finite.
    pub softcap: Option<f32>,
    /// The user's own score modification.
    pub score_mod: Option<ScoreMod>,
    /// Which keys a row may see, and what is added to their scores.
    pub mask: Mask,
    /// Whether a float32 per query head (natural units, not scaled) joins the softmax as a key without a value.
    pub has_sinks: bool,
    /// Whether the natural log-sum-exp of each row is written: contiguous float32 `[batch, q_heads, q_len]`.
    pub wants_log_sum_exp: bool,
    /// Whether the scores are handed out, and at which stage.
    pub scores: Option<ScoresOutput>,
    /// Where keys and values are paged rather than dense.
    pub paging: Option<Paging>,
}

impl Problem {
    /// Plain attention over contiguous `[batch, heads, len, dim]` tensors with `scale = 1 / sqrt(head_dim)`.
    pub fn bhsd(shape: Shape, dtype: DType) -> Self {
        let Shape { q_heads, kv_heads, q_len, kv_len, head_dim, v_head_dim, .. } = shape;
        Self::with_strides(
            shape,
            dtype,
            [
                Strides::bhsd(q_heads, q_len, head_dim),
                Strides::bhsd(kv_heads, kv_len, head_dim),
                Strides::bhsd(kv_heads, kv_len, v_head_dim),
                Strides::bhsd(q_heads, q_len, v_head_dim),
            ],
        )
    }

    /// Plain attention over contiguous `[batch, len, heads, dim]` tensors with `scale = 1 / sqrt(head_dim)`.
    pub fn bshd(shape: Shape, dtype: DType) -> Self {
        let Shape { q_heads, kv_heads, q_len, kv_len, head_dim, v_head_dim, .. } = shape;
        Self::with_strides(
            shape,
            dtype,
            [
                Strides::bshd(q_heads, q_len, head_dim),
                Strides::bshd(kv_heads, kv_len, head_dim),
                Strides::bshd(kv_heads, kv_len, v_head_dim),
                Strides::bshd(q_heads, q_len, v_head_dim),
            ],
        )
    }

    /// Plain attention with the strides of q, k, v and o, in this order.
    pub fn with_strides(shape: Shape, dtype: DType, [q, k, v, o]: [Strides; 4]) -> Self {
        Self {
            shape,
            dtype,
            q,
            k,
            v,
            o,
            scale: 1.0 / (shape.head_dim.max(1) as f32).sqrt(),
            softcap: None,
            score_mod: None,
            mask: Mask::none(),
            has_sinks: false,
            wants_log_sum_exp: false,
            scores: None,
            paging: None,
        }
    }
}
