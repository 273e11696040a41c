//! In which order engines are asked: a table of measurements, kept as data.

use std::fmt;
use std::sync::LazyLock;

use cuattn_core::{DType, EngineId, Problem};
use curt::Capabilities;

/// The table that is compiled in.
static TABLE: LazyLock<Vec<Rule>> = LazyLock::new(|| {
    parse(include_str!("choice.csv")).expect("the table is part of the program, and a test parses it")
});

/// The row that decides for `problem` on `device`.
pub(crate) fn rule(device: &Capabilities, problem: &Problem) -> Option<&'static Rule> {
    TABLE.iter().find(|rule| rule.fits(device, problem))
}

/// A row of the table.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rule {
    /// The line of the file that it stands in.
    pub(crate) line: usize,
    device: Range,
    dtype: Option<DType>,
    head_dim: Range,
    q_len: Range,
    kv_len: Range,
    /// The engines to ask, the best first.
    pub(crate) engines: Vec<EngineId>,
    /// The report that it was measured in.
    pub(crate) report: Option<String>,
}

impl Rule {
    fn fits(&self, device: &Capabilities, problem: &Problem) -> bool {
        let (major, minor) = device.compute_capability;
        self.device.contains((major * 10 + minor) as usize)
            && self.dtype.is_none_or(|dtype| dtype == problem.dtype)
            && self.head_dim.contains(problem.shape.head_dim)
            && self.q_len.contains(problem.shape.q_len)
            && self.kv_len.contains(problem.shape.kv_len)
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {} of the choice table, ", self.line)?;
        match &self.report {
            Some(report) => write!(f, "measured in {report}"),
            None => f.write_str("not measured"),
        }
    }
}

/// Both ends included.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Range {
    first: usize,
    last: usize,
}

impl Range {
    fn contains(self, value: usize) -> bool {
        (self.first..=self.last).contains(&value)
    }

    fn parse(text: &str) -> Option<Self> {
        let number = |text: &str| text.parse::<usize>().ok();
        match text.split_once("..") {
            None if text == "*" => Some(Self { first: 0, last: usize::MAX }),
            None => number(text).map(|value| Self { first: value, last: value }),
            Some((first, "")) => Some(Self { first: number(first)?, last: usize::MAX }),
            Some((first, last)) => {
                let first = if first.is_empty() { 0 } else { number(first)? };
                let last = number(last.strip_prefix('=')?)?;
                (first <= last).then_some(Self { first, last })
            }
        }
    }
}

/// A table that does not parse.
#[derive(Debug, PartialEq, thiserror::Error)]
#[error("line {line} of the choice table: {what}")]
struct TableError {
    line: usize,
    what: String,
}

const HEADER: &str = "device,dtype,head_dim,q_len,kv_len,engines,report";

fn parse(text: &str) -> Result<Vec<Rule>, TableError> {
    let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
    let mut lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    match lines.next() {
        Some((_, HEADER)) => {}
        Some((line, other)) => {
            return Err(TableError { line, what: format!("`{other}` where the header `{HEADER}` belongs") });
        }
        None => return Err(TableError { line: 1, what: "no header".to_owned() }),
    }
    lines.map(|(line, text)| parse_rule(line, text).map_err(|what| TableError { line, what })).collect()
}

fn parse_rule(line: usize, text: &str) -> Result<Rule, String> {
    let columns: Vec<_> = text.split(',').map(str::trim).collect();
    let [device, dtype, head_dim, q_len, kv_len, engines, report] = columns[..] else {
        return Err(format!("{} columns instead of 7", columns.len()));
    };
    let range = |column: &str, text: &str| Range::parse(text).ok_or_else(|| format!("{column} `{text}` is no range"));
    let dtype = match dtype {
        "*" => None,
        name => Some(
            DType::ALL
                .into_iter()
                .find(|dtype| dtype.to_string() == name)
                .ok_or(format!("no element type `{name}`"))?,
        ),
    };
    let engine = |name: &str| {
        let known = crate::engines().map(|engine| engine.id()).find(|id| id.to_string() == name);
        known.ok_or_else(|| format!("no engine `{name}`"))
    };
    Ok(Rule {
        line,
        device: range("device", device)?,
        dtype,
        head_dim: range("head_dim", head_dim)?,
        q_len: range("q_len", q_len)?,
        kv_len: range("kv_len", kv_len)?,
        engines: engines.split('>').map(engine).collect::<Result<_, _>>()?,
        report: match report {
            "" => return Err("no report: name one, or write `unmeasured`".to_owned()),
            "unmeasured" => None,
            report => Some(report.to_owned()),
        },
    })
}

