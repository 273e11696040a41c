//! The C++ compiler of this machine, and kernels' text as it takes it.

use std::collections::HashMap;
use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::Context as _;

use crate::repository;

/// A C++ compiler that answers.
pub(super) struct Compiler {
    pub(super) command: String,
}

impl Compiler {
    /// The first that there is, or what to do where there is none.
    pub(super) fn find() -> Result<Self, &'static str> {
        const NONE: &str = "no C++17 compiler for a Unix was found: install g++ or clang++, or name one in CXX";
        if !cfg!(unix) {
            return Err(NONE);
        }
        let named = env::var("CXX").ok().filter(|command| !command.is_empty());
        let candidates = named.into_iter().chain(["c++", "g++", "clang++"].map(str::to_owned));
        let answers = |command: &String| {
            let mut command = Command::new(command);
            command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
            command.status().is_ok_and(|status| status.success())
        };
        candidates.into_iter().find(answers).map(|command| Self { command }).ok_or(NONE)
    }

    /// Compiles a kernel's text.
    pub(super) fn compile(&self, text: &Path, to: &Path, more: &[&str]) -> anyhow::Result<Output> {
        let mut command = Command::new(&self.command);
        command.args(["-std=c++17", "-O2", "-w", "-fno-strict-aliasing"]).args(more);
        command.arg("-I").arg(folder()).arg("-o").arg(to).arg(text);
        command.output().with_context(|| format!("cannot start {}", self.command))
    }
}

/// Where the machine is.
pub(super) fn folder() -> PathBuf {
    repository::root().join("tests/emulation")
}

/// An assembled source as C++: the files of `ptx/` are replaced by those of `tests/emulation`, between the machine and `end`.
pub(super) fn emulated(assembled: &str, end: &str) -> String {
    let (mut file, mut line_number, mut kernels) = ("", 1, 0);
    let mut lines = vec!["#include \"machine.h\"".to_owned()];
    // The last piece of a file comes when everything that it includes stands there.
    let pieces: HashMap<_, _> =
        assembled.lines().enumerate().filter_map(|(number, line)| Some((line_directive(line)?.1, number))).collect();
    for (number, line) in assembled.lines().enumerate() {
        if let Some((next, path)) = line_directive(line) {
            (line_number, file) = (next, path);
            if !file.starts_with("ptx/") {
                lines.push(line.to_owned());
            } else if pieces.get(file) == Some(&number) {
                lines.push(format!("#include \"{}.h\"", file.trim_end_matches(".cuh")));
            }
            continue;
        }
        if !file.starts_with("ptx/") {
            if line.starts_with(DECLARATION) {
                lines.push(format!("#define HAS_KERNEL_{kernels}\n#line {line_number} \"{file}\""));
                kernels += 1;
            }
            lines.push(translated(line));
        }
        line_number += 1;
    }
    lines.push(end.to_owned());
    lines.join("\n")
}

/// The same as a module for the emulated driver, which has to be told the kernels in it: those that conditions leave there.
pub(super) fn emulated_module(assembled: &str) -> String {
    let declarations =
        assembled.match_indices(DECLARATION).filter(|&(at, _)| at == 0 || assembled.as_bytes()[at - 1] == b'\n');
    let entries: String = declarations
        .enumerate()
        .filter_map(|(number, (at, _))| {
            let (name, threads) = kernel(&assembled[at + DECLARATION.len()..])?;
            let entry = format!("machine::Kernel<{name}>::entry(\"{name}\", {threads}),");
            Some(format!("#ifdef HAS_KERNEL_{number}\n{entry}\n#endif\n"))
        })
        .collect();
    emulated(
        assembled,
        &format!(
            "#include \"device/module.h\"\nstatic const machine::Entry kernels_of_module[] = {{\n{entries}}};\n\
             EXPORT_MODULE(kernels_of_module)\n"
        ),
    )
}

/// How the line of a kernel begins.
const DECLARATION: &str = "extern \"C\" __global__ void ";

