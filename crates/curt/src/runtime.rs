//! The runtime: one device, one context, one stream.

use std::ffi::c_void;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use bytemuck::{AnyBitPattern, NoUninit};
use cudarc::driver::CudaStream;

use crate::cache::{CacheCounters, CacheKey, CacheOptions, CacheOutcome, CacheStats, CompileCache};
use crate::capabilities::Capabilities;
use crate::compile::{Compiler, ModuleSource};
use crate::context::Core;
use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::event::{Event, GpuTimer};
use crate::graph::{self, Graph};
use crate::launch::{KernelArgs, Launch};
use crate::memory::{DeviceBuffer, DevicePtr, MemoryStats, PinnedBuffer};
use crate::module::{Function, Module, ModuleInner};
use crate::single_flight::{Maker, SingleFlight};

/// How a [`Runtime`] is made.
#[derive(Clone, Debug, Default)]
pub struct RuntimeOptions {
    cache: Option<Arc<CompileCache>>,
    compiler: Option<Compiler>,
    retained_bytes: Option<u64>,
    blas_workspace_bytes: Option<usize>,
}

impl RuntimeOptions {
    const RETAINED_BYTES: u64 = 2 << 30;

    /// The defaults: the process's compile cache, 2 GiB of unused memory kept at most.
    pub fn new() -> Self {
        Self::default()
    }

    /// Compiled modules are kept here, shared with whoever else holds the cache.
    #[must_use]
    pub fn cache(mut self, cache: Arc<CompileCache>) -> Self {
        self.cache = Some(cache);
        self
    }

    /// Compiled modules are kept in this directory.
    #[must_use]
    pub fn cache_directory(self, directory: impl Into<PathBuf>) -> Self {
        self.cache(Arc::new(CompileCache::new(CacheOptions::at(directory))))
    }

    /// Compiled modules are not kept on disk.
    #[must_use]
    pub fn without_disk_cache(self) -> Self {
        self.cache(Arc::new(CompileCache::new(CacheOptions::in_memory())))
    }

    /// Compiles with this NVRTC instead of the process's.
    #[must_use]
    pub fn compiler(mut self, compiler: Compiler) -> Self {
        self.compiler = Some(compiler);
        self
    }

    /// How much unused device memory the pool keeps when the stream is synchronised. With 0 every synchronisation gives everything
    /// back, and the next allocation costs milliseconds.
    #[must_use]
    pub fn retained_bytes(mut self, bytes: u64) -> Self {
        self.retained_bytes = Some(bytes);
        self
    }

    /// Size of [`Runtime::blas_workspace`]. The default is what NVIDIA recommends for cuBLAS: 32 MiB from Hopper on, 8 MiB before.
    #[must_use]
    pub fn blas_workspace_bytes(mut self, bytes: usize) -> Self {
        self.blas_workspace_bytes = Some(bytes);
        self
    }
}

/// One device, one context, one stream. Cheap to clone, and usable from any thread.
///
/// Work is enqueued on the one stream in the order of the calls. A call makes the runtime's context current on its thread and leaves it so,
/// as cudarc and the CUDA runtime do.
#[derive(Clone)]
pub struct Runtime(Arc<Inner>);

struct Inner {
    // Fields drop in this order: modules and memory before the context that holds them.
    modules: SingleFlight<CacheKey, Arc<ModuleInner>>,
    blas_workspace: Mutex<Option<DeviceBuffer>>,
    blas_workspace_bytes: usize,
    cache: Arc<CompileCache>,
    compiler: Option<Compiler>,
    counters: CacheCounters,
    core: Arc<Core>,
}

impl Runtime {
    /// A runtime of its own on a device, with a stream of its own in the device's primary context.
    ///
    /// # Errors
    ///
    /// [`Error::LibraryMissing`] or [`Error::StubDriver`] without a driver, [`Error::NoDevice`] without such a device, or what the
    /// driver says.
    pub fn new(ordinal: usize) -> Result<Self> {
        Self::with_options(ordinal, RuntimeOptions::new())
    }

    /// [`Runtime::new`] with options.
    ///
    /// # Errors
    ///
    /// As [`Runtime::new`].
    pub fn with_options(ordinal: usize, options: RuntimeOptions) -> Result<Self> {
        let core = Core::of_device(
            Driver::global()?,
            ordinal,
            options.retained_bytes.unwrap_or(RuntimeOptions::RETAINED_BYTES),
        )?;
        Ok(Self::assemble(core, options))
    }

