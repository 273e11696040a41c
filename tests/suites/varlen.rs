//! The varlen engine against the float64 reference, and against flash over dense tensors.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context as _, bail, ensure};
use cuattn_core::reference::{self, ScoreIndex, VarlenHostOutput, decode, encode};
use cuattn_core::{
    Alignment, DType, Engine, IndexType, KeyLengths, LaunchError, Mask, OffsetFaults, Problem, ScoreMod, Shape,
    TokenStrides, VarlenEngine, VarlenOperands, VarlenProblem, VarlenShape, Window,
};
use cuattn_flash::FlashPath;
use cuattn_varlen::{Path, Varlen, VarlenPath};
use curt::DevicePtr;
use rand::Rng;

use super::flash::{growth_at, growths};
use crate::compare::{Tolerance, errors, errors_beside_nonfinite};
use crate::inputs::{Inputs, scale_rows};
use crate::packed::{Lengths, Manner, PackedInputs, PackedLaunched, PackedSpace, check_packed, index_bytes};
use crate::parity::Launched;
use crate::tensors::{Distribution, Guarded, POISON};
use crate::{Context, Suite};

/// The suite.
pub fn suite() -> Suite {
    // What takes longest stands first, and so begins first where cases run side by side.
    Suite::new("varlen")
        .kernels(&[
            "varlen/",
            "flash/",
            "ptx/",
            "types",
            "numeric",
            "params",
            "mask",
            "score",
            "tile_scheduler",
            "row_span",
            "sequence_rows",
            "shared_tile",
        ])
        .case("ragged, tensor cores", |cx| check_space(cx, &Varlen, &tensor_cores(), cx.scaled(400, 24)))
        .case("ragged, sm90", |cx| check_space(cx, &VarlenPath(Path::Sm90), &tensor_cores(), cx.scaled(1000, 24)))
        .case("ragged, mma", |cx| check_space(cx, &VarlenPath(Path::Mma), &tensor_cores(), cx.scaled(500, 24)))
        .case("bad offsets stay inside", bad_offsets)
        .case("equal lengths are the dense bits", equal_lengths)
        .case("score modifications", score_modifications)
        .case("ragged, float32", |cx| check_space(cx, &Varlen, &float32(), cx.scaled(300, 12)))
        .case("ragged, any head size, layout and alignment", |cx| check_space(cx, &Varlen, &odd(), cx.scaled(200, 12)))
        .case("edges", edges)
        .case("one hundred thousand sequences", hundred_thousand)
        .case("one long sequence among ones", one_long)
        .case("padded is packed", padded_is_packed)
        .case("captured and replayed with other lengths", replayed_lengths)
        .case("faults are named", faults_are_named)
        .case("a visible NaN reaches the rows that see it", visible_nan)
        .case("scores that outgrow all before them", growing_scores)
        .case("fifty launches are one", fifty_launches)
        .case("refusals", refusals)
}

fn tensor_cores() -> PackedSpace {
    PackedSpace {
        dtypes: vec![DType::F16, DType::Bf16],
        heads: vec![(1, 1), (2, 1), (3, 1), (7, 1), (4, 4), (8, 2), (16, 4), (13, 1)],
        head_dims: vec![8, 40, 64, 64, 72, 96, 128, 128, 128, 192, 256],
        v_partner: 1,
        odd_rows: false,
        most_sequences: 300,
        multiplications: 1 << 27,
    }
}

fn float32() -> PackedSpace {
    PackedSpace {
        dtypes: vec![DType::F32],
        heads: vec![(1, 1), (3, 1), (7, 1), (4, 4), (8, 2)],
        head_dims: vec![4, 40, 64, 64, 128, 128, 160, 256],
        ..tensor_cores()
    }
}

fn odd() -> PackedSpace {
    PackedSpace {
        dtypes: DType::ALL.to_vec(),
        head_dims: vec![1, 3, 5, 20, 33, 64, 100, 129, 264],
        odd_rows: true,
        multiplications: 1 << 25,
        ..tensor_cores()
    }
}

/// Whether the device and the problem are such that `engine` would do it.
fn takes(cx: &Context<'_>, engine: &dyn VarlenEngine, problem: &VarlenProblem) -> bool {
    engine.consider(cx.runtime().capabilities(), problem).is_ok()
}

/// The engine held to each path that does the problem on this device.
fn paths(cx: &Context<'_>, problem: &VarlenProblem) -> Vec<VarlenPath> {
    Path::ALL.map(VarlenPath).into_iter().filter(|path| takes(cx, path, problem)).collect()
}