/// A kernel's name, and how many threads its blocks may have: `__launch_bounds__(threads, ...) name(parameters`.
fn kernel(declaration: &str) -> Option<(&str, &str)> {
    let (name, rest) = declaration.split_once('(')?;
    if name.trim() != "__launch_bounds__" {
        return Some((name.trim(), "1024"));
    }
    // A comma or a parenthesis that belongs to no other.
    let outermost = |wanted: [char; 2]| {
        let mut depth = 0;
        move |c| {
            let found = depth == 0 && wanted.contains(&c);
            depth += i32::from(c == '(') - i32::from(c == ')');
            found
        }
    };
    let threads = &rest[..rest.find(outermost([',', ')']))?];
    let end = rest.find(outermost([')', ')']))?;
    Some((rest[end + 1..].split_once('(')?.0.trim(), threads.trim()))
}

/// Number and file of a `#line` directive.
fn line_directive(line: &str) -> Option<(usize, &str)> {
    let (number, file) = line.strip_prefix("#line ")?.split_once(' ')?;
    Some((number.parse().ok()?, file.trim_matches('"')))
}

/// What a C++ compiler does not know: unrolling, and shared memory whose size the launch decides.
fn translated(line: &str) -> String {
    let trimmed = line.trim_start();
    if trimmed.starts_with("#pragma unroll") {
        return String::new();
    }
    if trimmed.starts_with("#define UNROLL") {
        return line.split("_Pragma").next().unwrap_or(line).split("PRAGMA(").next().unwrap_or(line).to_owned();
    }
    let Some(declaration) = trimmed.strip_prefix("extern __shared__ ") else { return line.to_owned() };
    let words: Vec<_> = declaration.split_whitespace().filter(|word| !word.starts_with("__align__")).collect();
    let (name, element) = words.split_last().map_or(("", String::new()), |(name, element)| (*name, element.join(" ")));
    let name = name.trim_end_matches(";").trim_end_matches("[]");
    format!("{element}* const {name} = reinterpret_cast<{element}*>(machine::shared_memory + machine::SHARED_BEGIN);")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_replaced_where_all_they_need_stands() {
        let assembled = "#define A 1\n#line 1 \"root.cu\"\n#line 1 \"ptx/math.cuh\"\n// one\n#line 1 \"types.cuh\"\ntypedef int i32;\n\
                         #line 3 \"ptx/math.cuh\"\nasm\n#line 2 \"root.cu\"\n#pragma unroll 1\nend";
        let want = "#include \"machine.h\"\n#define A 1\n#line 1 \"root.cu\"\n#line 1 \"types.cuh\"\ntypedef int i32;\n\
                    #include \"ptx/math.h\"\n#line 2 \"root.cu\"\n\nend\nEND";
        assert_eq!(emulated(assembled, "END"), want);
    }

    #[test]
    fn shared_memory_of_a_launch_is_the_machines() {
        assert_eq!(
            translated("  extern __shared__ __align__(1024) unsigned char dynamic[];"),
            "unsigned char* const dynamic = reinterpret_cast<unsigned char*>(machine::shared_memory + machine::SHARED_BEGIN);"
        );
        assert_eq!(translated("#define UNROLL _Pragma(\"unroll\")"), "#define UNROLL ");
        assert_eq!(translated("  int x;"), "  int x;");
    }

    #[test]
    fn a_module_names_its_kernels() {
        let text = "#line 7 \"a.cu\"\n#if A\nextern \"C\" __global__ void __launch_bounds__(32 * (WARPS + 1), 2)\n  first(int x) {}\n#endif\n\
                    extern \"C\" __global__ void second() {}\n";
        insta::assert_snapshot!(emulated_module(text), @r#"
        #include "machine.h"
        #line 7 "a.cu"
        #if A
        #define HAS_KERNEL_0
        #line 8 "a.cu"
        extern "C" __global__ void __launch_bounds__(32 * (WARPS + 1), 2)
          first(int x) {}
        #endif
        #define HAS_KERNEL_1
        #line 11 "a.cu"
        extern "C" __global__ void second() {}
        #include "device/module.h"
        static const machine::Entry kernels_of_module[] = {
        #ifdef HAS_KERNEL_0
        machine::Kernel<first>::entry("first", 32 * (WARPS + 1)),
        #endif
        #ifdef HAS_KERNEL_1
        machine::Kernel<second>::entry("second", 1024),
        #endif
        };
        EXPORT_MODULE(kernels_of_module)
        "#);
    }
}
