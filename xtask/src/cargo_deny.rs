//! cargo-deny: found on the path, or installed once into the build folder.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::Context as _;

use crate::repository;
use crate::step::{Outcome, succeed};

/// What is installed where the machine has none. Named, so that a new release cannot turn a green commit red.
const VERSION: &str = "0.20.2";

/// A cargo-deny that answers.
#[derive(Debug)]
pub(crate) struct CargoDeny(PathBuf);

impl CargoDeny {
    /// Finds cargo-deny, and installs it where there is none; nothing where that fails too.
    pub(crate) fn find_or_install() -> anyhow::Result<Option<Self>> {
        let tools = repository::target()?.join("tools");
        let ours = tools.join("bin").join(format!("cargo-deny{}", std::env::consts::EXE_SUFFIX));
        for candidate in [PathBuf::from("cargo-deny"), ours.clone()] {
            let answers =
                Command::new(&candidate).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
            if answers.is_ok_and(|status| status.success()) {
                return Ok(Some(Self(candidate)));
            }
        }
        println!(
            "cargo-deny is not installed: installing {VERSION} into {} (about four minutes, once)",
            tools.display()
        );
        let installed = succeed(
            repository::cargo()
                .args(["install", "cargo-deny", "--locked", "--quiet", "--version", VERSION])
                .arg("--root")
                .arg(&tools)
                // The tool's own dependencies are no business of our build folder.
                .env("CARGO_TARGET_DIR", tools.join("build")),
        )?;
        // Best effort: what the build leaves behind is large and never used again.
        let _ = std::fs::remove_dir_all(tools.join("build"));
        Ok((installed == Outcome::passed()).then_some(Self(ours)))
    }

    /// What a check comes to without cargo-deny.
    pub(crate) fn missing() -> anyhow::Result<Outcome> {
        Ok(Outcome::NotRun(format!(
            "cargo-deny is not on this machine and could not be installed (cargo install cargo-deny --locked --version {VERSION})"
        )))
    }

    /// Bans, licences and sources of `deny.toml`.
    pub(crate) fn check(&self) -> anyhow::Result<Outcome> {
        succeed(self.command().args(["check", "--hide-inclusion-graph", "bans", "licenses", "sources"]))
    }

    /// Checks dependencies against the advisory database, where that can be fetched.
    pub(crate) fn check_advisories(&self) -> anyhow::Result<Outcome> {
        // Fetched apart from the check: a database that cannot be reached is no finding about our dependencies.
        let fetched = self.command().args(["fetch", "db"]).stdin(Stdio::null()).output();
        let fetched = fetched.with_context(|| format!("cannot start {}", self.0.display()))?;
        if !fetched.status.success() {
            return Ok(Outcome::NotRun("the advisory database cannot be reached".into()));
        }
        succeed(self.command().args(["check", "--hide-inclusion-graph", "--disable-fetch", "advisories"]))
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.0);
        command.current_dir(repository::root()).args(["--workspace", "--all-features"]);
        command
    }
}
