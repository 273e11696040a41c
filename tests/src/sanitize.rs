//! The reduced suites under compute-sanitizer, with the verdicts added to a report.

use std::collections::BTreeMap;
use std::env;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::Context as _;
use clap::ValueEnum;

use crate::Suite;
use crate::report::{Report, SanitizerReport};
use crate::runner::Selection;
use crate::side_by_side::{Part, parts, side_by_side};

/// The tools of compute-sanitizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Tool {
    /// Accesses out of bounds, misaligned, after free; errors of the API.
    Memcheck,
    /// Shared memory touched by two threads without a barrier between.
    Racecheck,
    /// Device memory read before it was written.
    Initcheck,
    /// Barriers that not all threads reach.
    Synccheck,
}

impl Tool {
    /// Every tool.
    pub const ALL: [Self; 4] = [Self::Memcheck, Self::Racecheck, Self::Initcheck, Self::Synccheck];

    /// The name on compute-sanitizer's command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memcheck => "memcheck",
            Self::Racecheck => "racecheck",
            Self::Initcheck => "initcheck",
            Self::Synccheck => "synccheck",
        }
    }

    /// How many cases a run of the tool has at most. A run takes some seconds to begin, which pays where the cases take minutes: racecheck
    /// is ten times slower than the others.
    const fn cases_at_once(self) -> usize {
        match self {
            Self::Racecheck => 3,
            _ => usize::MAX,
        }
    }
}

/// Exit status asked of compute-sanitizer where it found something: none that the suites themselves use.
const FOUND_ERRORS: i32 = 86;

/// Finds compute-sanitizer: beside this binary, in `CUATTN_COMPUTE_SANITIZER`, on the path, or in a CUDA toolkit.
pub fn find() -> Option<PathBuf> {
    let named = env::var_os("CUATTN_COMPUTE_SANITIZER").map(PathBuf::from);
    let beside =
        env::current_exe().ok().and_then(|exe| Some(exe.parent()?.join("compute-sanitizer/compute-sanitizer")));
    let on_path = env::var_os("PATH")
        .into_iter()
        .flat_map(|path| env::split_paths(&path).collect::<Vec<_>>())
        .map(|folder| folder.join("compute-sanitizer"));
    let toolkits = ["CUDA_HOME", "CUDA_PATH"]
        .into_iter()
        .filter_map(env::var_os)
        .map(PathBuf::from)
        .chain(installed_toolkits())
        .flat_map(|root| [root.join("bin/compute-sanitizer"), root.join("compute-sanitizer/compute-sanitizer")]);
    named.into_iter().chain(beside).chain(on_path).chain(toolkits).find(|path| path.is_file())
}

fn installed_toolkits() -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir("/usr/local") else { return Vec::new() };
    let mut roots: Vec<_> = entries
        .filter_map(Result::ok)
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("cuda"))
        .map(|entry| entry.path())
        .collect();
    roots.sort();
    roots
}

/// How the tools are run.
#[derive(Clone, Debug)]
pub struct Options {
    /// compute-sanitizer itself.
    pub sanitizer: PathBuf,
    /// Seed of all random inputs.
    pub seed: u64,
    /// Folder for the tools' logs.
    pub logs: PathBuf,
    /// Runs side by side.
    pub jobs: usize,
}

impl Options {
    fn selection(&self, suites: &[String]) -> Selection {
        Selection { suites: suites.to_vec(), reduced: true, seed: self.seed, ..Selection::default() }
    }
}

/// Runs the reduced suites without a tool, so that their kernels are in the cache on disk: under a tool, compilation takes as long as all
/// the rest.
///
/// # Errors
///
/// If the suites cannot be started. A case that fails is no error: the tools say more of it.
pub fn fill_cache(suites: &[String], options: &Options) -> anyhow::Result<()> {
    let exe = env::current_exe().context("cannot find this binary's own path")?;
    let mut command = Command::new(&exe);
    command.args(["--reduced", "--seed", &options.seed.to_string(), "--jobs", &options.jobs.to_string()]);
    for suite in suites {
        command.args(["--suite", suite]);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.status().with_context(|| format!("cannot start {}", exe.display()))?;
    Ok(())
}

/// A run: a tool over some cases of a suite.
#[derive(Debug)]
struct Run<'a> {
    tool: Tool,
    part: Part<'a>,
}

/// Runs `tools` over the named suites, or over all, up to [`Options::jobs`] runs at a time, and puts a verdict for each tool and suite
/// into `report`. `after_run` gets the report after each run, with what was found so far.
///
/// # Errors
///
/// If compute-sanitizer cannot be started, its logs not be written, a suite does not exist, or `after_run` fails. What the tools find is
/// no error: it is in the report.
pub fn run(
    all: &[Suite],
    suites: &[String],
    tools: &[Tool],
    options: &Options,
    report: Report,
    after_run: impl Fn(&Report) -> anyhow::Result<()> + Sync,
) -> anyhow::Result<Report> {
    let selection = options.selection(suites);
    let picked = selection.pick(all)?;
    fs::create_dir_all(&options.logs).with_context(|| format!("cannot make the folder {}", options.logs.display()))?;
    let mut runs: Vec<_> = tools
        .iter()
        .flat_map(|&tool| parts(&picked, tool.cases_at_once(), true).into_iter().map(move |part| Run { tool, part }))
        .collect();
    // What takes longest begins first.
    runs.sort_by_key(|run| run.tool != Tool::Racecheck);
    let state = Mutex::new((report, BTreeMap::<(&str, &str), Vec<SanitizerReport>>::new()));
    side_by_side(&runs, options.jobs, |Run { tool, part }| {
        let verdict = run_part(options, *tool, part)?;
        println!("{} over {part}: {} ({:.0} s)", tool.name(), verdict.summary, verdict.seconds);
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        let (report, ended) = &mut *state;
        let verdicts = ended.entry((tool.name(), part.suite.name())).or_default();
        verdicts.push(verdict);
        let verdict = SanitizerReport::of_parts(verdicts, part.of);
        report.sanitizer.retain(|other| (&other.tool, &other.suites) != (&verdict.tool, &verdict.suites));
        report.sanitizer.push(verdict);
        after_run(report)
    })?;
    Ok(state.into_inner().unwrap_or_else(PoisonError::into_inner).0)
}

