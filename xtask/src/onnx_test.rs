//! `onnx-test`: ONNX Runtime with the plugin, on ONNX's own cases and on graphs as models have them; here, or packed for
//! a machine that has a GPU but no Rust.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, bail, ensure};
use serde::Deserialize;

use crate::emulate::EmulatedGpu;
use crate::gpu_report::path_for;
use crate::step::{Outcome, command_line, succeed};
use crate::table::table;
use crate::{artifact, bundle, repository};

/// Runs ONNX's attention cases and real models' nodes through ONNX Runtime with the plugin
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Builds a folder with the plugin, the scripts, the wheels and a run.sh instead of running anything
    #[arg(long, value_name = "DIR", conflicts_with_all = ["import", "host"])]
    bundle: Option<PathBuf>,
    /// Keeps a report of another machine in docs/reports instead of running anything
    #[arg(long, value_name = "REPORT", conflicts_with = "host")]
    import: Option<PathBuf>,
    /// Computes on the host even where there is a GPU
    #[arg(long)]
    host: bool,
    /// Computes with the kernels on a GPU that this machine's processor plays; needs a C++ compiler, no GPU
    #[arg(long, conflicts_with_all = ["bundle", "import", "host"])]
    emulated: bool,
    /// The version of ONNX Runtime
    #[arg(long, value_name = "VERSION", default_value = RUNTIME)]
    onnxruntime: String,
    /// Seed of all random inputs; a random one without it
    #[arg(long)]
    seed: Option<u64>,
}

/// The newest ONNX Runtime, the first that knows Attention of opset 25.
const RUNTIME: &str = "1.32.0";
/// The newest ONNX: its cases follow errata that were made without a new opset.
const ONNX: &str = "1.23.2";
/// What a bundle carries besides: the newest that ONNX was tested with.
const ML_DTYPES: &str = "0.6.0";
/// The Python of the machines that a bundle is for, and the tags of wheels that fit them.
const BUNDLE_PYTHON: &str = "3.12";
const BUNDLE_TAGS: [&str; 4] = ["manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux2014_x86_64", "any"];

const RUN: &str = include_str!("onnx_test/run.sh");

/// Where this is `1`, the plugin computes on the host.
const HOST_VARIABLE: &str = "CUATTN_ORT_HOST";

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    if let Some(folder) = &args.bundle {
        return bundle(folder, &args.onnxruntime);
    }
    if let Some(report) = &args.import {
        let read = Report::read(report)?;
        read.acceptable()?;
        println!("{}\nkept as {}", read.table(), keep(&read, report)?.display());
        return Ok(ExitCode::SUCCESS);
    }
    Ok(run_here(&args, !args.emulated)?.told())
}

/// The whole of it on the host, as a step of `ci`, which leaves the kept reports alone.
pub(crate) fn check() -> anyhow::Result<Outcome> {
    check_on(false)
}

/// The same with kernels, on an emulated GPU.
pub(crate) fn check_emulated() -> anyhow::Result<Outcome> {
    if let Some(why) = EmulatedGpu::is_impossible() {
        return Ok(Outcome::NotRun(why));
    }
    check_on(true)
}

fn check_on(emulated: bool) -> anyhow::Result<Outcome> {
    let runtime = RUNTIME.to_owned();
    // Always the same inputs: a run of `ci` that fails fails again.
    let seed = Some(1);
    run_here(&Args { bundle: None, import: None, host: !emulated, emulated, onnxruntime: runtime, seed }, false)
}

/// Runs the cases on this machine; a run that passed is kept as a report where `kept` says so.
fn run_here(args: &Args, kept: bool) -> anyhow::Result<Outcome> {
    let folder = repository::target()?.join("onnx-test");
    let python = match environment(&folder, &args.onnxruntime) {
        Ok(python) => python,
        Err(error) => {
            return Ok(Outcome::NotRun(format!("onnx-test: there is no Python with ONNX Runtime: {error:#}")));
        }
    };
    let host = args.host || (!args.emulated && !curt::probe().has_gpu());
    let library = artifact::shared_library("cuattn-ort", "cuattn_ort")?;
    let report = folder.join(match (host, args.emulated) {
        (true, _) => "report-host.json",
        (_, true) => "report-emulated.json",
        _ => "report.json",
    });
    let _ = fs::remove_file(&report);
    let mut command = Command::new(&python);
    command.arg("-B").arg(scripts().join("run.py")).arg("--plugin").arg(&library).arg("--out").arg(&report);
    command.args(["--commit", &repository::commit()]);
    if let Some(seed) = args.seed {
        command.args(["--seed", &seed.to_string()]);
    }
    if host {
        command.env(HOST_VARIABLE, "1");
    } else {
        command.env_remove(HOST_VARIABLE);
    }
    if args.emulated {
        EmulatedGpu::build()?.is_seen_by(&mut command)?.arg("--no-times");
    }
    let outcome = succeed(&mut command)?;
    if report.is_file() {
        let mut read = Report::read(&report)?;
        if args.emulated {
            "an emulated GPU".clone_into(&mut read.device);
        }
        println!("{}", read.table());
        if kept && outcome == Outcome::passed() && args.onnxruntime == RUNTIME {
            println!("kept as {}", keep(&read, &report)?.display());
        }
        if outcome == Outcome::passed() {
            return Ok(Outcome::Passed(read.closing_line()));
        }
    }
    Ok(outcome)
}

