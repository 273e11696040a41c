//! Runs suites on the device of this machine, prints a line a case, and makes the report.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Instant, SystemTime};

use anyhow::{Context as _, bail};
use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use comfy_table::{CellAlignment, Table, TableComponent};
use curt::Runtime;

use crate::report::{self, Device, FORMAT, Failure, Report, SuiteReport};
use crate::suite::Measurements;
use crate::{Case, Context, Suite};

/// What is to run.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Names of suites; none for all.
    pub suites: Vec<String>,
    /// Only cases whose name contains this.
    pub case: Option<String>,
    /// Only cases of these very names; none for all.
    pub exact: Vec<String>,
    /// Not cases whose name contains one of these.
    pub skip: Vec<String>,
    /// Only small shapes.
    pub reduced: bool,
    /// Seed of all random inputs.
    pub seed: u64,
    /// Whether another process says what the device is, and sums up.
    pub is_part: bool,
}

/// The selected suites with their selected cases.
#[derive(Debug)]
pub struct Selected<'a> {
    /// The suite.
    pub suite: &'a Suite,
    /// Which of its cases.
    pub cases: Vec<&'a Case>,
}

impl Selection {
    /// Picks cases out of `suites`, in their order.
    ///
    /// # Errors
    ///
    /// If a named suite or case does not exist, or no case is left: a run of nothing must not look like a pass.
    pub fn pick<'a>(&self, suites: &'a [Suite]) -> anyhow::Result<Vec<Selected<'a>>> {
        let known = || suites.iter().map(Suite::name).collect::<Vec<_>>().join(", ");
        for name in &self.suites {
            if !suites.iter().any(|suite| suite.name() == name) {
                bail!("there is no suite `{name}`; there are: {}", known());
            }
        }
        let wanted = |case: &&Case| {
            self.case.as_ref().is_none_or(|part| case.name.contains(part.as_str()))
                && (self.exact.is_empty() || self.exact.iter().any(|name| name == case.name))
                && !self.skip.iter().any(|part| case.name.contains(part.as_str()))
        };
        let picked: Vec<_> = suites
            .iter()
            .filter(|suite| self.suites.is_empty() || self.suites.iter().any(|name| name == suite.name()))
            .map(|suite| Selected { suite, cases: suite.cases().iter().filter(wanted).collect() })
            .filter(|selected| !selected.cases.is_empty())
            .collect();
        for name in &self.exact {
            if !picked.iter().flat_map(|selected| &selected.cases).any(|case| case.name == name) {
                bail!("the chosen suites have no case `{name}`");
            }
        }
        if picked.is_empty() {
            match &self.case {
                Some(part) => bail!("no case of the chosen suites has `{part}` in its name (`--list` shows them all)"),
                None => bail!("the chosen suites have no cases"),
            }
        }
        Ok(picked)
    }
}

/// Runs what is selected on device 0, in this process.
///
/// # Errors
///
/// If there is no GPU, or its runtime cannot be made, or nothing is selected. A failing case is no error: it is in the report.
pub fn run(
    suites: &[Suite],
    selection: &Selection,
    after_suite: impl Fn(&Report) -> anyhow::Result<()>,
) -> anyhow::Result<Report> {
    let picked = selection.pick(suites)?;
    // Kept to the end, so that the context of the device is made once.
    let (_first, mut report) = begin(selection, &picked)?;
    for selected in &picked {
        let runtime = Runtime::new(0)
            .with_context(|| format!("a runtime for the suite `{}` cannot be made", selected.suite.name()))?;
        report.suites.push(run_suite(&runtime, selected, selection));
        after_suite(&report)?;
    }
    Ok(report)
}

/// The report of a run of `picked` in which nothing has run yet, and the runtime that told what the device is. Says what runs where.
///
/// # Errors
///
/// If there is no GPU, or its runtime cannot be made.
pub(crate) fn begin(selection: &Selection, picked: &[Selected<'_>]) -> anyhow::Result<(Runtime, Report)> {
    let started = SystemTime::now();
    let probe = curt::probe();
    if !probe.has_gpu() {
        bail!("no GPU was found, so nothing was run. The suites need an NVIDIA GPU and its driver:\n\n{probe}");
    }
    let first = Runtime::new(0).context("the device is there, but a runtime on it cannot be made")?;
    let device = describe(&first)?;
    if !selection.is_part {
        println!("{}", greeting_of(&device, selection));
    }
    let prefixes: Vec<_> = picked.iter().flat_map(|selected| selected.suite.kernel_prefixes()).copied().collect();
    let report = Report {
        format: FORMAT,
        device,
        commit: commit().to_owned(),
        date: report::utc(started),
        seed: selection.seed,
        reduced: selection.reduced,
        suites: Vec::new(),
        kernel_sources: report::kernel_hashes(&prefixes),
        sanitizer: Vec::new(),
    };
    Ok((first, report))
}

fn greeting_of(device: &Device, selection: &Selection) -> String {
    format!(
        "{} (compute capability {}), driver {}, NVRTC {}, commit {}, seed {}{}",
        device.name,
        device.compute_capability,
        device.driver,
        device.nvrtc,
        commit(),
        selection.seed,
        if selection.reduced { ", reduced" } else { "" },
    )
}

/// The commit that this binary was built from, where its builder said so.
pub fn commit() -> &'static str {
    option_env!("CUATTN_COMMIT").unwrap_or("unknown")
}

