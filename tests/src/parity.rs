//! One problem through one engine, against the float64 reference.

use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context as _, ensure};
use cuattn_core::reference::{self, HostOutput, decode, encode};
use cuattn_core::{Alignment, DType, Engine, Mask, Operands, Plan, Problem, ScoreStage, Shape};
use curt::Runtime;
use rand::Rng;
use rand::seq::IndexedRandom as _;

use crate::Context;
use crate::compare::{self, Errors, Tolerance, errors};
use crate::inputs::Inputs;
use crate::space::Space;
use crate::tensors::{Distribution, Guarded, POISON};

/// What is not in a problem and still differs from one launch to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conditions {
    /// How inputs are distributed.
    pub distribution: Distribution,
    /// How many elements q, k, v and o are off the alignment of an allocation.
    pub misaligned_elements: usize,
}

impl Conditions {
    /// Any distribution; one in eight launches off alignment.
    ///
    /// # Panics
    ///
    /// Never: there are distributions to choose from.
    pub fn draw(rng: &mut impl Rng) -> Self {
        let distribution = *Distribution::ALL.choose(rng).expect("there are distributions");
        Self { distribution, misaligned_elements: if rng.random_ratio(1, 8) { 1 } else { 0 } }
    }
}

/// Draws `count` problems of `space` and checks each, at sizes that suit the run: [`check_parity`] says how.
///
/// # Errors
///
/// With the first problem that fails.
pub fn check_space(cx: &Context<'_>, engine: &dyn Engine, space: &Space, count: usize) -> anyhow::Result<()> {
    let mut space = if cx.reduced() { space.clone().small() } else { space.clone() };
    let mut rng = cx.rng();
    space.v_partner = rng.random_range(1..=space.head_dims.len());
    let problems: Vec<_> = space.problems(&mut rng).take(count).collect();
    plan_ahead(cx.runtime(), engine, &problems);
    for problem in &problems {
        check_parity(cx, engine, problem)?;
    }
    Ok(())
}

/// Launches one plan for each element type fifty times, over `kv_len` keys: every launch must give the bits of the first.
///
/// # Errors
///
/// With the first launch that differs.
pub fn check_repeats(cx: &Context<'_>, engine: &dyn Engine, kv_len: usize) -> anyhow::Result<()> {
    let mut rng = cx.rng();
    for dtype in DType::ALL {
        let shape = Shape { batch: 2, q_heads: 8, kv_heads: 2, q_len: 257, kv_len, head_dim: 128, v_head_dim: 128 };
        // Still several tiles of rows and as many keys, and enough for float32 on tensor cores.
        let shape = if cx.reduced() { Shape { batch: 1, q_heads: 4, kv_heads: 1, q_len: 130, ..shape } } else { shape };
        let mut problem = Problem::bshd(shape, dtype);
        problem.mask = Mask::causal(Alignment::BottomRight);
        problem.wants_log_sum_exp = true;
        let inputs = Inputs::draw(&problem, Distribution::Peaky, &mut rng)?;
        let plan = engine.plan(cx.runtime(), &problem)?;
        let first = Launched::run(cx.runtime(), plan.as_ref(), &inputs, 0)?;
        for launch in 1..cx.scaled(50, 3) {
            let again = Launched::run(cx.runtime(), plan.as_ref(), &inputs, 0)?;
            ensure!(again == first, "{dtype}: launch {launch} differs from the first");
        }
        cx.count(1);
    }
    Ok(())
}

/// Makes every plan once, on all cores: nearly every random problem wants a kernel variant of its own, and one compiler after
/// another would take most of a run. What fails here fails again, and is reported, where the problem is checked.
pub fn plan_ahead(runtime: &Runtime, engine: &dyn Engine, problems: &[Problem]) {
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(problems.len());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(problem) = problems.get(next.fetch_add(1, Ordering::Relaxed)) {
                    drop(engine.plan(runtime, problem));
                }
            });
        }
    });
}

/// Runs `problem` with random inputs through `engine` and through the reference, and compares everything that it outputs.
///
/// Outputs and workspace are poison before the launch, every tensor lies between guard bytes, inputs must be untouched after
/// it, bytes between output rows too, and a second launch must give the same bits.
///
/// # Errors
///
/// With the problem and everything that is wrong with the first output that is.
pub fn check_parity(cx: &Context<'_>, engine: &dyn Engine, problem: &Problem) -> anyhow::Result<()> {
    let mut rng = cx.rng();
    let conditions = Conditions::draw(&mut rng);
    check_under(cx, engine, problem, conditions, &mut rng)
}