/// As many of `count` problems as `engine` takes.
fn check_space(cx: &Context<'_>, engine: &dyn VarlenEngine, space: &PackedSpace, count: usize) -> anyhow::Result<()> {
    let mut space = if cx.reduced() { space.clone().small() } else { space.clone() };
    let mut rng = cx.rng();
    space.v_partner = rng.random_range(1..=space.head_dims.len());
    let drawn = space.problems(&mut rng).take(count);
    let problems: Vec<_> = drawn.filter(|(problem, _)| takes(cx, engine, problem)).collect();
    plan_ahead(cx, engine, &problems);
    for (problem, lengths) in &problems {
        let distribution = Distribution::ALL[rng.random_range(0..Distribution::ALL.len())];
        let misaligned = usize::from(rng.random_ratio(1, 8));
        let inputs = PackedInputs::draw(problem, lengths, distribution, &mut rng)?;
        check_packed(cx, engine, problem, &inputs, misaligned)
            .with_context(|| format!("{distribution:?}, off by {misaligned}, {problem:?}, {lengths:?}"))?;
    }
    Ok(())
}

/// Makes every plan once, on all cores, as [`crate::parity::plan_ahead`] does.
fn plan_ahead(cx: &Context<'_>, engine: &dyn VarlenEngine, problems: &[(VarlenProblem, Lengths)]) {
    let next = AtomicUsize::new(0);
    let runtime = cx.runtime();
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(problems.len());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((problem, _)) = problems.get(next.fetch_add(1, Ordering::Relaxed)) {
                    drop(engine.plan(runtime, problem));
                }
            });
        }
    });
}

/// A problem of self-attention over packed tensors, with such lengths.
fn problem_of(lengths: &Lengths, (q_heads, kv_heads): (usize, usize), head_dim: usize, dtype: DType) -> VarlenProblem {
    let longest = |lengths: &[usize]| lengths.iter().copied().max().unwrap_or(0);
    let shape = VarlenShape {
        batch: lengths.q.len(),
        total_q: lengths.q.iter().sum(),
        total_kv: lengths.kv.iter().sum(),
        max_q_len: longest(&lengths.q),
        max_kv_len: longest(&lengths.kv),
        q_heads,
        kv_heads,
        head_dim,
        v_head_dim: head_dim,
    };
    VarlenProblem::packed(shape, dtype)
}

fn edges(cx: &Context<'_>) -> anyhow::Result<()> {
    let mut rng = cx.rng();
    let many = |len: usize, batch: usize| vec![len; batch];
    let batches = [
        (vec![], vec![]),
        (vec![0], vec![0]),
        (vec![0], vec![9]),
        (vec![5], vec![0]),
        (vec![1], vec![1]),
        (vec![0, 0, 0], vec![0, 3, 0]),
        (vec![3, 0, 4], vec![0, 5, 4]),
        (vec![100, 1], vec![3, 90]),
        (vec![129, 64, 63, 65], vec![1, 200, 0, 64]),
        (many(0, 200), many(7, 200)),
        (many(1, 65), many(1, 65)),
        (many(7, 64), many(0, 64)),
    ];
    for dtype in DType::ALL {
        for (q, kv) in &batches {
            let lengths = Lengths { q: q.clone(), kv: kv.clone() };
            for (heads, head_dim) in [((4, 2), 64), ((3, 1), 128), ((1, 1), 20)] {
                for causal in [false, true] {
                    let mut problem = problem_of(&lengths, heads, head_dim, dtype);
                    problem.causal = causal;
                    problem.wants_log_sum_exp = true;
                    problem.checks_offsets = true;
                    let inputs = PackedInputs::draw(&problem, &lengths, Distribution::Normal, &mut rng)?;
                    for path in paths(cx, &problem) {
                        check_packed(cx, &path, &problem, &inputs, 0)
                            .with_context(|| format!("{problem:?} {lengths:?}"))?;
                    }
                }
            }
            if cx.reduced() {
                break;
            }
        }
    }
    Ok(())
}

fn hundred_thousand(cx: &Context<'_>) -> anyhow::Result<()> {
    let mut rng = cx.rng();
    let batch = cx.scaled(100_000, 1_100);
    for (dtype, head_dim) in [(DType::Bf16, 64), (DType::F32, 64)] {
        let q: Vec<_> = (0..batch).map(|_| rng.random_range(0..4)).collect();
        let lengths = Lengths { kv: q.clone(), q };
        let mut problem = problem_of(&lengths, (2, 1), head_dim, dtype);
        problem.causal = true;
        problem.wants_log_sum_exp = true;
        problem.checks_offsets = true;
        let inputs = PackedInputs::draw(&problem, &lengths, Distribution::Normal, &mut rng)?;
        for path in paths(cx, &problem) {
            check_packed(cx, &path, &problem, &inputs, 0).with_context(|| format!("{dtype}"))?;
        }
    }
    Ok(())
}

