//! `bench`: the comparison with other people's attention kernels, here or packed for a machine without Rust, and its
//! pages.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, bail, ensure};
use serde::Deserialize;

use crate::gpu_report::path_for;
use crate::step::{Outcome, succeed};
use crate::{artifact, bundle, repository};

/// Compares ours with PyTorch's attention and FlashAttention-3 on this machine's GPU, in one process
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Builds a folder with the library, the scripts and a run.sh instead of running anything
    #[arg(long, value_name = "DIR", conflicts_with_all = ["plots", "import"])]
    bundle: Option<PathBuf>,
    /// Draws the pages of a report beside it instead of running anything
    #[arg(long, value_name = "REPORT", conflicts_with = "import")]
    plots: Option<PathBuf>,
    /// Keeps a report in docs/reports, with its pages, instead of running anything
    #[arg(long, value_name = "REPORT")]
    import: Option<PathBuf>,
    /// Arguments for peers/compare.py, such as `--suite prefill masks --quick --seconds 300`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    compare: Vec<String>,
}

const RUN: &str = include_str!("bench/run.sh");

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match (&args.bundle, &args.plots, &args.import) {
        (Some(folder), ..) => bundle(folder),
        (_, Some(report), _) => plots(report),
        (.., Some(report)) => import(report),
        _ => run_here(&args.compare),
    }
}

fn run_here(compare: &[String]) -> anyhow::Result<ExitCode> {
    let probe = curt::probe();
    if !probe.has_gpu() {
        bail!(
            "no GPU was found, so nothing was compared. `cargo xtask bench --bundle DIR` packs the comparison for a \
             machine that has one.\n\n{probe}"
        );
    }
    let library = artifact::shared_library("cuattn-benches", "cuattn_bench")?;
    let folder = repository::target()?.join("peers");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
    let report = folder.join("peers.json");
    let _ = fs::remove_file(&report);
    let mut command = Command::new(std::env::var_os("PYTHON").unwrap_or_else(|| "python3".into()));
    command.current_dir(repository::root()).arg("benches/peers/compare.py");
    command.arg("--library").arg(&library).arg("--out").arg(&report).args(["--commit", &repository::commit()]);
    let outcome = succeed(command.args(compare))?;
    if report.is_file() {
        plots(&report)?;
        println!("to keep it: cargo xtask bench --import {}", report.display());
    }
    Ok(if outcome == Outcome::passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn bundle(folder: &Path) -> anyhow::Result<ExitCode> {
    let library = artifact::shared_library("cuattn-benches", "cuattn_bench")?;
    let scripts = folder.join("peers");
    fs::create_dir_all(&scripts).with_context(|| format!("cannot make the folder {}", scripts.display()))?;
    let packed = bundle::put(&library, folder, "libcuattn_bench.so")?;
    let mut bytes = fs::metadata(&packed)?.len();
    for script in scripts_of(&repository::root().join("benches/peers"))? {
        let name = script.file_name().context("a script without a name")?;
        bytes += fs::copy(&script, scripts.join(name)).with_context(|| format!("cannot copy {}", script.display()))?;
    }
    fs::write(scripts.join("commit.txt"), repository::commit())?;
    bundle::put_run_script(folder, RUN)?;
    bundle::announce(folder, bytes, "", " --seconds 500")?;
    println!("A FlashAttention-3 wheel in {}/wheels is compared with too.", folder.display());
    println!("then here: cargo xtask bench --import results/peers.json");
    Ok(ExitCode::SUCCESS)
}

/// The scripts that a comparison needs: all but its tests.
fn scripts_of(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut scripts: Vec<_> = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "py"))
        .filter(|path| path.file_name().is_some_and(|name| !name.to_string_lossy().starts_with("test_")))
        .collect();
    scripts.sort();
    ensure!(!scripts.is_empty(), "no scripts in {}", folder.display());
    Ok(scripts)
}

