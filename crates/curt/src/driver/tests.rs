use std::path::Path;

use super::*;
use crate::dylib::Table as _;
use crate::fake_library::{build, functions};

/// A driver in C that keeps no memory and runs no kernel, but follows the rules on contexts and captures and counts what is called.
///
/// `violations` counts calls that would break a capture on a real driver.
const FAKE: &str = r#"
#include <stddef.h>
#include <string.h>
typedef unsigned long long u64;
static __thread void* contexts[8];
static __thread int depth;
int capturing, violations, binds, syncs, allocations, plain_allocations, frees, trims, streams_destroyed, contexts_released;
int pools_destroyed, unloads, loads, graphs_destroyed, pools = 1, major = 9, launch_attributes[8];
unsigned last_launch[7];
void* last_argument;
static u64 next = 0x10000;
static void forbidden(void) { if (capturing) violations++; }

int cuDriverGetVersion(int* v) { *v = 13000; return 0; }
int cuGetErrorName(int e, const char** name) { *name = e == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_FAKE"; return 0; }
int cuGetErrorString(int e, const char** text) { *text = "a fake error"; return 0; }
int cuDeviceGetCount(int* n) { *n = 1; return 0; }
int cuDeviceGet(int* d, int i) { *d = i; return 0; }
int cuDeviceGetName(char* name, int len, int d) { strncpy(name, "Fake GPU", len); return 0; }
int cuDeviceTotalMem_v2(size_t* bytes, int d) { *bytes = (size_t)1 << 37; return 0; }
int cuDeviceGetAttribute(int* v, int a, int d) {
    *v = a == 1 ? 1024 : a == 75 ? major : a == 76 ? 0 : a == 97 ? 232448 : a == 115 ? pools : 100;
    return 0;
}
int cuDevicePrimaryCtxRetain(void** c, int d) { *c = (void*)0xc0; return 0; }
int cuDevicePrimaryCtxRelease_v2(int d) { contexts_released++; return 0; }
int cuCtxGetCurrent(void** c) { *c = contexts[depth]; return 0; }
int cuCtxSetCurrent(void* c) { contexts[depth] = c; binds++; return 0; }
int cuCtxPushCurrent_v2(void* c) { contexts[++depth] = c; return 0; }
int cuCtxPopCurrent_v2(void** c) { *c = contexts[depth--]; return 0; }
int cuCtxGetDevice(int* d) { if (!contexts[depth]) return 201; *d = 0; return 0; }
int cuStreamCreate(void** s, unsigned flags) { *s = (void*)0x5000; return contexts[depth] ? 0 : 201; }
int cuStreamDestroy_v2(void* s) { streams_destroyed++; return 0; }
int cuStreamSynchronize(void* s) { forbidden(); syncs++; return 0; }
int cuStreamGetCtx(void* s, void** c) { *c = (void*)0xf0; return 0; }
int cuStreamIsCapturing(void* s, int* status) { *status = capturing; return 0; }
int cuStreamBeginCapture_v2(void* s, int mode) { forbidden(); capturing = 1; return mode == 1 ? 0 : 1; }
int cuStreamEndCapture(void* s, void** g) { if (!capturing) return 1; *g = capturing == 2 ? 0 : (void*)0x6000; int r = capturing == 2 ? 901 : 0; capturing = 0; return r; }
int cuGraphGetNodes(void* g, void** n, size_t* count) { *count = 3; return 0; }
int cuGraphInstantiateWithFlags(void** e, void* g, u64 f) { *e = (void*)0x7000; return 0; }
int cuGraphDestroy(void* g) { graphs_destroyed++; return 0; }
int cuMemPoolCreate(void** p, const void* props) { *p = (void*)0x9000; return pools ? 0 : 801; }
int cuMemPoolDestroy(void* p) { pools_destroyed++; return 0; }
int cuMemPoolGetAttribute(void* p, int a, void* v) { *(u64*)v = 0; return 0; }
int cuMemPoolTrimTo(void* p, size_t keep) { forbidden(); trims++; return 0; }
int cuMemAllocFromPoolAsync(u64* a, size_t bytes, void* p, void* s) {
    forbidden();
    if (bytes > (size_t)1 << 36) return 2;
    allocations++; *a = next; next += (bytes + 511) / 512 * 512; return 0;
}
int cuMemAlloc_v2(u64* a, size_t bytes) { plain_allocations++; return cuMemAllocFromPoolAsync(a, bytes, 0, 0); }
int cuMemFreeAsync(u64 a, void* s) { forbidden(); frees++; return 0; }
int cuMemFree_v2(u64 a) { forbidden(); frees++; return 0; }
int cuMemGetInfo_v2(size_t* f, size_t* t) { if (!contexts[depth]) return 201; *f = (size_t)1 << 35; *t = (size_t)1 << 37; return 0; }
int cuMemcpyDtoHAsync_v2(void* to, u64 from, size_t bytes, void* s) { forbidden(); memset(to, 7, bytes); return 0; }
int pinned_frees;
int cuMemHostAlloc(void** m, size_t bytes, unsigned f) { static char memory[4096]; forbidden(); *m = memory; return bytes > 4096 ? 2 : 0; }
int cuMemFreeHost(void* m) { forbidden(); pinned_frees++; return 0; }
int cuModuleLoadData(void** m, const void* image) { forbidden(); loads++; *m = (void*)0xa000; return *(const char*)image == 'X' ? 200 : 0; }
int cuModuleUnload(void* m) { forbidden(); unloads++; return 0; }
int cuModuleGetFunction(void** f, void* m, const char* name) { *f = (void*)0xb000; return strcmp(name, "absent") ? 0 : 500; }
int cuFuncGetAttribute(int* v, int a, void* f) { *v = a == 0 ? 512 : a == 1 ? 1024 : 32; return 0; }
int cuLaunchKernelEx(const unsigned* c, void* f, void** args, void** extra) {
    memcpy(last_launch, c, sizeof last_launch);
    const int* attributes = *(const int* const*)((const char*)c + 40);
    unsigned count = c[12];
    memset(launch_attributes, 0, sizeof launch_attributes);
    for (unsigned i = 0; i < count; i++) { launch_attributes[2 * i] = attributes[18 * i]; launch_attributes[2 * i + 1] = attributes[18 * i + 2]; }
    last_argument = args[0];
    return 0;
}
int cuTensorMapEncodeTiled(void* m, int t, unsigned r, void* a, const u64* d, const u64* s, const unsigned* b, const unsigned* e, int i, int w, int l, int o) {
    memset(m, 0x42, 128); return ((u64)m % 64) ? 1 : 0;
}
"#;

/// The whole fake driver, with cuInit returning `init`, without the functions that `except` names.
fn text(init: CuResult, except: &[&str]) -> String {
    let mut names: Vec<&str> = DriverTable::SYMBOLS.to_vec();
    names.retain(|name| *name != "cuInit" && !FAKE.contains(&format!("int {name}(")));
    format!("{FAKE}{}int cuInit(unsigned flags) {{ return {init}; }}\n", functions(&names, except))
}

/// A fake driver of a test's own. None without a C compiler.
pub(crate) struct Fake {
    pub(crate) driver: &'static Driver,
    library: libloading::Library,
    _directory: tempfile::TempDir,
}

impl Fake {
    pub(crate) fn new(test: &str) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let path = build(test, directory.path(), "libcuda.so.1", &text(0, &[]))?;
        let driver = Driver::load(&SearchPaths::only([directory.path()])).unwrap();
        // SAFETY: the library is loaded already, and has no initialisers.
        let library = unsafe { libloading::Library::new(path) }.unwrap();
        Some(Self { driver: Box::leak(Box::new(driver)), library, _directory: directory })
    }

    /// A counter or setting of the fake.
    pub(crate) fn get(&self, name: &str) -> i32 {
        // SAFETY: the names that tests use are integers of the C text, written by the calling thread.
        unsafe { **self.library.get::<*mut c_int>(name).unwrap() }
    }

    pub(crate) fn set(&self, name: &str, value: i32) {
        // SAFETY: as above.
        unsafe { **self.library.get::<*mut c_int>(name).unwrap() = value };
    }

    /// An array of integers of the fake.
    pub(crate) fn array<const N: usize>(&self, name: &str) -> [i32; N] {
        // SAFETY: the names that tests use are arrays of at least N integers of the C text.
        unsafe { **self.library.get::<*mut [c_int; N]>(name).unwrap() }
    }
}