/// Runs a part of a suite under one tool. What both print goes to `<logs>/<tool>-<suite>-<part>.log`.
fn run_part(options: &Options, tool: Tool, part: &Part<'_>) -> anyhow::Result<SanitizerReport> {
    let begun = Instant::now();
    let (name, suite) = (tool.name(), part.suite.name());
    let stem = if part.of == 1 { format!("{name}-{suite}") } else { format!("{name}-{suite}-{:02}", part.number) };
    let log = options.logs.join(format!("{stem}.log"));
    let output = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
    let exe = env::current_exe().context("cannot find this binary's own path")?;
    let folder = tempfile::tempdir().context("there is no room for the report of a run")?;
    let report = folder.path().join("report.json");
    let mut command = Command::new(&options.sanitizer);
    command
        .args(["--tool", name, "--error-exitcode", &FOUND_ERRORS.to_string()])
        // The suites ask for too much memory and for missing symbols on purpose: those failing calls are no findings.
        .args(["--report-api-errors", "no"])
        .arg(exe)
        .args(part.arguments(&options.selection(&[]), &report))
        .stdin(Stdio::null())
        .stderr(output.try_clone()?)
        .stdout(output);
    let status = command.status().with_context(|| format!("cannot start {}", options.sanitizer.display()))?;
    let text = fs::read(&log).with_context(|| format!("cannot read {}", log.display()))?;
    let cases = part.outcome(Report::read(&report), &status);
    let failed: Vec<_> = cases.failures.iter().map(|failure| failure.case.as_str()).collect();
    let mut verdict = verdict(&String::from_utf8_lossy(&text), status, &failed);
    verdict.tool = name.to_owned();
    verdict.suites = vec![suite.to_owned()];
    verdict.seconds = begun.elapsed().as_secs_f64();
    Ok(verdict)
}

/// What a log says of the cases that ran, of which those in `failed` did not pass or left no report.
fn verdict(log: &str, status: ExitStatus, failed: &[&str]) -> SanitizerReport {
    let summary = closing_line(log);
    let clean = status.success() && failed.is_empty() && summary.as_deref().is_some_and(says_clean);
    let mut summary = summary.unwrap_or_else(|| format!("the tool printed no summary and ended with {status}"));
    if !failed.is_empty() {
        summary += &format!(", failed under it: {}", failed.join("; "));
    }
    SanitizerReport { clean, summary, ..SanitizerReport::default() }
}

/// The last summary that the tool printed, without its `=========`.
fn closing_line(log: &str) -> Option<String> {
    log.lines()
        .rev()
        .filter_map(|line| line.strip_prefix("========="))
        .map(str::trim)
        .find(|line| line.contains("SUMMARY:"))
        .map(str::to_owned)
}

/// Whether a summary names no error and no hazard. An exit status alone would also be 0 where the tool could not attach.
fn says_clean(summary: &str) -> bool {
    summary.contains("SUMMARY: 0 errors") || summary.contains("SUMMARY: 0 hazards displayed (0 errors, 0 warnings)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_are_read_as_the_tools_print_them() {
        let log = "========= COMPUTE-SANITIZER\nok    flash::causal\n========= ERROR SUMMARY: 0 errors\n";
        assert_eq!(closing_line(log).as_deref(), Some("ERROR SUMMARY: 0 errors"));
        assert!(says_clean("ERROR SUMMARY: 0 errors"));
        assert!(says_clean("RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"));
        assert!(!says_clean("ERROR SUMMARY: 10 errors"));
        assert!(!says_clean("RACECHECK SUMMARY: 1 hazard displayed (0 errors, 1 warning)"));
        assert_eq!(closing_line("ok    flash::causal\n========= Error: Target application terminated\n"), None);
    }

    #[cfg(unix)]
    #[test]
    fn a_tool_that_says_nothing_is_not_clean() {
        let folder = tempfile::tempdir().unwrap();
        let suites = [Suite::new("flash").case("a", |_| Ok(())).case("b", |_| Ok(()))];
        for program in ["/bin/true", "/bin/false"] {
            let (sanitizer, logs) = (program.into(), folder.path().to_owned());
            let options = Options { sanitizer, seed: 1, logs, jobs: 2 };
            let written = Mutex::new(0);
            let report = run(&suites, &[], &[Tool::Memcheck, Tool::Racecheck], &options, Report::default(), |_| {
                *written.lock().unwrap() += 1;
                Ok(())
            })
            .unwrap();
            assert_eq!((report.sanitizer.len(), written.into_inner().unwrap()), (2, 2));
            for verdict in &report.sanitizer {
                assert!(!verdict.clean);
                assert!(verdict.summary.contains("no summary"), "{}", verdict.summary);
            }
        }
        assert!(folder.path().join("memcheck-flash.log").is_file());
    }
}
