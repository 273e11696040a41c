//! Small problems whose results are worked out by hand, and the edges of the contract.

use cuattn_core::reference::{self, HostOperands, HostOutput, ScoreIndex};
use cuattn_core::{
    Alignment, Bias, BiasKind, DType, IndexType, KeyLengths, Mask, Paging, Problem, Reason, ScoreMod, ScoreStage,
    ScoresOutput, Shape, Strides, Window,
};
use rstest::rstest;

use crate::case::{assert_close, encode_index, full_bias};

/// One head of one sequence, all dimensions 1: then the output of a row is the weighted mean of `v`.
fn line(q_len: usize, kv_len: usize) -> Problem {
    let shape = Shape { batch: 1, q_heads: 1, kv_heads: 1, q_len, kv_len, head_dim: 1, v_head_dim: 1 };
    Problem::bhsd(shape, DType::F32)
}

fn f32s(values: &[f64]) -> Vec<u8> {
    reference::encode(values, DType::F32)
}

fn run(problem: &Problem, q: &[f64], k: &[f64], v: &[f64]) -> HostOutput {
    run_with(problem, q, k, v, HostOperands::default())
}

fn run_with(problem: &Problem, q: &[f64], k: &[f64], v: &[f64], others: HostOperands<'_>) -> HostOutput {
    let (q, k, v) = (f32s(q), f32s(k), f32s(v));
    reference::attention(problem, &HostOperands { q: &q, k: &k, v: &v, ..others }).unwrap()
}

#[test]
fn two_keys_weigh_by_the_exponential_of_their_scores() {
    // Scores ln 3 and 0: weights 3/4 and 1/4.
    let output = run(&line(1, 2), &[1.0], &[3.0f64.ln(), 0.0], &[8.0, 4.0]);
    assert_close(&output.o, &[7.0], 1e-7, "o");
    assert_close(&output.log_sum_exp, &[4.0f64.ln()], 1e-7, "log_sum_exp");
}

#[test]
fn scale_comes_before_softcap() {
    let mut problem = line(1, 2);
    problem.scale = 2.0;
    problem.softcap = Some(3.0);
    problem.scores = Some(ScoresOutput { stage: ScoreStage::Softcapped, dtype: DType::F32 });
    let output = run(&problem, &[1.0], &[1.0, -2.0], &[0.0, 0.0]);
    let want = [3.0 * (2.0f64 / 3.0).tanh(), 3.0 * (-4.0f64 / 3.0).tanh()];
    assert_close(output.scores.as_deref().unwrap(), &want, 1e-15, "scores");
}

#[rstest]
// ONNX without a past: the first row stands beside the first key, even where there are more keys than rows.
#[case::top_left(Alignment::TopLeft, [1.0, 1.5])]
// FlashAttention: the last row stands beside the last key.
#[case::bottom_right(Alignment::BottomRight, [2.0, 2.5])]
fn causal_alignment(#[case] alignment: Alignment, #[case] means: [f64; 2]) {
    let mut problem = line(2, 4);
    problem.mask = Mask::causal(alignment);
    let output = run(&problem, &[0.0, 0.0], &[0.0; 4], &[1.0, 2.0, 3.0, 4.0]);
    assert_close(&output.o, &means, 1e-15, "o");
}

#[test]
fn more_rows_than_keys_leaves_the_leading_rows_dead() {
    let mut problem = line(4, 2);
    problem.mask = Mask::causal(Alignment::BottomRight);
    let output = run(&problem, &[0.0; 4], &[0.0; 2], &[1.0, 3.0]);
    assert_eq!(output.o, [0.0, 0.0, 1.0, 2.0]);
    assert_eq!(output.log_sum_exp, [f64::NEG_INFINITY, f64::NEG_INFINITY, 0.0, 2.0f64.ln()]);
}

#[test]
fn no_key_at_all_gives_zeros() {
    let output = run(&line(2, 0), &[1.0, 1.0], &[], &[]);
    assert_eq!(output.o, [0.0, 0.0]);
    assert_eq!(output.log_sum_exp, [f64::NEG_INFINITY; 2]);
}

#[rstest]
#[case::batch(Shape { batch: 0, q_heads: 1, kv_heads: 1, q_len: 2, kv_len: 2, head_dim: 1, v_head_dim: 1 })]
#[case::heads(Shape { batch: 1, q_heads: 0, kv_heads: 0, q_len: 2, kv_len: 2, head_dim: 1, v_head_dim: 1 })]
#[case::rows(Shape { batch: 1, q_heads: 1, kv_heads: 1, q_len: 0, kv_len: 2, head_dim: 1, v_head_dim: 1 })]
fn nothing_to_compute_needs_no_operand(#[case] shape: Shape) {
    let mut problem = Problem::bhsd(shape, DType::F32);
    problem.mask.key_lengths = KeyLengths::PerBatch(IndexType::I64);
    let output = reference::attention(&problem, &HostOperands::default()).unwrap();
    assert_eq!(output, HostOutput { o: vec![], log_sum_exp: vec![], scores: None });
}

