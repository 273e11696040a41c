//! Measures the tiles that the flash engine's kernels could take, on this machine's GPU.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Parser;
use cuattn_bench::tuning::{Bench, Case, Report, SCHEMA, cases};
use curt::Runtime;

/// Measures every tile that the flash engine's kernels could take, on this machine's GPU.
#[derive(Parser)]
struct Arguments {
    /// Only the tiles of this path: sm90, sm90_f32, mma or simt.
    #[arg(long)]
    path: Option<String>,
    /// Only cases whose name contains this, such as `d128 causal`.
    #[arg(long)]
    case: Vec<String>,
    /// Seconds that the whole run may take. Cases for which none are left are listed, not measured.
    #[arg(long, default_value_t = 540)]
    seconds: u64,
    /// Where the report goes; `$OUT/tuning.json`, or `tuning.json`, without it.
    #[arg(long)]
    out: Option<PathBuf>,
    /// When the run was begun, for the report.
    #[arg(long, default_value = "unknown")]
    date: String,
    /// Lists the cases, and runs none.
    #[arg(long)]
    list: bool,
    /// Sums up a report instead of running anything.
    #[arg(long, value_name = "REPORT")]
    summarize: Option<PathBuf>,
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    if let Some(path) = &arguments.summarize {
        print!("{}", read(path)?.summary(4));
        return Ok(ExitCode::SUCCESS);
    }
    let cases = selected(&arguments)?;
    if arguments.list {
        cases.iter().for_each(|case| println!("{}", case.name));
        return Ok(ExitCode::SUCCESS);
    }
    let begun = Instant::now();
    let time = Duration::from_secs(arguments.seconds);
    let runtime = Runtime::new(0).with_context(|| format!("nothing can be measured here\n{}", curt::probe()))?;
    let mut report = empty_report(&runtime, &arguments)?;
    let out = arguments
        .out
        .clone()
        .unwrap_or_else(|| std::env::var_os("OUT").map(PathBuf::from).unwrap_or_default().join("tuning.json"));
    println!("{}, CUDA {}, NVRTC {}, commit {}", report.device, report.driver, report.nvrtc, report.commit);
    let mut bench = Bench::new(runtime)?;
    for (index, case) in cases.iter().enumerate() {
        let left = time.saturating_sub(begun.elapsed());
        if left.is_zero() {
            report.not_run = cases[index..].iter().map(|case| case.name.clone()).collect();
            break;
        }
        let measured = bench.measure(case, left / (cases.len() - index) as u32);
        println!("{}", measured.line(3));
        report.cases.push(measured);
        // Whatever ends the run, what was measured is kept.
        write(&report, &out)?;
    }
    write(&report, &out)?;
    print!("\nTiles by the geometric mean of their speed over the table's choice:\n{}", report.summary(3));
    if !report.not_run.is_empty() {
        println!("NOT RUN, for want of time: {}", report.not_run.join(", "));
    }
    println!("report: {}", out.display());
    let failed = report.cases.iter().filter(|case| case.error.is_some()).count();
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn selected(arguments: &Arguments) -> anyhow::Result<Vec<Case>> {
    let mut all = cases();
    let paths: HashSet<_> = all.iter().map(|case| case.path.name()).collect();
    if let Some(path) = &arguments.path {
        ensure!(paths.contains(path.as_str()), "there is no path `{path}`: take sm90, sm90_f32, mma or simt");
        all.retain(|case| case.path.name() == path);
    }
    if !arguments.case.is_empty() {
        all.retain(|case| arguments.case.iter().any(|wanted| case.name.contains(wanted.as_str())));
    }
    ensure!(!all.is_empty(), "no case has that in its name: `--list` lists them");
    Ok(all)
}

fn empty_report(runtime: &Runtime, arguments: &Arguments) -> anyhow::Result<Report> {
    let device = runtime.capabilities();
    let version = |(major, minor): (u32, u32)| format!("{major}.{minor}");
    Ok(Report {
        schema: SCHEMA,
        date: arguments.date.clone(),
        commit: option_env!("CUATTN_COMMIT").unwrap_or("unknown").to_owned(),
        device: device.name.clone(),
        driver: version(device.driver_version),
        nvrtc: version(curt::Compiler::new().context("kernels are compiled here, which needs NVRTC")?.version()),
        method: Bench::METHOD.to_owned(),
        not_run: Vec::new(),
        cases: Vec::new(),
    })
}

fn read(path: &Path) -> anyhow::Result<Report> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let report: Report =
        serde_json::from_str(&text).with_context(|| format!("{} is no tuning report", path.display()))?;
    let known = 1..=SCHEMA;
    ensure!(
        known.contains(&report.schema),
        "this report is of version {}, and this program reads {known:?}",
        report.schema
    );
    Ok(report)
}

fn write(report: &Report, path: &Path) -> anyhow::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let text = serde_json::to_string_pretty(report)?;
    std::fs::write(path, text + "\n").with_context(|| format!("cannot write {}", path.display()))
}