    /// A runtime on a stream of cudarc, which it keeps alive.
    ///
    /// cudarc counts events on its own slices only: memory that both sides use must be ordered by the stream they share.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn from_stream(stream: Arc<CudaStream>) -> Result<Self> {
        Self::from_stream_with_options(stream, RuntimeOptions::new())
    }

    /// [`Runtime::from_stream`] with options.
    ///
    /// # Errors
    ///
    /// As [`Runtime::from_stream`].
    pub fn from_stream_with_options(stream: Arc<CudaStream>, options: RuntimeOptions) -> Result<Self> {
        let core = Core::of_stream(stream, options.retained_bytes.unwrap_or(RuntimeOptions::RETAINED_BYTES))?;
        Ok(Self::assemble(core, options))
    }

    /// A runtime on a `CUcontext` and `CUstream` (or `cudaStream_t`) of somebody else. Neither is ever destroyed by it.
    ///
    /// A null `context` means the one that the stream belongs to; for the default stream, the one that is current on this thread.
    ///
    /// # Errors
    ///
    /// [`Error::NoContext`] where no context can be derived, or what the driver says.
    ///
    /// # Safety
    ///
    /// `stream` must be a live stream of `context`, or null for the default stream, and both must outlive the runtime and everything that
    /// was made with it.
    pub unsafe fn from_raw(context: *mut c_void, stream: *mut c_void) -> Result<Self> {
        // SAFETY: as the caller promises.
        unsafe { Self::from_raw_with_options(context, stream, RuntimeOptions::new()) }
    }

    /// [`Runtime::from_raw`] with options.
    ///
    /// # Errors
    ///
    /// As [`Runtime::from_raw`].
    ///
    /// # Safety
    ///
    /// As [`Runtime::from_raw`].
    pub unsafe fn from_raw_with_options(
        context: *mut c_void,
        stream: *mut c_void,
        options: RuntimeOptions,
    ) -> Result<Self> {
        let retained = options.retained_bytes.unwrap_or(RuntimeOptions::RETAINED_BYTES);
        // SAFETY: as the caller promises.
        let core = unsafe { Core::of_raw(Driver::global()?, context.cast(), stream.cast(), retained) }?;
        Ok(Self::assemble(core, options))
    }

    pub(crate) fn assemble(core: Core, options: RuntimeOptions) -> Self {
        let recommended = if core.capabilities.compute_capability.0 >= 9 { 32 << 20 } else { 8 << 20 };
        Self(Arc::new(Inner {
            modules: SingleFlight::new(),
            blas_workspace: Mutex::new(None),
            blas_workspace_bytes: options.blas_workspace_bytes.unwrap_or(recommended),
            cache: options.cache.unwrap_or_else(CompileCache::global),
            compiler: options.compiler,
            counters: CacheCounters::default(),
            core: Arc::new(core),
        }))
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.0.core
    }

    /// What the device can do.
    pub fn capabilities(&self) -> &Capabilities {
        &self.0.core.capabilities
    }

    /// The `CUstream`, for libraries that want it.
    pub fn stream_handle(&self) -> *mut c_void {
        self.0.core.stream.cast()
    }

    /// The `CUcontext`, for libraries that want it.
    pub fn context_handle(&self) -> *mut c_void {
        self.0.core.context.cast()
    }

    /// Makes the context current on this thread, for libraries that expect it.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn bind(&self) -> Result<()> {
        self.0.core.bind()
    }

    /// Waits until everything enqueued so far is done.
    ///
    /// # Errors
    ///
    /// [`Error::Capturing`] during capture, or the failure of earlier work.
    pub fn synchronize(&self) -> Result<()> {
        self.0.core.synchronize()
    }

    // Modules.

    /// Compiles `source` for this device, or takes it from the cache, and loads it. A module that is loaded is returned as it is.
    ///
    /// # Errors
    ///
    /// [`Error::Capturing`] during capture, loaded or not, so that what works does not depend on what ran before; the errors of
    /// [`Compiler::new`] and [`Compiler::compile`]; [`Error::EntryMissing`]; [`Error::ModuleRefused`].
    pub fn load(&self, source: &ModuleSource) -> Result<Module> {
        self.0.core.refuse_capture("loading a module")?;
        source.check()?;
        let compiler = self.0.compiler.clone().map_or_else(Compiler::new, Ok)?;
        let arch = self.capabilities().arch();
        let key = CacheKey::new(source, arch, compiler.version());
        let mut outcome = CacheOutcome::Memory;
        let (module, maker) = self.0.modules.get_or_make(&key, || {
            let (cubin, from) = self.0.cache.get_or_compile(key, || compiler.compile(source, arch))?;
            outcome = from;
            ModuleInner::load(&self.0.core, source.name(), &cubin.image).map(Arc::new)
        });
        let module = Module::new(module?);
        debug_assert!(maker == Maker::Us || outcome == CacheOutcome::Memory);
        self.0.counters.count(outcome);
        for entry in source.entries() {
            module.function(entry)?;
        }
        Ok(module)
    }

    /// Loads a CUBIN that was compiled elsewhere. Nothing is cached.
    ///
    /// # Errors
    ///
    /// [`Error::Capturing`] during capture, [`Error::ModuleRefused`] where the driver does not take it.
    ///
    /// # Safety
    ///
    /// The image must be a whole CUBIN: the driver reads as far as its headers say.
    pub unsafe fn load_image(&self, name: &str, image: &[u8]) -> Result<Module> {
        self.0.core.refuse_capture("loading a module")?;
        Ok(Module::new(Arc::new(ModuleInner::load(&self.0.core, name, image)?)))
    }

    /// Forgets a module that [`Runtime::load`] made. It is unloaded when its last [`Module`] and [`Function`] are dropped.
    ///
    /// Returns whether it was there.
    ///
    /// # Errors
    ///
    /// Those of [`Compiler::new`], whose version is part of a module's identity.
    pub fn unload(&self, source: &ModuleSource) -> Result<bool> {
        let compiler = self.0.compiler.clone().map_or_else(Compiler::new, Ok)?;
        let key = CacheKey::new(source, self.capabilities().arch(), compiler.version());
        Ok(self.0.modules.remove(&key).is_some())
    }

    /// What [`Runtime::load`] found in which tier.
    pub fn cache_stats(&self) -> CacheStats {
        self.0.counters.stats()
    }

    /// The compile cache, which other runtimes may share.
    pub fn compile_cache(&self) -> &Arc<CompileCache> {
        &self.0.cache
    }

    // Memory.

    /// Allocates device memory in stream order. Its contents are undefined. Zero bytes are legal.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`], [`Error::SizeOverflow`], [`Error::Capturing`], or what the driver says.
    pub fn alloc(&self, bytes: usize) -> Result<DeviceBuffer> {
        DeviceBuffer::new(&self.0.core, bytes)
    }

    /// [`Runtime::alloc`] of `count` elements of `T`.
    ///
    /// # Errors
    ///
    /// As [`Runtime::alloc`].
    pub fn alloc_array<T>(&self, count: usize) -> Result<DeviceBuffer> {
        let size = size_of::<T>();
        let bytes =
            count.checked_mul(size).ok_or(Error::SizeOverflow { what: "allocation of device memory", count, size })?;
        self.alloc(bytes)
    }

    /// [`Runtime::alloc`], filled with zeros.
    ///
    /// # Errors
    ///
    /// As [`Runtime::alloc`].
    pub fn alloc_zeroed(&self, bytes: usize) -> Result<DeviceBuffer> {
        let buffer = self.alloc(bytes)?;
        buffer.fill(0)?;
        Ok(buffer)
    }

    /// [`Runtime::alloc`] with a copy of `data`.
    ///
    /// # Errors
    ///
    /// As [`Runtime::alloc`].
    pub fn upload<T: NoUninit>(&self, data: &[T]) -> Result<DeviceBuffer> {
        let buffer = self.alloc(size_of_val(data))?;
        buffer.write(data)?;
        Ok(buffer)
    }

    /// Allocates without an owner, for callers that keep track themselves. Give it back with [`Runtime::free_raw`].
    ///
    /// # Errors
    ///
    /// As [`Runtime::alloc`].
    pub fn alloc_raw(&self, bytes: usize) -> Result<DevicePtr> {
        self.0.core.allocate(bytes)
    }

    /// Frees in stream order what [`Runtime::alloc_raw`] gave. During a capture it is freed after it.
    ///
    /// # Errors
    ///
    /// What the driver says.
    ///
    /// # Safety
    ///
    /// `memory` must come from `alloc_raw` of this runtime, be whole, not be freed already, and not be used by work enqueued later.
    pub unsafe fn free_raw(&self, memory: DevicePtr) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.0.core.free(memory) }
    }

    /// Allocates page-locked host memory.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfHostMemory`], [`Error::SizeOverflow`], [`Error::Capturing`], or what the driver says.
    pub fn alloc_pinned(&self, bytes: usize) -> Result<PinnedBuffer> {
        PinnedBuffer::new(&self.0.core, bytes)
    }

    /// The workspace that all BLAS calls on this runtime's stream share: the calls follow each other, so one is enough. Allocated on first
    /// use, valid as long as the runtime.
    ///
    /// # Errors
    ///
    /// As [`Runtime::alloc`]; so the first use must not be during a capture.
    pub fn blas_workspace(&self) -> Result<DevicePtr> {
        let mut workspace = self.0.blas_workspace.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(buffer) = &*workspace {
            return Ok(buffer.ptr());
        }
        let buffer = self.alloc(self.0.blas_workspace_bytes)?;
        Ok(workspace.insert(buffer).ptr())
    }

    /// Counts of this runtime's device memory.
    pub fn memory_stats(&self) -> MemoryStats {
        self.0.core.allocator.stats(self.0.core.driver)
    }

    /// Free and total bytes of the device.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn memory_info(&self) -> Result<(usize, usize)> {
        self.0.core.memory_info()
    }

    /// Waits for the stream and gives unused memory beyond `keep` bytes back to the system.
    ///
    /// # Errors
    ///
    /// [`Error::Capturing`] during capture, or what the driver says.
    pub fn trim(&self, keep: usize) -> Result<()> {
        self.synchronize()?;
        self.0.core.give_back_retained(keep);
        Ok(())
    }

    /// Copies `from` to the first bytes of `to`, and returns when `from` may be changed again.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`], [`Error::Capturing`], or what the driver says.
    ///
    /// # Safety
    ///
    /// `to` must be live device memory of this context.
    pub unsafe fn htod<T: NoUninit>(&self, from: &[T], to: DevicePtr) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.0.core.htod(from, to) }
    }

    /// Waits for the stream and copies the first bytes of `from` to fill `to`.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`], [`Error::Capturing`], or what the driver says.
    ///
    /// # Safety
    ///
    /// `from` must be live device memory of this context.
    pub unsafe fn dtoh<T: AnyBitPattern>(&self, from: DevicePtr, to: &mut [T]) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.0.core.dtoh(from, to) }
    }

    /// Enqueues a copy from page-locked memory and returns at once.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`], or what the driver says.
    ///
    /// # Safety
    ///
    /// `to` must be live device memory of this context, and `from` alive and unchanged until the copy is done: until the stream has passed
    /// it, and the last replay of a graph that captured it.
    pub unsafe fn htod_pinned(&self, from: &PinnedBuffer, to: DevicePtr) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.0.core.htod_pinned(from, to) }
    }

    /// Enqueues a copy to page-locked memory and returns at once.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`], or what the driver says.
    ///
    /// # Safety
    ///
    /// `from` must be live device memory of this context, and `to` alive and untouched until the copy is done: until the stream has passed
    /// it, and the last replay of a graph that captured it.
    pub unsafe fn dtoh_pinned(&self, from: DevicePtr, to: &mut PinnedBuffer) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.0.core.dtoh_pinned(from, to) }
    }

    /// Enqueues a copy of the first `bytes` bytes.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`], or what the driver says.
    ///
    /// # Safety
    ///
    /// Both must be live device memory of this context that does not overlap.
    pub unsafe fn dtod(&self, from: DevicePtr, to: DevicePtr, bytes: usize) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.0.core.dtod(from, to, bytes) }
    }

    /// Enqueues setting every byte of `memory`.
    ///
    /// # Errors
    ///
    /// What the driver says.
    ///
    /// # Safety
    ///
    /// `memory` must be live device memory of this context.
    pub unsafe fn memset(&self, memory: DevicePtr, value: u8) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.0.core.memset(memory, value) }
    }

    // Launch, events, graphs.

    /// Enqueues a kernel and returns at once. Takes no lock and no heap memory.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidLaunch`] with the rule that is broken, or what the driver says.
    ///
    /// # Safety
    ///
    /// `function` must belong to this runtime's context. `arguments` must match the kernel's parameters in number, order and layout. What the
    /// kernel reads and writes through them must be live device memory until the stream has passed the launch. If the launch is
    /// captured, memory and module must outlive the graph.
    #[inline]
    pub unsafe fn launch(&self, function: &Function, launch: &Launch, arguments: &KernelArgs<'_>) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { function.launch(&self.0.core, launch, arguments) }
    }

    /// An event on this runtime's device.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn event(&self) -> Result<Event> {
        Event::new(&self.0.core)
    }

    /// A timer of work on this runtime's stream.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn timer(&self) -> Result<GpuTimer> {
        GpuTimer::new(self)
    }

    /// Whether the stream is being captured into a graph, by this runtime or by anybody else.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn is_capturing(&self) -> Result<bool> {
        self.0.core.is_capturing()
    }

    /// Captures what `work` enqueues on the stream into a graph, instead of running it.
    ///
    /// If `work` fails or panics, the capture is ended and its graph thrown away; the stream is as before.
    ///
    /// # Errors
    ///
    /// What `work` returned; [`Error::Capturing`] where a capture is under way; [`Error::CaptureInvalidated`] where something in it
    /// cannot be captured; or what the driver says (the default stream cannot be captured).
    pub fn capture<T, E: From<Error>>(&self, work: impl FnOnce(&Self) -> Result<T, E>) -> Result<Graph, E> {
        graph::capture(self, work)
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Runtime").field(&self.0.core).finish()
    }
}

#[cfg(test)]
mod tests;
