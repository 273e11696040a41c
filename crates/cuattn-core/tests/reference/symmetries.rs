//! Problems that are the same problem in two forms.

use cuattn_core::reference::{self, HostOperands, VarlenHostOperands, VarlenHostOutput};
use cuattn_core::{
    Alignment, BiasKind, BroadcastRule, DType, IndexType, KeyLengths, Mask, Paging, Problem, ScoreStage, ScoresOutput,
    Shape, Strides, VarlenPaging, VarlenProblem, VarlenShape, Window,
};
use proptest::prelude::*;
use rstest::rstest;

use crate::case::{Case, assert_close, encode_index, full_bias};

const SHAPE: Shape = Shape { batch: 2, q_heads: 6, kv_heads: 2, q_len: 21, kv_len: 37, head_dim: 12, v_head_dim: 9 };

/// Rows of contiguous `[batch, heads, len, dim]` values, in another order.
fn rearranged(
    values: &[f64],
    [batch, heads, len, dim]: [usize; 4],
    row_of: impl Fn(usize, usize, usize) -> usize,
) -> Vec<f64> {
    let mut result = vec![0.0; values.len()];
    for b in 0..batch {
        for h in 0..heads {
            for s in 0..len {
                let (from, to) = (((b * heads + h) * len + s) * dim, row_of(b, h, s) * dim);
                result[to..to + dim].copy_from_slice(&values[from..from + dim]);
            }
        }
    }
    result
}

fn to_bshd(bytes: &[u8], dtype: DType, dims: [usize; 4]) -> Vec<u8> {
    let [_, heads, len, _] = dims;
    let values = rearranged(&reference::decode(bytes, dtype), dims, |b, h, s| (b * len + s) * heads + h);
    reference::encode(&values, dtype)
}

fn q_dims(shape: &Shape) -> [usize; 4] {
    [shape.batch, shape.q_heads, shape.q_len, shape.head_dim]
}

fn k_dims(shape: &Shape) -> [usize; 4] {
    [shape.batch, shape.kv_heads, shape.kv_len, shape.head_dim]
}

fn v_dims(shape: &Shape) -> [usize; 4] {
    [shape.batch, shape.kv_heads, shape.kv_len, shape.v_head_dim]
}

