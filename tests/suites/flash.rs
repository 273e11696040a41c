//! The flash engine against the float64 reference, and against phase2a on the GPU.

use std::sync::Arc;

use anyhow::{Context as _, bail, ensure};
use cuattn_core::reference::{self, HostOutput, ScoreIndex, decode, encode};
use cuattn_core::{
    Alignment, Bias, BiasKind, DType, Engine, IndexType, KeyLengths, Mask, Operands, PlanError, Problem, ScoreMod,
    Shape, Strides, Window,
};
use cuattn_flash::{Flash, FlashPath, Path};
use cuattn_phase2a::Phase2a;
use curt::{DevicePtr, Runtime};
use rand::Rng;

use crate::compare::{Tolerance, errors, errors_beside_nonfinite};
use crate::inputs::{Inputs, scale_rows};
use crate::parity::{Launched, check_inputs, check_parity, check_repeats, check_space, plan_ahead};
use crate::space::{Layout, Space};
use crate::tensors::{Distribution, Guarded};
use crate::{Context, Suite};

/// The suite.
pub fn suite() -> Suite {
    Suite::new("flash")
        .kernels(&[
            "flash/",
            "ptx/",
            "types",
            "numeric",
            "params",
            "mask",
            "score",
            "tile_scheduler",
            "row_span",
            "shared_tile",
        ])
        .case("plain", |cx| check_space(cx, &Flash, &sixteen_bit(Space::plain()), cx.scaled(60, 6)))
        .case("the best path, without a bias", |cx| check_space(cx, &Flash, &unbiased(), cx.scaled(750, 24)))
        .case("the best path, tiles of every length", |cx| check_space(cx, &Flash, &long(), cx.scaled(150, 3)))
        .case("the best path, biases", |cx| check_space(cx, &Flash, &biased(), cx.scaled(300, 10)))
        .case("mma, everything", |cx| check_space(cx, &MMA, &tensor_cores(), cx.scaled(700, 24)))
        .case("mma, biases", |cx| check_space(cx, &MMA, &biased(), cx.scaled(250, 8)))
        .case("mma, short queries", |cx| check_space(cx, &MMA, &short_queries(), cx.scaled(200, 6)))
        .case("float32", |cx| check_space(cx, &Flash, &float32(), cx.scaled(150, 5)))
        .case("float32, simt", |cx| check_space(cx, &FlashPath(Path::Simt), &float32(), cx.scaled(250, 5)))
        .case("float32, tensor cores", float32_on_tensor_cores)
        .case("float32, tensor cores, feature by feature", features_on_tensor_cores)
        .case("float32, heads that tensor cores leave out", heads_left_out)
        .case("any head size, layout and alignment", |cx| check_space(cx, &Flash, &odd(), cx.scaled(300, 10)))
        .case("agrees with phase2a", agrees_with_phase2a)
        .case("real tensors", real_tensors)
        .case("a visible NaN reaches the rows that see it", visible_nan)
        .case("infinite scores spoil their own rows", infinite_scores)
        .case("scores that outgrow all before them", growing_scores)
        .case("scores at the edge of what exponentials hold", edge_of_exponentials)
        .case("more tiles done again than a block can remember", many_tiles_again)
        .case("fifty launches are one", |cx| check_repeats(cx, &Flash, 513))
        .case("streams at once", streams_at_once)
        .case("score modifications", score_modifications)
        .case("a score modification that does not compile", broken_score_modification)
        .case("captured and replayed with other lengths", replayed_lengths)
        .case("more than 2^31 elements apart", far_apart)
        .case_alone("no score tensor", no_score_tensor)
        .case("refusals", refusals)
}

/// The path that other devices than Hopper take, wherever the suite runs.
const MMA: FlashPath = FlashPath(Path::Mma);

fn sixteen_bit(space: Space) -> Space {
    Space { dtypes: vec![DType::F16, DType::Bf16], ..space }
}

/// What the `mma` path takes, odd rows and alignments aside, which go to `simt`.
fn tensor_cores() -> Space {
    Space {
        head_dims: vec![16, 32, 40, 64, 64, 72, 80, 96, 112, 128, 128, 160, 192, 256],
        heads: vec![(1, 1), (2, 1), (3, 1), (5, 1), (7, 1), (9, 1), (4, 4), (8, 2), (28, 4), (24, 4), (48, 2), (13, 1)],
        layouts: vec![
            Layout::Bhsd,
            Layout::Bshd,
            Layout::Sbhd,
            Layout::PackedQkv,
            Layout::Capacity,
            Layout::BroadcastKv,
        ],
        ..sixteen_bit(Space::full())
    }
}

fn unbiased() -> Space {
    Space { biases: Vec::new(), ..tensor_cores() }
}

/// Several tiles of rows and many blocks of keys, so that persistent blocks go through more than one tile.
fn long() -> Space {
    Space {
        heads: vec![(16, 16), (16, 4), (24, 8)],
        head_dims: vec![64, 128, 192, 256],
        q_lens: vec![511, 512, 513, 1000, 1024],
        kv_lens: vec![512, 700, 1024, 1025, 2000],
        multiplications: 1 << 31,
        ..unbiased()
    }
}

fn biased() -> Space {
    Space {
        head_dims: vec![64, 64, 128, 128, 40, 96, 192, 256],
        v_head_dim_differs: false,
        biases: vec![
            BiasKind::Additive(DType::F32),
            BiasKind::Additive(DType::F16),
            BiasKind::Additive(DType::Bf16),
            BiasKind::Boolean,
        ],
        ..tensor_cores()
    }
}