#[test]
fn a_window_is_a_band_around_the_position() {
    let mut problem = line(4, 4);
    problem.mask.window = Window { left: Some(1), right: Some(1) };
    let output = run(&problem, &[0.0; 4], &[0.0; 4], &[1.0, 2.0, 4.0, 8.0]);
    assert_close(&output.o, &[1.5, 7.0 / 3.0, 14.0 / 3.0, 6.0], 1e-15, "o");
}

#[test]
fn a_sink_takes_its_share_of_the_denominator_only() {
    let mut problem = line(1, 1);
    problem.has_sinks = true;
    let sinks = f32s(&[0.0]);
    let output =
        run_with(&problem, &[0.0], &[0.0], &[6.0], HostOperands { sinks: Some(&sinks), ..HostOperands::default() });
    assert_eq!(output.o, [3.0]);
    assert_eq!(output.log_sum_exp, [2.0f64.ln()]);
}

#[test]
fn a_dead_row_with_a_sink_gives_zeros_and_the_sink() {
    let mut problem = line(1, 1);
    problem.has_sinks = true;
    problem.mask.key_lengths = KeyLengths::PerBatch(IndexType::I32);
    let (sinks, lengths) = (f32s(&[1.25]), encode_index(&[0], IndexType::I32));
    let others = HostOperands { sinks: Some(&sinks), key_lengths: Some(&lengths), ..HostOperands::default() };
    let output = run_with(&problem, &[0.0], &[f64::NAN], &[f64::NAN], others);
    assert_eq!(output.o, [0.0]);
    assert_eq!(output.log_sum_exp, [1.25]);
}

#[rstest]
#[case::past_plus_query(KeyLengths::PastPlusQuery(IndexType::I64), 1)]
#[case::length(KeyLengths::PerBatch(IndexType::I32), 3)]
fn keys_beyond_the_length_do_not_count_whatever_they_hold(#[case] lengths: KeyLengths, #[case] stored: i64) {
    let mut problem = line(2, 5);
    problem.mask = Mask::causal(Alignment::BottomRight);
    problem.mask.key_lengths = lengths;
    let stored = encode_index(&[stored], lengths.index_type().unwrap());
    let others = HostOperands { key_lengths: Some(&stored), ..HostOperands::default() };
    let nan = f64::NAN;
    let output =
        run_with(&problem, &[1.0; 2], &[0.0, 0.0, 0.0, nan, f64::INFINITY], &[1.0, 2.0, 6.0, nan, nan], others);
    assert_close(&output.o, &[1.5, 3.0], 1e-15, "o");
}

#[test]
fn a_negative_length_is_none_and_one_too_great_is_all() {
    let shape = Shape { batch: 2, q_heads: 1, kv_heads: 1, q_len: 1, kv_len: 2, head_dim: 1, v_head_dim: 1 };
    let mut problem = Problem::bhsd(shape, DType::F32);
    problem.mask.key_lengths = KeyLengths::PerBatch(IndexType::I64);
    let lengths = encode_index(&[i64::MIN, i64::MAX], IndexType::I64);
    let others = HostOperands { key_lengths: Some(&lengths), ..HostOperands::default() };
    let output = run_with(&problem, &[0.0; 2], &[0.0; 4], &[1.0, 2.0, 3.0, 4.0], others);
    assert_eq!(output.o, [0.0, 3.5]);
}

#[rstest]
#[case::nan_key([f64::NAN, 0.0], [1.0, 1.0])]
#[case::nan_value([0.0, 0.0], [1.0, f64::NAN])]
#[case::infinite_key([f64::INFINITY, 0.0], [1.0, 1.0])]
fn what_is_not_a_number_propagates_where_it_is_seen(#[case] k: [f64; 2], #[case] v: [f64; 2]) {
    let output = run(&line(1, 2), &[1.0], &k, &v);
    assert!(output.o[0].is_nan());
}

#[test]
fn a_key_of_minus_infinity_has_no_weight_and_a_row_of_them_is_dead() {
    let output = run(&line(1, 2), &[1.0], &[f64::NEG_INFINITY, 2.0], &[1.0, 5.0]);
    assert_eq!((output.o[0], output.log_sum_exp[0]), (5.0, 2.0));
    let output = run(&line(1, 2), &[1.0], &[f64::NEG_INFINITY; 2], &[1.0, 5.0]);
    assert_eq!((output.o[0], output.log_sum_exp[0]), (0.0, f64::NEG_INFINITY));
}

