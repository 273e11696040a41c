//! Several processes at a time: for the cases of the suites, and for the tools of compute-sanitizer.

use std::fmt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context as _, bail};

use crate::report::{Failure, Report, SuiteReport};
use crate::runner::{self, Selected, Selection};
use crate::{Case, Suite};

/// How many processes at a time suit this machine: half of its cores, since each compiles and computes references on several threads
/// for part of its time, and two at least.
pub fn default_jobs() -> usize {
    std::thread::available_parallelism().map_or(2, |cores| (cores.get() / 2).max(2))
}

/// Some cases of a suite, for a process of their own.
#[derive(Clone, Debug)]
pub struct Part<'a> {
    /// The suite.
    pub suite: &'a Suite,
    /// Names of the cases.
    pub cases: Vec<&'a str>,
    /// Which part of the suite's it is, from 1.
    pub number: usize,
    /// Parts of the suite.
    pub of: usize,
    /// Whether nothing may run beside it.
    pub alone: bool,
}

impl Part<'_> {
    /// Arguments that make this binary run these cases, and nothing else, in one process.
    pub fn arguments(&self, selection: &Selection, report: &Path) -> Vec<String> {
        let mut arguments = vec!["--part".to_owned()];
        arguments.push(format!("--seed={}", selection.seed));
        arguments.push(format!("--suite={}", self.suite.name()));
        arguments.extend(self.cases.iter().map(|case| format!("--exact={case}")));
        arguments.push(format!("--report={}", report.display()));
        if selection.reduced {
            arguments.push("--reduced".to_owned());
        }
        arguments
    }

    /// What the process of these cases did, by the report that it left, or did not: then all of them failed, since nobody knows which
    /// of them passed.
    pub fn outcome(&self, report: anyhow::Result<Report>, status: &dyn fmt::Display) -> SuiteReport {
        let text = match report {
            Ok(report) => match <[SuiteReport; 1]>::try_from(report.suites) {
                Ok([suite]) if suite.name == self.suite.name() && suite.cases == self.cases.len() as u64 => {
                    return suite;
                }
                _ => format!("the process of {self} ended with {status}, and its report is not about these cases"),
            },
            Err(error) => format!("the process of {self} ended with {status}, and left no report: {error:#}"),
        };
        let failures = self.cases.iter().map(|&case| Failure { case: case.to_owned(), text: text.clone() }).collect();
        SuiteReport { cases: self.cases.len() as u64, failures, ..SuiteReport::of(self.suite) }
    }
}

impl fmt::Display for Part<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let suite = self.suite.name();
        match &self.cases[..] {
            [case] => write!(f, "{suite}::{case}"),
            cases if self.of == 1 => write!(f, "{suite} ({} cases)", cases.len()),
            cases => write!(f, "{suite}, part {} of {} ({})", self.number, self.of, cases.join("; ")),
        }
    }
}

/// Divides `picked` into parts of `most` cases, in the order in which they should begin. Where the run is `reduced` nothing is measured,
/// so that no case needs to be alone; a suite that is stays in one process all the same.
///
/// What runs alone comes first. How long the others take is not known, but those that take longest tend to stand first in their suite,
/// and the suites that do last in the list: so the first part of each suite, from the last suite on, then the second. The cases of a
/// part stand apart from each other in the suite, for the same reason.
pub fn parts<'a>(picked: &[Selected<'a>], most: usize, reduced: bool) -> Vec<Part<'a>> {
    let mut alone = Vec::new();
    let mut others = Vec::new();
    for Selected { suite, cases } in picked {
        let mut groups = Vec::new();
        if suite.is_alone() {
            groups.push((cases.iter().map(|case| case.name).collect(), !reduced));
        } else {
            let (measuring, rest): (Vec<&Case>, Vec<&Case>) =
                cases.iter().copied().partition(|case| case.alone && !reduced);
            groups.extend(measuring.iter().map(|case| (vec![case.name], true)));
            let count = rest.len().div_ceil(most.max(1));
            let group = |first| rest.iter().skip(first).step_by(count).map(|case| case.name).collect();
            groups.extend((0..count).map(|first| (group(first), false)));
        }
        let of = groups.len();
        let parts =
            groups.into_iter().zip(1..).map(|((cases, alone), number)| Part { suite, cases, number, of, alone });
        let (first, rest): (Vec<_>, Vec<_>) = parts.partition(|part| part.alone);
        alone.extend(first);
        others.push(rest.into_iter());
    }
    let mut parts = alone;
    loop {
        let before = parts.len();
        parts.extend(others.iter_mut().rev().filter_map(Iterator::next));
        if parts.len() == before {
            return parts;
        }
    }
}

