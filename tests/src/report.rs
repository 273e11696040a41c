//! The JSON report of a run: what ran where, on which kernel sources, and how far off the worst result was.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use crate::Suite;

/// Version of the format. A reader refuses what it does not know. Since 2, a verdict of compute-sanitizer says in which kernels findings
/// are, and can be clean though the tool itself failed at something.
pub const FORMAT: u32 = 2;

/// The oldest format that can be read: what it lacks is empty.
const OLDEST_FORMAT: u32 = 1;

/// One run of `gpu-suites`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`FORMAT`] of what wrote it.
    pub format: u32,
    /// The machine.
    pub device: Device,
    /// The commit that the binary was built from; ends in `-dirty` where the tree had changes.
    pub commit: String,
    /// When the run began, UTC.
    pub date: String,
    /// Seed of all random inputs.
    pub seed: u64,
    /// Whether only small shapes ran.
    pub reduced: bool,
    /// Suite by suite.
    pub suites: Vec<SuiteReport>,
    /// blake3 of every kernel source that the suites exercise, by path.
    pub kernel_sources: BTreeMap<String, String>,
    /// compute-sanitizer, tool by tool. Empty where it was not run.
    #[serde(default)]
    pub sanitizer: Vec<SanitizerReport>,
}

/// The device and the libraries of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// Its compute capability, as in `9.0`.
    pub compute_capability: String,
    /// CUDA version of the driver.
    pub driver: String,
    /// Version of NVRTC.
    pub nvrtc: String,
}

/// One suite of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SuiteReport {
    /// Its name.
    pub name: String,
    /// The kernel sources it exercises, by path prefix.
    pub kernels: Vec<String>,
    /// Cases that ran.
    pub cases: u64,
    /// Generated problems that were compared.
    pub problems: u64,
    /// The worst errors, by element type (`all` where a case does not tell them apart).
    pub worst: BTreeMap<String, WorstError>,
    /// Problems that each path of the engine did.
    #[serde(default)]
    pub paths: BTreeMap<String, u64>,
    /// Time of its cases, one after another: where they ran side by side, the sum over their processes.
    pub seconds: f64,
    /// Cases that failed, with what they said.
    pub failures: Vec<Failure>,
}

impl SuiteReport {
    /// The report of `suite` before any case ran.
    pub fn of(suite: &Suite) -> Self {
        let kernels = suite.kernel_prefixes().iter().map(|&prefix| prefix.to_owned()).collect();
        Self { name: suite.name().to_owned(), kernels, ..Self::default() }
    }

    /// Adds what other cases of the same suite did.
    fn include(&mut self, other: Self) {
        self.cases += other.cases;
        self.problems += other.problems;
        for (label, worst) in other.worst {
            self.worst.entry(label).or_default().include(worst);
        }
        for (path, problems) in other.paths {
            *self.paths.entry(path).or_default() += problems;
        }
        self.seconds += other.seconds;
        self.failures.extend(other.failures);
    }
}

/// The worst error over some results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorstError {
    /// Relative L2 error of the worst tensor.
    #[serde(with = "infinity_as_null")]
    pub relative_l2: f64,
    /// Worst element: absolute error over the largest magnitude of its reference tensor.
    #[serde(with = "infinity_as_null")]
    pub element: f64,
}

impl WorstError {
    /// Widens `self` to cover `other`. NaN counts as infinite, or `max` would drop it.
    pub fn include(&mut self, other: Self) {
        let worst = |a: f64, b: f64| if a.is_nan() || b.is_nan() { f64::INFINITY } else { a.max(b) };
        self.relative_l2 = worst(self.relative_l2, other.relative_l2);
        self.element = worst(self.element, other.element);
    }
}

/// A case that failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// Its name.
    pub case: String,
    /// What it said.
    pub text: String,
}

