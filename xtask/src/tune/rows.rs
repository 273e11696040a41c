//! What a report of tuning says of the rows of the table of tiles.
//!
//! A case of the report names the row whose tile was chosen for it. The tiles that ran in all cases of a row are compared by the geometric
//! mean of their speed over that of the row's own.

use std::collections::BTreeMap;
use std::fmt;

use cuattn_kernels::flash::tiles::{Measured, Row};
use serde::Deserialize;

use crate::table::table;

/// Smallest gain for which a tile is replaced, where times do not vary by more.
const LEAST_GAIN: f64 = 0.01;

/// The candidates of one problem.
#[derive(Debug, Deserialize)]
pub(super) struct Case {
    pub(super) case: String,
    pub(super) error: Option<String>,
    /// The key of the row that its choice comes from unchanged, since version 2.
    #[serde(default)]
    pub(super) row: Option<String>,
    pub(super) candidates: Vec<Candidate>,
}

/// One of them.
#[derive(Debug, Deserialize)]
pub(super) struct Candidate {
    tile: String,
    /// What the table would call the same kernel as well.
    #[serde(default)]
    same_tile: Option<String>,
    is_choice: bool,
    /// How much times vary, relative to the median.
    spread: Option<f64>,
    tflops: Option<f64>,
}

/// A tile in comparison with a row's own, over all cases of the row.
#[derive(Debug)]
struct Rival<'a> {
    tile: &'a str,
    /// How much faster it is.
    gain: f64,
    /// What a gain must be above to be one.
    noise: f64,
}

impl Rival<'_> {
    fn wins(&self) -> bool {
        self.gain > self.noise
    }
}

/// What became of a row.
#[derive(Clone, Debug, PartialEq)]
enum Verdict {
    /// No case of the report is of this row.
    NoCase,
    /// No other tile ran in all its cases.
    NoRival,
    /// It has the tile that it had: the best of the others, and how much faster that is.
    Stands { rival: String, gain: f64 },
    /// It has the tile that it had, though others are faster: why none of them was taken.
    Left(Vec<String>),
    /// It has a tile that is faster than the one that it had: how much, and why none of those was taken that are faster still.
    Replaced { old: String, gain: f64, not: Vec<String> },
    /// It has the tile of an earlier row that was replaced by this one's: they changed places.
    Exchanged { old: String },
}

fn percent(gain: f64) -> String {
    format!("{:+.1} %", gain * 100.0)
}

/// As the table's last column has it.
impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCase => f.write_str("not in this report"),
            Self::NoRival => f.write_str("not compared: no other tile ran in all its cases"),
            Self::Stands { rival, gain } => write!(f, "stands; next is {rival}, {}", percent(*gain)),
            Self::Left(not) => write!(f, "LEFT, not replaced by {}", not.join(", ")),
            Self::Replaced { old, gain, not } => {
                write!(f, "CHANGED, {} over {old}", percent(*gain))?;
                if not.is_empty() { Ok(()) } else { write!(f, "; not by {}", not.join(", ")) }
            }
            Self::Exchanged { old } => write!(f, "CHANGED places with the row that has its tile now, {old}"),
        }
    }
}

/// The rows of the table, and what became of each.
#[derive(Debug)]
pub(super) struct Judged {
    rows: Vec<(Row, usize, Verdict)>,
    /// Cases whose row the table does not have.
    unknown: Vec<String>,
    /// Cases that speak for no row.
    passed_over: Vec<String>,
}

