//! What the engine would do and what it refuses, without a GPU.

use cuattn_core::{Alignment, Bias, BiasKind, DType, Engine, KeyLengths, Mask, Paging, Problem, Shape, Strides};
use cuattn_phase2a::{Options, Phase2a};
use curt::Capabilities;

fn shape() -> Shape {
    Shape { batch: 2, q_heads: 32, kv_heads: 8, q_len: 512, kv_len: 640, head_dim: 128, v_head_dim: 128 }
}

fn explained(engine: &Phase2a, problem: &Problem) -> String {
    let explanation = engine.consider(&Capabilities::h200(), problem).unwrap();
    format!("{}: {}\n{}", explanation.path, explanation.why, explanation.details.join("\n"))
}

#[test]
fn contiguous_heads_are_one_product_a_chunk() {
    let engine = Phase2a::with_score_cap(64 << 20);
    insta::assert_snapshot!(explained(&engine, &Problem::bhsd(shape(), DType::F16)), @"
    cublaslt: two strided-batched products around a softmax kernel do every dense problem
    arrangement: 4 query heads of a key head as the rows of one product, 16 in a batch, 1 batches
    chunks: 2 of at most 16384 score rows, 41943040 bytes of scores under a cap of 67108864
    softmax: 32 threads a row, 32 scores each in registers
    ");
}

#[test]
fn masks_make_a_copy_of_the_values() {
    let mut problem = Problem::bshd(shape(), DType::Bf16);
    problem.mask = Mask::causal(Alignment::BottomRight);
    problem.q.row = 0;
    let text = explained(&Phase2a::with_score_cap(1 << 30), &problem);
    insta::assert_snapshot!(text, @"
    cublaslt: two strided-batched products around a softmax kernel do every dense problem
    arrangement: a query head a product, 8 in a batch, 8 batches
    chunks: 8 of at most 4096 score rows, 10485760 bytes of scores under a cap of 1073741824
    softmax: 32 threads a row, 32 scores each in registers
    copies q: its rows overlap
    copies v: masked values must not be multiplied
    ");
}

#[test]
fn long_problems_have_bounded_chunks() {
    let shape = Shape { q_len: 32_768, kv_len: 32_768, ..shape() };
    for dtype in DType::ALL {
        let text = explained(&Phase2a::new(), &Problem::bhsd(shape, dtype));
        let bytes: usize = text
            .lines()
            .find_map(|line| line.strip_prefix("chunks: ")?.split(", ").nth(1)?.split(' ').next()?.parse().ok())
            .unwrap();
        assert!(bytes <= 512 << 20, "{dtype}: {text}");
    }
    // A cap below one row still holds a row.
    let text = explained(&Phase2a::with_score_cap(1), &Problem::bhsd(self::shape(), DType::F32));
    assert!(text.contains("of at most 1 score rows"), "{text}");
}

#[test]
fn everything_dense_is_done() {
    let plain = Problem::bhsd(shape(), DType::F32);
    let masks = [
        Mask { key_lengths: KeyLengths::PerBatch(cuattn_core::IndexType::I64), ..Mask::none() },
        Mask {
            bias: Some(Bias { kind: BiasKind::Boolean, batch: 0, head: 0, row: 640, key: 1, keys: 640 }),
            ..Mask::none()
        },
    ];
    for mask in masks {
        let problem = Problem { mask, softcap: Some(20.0), has_sinks: true, wants_log_sum_exp: true, ..plain.clone() };
        assert!(Phase2a::new().consider(&Capabilities::a100(), &problem).is_ok());
    }
    for (q_len, kv_len, path) in [(0, 5, "nothing"), (5, 0, "no keys")] {
        let problem = Problem::bhsd(Shape { q_len, kv_len, ..shape() }, DType::F16);
        assert_eq!(Phase2a::new().consider(&Capabilities::h200(), &problem).unwrap().path, path);
    }
}

#[test]
fn refusals_list_every_reason() {
    let mut problem = Problem::bhsd(Shape { q_len: 1 << 30, ..shape() }, DType::F16);
    problem.paging = Some(Paging { page_size: 16, pages: 100, max_pages: 40 });
    problem.k = Strides::bhsd(8, 16, 128);
    problem.v = problem.k;
    let mut old = Capabilities::h200();
    old.compute_capability = (7, 5);
    insta::assert_snapshot!(Phase2a::new().consider(&old, &problem).unwrap_err().to_string(), @"
    phase2a refuses:
      * phase2a does not do paged keys and values: use the flash engine, which reads pages, or gather the pages into dense keys and values
      * phase2a needs compute capability 8.0 or newer, and this device has 7.5: its kernels use conversions that older devices lack
      * q_heads times q_len is 34359738368, and phase2a goes up to 1073741823: split the problem along the batch or the heads
      * batch times q_heads times q_len / 64 is 1073741824, and phase2a goes up to 1073741823: split the problem along the batch or the heads
    ");
}

#[test]
fn options_are_kept() {
    let options = Options { score_cap: Some(7), max_blas_workspace: 9 };
    assert_eq!(Phase2a::with_options(options).options(), options);
    assert_eq!(Phase2a::with_score_cap(7).options().score_cap, Some(7));
}