fn describe(runtime: &Runtime) -> anyhow::Result<Device> {
    let capabilities = runtime.capabilities();
    let version = |(major, minor): (u32, u32)| format!("{major}.{minor}");
    let nvrtc = curt::Compiler::new().context("the suites compile their kernels, and need NVRTC")?.version();
    Ok(Device {
        name: capabilities.name.clone(),
        compute_capability: version(capabilities.compute_capability),
        driver: version(capabilities.driver_version),
        nvrtc: version(nvrtc),
    })
}

fn run_suite(runtime: &Runtime, selected: &Selected<'_>, selection: &Selection) -> SuiteReport {
    let suite = selected.suite;
    let begun = Instant::now();
    let mut report = SuiteReport::of(suite);
    // After an illegal access nothing works in the context any more: the cases that follow would only blame themselves.
    let mut lost_in: Option<&str> = None;
    for case in &selected.cases {
        report.cases += 1;
        let case_begun = Instant::now();
        let cx = Context::new(runtime, suite.name(), case.name, selection.seed, selection.reduced);
        let outcome = match lost_in {
            Some(culprit) => Err(format!("not run: the device context was lost in `{culprit}`")),
            None => run_case(case, &cx),
        };
        let Measurements { problems, worst, paths } = cx.take_measurements();
        report.problems += problems;
        for (path, problems) in paths {
            *report.paths.entry(path).or_default() += problems;
        }
        let mut errors = String::new();
        for (label, error) in worst {
            errors += &format!("  {label} l2 {:.1e} element {:.1e}", error.relative_l2, error.element);
            report.worst.entry(label).or_default().include(error);
        }
        let problems = if problems == 0 { String::new() } else { format!("  {problems} problems") };
        let mut lines = format!(
            "{} {}::{}{problems}{errors}  {:.2} s\n",
            if outcome.is_ok() { "ok    " } else { "FAILED" },
            suite.name(),
            case.name,
            case_begun.elapsed().as_secs_f64(),
        );
        if let Err(text) = outcome {
            lines += &format!("       {}\n", text.replace('\n', "\n       "));
            report.failures.push(Failure { case: case.name.to_owned(), text });
            if lost_in.is_none() && runtime.synchronize().is_err() {
                lost_in = Some(case.name);
            }
        }
        // In one piece: other processes print beside this one.
        let mut out = std::io::stdout().lock();
        let _ = out.write_all(lines.as_bytes()).and_then(|()| out.flush());
    }
    report.seconds = begun.elapsed().as_secs_f64();
    report
}

fn run_case(case: &Case, cx: &Context<'_>) -> Result<(), String> {
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        case.run(cx)?;
        // A kernel that faults is found by whoever synchronises next: that must be the case that launched it.
        cx.runtime().synchronize().context("the work that this case launched failed")
    }));
    match outcome {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(format!("{error:#}")),
        Err(panic) => {
            let text = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("a panic without text");
            Err(format!("panicked: {text}"))
        }
    }
}

