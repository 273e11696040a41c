//! `gpu-suites`: runs the parity suites on a machine that has a GPU. Needs no cargo and no files beside itself.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, bail};
use clap::{Args, Parser, Subcommand};
use cuattn_tests::report::Report;
use cuattn_tests::runner::{self, Selection};
use cuattn_tests::sanitize::{self, Options, Tool};
use cuattn_tests::side_by_side::{default_jobs, run_suites};
use cuattn_tests::suites;

/// Runs the GPU parity suites. Exits with 0 only if something ran and all of it passed.
#[derive(Debug, Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: RunArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs the reduced suites under compute-sanitizer and adds its verdicts to a report
    Sanitize(SanitizeArgs),
}

#[derive(Debug, Args)]
struct RunArgs {
    /// Suites to run, repeated or separated by commas; all without it
    #[arg(long = "suite", value_name = "NAME", value_delimiter = ',')]
    suites: Vec<String>,
    /// Only cases whose name contains this
    #[arg(long, value_name = "SUBSTRING")]
    case: Option<String>,
    /// Not the cases whose name contains this, repeated for several
    #[arg(long, value_name = "SUBSTRING")]
    skip: Vec<String>,
    /// Small shapes and few problems, for compute-sanitizer
    #[arg(long)]
    reduced: bool,
    /// Seed of all random inputs; from the clock without it
    #[arg(long)]
    seed: Option<u64>,
    /// Cases side by side, each in a process of its own; 1 for all in one process
    #[arg(long, value_name = "N", default_value_t = default_jobs())]
    jobs: usize,
    /// One of those processes: neither says what the device is nor sums up
    #[arg(long, hide = true)]
    part: bool,
    /// Only cases of these very names
    #[arg(long, value_name = "CASE", hide = true)]
    exact: Vec<String>,
    /// Lists suites and cases, and runs nothing
    #[arg(long)]
    list: bool,
    /// Writes a JSON report
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct SanitizeArgs {
    /// Tools to run; all four without it
    #[arg(long = "tool", value_enum, value_delimiter = ',')]
    tools: Vec<Tool>,
    /// Suites to run, repeated or separated by commas; all without it
    #[arg(long = "suite", value_name = "NAME", value_delimiter = ',')]
    suites: Vec<String>,
    /// Seed of all random inputs
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The report of a full run, which gets the verdicts
    #[arg(long, value_name = "FILE")]
    report: PathBuf,
    /// Ends well where the machine has no compute-sanitizer; the report then has no verdicts
    #[arg(long)]
    if_available: bool,
    /// Runs side by side: a tool over a suite, or over a part of it. They share the GPU, and spend most of their time on the host
    #[arg(long, value_name = "N", default_value_t = default_jobs())]
    jobs: usize,
    /// Kernels that racecheck leaves out, as `--kernel-name-exclude` takes them; repeated for several, empty for none
    #[arg(long, value_name = "FILTER", default_value = sanitize::LEFT_OUT)]
    leave_out: Vec<String>,
    /// One more argument for compute-sanitizer, repeated for several, as in `--tool-argument=--force-blocking-launches`
    #[arg(long = "tool-argument", value_name = "ARGUMENT", allow_hyphen_values = true)]
    tool_arguments: Vec<String>,
    /// Folder for the tools' logs
    #[arg(long, value_name = "DIR", default_value = "sanitizer")]
    logs: PathBuf,
}

fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    let cli = Cli::parse();
    let outcome = match cli.command {
        Some(Command::Sanitize(args)) => sanitize(args),
        None => run(cli.run),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(args: RunArgs) -> anyhow::Result<bool> {
    let suites = suites::all();
    let seed = args.seed.unwrap_or_else(|| {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_nanos() as u64 % 1_000_000_007)
    });
    let selection = Selection {
        suites: args.suites,
        case: args.case,
        exact: args.exact,
        skip: args.skip,
        reduced: args.reduced,
        seed,
        is_part: args.part,
    };
    if args.list {
        for selected in selection.pick(&suites)? {
            for case in selected.cases {
                println!("{}::{}", selected.suite.name(), case.name);
            }
        }
        return Ok(true);
    }
    let begun = Instant::now();
    // After each suite or part of one: a run that is cut short keeps what it has.
    let keep = |report: &Report| args.report.as_deref().map_or(Ok(()), |path| report.write(path));
    let cases: usize = selection.pick(&suites)?.iter().map(|selected| selected.cases.len()).sum();
    let report = if args.jobs > 1 && cases > 1 && !args.part {
        run_suites(&suites, &selection, args.jobs, keep)?
    } else {
        runner::run(&suites, &selection, keep)?
    };
    if args.part {
        return Ok(report.passed());
    }
    println!("{}", runner::summary(&report));
    println!("took {:.0} s, up to {} cases at a time", begun.elapsed().as_secs_f64(), args.jobs.max(1));
    if let Some(path) = &args.report {
        println!("report: {}", path.display());
    }
    Ok(report.passed())
}

fn sanitize(args: SanitizeArgs) -> anyhow::Result<bool> {
    let report = Report::read(&args.report).context("run the suites with `--report` first")?;
    let Some(sanitizer) = sanitize::find() else {
        let text = "compute-sanitizer is not on this machine, so it was NOT RUN. It comes with the CUDA toolkit; name it \
                    in CUATTN_COMPUTE_SANITIZER, or put its folder on PATH";
        if args.if_available {
            println!("{text}");
            return Ok(true);
        }
        bail!(text);
    };
    let version = sanitize::version(&sanitizer).unwrap_or_else(|| "of a version that it does not tell".to_owned());
    println!("compute-sanitizer {version}, {}", sanitizer.display());
    if let Some(caution) = sanitize::caution(&version) {
        println!("{caution}");
    }
    let tools = if args.tools.is_empty() { Tool::ALL.to_vec() } else { args.tools };
    let options = Options {
        sanitizer,
        seed: args.seed,
        logs: args.logs,
        jobs: args.jobs,
        left_out: args.leave_out.into_iter().filter(|filter| !filter.is_empty()).collect(),
        arguments: args.tool_arguments,
    };
    println!("the same suites without a tool first, so that none waits for the compiler ...");
    sanitize::fill_cache(&args.suites, &options)?;
    // After each run: one that is cut short keeps what was found so far.
    let report =
        sanitize::run(&suites::all(), &args.suites, &tools, &options, report, |report| report.write(&args.report))?;
    println!("{}", runner::summary(&report));
    Ok(report.sanitizer.iter().all(|tool| tool.clean))
}
