//! A GPU that is none: shared libraries with which `curt` takes this machine's processor for a device, so that what runs on a GPU runs
//! here, the suites above all. `tests/emulation/device` is their text.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{env, fs};

use anyhow::{Context as _, ensure};

use super::compiler::{Compiler, emulated_module, folder};
use crate::repository;

/// Libraries by the names under which `curt` looks for them.
const LIBRARIES: [(&str, &str); 4] = [
    ("libcuda.so.1", "driver.cpp"),
    ("libnvrtc.so.13", "nvrtc.cpp"),
    ("libnvrtc-builtins.so.13.0", "nvrtc.cpp"),
    ("libcublasLt.so.13", "cublaslt.cpp"),
];

/// The emulated GPU's libraries, built where they are not.
pub(crate) struct EmulatedGpu {
    folder: PathBuf,
}

impl EmulatedGpu {
    /// Builds what is missing, which takes a few seconds.
    pub(crate) fn build() -> anyhow::Result<Self> {
        let compiler = Self::compiler().map_err(anyhow::Error::msg)?;
        // Modules are kept with their libraries, so both are those of one text.
        let to = repository::target()?.join("emulated-gpu").join(&text_hash(&compiler)?[..16]);
        fs::create_dir_all(&to).with_context(|| format!("cannot make the folder {}", to.display()))?;
        for (library, text) in LIBRARIES {
            if to.join(library).exists() {
                continue;
            }
            let fresh = to.join(format!("{library}.{}", std::process::id()));
            let text = folder().join("device").join(text);
            let name = format!("-Wl,-soname,{library}");
            let output = compiler.compile(&text, &fresh, &["-shared", "-fPIC", "-fvisibility=hidden", &name])?;
            ensure!(
                output.status.success(),
                "{} does not compile:\n{}",
                text.display(),
                String::from_utf8_lossy(&output.stderr)
            );
            fs::rename(&fresh, to.join(library)).with_context(|| format!("cannot put {library} in place"))?;
        }
        Ok(Self { folder: to })
    }

    /// Why there is none on this machine, where there is none.
    pub(crate) fn is_impossible() -> Option<String> {
        Self::compiler().err().map(str::to_owned)
    }

    fn compiler() -> Result<Compiler, &'static str> {
        if cfg!(target_os = "linux") { Compiler::find() } else { Err("the emulated GPU is made of Linux libraries") }
    }

    /// Has a command see the emulated GPU and no other.
    pub(crate) fn is_seen_by<'a>(&self, command: &'a mut Command) -> anyhow::Result<&'a mut Command> {
        let compiler = env::current_exe().context("where this program is cannot be found out")?;
        Ok(command
            .env("CURT_CUDA_PATH", &self.folder)
            .env("CURT_CACHE_DIR", self.folder.join("cache"))
            .env("CUATTN_EMULATED_COMPILER", compiler))
    }
}

/// Of everything that makes a module what it is, but for its own text.
fn text_hash(compiler: &Compiler) -> anyhow::Result<String> {
    let mut hasher = blake3::Hasher::new();
    hasher.update(compiler.command.as_bytes()).update(include_bytes!("compiler.rs"));
    let mut files = Vec::new();
    collect(&folder(), &mut files)?;
    files.sort();
    for file in files {
        let text = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
        hasher.update(file.as_os_str().as_encoded_bytes()).update(&text);
    }
    Ok(hasher.finalize().to_string())
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() { collect(&path, files)? } else { files.push(path) }
    }
    Ok(())
}

/// Makes a module for the emulated driver of a kernel's text: what the emulated NVRTC calls.
#[derive(Debug, clap::Args)]
#[command(hide = true)]
pub(crate) struct ModuleArgs {
    /// An assembled kernel source
    text: PathBuf,
    /// The shared library to be made
    library: PathBuf,
}

pub(crate) fn make_module(args: ModuleArgs) -> anyhow::Result<ExitCode> {
    let compiler = Compiler::find().map_err(anyhow::Error::msg)?;
    let text = fs::read_to_string(&args.text).with_context(|| format!("cannot read {}", args.text.display()))?;
    let translated = args.text.with_extension("cpp");
    fs::write(&translated, emulated_module(&text)).with_context(|| format!("cannot write {}", translated.display()))?;
    let output = compiler.compile(
        &translated,
        &args.library,
        &["-shared", "-fPIC", "-fvisibility=hidden", "-fno-gnu-unique", "-s"],
    );
    let _ = fs::remove_file(&translated);
    let output = output?;
    // As NVRTC words it.
    for line in String::from_utf8_lossy(&output.stderr).lines() {
        println!("{}", diagnostic(line).unwrap_or_else(|| line.to_owned()));
    }
    Ok(if output.status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// `file:line:column: error: text` as `file(line): error: text`.
fn diagnostic(line: &str) -> Option<String> {
    let (place, text) = line.split_once(": error: ")?;
    let (place, _column) = place.rsplit_once(':')?;
    let (file, number) = place.rsplit_once(':')?;
    Some(format!("{file}({number}): error: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_worded_as_nvrtc_words_them() {
        assert_eq!(diagnostic("a/b.cuh:12:7: error: no x").as_deref(), Some("a/b.cuh(12): error: no x"));
        assert_eq!(diagnostic("in file included from y:3:"), None);
    }
}
