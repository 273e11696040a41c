//! Candidates on a device: checked against one another, then timed in turn.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use cuattn_core::{BiasKind, DType, Engine as _, Operands, Plan, Problem};
use cuattn_flash::tuning::{self, Candidate};
use cuattn_flash::{FlashPath, Path};
use curt::{DeviceBuffer, DevicePtr, Event, Graph, Runtime};
use half::{bf16, f16};

use super::{Case, CaseReport, Measured};

/// Bytes that are overwritten between launches: more than any L2 cache holds.
const FLUSH_BYTES: usize = 256 << 20;

/// Rounds of a case, within what its time allows.
const ROUNDS: std::ops::RangeInclusive<usize> = 5..=40;

/// A device, and what measurements on it share.
pub struct Bench {
    runtime: Runtime,
    flush: DeviceBuffer,
    /// Normal random numbers for operands, by their type and role.
    inputs: HashMap<(&'static str, usize), DeviceBuffer>,
}

/// Device memory of the launches for one problem.
struct Memory {
    operands: Operands,
    output: DeviceBuffer,
    workspace: DeviceBuffer,
}

/// A candidate that compiled, agreed with the reference, and was captured.
struct Contestant {
    /// Its index among the candidates.
    index: usize,
    graph: Graph,
    times: Vec<f32>,
}

impl Bench {
    /// How times are taken, for the report.
    pub const METHOD: &str = "median over replays of a CUDA graph of one launch, between CUDA events, the L2 cache \
        overwritten before each; the candidates of a case in turn, the first of a round changing from round to round";

    /// A bench on a runtime.
    ///
    /// # Errors
    ///
    /// Where the device has no memory left.
    pub fn new(runtime: Runtime) -> anyhow::Result<Self> {
        let flush = runtime.alloc(FLUSH_BYTES)?;
        Ok(Self { runtime, flush, inputs: HashMap::new() })
    }

    /// Measures every candidate of a case, in about `time`. What goes wrong stands in the report.
    pub fn measure(&mut self, case: &Case, time: Duration) -> CaseReport {
        let mut report = CaseReport {
            case: case.name.clone(),
            group: case.group.clone(),
            row: None,
            flops: case.problem.work().flops,
            error: None,
            candidates: Vec::new(),
        };
        if let Err(error) = self.try_measure(case, time, &mut report) {
            report.error = Some(format!("{error:#}"));
        }
        report
    }

    fn try_measure(&mut self, case: &Case, time: Duration, report: &mut CaseReport) -> anyhow::Result<()> {
        let begun = Instant::now();
        let problem = &case.problem;
        let candidates = tuning::candidates(self.runtime.capabilities(), problem, case.path)?;
        report.row = candidates.iter().find_map(Candidate::row);
        let measured = |one: &Candidate| Measured {
            tile: one.tile().into(),
            same_tile: one.same_tile().map(Into::into),
            is_choice: one.is_choice(),
            ..Measured::default()
        };
        report.candidates = candidates.iter().map(measured).collect();
        let plans = self.plan_all(&candidates);
        let workspace = plans.iter().flatten().map(|plan| plan.workspace().bytes).max().unwrap_or(0);
        let memory = self.memory(problem, workspace)?;
        // Another path's result, so that not all are wrong together; among simt's own candidates, the first one's.
        let mut reference = match case.path {
            Path::Simt => None,
            _ => {
                let plan = FlashPath(Path::Simt).plan(&self.runtime, problem)?;
                Some(self.result(plan.as_ref(), &memory, problem)?)
            }
        };
        let mut contestants = Vec::new();
        for (index, plan) in plans.iter().enumerate() {
            let measured = &mut report.candidates[index];
            match self.qualify(plan, &memory, problem, &mut reference, measured) {
                Ok(graph) => contestants.push(Contestant { index, graph, times: Vec::new() }),
                Err(error) => measured.error = Some(format!("{error:#}")),
            }
        }
        ensure!(!contestants.is_empty(), "no candidate computes the problem");
        self.race(&mut contestants, time.saturating_sub(begun.elapsed()))?;
        for mut contestant in contestants {
            let measured = &mut report.candidates[contestant.index];
            contestant.times.sort_by(f32::total_cmp);
            let at = |part: usize| f64::from(contestant.times[contestant.times.len() * part / 4]);
            measured.launches = contestant.times.len();
            measured.ms = Some(at(2));
            measured.spread = Some((at(3) - at(1)) / 2.0 / at(2));
            measured.tflops = Some(report.flops / at(2) / 1e9);
        }
        Ok(())
    }

