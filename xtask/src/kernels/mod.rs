//! `kernels`: compiles every kernel variant for every architecture it claims, and watches what each one costs.
//!
//! ptxas tells the registers, shared memory and spills of each kernel. They are compared with a snapshot in the repository, so
//! that a change that costs occupancy is seen when it is made, on a machine without a GPU.

mod earlier;
mod snapshot;
mod usage;

use std::process::ExitCode;
use std::str::FromStr as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;
use curt::{Arch, Compiler, ModuleSource};
use indicatif::{ProgressBar, ProgressStyle};

use self::earlier::Earlier;
use self::snapshot::Snapshot;
use self::usage::Usage;
use crate::nvrtc::{self, Nvrtc};
use crate::repository;
use crate::step::Outcome;
use crate::table::table;

/// Compiles every kernel variant for every architecture, without a GPU, and prints what each one uses
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Args {
    /// Only these architectures, separated by commas, such as sm_90a
    #[arg(long = "arch", value_name = "ARCH", value_delimiter = ',')]
    architectures: Vec<String>,
    /// Only variants whose name contains this
    #[arg(long, value_name = "SUBSTRING")]
    filter: Option<String>,
    /// Lists the variants and compiles none
    #[arg(long)]
    list: bool,
    /// Fails also where a kernel uses more registers or shared memory than in the snapshot
    #[arg(long)]
    check: bool,
    /// Makes what is compiled now the snapshot
    #[arg(long, conflicts_with_all = ["check", "filter", "architectures"])]
    bless: bool,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    if args.list {
        println!("{}", list(&args));
        return Ok(ExitCode::SUCCESS);
    }
    Ok(suite(&args)?.told())
}

/// The compile suite as `ci` runs it: everything, compared with the snapshot.
pub(crate) fn check() -> anyhow::Result<Outcome> {
    suite(&Args { check: true, ..Args::default() })
}

fn suite(args: &Args) -> anyhow::Result<Outcome> {
    let jobs = jobs(args);
    ensure!(!jobs.is_empty(), "no kernel variant is of that name and architecture (`--list` shows them all)");
    let compiler = match nvrtc::find_or_fetch()? {
        Nvrtc::Installed(compiler) | Nvrtc::Fetched { compiler, .. } => compiler,
        Nvrtc::Missing(why) => {
            return Ok(Outcome::NotRun(format!("{} kernels were not compiled: {why}", jobs.len())));
        }
    };
    let (major, minor) = compiler.version();
    let nvrtc = format!("{major}.{minor}");
    let earlier = Earlier::open(&repository::target()?.join("kernels/outcomes.jsonl"))?;
    let results = compile_all(&Compilation { compiler, nvrtc: &nvrtc, earlier: &earlier }, &jobs);
    let whole = args.filter.is_none() && args.architectures.is_empty();
    if whole {
        earlier.forget_others(
            &jobs.iter().map(|job| earlier::key(&job.source, job.architecture, &nvrtc)).collect::<Vec<_>>(),
        );
    }
    println!("{}", show(&results));
    let known = results.iter().filter(|compiled| compiled.took.is_none()).count();
    let known = if known == 0 { String::new() } else { format!(", {known} of them earlier and unchanged since") };
    let mut covered = format!("{} kernels compiled by NVRTC {nvrtc}{known}", results.len());
    let mut faults: Vec<String> = results.iter().flat_map(Compiled::faults).collect();
    if args.bless && faults.is_empty() {
        Snapshot::of(&results, nvrtc).write()?;
        covered += ", and made the snapshot";
    } else if args.check {
        let snapshot = Snapshot::read()?;
        if snapshot.nvrtc == nvrtc {
            faults.extend(snapshot.compare(&results, whole));
        } else {
            covered += &format!(" (not compared with the snapshot, which is of NVRTC {})", snapshot.nvrtc);
        }
    }
    if faults.is_empty() {
        return Ok(Outcome::Passed(covered));
    }
    Ok(Outcome::Failed(format!("{} faults in {covered}\n{}", faults.len(), faults.join("\n"))))
}

/// One variant for one architecture.
struct Job {
    variant: String,
    tuned: bool,
    architecture: &'static str,
    source: ModuleSource,
}

fn jobs(args: &Args) -> Vec<Job> {
    let named = |name: &str| args.filter.as_ref().is_none_or(|part| name.contains(part.as_str()));
    let wanted = |name: &str| args.architectures.is_empty() || args.architectures.iter().any(|wanted| wanted == name);
    let mut jobs = Vec::new();
    for variant in cuattn_kernels::variants().into_iter().filter(|variant| named(&variant.name)) {
        // The engines compile the same text with the same options; being verbose changes no code.
        let source = ModuleSource::new(variant.source.root(), variant.source.assemble()).verbose();
        for architecture in variant.architectures.iter().filter(|architecture| wanted(architecture.0)) {
            jobs.push(Job {
                variant: variant.name.clone(),
                tuned: variant.tuned,
                architecture: architecture.0,
                source: source.clone(),
            });
        }
    }
    jobs
}

/// A job that was done.
#[derive(Debug)]
struct Compiled {
    variant: String,
    tuned: bool,
    architecture: &'static str,
    /// Nothing where an earlier run did it.
    took: Option<Duration>,
    /// Usage and warnings, or why it does not compile.
    result: Result<(Usage, Vec<String>), String>,
}

impl Compiled {
    /// Its name in the snapshot.
    fn key(&self) -> String {
        format!("{} @ {}", self.variant, self.architecture)
    }

