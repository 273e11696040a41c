//! The phase2a engine against the float64 reference.

use std::sync::Arc;

use anyhow::{Context as _, bail, ensure};
use cuattn_core::reference::{self, HostOutput, ScoreIndex, encode};
use cuattn_core::{
    Alignment, Bias, BiasKind, DType, Engine, IndexType, KeyLengths, LaunchError, Mask, Operands, Paging, PlanError,
    Problem, ScoreMod, ScoreStage, ScoresOutput, Shape, Strides, Window,
};
use cuattn_phase2a::Phase2a;
use curt::DevicePtr;
use rand::Rng;

use crate::compare::{Tolerance, errors, errors_beside_nonfinite};
use crate::inputs::Inputs;
use crate::parity::{Launched, check_inputs, check_parity, check_repeats, check_space};
use crate::space::{Layout, Space};
use crate::tensors::{Distribution, Guarded, POISON};
use crate::{Context, Suite};

/// The suite.
pub fn suite() -> Suite {
    Suite::new("phase2a")
        .kernels(&["softmax/", "ptx/math", "types", "numeric", "params", "mask", "score"])
        .case("plain", |cx| check_space(cx, &Phase2a::new(), &Space::plain(), cx.scaled(60, 6)))
        .case("everything", |cx| check_space(cx, &Phase2a::new(), &everything(), cx.scaled(400, 30)))
        .case("in many chunks", in_many_chunks)
        .case("rows of every length", rows_of_every_length)
        .case("scores at every stage", scores_at_every_stage)
        .case("rows that overlap", rows_that_overlap)
        .case("dead rows", dead_rows)
        .case("no keys", no_keys)
        .case("real tensors", real_tensors)
        .case("values that are not finite reach the rows that see them", visible_nonfinite)
        .case("score modifications", score_modifications)
        .case("fifty launches are one", |cx| check_repeats(cx, &Phase2a::new(), 2050))
        .case("captured before any launch, replayed with other lengths", replayed_lengths)
        .case("a bounded workspace", bounded_workspace)
        .case("refusals leave memory alone", refusals)
}

const STAGES: [ScoreStage; 4] =
    [ScoreStage::Raw, ScoreStage::Softcapped, ScoreStage::Masked, ScoreStage::Probabilities];

fn everything() -> Space {
    Space { scores: STAGES.to_vec(), ..Space::full() }
}

/// The same problems with a score buffer of a few rows: batches, heads and query rows are split in every way.
fn in_many_chunks(cx: &Context<'_>) -> anyhow::Result<()> {
    // A chunk a row is thousands of launches, each of which a sanitizer watches.
    let caps: &[usize] = if cx.reduced() { &[1 << 14] } else { &[1, 1 << 12, 1 << 16, 1 << 19] };
    for &cap in caps {
        let space = Space { q_lens: vec![1, 2, 65, 129, 300], multiplications: 1 << 22, ..everything() };
        check_space(cx, &Phase2a::with_score_cap(cap), &space, cx.scaled(20, 2))?;
    }
    Ok(())
}

/// One problem on either side of each edge between the ways in which threads share a row.
fn rows_of_every_length(cx: &Context<'_>) -> anyhow::Result<()> {
    let edges =
        [127, 128, 129, 256, 257, 512, 513, 1024, 1025, 2048, 2049, 4096, 4097, 8192, 8193, 16384, 16385, 40_001];
    for kv_len in edges {
        if cx.reduced() && kv_len % 2 == 1 && kv_len < 16_385 {
            continue;
        }
        for dtype in DType::ALL {
            let shape = Shape { batch: 1, q_heads: 2, kv_heads: 1, q_len: 3, kv_len, head_dim: 16, v_head_dim: 16 };
            let mut problem = Problem::bhsd(shape, dtype);
            problem.wants_log_sum_exp = true;
            check_parity(cx, &Phase2a::new(), &problem)?;
            problem.mask = Mask::causal(Alignment::BottomRight);
            problem.has_sinks = true;
            problem.scores = Some(ScoresOutput { stage: ScoreStage::Probabilities, dtype: DType::F32 });
            check_parity(cx, &Phase2a::new(), &problem)?;
        }
    }
    Ok(())
}