/// [`check_parity`] under given conditions.
///
/// # Errors
///
/// As [`check_parity`].
pub fn check_under(
    cx: &Context<'_>,
    engine: &dyn Engine,
    problem: &Problem,
    conditions: Conditions,
    rng: &mut impl Rng,
) -> anyhow::Result<()> {
    let inputs = Inputs::draw(problem, conditions.distribution, rng)?;
    check_inputs(cx, engine, problem, &inputs, conditions.misaligned_elements)
        .with_context(|| format!("{} with {conditions:?} on {problem:?}", engine.id()))
}

/// [`check_parity`] with given inputs, against the reference over the same bytes.
///
/// # Errors
///
/// As [`check_parity`].
pub fn check_inputs(
    cx: &Context<'_>,
    engine: &dyn Engine,
    problem: &Problem,
    inputs: &Inputs,
    misaligned_elements: usize,
) -> anyhow::Result<()> {
    let expected = reference::attention(problem, &inputs.host()).context("the reference refuses the problem")?;
    let plan = engine.plan(cx.runtime(), problem).context("no plan")?;
    ensure!(plan.problem() == problem, "the plan is for another problem: {:?}", plan.problem());
    let path = plan.explain().path;
    let launched = Launched::run(cx.runtime(), plan.as_ref(), inputs, misaligned_elements)
        .with_context(|| format!("path {path}"))?;
    let worst = launched.compare(problem, &expected).with_context(|| format!("path {path}"))?;
    if !cx.reduced() {
        let again = Launched::run(cx.runtime(), plan.as_ref(), inputs, misaligned_elements)?;
        ensure!(again == launched, "path {path}: two launches of one plan on one input differ");
    }
    cx.count(1);
    cx.record_path(&path);
    cx.record_error_of(problem.dtype, worst.relative_l2, worst.worst_element);
    Ok(())
}

/// What a launch wrote.
#[derive(Clone, Debug, PartialEq)]
pub struct Launched {
    /// Output, in the problem's strides.
    pub o: Vec<u8>,
    /// Log-sum-exp.
    pub log_sum_exp: Option<Vec<u8>>,
    /// Scores.
    pub scores: Option<Vec<u8>>,
}

impl Launched {
    /// Launches `plan` on poisoned outputs and a poisoned workspace, and reads what it wrote.
    ///
    /// # Errors
    ///
    /// If the launch is refused or fails, or memory was written that is not the launch's to write.
    pub fn run(
        runtime: &Runtime,
        plan: &dyn Plan,
        inputs: &Inputs,
        misaligned_elements: usize,
    ) -> anyhow::Result<Self> {
        Self::run_with(runtime, plan, inputs, misaligned_elements, |_| ())
    }

    /// [`Launched::run`] with operands that `complete` has added what inputs do not hold to: buffers of a score modification.
    ///
    /// # Errors
    ///
    /// As [`Launched::run`].
    pub fn run_with(
        runtime: &Runtime,
        plan: &dyn Plan,
        inputs: &Inputs,
        misaligned_elements: usize,
        complete: impl FnOnce(&mut Operands),
    ) -> anyhow::Result<Self> {
        let problem = plan.problem();
        let extents = problem.extents()?;
        let misalign = misaligned_elements * problem.dtype.size();
        let upload =
            |bytes: &Option<Vec<u8>>| bytes.as_ref().map(|bytes| Guarded::upload(runtime, bytes, 0)).transpose();
        let output = |bytes: Option<usize>| bytes.map(|bytes| Guarded::poisoned(runtime, bytes, 0)).transpose();
        let q = Guarded::upload(runtime, &inputs.q, misalign)?;
        let k = Guarded::upload(runtime, &inputs.k, misalign)?;
        let v = Guarded::upload(runtime, &inputs.v, misalign)?;
        let o = Guarded::poisoned(runtime, extents.o, misalign)?;
        let [bias, key_lengths, query_offsets, sinks, page_table] =
            [&inputs.bias, &inputs.key_lengths, &inputs.query_offsets, &inputs.sinks, &inputs.page_table].map(upload);
        let (bias, key_lengths, query_offsets) = (bias?, key_lengths?, query_offsets?);
        let (sinks, page_table) = (sinks?, page_table?);
        let log_sum_exp = output(extents.log_sum_exp)?;
        let scores = output(extents.scores)?;
        let size = plan.workspace();
        ensure!(size.align <= 256 || size.bytes == 0, "a workspace aligned to {} bytes", size.align);
        let workspace = Guarded::poisoned(runtime, size.bytes, 0)?;
        let ptr = |tensor: &Option<Guarded>| tensor.as_ref().map(Guarded::ptr);
        let mut operands = Operands {
            q: q.ptr(),
            k: k.ptr(),
            v: v.ptr(),
            o: o.ptr(),
            bias: ptr(&bias),
            key_lengths: ptr(&key_lengths),
            query_offsets: ptr(&query_offsets),
            sinks: ptr(&sinks),
            log_sum_exp: ptr(&log_sum_exp),
            scores: ptr(&scores),
            page_table: ptr(&page_table),
            ..Operands::default()
        };
        complete(&mut operands);
        // SAFETY: all operands and the workspace are allocations of this runtime that live until the reads below have
        // synchronised with its stream, and nothing else uses them.
        unsafe { plan.launch(&operands, workspace.ptr()) }.context("the launch failed")?;

        let launched = Self {
            o: o.read().context("o")?,
            log_sum_exp: log_sum_exp.as_ref().map(Guarded::read).transpose().context("log-sum-exp")?,
            scores: scores.as_ref().map(Guarded::read).transpose().context("scores")?,
        };
        workspace.read().context("workspace")?;
        for (name, tensor, bytes) in [("q", &q, &inputs.q), ("k", &k, &inputs.k), ("v", &v, &inputs.v)] {
            ensure!(tensor.read().context(name)? == *bytes, "the launch wrote into its input {name}");
        }
        Ok(launched)
    }

