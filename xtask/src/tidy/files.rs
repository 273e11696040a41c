//! Rules about files: where they are, what they are called, and what must not be in them.

use std::collections::BTreeSet;
use std::path::PathBuf;

/// What may stand at the top, beside names that begin with a dot.
const TOP_LEVEL: &[&str] = &[
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "README.md",
    "benches",
    "crates",
    "deny.toml",
    "docs",
    "rustfmt.toml",
    "tests",
    "xtask",
];

/// Names that say nothing of what is inside.
const EMPTY_NAMES: &[&str] = &["common", "helper", "helpers", "manager", "misc", "util", "utils"];

/// The folder of the kernel sources, and within it that of the PTX wrappers.
const KERNELS: &str = "crates/cuattn-kernels/";
const PTX: &str = "crates/cuattn-kernels/cuda/ptx/";

/// Words that belong to some folders only: the word, where it may be, in which files it is looked for, and why.
///
/// The words are put together from halves, or this file would break its own rules.
const RESERVED_WORDS: &[ReservedWord] = &[
    ReservedWord {
        word: concat!("cudarc::", "nvrtc"),
        allowed: &["crates/curt/"],
        extensions: &["rs"],
        why: "only curt compiles kernels",
    },
    ReservedWord {
        word: concat!("cudarc::", "cublaslt"),
        allowed: &["crates/curt-blaslt/"],
        extensions: &["rs"],
        why: "only curt-blaslt speaks to cuBLASLt",
    },
    ReservedWord {
        word: concat!("libloading", "::"),
        allowed: &["crates/curt/"],
        extensions: &["rs"],
        why: "only curt loads shared libraries",
    },
    ReservedWord {
        word: concat!("__glo", "bal__"),
        // The runtime's own tests and examples compile kernels of their own: it must be usable without ours. The emulation looks for
        // them in text.
        allowed: &[
            KERNELS,
            "crates/curt/",
            "tests/suites/runtime.rs",
            "xtask/src/tidy/",
            "xtask/src/emulate/compiler.rs",
        ],
        extensions: &["rs", "cu", "cuh"],
        why: "engines hold no CUDA C++: it goes to cuattn-kernels",
    },
    ReservedWord {
        word: concat!("#include", " <"),
        allowed: &[],
        extensions: &["cu", "cuh"],
        why: "kernel sources include nothing that is not embedded",
    },
    ReservedWord {
        word: concat!("../", "shared"),
        allowed: &[],
        extensions: &["rs", "cu", "cuh", "md", "toml", "yml", "py", "sh", "json", ""],
        why: "the product does not depend on what lies outside the repository",
    },
];

struct ReservedWord {
    word: &'static str,
    allowed: &'static [&'static str],
    /// Of the files in which it is looked for.
    extensions: &'static [&'static str],
    why: &'static str,
}

/// A text file of the repository.
#[derive(Debug)]
pub(super) struct TextFile {
    /// From the root, with forward slashes.
    pub(super) path: String,
    pub(super) text: String,
}

impl TextFile {
    fn extension(&self) -> &str {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        name.rsplit_once('.').map_or("", |(_, extension)| extension)
    }

    fn is_kernel_source(&self) -> bool {
        matches!(self.extension(), "cu" | "cuh")
    }

    /// A fault at a line, counted from 0.
    fn fault(&self, line: usize, what: impl std::fmt::Display) -> String {
        format!("{}:{}: {what}", self.path, line + 1)
    }
}

/// Every rule about one text file.
pub(super) const RULES: &[fn(&TextFile) -> Vec<String>] =
    &[reserved_words, ptx_in_its_wrappers, kernels_in_their_folder, ends_in_a_newline];

/// Only what the architecture names stands at the top.
pub(super) fn top_level(paths: &[PathBuf]) -> Vec<String> {
    let tops: BTreeSet<_> = paths
        .iter()
        .filter_map(|path| path.components().next())
        .map(|component| component.as_os_str().to_string_lossy().into_owned())
        .collect();
    tops.iter()
        .filter(|top| !top.starts_with('.') && !TOP_LEVEL.contains(&top.as_str()))
        .map(|top| format!("{top}: does not belong at the top of the repository"))
        .collect()
}

/// A folder or file is named for what it holds.
pub(super) fn module_names(paths: &[PathBuf]) -> Vec<String> {
    let empty = |path: &PathBuf| {
        path.iter().any(|part| {
            let part = part.to_string_lossy();
            EMPTY_NAMES.contains(&part.split('.').next().unwrap_or_default())
        })
    };
    paths.iter().filter(|path| empty(path)).map(|path| format!("{}: the name says nothing", path.display())).collect()
}

fn reserved_words(file: &TextFile) -> Vec<String> {
    let mut faults = Vec::new();
    for ReservedWord { word, allowed, extensions, why } in RESERVED_WORDS {
        if !extensions.contains(&file.extension()) || allowed.iter().any(|prefix| file.path.starts_with(prefix)) {
            continue;
        }
        for (number, line) in file.text.lines().enumerate() {
            // Preprocessors allow any space after the word.
            let line = if word.starts_with('#') { line.replace("# ", "#").replace('\t', " ") } else { line.to_owned() };
            if line.contains(word) {
                faults.push(file.fault(number, format_args!("`{word}`: {why}")));
            }
        }
    }
    faults
}