#[test]
fn bshd_is_bhsd() {
    let mut problem = Problem::bhsd(SHAPE, DType::F16);
    problem.mask = Mask::causal(Alignment::BottomRight);
    let bhsd = Case::random(problem.clone(), 1);
    let mut bshd = bhsd.clone();
    bshd.problem = Problem { mask: problem.mask, ..Problem::bshd(SHAPE, DType::F16) };
    bshd.q = to_bshd(&bhsd.q, DType::F16, q_dims(&SHAPE));
    bshd.k = to_bshd(&bhsd.k, DType::F16, k_dims(&SHAPE));
    bshd.v = to_bshd(&bhsd.v, DType::F16, v_dims(&SHAPE));
    assert_eq!(bshd.compute(), bhsd.compute());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn keys_may_come_in_any_order(
        seed in any::<u64>(),
        order in Just((0..SHAPE.kv_len).collect::<Vec<_>>()).prop_shuffle(),
    ) {
        let case = Case::random(Problem::bhsd(SHAPE, DType::Bf16), seed);
        let shuffle = |bytes: &[u8], dims: [usize; 4]| {
            let [_, heads, len, _] = dims;
            let values = reference::decode(bytes, DType::Bf16);
            let values = rearranged(&values, dims, |b, h, s| (b * heads + h) * len + order[s]);
            reference::encode(&values, DType::Bf16)
        };
        let mut shuffled = case.clone();
        shuffled.k = shuffle(&case.k, k_dims(&SHAPE));
        shuffled.v = shuffle(&case.v, v_dims(&SHAPE));
        let (got, want) = (shuffled.compute(), case.compute());
        assert_close(&got.o, &want.o, 1e-12, "o");
        assert_close(&got.log_sum_exp, &want.log_sum_exp, 1e-12, "log_sum_exp");
    }

    #[test]
    fn a_causal_window_is_a_bias_of_minus_infinity(
        seed in any::<u64>(),
        bottom_right in any::<bool>(),
        left in proptest::option::of(0..40u32),
        boolean in any::<bool>(),
    ) {
        let alignment = if bottom_right { Alignment::BottomRight } else { Alignment::TopLeft };
        let mut masked = Case::random(Problem::bhsd(SHAPE, DType::F32), seed);
        let mut biased = masked.clone();
        masked.problem.mask = Mask { window: Window { left, right: None }, ..Mask::causal(alignment) };

        let offset = if bottom_right { SHAPE.kv_len as i64 - SHAPE.q_len as i64 } else { 0 };
        let sees = |row: usize, key: usize| {
            let position = offset + row as i64;
            key as i64 <= position && left.is_none_or(|left| key as i64 >= position - i64::from(left))
        };
        let pairs = (0..SHAPE.q_len).flat_map(|i| (0..SHAPE.kv_len).map(move |j| (i, j)));
        let plane: Vec<bool> = pairs.map(|(i, j)| sees(i, j)).collect();
        let kind = if boolean { BiasKind::Boolean } else { BiasKind::Additive(DType::F32) };
        let dims = [1, 1, SHAPE.q_len, SHAPE.kv_len];
        let bias = cuattn_core::Bias::broadcast(kind, dims, &SHAPE, BroadcastRule::Numpy);
        biased.problem.mask.bias = Some(bias.unwrap());
        biased.bias = Some(if boolean {
            plane.iter().map(|&sees| u8::from(sees)).collect()
        } else {
            let values: Vec<f64> = plane.iter().map(|&sees| if sees { 0.0 } else { f64::NEG_INFINITY }).collect();
            reference::encode(&values, DType::F32)
        });
        let (got, want) = (biased.compute(), masked.compute());
        assert_close(&got.o, &want.o, 1e-13, "o");
        assert_close(&got.log_sum_exp, &want.log_sum_exp, 1e-13, "log_sum_exp");
    }
}

#[test]
fn a_broadcast_bias_is_its_copies() {
    let problem = Problem::bhsd(SHAPE, DType::F32);
    let kind = BiasKind::Additive(DType::Bf16);
    let mut small = Case::random(Problem { dtype: DType::Bf16, ..problem }, 9);
    small.problem.mask.bias = Some(
        cuattn_core::Bias::broadcast(kind, [1, SHAPE.q_heads, 1, SHAPE.kv_len], &SHAPE, BroadcastRule::Numpy).unwrap(),
    );
    let plane: Vec<f64> = (0..SHAPE.q_heads * SHAPE.kv_len).map(|at| (at % 7) as f64 * 0.5 - 1.0).collect();
    small.bias = Some(reference::encode(&plane, DType::Bf16));

    let mut copied = small.clone();
    copied.problem.mask.bias = Some(full_bias(kind, &SHAPE));
    let rows = plane.chunks(SHAPE.kv_len).flat_map(|row| std::iter::repeat_n(row, SHAPE.q_len)).flatten().copied();
    let planes: Vec<f64> = rows.collect();
    copied.bias = Some(reference::encode(&planes.repeat(SHAPE.batch), DType::Bf16));
    assert_eq!(copied.compute(), small.compute());
}