/// One to a few query rows over many keys, where the heads of a group share a tile.
fn short_queries() -> Space {
    Space { q_lens: vec![1, 1, 2, 3, 4, 5, 8, 16], kv_lens: vec![1, 64, 1025, 2000, 4096], ..tensor_cores() }
}

fn float32() -> Space {
    Space {
        dtypes: vec![DType::F32],
        head_dims: vec![1, 4, 8, 40, 64, 64, 64, 72, 96, 128, 128, 128, 160, 192, 256, 512],
        heads: vec![(1, 1), (3, 1), (5, 1), (7, 1), (9, 1), (4, 4), (8, 2), (28, 4)],
        ..Space::full()
    }
}

/// The path for float32 that Hopper takes.
const SM90_F32: FlashPath = FlashPath(Path::Sm90F32);

/// Random problems of those that the path takes: none on another device than Hopper.
fn float32_on_tensor_cores(cx: &Context<'_>) -> anyhow::Result<()> {
    let space = Space {
        dtypes: vec![DType::F32],
        head_dims: vec![16, 24, 40, 64, 64, 64, 72, 80, 96, 104, 128, 128, 128],
        q_lens: vec![128, 129, 191, 192, 193, 255, 256, 257, 300, 513, 1000],
        kv_lens: vec![128, 129, 191, 192, 193, 255, 256, 257, 448, 1025],
        // The path has no use for less.
        multiplications: 1 << 28,
        ..Space::full()
    };
    let mut rng = cx.rng();
    let count = cx.scaled(250, 4);
    let device = cx.runtime().capabilities();
    let drawn = space.problems(&mut rng).take(count * 20);
    let problems: Vec<_> = drawn.filter(|problem| SM90_F32.consider(device, problem).is_ok()).take(count).collect();
    ensure!(problems.len() == count || device.compute_capability != (9, 0), "only {} problems", problems.len());
    plan_ahead(cx.runtime(), &SM90_F32, &problems);
    problems.iter().try_for_each(|problem| check_parity(cx, &SM90_F32, problem))
}

/// One feature at a time and all together, over pairs of head sizes. Every failure is told: which of them fail says where to look.
fn features_on_tensor_cores(cx: &Context<'_>) -> anyhow::Result<()> {
    let device = cx.runtime().capabilities();
    let mut problems = Vec::new();
    for (head_dim, v_head_dim) in [(64, 64), (64, 104), (64, 128), (128, 64), (128, 128), (40, 24)] {
        let shape = Shape { batch: 1, q_heads: 12, kv_heads: 1, q_len: 300, kv_len: 419, head_dim, v_head_dim };
        for (name, softcap, bias, offsets) in [
            ("nothing", false, None, false),
            ("softcap", true, None, false),
            ("bias", false, Some(BiasKind::Additive(DType::F32)), false),
            ("boolean bias", false, Some(BiasKind::Boolean), false),
            ("offsets", false, None, true),
            ("softcap and bias", true, Some(BiasKind::Additive(DType::F32)), false),
            ("all", true, Some(BiasKind::Additive(DType::F32)), true),
        ] {
            let mut problem = Problem::bhsd(shape, DType::F32);
            problem.softcap = softcap.then_some(20.0);
            problem.wants_log_sum_exp = true;
            problem.mask =
                Mask::causal(if offsets { Alignment::PerBatch(IndexType::I32) } else { Alignment::BottomRight });
            let row = 432;
            problem.mask.bias = bias.map(|kind| Bias { kind, batch: 0, head: 300 * row, row, key: 1, keys: 419 });
            if SM90_F32.consider(device, &problem).is_ok() {
                problems.push((format!("{head_dim}/{v_head_dim} {name}"), problem));
            }
        }
    }
    // Smaller ones the path would not take. A third of them still has each feature at some pair of sizes.
    let problems: Vec<_> = problems.into_iter().step_by(if cx.reduced() { 3 } else { 1 }).collect();
    plan_ahead(cx.runtime(), &SM90_F32, &problems.iter().map(|(_, problem)| problem.clone()).collect::<Vec<_>>());
    let mut failures = Vec::new();
    for (name, problem) in &problems {
        for _ in 0..cx.scaled(4, 1) {
            if let Err(error) = check_parity(cx, &SM90_F32, problem) {
                failures.push(format!("{name}: {error:#}"));
            }
        }
    }
    ensure!(failures.is_empty(), "{}", failures.join("\n"));
    Ok(())
}

/// Something that is done to q, k and v, and the query heads that halves of f16 cannot hold then.
struct Spoilt {
    name: &'static str,
    spoil: fn(&mut HeadRows),
    left_out: &'static [usize],
}

/// `[heads, rows, dim]` tensors.
struct HeadRows {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    shape: Shape,
}

impl HeadRows {
    fn q(&mut self, head: usize, row: usize) -> &mut [f32] {
        let Shape { q_len, head_dim, .. } = self.shape;
        &mut self.q[(head * q_len + row) * head_dim..][..head_dim]
    }
    fn k(&mut self, head: usize, row: usize) -> &mut [f32] {
        let Shape { kv_len, head_dim, .. } = self.shape;
        &mut self.k[(head * kv_len + row) * head_dim..][..head_dim]
    }
    fn v(&mut self, head: usize, row: usize) -> &mut [f32] {
        let Shape { kv_len, v_head_dim, .. } = self.shape;
        &mut self.v[(head * kv_len + row) * v_head_dim..][..v_head_dim]
    }
}

fn multiply(values: &mut [f32], factor: f32) {
    values.iter_mut().for_each(|value| *value *= factor);
}

