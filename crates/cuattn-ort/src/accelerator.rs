//! A device as ONNX Runtime sees it: its memory, and the streams that work is on.

use std::alloc;
use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use cuattn_ep::Device;
use cuattn_ep::cuattn::Policy;
use cuattn_ep::cuattn::curt::{DevicePtr, Runtime};

use crate::abi::{DEVICE_ALLOCATOR, DEVICE_MEMORY, NVIDIA, OrtMemoryInfo, device_type};
use crate::api::tables;
use crate::failure::{Failure, Result, check};
use crate::options::Options;
use crate::statistics::STATISTICS;

/// Alignment of device memory.
const ALIGN: usize = 256;

/// What computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The CUDA device of this ordinal.
    Cuda(usize),
    /// The host, whose memory passes for a GPU's.
    Host,
}

/// A device: one for each CUDA device, for as long as the plugin is registered.
pub(crate) struct Accelerator {
    pub(crate) kind: Kind,
    memory_info: *mut OrtMemoryInfo,
    /// Made when it is first needed, so that registering costs nothing.
    base: OnceLock<Device>,
    making_base: Mutex<()>,
    /// Streams by handle.
    streams: Mutex<HashMap<usize, Device>>,
    allocations: Mutex<HashMap<usize, Allocation>>,
}

// SAFETY: the memory info is constant once it is made.
unsafe impl Send for Accelerator {}
// SAFETY: as above; all else is locked.
unsafe impl Sync for Accelerator {}