#[test]
fn log_sum_exp_and_probabilities_follow_from_the_scores() {
    let mut problem = Problem::bhsd(SHAPE, DType::F32);
    problem.softcap = Some(4.0);
    problem.mask = Mask::causal(Alignment::BottomRight);
    problem.mask.bias = Some(full_bias(BiasKind::Additive(DType::F32), &SHAPE));
    let at = |stage| {
        let problem = Problem { scores: Some(ScoresOutput { stage, dtype: DType::F32 }), ..problem.clone() };
        Case::random(problem, 4).compute()
    };
    let (masked, probabilities) = (at(ScoreStage::Masked), at(ScoreStage::Probabilities));
    let scores = masked.scores.unwrap();
    let sums: Vec<f64> = scores.chunks(SHAPE.kv_len).map(|row| row.iter().map(|s| s.exp()).sum::<f64>().ln()).collect();
    assert_close(&masked.log_sum_exp, &sums, 1e-12, "log_sum_exp");
    let shares: Vec<f64> = scores
        .chunks(SHAPE.kv_len)
        .zip(&sums)
        .flat_map(|(row, sum)| row.iter().map(move |s| (s - sum).exp()))
        .collect();
    assert_close(&probabilities.scores.unwrap(), &shares, 1e-12, "probabilities");
}

#[rstest]
fn pages_are_a_dense_cache_in_pieces(#[values(1, 4, 16, 64)] page_size: usize, #[values(false, true)] short: bool) {
    let mut problem = Problem::bhsd(SHAPE, DType::F16);
    problem.mask = Mask::causal(Alignment::BottomRight);
    let mut dense = Case::random(problem.clone(), 3);
    if short {
        dense.problem.mask.key_lengths = KeyLengths::PerBatch(IndexType::I32);
        dense.key_lengths = Some(encode_index(&[30, 5], IndexType::I32));
    }
    let columns = SHAPE.kv_len.div_ceil(page_size);
    let pages = SHAPE.batch * columns + 1;
    // Pages lie in the pool backwards, as [pages, page_size, kv_heads, dim].
    let page_of = |b: usize, s: usize| pages - 1 - (b * columns + s / page_size);
    let pool = |bytes: &[u8], [batch, heads, len, dim]: [usize; 4]| {
        let values = reference::decode(bytes, DType::F16);
        let mut pool = vec![f64::NAN; pages * page_size * heads * dim];
        for (row, values) in values.chunks(dim).enumerate() {
            let (b, h, s) = (row / (heads * len), row / len % heads, row % len);
            let at = ((page_of(b, s) * page_size + s % page_size) * heads + h) * dim;
            pool[at..at + dim].copy_from_slice(values);
        }
        assert!(batch > 0);
        reference::encode(&pool, DType::F16)
    };
    let strides = |dim: usize| {
        let row = (SHAPE.kv_heads * dim) as i64;
        Strides { batch: row * page_size as i64, head: dim as i64, row }
    };
    let mut problem = dense.problem.clone();
    problem.paging = Some(Paging { page_size, pages, max_pages: columns });
    (problem.k, problem.v) = (strides(SHAPE.head_dim), strides(SHAPE.v_head_dim));
    let (k, v) = (pool(&dense.k, k_dims(&SHAPE)), pool(&dense.v, v_dims(&SHAPE)));
    let table: Vec<i64> =
        (0..SHAPE.batch).flat_map(|b| (0..columns).map(move |c| page_of(b, c * page_size) as i64)).collect();
    let table = encode_index(&table, IndexType::I32);
    let operands = HostOperands { k: &k, v: &v, page_table: Some(&table), ..dense.operands() };
    assert_eq!(reference::attention(&problem, &operands).unwrap(), dense.compute());
}

/// The packed problem of equal lengths that is `SHAPE` in BSHD.
fn packed() -> VarlenProblem {
    let shape = VarlenShape {
        batch: SHAPE.batch,
        total_q: SHAPE.batch * SHAPE.q_len,
        total_kv: SHAPE.batch * SHAPE.kv_len,
        max_q_len: SHAPE.q_len,
        max_kv_len: SHAPE.kv_len,
        q_heads: SHAPE.q_heads,
        kv_heads: SHAPE.kv_heads,
        head_dim: SHAPE.head_dim,
        v_head_dim: SHAPE.v_head_dim,
    };
    VarlenProblem::packed(shape, DType::Bf16)
}

