//! Small shared libraries, built by the C compiler of the machine, that are broken in one way each.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds `directory/file` from C text. None, told by name, on a machine without a C compiler.
pub(crate) fn build(test: &str, directory: &Path, file: &str, text: &str) -> Option<PathBuf> {
    let source = directory.join(format!("{file}.c"));
    let library = directory.join(file);
    std::fs::write(&source, text).unwrap();
    let output = match Command::new("cc").args(["-shared", "-fPIC", "-w", "-o"]).arg(&library).arg(&source).output() {
        Ok(output) => output,
        Err(error) => {
            eprintln!("NOT RUN: {test}: no C compiler (cc): {error}");
            return None;
        }
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(library)
}

/// C text with a function that returns zero for each name that `except` does not name.
pub(crate) fn functions(names: &[&str], except: &[&str]) -> String {
    names.iter().filter(|name| !except.contains(name)).map(|name| format!("int {name}() {{ return 0; }}\n")).collect()
}
