//! What a run of tuning found.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

/// The version of the file. The first one said neither `row` nor `same_tile`.
pub const SCHEMA: u32 = 2;

/// A whole run: one process, one device.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Report {
    /// Version of the file.
    pub schema: u32,
    /// When it was begun, UTC.
    pub date: String,
    /// What was built.
    pub commit: String,
    /// The GPU.
    pub device: String,
    /// Its driver's CUDA version.
    pub driver: String,
    /// The kernel compiler's.
    pub nvrtc: String,
    /// How times were taken.
    pub method: String,
    /// Cases for which there was no time.
    pub not_run: Vec<String>,
    /// The rest.
    pub cases: Vec<CaseReport>,
}

/// The candidates of one problem.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct CaseReport {
    /// Its name.
    pub case: String,
    /// The rows of the table that it speaks for.
    pub group: String,
    /// The row of the table that its choice comes from unchanged: the columns up to the tile.
    #[serde(default)]
    pub row: Option<String>,
    /// Floating-point operations that the problem needs.
    pub flops: f64,
    /// Why nothing was measured, where nothing was.
    pub error: Option<String>,
    /// The table's choice first.
    pub candidates: Vec<Measured>,
}

/// One candidate.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Measured {
    /// Its tile, as the table has it.
    pub tile: String,
    /// What the table would call the same kernel as well.
    #[serde(default)]
    pub same_tile: Option<String>,
    /// Whether the table chose it.
    pub is_choice: bool,
    /// What its plan says of it.
    pub details: Vec<String>,
    /// Why it was not measured, where it was not.
    pub error: Option<String>,
    /// Its output's distance from the reference, relative to it.
    pub relative_l2: Option<f64>,
    /// Median milliseconds.
    pub ms: Option<f64>,
    /// Half the distance of the quartiles over the median: how much times vary.
    pub spread: Option<f64>,
    /// Launches behind the median.
    pub launches: usize,
    /// Speed, counted in the operations that the problem needs.
    pub tflops: Option<f64>,
}

impl CaseReport {
    fn choice(&self) -> Option<f64> {
        self.candidates.iter().find(|one| one.is_choice).and_then(|one| one.tflops)
    }

    /// One line: the table's choice, and the fastest `most` with their ratio to it.
    pub fn line(&self, most: usize) -> String {
        if let Some(error) = &self.error {
            return format!("{}: NOT MEASURED: {error}", self.case);
        }
        let Some(choice) = self.choice() else {
            let error = self.candidates.iter().find_map(|one| one.error.as_deref()).unwrap_or("no candidate");
            return format!("{}: the table's choice was NOT MEASURED: {error}", self.case);
        };
        let mut ranked: Vec<_> = self.candidates.iter().filter_map(|one| Some((one.tflops?, one))).collect();
        ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut line = format!("{}: {choice:.1} TFLOP/s;", self.case);
        for (tflops, one) in ranked.iter().take(most) {
            let mark = if one.is_choice { "*" } else { "" };
            let _ = write!(line, " {:.3} {}{mark};", tflops / choice, one.tile);
        }
        let failed = self.candidates.iter().filter(|one| one.tflops.is_none()).count();
        if failed > 0 {
            let _ = write!(line, " {failed} failed;");
        }
        line.pop();
        line
    }
}

impl Report {
    /// For each group of cases, the tiles that ran in all of them, the best first, by the geometric mean of the ratio to the table's
    /// choices.
    pub fn summary(&self, most: usize) -> String {
        let mut groups: BTreeMap<&str, Vec<&CaseReport>> = BTreeMap::new();
        for case in self.cases.iter().filter(|case| case.choice().is_some()) {
            groups.entry(&case.group).or_default().push(case);
        }
        let mut text = String::new();
        for (group, cases) in groups {
            let mut logs: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
            let mut chosen: BTreeMap<&str, usize> = BTreeMap::new();
            for case in &cases {
                let choice = case.choice().unwrap_or(f64::NAN);
                for one in &case.candidates {
                    if let Some(tflops) = one.tflops {
                        for tile in std::iter::once(&one.tile).chain(&one.same_tile) {
                            logs.entry(tile).or_default().push((tflops / choice).ln());
                            *chosen.entry(tile).or_default() += usize::from(one.is_choice);
                        }
                    }
                }
            }
            let mut means: Vec<_> = logs
                .iter()
                .filter(|(_, logs)| logs.len() == cases.len())
                .map(|(tile, logs)| ((logs.iter().sum::<f64>() / logs.len() as f64).exp(), *tile))
                .collect();
            means.sort_by(|a, b| b.0.total_cmp(&a.0));
            let _ = writeln!(text, "{group}, {} cases:", cases.len());
            for (mean, tile) in means.iter().take(most) {
                let times = match chosen[tile] {
                    0 => String::new(),
                    times => format!("  (the table's, {times} times)"),
                };
                let _ = writeln!(text, "    {mean:.3}  {tile}{times}");
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(name: &str, rates: &[(&str, Option<f64>)]) -> CaseReport {
        let candidates = rates
            .iter()
            .enumerate()
            .map(|(index, &(tile, tflops))| Measured {
                tile: tile.into(),
                is_choice: index == 0,
                tflops,
                ..Measured::default()
            })
            .collect();
        CaseReport { case: name.into(), group: "mma d64".into(), row: None, flops: 1e9, error: None, candidates }
    }

    fn report() -> Report {
        Report {
            schema: SCHEMA,
            date: "2026-01-01T00:00:00Z".into(),
            commit: "0".into(),
            device: "a GPU".into(),
            driver: "13.0".into(),
            nvrtc: "13.0".into(),
            method: String::new(),
            not_run: Vec::new(),
            cases: vec![
                case("first", &[("a", Some(100.0)), ("b", Some(200.0)), ("c", Some(300.0))]),
                case("second", &[("a", Some(100.0)), ("b", Some(50.0)), ("c", None)]),
            ],
        }
    }

    #[test]
    fn a_line_ranks_the_candidates_against_the_choice() {
        let report = report();
        assert_eq!(report.cases[0].line(2), "first: 100.0 TFLOP/s; 3.000 c; 2.000 b");
        assert_eq!(report.cases[1].line(9), "second: 100.0 TFLOP/s; 1.000 a*; 0.500 b; 1 failed");
        let unmeasured = case("third", &[("a", None), ("b", Some(1.0))]);
        assert!(unmeasured.line(2).contains("NOT MEASURED"));
    }

    #[test]
    fn the_summary_only_ranks_tiles_that_ran_in_every_case() {
        let summary = report().summary(5);
        assert_eq!(summary, "mma d64, 2 cases:\n    1.000  a  (the table's, 2 times)\n    1.000  b\n");
    }
}