fn scores_at_every_stage(cx: &Context<'_>) -> anyhow::Result<()> {
    for stage in STAGES {
        for dtype in DType::ALL {
            for output in [dtype, DType::F32] {
                let shape =
                    Shape { batch: 2, q_heads: 6, kv_heads: 2, q_len: 37, kv_len: 71, head_dim: 40, v_head_dim: 24 };
                let mut problem = Problem::bshd(shape, dtype);
                problem.scores = Some(ScoresOutput { stage, dtype: output });
                problem.softcap = Some(20.0);
                problem.mask = Mask::causal(Alignment::BottomRight);
                problem.mask.key_lengths = KeyLengths::PerBatch(IndexType::I64);
                problem.mask.bias =
                    Some(Bias { kind: BiasKind::Additive(dtype), batch: 0, head: 37 * 71, row: 71, key: 1, keys: 71 });
                check_parity(cx, &Phase2a::new(), &problem)?;
            }
        }
    }
    Ok(())
}

/// Layouts that a product cannot read, and that are copied first.
fn rows_that_overlap(cx: &Context<'_>) -> anyhow::Result<()> {
    for dtype in DType::ALL {
        for causal in [false, true] {
            let shape =
                Shape { batch: 2, q_heads: 4, kv_heads: 2, q_len: 19, kv_len: 70, head_dim: 24, v_head_dim: 40 };
            let mut problem = Problem::bhsd(shape, dtype);
            // One query row for all, keys and values that slide by 8 elements.
            problem.q = Strides { batch: 24, head: 48, row: 0 };
            problem.k.row = 8;
            problem.v.row = 8;
            if causal {
                problem.mask = Mask::causal(Alignment::TopLeft);
            }
            let mut rng = cx.rng();
            let mut inputs = Inputs::draw(&problem, Distribution::Normal, &mut rng)?;
            // Rows share elements, so nothing is poison that some row sees.
            let extents = problem.extents()?;
            for (bytes, extent) in [(&mut inputs.q, extents.q), (&mut inputs.k, extents.k), (&mut inputs.v, extents.v)]
            {
                *bytes = encode(&random(&mut rng, extent / dtype.size()), dtype);
            }
            check_inputs(cx, &Phase2a::new(), &problem, &inputs, 0)?;
        }
    }
    Ok(())
}

/// Rows that see no key, for each reason that there is.
fn dead_rows(cx: &Context<'_>) -> anyhow::Result<()> {
    let shape = Shape { batch: 3, q_heads: 4, kv_heads: 2, q_len: 40, kv_len: 24, head_dim: 32, v_head_dim: 32 };
    let boolean = Bias { kind: BiasKind::Boolean, batch: 4 * 40 * 24, head: 40 * 24, row: 24, key: 1, keys: 24 };
    let masks = [
        Mask::causal(Alignment::BottomRight),
        Mask { window: Window { left: Some(0), right: Some(0) }, ..Mask::none() },
        Mask { key_lengths: KeyLengths::PerBatch(IndexType::I32), ..Mask::none() },
        Mask { bias: Some(Bias { keys: 0, ..boolean }), ..Mask::none() },
    ];
    for mask in masks {
        for dtype in DType::ALL {
            for has_sinks in [false, true] {
                let mut problem = Problem::bhsd(shape, dtype);
                problem.mask = mask;
                problem.has_sinks = has_sinks;
                problem.wants_log_sum_exp = true;
                check_parity(cx, &Phase2a::new(), &problem)?;
            }
        }
    }
    // A bias that masks every key, and one of huge negatives, which is a uniform softmax.
    for (value, kind) in [(f64::NEG_INFINITY, "-inf"), (-1e38, "-1e38"), (f64::from(f32::MIN), "lowest")] {
        let mut problem = Problem::bhsd(shape, DType::F32);
        let kind_of = BiasKind::Additive(DType::F32);
        problem.mask.bias = Some(Bias { kind: kind_of, batch: 0, head: 0, row: 24, key: 1, keys: 24 });
        problem.wants_log_sum_exp = true;
        // Drawn without the bias: keys that a random one hid would hold poison, and this one shows them.
        let mut inputs = Inputs::draw(&Problem::bhsd(shape, DType::F32), Distribution::Normal, &mut cx.rng())?;
        inputs.bias = Some(encode(&vec![value; 40 * 24], DType::F32));
        check_inputs(cx, &Phase2a::new(), &problem, &inputs, 0).with_context(|| format!("a bias of {kind}"))?;
    }
    Ok(())
}

fn no_keys(cx: &Context<'_>) -> anyhow::Result<()> {
    for dtype in DType::ALL {
        for layout in [Layout::Bhsd, Layout::OddRows] {
            for (has_sinks, wants_log_sum_exp) in [(false, true), (true, true), (false, false)] {
                let shape =
                    Shape { batch: 2, q_heads: 3, kv_heads: 1, q_len: 70, kv_len: 0, head_dim: 16, v_head_dim: 24 };
                let mut problem = Problem::with_strides(shape, dtype, layout.strides(shape));
                problem.has_sinks = has_sinks;
                problem.wants_log_sum_exp = wants_log_sum_exp;
                check_parity(cx, &Phase2a::new(), &problem)?;
            }
        }
    }
    Ok(())
}

