//! The reduced suites under compute-sanitizer, with the verdicts added to a report.

use std::collections::BTreeMap;
use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::Context as _;
use clap::ValueEnum;

use crate::Suite;
use crate::report::{OUTSIDE_KERNELS, Report, SanitizerReport};
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

/// Findings that are printed: the tools stop at 100 by themselves, and those beyond have no kernel.
const PRINT_LIMIT: &str = "10000";

/// What racecheck is not to look at where nobody says otherwise: the kernels of cuBLASLt, in which it reports races. They are NVIDIA's,
/// and not for us to correct.
pub const LEFT_OUT: &str = "kernel_substring=nvjet";

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

/// The version that compute-sanitizer says it has, such as `2026.4.0.0`. `None` where it says none.
pub fn version(sanitizer: &Path) -> Option<String> {
    let output = Command::new(sanitizer).arg("--version").stdin(Stdio::null()).output().ok()?;
    version_in(&String::from_utf8_lossy(&output.stdout))
}

fn version_in(text: &str) -> Option<String> {
    text.lines().find_map(|line| line.strip_prefix("Version ")?.split_whitespace().next().map(str::to_owned))
}

/// What to know of the findings of such a version, if anything.
pub fn caution(version: &str) -> Option<&'static str> {
    let year: u32 = version.split('.').next()?.parse().ok()?;
    (year < 2026).then_some(
        "before 2026, racecheck reports races between warps that a named barrier orders on which some only arrive; a newer one is in the \
         Python wheel nvidia-cuda-sanitizer-api",
    )
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
    /// Kernels that racecheck is not to look at, as `--kernel-name-exclude` takes them.
    pub left_out: Vec<String>,
    /// More arguments for compute-sanitizer, before the program.
    pub arguments: Vec<String>,
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
        println!("{} over {part}: {} ({:.0} s)", tool.name(), verdict.text(), verdict.seconds);
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        let (report, ended) = &mut *state;
        let verdicts = ended.entry((tool.name(), part.suite.name())).or_default();
        verdicts.push(verdict);
        let verdict = SanitizerReport::of_parts(verdicts, part.of);
        report.sanitizer.retain(|other| (&other.tool, &other.suites) != (&verdict.tool, &verdict.suites));
        report.sanitizer.push(verdict);
        report.sanitizer.sort_by(|a, b| (&a.tool, &a.suites).cmp(&(&b.tool, &b.suites)));
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
    let left_out = if tool == Tool::Racecheck { &options.left_out[..] } else { &[] };
    let mut command = Command::new(&options.sanitizer);
    command
        .args(["--tool", name, "--error-exitcode", &FOUND_ERRORS.to_string()])
        // The suites ask for too much memory and for missing symbols on purpose: those failing calls are no findings.
        .args(["--report-api-errors", "no"])
        .args(["--print-limit", PRINT_LIMIT])
        .args(left_out.iter().flat_map(|filter| ["--kernel-name-exclude", filter]))
        .args(&options.arguments)
        .arg(exe)
        .args(part.arguments(&options.selection(&[]), &report))
        .stdin(Stdio::null())
        .stderr(output.try_clone()?)
        .stdout(output);
    let status = command.status().with_context(|| format!("cannot start {}", options.sanitizer.display()))?;
    let text = fs::read(&log).with_context(|| format!("cannot read {}", log.display()))?;
    let report = Report::read(&report);
    let failed = if report.is_ok() {
        let cases = part.outcome(report, &status);
        cases.failures.into_iter().map(|failure| failure.case).collect::<Vec<_>>().join("; ")
    } else {
        "all, since there is no report of the cases".to_owned()
    };
    Ok(SanitizerReport {
        tool: name.to_owned(),
        suites: vec![suite.to_owned()],
        left_out: left_out.to_vec(),
        seconds: begun.elapsed().as_secs_f64(),
        ..verdict(&String::from_utf8_lossy(&text), status, &failed)
    })
}

/// What a log says of the cases that ran. `failed` names those that did not pass under the tool.
fn verdict(log: &str, status: ExitStatus, failed: &str) -> SanitizerReport {
    let Printed { findings, tool_errors, summary } = Printed::read(log);
    // The tools count failures of their own among what they found, and end as if they had found something.
    let own: u64 = tool_errors.values().sum();
    let ended_well = status.success() || (own > 0 && status.code() == Some(FOUND_ERRORS));
    let counted = summary.as_deref().and_then(count);
    let clean = ended_well && failed.is_empty() && findings.is_empty() && counted.is_some_and(|counted| counted <= own);
    let mut summary = summary.unwrap_or_else(|| format!("the tool printed no summary and ended with {status}"));
    if !failed.is_empty() {
        summary += &format!(", failed under it: {failed}");
    }
    SanitizerReport { clean, findings, tool_errors, summary, ..SanitizerReport::default() }
}

