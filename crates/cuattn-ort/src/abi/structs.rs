//! The structs that a plugin fills. A function that is `None` is one that ONNX Runtime can do without.

use std::ffi::{c_char, c_int, c_void};

use super::{
    OrtApi, OrtCustomOpDomain, OrtEpDevice, OrtEpGraphSupportInfo, OrtGraph, OrtHardwareDevice, OrtKernelContext,
    OrtKernelInfo, OrtKernelRegistry, OrtKeyValuePairs, OrtLogger, OrtMemoryDevice, OrtMemoryInfo, OrtSessionOptions,
    OrtShapeInferContext, OrtSyncStream, OrtValue, Status,
};

/// A slot that stays empty.
pub(crate) type Unused = Option<unsafe extern "C" fn()>;

/// Empty slots after those of the version that is stated: whoever looks further finds nothing there.
pub(crate) type Newer = [usize; 16];

/// `OrtEpFactory`.
#[repr(C)]
pub(crate) struct OrtEpFactory {
    pub(crate) ort_version_supported: u32,
    pub(crate) GetName: unsafe extern "C" fn(*const OrtEpFactory) -> *const c_char,
    pub(crate) GetVendor: unsafe extern "C" fn(*const OrtEpFactory) -> *const c_char,
    pub(crate) GetSupportedDevices: unsafe extern "C" fn(
        *mut OrtEpFactory,
        *const *const OrtHardwareDevice,
        usize,
        *mut *mut OrtEpDevice,
        usize,
        *mut usize,
    ) -> Status,
    pub(crate) CreateEp: unsafe extern "C" fn(
        *mut OrtEpFactory,
        *const *const OrtHardwareDevice,
        *const *const OrtKeyValuePairs,
        usize,
        *const OrtSessionOptions,
        *const OrtLogger,
        *mut *mut OrtEp,
    ) -> Status,
    pub(crate) ReleaseEp: unsafe extern "C" fn(*mut OrtEpFactory, *mut OrtEp),
    pub(crate) GetVendorId: unsafe extern "C" fn(*const OrtEpFactory) -> u32,
    pub(crate) GetVersion: unsafe extern "C" fn(*const OrtEpFactory) -> *const c_char,
    pub(crate) ValidateCompiledModelCompatibilityInfo: Unused,
    pub(crate) CreateAllocator: unsafe extern "C" fn(
        *mut OrtEpFactory,
        *const OrtMemoryInfo,
        *const OrtKeyValuePairs,
        *mut *mut OrtAllocator,
    ) -> Status,
    pub(crate) ReleaseAllocator: unsafe extern "C" fn(*mut OrtEpFactory, *mut OrtAllocator),
    pub(crate) CreateDataTransfer: unsafe extern "C" fn(*mut OrtEpFactory, *mut *mut OrtDataTransferImpl) -> Status,
    pub(crate) IsStreamAware: unsafe extern "C" fn(*const OrtEpFactory) -> bool,
    pub(crate) CreateSyncStreamForDevice: unsafe extern "C" fn(
        *mut OrtEpFactory,
        *const OrtMemoryDevice,
        *const OrtKeyValuePairs,
        *mut *mut OrtSyncStreamImpl,
    ) -> Status,
    pub(crate) GetHardwareDeviceIncompatibilityDetails: Unused,
    pub(crate) CreateExternalResourceImporterForDevice: Unused,
    pub(crate) GetNumCustomOpDomains: unsafe extern "C" fn(*mut OrtEpFactory, *mut usize) -> Status,
    pub(crate) GetCustomOpDomains:
        unsafe extern "C" fn(*mut OrtEpFactory, *mut *mut OrtCustomOpDomain, usize) -> Status,
    pub(crate) newer: Newer,
}

/// `OrtEp`.
#[repr(C)]
pub(crate) struct OrtEp {
    pub(crate) ort_version_supported: u32,
    pub(crate) GetName: unsafe extern "C" fn(*const OrtEp) -> *const c_char,
    pub(crate) GetCapability: unsafe extern "C" fn(*mut OrtEp, *const OrtGraph, *mut OrtEpGraphSupportInfo) -> Status,
    pub(crate) Compile: Unused,
    pub(crate) ReleaseNodeComputeInfos: Unused,
    pub(crate) GetPreferredDataLayout: Unused,
    pub(crate) ShouldConvertDataLayoutForOp: Unused,
    pub(crate) SetDynamicOptions: Unused,
    pub(crate) OnRunStart: Unused,
    pub(crate) OnRunEnd: Unused,
    pub(crate) CreateAllocator: Unused,
    pub(crate) CreateSyncStreamForDevice:
        unsafe extern "C" fn(*mut OrtEp, *const OrtMemoryDevice, *mut *mut OrtSyncStreamImpl) -> Status,
    pub(crate) GetCompiledModelCompatibilityInfo: Unused,
    pub(crate) GetKernelRegistry: unsafe extern "C" fn(*mut OrtEp, *mut *const OrtKernelRegistry) -> Status,
    pub(crate) IsConcurrentRunSupported: unsafe extern "C" fn(*mut OrtEp, *mut bool) -> Status,
    pub(crate) newer: Newer,
}

