//! A problem and its operands in the structs and constants that kernels take. For engines; nothing here is needed to
//! use one.

use cuattn_kernels::abi::{self, MaskParams, ScoreParams};
use cuattn_kernels::{BiasKind as KernelBias, Element};
use curt::{DevicePtr, LaunchCounters, Runtime, TensorMap, TensorMapCache};

use crate::{Alignment, BiasKind, DType, IndexType, KeyLengths, Operand, Operands, Problem, Reason, Refusal, Strides};

/// Longest sequence that kernels take: positions and their sums with window edges must fit 32 bits.
pub const MAX_SEQUENCE: usize = 1 << 30;

/// The kernels' name of an element type.
pub const fn element(dtype: DType) -> Element {
    match dtype {
        DType::F32 => Element::F32,
        DType::F16 => Element::F16,
        DType::Bf16 => Element::Bf16,
    }
}

/// The kernels' name of the bias of `problem`.
pub fn bias_kind(problem: &Problem) -> KernelBias {
    match problem.mask.bias.map(|bias| bias.kind) {
        None => KernelBias::None,
        Some(BiasKind::Boolean) => KernelBias::Boolean,
        Some(BiasKind::Additive(dtype)) if dtype == problem.dtype => KernelBias::Element,
        Some(BiasKind::Additive(_)) => KernelBias::F32,
    }
}

/// Strides as kernels take them.
pub const fn strides(Strides { batch, head, row }: Strides) -> abi::Strides {
    abi::Strides { batch, head, row }
}

/// The address of an operand, 0 where there is none.
pub fn address(operand: Option<DevicePtr>) -> u64 {
    operand.map_or(0, |pointer| pointer.address())
}

/// What happens to a score before the softmax.
pub fn score_params(problem: &Problem, operands: &Operands) -> ScoreParams {
    ScoreParams {
        buffers: operands.score_mod_buffers.map(address),
        scale: problem.scale,
        softcap: problem.softcap.unwrap_or(0.0),
    }
}

/// Which keys a row may see. Lengths must not exceed [`MAX_SEQUENCE`].
pub fn mask_params(problem: &Problem, operands: &Operands) -> MaskParams {
    let mask = &problem.mask;
    let shape = problem.shape;
    // No sequence is as long as the longest window that kernels take.
    let limit = |keys: Option<u32>| keys.map_or(-1, |keys| i64::from(keys).min((1 << 30) - 1));
    let is_64 = |index: Option<IndexType>| i32::from(index == Some(IndexType::I64));
    let bias = mask.bias;
    MaskParams {
        bias: address(operands.bias),
        bias_batch: bias.map_or(0, |bias| bias.batch),
        bias_head: bias.map_or(0, |bias| bias.head),
        bias_row: bias.map_or(0, |bias| bias.row),
        bias_key: bias.map_or(0, |bias| bias.key),
        key_lengths: address(operands.key_lengths),
        query_offsets: address(operands.query_offsets),
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

/// What the launches of one Hopper kernel share.
#[derive(Debug)]
pub struct HopperLaunches {
    counters: LaunchCounters,
    maps: TensorMapCache<Operand>,
}

impl HopperLaunches {
    /// Of a kernel that has not been launched.
    ///
    /// # Errors
    ///
    /// If there is no memory for the counters.
    pub fn new(runtime: &Runtime) -> Result<Self, curt::Error> {
        Ok(Self { counters: LaunchCounters::new(runtime)?, maps: TensorMapCache::new() })
    }

    /// The address of the counter from which a launch of the path `by` draws its tiles.
    ///
    /// # Errors
    ///
    /// Where as many launches as there are counters have been captured.
    pub fn tile_counter(&self, runtime: &Runtime, by: &str) -> Result<u64, Refusal> {
        self.counters.take(runtime).map(|counter| counter.address()).ok_or_else(|| {
            let feature = format!("more than {} captured launches of one plan", LaunchCounters::CAPTURED);
            Reason::unsupported(feature, by, "make another plan of the same problem").into()
        })
    }

    /// The tensor map of an operand, which `encode` makes where an earlier launch has not.
    ///
    /// # Errors
    ///
    /// Those of `encode`.
    pub fn map(
        &self,
        operand: Operand,
        memory: DevicePtr,
        encode: impl FnOnce() -> Result<TensorMap, curt::Error>,
    ) -> Result<TensorMap, curt::Error> {
        self.maps.get(operand, memory, encode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bias, Mask, Shape, Window};

    fn problem() -> Problem {
        let shape = Shape { batch: 1, q_heads: 1, kv_heads: 1, q_len: 3, kv_len: 5, head_dim: 8, v_head_dim: 8 };
        Problem::bhsd(shape, DType::F32)
    }

    #[test]
    fn a_causal_mask_outweighs_a_window_to_the_right() {
        let mut problem = problem();
        assert_eq!(mask_params(&problem, &Operands::default()).window_right, -1);
        problem.mask = Mask::causal(Alignment::BottomRight);
        problem.mask.window = Window { left: Some(2), right: Some(7) };
        let params = mask_params(&problem, &Operands::default());
        assert_eq!((params.window_left, params.window_right, params.alignment), (2, 0, abi::ALIGN_BOTTOM_RIGHT));
    }

    #[test]
    fn a_long_bias_does_not_lengthen_the_keys() {
        let mut problem = problem();
        assert_eq!(mask_params(&problem, &Operands::default()).bias_keys, 5);
        let kind = BiasKind::Boolean;
        for (keys, want) in [(3, 3), (9, 5)] {
            problem.mask.bias = Some(Bias { kind, batch: 0, head: 0, row: 9, key: 1, keys });
            assert_eq!(mask_params(&problem, &Operands::default()).bias_keys, want);
        }
    }

    #[test]
    fn a_float32_bias_of_a_float32_problem_is_its_element_type() {
        let mut problem = problem();
        let bias = |dtype| Bias { kind: BiasKind::Additive(dtype), batch: 0, head: 0, row: 5, key: 1, keys: 5 };
        problem.mask.bias = Some(bias(DType::F32));
        assert_eq!(bias_kind(&problem), KernelBias::Element);
        problem.dtype = DType::F16;
        assert_eq!(bias_kind(&problem), KernelBias::F32);
    }
}
