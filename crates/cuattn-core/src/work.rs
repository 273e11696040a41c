//! How much a problem computes and moves, for tracing, benches and engine choice.

use crate::{Alignment, BiasKind, Problem, Shape, VarlenProblem, Window, Work};

/// Query-key pairs that a causal mask and a window leave visible, for one sequence and one head.
///
/// Row `i` of `q_len` has position `offset + i` and sees keys from `position - window.left` to `position +
/// window.right` (to `position` where `causal`) that lie in `0..kv_len`. Counted in closed form.
///
/// ```
/// use cuattn_core::{visible_pairs, Window};
/// let unlimited = Window::default();
/// assert_eq!(visible_pairs(3, 5, 0, false, unlimited), 15);
/// assert_eq!(visible_pairs(3, 5, 0, true, unlimited), 1 + 2 + 3);
/// assert_eq!(visible_pairs(3, 5, 2, true, unlimited), 3 + 4 + 5);
/// assert_eq!(visible_pairs(3, 5, 2, true, Window { left: Some(1), right: None }), 2 + 2 + 2);
/// assert_eq!(visible_pairs(5, 3, -2, true, unlimited), 0 + 0 + 1 + 2 + 3);
/// ```
pub fn visible_pairs(q_len: usize, kv_len: usize, offset: i64, causal: bool, window: Window) -> u128 {
    let rows = q_len as i128;
    let keys = kv_len as i128;
    let offset = i128::from(offset);
    let right = match (causal, window.right) {
        (true, _) => Some(0),
        (false, right) => right.map(i128::from),
    };
    // Row i sees the keys below `offset + i + right + 1` that are not below `offset + i - left`.
    let below_end = right.map_or(rows * keys, |right| clamped_sum(offset + right + 1, rows, keys));
    let below_start = window.left.map_or(0, |left| clamped_sum(offset - i128::from(left), rows, keys));
    (below_end - below_start).unsigned_abs()
}

/// `sum over i in 0..rows of clamp(first + i, 0, keys)`.
fn clamped_sum(first: i128, rows: i128, keys: i128) -> i128 {
    let up_to = |n: i128| {
        if n <= 0 {
            0
        } else if n <= keys {
            n * (n - 1) / 2
        } else {
            keys * (keys - 1) / 2 + (n - keys) * keys
        }
    };
    up_to(first + rows) - up_to(first)
}

/// Query-key pairs where the offset of a row is not known: each row sees what its window can hold.
fn most_pairs(q_len: usize, kv_len: usize, causal: bool, window: Window) -> u128 {
    let right = if causal { Some(0) } else { window.right };
    let width = match (window.left, right) {
        (Some(left), Some(right)) => (u64::from(left) + u64::from(right) + 1).min(kv_len as u64) as u128,
        _ => kv_len as u128,
    };
    q_len as u128 * width
}

impl Problem {
    /// What a launch computes and moves. Exact for causal masks and windows; a bias counts as if it masked nothing,
    /// lengths on the device as if every sequence had all `kv_len` keys, and offsets on the device as if no end of the
    /// keys cut a row's window short.
    ///
    /// Bytes count every element of an input that can be seen once, broadcast ones once, and every output once.
    pub fn work(&self) -> Work {
        let Shape { batch, q_heads, kv_heads, q_len, kv_len, head_dim, v_head_dim } = self.shape;
        if self.shape.is_empty() {
            return Work::default();
        }
        let mask = self.mask;
        let pairs = match mask.alignment {
            Alignment::TopLeft => visible_pairs(q_len, kv_len, 0, mask.causal, mask.window),
            Alignment::BottomRight => {
                visible_pairs(q_len, kv_len, kv_len as i64 - q_len as i64, mask.causal, mask.window)
            }
            Alignment::PerBatch(_) => most_pairs(q_len, kv_len, mask.causal, mask.window),
        };
        let dims = (head_dim + v_head_dim) as f64;
        let rows = batch as f64 * q_heads as f64 * q_len as f64;
        let tokens = rows * dims + batch as f64 * kv_heads as f64 * kv_len as f64 * dims;
        let mut bytes = tokens * self.dtype.size() as f64;
        if let Some(bias) = mask.bias {
            let extents =
                [(batch, bias.batch), (q_heads, bias.head), (q_len, bias.row), (bias.keys.min(kv_len), bias.key)];
            let elements: f64 =
                extents.iter().map(|&(extent, stride)| if stride == 0 { 1.0 } else { extent as f64 }).product();
            bytes += elements
                * match bias.kind {
                    BiasKind::Additive(dtype) => dtype.size() as f64,
                    BiasKind::Boolean => 1.0,
                };
        }
        if self.wants_log_sum_exp {
            bytes += rows * 4.0;
        }
        if let Some(scores) = self.scores {
            bytes += rows * kv_len as f64 * scores.dtype.size() as f64;
        }
        Work { flops: 2.0 * pairs as f64 * batch as f64 * q_heads as f64 * dims, bytes }
    }
}

/// Lengths of one packed sequence, where the host knows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SequenceLengths {
    /// Query tokens.
    pub q: usize,
    /// Keys in use.
    pub kv: usize,
}

impl VarlenProblem {
    /// What a launch computes and moves. Exact for causal masks and windows where the host knows the lengths of every
    /// sequence; without them, every sequence counts as of equal length. Offsets on the device count as for
    /// [`Problem::work`].
    pub fn work(&self, lengths: Option<&[SequenceLengths]>) -> Work {
        let shape = self.shape;
        if shape.is_empty() {
            return Work::default();
        }
        let pairs = |SequenceLengths { q, kv }: SequenceLengths| match self.alignment {
            Alignment::TopLeft => visible_pairs(q, kv, 0, self.causal, self.window),
            Alignment::BottomRight => visible_pairs(q, kv, kv as i64 - q as i64, self.causal, self.window),
            Alignment::PerBatch(_) => most_pairs(q, kv, self.causal, self.window),
        };
        let (pairs, keys) = match lengths {
            Some(lengths) => (
                lengths.iter().map(|&lengths| pairs(lengths) as f64).sum::<f64>(),
                lengths.iter().map(|lengths| lengths.kv as f64).sum::<f64>(),
            ),
            None => {
                let batch = shape.batch.max(1);
                let equal = SequenceLengths { q: shape.total_q.div_ceil(batch), kv: shape.total_kv.div_ceil(batch) };
                (pairs(equal) as f64 * batch as f64, shape.total_kv as f64)
            }
        };
        let dims = (shape.head_dim + shape.v_head_dim) as f64;
        let rows = shape.total_q as f64 * shape.q_heads as f64;
        let mut bytes = (rows * dims + keys * shape.kv_heads as f64 * dims) * self.dtype.size() as f64;
        if self.wants_log_sum_exp {
            bytes += rows * 4.0;
        }
        Work { flops: 2.0 * pairs * shape.q_heads as f64 * dims, bytes }
    }
}