fn scripts() -> PathBuf {
    repository::root().join("crates/cuattn-ort/tests/python")
}

/// A virtual environment with what the scripts import, made once for each version.
fn environment(folder: &Path, runtime: &str) -> anyhow::Result<PathBuf> {
    let name = format!("onnx-{ONNX}-onnxruntime-{runtime}");
    let place = folder.join(&name);
    let python = |place: &Path| place.join("bin/python");
    let complete = place.join("complete");
    if complete.is_file() {
        return Ok(python(&place));
    }
    println!("making a Python environment in {}", place.display());
    let _ = fs::remove_dir_all(&place);
    fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
    let system = std::env::var_os("PYTHON").unwrap_or_else(|| "python3".into());
    quiet(Command::new(system).args(["-m", "venv"]).arg(&place))?;
    let packages = [format!("onnx=={ONNX}"), format!("onnxruntime=={runtime}"), format!("ml_dtypes=={ML_DTYPES}")];
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary=:all:"];
    quiet(Command::new(python(&place)).args(pip).args(packages))?;
    // An environment whose making was cut short is made again.
    fs::write(&complete, "").with_context(|| format!("cannot write {}", complete.display()))?;
    Ok(python(&place))
}

fn quiet(command: &mut Command) -> anyhow::Result<()> {
    let line = command_line(command);
    let output = command.output().with_context(|| format!("cannot start `{line}`"))?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`{line}` failed: {}", text.trim().lines().last().unwrap_or("without a word"));
    Ok(())
}

fn bundle(folder: &Path, runtime: &str) -> anyhow::Result<ExitCode> {
    let library = artifact::shared_library("cuattn-ort", "cuattn_ort")?;
    let (packed, wheels) = (folder.join("python"), folder.join("wheels"));
    for made in [&packed, &wheels] {
        let _ = fs::remove_dir_all(made);
        fs::create_dir_all(made).with_context(|| format!("cannot make the folder {}", made.display()))?;
    }
    bundle::put(&library, folder, "libcuattn_ort.so")?;
    for entry in fs::read_dir(scripts())?.filter_map(Result::ok) {
        let path = entry.path();
        if path.extension().is_some_and(|extension| extension == "py") {
            fs::copy(&path, packed.join(entry.file_name()))?;
        }
    }
    let mut pip = Command::new(std::env::var_os("PYTHON").unwrap_or_else(|| "python3".into()));
    pip.args(["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--implementation", "cp"]);
    pip.args(["--python-version", BUNDLE_PYTHON, "--abi", "cp312", "--abi", "abi3", "--abi", "none"]);
    for tag in BUNDLE_TAGS {
        pip.args(["--platform", tag]);
    }
    pip.arg("--dest").arg(&wheels);
    quiet(pip.args([format!("onnx=={ONNX}"), format!("onnxruntime=={runtime}"), format!("ml_dtypes=={ML_DTYPES}")]))?;
    fs::write(folder.join("commit.txt"), repository::commit())?;
    bundle::put_run_script(folder, RUN)?;
    bundle::announce(folder, size(folder)?, &format!(", with Python {BUNDLE_PYTHON}"), "")?;
    println!("then here: cargo xtask onnx-test --import results/onnx.json");
    Ok(ExitCode::SUCCESS)
}

fn size(folder: &Path) -> anyhow::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        bytes += if entry.file_type()?.is_dir() { size(&entry.path())? } else { entry.metadata()?.len() };
    }
    Ok(bytes)
}

/// What `run.py` wrote, as far as it is looked at here.
#[derive(Debug, Deserialize)]
struct Report {
    device: String,
    onnxruntime: String,
    onnx: String,
    cases: Vec<Case>,
    graphs: Vec<Case>,
}

#[derive(Debug, Deserialize)]
struct Case {
    name: String,
    #[serde(default)]
    features: Vec<String>,
    outcome: String,
}

impl Case {
    fn passed(&self) -> bool {
        self.outcome == "passed"
    }

    /// What an older runtime does not know is nobody's failure.
    fn failed(&self) -> bool {
        !self.passed() && self.outcome != "not loaded" && self.outcome != "not possible"
    }
}

