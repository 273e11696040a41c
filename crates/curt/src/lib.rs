//! A small CUDA runtime.

pub mod dylib;
pub mod nvtx;

mod arch;
mod cache;
mod capabilities;
mod compile;
mod context;
mod driver;
mod error;
mod event;
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
pub use self::error::{Error, LaunchViolation, Result};
pub use self::event::{Event, GpuTimer};
pub use self::graph::Graph;
pub use self::launch::{KernelArgs, Launch, reduction_launch_config};
pub use self::memory::{DeviceBuffer, DevicePtr, MemoryStats, PinnedBuffer};
pub use self::module::{Function, FunctionAttributes, FunctionOptions, Module};
pub use self::probe::{CUBLASLT, DeviceReport, Finding, ProbeReport, probe, probe_with};
pub use self::runtime::{Runtime, RuntimeOptions};
pub use self::tensor_map::{
    Interleave, L2Promotion, OutOfBounds, Swizzle, TensorMap, TensorMapBuilder, TensorMapType, TensorMapViolation,
};