/// `OrtKernelImpl`.
#[repr(C)]
pub(crate) struct OrtKernelImpl {
    pub(crate) ort_version_supported: u32,
    pub(crate) flags: u32,
    pub(crate) Compute: unsafe extern "C" fn(*mut OrtKernelImpl, *mut OrtKernelContext) -> Status,
    pub(crate) Release: unsafe extern "C" fn(*mut OrtKernelImpl),
    pub(crate) PrePackWeight: Unused,
    pub(crate) SetSharedPrePackedWeight: Unused,
}

/// `OrtAllocator`.
#[repr(C)]
pub(crate) struct OrtAllocator {
    pub(crate) version: u32,
    pub(crate) Alloc: unsafe extern "C" fn(*mut OrtAllocator, usize) -> *mut c_void,
    pub(crate) Free: unsafe extern "C" fn(*mut OrtAllocator, *mut c_void),
    pub(crate) Info: unsafe extern "C" fn(*const OrtAllocator) -> *const OrtMemoryInfo,
    pub(crate) Reserve: unsafe extern "C" fn(*mut OrtAllocator, usize) -> *mut c_void,
    pub(crate) GetStats: Unused,
    pub(crate) AllocOnStream: unsafe extern "C" fn(*mut OrtAllocator, usize, *mut OrtSyncStream) -> *mut c_void,
    pub(crate) newer: Newer,
}

/// `OrtDataTransferImpl`.
#[repr(C)]
pub(crate) struct OrtDataTransferImpl {
    pub(crate) ort_version_supported: u32,
    pub(crate) Release: unsafe extern "C" fn(*mut OrtDataTransferImpl),
    pub(crate) CanCopy:
        unsafe extern "C" fn(*const OrtDataTransferImpl, *const OrtMemoryDevice, *const OrtMemoryDevice) -> bool,
    pub(crate) CopyTensors: unsafe extern "C" fn(
        *mut OrtDataTransferImpl,
        *const *const OrtValue,
        *const *mut OrtValue,
        *const *mut OrtSyncStream,
        usize,
    ) -> Status,
}

/// `OrtSyncStreamImpl`.
#[repr(C)]
pub(crate) struct OrtSyncStreamImpl {
    pub(crate) ort_version_supported: u32,
    pub(crate) Release: unsafe extern "C" fn(*mut OrtSyncStreamImpl),
    pub(crate) GetHandle: unsafe extern "C" fn(*mut OrtSyncStreamImpl) -> *mut c_void,
    pub(crate) CreateNotification:
        unsafe extern "C" fn(*mut OrtSyncStreamImpl, *mut *mut OrtSyncNotificationImpl) -> Status,
    pub(crate) Flush: unsafe extern "C" fn(*mut OrtSyncStreamImpl) -> Status,
    pub(crate) OnSessionRunEnd: unsafe extern "C" fn(*mut OrtSyncStreamImpl) -> Status,
}

/// `OrtSyncNotificationImpl`.
#[repr(C)]
pub(crate) struct OrtSyncNotificationImpl {
    pub(crate) ort_version_supported: u32,
    pub(crate) Release: unsafe extern "C" fn(*mut OrtSyncNotificationImpl),
    pub(crate) Activate: unsafe extern "C" fn(*mut OrtSyncNotificationImpl) -> Status,
    pub(crate) WaitOnDevice: unsafe extern "C" fn(*mut OrtSyncNotificationImpl, *mut OrtSyncStream) -> Status,
    pub(crate) WaitOnHost: unsafe extern "C" fn(*mut OrtSyncNotificationImpl) -> Status,
}