/// The long sequence against flash over the same rows, since the reference would take hours; the others against themselves: a token
/// that sees itself alone gets its own value.
fn one_long(cx: &Context<'_>) -> anyhow::Result<()> {
    let mut rng = cx.rng();
    let long = cx.scaled(131_072, 400);
    for (dtype, flash) in [(DType::Bf16, cuattn_flash::Path::Mma), (DType::F32, cuattn_flash::Path::Simt)] {
        if dtype == DType::F32 && !cx.reduced() && long > 40_000 {
            // Twenty times the time of the other type, for the same scheduling.
            continue;
        }
        let (before, after) = (70, 30);
        let mut q = vec![1; before + 1 + after];
        q[before] = long;
        let lengths = Lengths { kv: q.clone(), q };
        let mut problem = problem_of(&lengths, (2, 1), 64, dtype);
        problem.causal = true;
        let inputs = PackedInputs::draw(&problem, &lengths, Distribution::Normal, &mut rng)?;
        let plan = Varlen.plan(cx.runtime(), &problem)?;
        let launched = PackedLaunched::run(cx.runtime(), plan.as_ref(), &inputs, Manner::default())?;
        let o = VarlenHostOutput::read_o(&problem, &launched.o)?;
        let row = 2 * 64;
        let value = decode(&inputs.v, dtype);
        for token in (0..before).chain(before + long..before + long + after) {
            for head in 0..2 {
                let at = token * row + head * 64;
                ensure!(o[at..at + 64] == value[token * 64..(token + 1) * 64], "token {token} is not its own value");
            }
        }
        let shape =
            Shape { batch: 1, q_heads: 2, kv_heads: 1, q_len: long, kv_len: long, head_dim: 64, v_head_dim: 64 };
        let mut dense = Problem::bshd(shape, dtype);
        dense.mask = Mask::causal(Alignment::BottomRight);
        let size = dtype.size();
        let part = |bytes: &[u8], width: usize| bytes[before * width * size..(before + long) * width * size].to_vec();
        let dense_inputs =
            Inputs { q: part(&inputs.q, row), k: part(&inputs.k, 64), v: part(&inputs.v, 64), ..Inputs::default() };
        let dense_plan = FlashPath(flash).plan(cx.runtime(), &dense)?;
        let expected = Launched::run(cx.runtime(), dense_plan.as_ref(), &dense_inputs, 0)?;
        let expected = decode(&expected.o, dtype);
        errors(&o[before * row..(before + long) * row], &expected).within(&Tolerance::for_dtype(dtype))?;
        cx.count(1);
    }
    Ok(())
}

fn equal_lengths(cx: &Context<'_>) -> anyhow::Result<()> {
    let mut rng = cx.rng();
    let paths = [
        (Path::Sm90, cuattn_flash::Path::Sm90, vec![DType::F16, DType::Bf16]),
        (Path::Mma, cuattn_flash::Path::Mma, vec![DType::F16, DType::Bf16]),
        (Path::Simt, cuattn_flash::Path::Simt, DType::ALL.to_vec()),
    ];
    let lens = [(1, 1), (7, 7), (64, 64), (100, 100), (128, 128), (129, 300), (300, 129), (1, 700), (513, 513)];
    for (packed_path, dense_path, dtypes) in paths {
        for dtype in dtypes {
            let shapes = [(3, (4, 4), 64), (2, (8, 2), 128), (70, (2, 1), 64), (66, (2, 2), 128), (2, (2, 2), 256)];
            for (batch, (q_heads, kv_heads), head_dim) in shapes {
                for (q_len, kv_len) in lens.iter().copied().take(if cx.reduced() { 3 } else { lens.len() }) {
                    if cx.reduced() && batch * q_len > 500 {
                        // Many sequences, and long ones, but not many long ones.
                        continue;
                    }
                    let lengths = Lengths { q: vec![q_len; batch], kv: vec![kv_len; batch] };
                    let mut problem = problem_of(&lengths, (q_heads, kv_heads), head_dim, dtype);
                    problem.causal = rng.random_bool(0.5);
                    problem.wants_log_sum_exp = true;
                    if rng.random_bool(0.3) {
                        // No one told us the longest sequence.
                        (problem.shape.max_q_len, problem.shape.max_kv_len) =
                            (problem.shape.total_q, problem.shape.total_kv);
                    }
                    let inputs = PackedInputs::draw(&problem, &lengths, Distribution::Peaky, &mut rng)?;
                    let shape = Shape { batch, q_heads, kv_heads, q_len, kv_len, head_dim, v_head_dim: head_dim };
                    let mut dense = Problem::bshd(shape, dtype);
                    if problem.causal {
                        dense.mask = Mask::causal(Alignment::BottomRight);
                    }
                    dense.wants_log_sum_exp = true;
                    let (packed_engine, dense_engine) = (VarlenPath(packed_path), FlashPath(dense_path));
                    let dense_takes = dense_engine.consider(cx.runtime().capabilities(), &dense).is_ok();
                    if !dense_takes || !takes(cx, &packed_engine, &problem) {
                        continue;
                    }
                    let dense_inputs =
                        Inputs { q: inputs.q.clone(), k: inputs.k.clone(), v: inputs.v.clone(), ..Inputs::default() };
                    let plan = packed_engine.plan(cx.runtime(), &problem)?;
                    let packed = PackedLaunched::run(cx.runtime(), plan.as_ref(), &inputs, Manner::default())?;
                    let plan = dense_engine.plan(cx.runtime(), &dense)?;
                    let expected = Launched::run(cx.runtime(), plan.as_ref(), &dense_inputs, 0)?;
                    ensure!(packed.o == expected.o, "{packed_path}: o differs from flash's: {problem:?}");
                    let rows = |bytes: &Option<Vec<u8>>| decode(bytes.as_deref().unwrap_or_default(), DType::F32);
                    let (packed, expected) = (rows(&packed.log_sum_exp), rows(&expected.log_sum_exp));
                    for (index, &value) in expected.iter().enumerate() {
                        // From [batch, head, row] to [head, token].
                        let (b, head, row) = (index / (q_heads * q_len), index / q_len % q_heads, index % q_len);
                        let other = packed[head * batch * q_len + b * q_len + row];
                        ensure!(value.to_bits() == other.to_bits(), "{packed_path}: log-sum-exp differs: {problem:?}");
                    }
                    cx.count(1);
                    cx.record_path(packed_path.name());
                }
            }
        }
    }
    Ok(())
}

