//! `tune`: measures which tiles are the fastest, here or packed for a machine that has a GPU but no Rust.
//!
//! The table of tiles is data, `crates/cuattn-kernels/src/flash/tiles.csv`. `--import` keeps a report of a run in docs/reports, and
//! `--write` writes what a report says into the table: [`rows`] judges.

mod rows;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, bail, ensure};
use cuattn_kernels::flash::tiles::{self, Measured};
use serde::Deserialize;

use self::rows::{Case, judge};
use crate::gpu_report::path_for;
use crate::step::{Outcome, succeed};
use crate::{artifact, bundle, repository};

/// Measures the tiles that the flash engine's kernels could take, on this machine's GPU, or packs that for a machine without Rust
///
/// The table of tiles is crates/cuattn-kernels/src/flash/tiles.csv. To have it written from measurements:
///
///   cargo xtask tune --write                   on a machine with a GPU
///
///   cargo xtask tune --import REPORT --write   from the report of a bundle's run
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Builds a folder with the program and a run.sh instead of running anything
    #[arg(long, value_name = "DIR", conflicts_with = "import")]
    bundle: Option<PathBuf>,
    /// Keeps a report in docs/reports and sums it up, instead of running anything
    #[arg(long, value_name = "REPORT")]
    import: Option<PathBuf>,
    /// Keeps the report and writes the table of tiles from it. A row takes the tile that was fastest in the geometric mean over its cases, if
    /// it was faster than the row's own by more than 1 % and more than times vary; rows whose tile stands are noted as measured
    #[arg(long, conflicts_with = "bundle")]
    write: bool,
    /// Arguments of the program, such as `--path mma --case "d128 causal" --seconds 120`; `--list` lists the cases
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    tune: Vec<String>,
}

const RUN: &str = include_str!("tune/run.sh");

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match (&args.bundle, &args.import) {
        (Some(folder), _) => bundle(folder),
        (_, Some(report)) => import(report, args.write),
        _ => run_here(&args.tune, args.write),
    }
}

