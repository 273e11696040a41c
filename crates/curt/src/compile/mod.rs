//! CUDA C++ to machine code, without a GPU and without a toolkit.
//!
//! [`Compiler`] is NVRTC, found by [`SearchPaths`]. It compiles to CUBIN for one architecture, never to PTX: PTX of a newer NVRTC is
//! refused by an older driver, and the driver would compile it a second time.

mod diagnostics;
mod nvrtc;
mod resources;
mod source;

use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

pub use self::diagnostics::{CompileFailure, Diagnostic, Severity};
pub use self::resources::KernelResources;
pub use self::source::ModuleSource;

use self::nvrtc::Nvrtc;
use crate::arch::Arch;
use crate::dylib::SearchPaths;
use crate::error::{Error, Result};

/// A module in machine code.
#[derive(Clone, Debug)]
pub struct Cubin {
    /// The ELF image, for [`Runtime::load_image`](crate::Runtime::load_image) or a file.
    pub image: Arc<[u8]>,
    /// What the compiler said. With the option `--ptxas-options=-v` it tells what each kernel uses. Empty where the image came
    /// from the disk cache.
    pub log: String,
}

impl Cubin {
    /// What each kernel uses, if the source was compiled with `--ptxas-options=-v` ([`ModuleSource::verbose`]).
    pub fn resources(&self) -> Vec<KernelResources> {
        resources::parse(&self.log)
    }

    /// Warnings, and the assembler's remarks on lost performance (such as C7510, serialised `wgmma`).
    pub fn warnings(&self) -> Vec<Diagnostic> {
        let mut found = diagnostics::parse(&self.log);
        found.retain(|diagnostic| diagnostic.severity == Severity::Warning);
        found
    }
}

/// NVRTC, ready to compile. Cheap to clone.
///
/// ```no_run
/// use curt::{Arch, Compiler, ModuleSource};
///
/// let source = ModuleSource::new("fill.cu", r#"extern "C" __global__ void fill(float* x) { x[threadIdx.x] = 1.0f; }"#);
/// let cubin = Compiler::new()?.compile(&source, Arch::SM_90A)?;
/// println!("{} bytes", cubin.image.len());
/// # Ok::<(), curt::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Compiler {
    nvrtc: Arc<Nvrtc>,
}

static GLOBAL: OnceLock<Compiler> = OnceLock::new();
static LOADING: Mutex<()> = Mutex::new(());

impl Compiler {
    /// The compiler of this process, found on first use with [`SearchPaths::current`].
    ///
    /// # Errors
    ///
    /// [`Error::LibraryMissing`], [`Error::SymbolMissing`] or [`Error::BuiltinsMissing`]. A failure is not kept: the next call looks
    /// again.
    pub fn new() -> Result<Self> {
        if let Some(compiler) = GLOBAL.get() {
            return Ok(compiler.clone());
        }
        let _one_at_a_time = LOADING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(compiler) = GLOBAL.get() {
            return Ok(compiler.clone());
        }
        let compiler = Self::with_search(&SearchPaths::current())?;
        Ok(GLOBAL.get_or_init(|| compiler).clone())
    }

    /// A compiler found by `search`, whatever the process otherwise uses.
    ///
    /// # Errors
    ///
    /// As [`Compiler::new`].
    pub fn with_search(search: &SearchPaths) -> Result<Self> {
        Ok(Self { nvrtc: Arc::new(Nvrtc::load(search)?) })
    }

    /// The version of NVRTC, such as (13, 0).
    pub fn version(&self) -> (u32, u32) {
        self.nvrtc.version
    }

    /// The file that NVRTC came from.
    pub fn path(&self) -> &Path {
        &self.nvrtc.path
    }

    /// Compiles `source` for `arch`. Nothing is cached; [`CompileCache`](crate::CompileCache) does that.
    ///
    /// # Errors
    ///
    /// [`Error::Compile`] with the compiler's diagnostics, [`Error::NulByte`] for text that C cannot hold,
    /// [`Error::BuiltinsMissing`] where NVRTC's companion has gone.
    pub fn compile(&self, source: &ModuleSource, arch: Arch) -> Result<Cubin> {
        let span =
            tracing::info_span!("nvrtc_compile", module = source.name(), %arch, milliseconds = tracing::field::Empty);
        let _entered = span.enter();
        tracing::info!("compiling {} for {arch}", source.name());
        let start = Instant::now();
        let outcome = self.nvrtc.compile(source, arch);
        let milliseconds = start.elapsed().as_millis();
        span.record("milliseconds", u64::try_from(milliseconds).unwrap_or(u64::MAX));
        match &outcome {
            Ok(cubin) => {
                tracing::info!(bytes = cubin.image.len(), "compiled {} for {arch} in {milliseconds} ms", source.name())
            }
            Err(error) => tracing::info!("{} does not compile for {arch}: {error}", source.name()),
        }
        outcome
    }
}

impl From<CompileFailure> for Error {
    fn from(failure: CompileFailure) -> Self {
        Self::Compile(Box::new(failure))
    }
}

#[cfg(test)]
pub(crate) mod tests;
