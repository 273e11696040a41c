//! The CUDA driver: its function table, its numbers, and how its errors become ours.
//!
//! Function names carry the version suffix under which the library exports them; a header would add it silently. All are exported by
//! every driver from CUDA 12.0 on. Structures are declared here, and not taken from cudarc, because cudarc's change with the
//! CUDA version that whoever builds the tree has chosen, while the driver accepts the layout below in every version.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUgraph, CUgraphExec, CUgraphNode, CUmemoryPool, CUmodule,
    CUstream,
};

use crate::dylib::{self, LibrarySpec, SearchPaths};
use crate::error::{Error, Result};

/// `CUresult`, as a number: a driver newer than our list of names may return one that no Rust enum has.
pub(crate) type CuResult = c_int;

pub(crate) const SUCCESS: CuResult = 0;
pub(crate) const ERROR_OUT_OF_MEMORY: CuResult = 2;
const ERROR_STUB_LIBRARY: CuResult = 34;
const ERROR_NO_DEVICE: CuResult = 100;
pub(crate) const ERROR_INVALID_IMAGE: CuResult = 200;
pub(crate) const ERROR_NO_BINARY_FOR_GPU: CuResult = 209;
pub(crate) const ERROR_UNSUPPORTED_PTX_VERSION: CuResult = 222;
pub(crate) const ERROR_NOT_FOUND: CuResult = 500;
pub(crate) const ERROR_NOT_READY: CuResult = 600;
pub(crate) const ERROR_CAPTURE_IMPLICIT: CuResult = 906;

pub(crate) mod device_attribute {
    use std::ffi::c_int;

    pub(crate) const MAX_THREADS_PER_BLOCK: c_int = 1;
    pub(crate) const CLOCK_RATE: c_int = 13;
    pub(crate) const MULTIPROCESSOR_COUNT: c_int = 16;
    pub(crate) const MEMORY_CLOCK_RATE: c_int = 36;
    pub(crate) const L2_CACHE_SIZE: c_int = 38;
    pub(crate) const COMPUTE_CAPABILITY_MAJOR: c_int = 75;
    pub(crate) const COMPUTE_CAPABILITY_MINOR: c_int = 76;
    pub(crate) const MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: c_int = 81;
    pub(crate) const MAX_REGISTERS_PER_MULTIPROCESSOR: c_int = 82;
    pub(crate) const MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: c_int = 97;
    pub(crate) const MEMORY_POOLS_SUPPORTED: c_int = 115;
}

pub(crate) mod function_attribute {
    use std::ffi::c_int;

    pub(crate) const MAX_THREADS_PER_BLOCK: c_int = 0;
    pub(crate) const SHARED_SIZE_BYTES: c_int = 1;
    pub(crate) const LOCAL_SIZE_BYTES: c_int = 3;
    pub(crate) const NUM_REGS: c_int = 4;
    pub(crate) const MAX_DYNAMIC_SHARED_SIZE_BYTES: c_int = 8;
    pub(crate) const NON_PORTABLE_CLUSTER_SIZE_ALLOWED: c_int = 14;
}

pub(crate) mod pool_attribute {
    use std::ffi::c_int;

    pub(crate) const RELEASE_THRESHOLD: c_int = 4;
    pub(crate) const RESERVED_MEM_CURRENT: c_int = 5;
    pub(crate) const USED_MEM_CURRENT: c_int = 7;
}

pub(crate) const STREAM_NON_BLOCKING: c_uint = 1;
pub(crate) const EVENT_DEFAULT: c_uint = 0;
pub(crate) const CAPTURE_STATUS_NONE: c_int = 0;
pub(crate) const CAPTURE_MODE_THREAD_LOCAL: c_int = 1;

/// `CUlaunchConfig`.
#[repr(C)]
pub(crate) struct LaunchConfig {
    pub(crate) grid: [c_uint; 3],
    pub(crate) block: [c_uint; 3],
    pub(crate) shared_bytes: c_uint,
    pub(crate) stream: CUstream,
    pub(crate) attributes: *const LaunchAttribute,
    pub(crate) attribute_count: c_uint,
}

/// `CUlaunchAttribute`: a number, padding, and a union of 64 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct LaunchAttribute {
    id: c_int,
    pad: c_int,
    value: [u64; 8],
}

impl LaunchAttribute {
    pub(crate) const NONE: Self = Self { id: 0, pad: 0, value: [0; 8] };

    const fn from_words(id: c_int, words: [u32; 3]) -> Self {
        let first = (words[0] as u64) | ((words[1] as u64) << 32);
        // The union's members are read in place, so on the little-endian machines that CUDA runs on, words fill from below.
        Self { id, pad: 0, value: [first, words[2] as u64, 0, 0, 0, 0, 0, 0] }
    }

