//! `gpu-report`: what the GPU reports in `docs/reports` say, and which of their suites ran on kernels that have changed since.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail, ensure};
use serde::Deserialize;

use crate::repository;
use crate::table::table;

/// Shows the GPU reports of docs/reports, and which of their suites are stale
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Fails where a suite's kernels changed since the report, or where there is no report
    #[arg(long)]
    check: bool,
    /// Takes the report of a bundle's run into docs/reports, if it is of a whole run that passed
    #[arg(long, value_name = "FILE")]
    import: Option<PathBuf>,
}

/// The formats of the report of `gpu-suites` that are known here.
const FORMATS: RangeInclusive<u32> = 1..=2;

/// As much of the report of `gpu-suites` as is judged here.
#[derive(Debug, Deserialize)]
struct Report {
    format: u32,
    device: Device,
    commit: String,
    date: String,
    reduced: bool,
    suites: Vec<Suite>,
    kernel_sources: BTreeMap<String, String>,
    #[serde(default)]
    sanitizer: Vec<Sanitizer>,
}

#[derive(Debug, Deserialize)]
struct Device {
    name: String,
}

#[derive(Debug, Deserialize)]
struct Suite {
    name: String,
    kernels: Vec<String>,
    cases: u64,
    problems: u64,
    failures: Vec<serde_json::Value>,
}

#[derive(Debug, Deserialize)]
struct Sanitizer {
    tool: String,
    #[serde(default)]
    suites: Vec<String>,
    clean: bool,
    /// Findings by kernel, since format 2.
    #[serde(default)]
    findings: BTreeMap<String, u64>,
    /// Failures of the tool itself, since format 2.
    #[serde(default)]
    tool_errors: BTreeMap<String, u64>,
}

impl Sanitizer {
    fn verdict(&self) -> String {
        let list = |counts: &BTreeMap<String, u64>| {
            counts.iter().map(|(name, count)| format!("{name} ({count})")).collect::<Vec<_>>().join(", ")
        };
        let mut text = if self.clean { "clean" } else { "NOT CLEAN" }.to_owned();
        if !self.findings.is_empty() {
            text += &format!(", findings in {}", list(&self.findings));
        }
        if !self.tool_errors.is_empty() {
            text += &format!(", the tool itself failed: {}", list(&self.tool_errors));
        }
        text
    }
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    if let Some(path) = &args.import {
        println!("{}", import(path)?.display());
        return Ok(ExitCode::SUCCESS);
    }
    let reports = read_all()?;
    if reports.is_empty() {
        println!("there is no GPU report in docs/reports: run `cargo xtask gpu-test` on a machine with a GPU");
        return Ok(if args.check { ExitCode::FAILURE } else { ExitCode::SUCCESS });
    }
    let sources = todays_sources();
    let mut stale = 0;
    for (path, report) in &reports {
        println!("{}: {}, {}, commit {}", path.display(), report.device.name, report.date, report.commit);
        let mut table = table(&["suite", "cases", "problems", "failed", ""], 1);
        for suite in &report.suites {
            let changed = changed(suite, &report.kernel_sources, &sources);
            stale += usize::from(!changed.is_empty());
            table.add_row([
                suite.name.clone(),
                suite.cases.to_string(),
                suite.problems.to_string(),
                suite.failures.len().to_string(),
                if changed.is_empty() {
                    "kernels unchanged".to_owned()
                } else {
                    format!("STALE: {}", changed.join(", "))
                },
            ]);
        }
        println!("{table}");
        for tool in &report.sanitizer {
            println!("compute-sanitizer {} over {}: {}", tool.tool, tool.suites.join(", "), tool.verdict());
        }
    }
    println!("{}", if stale == 0 { "no suite is stale".to_owned() } else { format!("{stale} suites are stale") });
    Ok(if args.check && stale > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// One line about the reports, for the end of `ci`.
pub(crate) fn status() -> anyhow::Result<String> {
    let sources = todays_sources();
    let lines: Vec<_> = read_all()?
        .iter()
        .map(|(path, report)| {
            let stale: Vec<_> = report
                .suites
                .iter()
                .filter(|suite| !changed(suite, &report.kernel_sources, &sources).is_empty())
                .map(|suite| suite.name.as_str())
                .collect();
            let stale = if stale.is_empty() { "up to date".into() } else { format!("stale: {}", stale.join(", ")) };
            format!("{} (commit {}): {stale}", path.display(), report.commit)
        })
        .collect();
    Ok(if lines.is_empty() { "none".to_owned() } else { lines.join("; ") })
}

/// Where the report of a kind about a device is kept.
pub(crate) fn path_for(kind: &str, device: &str) -> PathBuf {
    let device = device.strip_prefix("NVIDIA ").unwrap_or(device).to_lowercase();
    let words: Vec<_> = device.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()).collect();
    Path::new("docs/reports").join(format!("{kind}-{}.json", words.join("-")))
}

/// Copies the report of a whole run that passed into `docs/reports`, and gives its place.
pub(crate) fn import(path: &Path) -> anyhow::Result<PathBuf> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let report = parse(path, &text)?;
    acceptable(&report)?;
    let place = path_for("gpu", &report.device.name);
    fs::create_dir_all(repository::root().join("docs/reports"))?;
    fs::write(repository::root().join(&place), text).with_context(|| format!("cannot write {}", place.display()))?;
    Ok(place)
}