/// Judges every row by the cases of a report, which is named in those that were compared.
pub(super) fn judge(rows: Vec<Row>, cases: &[Case], report: &Measured) -> Judged {
    let keys: Vec<_> = rows.iter().map(Row::key).collect();
    let of_row = |key: &str| cases.iter().filter(|case| case.row.as_deref() == Some(key)).collect::<Vec<_>>();
    let mut judged: Vec<_> =
        rows.into_iter().zip(&keys).map(|(row, key)| (row, of_row(key).len(), Verdict::NoCase)).collect();
    for (index, key) in keys.iter().enumerate() {
        let cases = of_row(key);
        if cases.is_empty() {
            continue;
        }
        let rivals = rivals(&cases);
        let Some(next) = rivals.first() else {
            judged[index].2 = Verdict::NoRival;
            continue;
        };
        let old = judged[index].0.tile.clone();
        let mut verdict = Verdict::Stands { rival: next.tile.to_owned(), gain: next.gain };
        let mut not = Vec::new();
        for Rival { tile, gain, .. } in rivals.iter().filter(|rival| rival.wins()) {
            match replace(&mut judged, index, tile) {
                Ok(()) => {
                    verdict = Verdict::Replaced { old, gain: *gain, not: std::mem::take(&mut not) };
                    break;
                }
                Err(why) => not.push(format!("{tile}, {}: {why}", percent(*gain))),
            }
        }
        if !not.is_empty() {
            verdict = Verdict::Left(not);
        }
        let (row, _, of_row) = &mut judged[index];
        row.measured = Some(report.clone());
        *of_row = verdict;
    }
    let names = |what: &dyn Fn(&Case) -> bool| {
        cases.iter().filter(|case| what(case)).map(|case| case.case.clone()).collect::<Vec<_>>()
    };
    Judged {
        rows: judged,
        unknown: names(&|case| case.row.as_ref().is_some_and(|row| !keys.contains(row))),
        passed_over: names(&|case| case.row.is_none()),
    }
}

/// Gives the row at `index` another tile. Where a later row without cases has that tile for the same, it gets this one's: rows are in order
/// of preference. An earlier one did not suit, and its condition is not ours to judge.
fn replace(rows: &mut [(Row, usize, Verdict)], index: usize, tile: &str) -> Result<(), String> {
    let row = &rows[index].0;
    let new = row.with_tile(tile)?;
    let old = row.tile.clone();
    let twin = rows.iter().position(|(other, ..)| other.key() == new.key());
    match twin {
        Some(twin) if twin > index && rows[twin].1 == 0 => {
            let (other, _, verdict) = &mut rows[twin];
            *verdict = Verdict::Exchanged { old: tile.to_owned() };
            *other = Row { measured: None, ..other.with_tile(&old)? };
        }
        Some(twin) => return Err(format!("line {} has it for the same", rows[twin].0.line)),
        None => {}
    }
    rows[index].0 = new;
    Ok(())
}

/// The tiles that ran in every case, the fastest first, and the plainest of those that are equally fast. What makes the same kernel as
/// the row's tile everywhere is left out.
fn rivals<'a>(cases: &[&'a Case]) -> Vec<Rival<'a>> {
    #[derive(Default)]
    struct Sums {
        cases: usize,
        chosen: usize,
        logs: f64,
        spreads: f64,
    }
    let mut tiles: BTreeMap<&str, Sums> = BTreeMap::new();
    for case in cases {
        let ran = |one: &'a Candidate| Some((one, one.tflops?, one.spread?));
        let Some((_, chosen, chosen_spread)) = case.candidates.iter().filter_map(ran).find(|(one, ..)| one.is_choice)
        else {
            continue;
        };
        for (one, tflops, spread) in case.candidates.iter().filter_map(ran) {
            for tile in std::iter::once(&one.tile).chain(&one.same_tile) {
                let sums = tiles.entry(tile).or_default();
                sums.cases += 1;
                sums.chosen += usize::from(one.is_choice);
                sums.logs += (tflops / chosen).ln();
                sums.spreads += spread.max(chosen_spread);
            }
        }
    }
    let all = cases.len();
    let mut rivals: Vec<_> = tiles
        .into_iter()
        .filter(|(_, sums)| sums.cases == all && sums.chosen < all)
        .map(|(tile, sums)| Rival {
            tile,
            gain: (sums.logs / all as f64).exp() - 1.0,
            noise: (sums.spreads / all as f64).max(LEAST_GAIN),
        })
        .collect();
    rivals.sort_by(|a, b| b.gain.total_cmp(&a.gain).then(a.tile.len().cmp(&b.tile.len())));
    rivals
}

