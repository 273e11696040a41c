//! The report that `peers/compare.py` writes, as far as pages need it.

use std::collections::BTreeMap;

use serde::Deserialize;

/// The name of our side among the implementations of a row.
pub const OURS: &str = "ours";

/// The version of the file that this crate reads.
pub const SCHEMA: u32 = 1;

/// A whole comparison: one process, one machine.
#[derive(Clone, Debug, Deserialize)]
pub struct Report {
    /// Version of the file.
    pub schema: u32,
    /// When it was begun, UTC.
    pub date: String,
    /// What was built, where it is known.
    pub commit: Option<String>,
    /// Where it ran.
    pub machine: Machine,
    /// Every row that ran.
    pub rows: Vec<Row>,
}

/// The machine of a report.
#[derive(Clone, Debug, Deserialize)]
pub struct Machine {
    /// The GPU.
    pub device: String,
    /// Its driver.
    pub driver: Option<String>,
    /// The CUDA version of PyTorch.
    pub cuda: Option<String>,
    /// PyTorch.
    pub torch: String,
}

/// One problem, and how fast each implementation did it.
#[derive(Clone, Debug, Deserialize)]
pub struct Row {
    /// The table it belongs to.
    pub suite: String,
    /// Its name, unique in its suite.
    pub case: String,
    /// Query heads.
    pub q_heads: usize,
    /// Key heads.
    pub kv_heads: usize,
    /// Query rows of a sequence.
    pub q_len: usize,
    /// Elements of a head's vector.
    pub head_dim: usize,
    /// Element type.
    pub dtype: String,
    /// Whether rows see only the keys before them.
    pub causal: bool,
    /// Unit of the rates.
    pub unit: String,
    /// Ours and the peers.
    pub implementations: Vec<Implementation>,
    /// The fastest peer.
    pub best_peer: Option<String>,
    /// Our speed over that of each peer.
    pub ratios: BTreeMap<String, f64>,
    /// Why there are no figures, where there are none.
    pub error: Option<String>,
}

/// One implementation of a row.
#[derive(Clone, Debug, Deserialize)]
pub struct Implementation {
    /// Its name.
    pub name: String,
    /// Speed, in the unit of the row.
    pub rate: Option<f64>,
}

/// A file that is not a report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// Not JSON, or not of this shape.
    #[error("this is not a report of the peer comparison: {0}")]
    Shape(#[from] serde_json::Error),
    /// A report of another version.
    #[error(
        "this report is of version {found}, and this program reads version {SCHEMA}: use the two from one checkout"
    )]
    Schema {
        /// The version of the file.
        found: u32,
    },
    /// A report without rows.
    #[error("this report holds no row: nothing was compared, so there is nothing to draw")]
    Empty,
}

impl Report {
    /// Reads the text of a report.
    ///
    /// # Errors
    ///
    /// Where it is not one, is of another version, or holds no rows.
    pub fn parse(text: &str) -> Result<Self, ReadError> {
        let report: Self = serde_json::from_str(text)?;
        if report.schema != SCHEMA {
            return Err(ReadError::Schema { found: report.schema });
        }
        if report.rows.is_empty() {
            return Err(ReadError::Empty);
        }
        Ok(report)
    }
}

impl Row {
    /// The speed of an implementation.
    pub fn rate(&self, name: &str) -> Option<f64> {
        self.implementations.iter().find(|one| one.name == name).and_then(|one| one.rate)
    }

    /// Whether query heads share key heads.
    pub fn is_grouped(&self) -> bool {
        self.q_heads != self.kv_heads
    }
}