    pub(crate) const fn cooperative() -> Self {
        Self::from_words(2, [1, 0, 0])
    }

    pub(crate) const fn cluster(dims: [u32; 3]) -> Self {
        Self::from_words(4, dims)
    }

    pub(crate) const fn programmatic_stream_serialization() -> Self {
        Self::from_words(6, [1, 0, 0])
    }
}

/// `CUmemPoolProps`: a pool of plain memory of one device.
#[repr(C)]
pub(crate) struct PoolProperties {
    allocation_type: c_int,
    handle_types: c_int,
    location_type: c_int,
    location_id: c_int,
    security_attributes: *mut c_void,
    max_size: usize,
    reserved: [u64; 7],
}

impl PoolProperties {
    pub(crate) const fn of_device(device: CUdevice) -> Self {
        const PINNED: c_int = 1;
        const NO_HANDLE: c_int = 0;
        const DEVICE: c_int = 1;
        Self {
            allocation_type: PINNED,
            handle_types: NO_HANDLE,
            location_type: DEVICE,
            location_id: device,
            security_attributes: std::ptr::null_mut(),
            max_size: 0,
            reserved: [0; 7],
        }
    }
}

const _: () = {
    assert!(size_of::<LaunchConfig>() == 56);
    assert!(size_of::<LaunchAttribute>() == 72);
    assert!(size_of::<PoolProperties>() == 88);
};

crate::dylib_table! {
    /// What this crate calls of the driver.
    pub(crate) struct DriverTable {
        fn cuInit(flags: c_uint) -> CuResult;
        fn cuDriverGetVersion(version: *mut c_int) -> CuResult;
        fn cuGetErrorName(error: CuResult, name: *mut *const c_char) -> CuResult;
        fn cuGetErrorString(error: CuResult, text: *mut *const c_char) -> CuResult;

        fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int) -> CuResult;
        fn cuDeviceGetCount(count: *mut c_int) -> CuResult;
        fn cuDeviceGetName(name: *mut c_char, len: c_int, device: CUdevice) -> CuResult;
        fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice) -> CuResult;
        fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: CUdevice) -> CuResult;
        fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice) -> CuResult;
        fn cuDevicePrimaryCtxRelease_v2(device: CUdevice) -> CuResult;

        fn cuCtxGetCurrent(context: *mut CUcontext) -> CuResult;
        fn cuCtxSetCurrent(context: CUcontext) -> CuResult;
        fn cuCtxPushCurrent_v2(context: CUcontext) -> CuResult;
        fn cuCtxPopCurrent_v2(context: *mut CUcontext) -> CuResult;
        fn cuCtxGetDevice(device: *mut CUdevice) -> CuResult;

        fn cuStreamCreate(stream: *mut CUstream, flags: c_uint) -> CuResult;
        fn cuStreamDestroy_v2(stream: CUstream) -> CuResult;
        fn cuStreamSynchronize(stream: CUstream) -> CuResult;
        fn cuStreamGetCtx(stream: CUstream, context: *mut CUcontext) -> CuResult;
        fn cuStreamIsCapturing(stream: CUstream, status: *mut c_int) -> CuResult;
        fn cuStreamBeginCapture_v2(stream: CUstream, mode: c_int) -> CuResult;
        fn cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph) -> CuResult;

        fn cuGraphInstantiateWithFlags(exec: *mut CUgraphExec, graph: CUgraph, flags: c_ulonglong) -> CuResult;
        fn cuGraphGetNodes(graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize) -> CuResult;
        fn cuGraphLaunch(exec: CUgraphExec, stream: CUstream) -> CuResult;
        fn cuGraphExecDestroy(exec: CUgraphExec) -> CuResult;
        fn cuGraphDestroy(graph: CUgraph) -> CuResult;

        fn cuMemPoolCreate(pool: *mut CUmemoryPool, properties: *const PoolProperties) -> CuResult;
        fn cuMemPoolDestroy(pool: CUmemoryPool) -> CuResult;
        fn cuMemPoolSetAttribute(pool: CUmemoryPool, attribute: c_int, value: *mut c_void) -> CuResult;
        fn cuMemPoolGetAttribute(pool: CUmemoryPool, attribute: c_int, value: *mut c_void) -> CuResult;
        fn cuMemPoolTrimTo(pool: CUmemoryPool, min_bytes_to_keep: usize) -> CuResult;
        fn cuMemAllocFromPoolAsync(address: *mut CUdeviceptr, bytes: usize, pool: CUmemoryPool, stream: CUstream) -> CuResult;
        fn cuMemFreeAsync(address: CUdeviceptr, stream: CUstream) -> CuResult;
        fn cuMemAlloc_v2(address: *mut CUdeviceptr, bytes: usize) -> CuResult;
        fn cuMemFree_v2(address: CUdeviceptr) -> CuResult;
        fn cuMemHostAlloc(memory: *mut *mut c_void, bytes: usize, flags: c_uint) -> CuResult;
        fn cuMemFreeHost(memory: *mut c_void) -> CuResult;
        fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> CuResult;

        fn cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream) -> CuResult;
        fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream) -> CuResult;
        fn cuMemcpyDtoDAsync_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream) -> CuResult;
        fn cuMemsetD8Async(to: CUdeviceptr, value: u8, bytes: usize, stream: CUstream) -> CuResult;

        fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void) -> CuResult;
        fn cuModuleUnload(module: CUmodule) -> CuResult;
        fn cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char) -> CuResult;
        fn cuFuncGetAttribute(value: *mut c_int, attribute: c_int, function: CUfunction) -> CuResult;
        fn cuFuncSetAttribute(function: CUfunction, attribute: c_int, value: c_int) -> CuResult;
        fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
            blocks: *mut c_int, function: CUfunction, block_threads: c_int, dynamic_shared_bytes: usize,
        ) -> CuResult;
        fn cuLaunchKernelEx(
            config: *const LaunchConfig, function: CUfunction, arguments: *mut *mut c_void, extra: *mut *mut c_void,
        ) -> CuResult;

        fn cuEventCreate(event: *mut CUevent, flags: c_uint) -> CuResult;
        fn cuEventDestroy_v2(event: CUevent) -> CuResult;
        fn cuEventRecord(event: CUevent, stream: CUstream) -> CuResult;
        fn cuEventQuery(event: CUevent) -> CuResult;
        fn cuEventSynchronize(event: CUevent) -> CuResult;
        fn cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent) -> CuResult;

        fn cuTensorMapEncodeTiled(
            map: *mut c_void, data_type: c_int, rank: u32, address: *mut c_void, dims: *const u64, strides: *const u64,
            box_dims: *const u32, element_strides: *const u32, interleave: c_int, swizzle: c_int, l2_promotion: c_int,
            out_of_bounds: c_int,
        ) -> CuResult;
    }
}