/// `OrtCustomOp`, of which only the signature is used: kernels come from the registry.
#[repr(C)]
pub(crate) struct OrtCustomOp {
    pub(crate) version: u32,
    pub(crate) CreateKernel:
        unsafe extern "C" fn(*const OrtCustomOp, *const OrtApi, *const OrtKernelInfo) -> *mut c_void,
    pub(crate) GetName: unsafe extern "C" fn(*const OrtCustomOp) -> *const c_char,
    pub(crate) GetExecutionProviderType: unsafe extern "C" fn(*const OrtCustomOp) -> *const c_char,
    pub(crate) GetInputType: unsafe extern "C" fn(*const OrtCustomOp, usize) -> i32,
    pub(crate) GetInputTypeCount: unsafe extern "C" fn(*const OrtCustomOp) -> usize,
    pub(crate) GetOutputType: unsafe extern "C" fn(*const OrtCustomOp, usize) -> i32,
    pub(crate) GetOutputTypeCount: unsafe extern "C" fn(*const OrtCustomOp) -> usize,
    pub(crate) KernelCompute: unsafe extern "C" fn(*mut c_void, *mut OrtKernelContext),
    pub(crate) KernelDestroy: unsafe extern "C" fn(*mut c_void),
    pub(crate) GetInputCharacteristic: unsafe extern "C" fn(*const OrtCustomOp, usize) -> c_int,
    pub(crate) GetOutputCharacteristic: unsafe extern "C" fn(*const OrtCustomOp, usize) -> c_int,
    pub(crate) GetInputMemoryType: unsafe extern "C" fn(*const OrtCustomOp, usize) -> c_int,
    pub(crate) GetVariadicInputMinArity: unsafe extern "C" fn(*const OrtCustomOp) -> c_int,
    pub(crate) GetVariadicInputHomogeneity: unsafe extern "C" fn(*const OrtCustomOp) -> c_int,
    pub(crate) GetVariadicOutputMinArity: unsafe extern "C" fn(*const OrtCustomOp) -> c_int,
    pub(crate) GetVariadicOutputHomogeneity: unsafe extern "C" fn(*const OrtCustomOp) -> c_int,
    pub(crate) CreateKernelV2: Option<
        unsafe extern "C" fn(*const OrtCustomOp, *const OrtApi, *const OrtKernelInfo, *mut *mut c_void) -> Status,
    >,
    pub(crate) KernelComputeV2: Option<unsafe extern "C" fn(*mut c_void, *mut OrtKernelContext) -> Status>,
    pub(crate) InferOutputShapeFn: unsafe extern "C" fn(*const OrtCustomOp, *mut OrtShapeInferContext) -> Status,
    pub(crate) GetStartVersion: unsafe extern "C" fn(*const OrtCustomOp) -> c_int,
    pub(crate) GetEndVersion: unsafe extern "C" fn(*const OrtCustomOp) -> c_int,
    pub(crate) GetMayInplace: Unused,
    pub(crate) ReleaseMayInplace: Unused,
    pub(crate) GetAliasMap: Unused,
    pub(crate) ReleaseAliasMap: Unused,
}

#[cfg(all(test, target_pointer_width = "64"))]
mod tests {
    use std::mem::offset_of;

    use super::*;

    /// Places as the C headers of version 24 have them: a version number, and pointers after it.
    #[test]
    fn functions_are_where_the_headers_have_them() {
        let slot = |index: usize| 8 * index;
        assert_eq!(offset_of!(OrtEpFactory, CreateEp), slot(4));
        assert_eq!(offset_of!(OrtEpFactory, GetVersion), slot(7));
        assert_eq!(offset_of!(OrtEpFactory, CreateAllocator), slot(9));
        assert_eq!(offset_of!(OrtEpFactory, CreateSyncStreamForDevice), slot(13));
        assert_eq!(offset_of!(OrtEpFactory, GetCustomOpDomains), slot(17));
        assert_eq!(offset_of!(OrtEp, GetCapability), slot(2));
        assert_eq!(offset_of!(OrtEp, CreateSyncStreamForDevice), slot(11));
        assert_eq!(offset_of!(OrtEp, GetKernelRegistry), slot(13));
        assert_eq!(offset_of!(OrtEp, IsConcurrentRunSupported), slot(14));
        assert_eq!(offset_of!(OrtKernelImpl, Compute), slot(1));
        assert_eq!(offset_of!(OrtAllocator, AllocOnStream), slot(6));
        assert_eq!(offset_of!(OrtDataTransferImpl, CopyTensors), slot(3));
        assert_eq!(offset_of!(OrtSyncStreamImpl, OnSessionRunEnd), slot(5));
        assert_eq!(offset_of!(OrtSyncNotificationImpl, WaitOnHost), slot(4));
        assert_eq!(offset_of!(OrtCustomOp, CreateKernelV2), slot(17));
        assert_eq!(offset_of!(OrtCustomOp, GetEndVersion), slot(21));
    }
}
