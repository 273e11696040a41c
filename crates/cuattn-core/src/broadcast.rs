//! From the extents of a bias tensor to the strides that spread it over the problem.

use crate::{Bias, BiasKind, Reason, Refusal, Shape};

/// What happens to a bias whose key dimension is shorter than `kv_len`. The other dimensions must be 1 or full either
/// way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BroadcastRule {
    /// A key dimension of 1 holds for every key; any other short one is refused.
    Numpy,
    /// A short key dimension is padded with masked keys, and 1 is no exception: ONNX `Attention` means it so.
    Onnx,
}

impl Bias {
    /// Strides of a contiguous bias tensor of extents `dims` = `[batch, head, query, key]`, each full or 1.
    ///
    /// ```
    /// use cuattn_core::{Bias, BiasKind, BroadcastRule, DType, Shape};
    /// let shape = Shape { batch: 2, q_heads: 4, kv_heads: 2, q_len: 3, kv_len: 5, head_dim: 8, v_head_dim: 8 };
    /// let kind = BiasKind::Additive(DType::F32);
    ///
    /// let planes = Bias::broadcast(kind, [2, 1, 3, 5], &shape, BroadcastRule::Numpy)?;
    /// assert_eq!((planes.batch, planes.head, planes.row, planes.key, planes.keys), (15, 0, 5, 1, 5));
    ///
    /// let per_row = Bias::broadcast(kind, [1, 1, 3, 1], &shape, BroadcastRule::Numpy)?;
    /// assert_eq!((per_row.row, per_row.key, per_row.keys), (1, 0, 5));
    /// let one_key = Bias::broadcast(kind, [1, 1, 3, 1], &shape, BroadcastRule::Onnx)?;
    /// assert_eq!((one_key.row, one_key.key, one_key.keys), (1, 1, 1));
    /// # Ok::<(), cuattn_core::Refusal>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Reason::BiasDoesNotBroadcast`] for each dimension that does not fit.
    pub fn broadcast(kind: BiasKind, dims: [usize; 4], shape: &Shape, rule: BroadcastRule) -> Result<Self, Refusal> {
        let full = [shape.batch, shape.q_heads, shape.q_len, shape.kv_len];
        let mut reasons = Vec::new();
        for (axis, dimension) in ["batch", "head", "query"].into_iter().enumerate() {
            if dims[axis] != 1 && dims[axis] != full[axis] {
                let fix = "make it that, or 1 to use one plane for all";
                let (got, want) = (dims[axis], full[axis]);
                reasons.push(Reason::BiasDoesNotBroadcast { dims, dimension, got, want, fix });
            }
        }
        let keys_fit = match rule {
            BroadcastRule::Numpy => dims[3] == 1 || dims[3] == shape.kv_len,
            BroadcastRule::Onnx => dims[3] <= shape.kv_len,
        };
        if !keys_fit {
            let fix = match rule {
                BroadcastRule::Numpy => "make it that, or 1 to use one value for all keys",
                BroadcastRule::Onnx => "make it at most that; what is missing is masked",
            };
            let (got, want) = (dims[3], shape.kv_len);
            reasons.push(Reason::BiasDoesNotBroadcast { dims, dimension: "key", got, want, fix });
        }
        let strides = contiguous(dims);
        if strides.is_none() {
            reasons.push(Reason::SizeOverflow { what: "the bias" });
        }
        Refusal::unless_empty(reasons)?;
        let [batch, head, row, _] = strides.unwrap_or_default();
        let spread = |axis: usize, stride: i64| if dims[axis] == 1 { 0 } else { stride };
        let (key, keys) = match rule {
            BroadcastRule::Numpy if dims[3] == 1 => (0, shape.kv_len),
            _ => (1, dims[3]),
        };
        Ok(Self { kind, batch: spread(0, batch), head: spread(1, head), row: spread(2, row), key, keys })
    }
}

fn contiguous(dims: [usize; 4]) -> Option<[i64; 4]> {
    let mut strides = [1i64; 4];
    for axis in (0..3).rev() {
        strides[axis] = strides[axis + 1].checked_mul(i64::try_from(dims[axis + 1]).ok()?)?;
    }
    strides[0].checked_mul(i64::try_from(dims[0]).ok()?)?;
    Some(strides)
}