/// Four query heads, two key heads, more keys than rows: the last 16 keys are seen by no row, nor are those beyond the length.
const SPOILT: &[Spoilt] = &[
    Spoilt { name: "nothing", spoil: |_| (), left_out: &[] },
    Spoilt { name: "a large query", spoil: |x| x.q(1, 5)[3] = 1e6, left_out: &[1] },
    Spoilt { name: "a large key", spoil: |x| multiply(x.k(0, 383), 3e5), left_out: &[0, 1] },
    Spoilt { name: "a large value", spoil: |x| multiply(x.v(1, 383), 1e6), left_out: &[2, 3] },
    Spoilt { name: "a small value", spoil: |x| multiply(x.v(0, 0), 1e-7), left_out: &[0, 1] },
    Spoilt {
        name: "a large key that nobody sees",
        spoil: |x| {
            multiply(x.k(0, 385), 1e30);
            multiply(x.v(0, 390), 1e30);
        },
        left_out: &[],
    },
    Spoilt {
        name: "zeros",
        spoil: |x| {
            x.v[..400 * 64].fill(0.0);
            (0..384).for_each(|row| x.q(3, row).fill(0.0));
            x.v(1, 17).fill(0.0);
        },
        left_out: &[],
    },
    Spoilt {
        name: "other magnitudes",
        spoil: |x| {
            multiply(&mut x.q, 1e-18);
            multiply(&mut x.k, 1e18);
            multiply(&mut x.v, 1e-27);
        },
        left_out: &[],
    },
    Spoilt { name: "a huge query", spoil: |x| multiply(x.q(2, 0), 1e30), left_out: &[2] },
    Spoilt { name: "a query that is not a number", spoil: |x| x.q(2, 7)[0] = f32::NAN, left_out: &[2] },
    Spoilt { name: "a key that is not a number", spoil: |x| x.k(1, 100)[1] = f32::NAN, left_out: &[2, 3] },
    Spoilt { name: "an infinite value", spoil: |x| x.v(0, 100)[2] = f32::NEG_INFINITY, left_out: &[0, 1] },
    Spoilt {
        name: "what is not finite, unseen",
        spoil: |x| {
            x.k(0, 384).fill(f32::NAN);
            x.v(0, 384).fill(f32::INFINITY);
            x.v(1, 399).fill(f32::NAN);
        },
        left_out: &[],
    },
];

/// Heads that halves cannot hold get the very bits of the `simt` path, in a launch that computes the others on tensor cores.
fn heads_left_out(cx: &Context<'_>) -> anyhow::Result<()> {
    let runtime = cx.runtime();
    if runtime.capabilities().compute_capability != (9, 0) {
        return Ok(());
    }
    let mut rng = cx.rng();
    let lengths = KeyLengths::PerBatch(IndexType::I32);
    let variants = [(64, KeyLengths::Full), (128, KeyLengths::Full), (128, lengths)];
    for (variant, (head_dim, key_lengths)) in variants.into_iter().enumerate() {
        let shape =
            Shape { batch: 1, q_heads: 4, kv_heads: 2, q_len: 384, kv_len: 400, head_dim, v_head_dim: head_dim };
        let mut problem = Problem::bhsd(shape, DType::F32);
        // The length hides what the mask would show.
        let alignment = if key_lengths == KeyLengths::Full { Alignment::TopLeft } else { Alignment::BottomRight };
        problem.mask = Mask { key_lengths, ..Mask::causal(alignment) };
        problem.wants_log_sum_exp = true;
        let plans = [SM90_F32.plan(runtime, &problem)?, FlashPath(Path::Simt).plan(runtime, &problem)?];
        // Smaller problems the path would not take, so a reduced run takes few: others with each variant.
        let (first, step) = if cx.reduced() { (2 * variant, 6) } else { (0, 1) };
        for Spoilt { name, spoil, left_out } in SPOILT.iter().skip(first).step_by(step) {
            let about = || format!("{name} at head size {head_dim}, {key_lengths:?}");
            let mut draw = |count: usize| (0..count).map(|_| Distribution::Normal.key(&mut rng) as f32).collect();
            let q_rows = shape.q_heads * shape.q_len * head_dim;
            let kv_rows = shape.kv_heads * shape.kv_len * head_dim;
            let mut rows = HeadRows { q: draw(q_rows), k: draw(kv_rows), v: draw(kv_rows), shape };
            spoil(&mut rows);
            let bytes = |values: &[f32]| bytemuck::cast_slice(values).to_vec();
            let inputs = Inputs {
                q: bytes(&rows.q),
                k: bytes(&rows.k),
                v: bytes(&rows.v),
                key_lengths: (key_lengths != KeyLengths::Full).then(|| 384_i32.to_ne_bytes().to_vec()),
                ..Inputs::default()
            };
            let expected = reference::attention(&problem, &inputs.host())?;
            let [tensor_cores, simt] = plans.each_ref().map(|plan| Launched::run(runtime, plan.as_ref(), &inputs, 0));
            let (tensor_cores, simt) = (tensor_cores.with_context(about)?, simt.with_context(about)?);
            let actual = HostOutput::read_o(&problem, &tensor_cores.o)?;
            let distance = if expected.o.iter().all(|value| value.is_finite()) {
                errors(&actual, &expected.o)
            } else {
                errors_beside_nonfinite(&actual, &expected.o).with_context(about)?
            };
            distance.within(&Tolerance::for_dtype(DType::F32)).with_context(about)?;
            let head_bytes = shape.q_len * head_dim * DType::F32.size();
            let heads = tensor_cores.o.chunks(head_bytes).zip(simt.o.chunks(head_bytes)).enumerate();
            for (head, (ours, theirs)) in heads {
                let zeros = ours.iter().all(|&byte| byte == 0);
                let is_left_out = left_out.contains(&head);
                ensure!(
                    zeros || (ours == theirs) == is_left_out,
                    "head {head} with {}: left out is {is_left_out}",
                    about()
                );
            }
            cx.record_error_of(DType::F32, distance.relative_l2, distance.worst_element);
            cx.count(1);
        }
    }
    Ok(())
}

