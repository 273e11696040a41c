//! The problem in the structs that kernels take.

use cuattn_core::{Alignment, IndexType, KeyLengths, Problem, ScoreStage, Strides};
use cuattn_kernels::abi::{self, MaskParams, ScoreParams};
use cuattn_kernels::softmax::Stage;

/// Device addresses of a mask's arrays; 0 where there is none.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Addresses {
    pub(crate) bias: u64,
    pub(crate) key_lengths: u64,
    pub(crate) query_offsets: u64,
}

pub(crate) fn strides(Strides { batch, head, row }: Strides) -> abi::Strides {
    abi::Strides { batch, head, row }
}

pub(crate) fn stage(stage: Option<ScoreStage>) -> Stage {
    match stage {
        None => Stage::None,
        Some(ScoreStage::Raw) => Stage::Raw,
        Some(ScoreStage::Softcapped) => Stage::Softcapped,
        Some(ScoreStage::Masked) => Stage::Masked,
        Some(ScoreStage::Probabilities) => Stage::Probabilities,
    }
}

pub(crate) fn score_params(problem: &Problem, buffers: [u64; 4]) -> ScoreParams {
    ScoreParams { buffers, scale: problem.scale, softcap: problem.softcap.unwrap_or(0.0) }
}

/// The extents must fit 32 bits, which planning has checked.
pub(crate) fn mask_params(problem: &Problem, addresses: Addresses) -> MaskParams {
    let mask = &problem.mask;
    let shape = problem.shape;
    // No sequence is as long as the longest window that kernels take.
    let limit = |keys: Option<u32>| keys.map_or(-1, |keys| i64::from(keys).min((1 << 30) - 1));
    let is_64 = |index: Option<IndexType>| i32::from(index == Some(IndexType::I64));
    let bias = mask.bias;
    MaskParams {
        bias: addresses.bias,
        bias_batch: bias.map_or(0, |bias| bias.batch),
        bias_head: bias.map_or(0, |bias| bias.head),
        bias_row: bias.map_or(0, |bias| bias.row),
        bias_key: bias.map_or(0, |bias| bias.key),
        key_lengths: addresses.key_lengths,
        query_offsets: addresses.query_offsets,
        window_left: limit(mask.window.left),
        // A causal mask is a window that ends at the row's own position.
        window_right: if mask.causal { 0 } else { limit(mask.window.right) },
        q_len: shape.q_len as i32,
        kv_len: shape.kv_len as i32,
        bias_keys: bias.map_or(shape.kv_len, |bias| bias.keys.min(shape.kv_len)) as i32,
        alignment: match mask.alignment {
            Alignment::TopLeft => abi::ALIGN_TOP_LEFT,
            Alignment::BottomRight => abi::ALIGN_BOTTOM_RIGHT,
            Alignment::PerBatch(_) => abi::ALIGN_PER_BATCH,
        },
        lengths: match mask.key_lengths {
            KeyLengths::Full => abi::LENGTHS_FULL,
            KeyLengths::PerBatch(_) => abi::LENGTHS_PER_BATCH,
            KeyLengths::PastPlusQuery(_) => abi::LENGTHS_PAST_PLUS_QUERY,
        },
        key_lengths_64: is_64(mask.key_lengths.index_type()),
        query_offsets_64: is_64(mask.alignment.index_type()),
        reserved: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cuattn_core::{Bias, BiasKind, DType, Mask, Shape, Window};

    fn problem() -> Problem {
        let shape = Shape { batch: 1, q_heads: 1, kv_heads: 1, q_len: 3, kv_len: 5, head_dim: 8, v_head_dim: 8 };
        Problem::bhsd(shape, DType::F32)
    }

    #[test]
    fn a_causal_mask_outweighs_a_window_to_the_right() {
        let mut problem = problem();
        assert_eq!(mask_params(&problem, Addresses::default()).window_right, -1);
        problem.mask = Mask::causal(Alignment::BottomRight);
        problem.mask.window = Window { left: Some(2), right: Some(7) };
        let params = mask_params(&problem, Addresses::default());
        assert_eq!((params.window_left, params.window_right, params.alignment), (2, 0, abi::ALIGN_BOTTOM_RIGHT));
    }

    #[test]
    fn a_long_bias_does_not_lengthen_the_keys() {
        let mut problem = problem();
        assert_eq!(mask_params(&problem, Addresses::default()).bias_keys, 5);
        let kind = BiasKind::Boolean;
        for (keys, want) in [(3, 3), (9, 5)] {
            problem.mask.bias = Some(Bias { kind, batch: 0, head: 0, row: 9, key: 1, keys });
            assert_eq!(mask_params(&problem, Addresses::default()).bias_keys, want);
        }
    }
}
