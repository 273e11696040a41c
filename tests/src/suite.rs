//! What a suite is made of, and what a case is given.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;

use cuattn_core::DType;
use curt::Runtime;
use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::report::WorstError;

type Run = Box<dyn Fn(&Context<'_>) -> anyhow::Result<()> + Send + Sync>;

/// One named check of a suite.
pub struct Case {
    /// Its name, unique in its suite.
    pub name: &'static str,
    /// Whether it measures what the whole machine shares, so that nothing may run beside it.
    pub alone: bool,
    run: Run,
}

impl Case {
    /// Runs it once.
    ///
    /// # Errors
    ///
    /// Whatever the case found wrong.
    pub fn run(&self, cx: &Context<'_>) -> anyhow::Result<()> {
        (self.run)(cx)
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Case").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Cases about one thing, run on one runtime where they share a process. None depends on another.
#[derive(Debug)]
pub struct Suite {
    name: &'static str,
    kernels: Vec<&'static str>,
    alone: bool,
    cases: Vec<Case>,
}

impl Suite {
    /// A suite without cases.
    pub fn new(name: &'static str) -> Self {
        Self { name, kernels: Vec::new(), alone: false, cases: Vec::new() }
    }

    /// Says which kernel sources the suite exercises, by path prefix (`"softmax/"`). A report of this suite is stale once one
    /// of them changes.
    #[must_use]
    pub fn kernels(mut self, prefixes: &[&'static str]) -> Self {
        self.kernels.extend(prefixes);
        self
    }

    /// Keeps the cases in one process, and everything else off the machine meanwhile: for cases that are short and measure time.
    #[must_use]
    pub fn alone(mut self) -> Self {
        self.alone = true;
        self
    }

    /// Adds a case.
    ///
    /// # Panics
    ///
    /// If the suite has a case of that name: two cases of one name cannot be told apart in a report.
    #[must_use]
    pub fn case(
        self,
        name: &'static str,
        run: impl Fn(&Context<'_>) -> anyhow::Result<()> + Send + Sync + 'static,
    ) -> Self {
        self.push(Case { name, alone: false, run: Box::new(run) })
    }

    /// Adds a case beside which nothing may run, such as one that measures the device's free memory.
    ///
    /// # Panics
    ///
    /// As [`Suite::case`].
    #[must_use]
    pub fn case_alone(
        self,
        name: &'static str,
        run: impl Fn(&Context<'_>) -> anyhow::Result<()> + Send + Sync + 'static,
    ) -> Self {
        self.push(Case { name, alone: true, run: Box::new(run) })
    }

    fn push(mut self, case: Case) -> Self {
        let name = case.name;
        assert!(self.cases.iter().all(|other| other.name != name), "suite {} has two cases named {name}", self.name);
        self.cases.push(case);
        self
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The kernel sources it exercises, by path prefix.
    pub fn kernel_prefixes(&self) -> &[&'static str] {
        &self.kernels
    }

    /// Whether its cases stay in one process with nothing beside it.
    pub fn is_alone(&self) -> bool {
        self.alone
    }

    /// Its cases.
    pub fn cases(&self) -> &[Case] {
        &self.cases
    }
}

/// What a case is given: the device, random numbers, and a place to put what it measured.
#[derive(Debug)]
pub struct Context<'a> {
    runtime: &'a Runtime,
    seed: u64,
    streams: Cell<u64>,
    reduced: bool,
    problems: Cell<u64>,
    worst: RefCell<BTreeMap<String, WorstError>>,
    paths: RefCell<BTreeMap<String, u64>>,
}

impl<'a> Context<'a> {
    /// A context for one run of one case. `seed` is the run's; each case draws its own numbers from it.
    pub fn new(runtime: &'a Runtime, suite: &str, case: &str, seed: u64, reduced: bool) -> Self {
        Self {
            runtime,
            seed: case_seed(suite, case, seed),
            streams: Cell::new(0),
            reduced,
            problems: Cell::new(0),
            worst: RefCell::default(),
            paths: RefCell::default(),
        }
    }

    /// The runtime, one for all cases of a suite that share a process.
    pub fn runtime(&self) -> &'a Runtime {
        self.runtime
    }

    /// A new random number generator, different at each call. What it yields depends on the run's seed, the suite's and case's
    /// names and how many generators the case took before, so a case run alone draws what it drew in the whole run.
    pub fn rng(&self) -> StdRng {
        let stream = self.streams.get();
        self.streams.set(stream + 1);
        StdRng::seed_from_u64(self.seed.wrapping_add(stream.wrapping_mul(0x9E37_79B9_7F4A_7C15)))
    }

    /// Whether the suite runs under compute-sanitizer, which is hundreds of times slower: then only small shapes and few
    /// problems, yet every path.
    pub fn reduced(&self) -> bool {
        self.reduced
    }

    /// `full`, or at most `reduced` of it under [`Context::reduced`].
    pub fn scaled(&self, full: usize, reduced: usize) -> usize {
        if self.reduced { full.min(reduced) } else { full }
    }

    /// Counts `n` more generated problems.
    pub fn count(&self, n: u64) {
        self.problems.set(self.problems.get() + n);
    }

    /// Notes an error against the reference. NaN counts as infinite.
    pub fn record_error(&self, worst_l2: f64, worst_element: f64) {
        self.record("all", worst_l2, worst_element);
    }

    /// [`Context::record_error`], kept apart by element type: one worst error over f32 and bf16 would say nothing about f32.
    pub fn record_error_of(&self, dtype: DType, worst_l2: f64, worst_element: f64) {
        self.record(&dtype.to_string(), worst_l2, worst_element);
    }

    fn record(&self, label: &str, worst_l2: f64, worst_element: f64) {
        self.worst
            .borrow_mut()
            .entry(label.to_owned())
            .or_default()
            .include(WorstError { relative_l2: worst_l2, element: worst_element });
    }

    /// Counts a problem for the path of an engine that did it, so that a report shows which paths were tested.
    pub fn record_path(&self, path: &str) {
        *self.paths.borrow_mut().entry(path.to_owned()).or_default() += 1;
    }

    /// What the case counted and recorded, leaving nothing behind.
    pub(crate) fn take_measurements(&self) -> Measurements {
        Measurements { problems: self.problems.take(), worst: self.worst.take(), paths: self.paths.take() }
    }
}

/// What a case counted and recorded.
#[derive(Debug, Default)]
pub(crate) struct Measurements {
    pub(crate) problems: u64,
    pub(crate) worst: BTreeMap<String, WorstError>,
    pub(crate) paths: BTreeMap<String, u64>,
}

fn case_seed(suite: &str, case: &str, seed: u64) -> u64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(suite.as_bytes()).update(b"::").update(case.as_bytes()).update(&seed.to_le_bytes());
    let mut first = [0; 8];
    first.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    u64::from_le_bytes(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_draw_different_numbers_and_repeat_them() {
        assert_eq!(case_seed("flash", "causal", 7), case_seed("flash", "causal", 7));
        let mut seeds = vec![
            case_seed("flash", "causal", 7),
            case_seed("flash", "causal", 8),
            case_seed("flash", "window", 7),
            case_seed("phase2a", "causal", 7),
        ];
        seeds.sort_unstable();
        seeds.dedup();
        assert_eq!(seeds.len(), 4);
    }

    #[test]
    #[should_panic(expected = "two cases named gqa")]
    fn a_name_can_be_used_once() {
        let _ = Suite::new("flash").case("gqa", |_| Ok(())).case("gqa", |_| Ok(()));
    }
}
