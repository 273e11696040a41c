use cuattn_core::{
    Bias, BiasKind, BroadcastRule, DType, Operand, Paging, Problem, Reason, ScoreMod, ScoreModFault, ScoreStage,
    ScoresOutput, Shape, Strides, VarlenProblem, VarlenShape,
};
use rstest::rstest;

const SHAPE: Shape = Shape { batch: 2, q_heads: 6, kv_heads: 2, q_len: 5, kv_len: 7, head_dim: 8, v_head_dim: 4 };

fn reasons(problem: &Problem) -> Vec<Reason> {
    problem.validate().expect_err("an illegal problem").reasons
}

#[test]
fn every_reason_is_given_not_only_the_first() {
    let mut problem = Problem::bhsd(Shape { q_heads: 7, head_dim: 0, ..SHAPE }, DType::F16);
    problem.scale = f32::NAN;
    problem.softcap = Some(-1.0);
    problem.k.row = -8;
    problem.score_mod = Some(ScoreMod { body: " \n".into(), buffers: 5 });
    problem.scores = Some(ScoresOutput { stage: ScoreStage::Raw, dtype: DType::Bf16 });
    problem.mask.bias =
        Some(Bias { kind: BiasKind::Additive(DType::Bf16), batch: 0, head: 0, row: -1, key: 1, keys: 7 });
    problem.paging = Some(Paging { page_size: 2, pages: 9, max_pages: 3 });
    insta::assert_snapshot!(problem.validate().unwrap_err(), @r"
    refused:
      * q_heads 7 is not a multiple of kv_heads 2: every key head must serve the same number of query heads; check that the two are not swapped, or repeat key heads until they divide
      * head_dim is 0: there is nothing to multiply; give the number of elements of one vector, at least 1
      * scale NaN is not a finite number: every score would be lost; the usual one is 1 / sqrt(head_dim)
      * softcap -1 is not a positive finite number: scores become softcap * tanh(score / softcap); use None for no cap
      * the score modification is empty: it must be the body of a function, such as `return score - 0.5f * (q - k);`
      * the score modification asks for 5 buffers, and there are at most 4: put several arrays in one buffer
      * the row stride of k is -8: strides must not be negative; point at the lowest element and use the order of memory
      * the query stride of bias is -1: strides must not be negative; point at the lowest element and use the order of memory
      * bias is bf16: it must be f16, the type of q, or f32; convert it
      * scores is bf16: it must be f16, the type of q, or f32; convert it
      * 3 pages of 2 rows hold 6 keys, and a sequence may have 7: give the table more columns, or lower the longest key length
    ");
}

#[rstest]
#[case::not_divisible(9, 2, false)]
#[case::no_key_heads(4, 0, false)]
#[case::fewer_queries(2, 4, false)]
#[case::group_of_one(4, 4, true)]
#[case::group_of_nine(9, 1, true)]
#[case::none(0, 0, true)]
#[case::no_query_heads(0, 3, true)]
fn heads(#[case] q_heads: usize, #[case] kv_heads: usize, #[case] legal: bool) {
    let problem = Problem::bhsd(Shape { q_heads, kv_heads, ..SHAPE }, DType::F32);
    assert_eq!(problem.validate().is_ok(), legal);
    if !legal {
        assert_eq!(reasons(&problem), [Reason::HeadsNotDivisible { q_heads, kv_heads }]);
    }
}

#[rstest]
#[case::zero(0.0, true)]
#[case::negative(-3.5, true)]
#[case::infinite(f32::INFINITY, false)]
#[case::not_a_number(f32::NAN, false)]
fn scales(#[case] scale: f32, #[case] legal: bool) {
    assert_eq!(Problem { scale, ..Problem::bhsd(SHAPE, DType::F32) }.validate().is_ok(), legal);
}

#[rstest]
#[case::zero(0.0)]
#[case::negative(-1.0)]
#[case::infinite(f32::INFINITY)]
#[case::not_a_number(f32::NAN)]
fn softcaps(#[case] softcap: f32) {
    let problem = Problem { softcap: Some(softcap), ..Problem::bhsd(SHAPE, DType::F32) };
    assert!(matches!(reasons(&problem)[..], [Reason::BadSoftcap { .. }]));
}

#[rstest]
#[case::empty("", ScoreModFault::Empty)]
#[case::nul("return score;\0", ScoreModFault::Nul)]
#[case::no_return("score + 1.0f;", ScoreModFault::NoReturn)]
fn score_mods(#[case] body: &str, #[case] fault: ScoreModFault) {
    let score_mod = Some(ScoreMod { body: body.into(), buffers: 0 });
    assert_eq!(reasons(&Problem { score_mod, ..Problem::bhsd(SHAPE, DType::F32) }), [Reason::BadScoreMod { fault }]);
}

#[rstest]
#[case::one_row_on_another(Strides { row: 3, ..Strides::bhsd(6, 5, 4) }, "row")]
#[case::one_head_on_another(Strides { head: 19, ..Strides::bhsd(6, 5, 4) }, "head")]
#[case::broadcast_batch(Strides { batch: 0, ..Strides::bhsd(6, 5, 4) }, "batch")]
fn outputs_that_overlap(#[case] o: Strides, #[case] which: &str) {
    let problem = Problem { o, ..Problem::bhsd(SHAPE, DType::F32) };
    let reasons = reasons(&problem);
    assert!(
        reasons.iter().any(|r| matches!(r, Reason::OverlappingOutput { dimension, .. } if *dimension == which)),
        "{reasons:?}"
    );
}

#[rstest]
#[case::bshd(Strides::bshd(6, 5, 4))]
#[case::sequence_first(Strides { batch: 24, head: 4, row: 48 })]
#[case::padded(Strides { batch: 4096, head: 512, row: 64 })]
fn outputs_that_do_not(#[case] o: Strides) {
    assert!(Problem { o, ..Problem::bhsd(SHAPE, DType::F32) }.validate().is_ok());
}

#[test]
fn a_stride_of_a_dimension_of_one_does_not_matter() {
    let o = Strides { batch: 0, ..Strides::bhsd(6, 5, 4) };
    assert!(Problem { o, ..Problem::bhsd(Shape { batch: 1, ..SHAPE }, DType::F32) }.validate().is_ok());
}

#[test]
fn inputs_may_be_broadcast() {
    let mut problem = Problem::bhsd(SHAPE, DType::F32);
    (problem.k.batch, problem.v.batch, problem.q.row) = (0, 0, 0);
    assert!(problem.validate().is_ok());
}

#[rstest]
#[case::just_fits(i64::MAX / 4 - 1024, true)]
#[case::overflows_bytes(i64::MAX / 4, false)]
#[case::overflows_elements(i64::MAX, false)]
fn the_end_of_a_tensor_must_be_countable(#[case] batch: i64, #[case] legal: bool) {
    let mut problem = Problem::bhsd(SHAPE, DType::F32);
    problem.k.batch = batch;
    assert_eq!(problem.validate().is_ok(), legal);
    if !legal {
        assert_eq!(reasons(&problem), [Reason::StrideOverflow { operand: Operand::K }]);
    }
}

#[test]
fn outputs_that_no_memory_can_hold() {
    let shape = Shape { q_len: 1 << 40, kv_len: 1 << 40, ..SHAPE };
    let strides = Strides { batch: 0, head: 0, row: 0 };
    let mut problem =
        Problem::with_strides(shape, DType::F32, [strides, strides, strides, Strides::bhsd(6, 1 << 40, 4)]);
    assert!(problem.validate().is_ok());
    problem.scores = Some(ScoresOutput { stage: ScoreStage::Raw, dtype: DType::F32 });
    assert_eq!(reasons(&problem), [Reason::SizeOverflow { what: "scores" }]);
}

#[test]
fn tensors_above_two_to_the_31st_are_legal() {
    let shape =
        Shape { batch: 16, q_heads: 64, kv_heads: 64, q_len: 65536, kv_len: 65536, head_dim: 128, v_head_dim: 128 };
    assert_eq!(Problem::bshd(shape, DType::Bf16).extents().unwrap().q, 16 * 64 * 65536 * 128 * 2);
}

#[rstest]
#[case::full([2, 6, 5, 7], BroadcastRule::Numpy, (210, 35, 7, 1, 7))]
#[case::one_plane([1, 1, 5, 7], BroadcastRule::Numpy, (0, 0, 7, 1, 7))]
#[case::a_key_mask([2, 1, 1, 7], BroadcastRule::Numpy, (7, 0, 0, 1, 7))]
#[case::one_key_for_all([1, 6, 5, 1], BroadcastRule::Numpy, (0, 5, 1, 0, 7))]
#[case::one_key_and_padding([1, 6, 5, 1], BroadcastRule::Onnx, (0, 5, 1, 1, 1))]
#[case::short([1, 1, 5, 3], BroadcastRule::Onnx, (0, 0, 3, 1, 3))]
#[case::no_key([1, 1, 5, 0], BroadcastRule::Onnx, (0, 0, 0, 1, 0))]
fn biases(#[case] dims: [usize; 4], #[case] rule: BroadcastRule, #[case] want: (i64, i64, i64, i64, usize)) {
    let bias = Bias::broadcast(BiasKind::Boolean, dims, &SHAPE, rule).unwrap();
    assert_eq!((bias.batch, bias.head, bias.row, bias.key, bias.keys), want);
}

#[rstest]
#[case::batch([3, 6, 5, 7], BroadcastRule::Numpy, "batch")]
#[case::key_heads([2, 2, 5, 7], BroadcastRule::Numpy, "head")]
#[case::query([2, 6, 7, 7], BroadcastRule::Onnx, "query")]
#[case::short([2, 6, 5, 3], BroadcastRule::Numpy, "key")]
#[case::long([2, 6, 5, 8], BroadcastRule::Onnx, "key")]
fn biases_that_do_not_fit(#[case] dims: [usize; 4], #[case] rule: BroadcastRule, #[case] which: &str) {
    let refusal = Bias::broadcast(BiasKind::Boolean, dims, &SHAPE, rule).unwrap_err();
    assert!(
        matches!(refusal.reasons[..], [Reason::BiasDoesNotBroadcast { dimension, .. }] if dimension == which),
        "{refusal}"
    );
}

#[test]
fn a_packed_problem_gives_every_reason_too() {
    let shape = VarlenShape {
        batch: 0,
        total_q: 5,
        total_kv: 5,
        max_q_len: 5,
        max_kv_len: 5,
        q_heads: 3,
        kv_heads: 2,
        head_dim: 8,
        v_head_dim: 0,
    };
    let mut problem = VarlenProblem::packed(shape, DType::F16);
    problem.q.token = -1;
    problem.softcap = Some(0.0);
    insta::assert_snapshot!(problem.validate().unwrap_err(), @r"
    refused:
      * q_heads 3 is not a multiple of kv_heads 2: every key head must serve the same number of query heads; check that the two are not swapped, or repeat key heads until they divide
      * v_head_dim is 0: there is nothing to multiply; give the number of elements of one vector, at least 1
      * softcap 0 is not a positive finite number: scores become softcap * tanh(score / softcap); use None for no cap
      * the token stride of q is -1: strides must not be negative; point at the lowest element and use the order of memory
      * there are 5 query tokens but no sequence (batch is 0): no token would be written; set batch, or no tokens
    ");
}
