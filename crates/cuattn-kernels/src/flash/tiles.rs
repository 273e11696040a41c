//! Which tile a kernel takes: a table, kept as data. `tiles.csv` beside this file says what its columns and conditions mean.
//!
//! What a condition asks of a problem is code, beside the `Demand` of each path; where it applies is data. `cargo xtask tune --write`
//! writes the table from measurements.
//!
//! ```
//! use cuattn_kernels::flash::tiles;
//! let row = tiles::table().iter().find(|row| row.path == "mma").unwrap();
//! assert!(row.tile.starts_with("tile(") && row.to_string().starts_with(&row.key()));
//! ```

use std::fmt;
use std::sync::LazyLock;

use super::{mma, simt, sm90, sm90_f32};

/// The table that is compiled in.
static TABLE: LazyLock<Vec<Row>> =
    LazyLock::new(|| parse(include_str!("tiles.csv")).expect("the table is part of the program, and a test parses it"));

/// Where the table lies in the repository.
pub const FILE: &str = "crates/cuattn-kernels/src/flash/tiles.csv";

/// Every row, in the order of the file.
pub fn table() -> &'static [Row] {
    &TABLE
}

/// A row of the table. Prints as its line in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The line of the file that it stands in, from 1.
    pub line: usize,
    /// The path whose tile it is.
    pub path: String,
    /// Largest head size that it holds for.
    pub head_dim: usize,
    /// Largest value head size that it holds for.
    pub v_head_dim: usize,
    /// Where it is meant for.
    pub condition: Condition,
    /// The tile, as the path's `Tile` prints.
    pub tile: String,
    /// Where the tile was compared with others.
    pub measured: Option<Measured>,
}

/// The report that compares a tile with others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measured {
    /// Its file in `docs/reports`.
    pub report: String,
    /// The GPU.
    pub device: String,
    /// The CUDA version of its driver.
    pub driver: String,
    /// The day.
    pub date: String,
}

/// Where a row is meant for; the file says what each means on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Everywhere.
    Always,
    /// Too few 128-row tiles for the device.
    FewTiles,
    /// At most so many query rows, or so many keys.
    RowsOrKeysUpTo(usize),
    /// Enough 192-row tiles for the device, and more than so many rows or rows that are alike.
    TallAbove(usize),
    /// At most so many query rows.
    RowsUpTo(usize),
    /// At most so many keys.
    KeysUpTo(usize),
    /// Enough tiles for the device, of which none is half empty.
    Filled,
}

impl Condition {
    fn parse(text: &str) -> Option<Self> {
        let number = |prefix: &str| text.strip_prefix(prefix)?.parse().ok();
        match text {
            "always" => Some(Self::Always),
            "few tiles" => Some(Self::FewTiles),
            "filled" => Some(Self::Filled),
            _ => (number("rows or keys up to ").map(Self::RowsOrKeysUpTo))
                .or_else(|| number("tall above ").map(Self::TallAbove))
                .or_else(|| number("rows up to ").map(Self::RowsUpTo))
                .or_else(|| number("keys up to ").map(Self::KeysUpTo)),
        }
    }

    /// Whether a path knows what this means.
    fn is_of(self, path: &str) -> bool {
        match self {
            Self::Always => true,
            Self::FewTiles | Self::RowsOrKeysUpTo(_) | Self::TallAbove(_) => path == "sm90",
            Self::RowsUpTo(_) | Self::KeysUpTo(_) => path == "mma",
            Self::Filled => path == "simt",
        }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Always => f.write_str("always"),
            Self::FewTiles => f.write_str("few tiles"),
            Self::RowsOrKeysUpTo(most) => write!(f, "rows or keys up to {most}"),
            Self::TallAbove(rows) => write!(f, "tall above {rows}"),
            Self::RowsUpTo(most) => write!(f, "rows up to {most}"),
            Self::KeysUpTo(most) => write!(f, "keys up to {most}"),
            Self::Filled => f.write_str("filled"),
        }
    }
}