/// A dense batch with `key_lengths`, of whose queries the first ones count, against its packed twin.
fn padded_is_packed(cx: &Context<'_>) -> anyhow::Result<()> {
    let mut rng = cx.rng();
    for dtype in DType::ALL {
        for (head_dim, causal) in [(64, true), (128, false), (20, true)] {
            let (batch, longest, q_heads, kv_heads) = (5, 150, 4, 2);
            let lens: Vec<usize> = (0..batch).map(|_| rng.random_range(1..=longest)).collect();
            let shape =
                Shape { batch, q_heads, kv_heads, q_len: longest, kv_len: longest, head_dim, v_head_dim: head_dim };
            let mut dense = Problem::bshd(shape, dtype);
            dense.mask = Mask { causal, key_lengths: KeyLengths::PerBatch(IndexType::I32), ..Mask::none() };
            let mut padded = Inputs::draw(&dense, Distribution::Normal, &mut rng)?;
            let random = |elements: usize, rng: &mut rand::rngs::StdRng| {
                encode(&(0..elements).map(|_| Distribution::Normal.key(rng)).collect::<Vec<_>>(), dtype)
            };
            padded.k = random(batch * longest * kv_heads * head_dim, &mut rng);
            padded.v = random(batch * longest * kv_heads * head_dim, &mut rng);
            let as_i64: Vec<_> = lens.iter().map(|&len| len as i64).collect();
            padded.key_lengths = Some(index_bytes(&as_i64, IndexType::I32));

            let lengths = Lengths { q: lens.clone(), kv: lens.clone() };
            let mut problem = problem_of(&lengths, (q_heads, kv_heads), head_dim, dtype);
            problem.causal = causal;
            problem.alignment = Alignment::TopLeft;
            let tokens = |bytes: &[u8], heads: usize| -> Vec<u8> {
                let token = heads * head_dim * dtype.size();
                let of = |b: usize| &bytes[b * longest * token..(b * longest + lens[b]) * token];
                (0..batch).flat_map(|b| of(b).iter().copied()).collect()
            };
            let inputs = PackedInputs {
                q: tokens(&padded.q, q_heads),
                k: tokens(&padded.k, kv_heads),
                v: tokens(&padded.v, kv_heads),
                cu_seqlens_q: index_bytes(&Lengths::starts(&lens), IndexType::I32),
                cu_seqlens_kv: index_bytes(&Lengths::starts(&lens), IndexType::I32),
                ..PackedInputs::default()
            };
            let plan = cuattn_flash::Flash.plan(cx.runtime(), &dense)?;
            let expected = tokens(&Launched::run(cx.runtime(), plan.as_ref(), &padded, 0)?.o, q_heads);
            let plan = Varlen.plan(cx.runtime(), &problem)?;
            let packed = PackedLaunched::run(cx.runtime(), plan.as_ref(), &inputs, Manner::default())?;
            errors(&decode(&packed.o, dtype), &decode(&expected, dtype))
                .within(&Tolerance::for_dtype(dtype))
                .with_context(|| format!("{problem:?} {lens:?}"))?;
            cx.count(1);
        }
    }
    Ok(())
}

fn launch_error(error: LaunchError) -> curt::Error {
    match error {
        LaunchError::Runtime(error) => error,
        other => panic!("a launch that fits was refused: {other}"),
    }
}