#[cfg(test)]
mod tests {
    use cuattn_core::Shape;
    use rstest::rstest;

    use super::*;

    #[test]
    fn the_table_parses_and_every_row_can_decide() {
        let rules = parse(include_str!("choice.csv")).unwrap();
        assert!(!rules.is_empty());
        for rule in &rules {
            let mut once = rule.engines.clone();
            once.sort();
            once.dedup();
            assert_eq!(once.len(), rule.engines.len(), "line {} names an engine twice", rule.line);
        }
    }

    #[test]
    fn reports_that_rows_name_exist() {
        let reports = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reports");
        for rule in parse(include_str!("choice.csv")).unwrap() {
            if let Some(report) = rule.report {
                assert!(reports.join(&report).is_file(), "line {}: there is no docs/reports/{report}", rule.line);
            }
        }
    }

    #[test]
    fn every_problem_on_every_device_has_an_order() {
        let devices = [Capabilities::h200(), Capabilities::a100(), Capabilities::rtx4090()];
        for (device, dtype) in devices.iter().flat_map(|device| DType::ALL.map(|dtype| (device, dtype))) {
            for (head_dim, len) in [(1, 1), (64, 100), (128, 8192), (512, 1 << 20)] {
                let (q_len, kv_len, v_head_dim) = (len, len, head_dim);
                let shape = Shape { batch: 1, q_heads: 1, kv_heads: 1, q_len, kv_len, head_dim, v_head_dim };
                let rule = rule(device, &Problem::bhsd(shape, dtype)).expect("a last row that fits everything");
                let mut asked = rule.engines.clone();
                asked.sort();
                let mut all: Vec<_> = crate::engines().map(|engine| engine.id()).collect();
                all.sort();
                assert_eq!(asked, all, "line {} leaves an engine out", rule.line);
            }
        }
    }

    #[test]
    fn the_first_row_that_fits_decides() {
        let text = format!(
            "{HEADER}\n90,bf16,65..=128,..=16,1000..,phase2a>flash,unmeasured\n*,*,*,*,*,flash>phase2a,h200.json\n"
        );
        let rules = parse(&text).unwrap();
        let decides = |device: &Capabilities, q_len, head_dim| {
            let shape = Shape { batch: 1, q_heads: 1, kv_heads: 1, q_len, kv_len: 1000, head_dim, v_head_dim: 64 };
            let problem = Problem::bhsd(shape, DType::Bf16);
            rules.iter().find(|rule| rule.fits(device, &problem)).unwrap().line
        };
        assert_eq!(decides(&Capabilities::h200(), 16, 128), 2);
        assert_eq!(decides(&Capabilities::h200(), 17, 128), 3);
        assert_eq!(decides(&Capabilities::h200(), 16, 64), 3);
        assert_eq!(decides(&Capabilities::a100(), 16, 128), 3);
    }

    #[rstest]
    #[case::header("a,b", "line 1 of the choice table: `a,b` where the header")]
    #[case::empty("# nothing", "line 1 of the choice table: no header")]
    #[case::columns("{H}\n*,*,*,flash,unmeasured", "line 2 of the choice table: 5 columns instead of 7")]
    #[case::range("{H}\n*,*,9..=3,*,*,flash,unmeasured", "line 2 of the choice table: head_dim `9..=3` is no range")]
    #[case::half_open("{H}\n*,*,*,*,3..9,flash,unmeasured", "line 2 of the choice table: kv_len `3..9` is no range")]
    #[case::dtype("{H}\n*,f64,*,*,*,flash,unmeasured", "line 2 of the choice table: no element type `f64`")]
    #[case::engine("{H}\n\n*,*,*,*,*,flash>magic,unmeasured", "line 3 of the choice table: no engine `magic`")]
    #[case::report("{H}\n*,*,*,*,*,flash,", "line 2 of the choice table: no report")]
    fn a_bad_table_says_where(#[case] text: &str, #[case] want: &str) {
        let error = parse(&text.replace("{H}", HEADER)).unwrap_err().to_string();
        assert!(error.starts_with(want), "{error}");
    }
}
