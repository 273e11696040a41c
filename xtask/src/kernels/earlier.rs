//! Results of earlier compilations, in the build folder: a kernel whose text, architecture and compiler are the same uses the
//! same, and the whole suite takes minutes.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::Context as _;
use curt::ModuleSource;
use serde::{Deserialize, Serialize};

use super::usage::Usage;

/// What one compilation came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Outcome {
    pub(super) usage: Usage,
    pub(super) warnings: Vec<String>,
}

/// Outcomes by [`key`], as lines of a file that only grows while kernels are compiled: a run that is cut short loses nothing.
#[derive(Debug)]
pub(super) struct Earlier {
    outcomes: HashMap<String, Outcome>,
    file: Mutex<File>,
    path: PathBuf,
}

#[derive(Serialize, Deserialize)]
struct Line {
    key: String,
    outcome: Outcome,
}

/// Everything that a result depends on.
pub(super) fn key(source: &ModuleSource, architecture: &str, nvrtc: &str) -> String {
    let mut hasher = blake3::Hasher::new();
    for part in [nvrtc, architecture, source.name(), source.text()]
        .into_iter()
        .chain(source.options().iter().map(String::as_str))
    {
        // With its length before it, no part can run into the next.
        hasher.update(&(part.len() as u64).to_le_bytes()).update(part.as_bytes());
    }
    hasher.finalize().to_hex().to_string()
}

impl Earlier {
    /// Reads what is known. A line that cannot be read is as good as none.
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
        }
        let text = fs::read_to_string(path).unwrap_or_default();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Line>(line).ok());
        let outcomes = lines.map(|line| (line.key, line.outcome)).collect();
        let file = OpenOptions::new().create(true).append(true).open(path);
        let file = Mutex::new(file.with_context(|| format!("cannot write {}", path.display()))?);
        Ok(Self { outcomes, file, path: path.to_owned() })
    }

    /// What the compilation of that key came to, if there was one.
    pub(super) fn get(&self, key: &str) -> Option<&Outcome> {
        self.outcomes.get(key)
    }

    /// Keeps an outcome for later runs. Best effort: what cannot be written is compiled again.
    pub(super) fn keep(&self, key: &str, outcome: &Outcome) {
        let line = Line { key: key.to_owned(), outcome: outcome.clone() };
        if let Ok(line) = serde_json::to_string(&line) {
            let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
            // Begins with a line break, so that half a line of a killed run spoils only itself.
            let _ = file.write_all(format!("\n{line}\n").as_bytes());
        }
    }

    /// Forgets everything but `keys`, so that the file does not grow with every change of a kernel.
    pub(super) fn forget_others(&self, keys: &[String]) {
        let text = fs::read_to_string(&self.path).unwrap_or_default();
        let kept: String = text
            .lines()
            .filter(|line| serde_json::from_str::<Line>(line).is_ok_and(|line| keys.contains(&line.key)))
            .flat_map(|line| [line, "\n"])
            .collect();
        let _ = fs::write(&self.path, kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(registers: u32) -> Outcome {
        Outcome { usage: Usage { registers, ..Usage::default() }, warnings: vec!["careful".into()] }
    }

    #[test]
    fn outcomes_survive_and_half_a_line_spoils_only_itself() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kernels/outcomes.jsonl");
        Earlier::open(&path).unwrap().keep("a", &outcome(40));
        let mut text = fs::read_to_string(&path).unwrap();
        text.push_str("{\"key\":\"b\",\"outc");
        fs::write(&path, text).unwrap();
        Earlier::open(&path).unwrap().keep("c", &outcome(41));
        let earlier = Earlier::open(&path).unwrap();
        assert_eq!(earlier.get("a"), Some(&outcome(40)));
        assert_eq!(earlier.get("b"), None);
        assert_eq!(earlier.get("c"), Some(&outcome(41)));
        earlier.forget_others(&["c".into()]);
        let earlier = Earlier::open(&path).unwrap();
        assert_eq!((earlier.get("a"), earlier.get("c")), (None, Some(&outcome(41))));
    }

    #[test]
    fn a_key_tells_apart_all_that_matters() {
        let source = ModuleSource::new("a.cu", "text");
        let mut keys = vec![
            key(&source, "sm_80", "13.0"),
            key(&source, "sm_90a", "13.0"),
            key(&source, "sm_80", "13.1"),
            key(&ModuleSource::new("b.cu", "text"), "sm_80", "13.0"),
            key(&ModuleSource::new("a.cu", "other"), "sm_80", "13.0"),
            key(&source.clone().option("-G"), "sm_80", "13.0"),
        ];
        assert_eq!(keys[0], key(&source, "sm_80", "13.0"));
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), 6);
    }
}
