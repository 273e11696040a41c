//! A small CUDA runtime: from CUDA C++ text to a result, with nothing installed at build time.
//!
//! `cargo add curt` builds in seconds on any machine: there is no CUDA toolkit, no nvcc and no build script behind it. At run time the
//! driver and NVRTC are looked for, and where one is missing the answer is an [`Error`] that says where it was looked for and how to get
//! it. [`probe`] shows what a machine has before anything is tried.
//!
//! ```no_run
//! use curt::{KernelArgs, Launch, ModuleSource, Runtime};
//!
//! let runtime = Runtime::new(0)?;
//! let source = ModuleSource::new("scale.cu", r#"
//!     extern "C" __global__ void scale(float* x, float factor) { x[threadIdx.x] *= factor; }
//! "#);
//! let scale = runtime.load(&source)?.function("scale")?;
//!
//! let x = runtime.upload(&[1.0f32, 2.0, 3.0, 4.0])?;
//! let (address, factor) = (x.ptr().address(), 10.0f32);
//! let arguments = KernelArgs::new().arg(&address).arg(&factor);
//! // SAFETY: the arguments are the kernel's parameters, and `x` holds as many floats as there are threads.
//! unsafe { runtime.launch(&scale, &Launch::new([1, 1, 1], [4, 1, 1]), &arguments) }?;
//! assert_eq!(x.read::<f32>()?, [10.0, 20.0, 30.0, 40.0]);
//! # Ok::<(), curt::Error>(())
//! ```
//!
//! # One context, one stream, no surprises
//!
//! A [`Runtime`] is one device, one context and one stream. It comes from a device ([`Runtime::new`]), from cudarc
//! ([`Runtime::from_stream`]), or from the raw handles that a host such as ONNX Runtime passes around ([`Runtime::from_raw`]). It never
//! makes a stream behind the caller's back, so whatever is enqueued runs in the order of the calls, next to the host's own work.
//!
//! What takes long, allocates or waits, and what merely enqueues, are different calls. [`Runtime::load`], [`Runtime::alloc`] and
//! [`Runtime::synchronize`] are of the first kind; [`Runtime::launch`] is of the second, and takes no lock and no heap memory. During the
//! capture of a graph the first kind is refused with [`Error::Capturing`], before the driver is asked: the driver would break the
//! capture. So what was launched outside a capture can be launched inside one, and [`Runtime::capture`] ends cleanly whatever happens in
//! it.
//!
//! # Compiled for the device that is there, once
//!
//! Kernels are compiled at run time by NVRTC for the exact architecture of the device, to machine code. PTX would be compiled again by
//! the driver, and PTX of a newer NVRTC is refused by an older driver. A module is compiled once: threads that ask for the same one
//! wait for the first ([`CompileCache`]), processes share a directory, and an entry on disk is believed only if its checksum is right.
//! A cache that is damaged, full, read-only or missing costs a compilation and nothing else. A `tracing` span at INFO goes with each
//! compilation, so that a cold start does not look like a hang.
//!
//! The compiler itself needs no GPU: [`Compiler`] and [`Cubin::resources`] are what a CI machine uses to see that every kernel compiles
//! for every architecture and does not spill.
//!
//! # Memory is bytes
//!
//! A [`DeviceBuffer`] owns bytes and frees them in stream order; a [`DevicePtr`] is an address and a length that owns nothing. What the
//! bytes mean is the kernel's business. Allocation is from a pool of the runtime's own that keeps what it has: the driver's default
//! pool gives memory back at each synchronisation, and then the next allocation costs milliseconds. Functions that take a `DevicePtr` are
//! `unsafe`, because an address can be anything; those of a `DeviceBuffer` are not.
//!
//! # Why the driver is called through our own tables
//!
//! cudarc declares the CUDA interfaces, and its types are used here. Its functions are not: cudarc panics when a library is missing or
//! lacks a function, and a library that runs on other people's machines must say what is wrong instead. So the libraries are
//! loaded, all in one way ([`dylib`]), into tables of function pointers that hold exactly what is called. As a second gain, nothing here
//! depends on the CUDA version that cudarc was told about when the tree was built: one binary runs on every driver from CUDA 12 on.
//! [`dylib_table!`] is public, so that crates above load their libraries in the same way.
//!
//! # What is not here
//!
//! No tensors, no element types, no allocator traits, no streams beyond the one, no multi-GPU: those belong to whoever uses this. The crate
//! knows nothing of attention, though it was written for it.
//!
//! # Environment
//!
//! | variable | meaning |
//! |---|---|
//! | `CURT_CUDA_PATH` | libraries, directories or toolkit roots to look at before all else, separated as in `PATH` |
//! | `CUDA_HOME`, `CUDA_PATH` | toolkit roots |
//! | `CURT_WHEELS` | `site-packages` folders that hold `nvidia-cuda-nvrtc` and the like; an active virtual environment is found without |
//! | `CURT_CACHE_DIR` | where compiled modules are kept, instead of `curt` in the user's cache directory |
//! | `CURT_CACHE=0` | keep them in the process only |
//!
//! # Features
//!
//! `nvtx`: [`nvtx::range`] shows ranges in Nsight Systems. Off by default.

pub mod dylib;
pub mod nvtx;

mod arch;
mod cache;
mod capabilities;
mod compile;
mod context;
mod counters;
mod driver;
mod error;
mod event;
#[cfg(test)]
mod fake_library;
mod graph;
mod launch;
mod memory;
mod module;
mod probe;
mod runtime;
mod single_flight;
mod tensor_map;

pub use self::arch::Arch;
pub use self::cache::{CacheKey, CacheOptions, CacheOutcome, CacheStats, CompileCache};
pub use self::capabilities::Capabilities;
pub use self::compile::{CompileFailure, Compiler, Cubin, Diagnostic, KernelResources, ModuleSource, Severity};
pub use self::counters::LaunchCounters;
pub use self::error::{Error, LaunchViolation, Result};
pub use self::event::{Event, GpuTimer};
pub use self::graph::Graph;
pub use self::launch::{KernelArgs, Launch, reduction_launch_config};
pub use self::memory::{DeviceBuffer, DevicePtr, MemoryStats, PinnedBuffer};
pub use self::module::{Function, FunctionAttributes, FunctionOptions, Module};
pub use self::probe::{CUBLASLT, DeviceReport, Finding, ProbeReport, probe, probe_with};
pub use self::runtime::{Runtime, RuntimeOptions};
pub use self::tensor_map::{
    Interleave, L2Promotion, OutOfBounds, RAGGED_ROWS, Swizzle, TensorMap, TensorMapBuilder, TensorMapCache,
    TensorMapType, TensorMapViolation,
};