fn run_here(arguments: &[String], write: bool) -> anyhow::Result<ExitCode> {
    let lists = arguments.iter().any(|argument| argument == "--list");
    let probe = curt::probe();
    if !lists && !probe.has_gpu() {
        bail!(
            "no GPU was found, so nothing was measured. `cargo xtask tune --bundle DIR` packs the measurements for a \
             machine that has one.\n\n{probe}"
        );
    }
    let folder = repository::target()?.join("tune");
    pack(&folder)?;
    let mut command = Command::new(folder.join("run.sh"));
    let outcome = succeed(command.env("OUT", &folder).args(arguments))?;
    let report = folder.join("tuning.json");
    if write && !lists && outcome == Outcome::passed() {
        return import(&report, true);
    }
    if !lists {
        println!("to keep it: cargo xtask tune --import {}", report.display());
    }
    Ok(if outcome == Outcome::passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn bundle(folder: &Path) -> anyhow::Result<ExitCode> {
    let bytes = pack(folder)?;
    bundle::announce(folder, bytes, "", " --seconds 500")?;
    println!("then here: cargo xtask tune --import results/tuning.json --write");
    Ok(ExitCode::SUCCESS)
}

/// Makes the folder of a bundle, and gives its size.
fn pack(folder: &Path) -> anyhow::Result<u64> {
    let program = artifact::program("cuattn-benches", "tune")?;
    let packed = bundle::put(&program, folder, "tune")?;
    bundle::put_run_script(folder, RUN)?;
    let bytes = fs::metadata(&packed)?.len();
    Ok(bytes + RUN.len() as u64)
}

/// What a report must say before it is kept.
#[derive(Deserialize)]
struct Report {
    schema: u32,
    date: String,
    device: String,
    driver: String,
    not_run: Vec<String>,
    cases: Vec<Case>,
}

fn import(path: &Path, write: bool) -> anyhow::Result<ExitCode> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let report: Report =
        serde_json::from_str(&text).with_context(|| format!("{} is no report of tune", path.display()))?;
    acceptable(&report)?;
    let source = if write { Some(measured(&report)?) } else { None };
    fs::create_dir_all(repository::root().join("docs/reports"))?;
    let kept = repository::root().join(path_for("tuning", &report.device));
    fs::write(&kept, text).with_context(|| format!("cannot write {}", kept.display()))?;
    println!("kept as {}", kept.display());
    if !report.not_run.is_empty() {
        println!("not measured, for want of time: {}", report.not_run.join(", "));
    }
    let mut command = repository::cargo();
    command.args(["run", "--quiet", "--profile", "bundle", "--package", "cuattn-benches", "--bin", "tune", "--"]);
    let summary = succeed(command.arg("--summarize").arg(&kept))?;
    if let Some(source) = source {
        write_table(&report, &source)?;
    }
    Ok(match summary {
        Outcome::Passed(_) => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// Writes what the report says of the rows of the table into it.
fn write_table(report: &Report, source: &Measured) -> anyhow::Result<()> {
    let file = repository::root().join(tiles::FILE);
    let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let judged = judge(tiles::parse(&text)?, &report.cases, source);
    let new = judged.write_into(&text);
    print!("\n{judged}");
    if new == text {
        println!("{} says all that already", tiles::FILE);
        return Ok(());
    }
    fs::write(&file, new).with_context(|| format!("cannot write {}", file.display()))?;
    println!("written to {}", tiles::FILE);
    println!("what else changes with a tile: cargo test -p cuattn-kernels, and cargo xtask kernels");
    Ok(())
}

/// The first version of the report that names rows.
const NAMES_ROWS: u32 = 2;

/// How the table names the report.
fn measured(report: &Report) -> anyhow::Result<Measured> {
    ensure!(
        report.schema >= NAMES_ROWS,
        "this report is of version {}, which does not say from which rows of the table its choices come, so no table can \
         be written from it: measure anew, or keep it without --write",
        report.schema
    );
    let (date, is_date) = match report.date.split_once('T') {
        Some((date, _)) => (date, date.split('-').all(|part| part.parse::<u32>().is_ok())),
        None => ("", false),
    };
    ensure!(is_date, "this report does not say when it was begun, but `{}`", report.date);
    for text in [&report.device, &report.driver] {
        ensure!(!text.is_empty() && !text.contains([',', '"']), "`{text}` does not fit a column of {}", tiles::FILE);
    }
    let file = path_for("tuning", &report.device);
    let name = file.file_name().context("a report has a name")?.to_string_lossy().into_owned();
    let (device, driver) = (report.device.clone(), report.driver.clone());
    Ok(Measured { report: name, device, driver, date: date.to_owned() })
}

/// Refuses reports that no table may be written from.
fn acceptable(report: &Report) -> anyhow::Result<()> {
    ensure!(!report.cases.is_empty(), "nothing was measured in this report");
    if let Some(case) = report.cases.iter().find(|case| case.error.is_some()) {
        bail!("the case `{}` failed: {}", case.case, case.error.as_deref().unwrap_or_default());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bundle::make_executable;

    #[cfg(unix)]
    #[test]
    fn run_sh_passes_on_arguments_and_the_exit_code() {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in [("tune", "#!/usr/bin/env bash\necho \"$@\"\nexit 3\n"), ("run.sh", RUN)] {
            fs::write(folder.path().join(name), text).unwrap();
            make_executable(&folder.path().join(name)).unwrap();
        }
        let out = folder.path().join("results");
        let output =
            Command::new(folder.path().join("run.sh")).env("OUT", &out).args(["--case", "d128 causal"]).output();
        let output = output.unwrap();
        assert_eq!(output.status.code(), Some(3));
        let called = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(called.starts_with("--date 2") && called.trim_end().ends_with("tuning.json --case d128 causal"));
        assert_eq!(fs::read_to_string(out.join("tuning.log")).unwrap(), called);
    }

    fn empty() -> Report {
        Report {
            schema: NAMES_ROWS,
            date: "2026-12-01T01:10:10Z".into(),
            device: "NVIDIA H200".into(),
            driver: "13.0".into(),
            not_run: Vec::new(),
            cases: Vec::new(),
        }
    }

    #[test]
    fn the_table_names_a_report_by_its_file_and_day() {
        let source = measured(&empty()).unwrap();
        assert_eq!((source.report.as_str(), source.date.as_str()), ("tuning-h200.json", "2026-12-01"));
        let refused = |report| measured(&report).unwrap_err().to_string();
        assert!(
            refused(Report { schema: 1, ..empty() }).starts_with("this report is of version 1, which does not say")
        );
        assert!(refused(Report { date: "unknown".into(), ..empty() }).ends_with("but `unknown`"));
        assert!(refused(Report { driver: String::new(), ..empty() }).contains("does not fit a column"));
    }

    #[test]
    fn a_report_of_nothing_or_with_a_failed_case_is_not_kept() {
        let case = |error: &Option<&str>| Case {
            case: "mma d64".into(),
            error: error.map(Into::into),
            row: None,
            candidates: Vec::new(),
        };
        let report = |errors: &[Option<&str>]| Report { cases: errors.iter().map(case).collect(), ..empty() };
        assert!(acceptable(&report(&[None])).is_ok());
        assert!(acceptable(&report(&[])).is_err());
        let failed = acceptable(&report(&[None, Some("off by 1")])).unwrap_err();
        assert_eq!(failed.to_string(), "the case `mma d64` failed: off by 1");
    }
}