fn odd() -> Space {
    Space { head_dims: vec![1, 3, 4, 5, 8, 12, 20, 33, 66, 100, 129, 264, 512], ..Space::full() }
}

fn agrees_with_phase2a(cx: &Context<'_>) -> anyhow::Result<()> {
    let mut rng = cx.rng();
    let space = Space { multiplications: 1 << 28, ..tensor_cores() };
    let space = if cx.reduced() { space.small() } else { space };
    let phase2a = Phase2a::new();
    let problems: Vec<_> = space.problems(&mut rng).take(cx.scaled(40, 2)).collect();
    plan_ahead(cx.runtime(), &Flash, &problems);
    plan_ahead(cx.runtime(), &phase2a, &problems);
    for problem in problems {
        let inputs = Inputs::draw(&problem, Distribution::Normal, &mut rng)?;
        let run = |engine: &dyn Engine| -> anyhow::Result<Vec<f64>> {
            let plan = engine.plan(cx.runtime(), &problem)?;
            let launched = Launched::run(cx.runtime(), plan.as_ref(), &inputs, 0)?;
            Ok(HostOutput::read_o(&problem, &launched.o)?)
        };
        let (flash, other) = (run(&Flash)?, run(&phase2a)?);
        errors(&flash, &other).within(&Tolerance::for_dtype(problem.dtype)).with_context(|| format!("{problem:?}"))?;
        cx.count(1);
    }
    Ok(())
}

fn real_tensors(cx: &Context<'_>) -> anyhow::Result<()> {
    for sample in crate::samples::all()? {
        check_inputs(cx, &Flash, &sample.problem, &sample.inputs, 0).with_context(|| sample.name.clone())?;
    }
    Ok(())
}

/// NaN and infinity in V at keys that some rows of a tile see and others do not.
fn visible_nan(cx: &Context<'_>) -> anyhow::Result<()> {
    let mut rng = cx.rng();
    for dtype in DType::ALL {
        for (head_dim, q_len, causal) in [(64, 200, true), (128, 130, true), (40, 70, true), (128, 65, false)] {
            let shape =
                Shape { batch: 1, q_heads: 2, kv_heads: 1, q_len, kv_len: q_len, head_dim, v_head_dim: head_dim };
            let mut problem = Problem::bhsd(shape, dtype);
            problem.mask = if causal {
                Mask::causal(Alignment::BottomRight)
            } else {
                Mask { window: Window { left: Some(9), right: Some(5) }, ..Mask::none() }
            };
            let mut inputs = Inputs::draw(&problem, Distribution::Normal, &mut rng)?;
            for value in [f64::NAN, f64::INFINITY] {
                let at = rng.random_range(0..q_len * head_dim) * dtype.size();
                inputs.v[at..at + dtype.size()].copy_from_slice(&encode(&[value], dtype));
            }
            check_beside_nonfinite(cx, &problem, &inputs)?;
        }
    }
    Ok(())
}

/// Two keys that half of the rows see as infinite scores, in blocks that are not the first, beside a value that is not a number and
/// hidden from most of the tile: the other rows of that tile are right.
fn infinite_scores(cx: &Context<'_>) -> anyhow::Result<()> {
    let mut rng = cx.rng();
    let len = cx.scaled(512, 300);
    for dtype in DType::ALL {
        for head_dim in [64, 128] {
            let shape =
                Shape { batch: 1, q_heads: 2, kv_heads: 1, q_len: len, kv_len: len, head_dim, v_head_dim: head_dim };
            let mut problem = Problem::bhsd(shape, dtype);
            problem.mask = Mask::causal(Alignment::BottomRight);
            let mut inputs = Inputs::draw(&problem, Distribution::Normal, &mut rng)?;
            let place = |key: usize| key * head_dim * dtype.size()..(key * head_dim + 1) * dtype.size();
            for key in [10, len / 2 - 56] {
                inputs.k[place(key)].copy_from_slice(&encode(&[f64::INFINITY], dtype));
            }
            inputs.v[place(len - 12)].copy_from_slice(&encode(&[f64::NAN], dtype));
            check_beside_nonfinite(cx, &problem, &inputs)?;
        }
    }
    Ok(())
}

fn check_beside_nonfinite(cx: &Context<'_>, problem: &Problem, inputs: &Inputs) -> anyhow::Result<()> {
    let expected = reference::attention(problem, &inputs.host())?;
    let plan = Flash.plan(cx.runtime(), problem)?;
    let launched = Launched::run(cx.runtime(), plan.as_ref(), inputs, 0)?;
    let actual = HostOutput::read_o(problem, &launched.o)?;
    errors_beside_nonfinite(&actual, &expected.o)
        .and_then(|errors| errors.within(&Tolerance::for_dtype(problem.dtype)))
        .with_context(|| format!("{problem:?}"))?;
    cx.count(1);
    Ok(())
}

/// How much larger the first of `len` keys are than the last, which tiles begin with. With 12 scores outgrow the running maximum, with 100
/// the range of exponentials as well (scores of a thousand, of which float32 itself loses what its tolerance asks for).
pub(crate) fn growths(dtype: DType) -> &'static [f64] {
    if dtype == DType::F32 { &[12.0] } else { &[12.0, 100.0] }
}

/// The factor on key `key`: none in the last third, the whole growth in the first.
pub(crate) fn growth_at(key: usize, len: usize, growth: f64) -> f64 {
    growth.powf((2.0 - 3.0 * key as f64 / len as f64).clamp(0.0, 1.0))
}

