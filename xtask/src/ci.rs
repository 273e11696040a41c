//! `ci`: everything that a machine without a GPU can check.

use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::Context as _;
use clap::ValueEnum;

use crate::cargo_deny::CargoDeny;
use crate::step::{Outcome, Steps, succeed};
use crate::{emulate, gpu_report, gpu_test, kernels, nvrtc, onnx_test, repository, tidy};

/// Runs every check that needs no GPU: what a pull request must pass
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only these steps, separated by commas
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Check>,
    /// Fails also where a step could not run
    #[arg(long)]
    strict: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Check {
    /// `cargo fmt --check`
    Format,
    /// Layers, names, and what must not be where
    Tidy,
    /// clippy over everything, warnings denied
    Clippy,
    /// rustdoc over everything, warnings denied
    Docs,
    /// Every test that needs no GPU
    Tests,
    /// Every example in the documentation
    DocTests,
    /// The oldest Rust that the workspace states
    Msrv,
    /// Bans, licences and sources of dependencies; advisories where their database can be reached
    Deny,
    /// Every kernel variant for every architecture
    Kernels,
    /// Kernels' text on this machine's processor, against float64
    Emulation,
    /// The parity suites, reduced, on a GPU that this machine's processor plays
    EmulatedGpu,
    /// ONNX's attention cases through ONNX Runtime with the plugin, on the host and on such a GPU
    Onnx,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let begun = Instant::now();
    let target = repository::target()?;
    std::fs::create_dir_all(&target).with_context(|| format!("cannot make the folder {}", target.display()))?;
    let marker = target.join("xtask-ci");
    let is_first = !marker.exists();
    // Other commands may have built there before: a first run is not always one from cold. One that is cut short counts.
    std::fs::write(&marker, "a run of `cargo xtask ci` began here\n")?;
    let mut steps = Steps::default();
    for check in Check::value_variants().iter().filter(|check| args.only.is_empty() || args.only.contains(check)) {
        match check {
            Check::Format => steps.run("format", format),
            Check::Tidy => steps.run("tidy", tidy::check),
            Check::Clippy => steps.run("clippy", clippy),
            Check::Docs => steps.run("docs", docs),
            Check::Tests => steps.run("tests", tests),
            Check::DocTests => steps.run("doc tests", doc_tests),
            Check::Msrv => steps.run("oldest Rust", msrv),
            Check::Deny => {
                let mut cargo_deny = None;
                steps.run("dependencies", || {
                    cargo_deny = CargoDeny::find_or_install()?;
                    cargo_deny.as_ref().map_or_else(CargoDeny::missing, CargoDeny::check)
                });
                steps.run("advisories", || {
                    cargo_deny.as_ref().map_or_else(CargoDeny::missing, CargoDeny::check_advisories)
                });
            }
            Check::Kernels => steps.run("compile suite", kernels::check),
            Check::Emulation => steps.run("emulation", emulate::check),
            Check::EmulatedGpu => steps.run("suites, emulated", gpu_test::check_emulated),
            Check::Onnx => {
                steps.run("ONNX on the host", onnx_test::check);
                steps.run("ONNX, emulated", onnx_test::check_emulated);
            }
        }
    }
    println!("\n{}", steps.table());
    if let Ok(status) = gpu_report::status() {
        println!("GPU reports: {status}");
    }
    println!(
        "{:.0} s, {}",
        begun.elapsed().as_secs_f64(),
        if is_first { "the first run in this build folder" } else { "in a warm build folder" }
    );
    println!("{}", steps.closing_line());
    Ok(if steps.succeeded(args.strict) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn format() -> anyhow::Result<Outcome> {
    if !answers(repository::cargo().args(["fmt", "--version"])) {
        return Ok(Outcome::Failed("rustfmt is not installed: rustup component add rustfmt".into()));
    }
    succeed(repository::cargo().args(["fmt", "--all", "--check"]))
}

fn clippy() -> anyhow::Result<Outcome> {
    if !answers(repository::cargo().args(["clippy", "--version"])) {
        return Ok(Outcome::Failed("clippy is not installed: rustup component add clippy".into()));
    }
    succeed(repository::cargo().args([
        "clippy",
        "--workspace",
        "--all-targets",
        "--all-features",
        "--",
        "-D",
        "warnings",
    ]))
}

fn docs() -> anyhow::Result<Outcome> {
    succeed(
        repository::cargo()
            .args(["doc", "--workspace", "--no-deps", "--keep-going", "--all-features"])
            .env("RUSTDOCFLAGS", "-D warnings"),
    )
}

fn tests() -> anyhow::Result<Outcome> {
    let mut command = repository::cargo();
    if answers(repository::cargo().args(["nextest", "--version"])) {
        command.args(["nextest", "run", "--workspace", "--profile", "ci"]);
    } else {
        command.args(["test", "--workspace", "--no-fail-fast", "--lib", "--bins", "--tests", "--examples"]);
    }
    // Tests that compile kernels use the compiler that the compile suite would use; without one they say so themselves.
    if let nvrtc::Nvrtc::Fetched { wheels, .. } = nvrtc::find_or_fetch()? {
        command.env(nvrtc::WHEELS_VARIABLE, wheels);
    }
    succeed(&mut command)
}

fn doc_tests() -> anyhow::Result<Outcome> {
    succeed(repository::cargo().args(["test", "--workspace", "--doc"]))
}

fn msrv() -> anyhow::Result<Outcome> {
    let metadata = repository::metadata()?;
    let version = metadata
        .packages
        .iter()
        .find_map(|package| package.rust_version.as_ref())
        .context("the workspace states no rust-version")?;
    let toolchain = format!("{}.{}", version.major, version.minor);
    // `cargo +toolchain` is rustup's: the cargo that started us does not know it.
    let installed = Command::new("rustup").args(["toolchain", "list"]).output();
    let installed = installed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    if !installed
        .lines()
        .any(|line| line.starts_with(&format!("{toolchain}-")) || line.starts_with(&format!("{toolchain}.")))
    {
        return Ok(Outcome::NotRun(format!(
            "Rust {toolchain} is not installed (rustup toolchain install {toolchain} --profile minimal)"
        )));
    }
    succeed(
        Command::new("rustup")
            .current_dir(repository::root())
            .args(["run", &toolchain, "cargo", "check", "--workspace", "--all-targets"])
            // Cargo and rustup hand these down, and they name the toolchain that started us.
            .env_remove("RUSTUP_TOOLCHAIN")
            .env_remove("CARGO")
            .env_remove("RUSTC"),
    )
}

/// Whether a command exists and answers.
fn answers(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}
