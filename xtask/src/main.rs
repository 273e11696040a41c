//! The commands of this repository. `cargo xtask help` lists them.
//!
//! One file a command: it holds the command's arguments (`Args`) and its `run`. A new command is a new file, a variant of
//! [`Command`] and a line in [`Command::run`]. What several commands need is named after what it is: [`repository`],
//! [`nvrtc`], [`step`], [`table`].

mod artifact;
mod bench;
mod bundle;
mod cargo_deny;
mod ci;
mod emulate;
mod gpu_report;
mod gpu_test;
mod kernels;
mod nvrtc;
mod onnx_test;
mod repository;
mod step;
mod table;
mod tidy;
mod tune;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", about = "The commands of this repository")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Ci(ci::Args),
    Tidy(tidy::Args),
    Kernels(kernels::Args),
    Emulate(emulate::Args),
    EmulatedModule(emulate::ModuleArgs),
    GpuTest(gpu_test::Args),
    GpuReport(gpu_report::Args),
    Bench(bench::Args),
    Tune(tune::Args),
    OnnxTest(onnx_test::Args),
}

impl Command {
    fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Ci(args) => ci::run(args),
            Self::Tidy(args) => tidy::run(args),
            Self::Kernels(args) => kernels::run(args),
            Self::Emulate(args) => emulate::run(args),
            Self::EmulatedModule(args) => emulate::make_module(args),
            Self::GpuTest(args) => gpu_test::run(args),
            Self::GpuReport(args) => gpu_report::run(args),
            Self::Bench(args) => bench::run(args),
            Self::Tune(args) => tune::run(args),
            Self::OnnxTest(args) => onnx_test::run(args),
        }
    }
}

fn main() -> ExitCode {
    match Cli::parse().command.run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
