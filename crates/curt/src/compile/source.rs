//! What there is to compile.

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, Result};

/// One module: CUDA C++ text, and how to compile it.
///
/// The text must be complete. Where it is assembled from several files, `#line N "file.cuh"` directives make diagnostics name them.
///
/// ```
/// use curt::ModuleSource;
///
/// let source = ModuleSource::new("scale.cu", r#"extern "C" __global__ void scale(float* x) { x[threadIdx.x] *= FACTOR; }"#)
///     .define("FACTOR", "2.0f")
///     .option("--use_fast_math")
///     .entry("scale");
/// assert_eq!(source.options(), ["-DFACTOR=2.0f", "--use_fast_math"]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleSource {
    name: Arc<str>,
    text: Arc<str>,
    options: Vec<String>,
    entries: Vec<String>,
}

impl ModuleSource {
    /// A module. `name` is shown as the file in diagnostics; it is not opened.
    pub fn new(name: impl Into<Arc<str>>, text: impl Into<Arc<str>>) -> Self {
        Self { name: name.into(), text: text.into(), options: Vec::new(), entries: Vec::new() }
    }

    /// Adds an option of NVRTC. The architecture is not one of them: it is given to [`Compiler::compile`](crate::Compiler::compile).
    #[must_use]
    pub fn option(mut self, option: impl Into<String>) -> Self {
        self.options.push(option.into());
        self
    }

    /// Defines a macro.
    #[must_use]
    pub fn define(self, name: &str, value: impl fmt::Display) -> Self {
        self.option(format!("-D{name}={value}"))
    }

    /// Asks the assembler to tell what each kernel uses, for [`Cubin::resources`](crate::Cubin::resources).
    #[must_use]
    pub fn verbose(self) -> Self {
        self.option("--ptxas-options=-v")
    }

    /// Names a kernel that the module must hold. [`Runtime::load`](crate::Runtime::load) refuses a module without it.
    #[must_use]
    pub fn entry(mut self, entry: impl Into<String>) -> Self {
        self.entries.push(entry.into());
        self
    }

    /// The name shown in diagnostics.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The CUDA C++ text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The options, in order.
    pub fn options(&self) -> &[String] {
        &self.options
    }

    /// The kernels that the module must hold.
    pub fn entries(&self) -> &[String] {
        &self.entries
    }

    /// Refuses what cannot be a C string.
    pub(crate) fn check(&self) -> Result<()> {
        let parts = [("name", &*self.name), ("source", &*self.text)];
        let options = self.options.iter().map(|option| ("option", option.as_str()));
        let entries = self.entries.iter().map(|entry| ("entry", entry.as_str()));
        for (what, text) in parts.into_iter().chain(options).chain(entries) {
            if let Some(offset) = text.bytes().position(|byte| byte == 0) {
                return Err(Error::NulByte { module: self.name.replace('\0', "\u{2400}"), what, offset });
            }
        }
        Ok(())
    }
}
