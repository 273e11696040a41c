//! `tidy`: what docs/ARCHITECTURE.md says must not be where, as checks.
//!
//! Each rule is a function from what it looks at to the list of what is wrong, so that a test can show it a fault. The rules
//! about packages are in [`packages`], those about the text and place of files in [`files`].

mod files;
mod packages;

use std::process::ExitCode;

use crate::repository;
use crate::step::Outcome;
use files::TextFile;

/// Checks the layers of crates, the names and places of files, and what must not be in them
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(Args {}: Args) -> anyhow::Result<ExitCode> {
    Ok(match check()? {
        Outcome::Passed(text) => {
            println!("passed: {text}");
            ExitCode::SUCCESS
        }
        Outcome::Failed(text) | Outcome::NotRun(text) => {
            println!("FAILED: {text}");
            ExitCode::FAILURE
        }
    })
}

/// All rules as a step of `ci`.
pub(crate) fn check() -> anyhow::Result<Outcome> {
    let packages = packages::read(&repository::metadata()?, &repository::root())?;
    let paths = repository::files()?;
    let texts: Vec<_> = paths
        .iter()
        .filter_map(|path| {
            // What is no UTF-8 is data, and no rule is about data.
            let text = std::fs::read_to_string(repository::root().join(path)).ok()?;
            Some(TextFile { path: path.to_string_lossy().replace('\\', "/"), text })
        })
        .collect();
    let mut faults = Vec::new();
    for rule in packages::RULES {
        faults.extend(packages.iter().flat_map(rule));
    }
    faults.extend(files::top_level(&paths));
    faults.extend(files::module_names(&paths));
    for rule in files::RULES {
        faults.extend(texts.iter().flat_map(rule));
    }
    let covered = format!("{} packages, {} files", packages.len(), paths.len());
    if faults.is_empty() {
        return Ok(Outcome::Passed(covered));
    }
    Ok(Outcome::Failed(format!("{} faults in {covered}\n{}", faults.len(), faults.join("\n"))))
}