fn parse(path: &Path, text: &str) -> anyhow::Result<Report> {
    let report: Report =
        serde_json::from_str(text).with_context(|| format!("{} is no report of gpu-suites", path.display()))?;
    ensure!(FORMATS.contains(&report.format), "{} has format {}, which is not known", path.display(), report.format);
    Ok(report)
}

/// Refuses reports that prove nothing.
fn acceptable(report: &Report) -> anyhow::Result<()> {
    ensure!(!report.reduced, "the report is of a reduced run");
    ensure!(report.suites.iter().any(|suite| suite.cases > 0), "the report is of a run of nothing");
    if let Some(suite) = report.suites.iter().find(|suite| !suite.failures.is_empty()) {
        bail!("the report has failures in the suite `{}`", suite.name);
    }
    if let Some(tool) = report.sanitizer.iter().find(|tool| !tool.clean) {
        bail!("compute-sanitizer's {} is not clean in the report", tool.tool);
    }
    Ok(())
}

fn read_all() -> anyhow::Result<Vec<(PathBuf, Report)>> {
    let folder = Path::new("docs/reports");
    let Ok(entries) = fs::read_dir(repository::root().join(folder)) else { return Ok(Vec::new()) };
    let mut names: Vec<_> =
        entries.filter_map(Result::ok).map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.retain(|name| name.starts_with("gpu-") && name.ends_with(".json"));
    names.sort();
    let mut reports = Vec::new();
    for name in names {
        let path = folder.join(name);
        let text = fs::read_to_string(repository::root().join(&path))?;
        let report = parse(&path, &text)?;
        reports.push((path, report));
    }
    Ok(reports)
}

fn todays_sources() -> BTreeMap<String, String> {
    cuattn_kernels::sources()
        .map(|(path, text)| (path.to_owned(), blake3::hash(text.as_bytes()).to_hex().to_string()))
        .collect()
}

