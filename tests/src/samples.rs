//! Real tensors: attention of a language model over text, with its result in float64. `tests/data` says where they come from.

use anyhow::Context as _;
use cuattn_core::{Alignment, DType, Mask, Problem, Shape};
use safetensors::SafeTensors;

use crate::inputs::Inputs;

const FILES: &[(&str, &[u8])] = &[
    ("layer 0, 256 tokens", include_bytes!("../data/smollm2/layer00_s256_bf16.safetensors")),
    ("layer 29, 256 tokens", include_bytes!("../data/smollm2/layer29_s256_bf16.safetensors")),
];

/// One layer's attention.
#[derive(Clone, Debug)]
pub struct Sample {
    /// For people.
    pub name: String,
    /// What was computed.
    pub problem: Problem,
    /// Its operands.
    pub inputs: Inputs,
}

/// Every sample, as stored in bf16, and converted to f16 and f32 without loss but for what f16 cannot hold.
///
/// # Errors
///
/// If a file does not parse, which would be a mistake in this repository.
pub fn all() -> anyhow::Result<Vec<Sample>> {
    let mut samples = Vec::new();
    for (name, bytes) in FILES {
        let file = SafeTensors::deserialize(bytes).context(*name)?;
        let q = file.tensor("q")?;
        let k = file.tensor("k")?;
        let v = file.tensor("v")?;
        let [batch, q_heads, q_len, head_dim] = q.shape().try_into().context("q has four dimensions")?;
        let [_, kv_heads, kv_len, _] = k.shape().try_into().context("k has four dimensions")?;
        let shape = Shape { batch, q_heads, kv_heads, q_len, kv_len, head_dim, v_head_dim: head_dim };
        for dtype in DType::ALL {
            let mut problem = Problem::bhsd(shape, dtype);
            problem.mask = Mask::causal(Alignment::BottomRight);
            problem.wants_log_sum_exp = true;
            let convert = |bytes: &[u8]| {
                cuattn_core::reference::encode(&cuattn_core::reference::decode(bytes, DType::Bf16), dtype)
            };
            let inputs =
                Inputs { q: convert(q.data()), k: convert(k.data()), v: convert(v.data()), ..Inputs::default() };
            samples.push(Sample { name: format!("{name}, {dtype}"), problem, inputs });
        }
    }
    Ok(samples)
}
