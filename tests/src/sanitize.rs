//! The reduced suites under compute-sanitizer, one tool after another, with the verdicts added to a report.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::Context as _;
use clap::ValueEnum;

use crate::report::SanitizerReport;

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

/// Runs the reduced suites without a tool, so that their kernels are in the cache on disk: under a tool, compilation takes as long as all
/// the rest.
///
/// # Errors
///
/// If the suites cannot be started. A case that fails is no error: the tools say more of it.
pub fn fill_cache(suites: &[String], seed: u64) -> anyhow::Result<()> {
    let exe = env::current_exe().context("cannot find this binary's own path")?;
    let mut command = Command::new(&exe);
    command.args(["--reduced", "--seed", &seed.to_string(), "--suite", &suites.join(",")]);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.status().with_context(|| format!("cannot start {}", exe.display()))?;
    Ok(())
}

/// Runs a suite under one tool. What both print goes to `<logs>/<tool>-<suite>.log`.
///
/// # Errors
///
/// If compute-sanitizer cannot be started or its log not be written. What it finds is no error: it is in the result.
pub fn run(sanitizer: &Path, tool: Tool, suite: &str, seed: u64, logs: &Path) -> anyhow::Result<SanitizerReport> {
    let begun = Instant::now();
    let name = tool.name();
    fs::create_dir_all(logs).with_context(|| format!("cannot make the folder {}", logs.display()))?;
    let log = logs.join(format!("{name}-{suite}.log"));
    let output = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
    let exe = env::current_exe().context("cannot find this binary's own path")?;
    let mut command = Command::new(sanitizer);
    command
        .args(["--tool", name, "--error-exitcode", &FOUND_ERRORS.to_string()])
        // The suites ask for too much memory and for missing symbols on purpose: those failing calls are no findings.
        .args(["--report-api-errors", "no"])
        .arg(exe)
        .args(["--reduced", "--seed", &seed.to_string(), "--suite", suite])
        .stdin(Stdio::null())
        .stderr(output.try_clone()?)
        .stdout(output);
    let status = command.status().with_context(|| format!("cannot start {}", sanitizer.display()))?;
    let text = fs::read(&log).with_context(|| format!("cannot read {}", log.display()))?;
    let summary = closing_line(&String::from_utf8_lossy(&text));
    Ok(SanitizerReport {
        tool: name.to_owned(),
        suites: vec![suite.to_owned()],
        clean: status.success() && summary.as_deref().is_some_and(says_clean),
        summary: summary.unwrap_or_else(|| format!("the tool printed no summary and ended with {status}")),
        seconds: begun.elapsed().as_secs_f64(),
    })
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
        let report = run(Path::new("/bin/true"), Tool::Memcheck, "flash", 1, folder.path()).unwrap();
        assert!(!report.clean);
        assert!(report.summary.contains("no summary"), "{}", report.summary);
        let report = run(Path::new("/bin/false"), Tool::Racecheck, "flash", 1, folder.path()).unwrap();
        assert!(!report.clean);
    }
}