enum Allocation {
    /// Usable on one stream from the start, and freed in its order.
    OnStream(Runtime, DevicePtr),
    /// Usable on any stream.
    Anywhere(Runtime, DevicePtr),
    Host(alloc::Layout),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Accelerator {
    pub(crate) fn new(kind: Kind) -> Result<Arc<Self>> {
        let api = tables()?;
        let ordinal = match kind {
            Kind::Cuda(ordinal) => i32::try_from(ordinal).unwrap_or(i32::MAX),
            Kind::Host => 0,
        };
        let mut memory_info = std::ptr::null_mut();
        // Alignment 0, as the CUDA provider has it: two providers share a device's memory only if all of this is equal.
        // SAFETY: the name is a C string, and the pointer is to a live handle.
        check(unsafe {
            let (gpu, out) = (device_type::GPU, &mut memory_info);
            api.ort.CreateMemoryInfo_V2(
                c"Cuattn".as_ptr(),
                gpu,
                NVIDIA,
                ordinal,
                DEVICE_MEMORY,
                0,
                DEVICE_ALLOCATOR,
                out,
            )
        })?;
        Ok(Arc::new(Self {
            kind,
            memory_info,
            base: OnceLock::new(),
            making_base: Mutex::new(()),
            streams: Mutex::default(),
            allocations: Mutex::default(),
        }))
    }

    pub(crate) const fn memory_info(&self) -> *const OrtMemoryInfo {
        self.memory_info
    }

    pub(crate) const fn ordinal(&self) -> usize {
        match self.kind {
            Kind::Cuda(ordinal) => ordinal,
            Kind::Host => 0,
        }
    }

    /// A stream of the plugin's own that belongs to no session: for copies and allocations without one.
    pub(crate) fn base(&self) -> Result<Device> {
        if let Some(base) = self.base.get() {
            return Ok(base.clone());
        }
        let _making = lock(&self.making_base);
        if let Some(base) = self.base.get() {
            return Ok(base.clone());
        }
        let device = self.new_device(&Options::default())?;
        Ok(self.base.get_or_init(|| device).clone())
    }

    fn new_device(&self, options: &Options) -> Result<Device> {
        match self.kind {
            Kind::Host => Ok(Device::host()),
            Kind::Cuda(ordinal) => Ok(Device::gpu(Runtime::with_options(ordinal, options.runtime())?, options.policy)),
        }
    }

    /// A new stream. `handle` is what it is known by on the host, where there are no streams.
    pub(crate) fn new_stream(&self, options: &Options, handle: *const c_void) -> Result<(Device, *mut c_void)> {
        let device = self.new_device(options)?;
        let handle = device.runtime().map_or(handle.cast_mut(), Runtime::stream_handle);
        lock(&self.streams).insert(handle.addr(), device.clone());
        STATISTICS.streams.add();
        Ok((device, handle))
    }

    pub(crate) fn forget_stream(&self, handle: *mut c_void) {
        lock(&self.streams).remove(&handle.addr());
    }

    /// The stream of this handle, where it is one of ours.
    pub(crate) fn stream(&self, handle: *mut c_void) -> Option<Device> {
        lock(&self.streams).get(&handle.addr()).cloned()
    }

    /// A stream of another provider of the session, which came first and so provides streams.
    ///
    /// # Safety
    ///
    /// `handle` is a live `cudaStream_t` that outlives the device.
    pub(crate) unsafe fn foreign_stream(&self, handle: *mut c_void, policy: Policy) -> Result<Device> {
        // SAFETY: as the caller promises.
        let runtime = unsafe { Runtime::from_raw(std::ptr::null_mut(), handle)? };
        Ok(Device::gpu(runtime, policy))
    }

    /// Waits for all streams of the plugin's.
    pub(crate) fn synchronize(&self) -> Result {
        let streams: Vec<_> = lock(&self.streams).values().cloned().collect();
        for runtime in streams.iter().chain(self.base.get()).filter_map(Device::runtime) {
            runtime.synchronize()?;
        }
        Ok(())
    }

    /// Device memory, for one stream or for any.
    pub(crate) fn allocate(&self, bytes: usize, stream: Option<&Device>) -> Result<*mut c_void> {
        if bytes == 0 {
            return Ok(std::ptr::null_mut());
        }
        STATISTICS.allocations.add();
        let (address, allocation) = match (self.kind, stream.and_then(Device::runtime)) {
            (Kind::Host, _) => {
                let failed = || Failure::new(format!("the host has no {bytes} bytes to pass for device memory"));
                let layout = alloc::Layout::from_size_align(bytes, ALIGN).map_err(|_| failed())?;
                // SAFETY: there is at least one byte.
                let memory = NonNull::new(unsafe { alloc::alloc(layout) }).ok_or_else(failed)?;
                (memory.as_ptr().expose_provenance(), Allocation::Host(layout))
            }
            (Kind::Cuda(_), Some(runtime)) => {
                let memory = runtime.alloc_raw(bytes)?;
                (memory.address() as usize, Allocation::OnStream(runtime.clone(), memory))
            }
            (Kind::Cuda(_), None) => {
                let base = self.base()?;
                let Some(runtime) = base.runtime() else { return Err(Failure::new("a device without a stream")) };
                let memory = runtime.alloc_raw(bytes)?;
                // Other streams may use it at once.
                runtime.synchronize()?;
                (memory.address() as usize, Allocation::Anywhere(runtime.clone(), memory))
            }
        };
        lock(&self.allocations).insert(address, allocation);
        Ok(std::ptr::with_exposed_provenance_mut(address))
    }

    /// Frees what [`Accelerator::allocate`] gave.
    ///
    /// # Safety
    ///
    /// Nothing enqueued later uses it.
    pub(crate) unsafe fn free(&self, memory: *mut c_void) -> Result {
        if memory.is_null() {
            return Ok(());
        }
        let Some(allocation) = lock(&self.allocations).remove(&memory.addr()) else {
            return Err(Failure::invalid(format!("{memory:p} was not allocated here, or has been freed")));
        };
        match allocation {
            // SAFETY: it was allocated with this layout, and nobody uses it any more.
            Allocation::Host(layout) => unsafe { alloc::dealloc(memory.cast(), layout) },
            // SAFETY: it came from this runtime, and is freed in the order of the stream that it was made for.
            Allocation::OnStream(runtime, memory) => unsafe { runtime.free_raw(memory)? },
            Allocation::Anywhere(runtime, memory) => {
                // Any stream may be using it still.
                self.synchronize()?;
                // SAFETY: it came from this runtime, and no stream uses it any more.
                unsafe { runtime.free_raw(memory)? }
            }
        }
        Ok(())
    }
}

impl Drop for Accelerator {
    fn drop(&mut self) {
        if let Ok(api) = tables() {
            // SAFETY: it was made in `new`, and is released once.
            unsafe { api.ort.ReleaseMemoryInfo(self.memory_info) };
        }
    }
}