impl Row {
    /// What tells this row from the others: its columns up to the tile. A row whose tile was replaced is another one.
    pub fn key(&self) -> String {
        let Self { path, condition, tile, .. } = self;
        let [head_dim, v_head_dim] = self.dims();
        format!("{path},{head_dim},{v_head_dim},{condition},\"{tile}\"")
    }

    /// As the columns have them.
    fn dims(&self) -> [String; 2] {
        let dim = |dim: usize| if dim == usize::MAX { "*".to_owned() } else { dim.to_string() };
        [self.head_dim, self.v_head_dim].map(dim)
    }

    /// This row with another tile.
    ///
    /// # Errors
    ///
    /// Why that is no tile for the row: the path has no such tile, or it does not fit where nothing asks again whether it does.
    pub fn with_tile(&self, tile: &str) -> Result<Self, String> {
        let row = Self { tile: tile.to_owned(), ..self.clone() };
        row.check_tile()?;
        Ok(row)
    }

    /// Whether the text is a tile of the path, and one that fits: on most rows of `mma` and `simt` that is asked again for each device,
    /// and the next row is taken where it does not.
    fn check_tile(&self) -> Result<(), String> {
        let Self { path, head_dim, v_head_dim, condition, tile: text, .. } = self;
        let fits = match path.as_str() {
            "sm90" => sm90::Tile::parse(text).map(|tile| tile.fits(*head_dim, *v_head_dim)),
            "sm90_f32" => sm90_f32::Tile::parse(text).map(|tile| tile.fits(*head_dim, *v_head_dim)),
            "mma" => mma::Tile::parse(text).map(|_| true),
            "simt" => simt::Tile::parse(text).map(|tile| *condition != Condition::Always || tile.fits_any_device()),
            _ => return Err(format!("no path `{path}`")),
        };
        let [head_dim, v_head_dim] = self.dims();
        match fits {
            Some(true) => Ok(()),
            Some(false) => {
                Err(format!("`{text}` does not fit every device of {path} with heads of {head_dim} and {v_head_dim}"))
            }
            None => Err(format!("`{text}` is no tile of {path}")),
        }
    }

    const fn holds(&self, head_dim: usize, v_head_dim: usize) -> bool {
        head_dim <= self.head_dim && v_head_dim <= self.v_head_dim
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},", self.key())?;
        match &self.measured {
            Some(Measured { report, device, driver, date }) => write!(f, "{report},{device},{driver},{date}"),
            None => f.write_str("unmeasured,,,"),
        }
    }
}

/// A row of one path, with its tile read.
#[derive(Debug)]
pub(super) struct Choice<T> {
    pub(super) row: &'static Row,
    pub(super) tile: T,
}

/// The rows of a path.
pub(super) fn choices<T>(path: &str, read: fn(&str) -> Option<T>) -> Vec<Choice<T>> {
    let rows = TABLE.iter().filter(|row| row.path == path);
    // Every tile of the table was read when it was parsed.
    rows.filter_map(|row| Some(Choice { row, tile: read(&row.tile)? })).collect()
}

/// Those that hold such heads, in order.
pub(super) fn holding<T>(
    choices: &'static [Choice<T>],
    head_dim: usize,
    v_head_dim: usize,
) -> impl Iterator<Item = &'static Choice<T>> {
    choices.iter().filter(move |choice| choice.row.holds(head_dim, v_head_dim))
}

/// The numbers of a tile between what stands before and after them: there are none, and no zeros, beyond what hardware has.
pub(super) fn numbers<const N: usize>(text: &str, before: &str, after: &str) -> Option<[usize; N]> {
    let list = text.strip_prefix(before)?.strip_suffix(after)?;
    let number = |text: &str| text.parse().ok().filter(|number| (1..=1024).contains(number));
    list.split(", ").map(number).collect::<Option<Vec<_>>>()?.try_into().ok()
}

/// A table that does not parse.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the table of tiles: {what}")]
pub struct TableError {
    line: usize,
    what: String,
}

const HEADER: &str = "path,head_dim,v_head_dim,condition,tile,report,device,driver,date";