/// The table at the end of a run.
pub fn summary(report: &Report) -> String {
    let mut table = Table::new();
    table.load_preset(UTF8_HORIZONTAL_ONLY).remove_style(TableComponent::HorizontalLines);
    table.remove_style(TableComponent::MiddleIntersections);
    table.set_header(["suite", "cases", "problems", "failed", "worst relative L2", "worst element", "seconds"]);
    for column in [1, 2, 3, 6] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let errors = |worst: &BTreeMap<String, report::WorstError>, pick: fn(&report::WorstError) -> f64| {
        worst.iter().map(|(label, error)| format!("{label} {:.1e}", pick(error))).collect::<Vec<_>>().join(", ")
    };
    for suite in &report.suites {
        table.add_row([
            suite.name.clone(),
            suite.cases.to_string(),
            suite.problems.to_string(),
            suite.failures.len().to_string(),
            errors(&suite.worst, |error| error.relative_l2),
            errors(&suite.worst, |error| error.element),
            format!("{:.1}", suite.seconds),
        ]);
    }
    let mut text = table.to_string();
    for suite in report.suites.iter().filter(|suite| !suite.paths.is_empty()) {
        let paths: Vec<_> = suite.paths.iter().map(|(path, problems)| format!("{path} {problems}")).collect();
        text += &format!("\n{} paths: {}", suite.name, paths.join(", "));
    }
    for tool in &report.sanitizer {
        text += &format!("\n{} over {}: {}", tool.tool, tool.suites.join(", "), tool.text());
    }
    let failed: usize = report.suites.iter().map(|suite| suite.failures.len()).sum();
    let cases: u64 = report.suites.iter().map(|suite| suite.cases).sum();
    text += &format!("\n{} passed, {failed} failed", cases - failed as u64);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suites() -> Vec<Suite> {
        vec![
            Suite::new("runtime").case("copy", |_| Ok(())).case("graph", |_| Ok(())),
            Suite::new("flash").case("causal", |_| Ok(())),
            Suite::new("empty"),
        ]
    }

    fn names(selection: &Selection) -> anyhow::Result<Vec<String>> {
        let suites = suites();
        let picked = selection.pick(&suites)?;
        Ok(picked
            .iter()
            .flat_map(|selected| selected.cases.iter().map(|case| format!("{}::{}", selected.suite.name(), case.name)))
            .collect())
    }

    #[test]
    fn everything_is_selected_unless_named() {
        assert_eq!(names(&Selection::default()).unwrap(), ["runtime::copy", "runtime::graph", "flash::causal"]);
        let flash = Selection { suites: vec!["flash".into()], ..Selection::default() };
        assert_eq!(names(&flash).unwrap(), ["flash::causal"]);
        let graph = Selection { case: Some("gra".into()), ..Selection::default() };
        assert_eq!(names(&graph).unwrap(), ["runtime::graph"]);
        let exact = Selection { exact: vec!["copy".into(), "causal".into()], ..Selection::default() };
        assert_eq!(names(&exact).unwrap(), ["runtime::copy", "flash::causal"]);
        let skip = Selection { skip: vec!["gra".into(), "caus".into()], ..Selection::default() };
        assert_eq!(names(&skip).unwrap(), ["runtime::copy"]);
    }

    #[test]
    fn a_selection_of_nothing_is_an_error() {
        let text = |selection: Selection| names(&selection).unwrap_err().to_string();
        insta::assert_snapshot!(
            text(Selection { suites: vec!["flush".into()], ..Selection::default() }),
            @"there is no suite `flush`; there are: runtime, flash, empty"
        );
        insta::assert_snapshot!(
            text(Selection { case: Some("zebra".into()), ..Selection::default() }),
            @"no case of the chosen suites has `zebra` in its name (`--list` shows them all)"
        );
        insta::assert_snapshot!(
            text(Selection { suites: vec!["empty".into()], ..Selection::default() }),
            @"the chosen suites have no cases"
        );
        insta::assert_snapshot!(
            text(Selection { exact: vec!["copy".into(), "cop".into()], ..Selection::default() }),
            @"the chosen suites have no case `cop`"
        );
    }

    #[test]
    fn the_summary_counts_failures_and_keeps_element_types_apart() {
        let worst = |relative_l2| report::WorstError { relative_l2, element: 2.0 * relative_l2 };
        let report = Report {
            format: FORMAT,
            device: Device {
                name: "NVIDIA H200".into(),
                compute_capability: "9.0".into(),
                driver: "13.0".into(),
                nvrtc: "13.0".into(),
            },
            commit: "abc".into(),
            date: String::new(),
            seed: 1,
            reduced: false,
            suites: vec![SuiteReport {
                name: "flash".into(),
                cases: 3,
                problems: 40,
                worst: BTreeMap::from([("f16".into(), worst(3e-4)), ("f32".into(), worst(1e-7))]),
                seconds: 1.25,
                failures: vec![Failure { case: "causal".into(), text: "wrong".into() }],
                ..SuiteReport::default()
            }],
            kernel_sources: BTreeMap::new(),
            sanitizer: Vec::new(),
        };
        let summary = summary(&report);
        assert!(summary.ends_with("2 passed, 1 failed"), "{summary}");
        assert!(summary.contains("f16 3.0e-4, f32 1.0e-7"), "{summary}");
    }
}