/// How the driver is found. It comes with the kernel module, so neither toolkits nor wheels hold it.
pub(crate) const DRIVER: LibrarySpec = LibrarySpec {
    name: "the NVIDIA driver (libcuda)",
    files: if cfg!(windows) { &["nvcuda.dll"] } else { &["libcuda.so.1", "libcuda.so"] },
    system_directories: &[
        "/usr/lib/wsl/lib",
        "/run/opengl-driver/lib",
        "/usr/local/nvidia/lib64",
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib64",
    ],
    fix: "install the NVIDIA driver for CUDA 12.0 or later (nvidia-smi must work), and start containers with --gpus all",
    ..LibrarySpec::EMPTY
};

/// A driver that is loaded and initialised.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) table: DriverTable,
    pub(crate) path: PathBuf,
    /// The newest CUDA version that it knows.
    pub(crate) version: (u32, u32),
}

static GLOBAL: OnceLock<Driver> = OnceLock::new();
static LOADING: Mutex<()> = Mutex::new(());

impl Driver {
    /// The driver of this process, loaded on first use. A failure is not kept: the next call looks again.
    pub(crate) fn global() -> Result<&'static Self> {
        if let Some(driver) = GLOBAL.get() {
            return Ok(driver);
        }
        let _one_at_a_time = LOADING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(driver) = GLOBAL.get() {
            return Ok(driver);
        }
        let driver = Self::load(&SearchPaths::current())?;
        Ok(GLOBAL.get_or_init(|| driver))
    }

    /// Loads and initialises the first usable driver that `search` names.
    pub(crate) fn load(search: &SearchPaths) -> Result<Self> {
        let loaded = dylib::load::<DriverTable>(&DRIVER, search, initialise)?;
        let mut number = 0;
        // SAFETY: the pointer is to a live integer.
        let code = unsafe { loaded.table.cuDriverGetVersion(&mut number) };
        let number = if code == SUCCESS { number.unsigned_abs() } else { 0 };
        Ok(Self { table: loaded.table, path: loaded.path, version: (number / 1000, number % 1000 / 10) })
    }

    /// Turns the result of a call into ours.
    #[inline]
    pub(crate) fn check(&self, call: &'static str, code: CuResult) -> Result<()> {
        if code == SUCCESS { Ok(()) } else { Err(driver_error(&self.table, call, code)) }
    }

    pub(crate) fn error_name(&self, code: CuResult) -> String {
        error_name(&self.table, code)
    }

    pub(crate) fn device_count(&self) -> Result<usize> {
        let mut count = 0;
        // SAFETY: the pointer is to a live integer.
        let code = unsafe { self.table.cuDeviceGetCount(&mut count) };
        if code == ERROR_NO_DEVICE {
            return Ok(0);
        }
        self.check("cuDeviceGetCount", code)?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    pub(crate) fn device(&self, ordinal: usize) -> Result<CUdevice> {
        let count = self.device_count()?;
        if ordinal >= count {
            return Err(Error::NoDevice { ordinal, count });
        }
        let mut device = 0;
        let ordinal = c_int::try_from(ordinal).map_err(|_| Error::NoDevice { ordinal, count })?;
        // SAFETY: the pointer is to a live integer.
        self.check("cuDeviceGet", unsafe { self.table.cuDeviceGet(&mut device, ordinal) })?;
        Ok(device)
    }

    pub(crate) fn device_attribute(&self, device: CUdevice, attribute: c_int) -> Result<u32> {
        let mut value = 0;
        // SAFETY: the pointer is to a live integer.
        let code = unsafe { self.table.cuDeviceGetAttribute(&mut value, attribute, device) };
        self.check("cuDeviceGetAttribute", code)?;
        Ok(u32::try_from(value).unwrap_or(0))
    }

    pub(crate) fn device_name(&self, device: CUdevice) -> Result<String> {
        let mut name = [0 as c_char; 256];
        // SAFETY: the driver writes at most the stated length, with a terminator.
        let code = unsafe { self.table.cuDeviceGetName(name.as_mut_ptr(), 256, device) };
        self.check("cuDeviceGetName", code)?;
        // SAFETY: the last byte stays zero or is the driver's terminator.
        Ok(unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned())
    }

    pub(crate) fn device_memory(&self, device: CUdevice) -> Result<usize> {
        let mut bytes = 0;
        // SAFETY: the pointer is to a live integer.
        self.check("cuDeviceTotalMem", unsafe { self.table.cuDeviceTotalMem_v2(&mut bytes, device) })?;
        Ok(bytes)
    }

    pub(crate) fn current_context(&self) -> Result<CUcontext> {
        let mut context = std::ptr::null_mut();
        // SAFETY: the pointer is to a live handle.
        self.check("cuCtxGetCurrent", unsafe { self.table.cuCtxGetCurrent(&mut context) })?;
        Ok(context)
    }
}

