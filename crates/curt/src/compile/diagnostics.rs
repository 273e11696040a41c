//! The compiler's log, taken apart into diagnostics.

use std::fmt;

use crate::arch::Arch;

/// How bad a diagnostic is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Severity {
    /// The source does not compile.
    Error,
    /// It compiles, and something is doubtful. The assembler's remarks on lost performance count as this.
    Warning,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error => "error",
            Self::Warning => "warning",
        })
    }
}

/// One thing that the compiler or the assembler said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// The file: the name of the [`ModuleSource`](crate::ModuleSource), the one of the last `#line`, or `ptx` for the assembler.
    pub file: Option<String>,
    /// The line in it.
    pub line: Option<u32>,
    /// How bad it is.
    pub severity: Severity,
    /// What was said, with its number if it has one.
    pub message: String,
    /// The source line and the mark below it, as the compiler printed them.
    pub excerpt: Vec<String>,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.file, self.line) {
            (Some(file), Some(line)) => write!(f, "{file}:{line}: ")?,
            (Some(file), None) => write!(f, "{file}: ")?,
            _ => {}
        }
        write!(f, "{}: {}", self.severity, self.message)?;
        for line in &self.excerpt {
            write!(f, "\n{line}")?;
        }
        Ok(())
    }
}

/// A source that does not compile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompileFailure {
    /// The module's name.
    pub module: String,
    /// What it was compiled for.
    pub arch: Arch,
    /// The options beside the architecture.
    pub options: Vec<String>,
    /// The version of NVRTC.
    pub nvrtc_version: (u32, u32),
    /// What was said, errors and warnings in order.
    pub diagnostics: Vec<Diagnostic>,
    /// The whole log.
    pub log: String,
}

impl fmt::Display for CompileFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.nvrtc_version;
        write!(f, "{} does not compile for {} with NVRTC {major}.{minor}", self.module, self.arch)?;
        if self.options.is_empty() {
            write!(f, ", no options")?;
        } else {
            write!(f, ", options {}", self.options.join(" "))?;
        }
        let errors = self.diagnostics.iter().filter(|diagnostic| diagnostic.severity == Severity::Error);
        let mut any = false;
        for diagnostic in errors {
            any = true;
            write!(f, "\n{diagnostic}")?;
        }
        if !any {
            write!(f, "\n{}", self.log)?;
        }
        Ok(())
    }
}

impl std::error::Error for CompileFailure {}

/// Takes a log apart. Lines that are no diagnostic and belong to none are left out.
pub(super) fn parse(log: &str) -> Vec<Diagnostic> {
    let mut found: Vec<Diagnostic> = Vec::new();
    let mut open = false;
    for line in log.lines() {
        if let Some(diagnostic) = parse_line(line) {
            found.push(diagnostic);
            open = true;
        } else if open && line.starts_with("  ") && !line.trim().is_empty() {
            if let Some(last) = found.last_mut() {
                last.excerpt.push(line.to_owned());
            }
        } else {
            open = false;
        }
    }
    found
}

fn parse_line(line: &str) -> Option<Diagnostic> {
    if let Some(rest) = line.strip_prefix("ptxas") {
        return parse_assembler(rest);
    }
    let (place, severity, message) = split_severity(line)?;
    let (file, line) = match place.strip_suffix(')').and_then(|place| place.rsplit_once('(')) {
        Some((file, number)) => (file, Some(number.parse().ok()?)),
        None => (place, None),
    };
    Some(Diagnostic { file: Some(file.to_owned()), line, severity, message: message.to_owned(), excerpt: Vec::new() })
}

/// Splits `soft.cuh(10): warning #177-D: message`.
fn split_severity(line: &str) -> Option<(&str, Severity, &str)> {
    const WORDS: [(&str, Severity); 4] = [
        (": catastrophic error", Severity::Error),
        (": internal error", Severity::Error),
        (": error", Severity::Error),
        (": warning", Severity::Warning),
    ];
    WORDS.iter().find_map(|&(word, severity)| {
        let at = line.find(word)?;
        let rest = &line[at + word.len()..];
        let message = match rest.strip_prefix(": ") {
            Some(message) => message,
            // A number stands between: keep it, it is what one searches for.
            None => rest.strip_prefix(' ').filter(|rest| rest.starts_with('#'))?,
        };
        Some((&line[..at], severity, message))
    })
}

/// Takes apart what follows `ptxas`: ` application ptx input, line 23; error   : message`, ` fatal   : message`,
/// ` info    : (C7510) Potential Performance Loss: …`.
fn parse_assembler(rest: &str) -> Option<Diagnostic> {
    let (head, message) = rest.split_once(": ")?;
    let (place, word) = head.rsplit_once(';').unwrap_or(("", head));
    let severity = match word.trim() {
        "error" | "fatal" => Severity::Error,
        "warning" => Severity::Warning,
        "info" if message.trim_start().starts_with("(C7") => Severity::Warning,
        _ => return None,
    };
    let line = place.rsplit_once("line ").and_then(|(_, number)| number.trim().parse().ok());
    Some(Diagnostic {
        file: Some("ptx".to_owned()),
        line,
        severity,
        message: message.trim().to_owned(),
        excerpt: Vec::new(),
    })
}
