//! Queries, keys and values of a language model over real text, with results from another float64 implementation.

use cuattn_core::reference::{self, HostOperands};
use cuattn_core::{Alignment, DType, Mask, Problem, Shape};
use rstest::rstest;
use safetensors::SafeTensors;

#[rstest]
fn a_language_model_over_real_text(
    #[values("layer00_s256_bf16.safetensors", "layer29_s256_bf16.safetensors")] name: &str,
) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/smollm2").join(name);
    let file = std::fs::read(path).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let tensor = |name: &str| tensors.tensor(name).unwrap();
    let (q, k, v) = (tensor("q"), tensor("k"), tensor("v"));
    let shape = Shape {
        batch: q.shape()[0],
        q_heads: q.shape()[1],
        kv_heads: k.shape()[1],
        q_len: q.shape()[2],
        kv_len: k.shape()[2],
        head_dim: q.shape()[3],
        v_head_dim: v.shape()[3],
    };
    let mut problem = Problem::bhsd(shape, DType::Bf16);
    problem.mask = Mask::causal(Alignment::TopLeft);
    let operands = HostOperands { q: q.data(), k: k.data(), v: v.data(), ..HostOperands::default() };
    let output = reference::attention(&problem, &operands).unwrap();

    let (o_ref, lse_ref) = (
        reference::decode(tensor("o_ref").data(), DType::F32),
        reference::decode(tensor("lse_ref").data(), DType::F32),
    );
    assert_eq!((output.o.len(), output.log_sum_exp.len()), (o_ref.len(), lse_ref.len()));
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
    let error = norm(&mut output.o.iter().zip(&o_ref).map(|(got, want)| got - want)) / norm(&mut o_ref.iter().copied());
    // The stored results are rounded to float32: half a unit in the last place is 6e-8.
    assert!(error < 6e-8, "relative L2 error of o: {error:e}");
    let greatest = o_ref.iter().fold(0.0f64, |most, value| most.max(value.abs()));
    for (got, want) in output.o.iter().zip(&o_ref) {
        assert!((got - want).abs() <= 1e-6 * want.abs() + 1e-9 * greatest, "{got} is not {want}");
    }
    for (got, want) in output.log_sum_exp.iter().zip(&lse_ref) {
        assert!((got - want).abs() <= 1e-6 * want.abs().max(1.0), "{got} is not {want}");
    }
}