/// What a tool printed, in the lines that begin with `=========`.
#[derive(Debug, Default, PartialEq)]
struct Printed {
    findings: BTreeMap<String, u64>,
    tool_errors: BTreeMap<String, u64>,
    /// The last summary.
    summary: Option<String>,
}

impl Printed {
    /// A finding is a line and those indented below it; the first of them that names a place in a kernel says where it is:
    ///
    /// ```text
    /// ========= Error: Race reported between Read access at flash_sm90+0xa630
    /// =========     and Write access at flash_sm90+0xaf00 [4096 hazards]
    /// ========= Invalid __shared__ write of size 4 bytes
    /// =========     at scale(float *, int)+0x160 in scale.cu:6
    /// ```
    fn read(log: &str) -> Self {
        let mut printed = Self::default();
        // Whether there is a finding whose kernel is still to come.
        let mut pending = false;
        let lines = log.lines().filter_map(|line| line.strip_prefix("=========")).map(|line| line.trim_end());
        for line in lines {
            let text = line.trim_start();
            let is_head = !text.is_empty() && line.len() - text.len() < 2;
            if is_head {
                if std::mem::take(&mut pending) {
                    printed.found(OUTSIDE_KERNELS);
                }
                if text.contains("SUMMARY:") {
                    // Others say how many were not printed.
                    if count(text).is_some() {
                        printed.summary = Some(text.to_owned());
                    }
                    continue;
                }
                // The second ends what racecheck keeps, whatever else it meets.
                if text.starts_with("Internal Sanitizer Error") || text.contains("Maximum number of hazards reached") {
                    *printed.tool_errors.entry(text.to_owned()).or_default() += 1;
                    continue;
                }
                // That a case failed is in its report.
                if text.starts_with("COMPUTE-SANITIZER") || text.starts_with("Target application returned an error") {
                    continue;
                }
                pending = true;
            }
            if pending && let Some(kernel) = kernel(text) {
                printed.found(kernel);
                pending = false;
            }
        }
        if pending {
            printed.found(OUTSIDE_KERNELS);
        }
        printed
    }

    fn found(&mut self, kernel: &str) {
        *self.findings.entry(kernel.to_owned()).or_default() += 1;
    }
}

/// The kernel of `... at <kernel>+0x<offset> ...`.
fn kernel(line: &str) -> Option<&str> {
    let place = match line.strip_prefix("at ") {
        Some(place) => place,
        None => line.split_once(" access at ")?.1,
    };
    let kernel = &place[..place.rfind("+0x")?];
    (!kernel.is_empty()).then_some(kernel)
}