    /// Compiles all candidates, as many at a time as the machine has processors: compilation is most of a run.
    fn plan_all(&self, candidates: &[Candidate]) -> Vec<anyhow::Result<Box<dyn Plan>>> {
        let plans: Vec<_> = candidates.iter().map(|_| Mutex::new(None)).collect();
        let next = AtomicUsize::new(0);
        let workers = std::thread::available_parallelism().map_or(1, usize::from).min(candidates.len());
        std::thread::scope(|scope| {
            for _ in 0..workers {
                scope.spawn(|| {
                    while let Some(candidate) = candidates.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let plan = candidate.plan(&self.runtime);
                        let index = candidates.iter().position(|one| std::ptr::eq(one, candidate));
                        if let Some(place) = index.and_then(|index| plans.get(index)) {
                            *place.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(plan);
                        }
                    }
                });
            }
        });
        let made = |plan: Mutex<Option<Result<_, _>>>| {
            let plan = plan.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
            Ok(plan.context("the thread that made the plan is gone")??)
        };
        plans.into_iter().map(made).collect()
    }

    /// Runs a candidate once, compares its output with the reference, and captures a launch of it.
    fn qualify(
        &self,
        plan: &anyhow::Result<Box<dyn Plan>>,
        memory: &Memory,
        problem: &Problem,
        reference: &mut Option<Vec<f32>>,
        measured: &mut Measured,
    ) -> anyhow::Result<Graph> {
        let plan = plan.as_ref().map_err(|error| anyhow::anyhow!("{error:#}"))?;
        measured.details = plan.explain().details;
        let result = self.result(plan.as_ref(), memory, problem)?;
        match reference {
            None => {
                ensure!(result.iter().all(|x| x.is_finite()), "its output is not finite");
                *reference = Some(result);
            }
            Some(reference) => {
                let distance = relative_l2(&result, reference);
                measured.relative_l2 = distance.is_finite().then_some(distance);
                let most = tolerance(problem.dtype);
                ensure!(distance <= most, "its output is off by {distance:e}, more than {most:e}");
            }
        }
        let captured: Result<Graph, anyhow::Error> = self.runtime.capture(|_| {
            // SAFETY: the operands are the bench's own, of the problem's extents, and outlive every replay.
            unsafe { plan.launch(&memory.operands, memory.workspace.ptr()) }?;
            Ok(())
        });
        captured
    }

    /// The output of one launch, over one that was poisoned.
    fn result(&self, plan: &dyn Plan, memory: &Memory, problem: &Problem) -> anyhow::Result<Vec<f32>> {
        let Memory { operands, output, workspace } = memory;
        output.fill(0xff)?;
        // SAFETY: the operands are the bench's own and of the problem's extents.
        unsafe { plan.launch(operands, workspace.ptr()) }?;
        Ok(match problem.dtype {
            DType::F16 => output.read::<f16>()?.into_iter().map(f16::to_f32).collect(),
            DType::Bf16 => output.read::<bf16>()?.into_iter().map(bf16::to_f32).collect(),
            _ => output.read::<f32>()?,
        })
    }

    /// Times the contestants in turn until the time is over.
    fn race(&self, contestants: &mut [Contestant], time: Duration) -> anyhow::Result<()> {
        let begun = Instant::now();
        // The first round warms up, and is not counted.
        for round in 0..=*ROUNDS.end() {
            let counted = round.saturating_sub(1);
            if counted >= *ROUNDS.start() && begun.elapsed() >= time {
                break;
            }
            let mut marks = Vec::with_capacity(contestants.len());
            for turn in 0..contestants.len() {
                let index = (turn + round) % contestants.len();
                let (start, end) = (self.runtime.event()?, self.runtime.event()?);
                self.flush.fill(0)?;
                start.record(&self.runtime)?;
                contestants[index].graph.launch()?;
                end.record(&self.runtime)?;
                marks.push((index, start, end));
            }
            self.runtime.synchronize()?;
            for (index, start, end) in marks {
                if round > 0 {
                    contestants[index].times.push(Event::elapsed_ms(&start, &end)?);
                }
            }
        }
        Ok(())
    }

    /// What launches for a problem use. Inputs are kept from case to case, and only ever grow.
    fn memory(&mut self, problem: &Problem, workspace: usize) -> anyhow::Result<Memory> {
        let shape = problem.shape;
        let q = self.input("q", problem.dtype, shape.batch * shape.q_heads * shape.q_len * shape.head_dim)?;
        let k = self.input("k", problem.dtype, shape.batch * shape.kv_heads * shape.kv_len * shape.head_dim)?;
        let v = self.input("v", problem.dtype, shape.batch * shape.kv_heads * shape.kv_len * shape.v_head_dim)?;
        let bias = match problem.mask.bias {
            None => None,
            Some(bias) => {
                let elements = shape.q_len * bias.keys;
                Some(match bias.kind {
                    BiasKind::Boolean => self.booleans(elements)?,
                    BiasKind::Additive(dtype) => self.input("bias", dtype, elements)?,
                })
            }
        };
        let elements = shape.batch * shape.q_heads * shape.q_len * shape.v_head_dim;
        let output = self.runtime.alloc(elements * problem.dtype.size())?;
        let operands = Operands { q, k, v, o: output.ptr(), bias, ..Operands::default() };
        Ok(Memory { operands, output, workspace: self.runtime.alloc(workspace)? })
    }