/// One graph, replayed with other lengths on the device, against the reference over these lengths.
fn replayed_lengths(cx: &Context<'_>) -> anyhow::Result<()> {
    let runtime = cx.runtime();
    let mut rng = cx.rng();
    for (path, dtype, head_dim) in [
        (Path::Sm90, DType::F16, 128),
        (Path::Sm90, DType::Bf16, 64),
        (Path::Mma, DType::F16, 128),
        (Path::Mma, DType::Bf16, 64),
        (Path::Simt, DType::F32, 64),
    ] {
        for (batch, total) in [(3, 200), (100, 400), (7, cx.scaled(1500, 500))] {
            let draw = |rng: &mut rand::rngs::StdRng| {
                // Any way to divide the tokens.
                let mut cuts: Vec<usize> = (0..batch - 1).map(|_| rng.random_range(0..=total)).collect();
                cuts.extend([0, total]);
                cuts.sort_unstable();
                cuts.windows(2).map(|pair| pair[1] - pair[0]).collect::<Vec<_>>()
            };
            let first = Lengths { q: draw(&mut rng), kv: draw(&mut rng) };
            let mut problem = problem_of(&first, (4, 2), head_dim, dtype);
            (problem.shape.max_q_len, problem.shape.max_kv_len) = (total, total);
            problem.causal = true;
            problem.wants_log_sum_exp = true;
            if !takes(cx, &VarlenPath(path), &problem) {
                continue;
            }
            let mut inputs = PackedInputs::draw(&problem, &first, Distribution::Normal, &mut rng)?;
            // Nothing is poison here: every key is seen under one of the lengths.
            let random = |bytes: usize, rng: &mut rand::rngs::StdRng| {
                let values: Vec<_> = (0..bytes / dtype.size()).map(|_| Distribution::Normal.key(rng)).collect();
                encode(&values, dtype)
            };
            (inputs.k, inputs.v) = (random(inputs.k.len(), &mut rng), random(inputs.v.len(), &mut rng));
            let plan = VarlenPath(path).plan(runtime, &problem)?;
            let [q, k, v] = [&inputs.q, &inputs.k, &inputs.v].map(|bytes| Guarded::upload(runtime, bytes, 0));
            let (q, k, v) = (q?, k?, v?);
            let extents = problem.extents()?;
            let o = Guarded::poisoned(runtime, extents.o, 0)?;
            let log_sum_exp = Guarded::poisoned(runtime, extents.log_sum_exp.unwrap_or(0), 0)?;
            let cu_q = runtime.upload(&inputs.cu_seqlens_q)?;
            let cu_kv = runtime.upload(&inputs.cu_seqlens_kv)?;
            let workspace = Guarded::poisoned(runtime, plan.workspace().bytes, 0)?;
            let operands = VarlenOperands {
                q: q.ptr(),
                k: k.ptr(),
                v: v.ptr(),
                o: o.ptr(),
                cu_seqlens_q: cu_q.ptr(),
                cu_seqlens_kv: cu_kv.ptr(),
                log_sum_exp: Some(log_sum_exp.ptr()),
                ..VarlenOperands::default()
            };
            let graph = runtime.capture(|_| {
                // SAFETY: every operand lives until the end of this function, which synchronises by reading.
                unsafe { plan.launch(&operands, workspace.ptr()) }.map_err(launch_error)
            })?;
            for replay in 0..cx.scaled(6, 2) {
                let lengths = Lengths { q: draw(&mut rng), kv: draw(&mut rng) };
                inputs.cu_seqlens_q = index_bytes(&Lengths::starts(&lengths.q), IndexType::I32);
                inputs.cu_seqlens_kv = index_bytes(&Lengths::starts(&lengths.kv), IndexType::I32);
                cu_q.write(&inputs.cu_seqlens_q)?;
                cu_kv.write(&inputs.cu_seqlens_kv)?;
                graph.launch()?;
                let launched = PackedLaunched { o: o.read()?, log_sum_exp: Some(log_sum_exp.read()?), status: None };
                workspace.read()?;
                let expected = reference::attention_varlen(&problem, &inputs.host())?;
                launched
                    .compare(&problem, &expected)
                    .with_context(|| format!("{path}, {dtype}, replay {replay}, {lengths:?}"))?;
                cx.count(1);
            }
        }
    }
    Ok(())
}

