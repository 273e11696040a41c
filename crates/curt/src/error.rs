//! Everything that can go wrong, with the numbers in fields and the way out in the text.

use std::fmt::Write as _;
use std::path::PathBuf;

use crate::compile::CompileFailure;
use crate::dylib::Attempt;
use crate::tensor_map::TensorMapViolation;

/// The result of everything in this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What was refused or failed, why, and how to fix it.
///
/// Cloneable, because threads that wait for one compilation all receive its outcome.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A shared library was found nowhere, or nothing that was found could be loaded.
    #[error("{library} was not found{}\n  fix: {fix}", list_attempts(tried))]
    LibraryMissing {
        /// What the library is called in NVIDIA's documentation.
        library: &'static str,
        /// Every place that was looked at, in order.
        tried: Vec<Attempt>,
        /// How to get it.
        fix: String,
    },

    /// A library loaded but lacks functions that are needed, usually because it is of another version.
    #[error("{library} at {} lacks {}\n  fix: {fix}", path.display(), symbols.join(", "))]
    SymbolMissing {
        /// What the library is called.
        library: &'static str,
        /// The file that was loaded.
        path: PathBuf,
        /// The functions that it does not export.
        symbols: Vec<&'static str>,
        /// Which version to install.
        fix: String,
    },

    /// NVRTC is there, its companion library with the compiler's builtins is not.
    #[error(
        "NVRTC at {} cannot compile: its companion {expected} could not be loaded ({reason})\n  fix: put {expected} of the same \
         CUDA version beside it, or install the complete package: pip install nvidia-cuda-nvrtc",
        nvrtc.display()
    )]
    BuiltinsMissing {
        /// The NVRTC library.
        nvrtc: PathBuf,
        /// The file that was expected.
        expected: String,
        /// What the loader said.
        reason: String,
    },

    /// The driver library is the link-time stub of a CUDA toolkit, which can do nothing.
    #[error(
        "{} is the stub of a CUDA toolkit, not a driver\n  fix: take `stubs` directories out of LD_LIBRARY_PATH, and install the \
         NVIDIA driver, or give the container access to it (docker run --gpus all)",
        path.display()
    )]
    StubDriver {
        /// The stub.
        path: PathBuf,
    },

    /// There is no device with this ordinal.
    #[error("there is no CUDA device {ordinal}: the driver shows {count}\n  fix: {}", device_fix(*count))]
    NoDevice {
        /// The ordinal asked for.
        ordinal: usize,
        /// How many devices the driver shows.
        count: usize,
    },

    /// No context could be derived for a foreign stream.
    #[error(
        "no CUDA context: {why}\n  fix: pass the context that owns the stream, or make one current on this thread first"
    )]
    NoContext {
        /// What was missing.
        why: &'static str,
    },

    /// A driver call failed.
    #[error("{call} failed: {name} ({code}): {text}")]
    Driver {
        /// The function of the driver.
        call: &'static str,
        /// The number it returned.
        code: i32,
        /// The name of that number.
        name: String,
        /// The driver's own description, and ours where it helps.
        text: String,
    },

    /// An NVRTC call other than the compilation itself failed.
    #[error("{call} failed: {name} ({code})")]
    Nvrtc {
        /// The function of NVRTC.
        call: &'static str,
        /// The number it returned.
        code: i32,
        /// The name of that number.
        name: String,
    },

    /// A kernel source does not compile.
    #[error(transparent)]
    Compile(Box<CompileFailure>),

    /// A kernel source, option or name cannot be handed to a C interface.
    #[error("{what} of module {module} holds a NUL byte at offset {offset}\n  fix: remove it; C strings end there")]
    NulByte {
        /// The module's name, made printable.
        module: String,
        /// `source`, `name`, `option` or `entry`.
        what: &'static str,
        /// Where it is.
        offset: usize,
    },

    /// An architecture's name was not understood.
    #[error("`{text}` is not an architecture\n  fix: write it like sm_80, sm_90a or sm_120")]
    InvalidArch {
        /// What was given.
        text: String,
    },

    /// The driver refused a compiled module.
    #[error("the driver (CUDA {}.{}) refused module {module} for {arch}: {name} ({code})\n  fix: {fix}", driver.0, driver.1)]
    ModuleRefused {
        /// The module's name.
        module: String,
        /// The architecture it was compiled for.
        arch: crate::Arch,
        /// The newest CUDA version that the driver knows.
        driver: (u32, u32),
        /// The number that the driver returned.
        code: i32,
        /// The name of that number.
        name: String,
        /// What to do.
        fix: String,
    },

    /// A module has no such kernel.
    #[error(
        "module {module} has no kernel `{entry}`\n  fix: declare it extern \"C\" __global__, so that its name is not mangled"
    )]
    EntryMissing {
        /// The module's name.
        module: String,
        /// The kernel asked for.
        entry: String,
    },

    /// Device memory is exhausted.
    #[error(
        "out of device memory: asked for {asked} bytes, {free} of {total} are free\n  fix: free buffers, or make the problem smaller"
    )]
    OutOfMemory {
        /// Bytes asked for.
        asked: usize,
        /// Bytes that the device has free.
        free: usize,
        /// Bytes that the device has.
        total: usize,
    },

    /// Page-locked host memory is exhausted.
    #[error(
        "out of page-locked host memory: asked for {asked} bytes\n  fix: free pinned buffers, or stage in smaller pieces"
    )]
    OutOfHostMemory {
        /// Bytes asked for.
        asked: usize,
    },

    /// A size cannot be represented.
    #[error("{what} overflows: {count} x {size} bytes\n  fix: no such size can be allocated; check the shape")]
    SizeOverflow {
        /// What was being sized.
        what: &'static str,
        /// How many.
        count: usize,
        /// Bytes of each.
        size: usize,
    },

    /// A range reaches past the end of its memory.
    #[error("{what}: bytes {offset}..{} reach past the end of {available} bytes", offset.saturating_add(*len))]
    OutOfRange {
        /// What was being done.
        what: &'static str,
        /// Where the range starts.
        offset: usize,
        /// How long it is.
        len: usize,
        /// How much there is.
        available: usize,
    },

    /// A buffer's bytes are not a whole number of elements.
    #[error("{bytes} bytes are not a whole number of {size}-byte elements")]
    PartialElement {
        /// Bytes of the buffer.
        bytes: usize,
        /// Bytes of an element.
        size: usize,
    },

    /// Something that cannot be part of a graph was asked for while the stream is being captured.
    #[error(
        "{what} is not possible while the stream is being captured into a graph\n  fix: do it before the capture begins"
    )]
    Capturing {
        /// What was asked for.
        what: &'static str,
    },

    /// A capture ended without a graph.
    #[error("the capture was invalidated: {name} ({code})\n  fix: {fix}")]
    CaptureInvalidated {
        /// The number that the driver returned.
        code: i32,
        /// The name of that number.
        name: String,
        /// What to look for.
        fix: &'static str,
    },

    /// A launch cannot work on this device or with this kernel.
    #[error("launch of `{kernel}` refused: {why}")]
    InvalidLaunch {
        /// The kernel.
        kernel: String,
        /// The rule that is broken, with its numbers.
        why: LaunchViolation,
    },

    /// A tensor map breaks rules of `cuTensorMapEncodeTiled`.
    #[error("tensor map refused:{}", list_violations(violations))]
    InvalidTensorMap {
        /// Every rule that is broken.
        violations: Vec<TensorMapViolation>,
    },
}

