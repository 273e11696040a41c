//! The kernel compiler: the machine's, or one that is fetched into the build folder as a Python wheel.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};
use curt::Compiler;
use curt::dylib::SearchPaths;

use crate::repository;
use crate::step::command_line;

/// The wheel that is fetched. The series is named, because register counts differ from one to the next.
const WHEEL: &str = "nvidia-cuda-nvrtc==13.0.*";

/// Tells a process of ours where fetched wheels are.
pub(crate) const WHEELS_VARIABLE: &str = "CURT_WHEELS";

/// NVRTC, as far as it could be had.
#[derive(Debug)]
pub(crate) enum Nvrtc {
    /// The machine has it.
    Installed(Compiler),
    /// It was fetched, now or earlier.
    Fetched {
        /// The compiler.
        compiler: Compiler,
        /// The folder for [`WHEELS_VARIABLE`].
        wheels: PathBuf,
    },
    /// The machine has none, and none could be fetched, for this reason.
    Missing(String),
}

/// Finds NVRTC, and fetches it where the machine has none.
pub(crate) fn find_or_fetch() -> anyhow::Result<Nvrtc> {
    if let Ok(compiler) = Compiler::new() {
        return Ok(Nvrtc::Installed(compiler));
    }
    let target = repository::target()?;
    let wheels = target.join("nvrtc");
    if !wheels.join("nvidia").is_dir() {
        println!("NVRTC is not on this machine: fetching {WHEEL} into {}", wheels.display());
        if let Err(error) = fetch(&target.join("wheels"), &wheels) {
            return Ok(Nvrtc::Missing(format!("NVRTC is not on this machine and cannot be fetched: {error:#}")));
        }
    }
    SearchPaths::current().wheels(&wheels).make_default();
    match Compiler::new() {
        Ok(compiler) => Ok(Nvrtc::Fetched { compiler, wheels }),
        Err(error) => Ok(Nvrtc::Missing(format!("NVRTC was fetched into {}, but: {error}", wheels.display()))),
    }
}

fn fetch(downloads: &Path, wheels: &Path) -> anyhow::Result<()> {
    run(Command::new("python3")
        .args(["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest"])
        .arg(downloads)
        .arg(WHEEL))?;
    let wheel = std::fs::read_dir(downloads)
        .with_context(|| format!("cannot read {}", downloads.display()))?
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .max()
        .context("pip downloaded no wheel")?;
    // Unpacked beside its place and renamed, so that a fetch that was cut short is not taken for a compiler.
    let unpacked = wheels.with_extension("partial");
    let _ = std::fs::remove_dir_all(&unpacked);
    run(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(&wheel).arg(&unpacked))?;
    let _ = std::fs::remove_dir_all(wheels);
    std::fs::rename(&unpacked, wheels).with_context(|| format!("cannot rename {}", unpacked.display()))
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let line = command_line(command);
    let output = command.output().with_context(|| format!("cannot start `{line}`"))?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`{line}` failed: {}", text.trim().lines().last().unwrap_or("without a word"));
    Ok(())
}