/// Starts of any value: nothing outside the tensors is touched, and the next launch is right.
fn bad_offsets(cx: &Context<'_>) -> anyhow::Result<()> {
    let mut rng = cx.rng();
    let spaces = [odd(), tensor_cores()].map(|space| PackedSpace { multiplications: 1 << 22, ..space });
    let mut problems: Vec<_> =
        spaces.iter().flat_map(|space| space.problems(&mut rng).take(cx.scaled(150, 2)).collect::<Vec<_>>()).collect();
    problems.retain(|(problem, _)| !problem.shape.is_empty());
    for (problem, _) in &mut problems {
        problem.checks_offsets = true;
    }
    for path in Path::ALL.map(VarlenPath) {
        let taken: Vec<_> = problems.iter().filter(|(problem, _)| takes(cx, &path, problem)).cloned().collect();
        plan_ahead(cx, &path, &taken);
    }
    for (round, (problem, lengths)) in problems.into_iter().enumerate() {
        let inputs = PackedInputs::draw(&problem, &lengths, Distribution::Normal, &mut rng)?;
        let mut bad = inputs.clone();
        let most = problem.shape.total_q.max(problem.shape.total_kv) as i64;
        let mut spoil = |bytes: &mut Vec<u8>, entries: usize| {
            let extreme = if problem.offsets == IndexType::I64 { i64::MAX } else { i64::from(i32::MAX) };
            let values: Vec<i64> = (0..entries)
                .map(|_| match rng.random_range(0..6) {
                    0 => extreme - rng.random_range(0..3),
                    1 => -extreme + rng.random_range(0..3),
                    2 => most + rng.random_range(0..1000),
                    _ => rng.random_range(-50..=most + 50),
                })
                .collect();
            *bytes = index_bytes(&values, problem.offsets);
        };
        let batch = problem.shape.batch;
        spoil(&mut bad.cu_seqlens_q, batch + 1);
        if round % 2 == 0 {
            spoil(&mut bad.cu_seqlens_kv, batch + 1);
        }
        if let Some(used) = &mut bad.used_lengths {
            spoil(used, batch);
        }
        if let (Some(table), Some(paging)) = (&mut bad.page_table, problem.paging) {
            // With other lengths, other entries of the table are read: all must be pages.
            let pages = paging.paging.pages.max(1) as i64;
            let entries: Vec<_> = (0..batch * paging.paging.max_pages).map(|_| rng.random_range(0..pages)).collect();
            *table = index_bytes(&entries, IndexType::I32);
        }
        for path in paths(cx, &problem) {
            let plan = path.plan(cx.runtime(), &problem)?;
            let launched = PackedLaunched::run(cx.runtime(), plan.as_ref(), &bad, Manner::default())
                .with_context(|| format!("{path:?}, bad starts, {problem:?}"))?;
            ensure!(launched.status.is_some_and(|status| status != 0), "no fault in random starts: {problem:?}");
            check_packed(cx, &path, &problem, &inputs, 0).with_context(|| format!("after bad starts, {problem:?}"))?;
        }
    }
    Ok(())
}

fn faults_are_named(cx: &Context<'_>) -> anyhow::Result<()> {
    let mut rng = cx.rng();
    let lengths = Lengths { q: vec![3, 4, 2], kv: vec![5, 0, 6] };
    let good = (vec![0, 3, 7, 9], vec![0, 5, 5, 11], vec![4, 0, 6]);
    type Arrays = (Vec<i64>, Vec<i64>, Vec<i64>);
    let spoiled = |spoil: fn(&mut Arrays)| {
        let mut arrays = good.clone();
        spoil(&mut arrays);
        arrays
    };
    let cases: Vec<(Arrays, u32)> = vec![
        (good.clone(), 0),
        (spoiled(|(q, ..)| q[0] = 1), OffsetFaults::Q_FIRST_NOT_ZERO),
        (spoiled(|(q, ..)| q[1] = 8), OffsetFaults::Q_DECREASES | OffsetFaults::Q_ABOVE_MAXIMUM),
        (spoiled(|(q, ..)| q[3] = 8), OffsetFaults::Q_LAST_NOT_TOTAL),
        (spoiled(|(_, kv, _)| kv[0] = -1), OffsetFaults::KV_FIRST_NOT_ZERO),
        // No length in use fits a span that ends before it begins.
        (
            spoiled(|(_, kv, _)| kv[2] = 4),
            OffsetFaults::KV_DECREASES | OffsetFaults::KV_ABOVE_MAXIMUM | OffsetFaults::USED_OUT_OF_RANGE,
        ),
        (spoiled(|(_, kv, _)| kv[3] = 10), OffsetFaults::KV_LAST_NOT_TOTAL | OffsetFaults::USED_OUT_OF_RANGE),
        (spoiled(|(.., used)| used[1] = 1), OffsetFaults::USED_OUT_OF_RANGE),
        (spoiled(|(.., used)| used[0] = -1), OffsetFaults::USED_OUT_OF_RANGE),
    ];
    for offsets in [IndexType::I32, IndexType::I64] {
        let mut problem = problem_of(&lengths, (1, 1), 8, DType::F32);
        problem.offsets = offsets;
        problem.has_used_lengths = true;
        problem.checks_offsets = true;
        let plan = Varlen.plan(cx.runtime(), &problem)?;
        for ((q, kv, used), want) in &cases {
            let mut inputs = PackedInputs::draw(&problem, &lengths, Distribution::Normal, &mut rng)?;
            inputs.cu_seqlens_q = index_bytes(q, offsets);
            inputs.cu_seqlens_kv = index_bytes(kv, offsets);
            inputs.used_lengths = Some(index_bytes(used, offsets));
            let launched = PackedLaunched::run(cx.runtime(), plan.as_ref(), &inputs, Manner::default())?;
            let (got, want) = (OffsetFaults(launched.status.unwrap_or(u32::MAX)), OffsetFaults(*want));
            ensure!(got == want, "{q:?} {kv:?} {used:?}: `{got}` instead of `{want}`");
            let host = problem.check_offsets(q, kv, Some(used));
            ensure!(host.is_ok() == want.is_empty(), "the host's check and the device's disagree: {host:?}");
            cx.count(1);
        }
    }
    Ok(())
}