    /// Compares everything with the reference, and gives the errors of `o`.
    ///
    /// # Errors
    ///
    /// With what is wrong.
    pub fn compare(&self, problem: &Problem, expected: &HostOutput) -> anyhow::Result<Errors> {
        let tolerance = Tolerance::for_columns(problem.dtype, problem.shape.head_dim);
        let gaps_untouched = gaps(problem).all(|byte| self.o[byte] == POISON);
        ensure!(gaps_untouched, "the launch wrote between the rows of o");
        let o = HostOutput::read_o(problem, &self.o)?;
        let worst = errors(&o, &expected.o);
        worst.within(&tolerance).with_context(|| format!("o ({})", locate(problem, worst.worst_index)))?;
        for (row, (o, expected)) in
            o.chunks(problem.shape.v_head_dim).zip(expected.o.chunks(problem.shape.v_head_dim)).enumerate()
        {
            if expected.iter().all(|&value| value == 0.0) {
                ensure!(o.iter().all(|&value| value == 0.0), "row {row} of o sees no key, and is not all zeros: {o:?}");
            }
        }
        if let Some(bytes) = &self.log_sum_exp {
            let actual: Vec<f32> = bytes.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect();
            compare::log_sum_exp(&actual, &expected.log_sum_exp, tolerance.log_sum_exp)?;
        }
        if let (Some(bytes), Some(expected), Some(output)) = (&self.scores, &expected.scores, problem.scores) {
            // What the output's type cannot hold is infinite in it: -FLT_MAX, where a bias of huge negatives ends, is -inf as bf16.
            let expected = round_overflows(expected, output.dtype);
            compare_scores(&decode(bytes, output.dtype), &expected, output.stage, problem.dtype)
                .with_context(|| format!("scores ({:?})", output.stage))?;
        }
        Ok(worst)
    }
}

/// The same values, but infinite where the type has no finite number for them.
fn round_overflows(values: &[f64], dtype: DType) -> Vec<f64> {
    let rounded = decode(&encode(values, dtype), dtype);
    values.iter().zip(rounded).map(|(&value, rounded)| if rounded.is_infinite() { rounded } else { value }).collect()
}

/// Compares scores: masked ones are -inf in both, the others are compared as a tensor.
fn compare_scores(actual: &[f64], expected: &[f64], stage: ScoreStage, dtype: DType) -> anyhow::Result<()> {
    let (mut finite_actual, mut finite_expected) = (Vec::new(), Vec::new());
    for (index, (&actual, &expected)) in actual.iter().zip(expected).enumerate() {
        if expected == f64::NEG_INFINITY {
            ensure!(actual == expected, "{stage:?} score {index} is masked and must be -inf, but is {actual}");
            continue;
        }
        finite_actual.push(actual);
        finite_expected.push(expected);
    }
    errors(&finite_actual, &finite_expected).within(&Tolerance::for_dtype(dtype))
}

/// The element of `o` at a contiguous index, for people.
fn locate(problem: &Problem, index: usize) -> String {
    let Shape { q_heads, q_len, v_head_dim, .. } = problem.shape;
    let (row, column) = (index / v_head_dim.max(1), index % v_head_dim.max(1));
    let (head, row) = (row / q_len.max(1), row % q_len.max(1));
    format!("batch {}, head {}, row {row}, column {column}", head / q_heads.max(1), head % q_heads.max(1))
}

