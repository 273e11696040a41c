//! What is built for machines that have a GPU but no Rust: programs and shared libraries, in the profile `bundle`.

use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context as _, ensure};
use cargo_metadata::{Artifact, Message};

use crate::repository;

/// Builds the program `name` of `package`, and gives its path.
pub(crate) fn program(package: &str, name: &str) -> anyhow::Result<PathBuf> {
    build(package, &["--bin", name], name, |artifact| artifact.executable.map(Into::into))
}

/// Builds the shared library `name` of `package`, and gives its path.
pub(crate) fn shared_library(package: &str, name: &str) -> anyhow::Result<PathBuf> {
    build(package, &["--lib"], name, |artifact| {
        let mut files = artifact.filenames.into_iter();
        files.find(|file| file.extension() == Some(std::env::consts::DLL_EXTENSION)).map(Into::into)
    })
}

/// Builds what `target` says of `package`, and gives the file that `file` finds in the artifact `name`.
fn build(
    package: &str,
    target: &[&str],
    name: &str,
    file: impl Fn(Artifact) -> Option<PathBuf>,
) -> anyhow::Result<PathBuf> {
    let output = repository::cargo()
        .args(["build", "--profile", "bundle", "--package", package])
        .args(target)
        .args(["--message-format", "json-render-diagnostics"])
        // The program reports it, on a machine that has no git repository to ask.
        .env("CUATTN_COMMIT", repository::commit())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start cargo")?;
    ensure!(output.status.success(), "`{name}` of `{package}` does not build");
    Message::parse_stream(output.stdout.as_slice())
        .filter_map(Result::ok)
        .find_map(|message| match message {
            Message::CompilerArtifact(artifact) if artifact.target.name == name => file(artifact),
            _ => None,
        })
        .with_context(|| format!("cargo built no `{name}` of `{package}`"))
}
