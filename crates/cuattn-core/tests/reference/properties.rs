//! Random problems against the naive formula.

use cuattn_core::{
    Alignment, Bias, BiasKind, BroadcastRule, DType, IndexType, KeyLengths, Mask, Problem, ScoreStage, ScoresOutput,
    Shape, Strides, Window,
};
use proptest::prelude::*;

use crate::case::{Case, assert_close};
use crate::naive::naive;

fn shapes() -> impl Strategy<Value = Shape> {
    (0..3usize, 1..4usize, 1..4usize, 0..36usize, 0..40usize, 1..20usize, 1..20usize).prop_map(
        |(batch, kv_heads, group, q_len, kv_len, head_dim, v_head_dim)| Shape {
            batch,
            q_heads: kv_heads * group,
            kv_heads,
            q_len,
            kv_len,
            head_dim,
            v_head_dim,
        },
    )
}

fn index_types() -> impl Strategy<Value = IndexType> {
    prop_oneof![Just(IndexType::I32), Just(IndexType::I64)]
}

fn windows() -> impl Strategy<Value = Window> {
    let side = || prop_oneof![3 => Just(None), 3 => (0..12u32).prop_map(Some), 1 => Just(Some(u32::MAX))];
    (side(), side()).prop_map(|(left, right)| Window { left, right })
}

/// Masks without their bias, whose strides depend on the shape.
fn masks() -> impl Strategy<Value = Mask> {
    let alignment = prop_oneof![
        Just(Alignment::TopLeft),
        Just(Alignment::BottomRight),
        index_types().prop_map(Alignment::PerBatch)
    ];
    let lengths = prop_oneof![
        2 => Just(KeyLengths::Full),
        1 => index_types().prop_map(KeyLengths::PerBatch),
        1 => index_types().prop_map(KeyLengths::PastPlusQuery),
    ];
    (any::<bool>(), alignment, windows(), lengths).prop_map(|(causal, alignment, window, key_lengths)| Mask {
        causal,
        alignment,
        window,
        bias: None,
        key_lengths,
    })
}

/// How a bias is made for a shape: kind, which dimensions are 1, which rule, and keys it lacks.
type BiasRecipe = (u8, [bool; 4], bool, usize);

fn bias_of((kind, ones, onnx, lacks): BiasRecipe, shape: &Shape, dtype: DType) -> Option<Bias> {
    let kind = match kind {
        0 => return None,
        1 => BiasKind::Boolean,
        2 => BiasKind::Additive(DType::F32),
        _ => BiasKind::Additive(dtype),
    };
    let full = [shape.batch, shape.q_heads, shape.q_len, shape.kv_len];
    let mut dims = std::array::from_fn(|axis| if ones[axis] { 1 } else { full[axis] });
    let rule = if onnx { BroadcastRule::Onnx } else { BroadcastRule::Numpy };
    if onnx {
        dims[3] = shape.kv_len.saturating_sub(lacks);
    }
    Some(Bias::broadcast(kind, dims, shape, rule).expect("dimensions that are full or 1"))
}

fn problems() -> impl Strategy<Value = (Problem, u64)> {
    let dtype = prop_oneof![Just(DType::F32), Just(DType::F16), Just(DType::Bf16)];
    let stage = prop_oneof![
        Just(None),
        Just(Some(ScoreStage::Raw)),
        Just(Some(ScoreStage::Softcapped)),
        Just(Some(ScoreStage::Masked)),
        Just(Some(ScoreStage::Probabilities)),
    ];
    let bias = (0..4u8, any::<[bool; 4]>(), any::<bool>(), 0..5usize);
    let options = (proptest::option::of(0.5f32..20.0), any::<bool>(), stage, -1.0f32..1.0, 0..5i64, any::<bool>());
    (shapes(), dtype, masks(), bias, options, any::<u64>()).prop_map(|(shape, dtype, mask, bias, options, seed)| {
        let (softcap, has_sinks, stage, scale, slack, bshd) = options;
        let mut problem = if bshd { Problem::bshd(shape, dtype) } else { Problem::bhsd(shape, dtype) };
        // A cache with room beyond its length, or rows that are padded, are nothing but strides.
        problem.k.batch += slack * 7;
        problem.q.batch += slack;
        problem.v = if slack == 4 { Strides { batch: 0, ..problem.v } } else { problem.v };
        problem.scale = scale;
        problem.softcap = softcap;
        problem.has_sinks = has_sinks;
        problem.scores = stage.map(|stage| ScoresOutput { stage, dtype: DType::F32 });
        problem.mask = Mask { bias: bias_of(bias, &shape, dtype), ..mask };
        (problem, seed)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn equals_the_formula((problem, seed) in problems()) {
        prop_assert!(problem.validate().is_ok());
        let case = Case::random(problem, seed);
        let got = case.compute();
        let want = naive(&case);
        assert_close(&got.o, &want.o, 1e-11, "o");
        assert_close(&got.log_sum_exp, &want.log_sum_exp, 1e-11, "log_sum_exp");
        if case.problem.scores.is_some() {
            assert_close(got.scores.as_deref().unwrap(), &want.scores, 1e-11, "scores");
        }
    }

    #[test]
    fn work_counts_the_pairs_that_are_seen(
        q_len in 0..30usize,
        kv_len in 0..30usize,
        offset in -40..40i64,
        causal in any::<bool>(),
        window in windows(),
    ) {
        let seen = |i: usize, j: usize| {
            let distance = j as i64 - (offset + i as i64);
            !(causal && distance > 0)
                && window.right.is_none_or(|right| distance <= i64::from(right))
                && window.left.is_none_or(|left| -distance <= i64::from(left))
        };
        let want = (0..q_len).flat_map(|i| (0..kv_len).map(move |j| (i, j))).filter(|&(i, j)| seen(i, j)).count();
        prop_assert_eq!(cuattn_core::visible_pairs(q_len, kv_len, offset, causal, window), want as u128);
    }
}