/// [`runner::run`] with each case in a process of its own, up to `jobs` at a time: most of a case's time is compilation and the
/// reference, and the GPU waits. A process costs the half second that a context takes.
///
/// A process that ends without a report fails its case, and the others go on.
///
/// # Errors
///
/// As of [`runner::run`], and if a process cannot be started.
pub fn run_suites(
    suites: &[Suite],
    selection: &Selection,
    jobs: usize,
    after_part: impl Fn(&Report) -> anyhow::Result<()> + Sync,
) -> anyhow::Result<Report> {
    let picked = selection.pick(suites)?;
    // The runtime is not kept: cases that measure want the device to themselves.
    let (_, report) = runner::begin(selection, &picked)?;
    let exe = std::env::current_exe().context("cannot find this binary's own path")?;
    let whole = Mutex::new(report);
    let run = |part: &Part<'_>| {
        let suite = run_part(&exe, part, selection, &whole)?;
        let mut whole = whole.lock().unwrap_or_else(PoisonError::into_inner);
        whole.include(suite);
        sort(&mut whole, suites);
        after_part(&whole)
    };
    let (alone, others): (Vec<_>, Vec<_>) =
        parts(&picked, 1, selection.reduced).into_iter().partition(|part| part.alone);
    side_by_side(&alone, 1, run)?;
    side_by_side(&others, jobs, run)?;
    Ok(whole.into_inner().unwrap_or_else(PoisonError::into_inner))
}

fn run_part(exe: &Path, part: &Part<'_>, selection: &Selection, whole: &Mutex<Report>) -> anyhow::Result<SuiteReport> {
    let begun = Instant::now();
    let folder = tempfile::tempdir().context("there is no room for the parts of a report")?;
    let path = folder.path().join("report.json");
    let mut command = Command::new(exe);
    command.args(part.arguments(selection, &path)).stdin(Stdio::null());
    let status = command.status().with_context(|| format!("cannot start the process of {part}"))?;
    let report = Report::read(&path).and_then(|report| {
        let whole = whole.lock().unwrap_or_else(PoisonError::into_inner);
        anyhow::ensure!(report.is_of_one_run_with(&whole), "its report is of another run");
        Ok(report)
    });
    let has_ended_well = report.is_ok();
    let mut suite = part.outcome(report, &status);
    if !has_ended_well {
        suite.seconds = begun.elapsed().as_secs_f64();
        for Failure { case, text } in &suite.failures {
            println!("FAILED {}::{case}\n       {}", suite.name, text.replace('\n', "\n       "));
        }
    }
    Ok(suite)
}

/// Puts suites and failures in the order of `suites`, whichever ended first.
fn sort(report: &mut Report, suites: &[Suite]) {
    report.suites.sort_by_key(|suite| suites.iter().position(|other| other.name() == suite.name));
    for suite in &mut report.suites {
        let Some(cases) = suites.iter().find(|other| other.name() == suite.name).map(Suite::cases) else { continue };
        suite.failures.sort_by_key(|failure| cases.iter().position(|case| case.name == failure.case));
    }
}