/// Draws the pages of a report beside it.
fn plots(report: &Path) -> anyhow::Result<ExitCode> {
    let report = report.canonicalize().with_context(|| format!("cannot find {}", report.display()))?;
    let mut command = repository::cargo();
    command.args([
        "run",
        "--quiet",
        "--profile",
        "bundle",
        "--package",
        "cuattn-benches",
        "--bin",
        "plot-report",
        "--",
    ]);
    Ok(match succeed(command.arg(report))? {
        Outcome::Passed(_) => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// What a report must say before it is kept.
#[derive(Deserialize)]
struct Report {
    machine: Machine,
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Machine {
    device: String,
}

#[derive(Deserialize)]
struct Row {
    case: String,
    ratio_to_best: Option<f64>,
    error: Option<String>,
}

fn import(path: &Path) -> anyhow::Result<ExitCode> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let report: Report =
        serde_json::from_str(&text).with_context(|| format!("{} is no report of compare.py", path.display()))?;
    acceptable(&report)?;
    fs::create_dir_all(repository::root().join("docs/reports"))?;
    let kept = repository::root().join(path_for("peers", &report.machine.device));
    fs::write(&kept, text).with_context(|| format!("cannot write {}", kept.display()))?;
    println!("kept as {}", kept.display());
    plots(&kept)
}

/// Refuses reports that prove nothing.
fn acceptable(report: &Report) -> anyhow::Result<()> {
    if let Some(row) = report.rows.iter().find(|row| row.error.is_some()) {
        bail!("the row `{}` failed: {}", row.case, row.error.as_deref().unwrap_or_default());
    }
    ensure!(report.rows.iter().any(|row| row.ratio_to_best.is_some()), "nothing was compared in this report");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bundle::make_executable;

    #[cfg(unix)]
    #[test]
    fn run_sh_unpacks_wheels_and_passes_on_arguments_and_the_exit_code() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for made in ["peers", "wheels"] {
            fs::create_dir(path(made)).unwrap();
        }
        fs::write(path("run.sh"), RUN).unwrap();
        make_executable(&path("run.sh")).unwrap();
        fs::write(path("wheels/a.whl"), "a wheel").unwrap();
        // A stand-in for Python: it unpacks by making the folder, and the comparison notes how it was called.
        let python = "#!/usr/bin/env bash\n\
            if [ \"$1\" = -m ]; then mkdir -p \"$5\"; exit; fi\n\
            echo \"$PYTHONPATH\" \"$@\" > \"$OUT/called\"; exit 3\n";
        fs::write(path("python"), python).unwrap();
        make_executable(&path("python")).unwrap();
        let mut command = Command::new(path("run.sh"));
        command
            .env("PYTHON", path("python"))
            .env("OUT", path("out"))
            .env_remove("PYTHONPATH")
            .args(["--suite", "masks"]);
        assert_eq!(command.output().unwrap().status.code(), Some(3));
        let called = fs::read_to_string(path("out/called")).unwrap();
        assert!(called.contains("/a ") && called.trim_end().ends_with("peers.json --suite masks"), "{called}");
    }

    fn row(ratio_to_best: Option<f64>, error: Option<&str>) -> Row {
        Row { case: "b1 h8/8 512 d64".into(), ratio_to_best, error: error.map(Into::into) }
    }

    fn report(rows: Vec<Row>) -> Report {
        Report { machine: Machine { device: "NVIDIA H200".into() }, rows }
    }

    #[test]
    fn a_report_with_a_failed_row_or_no_comparison_is_not_kept() {
        assert!(acceptable(&report(vec![row(Some(1.1), None)])).is_ok());
        let failed = acceptable(&report(vec![row(Some(1.1), None), row(None, Some("off by 1"))]));
        assert_eq!(failed.unwrap_err().to_string(), "the row `b1 h8/8 512 d64` failed: off by 1");
        assert!(acceptable(&report(vec![row(None, None)])).is_err());
        assert!(acceptable(&report(vec![])).is_err());
    }

    #[test]
    fn arguments_of_the_comparison_need_no_separator() {
        #[derive(clap::Parser)]
        struct Cli {
            #[command(flatten)]
            args: Args,
        }
        let parse = |line: &str| <Cli as clap::Parser>::try_parse_from(line.split(' ')).unwrap().args;
        assert_eq!(parse("bench --suite prefill --quick").compare, ["--suite", "prefill", "--quick"]);
        assert_eq!(parse("bench --bundle there").bundle, Some("there".into()));
    }
}