impl Report {
    fn read(path: &Path) -> anyhow::Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} is no report of run.py", path.display()))
    }

    /// Refuses reports that prove nothing.
    fn acceptable(&self) -> anyhow::Result<()> {
        ensure!(!self.cases.is_empty() && !self.graphs.is_empty(), "nothing ran in this report");
        if let Some(case) = self.cases.iter().chain(&self.graphs).find(|case| case.failed()) {
            bail!("`{}` is {} in this report", case.name, case.outcome);
        }
        Ok(())
    }

    fn closing_line(&self) -> String {
        let passed = |cases: &[Case]| cases.iter().filter(|case| case.passed()).count();
        format!(
            "ONNX Runtime {} with the plugin on {}: {} of {} attention cases of ONNX {}, {} of {} graph tests",
            self.onnxruntime,
            self.device,
            passed(&self.cases),
            self.cases.len(),
            self.onnx,
            passed(&self.graphs),
            self.graphs.len(),
        )
    }

    /// Attention cases by what they are about; a case is in as many rows as it has features.
    fn table(&self) -> String {
        let mut rows: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        for case in &self.cases {
            for feature in &case.features {
                let (passed, all) = rows.entry(feature).or_default();
                *all += 1;
                *passed += usize::from(case.passed());
            }
        }
        let mut table = table(&["feature", "passed", "cases"], 1);
        for (feature, (passed, all)) in rows {
            table.add_row([feature.to_owned(), passed.to_string(), all.to_string()]);
        }
        format!("{table}\n{}", self.closing_line())
    }
}

/// Keeps a report in docs/reports.
fn keep(report: &Report, path: &Path) -> anyhow::Result<PathBuf> {
    let runtime = if report.onnxruntime == RUNTIME { String::new() } else { format!("-{}", report.onnxruntime) };
    let place = path_for(&format!("onnx{runtime}"), &report.device);
    fs::create_dir_all(repository::root().join("docs/reports"))?;
    fs::copy(path, repository::root().join(&place)).with_context(|| format!("cannot write {}", place.display()))?;
    Ok(place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bundle::make_executable;

    fn case(name: &str, features: &[&str], outcome: &str) -> Case {
        let features = features.iter().map(|&feature| feature.to_owned()).collect();
        Case { name: name.to_owned(), features, outcome: outcome.to_owned() }
    }

    fn report(cases: Vec<Case>) -> Report {
        let graphs = vec![case("graph", &[], "passed")];
        Report { device: "host".into(), onnxruntime: RUNTIME.into(), onnx: ONNX.into(), cases, graphs }
    }

    #[test]
    fn the_table_counts_features() {
        let report = report(vec![
            case("a", &["causal", "float"], "passed"),
            case("b", &["float"], "failed"),
            case("c", &["causal"], "not loaded"),
        ]);
        insta::assert_snapshot!(report.table(), @r"
        ──────────────────────────
         feature   passed   cases 
        ══════════════════════════
         causal         1       2 
         float          1       2 
        ──────────────────────────
        ONNX Runtime 1.32.0 with the plugin on host: 1 of 3 attention cases of ONNX 1.23.2, 1 of 1 graph tests
        ");
    }

    #[test]
    fn a_report_with_failures_or_of_nothing_is_not_kept() {
        assert!(report(vec![case("a", &[], "passed"), case("b", &[], "not loaded")]).acceptable().is_ok());
        let failed = report(vec![case("a", &[], "skipped")]).acceptable().unwrap_err();
        assert_eq!(failed.to_string(), "`a` is skipped in this report");
        assert!(report(vec![]).acceptable().is_err());
    }

    #[cfg(unix)]
    #[test]
    fn run_sh_unpacks_wheels_and_passes_on_the_exit_code() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for made in ["python", "wheels"] {
            fs::create_dir(path(made)).unwrap();
        }
        for (name, text) in [("run.sh", RUN), ("wheels/a.whl", "a wheel"), ("commit.txt", "abc")] {
            fs::write(path(name), text).unwrap();
        }
        // A stand-in for Python: it unpacks by making the folder, and the run notes how it was called.
        let python = "#!/usr/bin/env bash\n\
            if [ \"$1\" = -m ]; then mkdir -p \"$5\"; exit; fi\n\
            echo \"$PYTHONPATH\" \"$@\" > \"$OUT/called\"; exit 3\n";
        fs::write(path("stand-in"), python).unwrap();
        for script in ["run.sh", "stand-in"] {
            make_executable(&path(script)).unwrap();
        }
        let mut command = Command::new(path("run.sh"));
        command.env("PYTHON", path("stand-in")).env("OUT", path("out")).env_remove("PYTHONPATH").args(["--seed", "5"]);
        assert_eq!(command.output().unwrap().status.code(), Some(3));
        let called = fs::read_to_string(path("out/called")).unwrap();
        assert!(called.contains("/unpacked "), "{called}");
        assert!(called.trim_end().ends_with("onnx.json --commit abc --seed 5"), "{called}");
    }
}