/// One compute-sanitizer tool over the reduced suites.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SanitizerReport {
    /// `memcheck`, `racecheck`, `initcheck` or `synccheck`.
    pub tool: String,
    /// Suites it ran over.
    pub suites: Vec<String>,
    /// Whether the tool found nothing and the suites passed under it. What it did not look at is in `left_out`, and what it may have
    /// missed in `tool_errors`.
    pub clean: bool,
    /// Findings by kernel; those without one are of [`OUTSIDE_KERNELS`].
    #[serde(default)]
    pub findings: BTreeMap<String, u64>,
    /// What the tool said of failures and limits of its own, and how often: none of it is a finding, but it may have missed some.
    #[serde(default)]
    pub tool_errors: BTreeMap<String, u64>,
    /// Filters of kernels that the tool did not look at.
    #[serde(default)]
    pub left_out: Vec<String>,
    /// The tool's closing line, or why there is none. Where the cases were divided over runs, those that differ.
    pub summary: String,
    /// Time of its runs, one after another.
    pub seconds: f64,
}

/// Where a finding is that names no kernel.
pub const OUTSIDE_KERNELS: &str = "outside kernels";

impl SanitizerReport {
    /// Everything for people: the verdict, where findings are, and what else must be known of it.
    pub fn text(&self) -> String {
        let list = |counts: &BTreeMap<String, u64>| {
            counts.iter().map(|(name, count)| format!("{name} ({count})")).collect::<Vec<_>>().join(", ")
        };
        let mut text = format!("{}: {}", if self.clean { "clean" } else { "NOT CLEAN" }, self.summary);
        if !self.findings.is_empty() {
            text += &format!("; findings in {}", list(&self.findings));
        }
        if !self.tool_errors.is_empty() {
            text += &format!("; the tool itself failed: {}", list(&self.tool_errors));
        }
        if !self.left_out.is_empty() {
            text += &format!("; left out: {}", self.left_out.join(", "));
        }
        text
    }

    /// The verdict of a tool whose cases were divided over `of` runs, of which some have ended: clean only where all have, and are.
    ///
    /// # Panics
    ///
    /// If none has ended.
    pub fn of_parts(ended: &[Self], of: usize) -> Self {
        let clean = ended.len() == of && ended.iter().all(|part| part.clean);
        // What is clean needs no words beside what is not.
        let words = ended.iter().filter(|part| part.clean == ended.iter().all(|part| part.clean));
        let mut summaries: Vec<_> = words.map(|part| part.summary.as_str()).collect();
        summaries.dedup();
        let mut summary = summaries.join("; ");
        if ended.len() < of {
            summary = format!("unfinished, {} of {of} runs: {summary}", ended.len());
        }
        let sum = |counts: fn(&Self) -> &BTreeMap<String, u64>| {
            let mut sum = BTreeMap::<_, u64>::new();
            for (name, count) in ended.iter().flat_map(counts) {
                *sum.entry(name.clone()).or_default() += count;
            }
            sum
        };
        Self {
            clean,
            findings: sum(|part| &part.findings),
            tool_errors: sum(|part| &part.tool_errors),
            summary,
            seconds: ended.iter().map(|part| part.seconds).sum(),
            ..ended[0].clone()
        }
    }
}

impl Report {
    /// Whether something ran, all of it passed, and no sanitizer complained.
    pub fn passed(&self) -> bool {
        self.suites.iter().any(|suite| suite.cases > 0)
            && self.suites.iter().all(|suite| suite.failures.is_empty())
            && self.sanitizer.iter().all(|tool| tool.clean)
    }

    /// Adds some cases of a suite to those that it has of it.
    pub fn include(&mut self, suite: SuiteReport) {
        match self.suites.iter_mut().find(|other| other.name == suite.name) {
            Some(other) => other.include(suite),
            None => self.suites.push(suite),
        }
    }

    /// Whether both are of one device, build, seed and size, so that they may be parts of one report.
    pub fn is_of_one_run_with(&self, other: &Self) -> bool {
        (&self.device, &self.commit, self.seed, self.reduced)
            == (&other.device, &other.commit, other.seed, other.reduced)
    }