/// The bytes of `o` that belong to no row.
fn gaps(problem: &Problem) -> impl Iterator<Item = usize> {
    let Shape { batch, q_heads, q_len, v_head_dim, .. } = problem.shape;
    let size = problem.dtype.size();
    let mut rows: Vec<_> = (0..batch)
        .flat_map(|b| (0..q_heads).flat_map(move |h| (0..q_len).map(move |i| (b, h, i))))
        .map(|(b, h, i)| [(b, problem.o.batch), (h, problem.o.head), (i, problem.o.row)])
        .map(|place| place.iter().map(|&(index, stride)| index * stride as usize).sum::<usize>() * size)
        .collect();
    rows.sort_unstable();
    let row_bytes = v_head_dim * size;
    let ends: Vec<_> = rows.iter().map(|start| start + row_bytes).collect();
    ends.into_iter().zip(rows.into_iter().skip(1)).flat_map(|(end, next)| end..next)
}

#[cfg(test)]
mod tests {
    use cuattn_core::{Alignment, Mask};
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;
    use crate::space::Layout;

    fn problem(layout: Layout) -> Problem {
        let shape = Shape { batch: 2, q_heads: 4, kv_heads: 2, q_len: 5, kv_len: 3, head_dim: 8, v_head_dim: 8 };
        let mut problem = Problem::with_strides(shape, DType::F16, layout.strides(shape));
        problem.mask = Mask::causal(Alignment::BottomRight);
        problem.wants_log_sum_exp = true;
        problem
    }

    /// What a faultless launch would write: the reference's own result.
    fn faultless(problem: &Problem) -> (Launched, HostOutput) {
        let inputs = Inputs::draw(problem, Distribution::Normal, &mut StdRng::seed_from_u64(1)).unwrap();
        let expected = reference::attention(problem, &inputs.host()).unwrap();
        let mut o = vec![POISON; problem.extents().unwrap().o];
        expected.write_o(problem, &mut o).unwrap();
        let log_sum_exp = Some(reference::encode(&expected.log_sum_exp, DType::F32));
        (Launched { o, log_sum_exp, scores: None }, expected)
    }

    #[test]
    fn the_reference_passes_in_every_layout() {
        for layout in Layout::ALL {
            let problem = problem(layout);
            let (launched, expected) = faultless(&problem);
            let worst = launched.compare(&problem, &expected).unwrap();
            assert!(worst.relative_l2 > 0.0 && worst.relative_l2 < 1e-3, "{layout:?}: {worst:?}");
        }
    }

    #[test]
    fn poison_that_was_not_overwritten_fails() {
        let problem = problem(Layout::Bhsd);
        let (mut launched, expected) = faultless(&problem);
        let last = launched.o.len() - 2;
        launched.o[last..].fill(POISON);
        let error = launched.compare(&problem, &expected).unwrap_err();
        assert!(format!("{error:#}").contains("batch 1, head 3, row 4, column 7"), "{error:#}");
    }

    #[test]
    fn a_dead_row_that_is_not_zero_fails() {
        let problem = problem(Layout::Bhsd);
        let (mut launched, expected) = faultless(&problem);
        // 5 rows over 3 keys: positions -2 and -1 see nothing.
        launched.o[..2].copy_from_slice(&half::f16::from_f32(1e-6).to_ne_bytes());
        assert!(launched.compare(&problem, &expected).unwrap_err().to_string().contains("sees no key"));
    }

    #[test]
    fn a_log_sum_exp_that_is_off_fails() {
        let problem = problem(Layout::Bhsd);
        let (mut launched, expected) = faultless(&problem);
        launched.log_sum_exp.as_mut().unwrap()[..4].copy_from_slice(&(-1e30_f32).to_ne_bytes());
        assert!(launched.compare(&problem, &expected).is_err());
    }

    #[test]
    fn a_byte_between_rows_fails() {
        let problem = problem(Layout::OddRows);
        let (mut launched, expected) = faultless(&problem);
        launched.o[8 * 2] = 0;
        assert!(launched.compare(&problem, &expected).unwrap_err().to_string().contains("between the rows"));
    }

    #[test]
    fn a_score_that_bf16_cannot_hold_is_infinite() {
        let huge = -f64::from(f32::MAX);
        assert_eq!(
            round_overflows(&[huge, 1.1, f64::NEG_INFINITY], DType::Bf16),
            [f64::NEG_INFINITY, 1.1, f64::NEG_INFINITY]
        );
        assert_eq!(round_overflows(&[huge], DType::F32), [huge]);
    }

    #[test]
    fn scores_must_agree_on_what_is_masked() {
        let inf = f64::NEG_INFINITY;
        let compare =
            |actual: &[f64], expected: &[f64]| compare_scores(actual, expected, ScoreStage::Masked, DType::F32);
        assert!(compare(&[inf, 1.0], &[inf, 1.0]).is_ok());
        assert!(compare(&[-1e30, 1.0], &[inf, 1.0]).is_err());
        assert!(compare(&[inf, 1.0], &[0.0, 1.0]).is_err());
        assert!(compare(&[inf, f64::NAN], &[inf, 1.0]).is_err());
    }
}