/// The rule that a launch breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchViolation {
    /// A dimension of the grid, block or cluster is zero.
    #[error("{what} {dims:?} has a zero; do not launch what has no work")]
    ZeroDimension {
        /// `grid`, `block` or `cluster`.
        what: &'static str,
        /// Its dimensions.
        dims: [u32; 3],
    },
    /// The grid is larger than the hardware counts.
    #[error("grid {grid:?} is larger than [2147483647, 65535, 65535]")]
    GridTooLarge {
        /// The grid.
        grid: [u32; 3],
    },
    /// The block has more threads than the kernel or device allows.
    #[error(
        "block {block:?} has {threads} threads, the kernel allows {limit}; lower the block or set __launch_bounds__"
    )]
    BlockTooLarge {
        /// The block.
        block: [u32; 3],
        /// Its threads.
        threads: u64,
        /// The limit.
        limit: u32,
    },
    /// More dynamic shared memory than the function was loaded with.
    #[error(
        "{asked} bytes of dynamic shared memory, the function was loaded for {limit}; load it with Module::function_with_shared"
    )]
    SharedTooLarge {
        /// Bytes asked for.
        asked: u32,
        /// Bytes opted in.
        limit: u32,
    },
    /// More shared memory than a block of this device can have.
    #[error("{asked} bytes of dynamic and {fixed} of static shared memory, a block of this device has {limit}")]
    SharedBeyondDevice {
        /// Dynamic bytes asked for.
        asked: usize,
        /// Static bytes of the kernel.
        fixed: usize,
        /// Bytes that a block can opt in to.
        limit: usize,
    },
    /// The grid is not a whole number of clusters.
    #[error("grid {grid:?} is not a whole number of clusters {cluster:?}")]
    PartialCluster {
        /// The grid.
        grid: [u32; 3],
        /// The cluster.
        cluster: [u32; 3],
    },
    /// The cluster has more blocks than any device allows.
    #[error("cluster {cluster:?} has {blocks} blocks, at most {limit} are possible")]
    ClusterTooLarge {
        /// The cluster.
        cluster: [u32; 3],
        /// Its blocks.
        blocks: u64,
        /// The limit.
        limit: u32,
    },
    /// Clusters or programmatic dependent launch on a device before Hopper.
    #[error("{what} needs compute capability 9.0, this device has {}.{}", have.0, have.1)]
    NeedsHopper {
        /// What was asked for.
        what: &'static str,
        /// What the device is.
        have: (u32, u32),
    },
    /// More rows than a grid has blocks.
    #[error("{rows} rows need as many blocks, a grid has at most 2147483647; split the rows over several launches")]
    TooManyRows {
        /// The rows.
        rows: usize,
    },
}