fn biased(values: &[f64], v: &[f64]) -> HostOutput {
    let mut problem = line(1, values.len());
    problem.mask.bias = Some(full_bias(BiasKind::Additive(DType::F32), &problem.shape));
    let bias = f32s(values);
    run_with(&problem, &[1.0], &vec![0.0; v.len()], v, HostOperands { bias: Some(&bias), ..HostOperands::default() })
}

#[test]
fn an_additive_bias_of_minus_infinity_is_a_mask() {
    let output = biased(&[f64::NEG_INFINITY, 0.0], &[f64::NAN, 5.0]);
    assert_eq!(output.o, [5.0]);
    let output = biased(&[f64::NEG_INFINITY; 2], &[1.0, 5.0]);
    assert_eq!((output.o[0], output.log_sum_exp[0]), (0.0, f64::NEG_INFINITY));
}

#[rstest]
#[case::most_negative(f64::from(f32::MIN))]
#[case::huge(-1e30)]
fn a_row_of_huge_negatives_is_a_uniform_softmax(#[case] huge: f64) {
    let output = biased(&[huge, huge], &[1.0, 5.0]);
    assert_eq!(output.o, [3.0]);
    let output = biased(&[huge, 0.0], &[1.0, 5.0]);
    assert_eq!(output.o, [5.0]);
}

#[test]
fn a_bias_that_is_not_a_number_propagates() {
    assert!(biased(&[f64::NAN, 0.0], &[1.0, 5.0]).o[0].is_nan());
}

#[test]
fn keys_that_a_short_bias_does_not_cover_are_masked() {
    let mut problem = line(1, 3);
    problem.mask.bias = Some(Bias { keys: 2, ..full_bias(BiasKind::Boolean, &problem.shape) });
    let others = HostOperands { bias: Some(&[1, 255]), ..HostOperands::default() };
    assert_eq!(run_with(&problem, &[0.0], &[0.0; 3], &[1.0, 2.0, 300.0], others).o, [1.5]);
}

#[test]
fn the_four_stages() {
    let stages = [ScoreStage::Raw, ScoreStage::Softcapped, ScoreStage::Masked, ScoreStage::Probabilities];
    let capped = |score: f64| 2.0 * (score / 2.0).tanh();
    let (a, b) = (capped(1.0), capped(2.0));
    let total = a.exp() + b.exp();
    let want =
        [[1.0, 2.0, 3.0], [a, b, capped(3.0)], [a, b, f64::NEG_INFINITY], [a.exp() / total, b.exp() / total, 0.0]];
    for (stage, want) in stages.into_iter().zip(want) {
        let mut problem = line(1, 3);
        problem.softcap = Some(2.0);
        problem.mask = Mask::causal(Alignment::PerBatch(IndexType::I32));
        problem.scores = Some(ScoresOutput { stage, dtype: DType::F32 });
        let offsets = encode_index(&[1], IndexType::I32);
        let others = HostOperands { query_offsets: Some(&offsets), ..HostOperands::default() };
        let output = run_with(&problem, &[1.0], &[1.0, 2.0, 3.0], &[0.0; 3], others);
        assert_close(output.scores.as_deref().unwrap(), &want, 1e-15, &format!("{stage:?}"));
    }
}

#[test]
fn a_dead_row_has_no_probability_anywhere() {
    let mut problem = line(2, 1);
    problem.mask = Mask::causal(Alignment::BottomRight);
    problem.scores = Some(ScoresOutput { stage: ScoreStage::Probabilities, dtype: DType::F32 });
    assert_eq!(run(&problem, &[0.0; 2], &[0.0], &[1.0]).scores.unwrap(), [0.0, 1.0]);
}