/// Scores that grow from block to block, so that the softmax does not know their maximum when it begins: each path must notice.
fn growing_scores(cx: &Context<'_>) -> anyhow::Result<()> {
    let mut rng = cx.rng();
    // The last two fill the device. Of the reduced ones, whose keys are three blocks, the last is for float32 on tensor cores, which
    // does not take less.
    let full = [
        (64, (2, 1), 200, 1300, true),
        (128, (2, 2), 130, 700, false),
        (40, (3, 1), 70, 1025, true),
        (256, (2, 1), 129, 513, true),
        (64, (40, 40), 520, 650, true),
        (128, (40, 20), 520, 650, false),
    ];
    let reduced = [
        (64, (2, 1), 130, 390, true),
        (128, (2, 2), 130, 390, false),
        (40, (3, 1), 70, 390, true),
        (256, (2, 1), 129, 390, true),
        (64, (2, 1), 520, 650, true),
    ];
    for dtype in DType::ALL {
        let shapes = match (cx.reduced(), dtype) {
            (false, _) => &full[..],
            (true, DType::F32) => &reduced[..],
            (true, _) => &reduced[..4],
        };
        for &(head_dim, (q_heads, kv_heads), q_len, kv_len, causal) in shapes {
            let shape = Shape { batch: 1, q_heads, kv_heads, q_len, kv_len, head_dim, v_head_dim: head_dim };
            let mut problem = Problem::bhsd(shape, dtype);
            problem.wants_log_sum_exp = true;
            if causal {
                problem.mask = Mask::causal(Alignment::BottomRight);
            }
            for &growth in growths(dtype) {
                let mut inputs = Inputs::draw(&problem, Distribution::Normal, &mut rng)?;
                scale_rows(&mut inputs.k, dtype, head_dim, |row| growth_at(row % kv_len, kv_len, growth));
                let other = if dtype == DType::F32 { FlashPath(Path::Simt) } else { MMA };
                for engine in [&Flash as &dyn Engine, &other] {
                    check_inputs(cx, engine, &problem, &inputs, 0)
                        .with_context(|| format!("growth {growth} on {problem:?}"))?;
                }
            }
        }
    }
    Ok(())
}

/// Rows whose scores, the same over the first third of their keys, are 0 to 150 above those of the last third, which tiles begin with: in
/// steps of a quarter, so that some lie just inside and some just outside of each limit of the softmax that does not look for a maximum.
fn edge_of_exponentials(cx: &Context<'_>) -> anyhow::Result<()> {
    let mut rng = cx.rng();
    // In steps of one where the run is reduced, over two blocks of keys.
    let (len, keys) = (cx.scaled(600, 150), cx.scaled(600, 300));
    for dtype in [DType::F16, DType::Bf16] {
        for (head_dim, heads) in [(64, 1), (128, 1), (128, 40), (256, 1)] {
            if cx.reduced() && heads > 1 {
                continue;
            }
            let shape = Shape {
                batch: 1,
                q_heads: heads,
                kv_heads: heads,
                q_len: len,
                kv_len: keys,
                head_dim,
                v_head_dim: head_dim,
            };
            let mut problem = Problem::bhsd(shape, dtype);
            problem.scale = 1.0;
            problem.wants_log_sum_exp = true;
            let mut inputs = Inputs::draw(&problem, Distribution::Normal, &mut rng)?;
            // One element of a query carries its scores, which are the same number for every key that it meets.
            let first_elements = |len: usize, value: &dyn Fn(usize) -> f64| -> Vec<f64> {
                let value = |i: usize| if i.is_multiple_of(head_dim) { value(i / head_dim % len) } else { 0.0 };
                (0..heads * len * head_dim).map(value).collect()
            };
            let q = first_elements(len, &|row| row as f64 * (150.0 / len as f64));
            let k = first_elements(keys, &|key| f64::from(u8::from(key < keys / 3)));
            inputs.q = encode(&q, dtype);
            inputs.k = encode(&k, dtype);
            for engine in [&Flash as &dyn Engine, &MMA] {
                check_inputs(cx, engine, &problem, &inputs, 0).with_context(|| format!("{problem:?}"))?;
            }
        }
    }
    Ok(())
}

/// Nearly every tile has scores that outgrow what can be scaled back, and every block of the device more of them than it can list; between
/// them stand tiles that have not. Which block does which tile depends on timing; no bit may.
fn many_tiles_again(cx: &Context<'_>) -> anyhow::Result<()> {
    let mut rng = cx.rng();
    let (heads, q_len, kv_len, head_dim) = if cx.reduced() { (2, 300, 200, 16) } else { (128, 16_384, 200, 16) };
    let shape = Shape { batch: 1, q_heads: heads, kv_heads: heads, q_len, kv_len, head_dim, v_head_dim: head_dim };
    let problem = Problem::bhsd(shape, DType::F16);
    let mut inputs = Inputs::draw(&problem, Distribution::Normal, &mut rng)?;
    scale_rows(&mut inputs.k, problem.dtype, head_dim, |row| {
        if row / kv_len % 8 == 0 { 1.0 } else { growth_at(row % kv_len, kv_len, 100.0) }
    });
    for engine in [&Flash as &dyn Engine, &MMA] {
        check_inputs(cx, engine, &problem, &inputs, 0)?;
        let plan = engine.plan(cx.runtime(), &problem)?;
        let first = Launched::run(cx.runtime(), plan.as_ref(), &inputs, 0)?;
        for _ in 0..cx.scaled(4, 1) {
            ensure!(Launched::run(cx.runtime(), plan.as_ref(), &inputs, 0)? == first, "two launches differ");
        }
        cx.count(1);
    }
    Ok(())
}