fn list_attempts(tried: &[Attempt]) -> String {
    let mut text = String::new();
    for attempt in tried {
        let _ = write!(text, "\n  tried {attempt}");
    }
    text
}

fn list_violations(violations: &[TensorMapViolation]) -> String {
    let mut text = String::new();
    for violation in violations {
        let _ = write!(text, "\n  {violation}");
    }
    text
}

fn device_fix(count: usize) -> String {
    match count {
        0 => "check that nvidia-smi lists a GPU, that CUDA_VISIBLE_DEVICES does not hide it, and that a container was started with \
              --gpus all"
            .to_owned(),
        _ => format!("use an ordinal below {count}"),
    }
}

impl Error {
    /// Whether the error says that the machine lacks something (a driver, a device, NVRTC), and not that a call was wrong.
    ///
    /// What runs on the host where there is no GPU asks this before it falls back.
    pub fn is_missing_hardware_or_library(&self) -> bool {
        matches!(
            self,
            Self::LibraryMissing { .. }
                | Self::SymbolMissing { .. }
                | Self::BuiltinsMissing { .. }
                | Self::StubDriver { .. }
                | Self::NoDevice { .. }
        ) || matches!(self, Self::Driver { call: "cuInit", .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_say_what_why_and_how_to_fix_it() {
        let texts = [
            Error::BuiltinsMissing {
                nvrtc: "/opt/lib/libnvrtc.so.13".into(),
                expected: "libnvrtc-builtins.so.13.0".to_owned(),
                reason: "cannot open shared object file".to_owned(),
            },
            Error::NoDevice { ordinal: 0, count: 0 },
            Error::Nvrtc { call: "nvrtcGetCUBIN", code: 4, name: "NVRTC_ERROR_INVALID_PROGRAM".to_owned() },
            Error::OutOfHostMemory { asked: 1 << 40 },
            Error::SizeOverflow { what: "score buffer", count: 1 << 40, size: 1 << 30 },
            Error::OutOfRange { what: "slice of device memory", offset: usize::MAX, len: 4, available: 8 },
        ]
        .map(|error| error.to_string());
        insta::assert_snapshot!(texts.join("\n"), @r"
        NVRTC at /opt/lib/libnvrtc.so.13 cannot compile: its companion libnvrtc-builtins.so.13.0 could not be loaded (cannot open shared object file)
          fix: put libnvrtc-builtins.so.13.0 of the same CUDA version beside it, or install the complete package: pip install nvidia-cuda-nvrtc
        there is no CUDA device 0: the driver shows 0
          fix: check that nvidia-smi lists a GPU, that CUDA_VISIBLE_DEVICES does not hide it, and that a container was started with --gpus all
        nvrtcGetCUBIN failed: NVRTC_ERROR_INVALID_PROGRAM (4)
        out of page-locked host memory: asked for 1099511627776 bytes
          fix: free pinned buffers, or stage in smaller pieces
        score buffer overflows: 1099511627776 x 1073741824 bytes
          fix: no such size can be allocated; check the shape
        slice of device memory: bytes 18446744073709551615..18446744073709551615 reach past the end of 8 bytes
        ");
    }

    #[test]
    fn an_error_is_small_and_goes_between_threads() {
        fn between_threads<T: Send + Sync + 'static>() {}
        between_threads::<Error>();
        // It is returned by every launch.
        assert!(size_of::<Error>() <= 112, "{} bytes", size_of::<Error>());
    }

    #[test]
    fn only_what_is_missing_is_missing() {
        let driver = |call, code| Error::Driver { call, code, name: String::new(), text: String::new() };
        assert!(driver("cuInit", 999).is_missing_hardware_or_library());
        assert!(Error::NoDevice { ordinal: 0, count: 0 }.is_missing_hardware_or_library());
        assert!(!driver("cuLaunchKernelEx", 999).is_missing_hardware_or_library());
        assert!(!Error::Capturing { what: "allocation" }.is_missing_hardware_or_library());
    }
}