/// The number of findings in a summary: `ERROR SUMMARY: 2 errors`, `RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)`. An exit
/// status alone would also be 0 where the tool could not attach.
fn count(summary: &str) -> Option<u64> {
    let (number, unit) = summary.split_once("SUMMARY:")?.1.trim_start().split_once(' ')?;
    (matches!(unit, "error" | "errors") || unit.starts_with("hazard") && unit.contains("displayed"))
        .then(|| number.parse().ok())
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RACES: &str = "\
========= COMPUTE-SANITIZER
========= Error: Race reported between Read access at flash_sm90+0xa630
=========     and Write access at flash_sm90+0xaf00 [4096 hazards]
=========\x20
ok    flash::plain  6 problems  0.36 s
========= Warning: Race reported between Write access at sum(int *, int)+0xc0 in sum.cu:20
=========     and Read access at sum(int *, int)+0x100 in sum.cu:30 [4 hazards]
=========\x20
========= Error: Race reported between Read access at flash_sm90+0xa640
=========     and Write access at flash_sm90+0xae10 [4096 hazards]
=========\x20
========= RACECHECK SUMMARY: 3 hazards displayed (2 errors, 1 warning)
";

    const ACCESSES: &str = "\
========= COMPUTE-SANITIZER
========= Invalid __shared__ write of size 4 bytes
=========     at void scale<float>(T1 *, int)+0x160 in scale.cu:6
=========     by thread (0,0,0) in block (0,0,0)
=========     Access at 0x7f2a00000001 is misaligned
=========     Saved host backtrace up to driver entry point at kernel launch time
=========     Host Frame: cuLaunchKernel [0x2d5a9a]
=========                in /usr/lib/libcuda.so.1
=========\x20
========= Program hit CUDA_ERROR_LAUNCH_FAILED (error 719) due to \"unspecified launch failure\" on CUDA API call to cuCtxSynchronize.
=========     Saved host backtrace up to driver entry point at error
=========\x20
========= Target application returned an error
========= ERROR SUMMARY: 2 errors
========= ERROR SUMMARY: 7 errors were not printed. Use --print-limit option to adjust the number of printed errors
";

    const OWN: &str = "\
========= COMPUTE-SANITIZER
========= Internal Sanitizer Error: Detected a failure to track a kernel launch. Future records might be incomplete
=========\x20
ok    runtime::eight threads on one runtime  0.64 s
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
";

    fn counts(counts: &[(&str, u64)]) -> BTreeMap<String, u64> {
        counts.iter().map(|&(name, count)| (name.to_owned(), count)).collect()
    }

    #[test]
    fn findings_are_counted_by_kernel() {
        let printed = Printed::read(RACES);
        assert_eq!(printed.findings, counts(&[("flash_sm90", 2), ("sum(int *, int)", 1)]));
        assert_eq!(printed.summary.as_deref(), Some("RACECHECK SUMMARY: 3 hazards displayed (2 errors, 1 warning)"));
        let printed = Printed::read(ACCESSES);
        assert_eq!(printed.findings, counts(&[(OUTSIDE_KERNELS, 1), ("void scale<float>(T1 *, int)", 1)]));
        assert_eq!(printed.summary.as_deref(), Some("ERROR SUMMARY: 2 errors"));
        assert_eq!(Printed::read("ok    flash::plain\n"), Printed::default());
        let full = "========= Warning: Maximum number of hazards reached. Environment variable X can be used\n";
        assert_eq!(Printed::read(&format!("{RACES}{full}")).findings, Printed::read(RACES).findings);
        assert_eq!(Printed::read(full).tool_errors.len(), 1);
        let cut_short = "========= COMPUTE-SANITIZER\n========= Error: Target application terminated\n";
        assert_eq!(Printed::read(cut_short).findings, counts(&[(OUTSIDE_KERNELS, 1)]));
    }

    #[test]
    fn versions_are_read_and_old_ones_cautioned_against() {
        let text = "NVIDIA (R) Compute Sanitizer\nCopyright (c) 2020-2026 NVIDIA Corporation\nVersion 2026.4.0.0 (build 39022338)";
        assert_eq!(version_in(text).as_deref(), Some("2026.4.0.0"));
        assert_eq!(version_in("no version"), None);
        assert!(caution("2025.3.1.0").is_some() && caution("2026.4.0.0").is_none() && caution("new").is_none());
    }

    #[test]
    fn summaries_are_read_as_the_tools_print_them() {
        assert_eq!(count("ERROR SUMMARY: 0 errors"), Some(0));
        assert_eq!(count("ERROR SUMMARY: 1 error"), Some(1));
        assert_eq!(count("RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"), Some(0));
        assert_eq!(count("RACECHECK SUMMARY: 1 hazard displayed (0 errors, 1 warning)"), Some(1));
        assert_eq!(count("ERROR SUMMARY: 7 errors were not printed."), None);
        assert_eq!(count("LEAK SUMMARY: 0 bytes leaked in 0 allocations"), None);
    }

    #[cfg(unix)]
    #[test]
    fn the_verdict_tells_findings_from_failures_of_the_tool() {
        use std::os::unix::process::ExitStatusExt as _;
        let ended = |code: i32| ExitStatus::from_raw(code << 8);
        let clean = |log: &str, code: i32, failed: &str| verdict(log, ended(code), failed).clean;
        let nothing = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n";
        assert!(clean(nothing, 0, ""));
        assert!(!clean(nothing, 1, ""));
        assert!(!clean(nothing, FOUND_ERRORS, ""));
        assert!(!clean(nothing, 0, "plain"));
        assert!(!clean("========= COMPUTE-SANITIZER\n", 0, ""));
        assert!(!clean(RACES, FOUND_ERRORS, ""));
        assert!(!clean(ACCESSES, FOUND_ERRORS, ""));
        // A failure of the tool is told, and is no finding; whether the cases passed is in their report.
        let own = verdict(OWN, ended(FOUND_ERRORS), "");
        assert!(own.clean && own.findings.is_empty());
        assert_eq!(own.tool_errors.values().sum::<u64>(), 1);
        assert!(own.text().contains("the tool itself failed: Internal Sanitizer Error: Detected"), "{}", own.text());
        assert!(!clean(OWN, FOUND_ERRORS, "eight threads on one runtime"));
        // Neither does it hide what is a finding, nor what is counted but not printed.
        assert!(!clean(&format!("{OWN}{RACES}"), FOUND_ERRORS, ""));
        assert!(!clean(&OWN.replace("1 hazard displayed", "2 hazards displayed"), FOUND_ERRORS, ""));
    }

    #[cfg(unix)]
    #[test]
    fn a_tool_that_says_nothing_is_not_clean() {
        let folder = tempfile::tempdir().unwrap();
        let suites = [Suite::new("flash").case("a", |_| Ok(())).case("b", |_| Ok(()))];
        for program in ["/bin/true", "/bin/false"] {
            let (sanitizer, logs) = (program.into(), folder.path().to_owned());
            let (left_out, arguments) = (vec![LEFT_OUT.to_owned()], Vec::new());
            let options = Options { sanitizer, seed: 1, logs, jobs: 2, left_out, arguments };
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
                assert!(verdict.summary.contains("no report of the cases"), "{}", verdict.summary);
                assert_eq!(verdict.left_out.is_empty(), verdict.tool != "racecheck");
            }
        }
        assert!(folder.path().join("memcheck-flash.log").is_file());
    }
}