/// Several streams at once, each with a plan of its own and a graph of it: persistent blocks draw their tiles from counters that must
/// not be shared.
fn streams_at_once(cx: &Context<'_>) -> anyhow::Result<()> {
    let mut rng = cx.rng();
    let shape = Shape { batch: 4, q_heads: 16, kv_heads: 4, q_len: 512, kv_len: 512, head_dim: 64, v_head_dim: 64 };
    let shape = if cx.reduced() {
        Shape { batch: 1, q_heads: 4, kv_heads: 1, q_len: 130, kv_len: 130, ..shape }
    } else {
        shape
    };
    let mut problem = Problem::bhsd(shape, DType::Bf16);
    problem.mask = Mask::causal(Alignment::BottomRight);
    let inputs = Inputs::draw(&problem, Distribution::Normal, &mut rng)?;
    let plan = Flash.plan(cx.runtime(), &problem)?;
    let alone = Launched::run(cx.runtime(), plan.as_ref(), &inputs, 0)?;
    alone.compare(&problem, &reference::attention(&problem, &inputs.host())?)?;
    let launches = cx.scaled(40, 2);
    let stream = || -> anyhow::Result<()> {
        let runtime = Runtime::new(0)?;
        let plan = Flash.plan(&runtime, &problem)?;
        let [q, k, v] = [&inputs.q, &inputs.k, &inputs.v].map(|bytes| Guarded::upload(&runtime, bytes, 0));
        let (q, k, v) = (q?, k?, v?);
        let o = Guarded::poisoned(&runtime, problem.extents()?.o, 0)?;
        let operands = Operands { q: q.ptr(), k: k.ptr(), v: v.ptr(), o: o.ptr(), ..Operands::default() };
        let graph = runtime.capture(|_| {
            // SAFETY: every operand lives until the end of this function, which synchronises by reading.
            unsafe { plan.launch(&operands, DevicePtr::default()) }.map_err(launch_error)
        })?;
        for _ in 0..launches {
            graph.launch()?;
            // SAFETY: as above.
            unsafe { plan.launch(&operands, DevicePtr::default())? };
        }
        ensure!(o.read()? == alone.o, "a launch beside others differs from one alone");
        Ok(())
    };
    std::thread::scope(|scope| {
        let streams: Vec<_> = (0..4).map(|_| scope.spawn(stream)).collect();
        for stream in streams {
            stream.join().map_err(|_| anyhow::anyhow!("a stream's thread panicked"))??;
        }
        cx.count(1);
        Ok(())
    })
}

/// A score modification as CUDA and as a closure.
struct Pair {
    name: &'static str,
    body: &'static str,
    host: fn(f64, ScoreIndex, &[f32]) -> f64,
}

/// What people write: a slope a head, documents that do not see each other, a band plus a few global keys.
const PAIRS: &[Pair] = &[
    Pair {
        name: "ALiBi",
        body: "const float slope = static_cast<const float*>(buffers[0])[head];\nreturn score - slope * fabsf((float)(q - k));",
        host: |score, at, buffer| score - f64::from(buffer[at.head]) * (at.q as f64 - at.k as f64).abs(),
    },
    Pair {
        name: "documents",
        body: "const float* document = static_cast<const float*>(buffers[0]);\n\
               return document[q] == document[k] ? score : -INFINITY_F32;",
        host: |score, at, buffer| if buffer[at.q] == buffer[at.k] { score } else { f64::NEG_INFINITY },
    },
    Pair {
        name: "soft sparse",
        body: "return k < 4 || abs(q - k) < 16 ? score : score - static_cast<const float*>(buffers[0])[batch];",
        host: |score, at, buffer| {
            if at.k < 4 || at.q.abs_diff(at.k) < 16 { score } else { score - f64::from(buffer[at.batch]) }
        },
    },
];

fn score_modifications(cx: &Context<'_>) -> anyhow::Result<()> {
    let mut rng = cx.rng();
    let len = if cx.reduced() { 70 } else { 300 };
    let buffer: Vec<f32> = (0..len).map(|i| (i / 37) as f32 * 0.25).collect();
    let device_buffer = cx.runtime().upload(&buffer)?;
    let problem = |pair: &Pair, dtype, head_dim, causal| {
        let shape =
            Shape { batch: 2, q_heads: 4, kv_heads: 2, q_len: len, kv_len: len, head_dim, v_head_dim: head_dim };
        let mut problem = Problem::bhsd(shape, dtype);
        problem.score_mod = Some(ScoreMod { body: Arc::from(pair.body), buffers: 1 });
        problem.wants_log_sum_exp = true;
        if causal {
            problem.mask = Mask::causal(Alignment::TopLeft);
        }
        problem
    };
    let mut cases = Vec::new();
    for pair in PAIRS {
        for dtype in DType::ALL {
            for (head_dim, causal) in [(64, true), (128, false), (20, true)] {
                cases.push((pair, problem(pair, dtype, head_dim, causal)));
            }
        }
    }
    let problems: Vec<_> = cases.iter().map(|(_, problem)| problem.clone()).collect();
    plan_ahead(cx.runtime(), &Flash, &problems);
    for (pair, problem) in cases {
        let inputs = Inputs::draw(&problem, Distribution::Normal, &mut rng)?;
        let host = |score: f64, at: ScoreIndex| (pair.host)(score, at, &buffer);
        let mut operands = inputs.host();
        operands.score_mod = Some(&host);
        let expected = reference::attention(&problem, &operands)?;
        let plan = Flash.plan(cx.runtime(), &problem)?;
        let launched = Launched::run_with(cx.runtime(), plan.as_ref(), &inputs, 0, |operands| {
            operands.score_mod_buffers[0] = Some(device_buffer.ptr());
        })?;
        let worst = launched
            .compare(&problem, &expected)
            .with_context(|| format!("{} {} d{}", pair.name, problem.dtype, problem.shape.head_dim))?;
        cx.record_path(&plan.explain().path);
        cx.record_error_of(problem.dtype, worst.relative_l2, worst.worst_element);
        cx.count(1);
    }
    Ok(())
}