fn load(test: &str, text: &str) -> Option<(Result<Driver>, PathBuf)> {
    let directory = tempfile::tempdir().unwrap();
    let path = build(test, directory.path(), "libcuda.so.1", text)?;
    Some((Driver::load(&SearchPaths::only([directory.path()])), path))
}

#[test]
fn a_whole_driver_is_loaded() {
    let Some((driver, path)) = load("a_whole_driver_is_loaded", &text(0, &[])) else { return };
    let driver = driver.unwrap();
    assert_eq!((driver.version, driver.path.as_path()), ((13, 0), path.as_path()));
    assert_eq!(driver.device_name(0).unwrap(), "Fake GPU");
    insta::assert_snapshot!(driver.device(1).unwrap_err(), @r"
    there is no CUDA device 1: the driver shows 1
      fix: use an ordinal below 1
    ");
}

#[test]
fn the_stub_of_a_toolkit_is_told_from_a_driver() {
    let Some((driver, path)) = load("the_stub_of_a_toolkit_is_told_from_a_driver", &text(ERROR_STUB_LIBRARY, &[]))
    else {
        return;
    };
    let error = driver.unwrap_err();
    assert!(error.is_missing_hardware_or_library());
    let text = error.to_string().replace(&path.parent().unwrap().display().to_string(), "DIR");
    insta::assert_snapshot!(text, @r"
    DIR/libcuda.so.1 is the stub of a CUDA toolkit, not a driver
      fix: take `stubs` directories out of LD_LIBRARY_PATH, and install the NVIDIA driver, or give the container access to it (docker run --gpus all)
    ");
}

#[test]
fn a_driver_that_is_too_old_tells_what_it_lacks() {
    let old = text(0, &[])
        .replace("int cuTensorMapEncodeTiled(", "int other(")
        .replace("int cuLaunchKernelEx(", "int another(");
    let Some((driver, _)) = load("a_driver_that_is_too_old_tells_what_it_lacks", &old) else { return };
    match driver.unwrap_err() {
        Error::SymbolMissing { symbols, fix, .. } => {
            assert_eq!(symbols, ["cuLaunchKernelEx", "cuTensorMapEncodeTiled"]);
            assert!(fix.contains("CUDA 12.0 or later"), "{fix}");
        }
        other => panic!("{other}"),
    }
}

#[test]
fn a_driver_that_does_not_start_is_told_with_advice() {
    let Some((driver, _)) = load("a_driver_that_does_not_start_is_told_with_advice", &text(803, &[])) else { return };
    insta::assert_snapshot!(
        driver.unwrap_err(),
        @"cuInit failed: CUDA_ERROR_FAKE (803): a fake error; the kernel module and the user-mode driver are of different versions: reboot after an upgrade"
    );
    // No device is no broken driver.
    let none = text(ERROR_NO_DEVICE, &[]).replace("*n = 1; return 0;", "return 100;");
    let Some((driver, _)) = load("a_driver_that_does_not_start_is_told_with_advice", &none) else { return };
    match driver.unwrap().device(0).unwrap_err() {
        Error::NoDevice { ordinal: 0, count: 0 } => {}
        other => panic!("{other}"),
    }
}

#[test]
fn a_machine_without_a_driver_is_told_every_place() {
    let error = Driver::load(&SearchPaths::only(["/nowhere"])).unwrap_err();
    assert!(matches!(error, Error::LibraryMissing { .. }), "{error}");
    let report = crate::probe_with(&SearchPaths::only([Path::new("/nowhere/libcuda.so.1")]));
    assert!(!report.has_gpu() && !report.nvrtc.is_found() && !report.cublaslt.is_found());
    insta::assert_snapshot!(report, @r"
    driver    missing: the NVIDIA driver (libcuda) was not found
              tried /nowhere/libcuda.so.1 (explicit path): /nowhere/libcuda.so.1: cannot open shared object file: No such file or directory
              fix: install the NVIDIA driver for CUDA 12.0 or later (nvidia-smi must work), and start containers with --gpus all
    NVRTC     missing: NVRTC was not found
              fix: pip install nvidia-cuda-nvrtc (and set CURT_WHEELS to that site-packages, unless its environment is active), or install the CUDA toolkit 12 or 13 and set CUDA_HOME
    cuBLASLt  missing: cuBLASLt was not found
              fix: pip install nvidia-cublas (and set CURT_WHEELS to that site-packages, unless its environment is active), or install the CUDA toolkit 12 or 13 and set CUDA_HOME. Only engines that multiply with cuBLASLt need it
    ");
}

#[test]
fn a_report_shows_what_is_there() {
    let directory = tempfile::tempdir().unwrap();
    let Some(_) = build("a_report_shows_what_is_there", directory.path(), "libcuda.so.1", &text(0, &[])) else {
        return;
    };
    let cublaslt = "unsigned long cublasLtGetVersion(void) { return 130201; }";
    let Some(_) = build("a_report_shows_what_is_there", directory.path(), "libcublasLt.so.13", cublaslt) else {
        return;
    };
    let report = crate::probe_with(&SearchPaths::only([directory.path()]));
    assert!(report.has_gpu());
    let text = report.to_string().replace(&directory.path().display().to_string(), "DIR");
    insta::assert_snapshot!(text, @r"
    driver    CUDA 13.0 at DIR/libcuda.so.1
    device 0  Fake GPU, sm_90a, 128.0 GiB
    NVRTC     missing: NVRTC was not found
              tried DIR (explicit path): no libnvrtc.so.13 or libnvrtc.so.12 or libnvrtc.so below it
              fix: pip install nvidia-cuda-nvrtc (and set CURT_WHEELS to that site-packages, unless its environment is active), or install the CUDA toolkit 12 or 13 and set CUDA_HOME
    cuBLASLt  CUDA 13.2 at DIR/libcublasLt.so.13
    ");
}

#[test]
fn numbers_and_layouts_are_those_of_the_header() {
    use cudarc::driver::sys as header;
    use header::{CUdevice_attribute as device, CUfunction_attribute as function, CUmemPool_attribute as pool};

    macro_rules! same {
        ($($ours:expr => $theirs:expr),* $(,)?) => { $(assert_eq!($ours as i64, $theirs as i64, stringify!($theirs));)* };
    }
    same! {
        device_attribute::MAX_THREADS_PER_BLOCK => device::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
        device_attribute::CLOCK_RATE => device::CU_DEVICE_ATTRIBUTE_CLOCK_RATE,
        device_attribute::MULTIPROCESSOR_COUNT => device::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
        device_attribute::MEMORY_CLOCK_RATE => device::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE,
        device_attribute::L2_CACHE_SIZE => device::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE,
        device_attribute::COMPUTE_CAPABILITY_MAJOR => device::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
        device_attribute::COMPUTE_CAPABILITY_MINOR => device::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        device_attribute::MAX_SHARED_MEMORY_PER_MULTIPROCESSOR => device::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR,
        device_attribute::MAX_REGISTERS_PER_MULTIPROCESSOR => device::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR,
        device_attribute::MAX_SHARED_MEMORY_PER_BLOCK_OPTIN => device::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
        device_attribute::MEMORY_POOLS_SUPPORTED => device::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED,
        function_attribute::MAX_THREADS_PER_BLOCK => function::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
        function_attribute::SHARED_SIZE_BYTES => function::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
        function_attribute::LOCAL_SIZE_BYTES => function::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES,
        function_attribute::NUM_REGS => function::CU_FUNC_ATTRIBUTE_NUM_REGS,
        function_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES => function::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
        function_attribute::NON_PORTABLE_CLUSTER_SIZE_ALLOWED => function::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
        pool_attribute::RELEASE_THRESHOLD => pool::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
        pool_attribute::RESERVED_MEM_CURRENT => pool::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
        pool_attribute::USED_MEM_CURRENT => pool::CU_MEMPOOL_ATTR_USED_MEM_CURRENT,
        SUCCESS => header::CUresult::CUDA_SUCCESS,
        ERROR_OUT_OF_MEMORY => header::CUresult::CUDA_ERROR_OUT_OF_MEMORY,
        ERROR_STUB_LIBRARY => header::CUresult::CUDA_ERROR_STUB_LIBRARY,
        ERROR_NO_DEVICE => header::CUresult::CUDA_ERROR_NO_DEVICE,
        ERROR_INVALID_IMAGE => header::CUresult::CUDA_ERROR_INVALID_IMAGE,
        ERROR_NO_BINARY_FOR_GPU => header::CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU,
        ERROR_UNSUPPORTED_PTX_VERSION => header::CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
        ERROR_NOT_FOUND => header::CUresult::CUDA_ERROR_NOT_FOUND,
        ERROR_NOT_READY => header::CUresult::CUDA_ERROR_NOT_READY,
        ERROR_CAPTURE_IMPLICIT => header::CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
        STREAM_NON_BLOCKING => header::CUstream_flags::CU_STREAM_NON_BLOCKING,
        CAPTURE_STATUS_NONE => header::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE,
        CAPTURE_MODE_THREAD_LOCAL => header::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
        LaunchAttribute::cooperative().id => header::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
        LaunchAttribute::cluster([1; 3]).id => header::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
        LaunchAttribute::programmatic_stream_serialization().id
            => header::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        size_of::<LaunchConfig>() => size_of::<header::CUlaunchConfig>(),
        std::mem::offset_of!(LaunchConfig, stream) => std::mem::offset_of!(header::CUlaunchConfig, hStream),
        std::mem::offset_of!(LaunchConfig, attributes) => std::mem::offset_of!(header::CUlaunchConfig, attrs),
        size_of::<LaunchAttribute>() => size_of::<header::CUlaunchAttribute>(),
        std::mem::offset_of!(LaunchAttribute, value) => std::mem::offset_of!(header::CUlaunchAttribute, value),
        size_of::<PoolProperties>() => size_of::<header::CUmemPoolProps>(),
        std::mem::offset_of!(PoolProperties, location_type) => std::mem::offset_of!(header::CUmemPoolProps, location),
        size_of::<crate::TensorMap>() => size_of::<header::CUtensorMap>(),
    }
}