impl Judged {
    /// The text of the table with these rows, which were read from it: whatever else stands there stays.
    pub(super) fn write_into(&self, text: &str) -> String {
        let mut lines: Vec<_> = text.lines().map(ToOwned::to_owned).collect();
        for (row, ..) in &self.rows {
            if let Some(line) = lines.get_mut(row.line - 1) {
                *line = row.to_string();
            }
        }
        lines.join("\n") + "\n"
    }
}

/// A line for each row, and what else the report has.
impl fmt::Display for Judged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = table(&["line", "row", "cases", ""], 2);
        for (row, cases, verdict) in &self.rows {
            table.add_row([row.line.to_string(), row.key(), cases.to_string(), verdict.to_string()]);
        }
        writeln!(f, "{table}")?;
        if !self.unknown.is_empty() {
            writeln!(f, "of rows that the table does not have any more: {}", self.unknown.join(", "))?;
        }
        if !self.passed_over.is_empty() {
            let cases = self.passed_over.join(", ");
            writeln!(f, "passed over, as a bias or an option makes another tile of the row's: {cases}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use cuattn_kernels::flash::tiles::parse;

    use super::*;

    const TEXT: &str = "# A comment.
path,head_dim,v_head_dim,condition,tile,report,device,driver,date
sm90,64,64,few tiles,\"Tile { ping_pong: false, half_first: false, split_keys: true, ..tile(2, 128, 2, 4) }\",unmeasured,,,
# Another.
sm90,128,128,always,\"tile(2, 128, 2, 2)\",unmeasured,,,
mma,128,128,always,\"tile(4, 2, 64, 2)\",unmeasured,,,
mma,128,128,always,\"tile(4, 2, 48, 2)\",unmeasured,,,
simt,128,128,filled,\"tile([4, 2, 8, 64, 128, 128, 2])\",unmeasured,,,
simt,128,128,filled,\"tile([4, 2, 4, 64, 128, 128, 2])\",unmeasured,,,
";
    const SM90: &str = "sm90,128,128,always,\"tile(2, 128, 2, 2)\"";
    const MMA: &str = "mma,128,128,always,\"tile(4, 2, 64, 2)\"";
    const TAIL: &str = "tuning-h200.json,NVIDIA H200,13.0,2026-12-01";

    fn report() -> Measured {
        let [report, device, driver, date] =
            ["tuning-h200.json", "NVIDIA H200", "13.0", "2026-12-01"].map(str::to_owned);
        Measured { report, device, driver, date }
    }

    fn candidate(tile: &str, tflops: impl Into<Option<f64>>) -> Candidate {
        let tflops = tflops.into();
        let spread = tflops.map(|_| 0.002);
        Candidate { tile: tile.into(), same_tile: None, is_choice: false, spread, tflops }
    }

    /// The first candidate is the choice.
    fn case(row: Option<&str>, mut candidates: Vec<Candidate>) -> Case {
        candidates[0].is_choice = true;
        Case { case: "a case".into(), error: None, row: row.map(Into::into), candidates }
    }

    /// The judgement, and those lines of the table that it changes.
    fn judged(cases: &[Case]) -> (Judged, Vec<String>) {
        let judged = judge(parse(TEXT).unwrap(), cases, &report());
        let text = judged.write_into(TEXT);
        assert_eq!(text.lines().count(), TEXT.lines().count());
        parse(&text).unwrap();
        let changed = text.lines().zip(TEXT.lines()).filter(|(new, old)| new != old);
        let changed = changed.map(|(new, _)| new.to_owned()).collect();
        (judged, changed)
    }

    #[test]
    fn a_report_of_other_rows_leaves_the_table_as_it_is() {
        let gone = case(Some("sm90,128,128,always,\"tile(2, 96, 2, 2)\""), vec![candidate("tile(2, 96, 2, 2)", 1.0)]);
        let biased = case(None, vec![candidate("tile(2, 128, 1, 2)", 1.0), candidate("tile(2, 64, 1, 2)", 2.0)]);
        let (judged, changed) = judged(&[gone, biased]);
        assert!(changed.is_empty());
        assert!(judged.rows.iter().all(|(_, cases, verdict)| (*cases, verdict) == (0, &Verdict::NoCase)));
        let text = judged.to_string();
        assert!(text.contains("does not have any more: a case\n"), "{text}");
        assert!(text.ends_with("makes another tile of the row's: a case\n"), "{text}");
    }

    #[test]
    fn a_tile_that_stands_is_noted_as_measured() {
        let slower = candidate("tile(2, 128, 1, 2)", 95.0);
        let (judged, changed) = judged(&[case(Some(SM90), vec![candidate("tile(2, 128, 2, 2)", 100.0), slower])]);
        assert_eq!(changed, [format!("{SM90},{TAIL}")]);
        assert!(judged.to_string().contains("stands; next is tile(2, 128, 1, 2), -5.0 %"));
    }

    #[test]
    fn a_faster_tile_is_written_where_cases_agree_in_the_mean() {
        let pair = |own: f64, other: f64| {
            let others = [candidate("tile(2, 128, 1, 2)", other), candidate("tile(2, 64, 2, 4)", own)];
            case(Some(SM90), std::iter::once(candidate("tile(2, 128, 2, 2)", own)).chain(others).collect())
        };
        let (report, changed) = judged(&[pair(100.0, 110.0), pair(200.0, 196.0)]);
        assert_eq!(changed, [format!("sm90,128,128,always,\"tile(2, 128, 1, 2)\",{TAIL}")]);
        assert!(report.to_string().contains("CHANGED, +3.8 % over tile(2, 128, 2, 2)"), "{report}");
        let (_, changed) = judged(&[pair(100.0, 110.0), pair(200.0, 180.0)]);
        assert_eq!(changed, [format!("{SM90},{TAIL}")]);
    }

    #[test]
    fn a_gain_within_the_noise_is_none() {
        let with_spread = |gain: f64, spread: f64| {
            let mut other = candidate("tile(2, 128, 1, 2)", 100.0 + gain);
            other.spread = Some(spread);
            let (_, changed) = judged(&[case(Some(SM90), vec![candidate("tile(2, 128, 2, 2)", 100.0), other])]);
            changed != [format!("{SM90},{TAIL}")]
        };
        assert!(!with_spread(0.9, 0.0));
        assert!(with_spread(1.1, 0.0));
        assert!(!with_spread(2.0, 0.021));
        assert!(with_spread(2.0, 0.019));
    }

    #[test]
    fn only_tiles_that_ran_in_every_case_are_compared() {
        let own = || candidate("tile(2, 128, 2, 2)", 100.0);
        let ran = case(Some(SM90), vec![own(), candidate("tile(2, 128, 1, 2)", 150.0)]);
        let failed = case(Some(SM90), vec![own(), candidate("tile(2, 128, 1, 2)", None)]);
        let (judged, changed) = judged(&[ran, failed]);
        assert!(changed.is_empty());
        assert!(judged.to_string().contains("no other tile ran in all its cases"));
    }

    #[test]
    fn a_kernel_goes_by_both_its_names() {
        // Without a diagonal, `half_first` makes no difference; with one, the two are compared.
        let without = "Tile { half_first: false, ..tile(2, 128, 1, 2) }";
        let full = || {
            let own = Candidate {
                same_tile: Some("Tile { half_first: false, ..tile(2, 128, 2, 2) }".into()),
                ..candidate("tile(2, 128, 2, 2)", 100.0)
            };
            let other = Candidate { same_tile: Some("tile(2, 128, 1, 2)".into()), ..candidate(without, 106.0) };
            case(Some(SM90), vec![own, other])
        };
        let causal = case(
            Some(SM90),
            vec![
                candidate("tile(2, 128, 2, 2)", 100.0),
                candidate("Tile { half_first: false, ..tile(2, 128, 2, 2) }", 98.0),
                candidate("tile(2, 128, 1, 2)", 100.0),
                candidate(without, 105.0),
            ],
        );
        let (_, changed) = judged(&[full(), causal]);
        assert_eq!(changed, [format!("sm90,128,128,always,\"{without}\",{TAIL}")]);
        // Where nothing tells the two apart, the plain one is taken, and the row's own is no rival of itself.
        let (_, changed) = judged(&[full()]);
        assert_eq!(changed, [format!("sm90,128,128,always,\"tile(2, 128, 1, 2)\",{TAIL}")]);
    }

    #[test]
    fn rows_change_places_where_the_faster_tile_is_a_later_row() {
        let faster = || vec![candidate("tile(4, 2, 64, 2)", 100.0), candidate("tile(4, 2, 48, 2)", 105.0)];
        let (report, changed) = judged(&[case(Some(MMA), faster())]);
        let want = [format!("mma,128,128,always,\"tile(4, 2, 48, 2)\",{TAIL}"), format!("{MMA},unmeasured,,,")];
        assert_eq!(changed, want, "{report}");
        // But not where that row has cases of its own.
        let later = case(
            Some("mma,128,128,always,\"tile(4, 2, 48, 2)\""),
            vec![candidate("tile(4, 2, 48, 2)", 100.0), candidate("tile(4, 2, 32, 2)", 90.0)],
        );
        let (report, changed) = judged(&[case(Some(MMA), faster()), later]);
        assert_eq!(changed[0], format!("{MMA},{TAIL}"));
        assert!(report.to_string().contains("LEFT, not replaced by tile(4, 2, 48, 2), +5.0 %: line 7 has it"));
    }

    #[test]
    fn a_faster_tile_that_the_table_cannot_take_is_named() {
        let left = |row: &str, own: &str, other: &str| {
            let (judged, changed) = judged(&[case(Some(row), vec![candidate(own, 100.0), candidate(other, 120.0)])]);
            assert_eq!(changed, [format!("{row},{TAIL}")]);
            judged.to_string()
        };
        let own = "tile([4, 2, 4, 64, 128, 128, 2])";
        let row = format!("simt,128,128,filled,\"{own}\"");
        // An earlier row did not suit: that is a matter of its condition.
        assert!(left(&row, own, "tile([4, 2, 8, 64, 128, 128, 2])").contains("line 8 has it for the same"));
        let gone = "Tile { polynomial: 4, ..tile(2, 128, 2, 2) }";
        assert!(left(SM90, "tile(2, 128, 2, 2)", gone).contains("is no tile of sm90"));
        let both = ["Tile { polynomial: 4, ..tile(2, 128, 2, 2) }", "tile(2, 64, 2, 4)"];
        let candidates = [("tile(2, 128, 2, 2)", 100.0), (both[0], 130.0), (both[1], 120.0)];
        let candidates = candidates.map(|(tile, tflops)| candidate(tile, tflops)).into();
        let (next, changed) = judged(&[case(Some(SM90), candidates)]);
        assert_eq!(changed, [format!("sm90,128,128,always,\"tile(2, 64, 2, 4)\",{TAIL}")]);
        assert!(next.to_string().contains("CHANGED, +20.0 % over tile(2, 128, 2, 2); not by Tile { polynomial"));
        // It ran at a smaller head size.
        assert!(left(SM90, "tile(2, 128, 2, 2)", "tile(2, 128, 2, 4)").contains("does not fit every device of sm90"));
    }
}