fn broken_score_modification(cx: &Context<'_>) -> anyhow::Result<()> {
    let shape = Shape { batch: 1, q_heads: 1, kv_heads: 1, q_len: 16, kv_len: 16, head_dim: 64, v_head_dim: 64 };
    let mut problem = Problem::bhsd(shape, DType::F16);
    problem.score_mod = Some(ScoreMod { body: Arc::from("float x = 1.f;\nreturn score + not_declared;"), buffers: 0 });
    match Flash.plan(cx.runtime(), &problem) {
        Err(PlanError::Runtime(error)) => {
            let text = error.to_string();
            ensure!(text.contains("score_mod:2") || text.contains("score_mod(2)"), "no line of the snippet in: {text}");
            ensure!(text.contains("not_declared"), "not the name in: {text}");
            Ok(())
        }
        Err(other) => bail!("another error: {other}"),
        Ok(_) => bail!("a snippet with an undeclared name was accepted"),
    }
}

/// One graph, replayed with other lengths on the device, against eager launches with these lengths.
fn replayed_lengths(cx: &Context<'_>) -> anyhow::Result<()> {
    let runtime = cx.runtime();
    let mut rng = cx.rng();
    // The last one is enough for tensor cores.
    for (dtype, head_dim, q_len) in
        [(DType::F16, 128, 33), (DType::Bf16, 64, 33), (DType::F32, 64, 33), (DType::F32, 128, 200)]
    {
        let shape = Shape { batch: 3, q_heads: 4, kv_heads: 2, q_len, kv_len: 200, head_dim, v_head_dim: head_dim };
        let mut problem = Problem::bhsd(shape, dtype);
        problem.mask = Mask::causal(Alignment::BottomRight);
        problem.mask.key_lengths = KeyLengths::PerBatch(IndexType::I32);
        problem.wants_log_sum_exp = true;
        let mut inputs = Inputs::draw(&problem, Distribution::Normal, &mut rng)?;
        // Nothing is poison here: every key is seen under one of the lengths.
        inputs.k = encode(&random(&mut rng, inputs.k.len() / dtype.size()), dtype);
        inputs.v = encode(&random(&mut rng, inputs.v.len() / dtype.size()), dtype);
        let plan = Flash.plan(runtime, &problem)?;
        let [q, k, v] = [&inputs.q, &inputs.k, &inputs.v].map(|bytes| Guarded::upload(runtime, bytes, 0));
        let (q, k, v) = (q?, k?, v?);
        let extents = problem.extents()?;
        let o = Guarded::poisoned(runtime, extents.o, 0)?;
        let log_sum_exp = Guarded::poisoned(runtime, extents.log_sum_exp.unwrap_or(0), 0)?;
        let lengths = runtime.upload(&[200_i32, 200, 200])?;
        let operands = Operands {
            q: q.ptr(),
            k: k.ptr(),
            v: v.ptr(),
            o: o.ptr(),
            log_sum_exp: Some(log_sum_exp.ptr()),
            key_lengths: Some(lengths.ptr()),
            ..Operands::default()
        };
        let workspace = runtime.alloc(plan.workspace().bytes)?;
        let graph = runtime.capture(|_| {
            // SAFETY: every operand lives until the end of this function, which synchronises by reading.
            unsafe { plan.launch(&operands, workspace.ptr()) }.map_err(launch_error)
        })?;
        for values in [[200, 200, 200], [0, 1, 64], [65, 33, 128], [7, 199, 0]].into_iter().take(cx.scaled(4, 2)) {
            lengths.write(&values)?;
            graph.launch()?;
            let replayed = (o.read()?, log_sum_exp.read()?);
            inputs.key_lengths = Some(bytemuck::cast_slice(&values).to_vec());
            let expected = reference::attention(&problem, &inputs.host())?;
            let launched = Launched { o: replayed.0, log_sum_exp: Some(replayed.1), scores: None };
            launched.compare(&problem, &expected).with_context(|| format!("{dtype} lengths {values:?}"))?;
            let eager = Launched::run(runtime, plan.as_ref(), &inputs, 0)?;
            ensure!(eager == launched, "{dtype} lengths {values:?}: a replay differs from a launch");
            cx.count(1);
        }
    }
    Ok(())
}

fn launch_error(error: cuattn_core::LaunchError) -> curt::Error {
    match error {
        cuattn_core::LaunchError::Runtime(error) => error,
        other => panic!("a launch that fits was refused: {other}"),
    }
}

fn random(rng: &mut impl Rng, count: usize) -> Vec<f64> {
    (0..count).map(|_| Distribution::Normal.key(rng)).collect()
}

