use cuattn_core::{
    Alignment, BiasKind, BroadcastRule, DType, IndexType, Mask, Problem, ScoreStage, ScoresOutput, SequenceLengths,
    Shape, VarlenProblem, VarlenShape, Window, Work,
};

const SHAPE: Shape = Shape { batch: 2, q_heads: 4, kv_heads: 2, q_len: 100, kv_len: 200, head_dim: 64, v_head_dim: 32 };

#[test]
fn plain_attention() {
    let elements = 2 * (4 * 100 + 2 * 200) * (64 + 32);
    let want = Work { flops: 2.0 * (2 * 4 * 100 * 200 * 96) as f64, bytes: (elements * 2) as f64 };
    assert_eq!(Problem::bhsd(SHAPE, DType::Bf16).work(), want);
}

#[test]
fn causal_halves_a_square_but_for_its_diagonal() {
    let mut problem = Problem::bhsd(Shape { kv_len: 100, ..SHAPE }, DType::F16);
    problem.mask = Mask::causal(Alignment::TopLeft);
    assert_eq!(problem.work().flops, 2.0 * (2 * 4 * 96 * 5050) as f64);
}

#[test]
fn a_window_at_unknown_positions_counts_as_full() {
    let mut problem = Problem::bhsd(SHAPE, DType::F16);
    problem.mask.alignment = Alignment::PerBatch(IndexType::I32);
    problem.mask.window = Window { left: Some(9), right: Some(10) };
    assert_eq!(problem.work().flops, 2.0 * (2 * 4 * 96 * 100 * 20) as f64);
}

#[test]
fn bias_scores_and_log_sum_exp_are_moved_too() {
    let plain = Problem::bhsd(SHAPE, DType::F16);
    let mut problem = plain.clone();
    let kind = BiasKind::Additive(DType::F32);
    problem.mask.bias = Some(cuattn_core::Bias::broadcast(kind, [1, 4, 1, 200], &SHAPE, BroadcastRule::Numpy).unwrap());
    problem.wants_log_sum_exp = true;
    problem.scores = Some(ScoresOutput { stage: ScoreStage::Raw, dtype: DType::F16 });
    let more = (4 * 200 * 4 + 2 * 4 * 100 * 4 + 2 * 4 * 100 * 200 * 2) as f64;
    assert_eq!(problem.work().bytes, plain.work().bytes + more);
}

#[test]
fn nothing_is_no_work() {
    assert_eq!(Problem::bhsd(Shape { q_len: 0, ..SHAPE }, DType::F16).work(), Work::default());
}

#[test]
fn packed_sequences() {
    let shape = VarlenShape {
        batch: 2,
        total_q: 8,
        total_kv: 8,
        max_q_len: 8,
        max_kv_len: 8,
        q_heads: 1,
        kv_heads: 1,
        head_dim: 8,
        v_head_dim: 8,
    };
    let mut problem = VarlenProblem::packed(shape, DType::F16);
    problem.causal = true;
    let lengths = [SequenceLengths { q: 2, kv: 2 }, SequenceLengths { q: 6, kv: 6 }];
    assert_eq!(problem.work(Some(&lengths)).flops, 2.0 * 16.0 * (3 + 21) as f64);
    assert_eq!(problem.work(None).flops, 2.0 * 16.0 * (10 + 10) as f64);
    assert_eq!(problem.work(None).bytes, (4 * 8 * 8 * 2) as f64);
}