    /// Reads a report.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, is no report, or is of a format that this build does not know.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read the report {}", path.display()))?;
        let mut report: Self =
            serde_json::from_str(&text).with_context(|| format!("{} is not a report of gpu-suites", path.display()))?;
        anyhow::ensure!(
            (OLDEST_FORMAT..=FORMAT).contains(&report.format),
            "{} has format {}, this build reads formats {OLDEST_FORMAT} to {FORMAT}: run the suites again",
            path.display(),
            report.format
        );
        // Whoever adds to it and writes it writes this format.
        report.format = FORMAT;
        Ok(report)
    }

    /// Writes the report in one step, so that a run that is killed leaves the old report or none.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let write = || -> anyhow::Result<()> {
            fs::create_dir_all(folder)?;
            let mut file = tempfile::NamedTempFile::new_in(folder)?;
            serde_json::to_writer_pretty(&mut file, self)?;
            file.write_all(b"\n")?;
            let file = file.persist(path)?;
            make_readable(&file)?;
            Ok(())
        };
        write().with_context(|| format!("cannot write the report {}", path.display()))
    }
}

// A temporary file is its owner's alone; a report is for everyone.
#[cfg(unix)]
fn make_readable(file: &fs::File) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    file.set_permissions(fs::Permissions::from_mode(0o644))
}

#[cfg(not(unix))]
fn make_readable(_: &fs::File) -> std::io::Result<()> {
    Ok(())
}

/// blake3 of every kernel source whose path begins with one of `prefixes`, by path.
pub fn kernel_hashes(prefixes: &[&str]) -> BTreeMap<String, String> {
    cuattn_kernels::sources()
        .filter(|(path, _)| prefixes.iter().any(|prefix| path.starts_with(prefix)))
        .map(|(path, text)| (path.to_owned(), blake3::hash(text.as_bytes()).to_hex().to_string()))
        .collect()
}

/// `time` as `2026-01-31T23:59:59Z`.
pub fn utc(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    // Howard Hinnant's `civil_from_days`, for days from 1970 on: years begin in March, so that the leap day comes last.
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", of_day / 3600, of_day / 60 % 60, of_day % 60)
}

/// JSON has no infinity: an infinite error is `null`.
mod infinity_as_null {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        value.is_finite().then_some(*value).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        Ok(Option::deserialize(deserializer)?.unwrap_or(f64::INFINITY))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn report() -> Report {
        Report {
            format: FORMAT,
            device: Device {
                name: "NVIDIA H200".into(),
                compute_capability: "9.0".into(),
                driver: "13.0".into(),
                nvrtc: "13.0".into(),
            },
            commit: "abc".into(),
            date: utc(UNIX_EPOCH),
            seed: 1,
            reduced: false,
            suites: vec![SuiteReport {
                name: "flash".into(),
                cases: 2,
                worst: BTreeMap::from([("f16".into(), WorstError { relative_l2: 3e-4, element: f64::INFINITY })]),
                ..SuiteReport::default()
            }],
            kernel_sources: BTreeMap::new(),
            sanitizer: Vec::new(),
        }
    }