fn assert_packed_is_dense(packed: &VarlenHostOutput, dense: &cuattn_core::reference::HostOutput) {
    let dims = [SHAPE.batch, SHAPE.q_heads, SHAPE.q_len, SHAPE.v_head_dim];
    let by_token = rearranged(&dense.o, dims, |b, h, s| (b * SHAPE.q_len + s) * SHAPE.q_heads + h);
    assert_eq!(packed.o, by_token);
    let total = SHAPE.batch * SHAPE.q_len;
    let dims = [SHAPE.batch, SHAPE.q_heads, SHAPE.q_len, 1];
    assert_eq!(packed.log_sum_exp, rearranged(&dense.log_sum_exp, dims, |b, h, s| h * total + b * SHAPE.q_len + s));
}

#[rstest]
fn equal_lengths_packed_are_dense(
    #[values(Alignment::TopLeft, Alignment::BottomRight)] alignment: Alignment,
    #[values(IndexType::I32, IndexType::I64)] offsets: IndexType,
    #[values(false, true)] used: bool,
) {
    let mut problem = Problem::bshd(SHAPE, DType::Bf16);
    problem.mask = Mask { window: Window { left: Some(9), right: None }, ..Mask::causal(alignment) };
    problem.has_sinks = true;
    problem.softcap = Some(5.0);
    let mut dense = Case::random(problem, 8);
    if used {
        dense.problem.mask.key_lengths = KeyLengths::PerBatch(offsets);
        dense.key_lengths = Some(encode_index(&[0, 33], offsets));
    }
    let packed = VarlenProblem {
        causal: true,
        alignment,
        window: dense.problem.mask.window,
        has_sinks: true,
        softcap: Some(5.0),
        offsets,
        has_used_lengths: used,
        ..packed()
    };
    let starts = |len: usize| encode_index(&(0..=SHAPE.batch).map(|b| (b * len) as i64).collect::<Vec<_>>(), offsets);
    let (cu_q, cu_kv) = (starts(SHAPE.q_len), starts(SHAPE.kv_len));
    let operands = VarlenHostOperands {
        q: &dense.q,
        k: &dense.k,
        v: &dense.v,
        cu_seqlens_q: &cu_q,
        cu_seqlens_kv: &cu_kv,
        used_lengths: dense.key_lengths.as_deref(),
        sinks: dense.sinks.as_deref(),
        ..VarlenHostOperands::default()
    };
    let output = reference::attention_varlen(&packed, &operands).unwrap();
    assert_packed_is_dense(&output, &dense.compute());

    let mut bytes = vec![0; packed.extents().unwrap().o];
    output.write_o(&packed, &mut bytes).unwrap();
    let read = VarlenHostOutput::read_o(&packed, &bytes).unwrap();
    assert_close(&read, &output.o, 0.01, "o after rounding");
}