fn real_tensors(cx: &Context<'_>) -> anyhow::Result<()> {
    let engine = Phase2a::new();
    for sample in crate::samples::all()? {
        check_inputs(cx, &engine, &sample.problem, &sample.inputs, 0).with_context(|| sample.name.clone())?;
    }
    Ok(())
}

/// NaN and infinity in V at keys that some rows see and others do not.
fn visible_nonfinite(cx: &Context<'_>) -> anyhow::Result<()> {
    let mut rng = cx.rng();
    for dtype in DType::ALL {
        for mask in [
            Mask::none(),
            Mask::causal(Alignment::BottomRight),
            Mask { window: Window { left: Some(9), right: Some(5) }, ..Mask::none() },
        ] {
            for layout in [Layout::Bhsd, Layout::Bshd, Layout::OddRows] {
                let shape =
                    Shape { batch: 2, q_heads: 4, kv_heads: 2, q_len: 90, kv_len: 90, head_dim: 32, v_head_dim: 33 };
                let mut problem = Problem::with_strides(shape, dtype, layout.strides(shape));
                problem.mask = mask;
                let mut inputs = Inputs::draw(&problem, Distribution::Normal, &mut rng)?;
                for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
                    let (batch, head) = (rng.random_range(0..2_i64), rng.random_range(0..2_i64));
                    let (key, column) = (rng.random_range(0..90_i64), rng.random_range(0..33_i64));
                    let v = problem.v;
                    let at = (batch * v.batch + head * v.head + key * v.row + column) as usize * dtype.size();
                    inputs.v[at..at + dtype.size()].copy_from_slice(&encode(&[value], dtype));
                }
                nonfinite_parity(cx, &Phase2a::with_score_cap(40_000), &problem, &inputs)
                    .with_context(|| format!("{problem:?}"))?;
            }
        }
    }
    Ok(())
}

/// Parity where some results are NaN or infinite.
fn nonfinite_parity(cx: &Context<'_>, engine: &Phase2a, problem: &Problem, inputs: &Inputs) -> anyhow::Result<()> {
    let expected = reference::attention(problem, &inputs.host())?;
    let plan = engine.plan(cx.runtime(), problem)?;
    let launched = Launched::run(cx.runtime(), plan.as_ref(), inputs, 0)?;
    let actual = HostOutput::read_o(problem, &launched.o)?;
    errors_beside_nonfinite(&actual, &expected.o)?.within(&Tolerance::for_dtype(problem.dtype))?;
    cx.count(1);
    Ok(())
}

/// A score modification that reads a buffer, masks, and meets a bias and a causal mask.
fn score_modifications(cx: &Context<'_>) -> anyhow::Result<()> {
    let mut rng = cx.rng();
    let body = "const float* document = static_cast<const float*>(buffers[0]);\n\
                if (document[q] != document[k]) return -INFINITY_F32;\n\
                return score - 0.125f * (float)head;";
    let len = 100;
    let documents: Vec<f32> = (0..len).map(|i| (i / 37) as f32).collect();
    let device = cx.runtime().upload(&documents)?;
    for dtype in DType::ALL {
        for (causal, biased) in [(false, false), (true, false), (false, true)] {
            let shape =
                Shape { batch: 2, q_heads: 4, kv_heads: 2, q_len: len, kv_len: len, head_dim: 32, v_head_dim: 32 };
            let mut problem = Problem::bhsd(shape, dtype);
            problem.score_mod = Some(ScoreMod { body: Arc::from(body), buffers: 1 });
            problem.wants_log_sum_exp = true;
            problem.mask.causal = causal;
            let row = len as i64;
            problem.mask.bias =
                biased.then_some(Bias { kind: BiasKind::Additive(dtype), batch: 0, head: 0, row, key: 1, keys: len });
            let inputs = Inputs::draw(&problem, Distribution::Normal, &mut rng)?;
            let host = |score: f64, at: ScoreIndex| {
                let seen = documents[at.q] == documents[at.k];
                if seen { score - 0.125 * at.head as f64 } else { f64::NEG_INFINITY }
            };
            let mut operands = inputs.host();
            operands.score_mod = Some(&host);
            let expected = reference::attention(&problem, &operands)?;
            let plan = Phase2a::new().plan(cx.runtime(), &problem)?;
            let launched = Launched::run_with(cx.runtime(), plan.as_ref(), &inputs, 0, |operands| {
                operands.score_mod_buffers[0] = Some(device.ptr());
            })?;
            let worst = launched.compare(&problem, &expected).with_context(|| format!("{problem:?}"))?;
            cx.record_error_of(dtype, worst.relative_l2, worst.worst_element);
            cx.count(1);
        }
    }
    Ok(())
}