    #[test]
    fn a_report_survives_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/folder/report.json");
        report().write(&path).unwrap();
        assert_eq!(Report::read(&path).unwrap(), report());
    }

    #[test]
    fn a_report_of_another_format_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.json");
        Report { format: FORMAT + 1, ..report() }.write(&path).unwrap();
        assert!(Report::read(&path).unwrap_err().to_string().contains("run the suites again"));
        Report { format: 0, ..report() }.write(&path).unwrap();
        assert!(Report::read(&path).is_err());
    }

    #[test]
    fn a_report_of_the_first_format_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.json");
        let tool = SanitizerReport { tool: "memcheck".into(), clean: true, ..SanitizerReport::default() };
        let old = Report { format: 1, sanitizer: vec![tool], ..report() };
        let mut json = serde_json::to_value(&old).unwrap();
        for field in ["findings", "tool_errors", "left_out"] {
            json["sanitizer"][0].as_object_mut().unwrap().remove(field);
        }
        fs::write(&path, json.to_string()).unwrap();
        assert_eq!(Report::read(&path).unwrap(), Report { format: FORMAT, ..old });
    }

    #[test]
    fn a_run_passes_only_if_something_ran_and_nothing_failed() {
        assert!(report().passed());
        assert!(!Report { suites: Vec::new(), ..report() }.passed());
        let mut nothing = report();
        nothing.suites[0].cases = 0;
        assert!(!nothing.passed());
        let mut failed = report();
        failed.suites[0].failures.push(Failure { case: "a".into(), text: "b".into() });
        assert!(!failed.passed());
        let tool = SanitizerReport { tool: "memcheck".into(), clean: false, ..SanitizerReport::default() };
        assert!(!Report { sanitizer: vec![tool], ..report() }.passed());
    }

    #[test]
    fn a_tool_is_clean_once_all_its_runs_are() {
        let run = |clean, summary: &str| SanitizerReport {
            tool: "memcheck".into(),
            suites: vec!["flash".into()],
            clean,
            findings: if clean { BTreeMap::new() } else { BTreeMap::from([("flash_sm90".into(), 7)]) },
            tool_errors: BTreeMap::from([("lost track".into(), 1)]),
            left_out: vec!["nvjet".into()],
            summary: summary.into(),
            seconds: 2.0,
        };
        let (good, bad) = (run(true, "0 errors"), run(false, "7 errors"));
        let whole = SanitizerReport::of_parts(&[good.clone(), good.clone()], 2);
        let tool_errors = BTreeMap::from([("lost track".into(), 2)]);
        assert_eq!(whole, SanitizerReport { seconds: 4.0, tool_errors, ..good.clone() });
        let part = SanitizerReport::of_parts(&[good.clone(), good.clone()], 3);
        assert_eq!((part.clean, part.summary.as_str()), (false, "unfinished, 2 of 3 runs: 0 errors"));
        let found = SanitizerReport::of_parts(&[good, bad], 2);
        insta::assert_snapshot!(
            found.text(),
            @"NOT CLEAN: 7 errors; findings in flash_sm90 (7); the tool itself failed: lost track (2); left out: nvjet"
        );
    }

    #[test]
    fn nan_is_the_worst_error_and_stays_it() {
        let mut worst = WorstError::default();
        worst.include(WorstError { relative_l2: f64::NAN, element: 0.5 });
        worst.include(WorstError { relative_l2: 0.1, element: 0.25 });
        assert_eq!(worst, WorstError { relative_l2: f64::INFINITY, element: 0.5 });
    }

    #[test]
    fn dates_are_gregorian() {
        let at = |seconds| utc(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(1_767_225_599), "2025-12-31T23:59:59Z");
        assert_eq!(at(1_772_323_200), "2026-03-01T00:00:00Z");
    }

    #[test]
    fn cases_that_ran_side_by_side_are_one_suite() {
        let part = |name: &str, case: &str, error: f64| SuiteReport {
            name: name.to_owned(),
            cases: 1,
            problems: 10,
            worst: BTreeMap::from([("f16".into(), WorstError { relative_l2: error, element: 1.0 - error })]),
            paths: BTreeMap::from([("mma".into(), 9), (case.into(), 1)]),
            seconds: 1.5,
            failures: vec![Failure { case: case.to_owned(), text: String::new() }],
            ..SuiteReport::default()
        };
        let mut whole = Report { suites: Vec::new(), ..report() };
        for part in [part("a", "x", 0.25), part("b", "x", 0.5), part("a", "y", 0.75)] {
            whole.include(part);
        }
        assert_eq!(whole.suites.iter().map(|suite| suite.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        let a = &whole.suites[0];
        assert_eq!((a.cases, a.problems, a.seconds, a.failures.len()), (2, 20, 3.0, 2));
        assert_eq!(a.worst["f16"], WorstError { relative_l2: 0.75, element: 0.75 });
        assert_eq!(a.paths, BTreeMap::from([("mma".into(), 18), ("x".into(), 1), ("y".into(), 1)]));
    }

    #[test]
    fn reports_of_other_runs_are_no_parts() {
        assert!(report().is_of_one_run_with(&Report { date: "later".into(), suites: Vec::new(), ..report() }));
        assert!(!report().is_of_one_run_with(&Report { seed: 2, ..report() }));
        assert!(!report().is_of_one_run_with(&Report { commit: "def".into(), ..report() }));
    }
}