#[test]
fn ragged_sequences_are_each_its_own_problem() {
    let lengths = [(5usize, 9usize), (0, 4), (20, 0), (1, 33), (7, 3)];
    let running = |pick: fn(&(usize, usize)) -> usize| {
        let mut total = 0;
        std::iter::once(0)
            .chain(lengths.iter().map(|pair| {
                total += pick(pair);
                total as i64
            }))
            .collect::<Vec<_>>()
    };
    let (cu_q, cu_kv) = (running(|pair| pair.0), running(|pair| pair.1));
    let shape = VarlenShape {
        batch: lengths.len(),
        total_q: 33,
        total_kv: 49,
        max_q_len: 20,
        max_kv_len: 33,
        q_heads: 3,
        kv_heads: 1,
        head_dim: 8,
        v_head_dim: 5,
    };
    let mut packed = VarlenProblem::packed(shape, DType::F32);
    packed.causal = true;
    // One sequence of all tokens has the operands of the packed batch.
    let dense_shape = |q_len: usize, kv_len: usize| Shape {
        batch: 1,
        q_heads: 3,
        kv_heads: 1,
        q_len,
        kv_len,
        head_dim: 8,
        v_head_dim: 5,
    };
    let all = Case::random(Problem::bshd(dense_shape(33, 49), DType::F32), 5);
    let (starts_q, starts_kv) = (encode_index(&cu_q, IndexType::I32), encode_index(&cu_kv, IndexType::I32));
    let operands = VarlenHostOperands {
        q: &all.q,
        k: &all.k,
        v: &all.v,
        cu_seqlens_q: &starts_q,
        cu_seqlens_kv: &starts_kv,
        ..VarlenHostOperands::default()
    };
    let output = reference::attention_varlen(&packed, &operands).unwrap();
    for (sequence, &(q_len, kv_len)) in lengths.iter().enumerate() {
        let mut problem = Problem::bshd(dense_shape(q_len, kv_len), DType::F32);
        problem.mask = Mask::causal(Alignment::BottomRight);
        let (q, kv) = (cu_q[sequence] as usize, cu_kv[sequence] as usize);
        let operands =
            HostOperands { q: &all.q[q * 96..], k: &all.k[kv * 32..], v: &all.v[kv * 20..], ..HostOperands::default() };
        let alone = reference::attention(&problem, &operands).unwrap();
        for head in 0..3 {
            for row in 0..q_len {
                let token = q + row;
                let (got, want) = ((token * 3 + head) * 5, (head * q_len + row) * 5);
                assert_eq!(
                    output.o[got..got + 5],
                    alone.o[want..want + 5],
                    "sequence {sequence}, head {head}, row {row}"
                );
                assert_eq!(output.log_sum_exp[head * 33 + token], alone.log_sum_exp[head * q_len + row]);
            }
        }
    }

    let bad = encode_index(&[0, 5, 4, 25, 26, 33], IndexType::I32);
    let refusal =
        reference::attention_varlen(&packed, &VarlenHostOperands { cu_seqlens_q: &bad, ..operands }).unwrap_err();
    assert_eq!(refusal.reasons.len(), 2, "offsets that decrease, and the length that follows from it: {refusal}");
}

#[test]
fn packed_pages_are_packed_rows() {
    let packed = VarlenProblem { causal: true, ..packed() };
    let dense = Case::random(Problem::bshd(SHAPE, DType::Bf16), 6);
    let starts =
        |len: usize| encode_index(&(0..=SHAPE.batch).map(|b| (b * len) as i64).collect::<Vec<_>>(), IndexType::I32);
    let (cu_q, cu_kv) = (starts(SHAPE.q_len), starts(SHAPE.kv_len));
    let rows = VarlenHostOperands {
        q: &dense.q,
        k: &dense.k,
        v: &dense.v,
        cu_seqlens_q: &cu_q,
        cu_seqlens_kv: &cu_kv,
        ..VarlenHostOperands::default()
    };
    // A page of one row is a token: then the packed tensors are their own pool.
    let (k_row, v_row) = (packed.k.token, packed.v.token);
    let pages = SHAPE.batch * SHAPE.kv_len;
    let paging = Paging { page_size: 1, pages, max_pages: SHAPE.kv_len };
    let paged = VarlenProblem { paging: Some(VarlenPaging { paging, k_page: k_row, v_page: v_row }), ..packed.clone() };
    let table = encode_index(&(0..pages as i64).collect::<Vec<_>>(), IndexType::I32);
    let through_table = VarlenHostOperands { page_table: Some(&table), ..rows };
    assert_eq!(
        reference::attention_varlen(&paged, &through_table).unwrap(),
        reference::attention_varlen(&packed, &rows).unwrap()
    );
}

#[test]
fn threads_do_not_change_a_bit() {
    // Large enough for several threads, so that the order in which they take rows differs from run to run.
    let shape = Shape { batch: 1, q_heads: 4, kv_heads: 2, q_len: 300, kv_len: 300, head_dim: 64, v_head_dim: 64 };
    let case = Case::random(Problem::bhsd(shape, DType::F16), 2);
    let first = case.compute();
    for _ in 0..3 {
        assert_eq!(case.compute(), first);
    }
}
