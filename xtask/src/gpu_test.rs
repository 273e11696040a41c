//! `gpu-test`: the parity suites, here or packed for a machine that has a GPU but no Rust.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::bail;

use crate::emulate::EmulatedGpu;
use crate::step::{Outcome, succeed};
use crate::{artifact, bundle, gpu_report, repository};

/// Runs the parity suites on this machine's GPU, or packs them for a machine without Rust
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Builds a folder with the suites and a run.sh instead of running anything
    #[arg(long, value_name = "DIR")]
    bundle: Option<PathBuf>,
    /// Suites to run, separated by commas; all without it
    #[arg(long = "suite", value_name = "NAME", value_delimiter = ',')]
    suites: Vec<String>,
    /// Only cases whose name contains this
    #[arg(long, value_name = "SUBSTRING")]
    case: Option<String>,
    /// Seed of all random inputs; from the clock without it
    #[arg(long)]
    seed: Option<u64>,
    /// Also runs the reduced suites under compute-sanitizer
    #[arg(long)]
    sanitize: bool,
    /// Runs the reduced suites on a GPU that this machine's processor plays; needs a C++ compiler, no GPU
    #[arg(long, conflicts_with_all = ["bundle", "sanitize"])]
    emulated: bool,
}

const RUN: &str = include_str!("gpu_test/run.sh");

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match &args.bundle {
        Some(folder) => bundle(folder),
        None if args.emulated => Ok(on_emulated_gpu(&args)?.told()),
        None => run_here(&args),
    }
}

/// The reduced suites on an emulated GPU, as a step of `ci`: always the same problems, so that a second run finds its kernels compiled.
pub(crate) fn check_emulated() -> anyhow::Result<Outcome> {
    if let Some(why) = EmulatedGpu::is_impossible() {
        return Ok(Outcome::NotRun(why));
    }
    on_emulated_gpu(&Args {
        bundle: None,
        suites: Vec::new(),
        case: None,
        seed: Some(1),
        sanitize: false,
        emulated: true,
    })
}

/// What an emulated GPU passes says nothing of a device, so there is no report.
fn on_emulated_gpu(args: &Args) -> anyhow::Result<Outcome> {
    let gpu = EmulatedGpu::build()?;
    let mut command = std::process::Command::new(artifact::program("cuattn-tests", "gpu-suites")?);
    select(gpu.is_seen_by(&mut command)?, args).arg("--reduced");
    for part in BEYOND_EMULATION {
        command.args(["--skip", part]);
    }
    succeed(&mut command)
}

/// Cases of the suite `runtime` that an emulated GPU cannot pass: blocks that run at the same time, kernels with PTX of their own,
/// cudarc, which calls more of the driver, and pools that keep memory, which here would hide what is used after it was freed.
const BEYOND_EMULATION: [&str; 6] = [
    "cluster launch",
    "cooperative launch",
    "programmatic dependent launch",
    "tensor maps are encoded and load their box",
    "a stream of cudarc",
    "the pool is reused and counted",
];

/// Hands on what is to run.
fn select<'a>(command: &'a mut std::process::Command, args: &Args) -> &'a mut std::process::Command {
    command.current_dir(repository::root());
    for suite in &args.suites {
        command.args(["--suite", suite]);
    }
    if let Some(case) = &args.case {
        command.args(["--case", case]);
    }
    if let Some(seed) = args.seed {
        command.args(["--seed", &seed.to_string()]);
    }
    command
}

fn run_here(args: &Args) -> anyhow::Result<ExitCode> {
    let probe = curt::probe();
    if !probe.has_gpu() {
        bail!(
            "no GPU was found, so nothing was run. `cargo xtask gpu-test --bundle DIR` packs the suites for a machine \
             that has one.\n\n{probe}"
        );
    }
    let suites = artifact::program("cuattn-tests", "gpu-suites")?;
    let target = repository::target()?;
    let report = target.join("gpu-report.json");
    let _ = fs::remove_file(&report);
    let mut command = std::process::Command::new(&suites);
    select(&mut command, args).arg("--report").arg(&report);
    let mut passed = succeed(&mut command)? == Outcome::passed();
    if args.sanitize {
        let mut command = std::process::Command::new(&suites);
        command.current_dir(repository::root()).arg("sanitize").arg("--report").arg(&report);
        command.arg("--logs").arg(target.join("sanitizer"));
        for suite in &args.suites {
            command.args(["--suite", suite]);
        }
        passed &= succeed(&mut command)? == Outcome::passed();
    }
    if !passed {
        return Ok(ExitCode::FAILURE);
    }
    if args.suites.is_empty() && args.case.is_none() {
        println!("kept as {}", gpu_report::import(&report)?.display());
    } else {
        println!("a part of the suites: the report stays in {}", report.display());
    }
    Ok(ExitCode::SUCCESS)
}

fn bundle(folder: &Path) -> anyhow::Result<ExitCode> {
    let suites = artifact::program("cuattn-tests", "gpu-suites")?;
    let binary = bundle::put(&suites, folder, "gpu-suites")?;
    let script = bundle::put_run_script(folder, RUN)?;
    let bytes = [&binary, &script].iter().filter_map(|path| fs::metadata(path).ok()).map(|data| data.len()).sum();
    bundle::announce(folder, bytes, "", "")?;
    println!("then here: cargo xtask gpu-report --import results/gpu-report.json");
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bundle::make_executable;

    #[cfg(unix)]
    #[test]
    fn run_sh_is_a_script_that_bash_can_read() {
        let status = std::process::Command::new("bash").args(["-n", "-c", RUN]).status().unwrap();
        assert!(status.success());
    }

    #[cfg(unix)]
    #[test]
    fn run_sh_passes_only_if_the_suites_and_the_sanitizer_do() {
        use std::process::Command;
        // A stand-in for the suites, which fails on demand.
        let suites = "#!/usr/bin/env bash\n\
            if [ \"$1\" = sanitize ]; then exit \"${SANITIZER:-0}\"; fi\n\
            while [ $# -gt 0 ]; do [ \"$1\" = --report ] && echo '{}' > \"$2\"; shift; done\n\
            exit \"${SUITES:-0}\"\n";
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in [("gpu-suites", suites), ("run.sh", RUN)] {
            fs::write(folder.path().join(name), text).unwrap();
            make_executable(&folder.path().join(name)).unwrap();
        }
        let out = folder.path().join("results");
        let code = |variables: &[(&str, &str)]| {
            let mut command = Command::new(folder.path().join("run.sh"));
            command.env("OUT", &out).envs(variables.iter().copied());
            command.output().unwrap().status.code().unwrap()
        };
        assert_eq!(code(&[]), 0);
        assert!(out.join("gpu-report.json").is_file());
        assert!(out.join("suites.log").is_file());
        assert_ne!(code(&[("SUITES", "1")]), 0);
        assert_ne!(code(&[("SANITIZER", "1")]), 0);
    }
}
