//! Where things are: the workspace's root, its build folder, its packages and its files.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};
use cargo_metadata::{Metadata, MetadataCommand};

/// The workspace's root folder.
pub(crate) fn root() -> PathBuf {
    // Cargo sets this for `cargo run`, at run time: a binary that was built in one checkout may run in another.
    let manifest =
        env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    manifest.parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

/// The cargo that started us, or the one on the path.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// Packages, targets and dependencies of the workspace, without resolving anything outside it.
pub(crate) fn metadata() -> anyhow::Result<Metadata> {
    MetadataCommand::new().manifest_path(root().join("Cargo.toml")).no_deps().exec().context("`cargo metadata` failed")
}

/// Cargo's build folder.
pub(crate) fn target() -> anyhow::Result<PathBuf> {
    Ok(metadata()?.target_directory.into_std_path_buf())
}

/// The checked-out commit; ends in `-dirty` where the tree has changes, and is `unknown` outside a git repository.
pub(crate) fn commit() -> String {
    let git = |args: &[&str]| {
        let output = Command::new("git").current_dir(root()).args(args).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else { return "unknown".to_owned() };
    // Reports do not change what was built, and a run writes one.
    let changes = git(&["status", "--porcelain", "--", ".", ":(exclude)docs"]);
    if changes.is_none_or(|changes| changes.is_empty()) { commit } else { format!("{commit}-dirty") }
}

/// Every file of the checkout that git does not ignore, relative to the root.
pub(crate) fn files() -> anyhow::Result<Vec<PathBuf>> {
    let output = Command::new("git")
        .current_dir(root())
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .output()
        .context("cannot start git, which knows the files of the repository")?;
    ensure!(output.status.success(), "`git ls-files` failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    let mut files: Vec<_> = output
        .stdout
        .split(|&byte| byte == 0)
        .filter(|name| !name.is_empty())
        .map(|name| PathBuf::from(String::from_utf8_lossy(name).into_owned()))
        // A file that was deleted but not yet committed is still in the index.
        .filter(|path| root().join(path).is_file())
        .collect();
    files.sort();
    files.dedup();
    Ok(files)
}