/// One graph, captured before the plan was ever launched, replayed with other lengths on the device, against eager launches
/// with these lengths.
fn replayed_lengths(cx: &Context<'_>) -> anyhow::Result<()> {
    let runtime = cx.runtime();
    let mut rng = cx.rng();
    for (dtype, cap) in [(DType::F16, 1 << 30), (DType::Bf16, 1 << 14), (DType::F32, 1 << 30)] {
        let shape = Shape { batch: 3, q_heads: 4, kv_heads: 2, q_len: 33, kv_len: 203, head_dim: 72, v_head_dim: 56 };
        let mut problem = Problem::bhsd(shape, dtype);
        problem.mask = Mask::causal(Alignment::BottomRight);
        problem.mask.key_lengths = KeyLengths::PerBatch(IndexType::I32);
        problem.wants_log_sum_exp = true;
        let mut inputs = Inputs::draw(&problem, Distribution::Normal, &mut rng)?;
        // Nothing is poison here: every key is seen under one of the lengths.
        inputs.k = encode(&random(&mut rng, inputs.k.len() / dtype.size()), dtype);
        inputs.v = encode(&random(&mut rng, inputs.v.len() / dtype.size()), dtype);
        let plan = Phase2a::with_score_cap(cap).plan(runtime, &problem)?;
        let [q, k, v] = [&inputs.q, &inputs.k, &inputs.v].map(|bytes| Guarded::upload(runtime, bytes, 0));
        let (q, k, v) = (q?, k?, v?);
        let extents = problem.extents()?;
        let o = Guarded::poisoned(runtime, extents.o, 0)?;
        let log_sum_exp = Guarded::poisoned(runtime, extents.log_sum_exp.unwrap_or(0), 0)?;
        let lengths = runtime.upload(&[203_i32, 203, 203])?;
        let workspace = Guarded::poisoned(runtime, plan.workspace().bytes, 0)?;
        let operands = Operands {
            q: q.ptr(),
            k: k.ptr(),
            v: v.ptr(),
            o: o.ptr(),
            log_sum_exp: Some(log_sum_exp.ptr()),
            key_lengths: Some(lengths.ptr()),
            ..Operands::default()
        };
        let graph = runtime.capture(|_| {
            // SAFETY: every operand lives until the end of this function, which synchronises by reading.
            unsafe { plan.launch(&operands, workspace.ptr()) }.map_err(|error| match error {
                LaunchError::Runtime(error) => error,
                other => panic!("a launch that fits was refused: {other}"),
            })
        })?;
        for values in [[203, 203, 203], [0, 1, 64], [65, 33, 128], [7, 199, 0]].into_iter().take(cx.scaled(4, 2)) {
            lengths.write(&values)?;
            graph.launch()?;
            let launched = Launched { o: o.read()?, log_sum_exp: Some(log_sum_exp.read()?), scores: None };
            inputs.key_lengths = Some(bytemuck::cast_slice(&values).to_vec());
            let expected = reference::attention(&problem, &inputs.host())?;
            launched.compare(&problem, &expected).with_context(|| format!("{dtype} lengths {values:?}"))?;
            let eager = Launched::run(runtime, plan.as_ref(), &inputs, 0)?;
            ensure!(eager == launched, "{dtype} lengths {values:?}: a replay differs from a launch");
            cx.count(1);
        }
    }
    Ok(())
}

fn random(rng: &mut impl Rng, count: usize) -> Vec<f64> {
    (0..count).map(|_| Distribution::Normal.key(rng)).collect()
}