/// Calls `run` for each of `runs`, up to `jobs` at a time, in their order.
///
/// # Errors
///
/// The first error, after which no other run is begun.
pub fn side_by_side<T: Sync>(
    runs: &[T],
    jobs: usize,
    run: impl Fn(&T) -> anyhow::Result<()> + Sync,
) -> anyhow::Result<()> {
    let next = AtomicUsize::new(0);
    let worker = || {
        while let Some(one) = runs.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(error) = run(one) {
                next.store(runs.len(), Ordering::Relaxed);
                return Err(error);
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs.clamp(1, runs.len().max(1))).map(|_| scope.spawn(worker)).collect();
        // Every worker is waited for, whatever the others said.
        let ends: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        ends.into_iter().try_for_each(|end| end.unwrap_or_else(|_| bail!("a run panicked")))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::report::{Device, FORMAT};
    use crate::suites;

    fn some_suites() -> Vec<Suite> {
        let nothing = |_: &crate::Context<'_>| Ok(());
        vec![
            Suite::new("clock").alone().case("one", nothing).case("two", nothing),
            Suite::new("short").case("one", nothing),
            Suite::new("long")
                .case("a", nothing)
                .case("b", nothing)
                .case_alone("memory", nothing)
                .case("c", nothing)
                .case("d", nothing)
                .case("e", nothing),
        ]
    }

    fn divided(most: usize, reduced: bool) -> Vec<(String, bool)> {
        let suites = some_suites();
        let picked = Selection::default().pick(&suites).unwrap();
        parts(&picked, most, reduced).iter().map(|part| (part.to_string(), part.alone)).collect()
    }

    fn report(suites: Vec<SuiteReport>) -> Report {
        let device = Device {
            name: String::new(),
            compute_capability: String::new(),
            driver: String::new(),
            nvrtc: String::new(),
        };
        Report {
            format: FORMAT,
            device,
            commit: String::new(),
            date: String::new(),
            seed: 1,
            reduced: false,
            suites,
            kernel_sources: BTreeMap::new(),
            sanitizer: Vec::new(),
        }
    }

    #[test]
    fn cases_that_measure_come_first_and_alone() {
        let expected = [
            ("clock (2 cases)", true),
            ("long::memory", true),
            ("long::a", false),
            ("short::one", false),
            ("long::b", false),
            ("long::c", false),
            ("long::d", false),
            ("long::e", false),
        ];
        assert_eq!(divided(1, false), expected.map(|(part, alone)| (part.to_owned(), alone)));
    }

    #[test]
    fn a_reduced_run_measures_nothing() {
        let expected =
            ["long, part 1 of 2 (a; memory; d)", "short::one", "clock (2 cases)", "long, part 2 of 2 (b; c; e)"];
        assert_eq!(divided(3, true), expected.map(|part| (part.to_owned(), false)));
        let whole = ["long (6 cases)", "short::one", "clock (2 cases)"];
        assert_eq!(divided(usize::MAX, true), whole.map(|part| (part.to_owned(), false)));
    }

    #[test]
    fn every_case_is_in_one_part() {
        let suites = suites::all();
        let picked = Selection::default().pick(&suites).unwrap();
        let mut all: Vec<_> =
            suites.iter().flat_map(|suite| suite.cases().iter().map(|case| (suite.name(), case.name))).collect();
        all.sort_unstable();
        for most in [1, 2, 3, 4, usize::MAX] {
            for reduced in [false, true] {
                let parts = parts(&picked, most, reduced);
                assert!(parts.iter().all(|part| part.cases.len() <= most || part.suite.is_alone()));
                let mut divided: Vec<_> =
                    parts.iter().flat_map(|part| part.cases.iter().map(|&case| (part.suite.name(), case))).collect();
                divided.sort_unstable();
                assert_eq!(divided, all, "{most} cases a part");
            }
        }
    }

    #[test]
    fn a_part_without_a_report_fails_its_cases() {
        let suites = some_suites();
        let picked = Selection::default().pick(&suites).unwrap();
        let part = &parts(&picked, 1, false)[0];
        let lost = part.outcome(Err(anyhow::anyhow!("no file")), &"signal 11");
        assert_eq!((lost.name.as_str(), lost.cases, lost.failures.len()), ("clock", 2, 2));
        assert_eq!(lost.failures[1].case, "two");
        insta::assert_snapshot!(
            lost.failures[1].text,
            @"the process of clock (2 cases) ended with signal 11, and left no report: no file"
        );
        let whole = SuiteReport { cases: 2, problems: 7, ..SuiteReport::of(part.suite) };
        assert_eq!(part.outcome(Ok(report(vec![whole.clone()])), &"0"), whole);
        // Not all of its cases, or another suite's.
        let less = SuiteReport { cases: 1, ..whole.clone() };
        assert_eq!(part.outcome(Ok(report(vec![less])), &"0").failures.len(), 2);
        let other = SuiteReport { name: "long".into(), ..whole };
        assert_eq!(part.outcome(Ok(report(vec![other])), &"0").failures.len(), 2);
        assert_eq!(part.outcome(Ok(report(Vec::new())), &"0").failures.len(), 2);
    }

    #[cfg(unix)]
    #[test]
    fn a_process_that_dies_fails_its_part() {
        let suites = some_suites();
        let picked = Selection::default().pick(&suites).unwrap();
        let parts = parts(&picked, 1, false);
        let whole = Mutex::new(report(Vec::new()));
        let lost = run_part(Path::new("/bin/false"), &parts[2], &Selection::default(), &whole).unwrap();
        assert_eq!((lost.name.as_str(), lost.failures.len()), ("long", 1));
        assert!(lost.failures[0].text.contains("long::a ended with exit status: 1"), "{}", lost.failures[0].text);
        assert!(run_part(Path::new("/no/such/program"), &parts[2], &Selection::default(), &whole).is_err());
    }

    #[test]
    fn a_report_has_the_order_of_the_suites() {
        let failed = |case: &str| Failure { case: case.to_owned(), text: String::new() };
        let of = |name: &str, cases: &[&str]| SuiteReport {
            name: name.to_owned(),
            failures: cases.iter().map(|case| failed(case)).collect(),
            ..SuiteReport::default()
        };
        let mut whole = report(vec![of("long", &["e", "memory", "a"]), of("clock", &["one"])]);
        sort(&mut whole, &some_suites());
        assert_eq!(whole.suites, [of("clock", &["one"]), of("long", &["a", "memory", "e"])]);
    }

    #[test]
    fn a_part_is_told_what_to_run() {
        let suites = some_suites();
        let selection = Selection { seed: 7, reduced: true, ..Selection::default() };
        let picked = selection.pick(&suites).unwrap();
        let part = &parts(&picked, 2, true)[3];
        insta::assert_snapshot!(
            part.arguments(&selection, Path::new("x.json")).join(" "),
            @"--part --seed=7 --suite=long --exact=b --exact=d --report=x.json --reduced"
        );
    }

    #[test]
    fn all_runs_are_done_and_none_after_an_error() {
        let done = AtomicUsize::new(0);
        let count = |_: &u32| {
            done.fetch_add(1, Ordering::Relaxed);
            Ok(())
        };
        side_by_side(&[1, 2, 3, 4, 5], 3, count).unwrap();
        assert_eq!(done.load(Ordering::Relaxed), 5);
        side_by_side(&[], 3, count).unwrap();
        let failing = |&run: &u32| if run == 2 { bail!("run {run}") } else { count(&run) };
        assert_eq!(side_by_side(&[1, 2, 3, 4], 1, failing).unwrap_err().to_string(), "run 2");
        assert_eq!(done.load(Ordering::Relaxed), 6);
    }
}