/// The rows of such a file.
///
/// # Errors
///
/// The line that is no row, and why.
pub fn parse(text: &str) -> Result<Vec<Row>, TableError> {
    let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line));
    let mut lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    match lines.next() {
        Some((_, HEADER)) => {}
        Some((line, other)) => {
            return Err(TableError { line, what: format!("`{other}` where the header `{HEADER}` belongs") });
        }
        None => return Err(TableError { line: 1, what: "no header".to_owned() }),
    }
    lines.map(|(line, text)| parse_row(line, text).map_err(|what| TableError { line, what })).collect()
}

fn parse_row(line: usize, text: &str) -> Result<Row, String> {
    let parts: Vec<_> = text.split('"').collect();
    let [before, tile, after] = parts[..] else { return Err("no tile in quotation marks".to_owned()) };
    let (before, after): (Vec<_>, Vec<_>) = (before.split(',').collect(), after.split(',').collect());
    let ([path, head_dim, v_head_dim, condition, ""], ["", report, device, driver, date]) = (&before[..], &after[..])
    else {
        return Err(format!("not the columns `{HEADER}`"));
    };
    let dim = |text: &str| match text {
        "*" => Ok(usize::MAX),
        _ => text.parse().map_err(|_| format!("`{text}` is no head size")),
    };
    let known = Condition::parse(condition).filter(|condition| condition.is_of(path));
    let condition = known.ok_or_else(|| format!("{path} has no condition `{condition}`"))?;
    let measured = match [*report, *device, *driver, *date] {
        ["unmeasured", "", "", ""] => None,
        columns if columns.contains(&"") || *report == "unmeasured" => {
            return Err("a report without device, driver and date, or none: then write `unmeasured`".to_owned());
        }
        columns => {
            let [report, device, driver, date] = columns.map(str::to_owned);
            Some(Measured { report, device, driver, date })
        }
    };
    let (head_dim, v_head_dim) = (dim(head_dim)?, dim(v_head_dim)?);
    let (path, tile) = ((*path).to_owned(), tile.to_owned());
    let row = Row { line, path, head_dim, v_head_dim, condition, tile, measured };
    row.check_tile()?;
    Ok(row)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::path::Path;

    use super::*;

    const TEXT: &str = include_str!("tiles.csv");

    #[test]
    fn the_table_parses_and_rows_print_as_they_stand_there() {
        let lines: Vec<_> = TEXT.lines().collect();
        let rows = parse(TEXT).unwrap();
        for row in &rows {
            assert_eq!(row.to_string(), lines[row.line - 1]);
        }
        let of = |path| rows.iter().filter(|row| row.path == path).count();
        assert_eq!(choices("sm90", sm90::Tile::parse).len(), of("sm90"));
        assert_eq!(choices("sm90_f32", sm90_f32::Tile::parse).len(), of("sm90_f32"));
        assert_eq!(choices("mma", mma::Tile::parse).len(), of("mma"));
        assert_eq!(choices("simt", simt::Tile::parse).len(), of("simt"));
    }

    #[test]
    fn no_two_rows_have_a_key() {
        let mut keys = HashSet::new();
        table().iter().for_each(|row| assert!(keys.insert(row.key()), "line {} is there before", row.line));
    }

    #[test]
    fn the_last_row_of_a_path_holds_everything() {
        for (path, most) in [
            ("sm90", sm90::MAX_HEAD_DIM),
            ("sm90_f32", sm90_f32::MAX_HEAD_DIM),
            ("mma", mma::MAX_HEAD_DIM),
            ("simt", usize::MAX),
        ] {
            let last = table().iter().rfind(|row| row.path == path).unwrap();
            assert_eq!((last.condition, last.head_dim, last.v_head_dim), (Condition::Always, most, most), "{path}");
        }
    }

    #[test]
    fn head_sizes_are_one_number_where_the_wider_counts() {
        let rows = table().iter().filter(|row| row.path != "sm90");
        rows.for_each(|row| assert_eq!(row.head_dim, row.v_head_dim, "line {}", row.line));
    }

    #[test]
    fn reports_that_rows_name_exist() {
        let reports = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reports");
        for row in table() {
            if let Some(Measured { report, .. }) = &row.measured {
                assert!(reports.join(report).is_file(), "line {}: there is no docs/reports/{report}", row.line);
            }
        }
    }

    #[test]
    fn a_measured_row_prints_as_it_reads() {
        let line = "simt,*,64,filled,\"tile([4, 2, 1, 64, 64, 256, 2])\",tuning-h200.json,NVIDIA H200,13.0,2026-12-01";
        let rows = parse(&format!("{HEADER}\n{line}\n")).unwrap();
        assert_eq!((rows[0].line, rows[0].head_dim), (2, usize::MAX));
        assert_eq!(rows[0].to_string(), line);
    }

    #[test]
    fn a_row_takes_another_tile_where_its_heads_fit_it() {
        let row = |key: &str| parse(&format!("{HEADER}\n{key},unmeasured,,,")).unwrap().swap_remove(0);
        let wide = row("sm90,128,128,always,\"tile(2, 128, 2, 2)\"");
        assert_eq!(wide.with_tile("tile(2, 64, 2, 4)").unwrap().tile, "tile(2, 64, 2, 4)");
        let error = wide.with_tile("tile(2, 128, 2, 3)").unwrap_err();
        assert_eq!(error, "`tile(2, 128, 2, 3)` does not fit every device of sm90 with heads of 128 and 128");
        // An option that is gone.
        let gone = "Tile { polynomial: 4, ..tile(2, 128, 2, 2) }";
        assert_eq!(wide.with_tile(gone).unwrap_err(), format!("`{gone}` is no tile of sm90"));
        assert!(row("sm90_f32,128,128,always,\"tile(2, 64, 2)\"").with_tile("tile(2, 128, 2)").is_err());
        assert!(row("mma,128,128,rows up to 64,\"tile(4, 1, 64, 2)\"").with_tile("tile(4, 1, 48, 3)").is_ok());
        let (tall, low) = ("tile([4, 2, 8, 64, 128, 128, 2])", "tile([4, 2, 1, 64, 128, 128, 2])");
        assert!(row(&format!("simt,128,128,filled,\"{low}\"")).with_tile(tall).is_ok());
        assert!(row(&format!("simt,128,128,always,\"{low}\"")).with_tile(tall).is_err());
    }

    #[test]
    fn a_bad_table_says_where() {
        for (row, want) in [
            ("sm90,64,64,always,tile(2),unmeasured,,,", "no tile in quotation marks"),
            ("sm90,64,64,\"tile(2, 128, 2, 2)\",unmeasured,,,", "not the columns"),
            ("sm80,64,64,always,\"tile(2, 128, 2, 2)\",unmeasured,,,", "no path `sm80`"),
            ("sm90,64,64,always,\"tile(2, 128, 2)\",unmeasured,,,", "`tile(2, 128, 2)` is no tile of sm90"),
            ("sm90,256,256,always,\"tile(2, 128, 2, 2)\",unmeasured,,,", "`tile(2, 128, 2, 2)` does not fit every"),
            ("sm90,64,d,always,\"tile(2, 128, 2, 2)\",unmeasured,,,", "`d` is no head size"),
            ("sm90,64,64,filled,\"tile(2, 128, 2, 2)\",unmeasured,,,", "sm90 has no condition `filled`"),
            ("mma,64,64,rows up to x,\"tile(4, 2, 64, 2)\",unmeasured,,,", "mma has no condition `rows up to x`"),
            ("mma,64,64,always,\"tile(4, 2, 64, 2)\",a.json,,13.0,2026-12-01", "a report without device"),
            ("mma,64,64,always,\"tile(4, 2, 64, 2)\",unmeasured,a GPU,13.0,2026-12-01", "a report without device"),
            ("mma,64,64,always,\"tile(4, 2, 64, 2)\",,,,", "a report without device"),
        ] {
            let error = parse(&format!("{HEADER}\n# a comment\n{row}\n")).unwrap_err().to_string();
            assert!(error.starts_with(&format!("line 3 of the table of tiles: {want}")), "{error}");
        }
        assert_eq!(parse("# nothing").unwrap_err().to_string(), "line 1 of the table of tiles: no header");
        assert!(parse("a,b").unwrap_err().to_string().starts_with("line 1 of the table of tiles: `a,b` where"));
    }
}