    fn input(&mut self, role: &'static str, dtype: DType, elements: usize) -> anyhow::Result<DevicePtr> {
        let runtime = self.runtime.clone();
        let seed = role.bytes().fold(1, |seed: u64, byte| seed * 31 + u64::from(byte));
        self.kept(role, dtype.size(), elements * dtype.size(), || {
            let values = normals(seed, elements);
            match dtype {
                DType::F16 => runtime.upload(&values.map(f16::from_f32).collect::<Vec<_>>()),
                DType::Bf16 => runtime.upload(&values.map(bf16::from_f32).collect::<Vec<_>>()),
                _ => runtime.upload(&values.collect::<Vec<_>>()),
            }
        })
    }

    /// Of eight keys, one is masked.
    fn booleans(&mut self, elements: usize) -> anyhow::Result<DevicePtr> {
        let runtime = self.runtime.clone();
        self.kept("boolean bias", 1, elements, || {
            let seen: Vec<u8> =
                (0..elements as u64).map(|index| u8::from(!scrambled(index).is_multiple_of(8))).collect();
            runtime.upload(&seen)
        })
    }

    fn kept(
        &mut self,
        role: &'static str,
        size: usize,
        bytes: usize,
        make: impl FnOnce() -> curt::Result<DeviceBuffer>,
    ) -> anyhow::Result<DevicePtr> {
        let key = (role, size);
        if self.inputs.get(&key).is_none_or(|buffer| buffer.len() < bytes) {
            self.inputs.remove(&key);
            self.inputs.insert(key, make()?);
        }
        self.inputs.get(&key).map(DeviceBuffer::ptr).context("the buffer was just made")
    }
}

/// How far outputs of different order of sums may be apart, in relative L2.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2e-3,
        DType::Bf16 => 1e-2,
        _ => 1e-5,
    }
}

fn relative_l2(result: &[f32], reference: &[f32]) -> f64 {
    let squares = |(difference, norm): (f64, f64), (&x, &r): (&f32, &f32)| {
        let (x, r) = (f64::from(x), f64::from(r));
        (difference + (x - r) * (x - r), norm + r * r)
    };
    let (difference, norm) = result.iter().zip(reference).fold((0.0, 0.0), squares);
    (difference / norm).sqrt()
}

/// The finaliser of SplitMix64.
fn scrambled(index: u64) -> u64 {
    let mut x = index.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Normal random numbers, repeated after a prime number of them, so that no two rows of a tensor are alike.
fn normals(seed: u64, count: usize) -> impl Iterator<Item = f32> {
    const PERIOD: usize = 1_048_573;
    let drawn: Vec<f32> = (0..PERIOD.min(count) as u64)
        .map(|index| {
            let bits = scrambled(index ^ seed << 32);
            let uniform = |bits: u64| ((bits & 0xffff_ffff) as f32 + 0.5) / 4_294_967_296.0;
            (-2.0 * uniform(bits).ln()).sqrt() * (std::f32::consts::TAU * uniform(bits >> 32)).cos()
        })
        .collect();
    (0..count).map(move |index| drawn[index % drawn.len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_numbers_are_normal_and_differ_by_seed() {
        let count = 100_000;
        let values: Vec<_> = normals(1, count).map(f64::from).collect();
        let mean = values.iter().sum::<f64>() / count as f64;
        let variance = values.iter().map(|x| x * x).sum::<f64>() / count as f64;
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.02, "{mean} {variance}");
        assert!(values.iter().all(|x| x.is_finite()));
        assert!(normals(1, count).zip(normals(2, count)).filter(|(a, b)| a == b).count() < count / 100);
    }

    #[test]
    fn a_poisoned_or_different_output_is_not_taken_for_right() {
        let right = vec![1.0, 2.0, 3.0];
        assert_eq!(relative_l2(&right, &right), 0.0);
        assert!(relative_l2(&[1.0, 2.0, 3.3], &right) > tolerance(DType::Bf16));
        let within = |distance: f64| distance <= tolerance(DType::Bf16);
        assert!(!within(relative_l2(&[f32::NAN, 2.0, 3.0], &right)));
    }
}