/// NaN and infinity in V at keys that some rows of a tile see and others do not, in one sequence of several.
fn visible_nan(cx: &Context<'_>) -> anyhow::Result<()> {
    let mut rng = cx.rng();
    for dtype in DType::ALL {
        for (head_dim, causal) in [(64, true), (128, true), (40, false)] {
            let lens = if cx.reduced() { vec![70, 140, 3, 20] } else { vec![70, 200, 3, 130] };
            let second = lens[0]..lens[0] + lens[1];
            let lengths = Lengths { q: lens.clone(), kv: lens };
            let mut problem = problem_of(&lengths, (2, 1), head_dim, dtype);
            problem.causal = causal;
            if !causal {
                problem.window = Window { left: Some(9), right: Some(5) };
            }
            let mut inputs = PackedInputs::draw(&problem, &lengths, Distribution::Normal, &mut rng)?;
            for value in [f64::NAN, f64::INFINITY] {
                let at = rng.random_range(second.start * head_dim..second.end * head_dim) * dtype.size();
                inputs.v[at..at + dtype.size()].copy_from_slice(&encode(&[value], dtype));
            }
            let expected = reference::attention_varlen(&problem, &inputs.host())?;
            for path in paths(cx, &problem) {
                let plan = path.plan(cx.runtime(), &problem)?;
                let launched = PackedLaunched::run(cx.runtime(), plan.as_ref(), &inputs, Manner::default())?;
                let actual = VarlenHostOutput::read_o(&problem, &launched.o)?;
                errors_beside_nonfinite(&actual, &expected.o)
                    .and_then(|errors| errors.within(&Tolerance::for_dtype(dtype)))
                    .with_context(|| format!("{path:?}, {problem:?}"))?;
                cx.count(1);
            }
        }
    }
    Ok(())
}

/// Scores that grow from block to block of each sequence: as in the suite `flash`.
fn growing_scores(cx: &Context<'_>) -> anyhow::Result<()> {
    let mut rng = cx.rng();
    for dtype in DType::ALL {
        // Few sequences, and more than blocks sort by themselves.
        for (head_dim, heads, repeat) in [(64, (2, 1), 1), (128, (8, 1), 3), (128, (2, 1), 18)] {
            if cx.reduced() && repeat == 3 {
                continue;
            }
            let lens = if cx.reduced() { vec![40, 300, 3, 130] } else { [130, 700, 3, 400].repeat(repeat) };
            let lengths = Lengths { q: lens.clone(), kv: lens.clone() };
            let mut problem = problem_of(&lengths, heads, head_dim, dtype);
            problem.causal = true;
            problem.wants_log_sum_exp = true;
            let places: Vec<_> = lens.iter().flat_map(|&len| (0..len).map(move |key| (key, len))).collect();
            for &growth in growths(dtype) {
                let mut inputs = PackedInputs::draw(&problem, &lengths, Distribution::Normal, &mut rng)?;
                scale_rows(&mut inputs.k, dtype, head_dim, |row| growth_at(places[row].0, places[row].1, growth));
                let expected = reference::attention_varlen(&problem, &inputs.host())?;
                for path in paths(cx, &problem) {
                    let plan = path.plan(cx.runtime(), &problem)?;
                    let launched = PackedLaunched::run(cx.runtime(), plan.as_ref(), &inputs, Manner::default())?;
                    launched
                        .compare(&problem, &expected)
                        .with_context(|| format!("{path:?}, growth {growth}, {problem:?}"))?;
                    cx.count(1);
                }
            }
        }
    }
    Ok(())
}