/// The kernel sources of a suite that are not today what they were in the report: changed, added or removed.
fn changed(suite: &Suite, then: &BTreeMap<String, String>, now: &BTreeMap<String, String>) -> Vec<String> {
    let used = |path: &&String| suite.kernels.iter().any(|prefix| path.starts_with(prefix.as_str()));
    let paths: BTreeSet<_> = then.keys().chain(now.keys()).filter(used).collect();
    paths.into_iter().filter(|path| then.get(*path) != now.get(*path)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suite(kernels: &[&str]) -> Suite {
        Suite {
            name: "softmax".into(),
            kernels: kernels.iter().map(|&prefix| prefix.to_owned()).collect(),
            cases: 1,
            problems: 1,
            failures: Vec::new(),
        }
    }

    fn map(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
        entries.iter().map(|&(path, hash)| (path.to_owned(), hash.to_owned())).collect()
    }

    #[test]
    fn a_suite_is_stale_by_its_own_files_alone() {
        let then = map(&[("softmax/a.cu", "1"), ("softmax/old.cu", "2"), ("flash/b.cu", "3")]);
        let now = map(&[("softmax/a.cu", "9"), ("softmax/new.cu", "2"), ("flash/b.cu", "8")]);
        assert_eq!(changed(&suite(&["softmax/"]), &then, &now), ["softmax/a.cu", "softmax/new.cu", "softmax/old.cu"]);
        assert_eq!(changed(&suite(&["flash/"]), &then, &then), Vec::<String>::new());
        assert_eq!(changed(&suite(&[]), &then, &now), Vec::<String>::new());
    }

    #[test]
    fn verdicts_say_where_findings_are_and_what_the_tool_may_have_missed() {
        let counts = |name: &str| BTreeMap::from([(name.to_owned(), 3)]);
        let old: Sanitizer = serde_json::from_str(r#"{"tool": "memcheck", "clean": true}"#).unwrap();
        assert_eq!(old.verdict(), "clean");
        assert_eq!(
            Sanitizer { tool_errors: counts("lost track"), ..old }.verdict(),
            "clean, the tool itself failed: lost track (3)"
        );
        let found: Sanitizer =
            serde_json::from_str(r#"{"tool": "racecheck", "clean": false, "findings": {"flash_sm90": 3}}"#).unwrap();
        assert_eq!(found.verdict(), "NOT CLEAN, findings in flash_sm90 (3)");
    }

    #[test]
    fn reports_of_formats_that_are_not_known_are_refused() {
        let text = |format: u32| {
            format!(
                r#"{{"format": {format}, "device": {{"name": ""}}, "commit": "", "date": "", "reduced": false, "suites": [],
                    "kernel_sources": {{}}}}"#
            )
        };
        assert!(parse(Path::new("x"), &text(1)).is_ok());
        assert!(parse(Path::new("x"), &text(2)).is_ok());
        assert!(parse(Path::new("x"), &text(3)).unwrap_err().to_string().contains("format 3"));
    }

    #[test]
    fn reports_are_named_by_device() {
        assert_eq!(path_for("gpu", "NVIDIA H200"), Path::new("docs/reports/gpu-h200.json"));
        assert_eq!(path_for("gpu", "NVIDIA GeForce RTX 4090"), Path::new("docs/reports/gpu-geforce-rtx-4090.json"));
        assert_eq!(path_for("gpu", "../x"), Path::new("docs/reports/gpu-x.json"));
    }

    #[test]
    fn reports_that_prove_nothing_are_refused() {
        let report = |change: fn(&mut Report)| {
            let mut report = Report {
                format: 2,
                device: Device { name: "NVIDIA H200".into() },
                commit: String::new(),
                date: String::new(),
                reduced: false,
                suites: vec![suite(&[])],
                kernel_sources: BTreeMap::new(),
                sanitizer: Vec::new(),
            };
            change(&mut report);
            acceptable(&report)
        };
        assert!(report(|_| {}).is_ok());
        assert!(report(|report| report.reduced = true).is_err());
        assert!(report(|report| report.suites.clear()).is_err());
        assert!(report(|report| report.suites[0].failures.push("wrong".into())).is_err());
        assert!(
            report(|report| report.sanitizer.push(Sanitizer {
                tool: "memcheck".into(),
                suites: Vec::new(),
                clean: false,
                findings: BTreeMap::new(),
                tool_errors: BTreeMap::new(),
            }))
            .is_err()
        );
    }
}