/// Two sequences whose tensors begin more than 2^31 elements apart.
fn far_apart(cx: &Context<'_>) -> anyhow::Result<()> {
    let runtime = cx.runtime();
    let far = (1_i64 << 31) + 64;
    for dtype in if cx.reduced() { &DType::ALL[1..2] } else { &DType::ALL[..] } {
        let shape = Shape { batch: 2, q_heads: 2, kv_heads: 1, q_len: 40, kv_len: 50, head_dim: 64, v_head_dim: 64 };
        let near = Problem::bhsd(shape, *dtype);
        let mut problem = near.clone();
        let spread = |strides: Strides| Strides { batch: far, ..strides };
        (problem.q, problem.k, problem.v, problem.o) = (spread(near.q), spread(near.k), spread(near.v), spread(near.o));
        let mut rng = cx.rng();
        let inputs = Inputs::draw(&near, Distribution::Normal, &mut rng)?;
        let expected = reference::attention(&near, &inputs.host())?;
        let extents = problem.extents()?;
        let place = |bytes: &[u8], span: usize| -> anyhow::Result<curt::DeviceBuffer> {
            let buffer = runtime.alloc(span)?;
            let half = bytes.len() / 2;
            for (sequence, part) in [&bytes[..half], &bytes[half..]].into_iter().enumerate() {
                let to = buffer.ptr().slice(sequence * far as usize * dtype.size(), half)?;
                // SAFETY: `to` is a checked part of the buffer.
                unsafe { runtime.htod(part, to)? };
            }
            Ok(buffer)
        };
        let (q, k, v) = (place(&inputs.q, extents.q)?, place(&inputs.k, extents.k)?, place(&inputs.v, extents.v)?);
        let o = place(&vec![0xff; expected.o.len() * dtype.size()], extents.o)?;
        let operands = Operands { q: q.ptr(), k: k.ptr(), v: v.ptr(), o: o.ptr(), ..Operands::default() };
        let plan = Flash.plan(runtime, &problem)?;
        // SAFETY: the buffers are those of the problem and live until `dtoh` has synchronised.
        unsafe { plan.launch(&operands, DevicePtr::default())? };
        let mut bytes = vec![0_u8; expected.o.len() * dtype.size()];
        let half = bytes.len() / 2;
        for (sequence, part) in bytes.chunks_mut(half).enumerate() {
            let from = o.ptr().slice(sequence * far as usize * dtype.size(), half)?;
            // SAFETY: `from` is a checked part of the buffer.
            unsafe { runtime.dtoh(from, part)? };
        }
        errors(&decode(&bytes, *dtype), &expected.o).within(&Tolerance::for_dtype(*dtype))?;
        cx.count(1);
    }
    Ok(())
}

/// 65,536 keys: the scores alone would be 137 GB in float32.
fn no_score_tensor(cx: &Context<'_>) -> anyhow::Result<()> {
    if cx.reduced() {
        return Ok(());
    }
    // A runtime of its own, so that its peak is this problem's alone.
    let runtime = Runtime::new(0)?;
    let len = 65_536;
    let shape = Shape { batch: 1, q_heads: 16, kv_heads: 16, q_len: len, kv_len: len, head_dim: 128, v_head_dim: 128 };
    let problem = Problem::bhsd(shape, DType::Bf16);
    let extents = problem.extents()?;
    let plan = Flash.plan(&runtime, &problem)?;
    let mut rng = cx.rng();
    let row: Vec<u8> = encode(&random(&mut rng, 1 << 20), DType::Bf16);
    let fill = |bytes: usize| -> anyhow::Result<curt::DeviceBuffer> {
        let buffer = runtime.alloc(bytes)?;
        for offset in (0..bytes).step_by(row.len()) {
            let to = buffer.ptr().slice(offset, row.len().min(bytes - offset))?;
            // SAFETY: `to` is a checked part of the buffer.
            unsafe { runtime.htod(&row[..to.len()], to)? };
        }
        Ok(buffer)
    };
    let (q, k, v) = (fill(extents.q)?, fill(extents.k)?, fill(extents.v)?);
    let o = runtime.alloc(extents.o)?;
    runtime.synchronize()?;
    let (free_before, _) = runtime.memory_info()?;
    let operands = Operands { q: q.ptr(), k: k.ptr(), v: v.ptr(), o: o.ptr(), ..Operands::default() };
    // SAFETY: the buffers are those of the problem and live until the stream has been synchronised.
    unsafe { plan.launch(&operands, DevicePtr::default())? };
    runtime.synchronize()?;
    let (free_after, _) = runtime.memory_info()?;
    let peak = runtime.memory_stats().peak_used_bytes;
    // Beside the operands and the workspace, a plan keeps the counters of its persistent blocks.
    let asked = extents.q + extents.k + extents.v + extents.o + plan.workspace().bytes;
    ensure!(peak <= asked + (64 << 10), "peak {peak} bytes, operands and workspace are {asked}");
    let grown = free_before.saturating_sub(free_after);
    ensure!(grown <= 64 << 20, "the launch itself took {grown} bytes of device memory");
    cx.count(1);
    Ok(())
}

fn refusals(cx: &Context<'_>) -> anyhow::Result<()> {
    let shape = Shape { batch: 1, q_heads: 2, kv_heads: 2, q_len: 16, kv_len: 16, head_dim: 64, v_head_dim: 64 };
    let problem = Problem::bhsd(shape, DType::F16);
    let plan = Flash.plan(cx.runtime(), &problem)?;
    let mut rng = cx.rng();
    let inputs = Inputs::draw(&problem, Distribution::Normal, &mut rng)?;
    let q = Guarded::upload(cx.runtime(), &inputs.q, 0)?;
    let o = Guarded::poisoned(cx.runtime(), problem.extents()?.o, 0)?;
    // K is missing and V too small.
    let operands = Operands { q: q.ptr(), v: q.ptr().slice(0, 64)?, o: o.ptr(), ..Operands::default() };
    // SAFETY: the launch is to be refused before it touches memory, which is what is tested.
    let Err(error) = (unsafe { plan.launch(&operands, DevicePtr::default()) }) else {
        bail!("a launch without keys was accepted");
    };
    ensure!(error.to_string().contains('k') && error.to_string().contains('v'), "both operands must be named: {error}");
    ensure!(o.read()?.iter().all(|&byte| byte == crate::tensors::POISON), "a refused launch wrote");
    Ok(())
}