/// Positions count from 0 in each sequence, and the sequence's number is given.
fn score_modifications(cx: &Context<'_>) -> anyhow::Result<()> {
    let mut rng = cx.rng();
    let body = "const float slope = static_cast<const float*>(buffers[0])[batch];\n\
                return score - slope * fabsf((float)(q - k)) - 0.125f * head;";
    for batch in [5, 80] {
        let slopes: Vec<f32> = (0..batch).map(|b| (b % 7) as f32 * 0.125).collect();
        let device_slopes = cx.runtime().upload(&slopes)?;
        for dtype in DType::ALL {
            let lens: Vec<_> = (0..batch).map(|_| rng.random_range(0..cx.scaled(90, 40))).collect();
            let lengths = Lengths { q: lens.clone(), kv: lens };
            let mut problem = problem_of(&lengths, (4, 2), 64, dtype);
            problem.score_mod = Some(ScoreMod { body: Arc::from(body), buffers: 1 });
            problem.wants_log_sum_exp = true;
            problem.causal = true;
            let inputs = PackedInputs::draw(&problem, &lengths, Distribution::Normal, &mut rng)?;
            let host = |score: f64, at: ScoreIndex| {
                score - f64::from(slopes[at.batch]) * (at.q as f64 - at.k as f64).abs() - 0.125 * at.head as f64
            };
            let mut operands = inputs.host();
            operands.score_mod = Some(&host);
            let expected = reference::attention_varlen(&problem, &operands)?;
            for path in paths(cx, &problem) {
                let plan = path.plan(cx.runtime(), &problem)?;
                let launched =
                    PackedLaunched::run_with(cx.runtime(), plan.as_ref(), &inputs, Manner::default(), |operands| {
                        operands.score_mod_buffers[0] = Some(device_slopes.ptr());
                    })?;
                let worst =
                    launched.compare(&problem, &expected).with_context(|| format!("{path:?} {dtype} {lengths:?}"))?;
                cx.record_error_of(dtype, worst.relative_l2, worst.worst_element);
                cx.count(1);
            }
        }
    }
    Ok(())
}

fn fifty_launches(cx: &Context<'_>) -> anyhow::Result<()> {
    let mut rng = cx.rng();
    for dtype in DType::ALL {
        let lens: Vec<_> = (0..90).map(|_| rng.random_range(0..cx.scaled(150, 40))).collect();
        let lengths = Lengths { q: lens.clone(), kv: lens };
        let mut problem = problem_of(&lengths, if cx.reduced() { (2, 1) } else { (4, 2) }, 128, dtype);
        problem.causal = true;
        problem.wants_log_sum_exp = true;
        let inputs = PackedInputs::draw(&problem, &lengths, Distribution::Peaky, &mut rng)?;
        for path in paths(cx, &problem) {
            let plan = path.plan(cx.runtime(), &problem)?;
            let first = PackedLaunched::run(cx.runtime(), plan.as_ref(), &inputs, Manner::default())?;
            for launch in 1..cx.scaled(50, 3) {
                let again = PackedLaunched::run(cx.runtime(), plan.as_ref(), &inputs, Manner::default())?;
                ensure!(again == first, "{path:?}, {dtype}: launch {launch} differs from the first");
            }
            cx.count(1);
        }
    }
    Ok(())
}

fn refusals(cx: &Context<'_>) -> anyhow::Result<()> {
    let mut rng = cx.rng();
    let lengths = Lengths { q: vec![2; 80], kv: vec![2; 80] };
    let problem = problem_of(&lengths, (2, 2), 64, DType::F16);
    let plan = Varlen.plan(cx.runtime(), &problem)?;
    let inputs = PackedInputs::draw(&problem, &lengths, Distribution::Normal, &mut rng)?;
    let q = Guarded::upload(cx.runtime(), &inputs.q, 0)?;
    let o = Guarded::poisoned(cx.runtime(), problem.extents()?.o, 0)?;
    // K is missing, V too small, and there is neither workspace nor offsets.
    let operands = VarlenOperands { q: q.ptr(), v: q.ptr().slice(0, 64)?, o: o.ptr(), ..VarlenOperands::default() };
    // SAFETY: the launch is to be refused before it touches memory, which is what is tested.
    let Err(error) = (unsafe { plan.launch(&operands, DevicePtr::default()) }) else {
        bail!("a launch without keys was accepted");
    };
    let text = error.to_string();
    for name in ["k", "v", "cu_seqlens_q", "cu_seqlens_kv", "workspace"] {
        ensure!(text.contains(name), "{name} must be named: {text}");
    }
    // SAFETY: as above.
    let Err(error) = (unsafe { plan.build_schedule(&operands, DevicePtr::default()) }) else {
        bail!("a work list of nothing was accepted");
    };
    ensure!(error.to_string().contains("cu_seqlens_kv"), "{error}");
    ensure!(o.read()?.iter().all(|&byte| byte == POISON), "a refused launch wrote");
    let mut strided = problem.clone();
    strided.q = TokenStrides { token: -1, head: 1 };
    ensure!(Varlen.plan(cx.runtime(), &strided).is_err(), "a negative stride was accepted");
    Ok(())
}