    /// What is wrong with it, whatever the snapshot says.
    fn faults(&self) -> Vec<String> {
        let key = self.key();
        match &self.result {
            Err(text) => vec![format!("{key}: does not compile\n{text}")],
            Ok((usage, warnings)) => {
                let spills = (self.tuned && usage.spill_bytes > 0)
                    .then(|| format!("{key}: spills {} bytes, and is a tuned variant", usage.spill_bytes));
                // Any warning: C75xx says that wgmma was serialised, and others have been as bad.
                spills.into_iter().chain(warnings.iter().map(|warning| format!("{key}: {warning}"))).collect()
            }
        }
    }
}

/// What jobs are done with.
struct Compilation<'a> {
    compiler: Compiler,
    nvrtc: &'a str,
    earlier: &'a Earlier,
}

fn compile_all(compilation: &Compilation<'_>, jobs: &[Job]) -> Vec<Compiled> {
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} {elapsed} {msg}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    let progress = ProgressBar::new(jobs.len() as u64).with_style(style);
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(jobs.len()));
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from).min(jobs.len()) {
            scope.spawn(|| {
                while let Some((index, job)) = {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    jobs.get(index).map(|job| (index, job))
                } {
                    progress.set_message(format!("{} {}", job.variant, job.architecture));
                    let compiled = compilation.compile(job);
                    done.lock().unwrap_or_else(PoisonError::into_inner).push((index, compiled));
                    progress.inc(1);
                }
            });
        }
    });
    progress.finish_and_clear();
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, compiled)| compiled).collect()
}

impl Compilation<'_> {
    fn compile(&self, job: &Job) -> Compiled {
        let key = earlier::key(&job.source, job.architecture, self.nvrtc);
        let (took, outcome) = match self.earlier.get(&key) {
            Some(outcome) => (None, Ok(outcome.clone())),
            None => {
                let begun = Instant::now();
                let outcome = self.compile_now(job);
                if let Ok(outcome) = &outcome {
                    self.earlier.keep(&key, outcome);
                }
                (Some(begun.elapsed()), outcome)
            }
        };
        Compiled {
            variant: job.variant.clone(),
            tuned: job.tuned,
            architecture: job.architecture,
            took,
            result: outcome.map(|outcome| (outcome.usage, outcome.warnings)),
        }
    }

    fn compile_now(&self, job: &Job) -> Result<earlier::Outcome, String> {
        let arch = Arch::from_str(job.architecture).map_err(|error| error.to_string())?;
        let cubin = self.compiler.compile(&job.source, arch).map_err(|error| error.to_string())?;
        let usage = Usage::most(&cubin.resources())
            .ok_or_else(|| format!("the compiler's log does not say what the kernel uses:\n{}", cubin.log))?;
        Ok(earlier::Outcome { usage, warnings: cubin.warnings().iter().map(ToString::to_string).collect() })
    }
}

fn show(results: &[Compiled]) -> String {
    let mut table =
        table(&["variant", "architecture", "registers", "shared", "stack", "spills", "warnings", "seconds"], 2);
    for compiled in results {
        let numbers = match &compiled.result {
            Ok((usage, warnings)) => [
                usage.registers.to_string(),
                usage.shared_bytes.to_string(),
                usage.stack_bytes.to_string(),
                usage.spill_bytes.to_string(),
                warnings.len().to_string(),
            ],
            Err(_) => ["FAILED", "", "", "", ""].map(String::from),
        };
        let mut row = vec![compiled.variant.clone(), compiled.architecture.to_owned()];
        row.extend(numbers);
        row.push(compiled.took.map_or("earlier".to_owned(), |took| format!("{:.2}", took.as_secs_f64())));
        table.add_row(row);
    }
    table.to_string()
}

fn list(args: &Args) -> String {
    let mut table = table(&["variant", "root", "entry", "architectures", "tuned"], 5);
    let named = |name: &str| args.filter.as_ref().is_none_or(|part| name.contains(part.as_str()));
    for variant in cuattn_kernels::variants().iter().filter(|variant| named(&variant.name)) {
        let architectures: Vec<_> = variant.architectures.iter().map(|architecture| architecture.0).collect();
        table.add_row([
            variant.name.as_str(),
            variant.source.root(),
            variant.source.entry(),
            architectures.join(" ").as_str(),
            if variant.tuned { "yes" } else { "" },
        ]);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn compiled(variant: &str, usage: Usage) -> Compiled {
        Compiled {
            variant: variant.to_owned(),
            tuned: true,
            architecture: "sm_90a",
            took: None,
            result: Ok((usage, Vec::new())),
        }
    }

    #[test]
    fn spills_are_a_fault_of_tuned_variants() {
        let mut spilling = compiled("flash", Usage { spill_bytes: 8, ..Usage::default() });
        assert_eq!(spilling.faults(), ["flash @ sm_90a: spills 8 bytes, and is a tuned variant"]);
        spilling.tuned = false;
        assert!(spilling.faults().is_empty());
    }

    #[test]
    fn warnings_and_failures_are_faults_of_every_variant() {
        let mut warned = compiled("flash", Usage::default());
        warned.tuned = false;
        warned.result = Ok((Usage::default(), vec!["(C7510) wgmma serialized".into()]));
        assert_eq!(warned.faults(), ["flash @ sm_90a: (C7510) wgmma serialized"]);
        warned.result = Err("mask.cuh(3): error".into());
        assert!(warned.faults()[0].contains("does not compile\nmask.cuh(3): error"));
    }
}