/// 32,768 by 32,768: the scores of one head alone would be 4 GiB.
fn bounded_workspace(cx: &Context<'_>) -> anyhow::Result<()> {
    if cx.reduced() {
        return Ok(());
    }
    let runtime = cx.runtime();
    let len = 32_768;
    for dtype in DType::ALL {
        let shape = Shape { batch: 1, q_heads: 2, kv_heads: 1, q_len: len, kv_len: len, head_dim: 64, v_head_dim: 64 };
        let mut problem = Problem::bhsd(shape, dtype);
        problem.mask = Mask::causal(Alignment::BottomRight);
        let plan = Phase2a::new().plan(runtime, &problem)?;
        let bytes = plan.workspace().bytes;
        ensure!(bytes <= 640 << 20, "{dtype}: a workspace of {bytes} bytes");
        // Values that are all one: whatever the probabilities are, so is every output.
        let extents = problem.extents()?;
        let mut rng = cx.rng();
        let q = runtime.upload(&encode(&random(&mut rng, extents.q / dtype.size()), dtype))?;
        let k = runtime.upload(&encode(&random(&mut rng, extents.k / dtype.size()), dtype))?;
        let v = runtime.upload(&encode(&vec![1.0; extents.v / dtype.size()], dtype))?;
        let o = Guarded::poisoned(runtime, extents.o, 0)?;
        let workspace = runtime.alloc(bytes)?;
        let operands = Operands { q: q.ptr(), k: k.ptr(), v: v.ptr(), o: o.ptr(), ..Operands::default() };
        // SAFETY: the buffers are those of the problem and live until the read has synchronised.
        unsafe { plan.launch(&operands, workspace.ptr()) }?;
        let actual = reference::decode(&o.read()?, dtype);
        let expected = vec![1.0; actual.len()];
        errors(&actual, &expected).within(&Tolerance::for_dtype(dtype)).with_context(|| dtype.to_string())?;
        cx.count(1);
    }
    Ok(())
}

fn refusals(cx: &Context<'_>) -> anyhow::Result<()> {
    let runtime = cx.runtime();
    let shape = Shape { batch: 1, q_heads: 2, kv_heads: 2, q_len: 16, kv_len: 16, head_dim: 64, v_head_dim: 64 };
    let problem = Problem::bhsd(shape, DType::F16);
    let engine = Phase2a::new();
    let plan = engine.plan(runtime, &problem)?;
    let inputs = Inputs::draw(&problem, Distribution::Normal, &mut cx.rng())?;
    let [q, k, v] = [&inputs.q, &inputs.k, &inputs.v].map(|bytes| Guarded::upload(runtime, bytes, 0));
    let (q, k, v) = (q?, k?, v?);
    let o = Guarded::poisoned(runtime, problem.extents()?.o, 0)?;
    let workspace = runtime.upload(&vec![POISON; plan.workspace().bytes + 256])?;
    let all = workspace.ptr();
    let good = Operands { q: q.ptr(), k: k.ptr(), v: v.ptr(), o: o.ptr(), ..Operands::default() };
    let shifted = DevicePtr::new(all.address() + 16, all.len() - 16);
    for (operands, space, word) in [
        (Operands { k: DevicePtr::default(), ..good }, all, "k is"),
        (Operands { v: v.ptr().slice(0, 64)?, ..good }, all, "v is 64 bytes"),
        (Operands { sinks: Some(q.ptr()), ..good }, all, "sinks"),
        (Operands { o: q.ptr(), ..good }, all, "overlaps"),
        (good, all.slice(0, plan.workspace().bytes - 1)?, "workspace is"),
        (good, shifted, "workspace starts"),
    ] {
        // SAFETY: the launch is to be refused before it touches memory, which is what is tested.
        match unsafe { plan.launch(&operands, space) } {
            Err(LaunchError::Refused(refusal)) => {
                ensure!(refusal.to_string().contains(word), "no `{word}` in: {refusal}");
            }
            Err(other) => bail!("another error: {other}"),
            Ok(()) => bail!("a launch that does not fit was accepted: {word}"),
        }
    }
    ensure!(o.read()?.iter().all(|&byte| byte == POISON), "a refused launch wrote its output");
    ensure!(workspace.read::<u8>()?.iter().all(|&byte| byte == POISON), "a refused launch wrote its workspace");

    let mut paged = problem.clone();
    paged.paging = Some(Paging { page_size: 16, pages: 4, max_pages: 1 });
    match engine.plan(runtime, &paged) {
        Err(PlanError::Refused(refusal)) => ensure!(refusal.to_string().contains("paged"), "{refusal}"),
        other => bail!("paged keys gave {other:?}"),
    }
    let captured = runtime.capture(|runtime| match engine.plan(runtime, &problem) {
        Err(PlanError::Runtime(error)) => Err(error),
        _ => Ok(()),
    });
    match captured {
        Err(curt::Error::Capturing { .. }) => Ok(()),
        Err(other) => bail!("a plan made during capture gave {other}"),
        Ok(_) => bail!("a plan was made during capture"),
    }
}