/// PTX stands only in the files that wrap it in a named function.
fn ptx_in_its_wrappers(file: &TextFile) -> Vec<String> {
    if !file.is_kernel_source() || file.path.starts_with(PTX) {
        return Vec::new();
    }
    file.text
        .lines()
        .enumerate()
        .filter(|(_, line)| has_asm(line.split("//").next().unwrap_or_default()))
        .map(|(number, _)| file.fault(number, format_args!("PTX belongs in a named function below {PTX}")))
        .collect()
}

/// Whether a line begins an `asm` statement.
fn has_asm(code: &str) -> bool {
    let word = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices("asm").any(|(at, asm)| {
        let before = code[..at].chars().next_back();
        let after = code[at + asm.len()..].trim_start_matches('_').trim_start();
        before.is_none_or(|c| !word(c) || c == '_') && (after.starts_with('(') || after.starts_with("volatile"))
    })
}

fn kernels_in_their_folder(file: &TextFile) -> Vec<String> {
    let allowed = file.path.starts_with(KERNELS) || file.path.starts_with("crates/curt/examples/");
    if file.is_kernel_source() && !allowed {
        vec![format!("{}: kernel sources belong below {KERNELS}", file.path)]
    } else {
        Vec::new()
    }
}

fn ends_in_a_newline(file: &TextFile) -> Vec<String> {
    if file.text.is_empty() || file.text.ends_with('\n') {
        Vec::new()
    } else {
        vec![format!("{}: does not end in a newline", file.path)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(path: &str, text: &str) -> Vec<String> {
        let file = TextFile { path: path.into(), text: text.into() };
        RULES.iter().flat_map(|rule| rule(&file)).collect()
    }

    #[test]
    fn the_top_is_short() {
        let paths = ["Cargo.toml", "crates/curt/src/lib.rs", ".ci/run"].map(PathBuf::from);
        assert!(top_level(&paths).is_empty());
        assert_eq!(top_level(&["scripts/a.sh".into()]), ["scripts: does not belong at the top of the repository"]);
    }

    #[test]
    fn names_say_something() {
        assert!(module_names(&["crates/curt/src/launch.rs".into(), "crates/curt/src/commons.rs".into()]).is_empty());
        for path in ["crates/curt/src/utils.rs", "crates/curt/src/common/mod.rs", "crates/x/cuda/helpers.cuh"] {
            assert_eq!(module_names(&[path.into()]).len(), 1, "{path}");
        }
    }

    #[test]
    fn words_stay_where_they_belong() {
        let nvrtc = format!("use {};\n", RESERVED_WORDS[0].word);
        assert!(faults("crates/curt/src/compile.rs", &nvrtc).is_empty());
        assert_eq!(faults("crates/cuattn-flash/src/lib.rs", &nvrtc).len(), 1);
        assert_eq!(faults("crates/curt-blaslt/src/lib.rs", &nvrtc).len(), 1);
        let kernel = format!("extern \"C\" {} void f() {{}}\n", RESERVED_WORDS[3].word);
        assert!(faults("crates/cuattn-kernels/cuda/softmax/rows.cu", &kernel).is_empty());
        assert!(faults("crates/curt/examples/saxpy.rs", &kernel).is_empty());
        let found = faults("crates/cuattn-phase2a/src/lib.rs", &kernel);
        assert_eq!(
            found,
            [format!(
                "crates/cuattn-phase2a/src/lib.rs:1: `{}`: engines hold no CUDA C++: it goes to cuattn-kernels",
                RESERVED_WORDS[3].word
            )]
        );
        let outside = format!("# see {}/data\n", RESERVED_WORDS[5].word);
        assert_eq!(faults("README.md", &outside).len(), 1);
        assert_eq!(faults(".ci/run", &outside).len(), 1);
    }

    #[test]
    fn kernels_include_only_what_is_embedded() {
        let path = "crates/cuattn-kernels/cuda/mask.cuh";
        assert!(faults(path, "#include \"types.cuh\"\n").is_empty());
        for line in ["#include <cuda_fp16.h>\n", "# include <cuda_fp16.h>\n", "#include\t<cuda_fp16.h>\n"] {
            assert_eq!(faults(path, line).len(), 1, "{line}");
        }
    }

    #[test]
    fn ptx_stays_in_its_wrappers() {
        let code = "    asm volatile(\"bar.sync 0;\");\n";
        assert!(faults("crates/cuattn-kernels/cuda/ptx/barrier.cuh", code).is_empty());
        let path = "crates/cuattn-kernels/cuda/flash/mma.cu";
        assert_eq!(faults(path, code).len(), 1);
        for line in ["asm(\"x\");\n", "asm (\"x\");\n", "  __asm__ volatile (\"x\");\n", "if (x) asm(\"\");\n"] {
            assert_eq!(faults(path, line).len(), 1, "{line}");
        }
        for line in ["// asm volatile is for the wrappers\n", "int plasma(int x);\n", "spasm(1);\n"] {
            assert!(faults(path, line).is_empty(), "{line}");
        }
    }

    #[test]
    fn kernels_have_one_home() {
        assert_eq!(faults("crates/cuattn-flash/src/mma.cu", "int x;\n").len(), 1);
        assert!(faults("crates/curt/examples/saxpy.cu", "int x;\n").is_empty());
    }

    #[test]
    fn text_ends_in_a_newline() {
        assert_eq!(faults("README.md", "text").len(), 1);
        assert!(faults("README.md", "text\n").is_empty());
        assert!(faults("README.md", "").is_empty());
    }
}
