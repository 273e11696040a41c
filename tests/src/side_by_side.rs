//! Several runs at a time: of suites, each in a process of its own, and of the tools of compute-sanitizer.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, bail};

use crate::Suite;
use crate::report::Report;
use crate::runner::{self, Selection};

/// [`runner::run`] with each suite in a process of its own, up to `jobs` at a time: a suite's time goes into compilation and into the
/// reference, and the GPU mostly waits.
///
/// # Errors
///
/// As of [`runner::run`], and if a process ends without a report.
pub fn run_suites(
    suites: &[Suite],
    selection: &Selection,
    jobs: usize,
    after_suite: impl Fn(&Report) -> anyhow::Result<()> + Sync,
) -> anyhow::Result<Report> {
    let picked = selection.pick(suites)?;
    println!("{}", runner::greeting(selection)?);
    let exe = std::env::current_exe().context("cannot find this binary's own path")?;
    let folder = tempfile::tempdir().context("there is no room for the parts of a report")?;
    // The suites that take longest stand last in the list, and begin first.
    let names: Vec<_> = picked.iter().rev().map(|selected| selected.suite.name()).collect();
    let order: Vec<_> = suites.iter().map(Suite::name).collect();
    let whole = Mutex::new(None);
    side_by_side(&names, jobs, |name| {
        let path = folder.path().join(format!("{name}.json"));
        let mut command = Command::new(&exe);
        command.args(["--part", "--jobs", "1", "--seed", &selection.seed.to_string(), "--suite", name]);
        command.arg("--report").arg(&path).stdin(Stdio::null());
        if let Some(case) = &selection.case {
            command.args(["--case", case]);
        }
        if selection.reduced {
            command.arg("--reduced");
        }
        let status = command.status().with_context(|| format!("cannot start the suite `{name}`"))?;
        let part = Report::read(&path).with_context(|| format!("the suite `{name}` ended with {status}"))?;
        let mut whole = whole.lock().unwrap_or_else(PoisonError::into_inner);
        let mut joined = Report::join(whole.take().into_iter().chain([part]).collect())?;
        joined.suites.sort_by_key(|suite| order.iter().position(|&name| name == suite.name));
        after_suite(whole.insert(joined))
    })?;
    whole.into_inner().unwrap_or_else(PoisonError::into_inner).context("no suite was run")
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
    use super::*;

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
