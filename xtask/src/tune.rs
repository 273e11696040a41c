//! `tune`: measures which tiles are the fastest, here or packed for a machine that has a GPU but no Rust.
//!
//! The tables of tiles are source, in `crates/cuattn-kernels/src/flash/`: a person changes them, by what a report says. `--import` keeps
//! the report that they then name.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, bail, ensure};
use serde::Deserialize;

use crate::gpu_report::path_for;
use crate::step::{Outcome, succeed};
use crate::{artifact, bundle, repository};

/// Measures the tiles that the flash engine's kernels could take, on this machine's GPU, or packs that for a machine without Rust
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Builds a folder with the program and a run.sh instead of running anything
    #[arg(long, value_name = "DIR", conflicts_with = "import")]
    bundle: Option<PathBuf>,
    /// Keeps a report in docs/reports and sums it up, instead of running anything
    #[arg(long, value_name = "REPORT")]
    import: Option<PathBuf>,
    /// Arguments of the program, such as `--path mma --case "d128 causal" --seconds 120`; `--list` lists the cases
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    tune: Vec<String>,
}

const RUN: &str = include_str!("tune/run.sh");

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match (&args.bundle, &args.import) {
        (Some(folder), _) => bundle(folder),
        (_, Some(report)) => import(report),
        _ => run_here(&args.tune),
    }
}

fn run_here(arguments: &[String]) -> anyhow::Result<ExitCode> {
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
    if !lists {
        println!("to keep it: cargo xtask tune --import {}", folder.join("tuning.json").display());
    }
    Ok(if outcome == Outcome::passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn bundle(folder: &Path) -> anyhow::Result<ExitCode> {
    let bytes = pack(folder)?;
    bundle::announce(folder, bytes, "", " --seconds 500")?;
    println!("then here: cargo xtask tune --import results/tuning.json");
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
    device: String,
    not_run: Vec<String>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    case: String,
    error: Option<String>,
}

fn import(path: &Path) -> anyhow::Result<ExitCode> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let report: Report =
        serde_json::from_str(&text).with_context(|| format!("{} is no report of tune", path.display()))?;
    acceptable(&report)?;
    fs::create_dir_all(repository::root().join("docs/reports"))?;
    let kept = repository::root().join(path_for("tuning", &report.device));
    fs::write(&kept, text).with_context(|| format!("cannot write {}", kept.display()))?;
    println!("kept as {}", kept.display());
    if !report.not_run.is_empty() {
        println!("not measured, for want of time: {}", report.not_run.join(", "));
    }
    let mut command = repository::cargo();
    command.args(["run", "--quiet", "--profile", "bundle", "--package", "cuattn-benches", "--bin", "tune", "--"]);
    Ok(match succeed(command.arg("--summarize").arg(&kept))? {
        Outcome::Passed(_) => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
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

    #[test]
    fn a_report_of_nothing_or_with_a_failed_case_is_not_kept() {
        let report = |errors: &[Option<&str>]| Report {
            device: "NVIDIA H200".into(),
            not_run: Vec::new(),
            cases: errors.iter().map(|error| Case { case: "mma d64".into(), error: error.map(Into::into) }).collect(),
        };
        assert!(acceptable(&report(&[None])).is_ok());
        assert!(acceptable(&report(&[])).is_err());
        let failed = acceptable(&report(&[None, Some("off by 1")])).unwrap_err();
        assert_eq!(failed.to_string(), "the case `mma d64` failed: off by 1");
    }
}