#[test]
fn a_score_modification_sees_its_indices_and_can_mask() {
    let shape = Shape { batch: 2, q_heads: 2, kv_heads: 1, q_len: 2, kv_len: 3, head_dim: 1, v_head_dim: 1 };
    let mut problem = Problem::bhsd(shape, DType::F32);
    problem.score_mod = Some(ScoreMod { body: "return score;".into(), buffers: 0 });
    problem.scores = Some(ScoresOutput { stage: ScoreStage::Masked, dtype: DType::F32 });
    let number = |index: ScoreIndex| (index.batch * 1000 + index.head * 100 + index.q * 10 + index.k) as f64;
    let score_mod =
        |score: f64, index: ScoreIndex| if index.k == 2 { f64::NEG_INFINITY } else { score + number(index) };
    let others = HostOperands { score_mod: Some(&score_mod), ..HostOperands::default() };
    let output = run_with(&problem, &[0.0; 8], &[0.0; 6], &[1.0, 2.0, f64::NAN, 1.0, 2.0, f64::NAN], others);
    let scores = output.scores.unwrap();
    assert_eq!(scores[..3], [0.0, 1.0, f64::NEG_INFINITY]);
    assert_eq!(scores[21..], [1110.0, 1111.0, f64::NEG_INFINITY]);
    assert!(output.o.iter().all(|o| !o.is_nan()));

    let (q, k, v) = (f32s(&[0.0; 8]), f32s(&[0.0; 6]), f32s(&[0.0; 6]));
    let refusal =
        reference::attention(&problem, &HostOperands { q: &q, k: &k, v: &v, ..HostOperands::default() }).unwrap_err();
    assert_eq!(refusal.reasons, [Reason::ScoreModNotOnHost]);
}

#[test]
fn pages_are_found_through_the_table() {
    let mut problem = line(1, 5);
    problem.paging = Some(Paging { page_size: 2, pages: 4, max_pages: 3 });
    problem.k = Strides { batch: 2, head: 2, row: 1 };
    problem.v = problem.k;
    let table = encode_index(&[3, 0, 2], IndexType::I32);
    let nan = f64::NAN;
    // Pages:   0         1         2         3
    let v = [4.0, 8.0, nan, nan, 16.0, nan, 1.0, 2.0];
    let others = HostOperands { page_table: Some(&table), ..HostOperands::default() };
    assert_close(&run_with(&problem, &[0.0], &[0.0; 8], &v, others).o, &[31.0 / 5.0], 1e-15, "o");

    let table = encode_index(&[3, 4, 2], IndexType::I32);
    let (q, k, v) = (f32s(&[0.0]), f32s(&[0.0; 8]), f32s(&v));
    let others = HostOperands { q: &q, k: &k, v: &v, page_table: Some(&table), ..HostOperands::default() };
    let refusal = reference::attention(&problem, &others).unwrap_err();
    assert_eq!(refusal.reasons, [Reason::PageOutOfRange { sequence: 0, column: 1, page: 4, pages: 4 }]);
}

#[test]
fn output_is_written_with_strides_and_one_rounding() {
    let shape = Shape { batch: 1, q_heads: 2, kv_heads: 2, q_len: 2, kv_len: 0, head_dim: 1, v_head_dim: 1 };
    let mut problem = Problem::bshd(shape, DType::Bf16);
    problem.o = Strides { batch: 0, head: 2, row: 4 };
    // 1 + 2^-8 lies halfway between two bf16 numbers, and a little more must round up, not to even.
    let output = HostOutput { o: vec![1.00390625 + 1e-9, 2.0, 1.00390625, -4.0], log_sum_exp: vec![], scores: None };
    let mut bytes = vec![0xAA; 14];
    output.write_o(&problem, &mut bytes).unwrap();
    let want = reference::encode(&[1.0078125, 0.0, 1.0, 0.0, 2.0, 0.0, -4.0], DType::Bf16);
    for element in [0, 2, 4, 6] {
        assert_eq!(bytes[element * 2..][..2], want[element * 2..][..2], "element {element}");
    }
    assert_eq!(bytes[2..4], [0xAA, 0xAA], "between rows nothing is written");
    assert_eq!(HostOutput::read_o(&problem, &bytes).unwrap(), [1.0078125, 2.0, 1.0, -4.0]);
    assert!(output.write_o(&problem, &mut bytes[..13]).is_err());
}

#[rstest]
#[case::halfway_goes_to_even(1.0 + 2f64.powi(-11), 1.0)]
#[case::a_little_more_goes_up(1.0 + 2f64.powi(-11) + 2f64.powi(-45), 1.0 + 2f64.powi(-10))]
#[case::a_little_less_goes_down(1.0 + 3.0 * 2f64.powi(-11) - 2f64.powi(-45), 1.0 + 2f64.powi(-10))]
#[case::the_same_below_zero(-1.0 - 2f64.powi(-11) - 2f64.powi(-45), -1.0 - 2f64.powi(-10))]
#[case::subnormal(2f64.powi(-25) + 2f64.powi(-60), 2f64.powi(-24))]
#[case::smaller_than_any_float32(1e-60, 0.0)]
#[case::too_great(1e300, f64::INFINITY)]
#[case::the_last_that_is_not(65519.999999999, 65504.0)]
fn float16_is_rounded_once(#[case] value: f64, #[case] want: f64) {
    assert_eq!(reference::decode(&reference::encode(&[value], DType::F16), DType::F16), [want]);
}
