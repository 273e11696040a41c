//! What each kernel used when someone last looked and agreed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use super::Compiled;
use super::usage::Usage;
use crate::repository;

/// The snapshot, by [`Compiled::key`].
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Snapshot {
    /// The compiler it was made with. Another one allots other registers, so its numbers are not compared.
    pub(super) nvrtc: String,
    kernels: BTreeMap<String, Usage>,
}

impl Snapshot {
    /// A snapshot of `results`.
    pub(super) fn of(results: &[Compiled], nvrtc: String) -> Self {
        let kernels =
            results.iter().filter_map(|compiled| Some((compiled.key(), compiled.result.as_ref().ok()?.0))).collect();
        Self { nvrtc, kernels }
    }

    fn path() -> PathBuf {
        repository::root().join("xtask/kernels.snapshot.json")
    }

    /// Reads the repository's snapshot.
    pub(super) fn read() -> anyhow::Result<Self> {
        let path = Self::path();
        let text = fs::read_to_string(&path)
            .with_context(|| format!("cannot read {} (make it with `cargo xtask kernels --bless`)", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} is not a snapshot of kernels", path.display()))
    }

    /// Makes this the repository's snapshot.
    pub(super) fn write(&self) -> anyhow::Result<()> {
        let path = Self::path();
        let text = self.to_text()?;
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    }

    /// JSON with one kernel a line, so that a change of one kernel is a change of one line.
    fn to_text(&self) -> anyhow::Result<String> {
        let mut lines = Vec::with_capacity(self.kernels.len());
        for (key, usage) in &self.kernels {
            lines.push(format!("    {}: {}", serde_json::to_string(key)?, serde_json::to_string(usage)?));
        }
        let nvrtc = serde_json::to_string(&self.nvrtc)?;
        Ok(format!("{{\n  \"nvrtc\": {nvrtc},\n  \"kernels\": {{\n{}\n  }}\n}}\n", lines.join(",\n")))
    }

    /// What got worse. Where `whole`, the results are of everything, and what they lack is missing.
    pub(super) fn compare(&self, results: &[Compiled], whole: bool) -> Vec<String> {
        const HINT: &str = "`cargo xtask kernels --bless` accepts it";
        let mut faults = Vec::new();
        for compiled in results {
            let (key, Ok((now, _))) = (compiled.key(), &compiled.result) else { continue };
            let Some(before) = self.kernels.get(&key) else {
                faults.push(format!("{key}: is not in the snapshot ({HINT})"));
                continue;
            };
            let grown: Vec<_> = [
                ("registers", before.registers, now.registers),
                ("bytes of shared memory", before.shared_bytes, now.shared_bytes),
                ("bytes of stack", before.stack_bytes, now.stack_bytes),
                ("bytes of spills", before.spill_bytes, now.spill_bytes),
            ]
            .into_iter()
            .filter(|(_, before, now)| now > before)
            .map(|(unit, before, now)| format!("{now} {unit}, {before} in the snapshot"))
            .collect();
            if !grown.is_empty() {
                faults.push(format!("{key}: uses {} ({HINT})", grown.join("; ")));
            }
        }
        if whole {
            let now: BTreeSet<_> = results.iter().map(Compiled::key).collect();
            for key in self.kernels.keys().filter(|key| !now.contains(*key)) {
                faults.push(format!("{key}: is in the snapshot and is not compiled any more ({HINT})"));
            }
        }
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::compiled;
    use super::*;

    const USAGE: Usage = Usage { registers: 40, shared_bytes: 1024, stack_bytes: 0, spill_bytes: 0 };

    fn snapshot() -> Snapshot {
        Snapshot::of(&[compiled("a", USAGE), compiled("b", USAGE)], "13.0".into())
    }

    #[test]
    fn a_snapshot_survives_its_text() {
        assert_eq!(serde_json::from_str::<Snapshot>(&snapshot().to_text().unwrap()).unwrap(), snapshot());
    }

    #[test]
    fn less_is_fine_and_more_is_a_fault() {
        let results = [
            compiled("a", Usage { registers: 39, ..USAGE }),
            compiled("b", Usage { registers: 48, shared_bytes: 2048, ..USAGE }),
        ];
        let faults = snapshot().compare(&results, true);
        insta::assert_snapshot!(
            faults.join("\n"),
            @"b @ sm_90a: uses 48 registers, 40 in the snapshot; 2048 bytes of shared memory, 1024 in the snapshot (`cargo xtask kernels --bless` accepts it)"
        );
    }

    #[test]
    fn new_kernels_must_be_blessed_and_lost_ones_are_missed() {
        let results = [compiled("a", USAGE), compiled("c", USAGE)];
        let faults = snapshot().compare(&results, true);
        assert_eq!(faults.len(), 2, "{faults:?}");
        assert!(faults[0].starts_with("c @ sm_90a: is not in the snapshot"), "{faults:?}");
        assert!(faults[1].starts_with("b @ sm_90a: is in the snapshot and is not compiled"), "{faults:?}");
        // A part of the suite says nothing about the rest.
        assert_eq!(snapshot().compare(&results[..1], false), Vec::<String>::new());
    }
}