fn initialise(table: &DriverTable, path: &Path) -> Result<()> {
    // SAFETY: cuInit may be called any number of times; 0 is the only flag.
    match unsafe { table.cuInit(0) } {
        // No device is not a broken driver: `device` tells of it with the count.
        SUCCESS | ERROR_NO_DEVICE => Ok(()),
        ERROR_STUB_LIBRARY => Err(Error::StubDriver { path: path.to_owned() }),
        code => Err(driver_error(table, "cuInit", code)),
    }
}

fn error_name(table: &DriverTable, code: CuResult) -> String {
    let mut name = std::ptr::null();
    // SAFETY: the pointer is to a live pointer.
    let known = unsafe { table.cuGetErrorName(code, &mut name) } == SUCCESS && !name.is_null();
    if !known {
        return "unknown error".to_owned();
    }
    // SAFETY: a known error's name is a constant C string of the driver.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}

#[cold]
fn driver_error(table: &DriverTable, call: &'static str, code: CuResult) -> Error {
    let mut text = std::ptr::null();
    // SAFETY: the pointer is to a live pointer.
    let known = unsafe { table.cuGetErrorString(code, &mut text) } == SUCCESS && !text.is_null();
    let text = if known {
        // SAFETY: a known error's description is a constant C string of the driver.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    } else {
        "the driver has no description of it".to_owned()
    };
    let advice = match (call, code) {
        ("cuInit", 999) => "; the kernel module may not match the library: reboot, or reload nvidia_uvm",
        ("cuInit", 803 | 804) => {
            "; the kernel module and the user-mode driver are of different versions: reboot after an upgrade"
        }
        // Launch failures that leave the context unusable.
        (_, 700 | 702 | 710 | 714..=719) => {
            "; the context is lost, a new process is needed. compute-sanitizer shows the access"
        }
        _ => "",
    };
    Error::Driver { call, code, name: error_name(table, code), text: format!("{text}{advice}") }
}

#[cfg(test)]
pub(crate) mod tests;
