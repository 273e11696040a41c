//! The C interface of ONNX Runtime's plugin execution providers, API 24: what of it is used, written by hand.
//!
//! The tables of functions only ever grow at their end, and a slot's number is its place in `onnxruntime_c_api.h` or
//! `onnxruntime_ep_c_api.h`. So a function is declared here by its number, and none that is not called. The structs that
//! a plugin fills are declared as far as version 24 goes: ONNX Runtime looks no further than the version they state.

#![allow(non_snake_case, reason = "names are those of the C headers")]

mod structs;

use std::ffi::{c_char, c_int, c_void};

pub(crate) use structs::*;

/// The version of the interface that this plugin asks for, and states in every struct it fills.
pub(crate) const API_VERSION: u32 = 24;

/// NVIDIA's PCI vendor number.
pub(crate) const NVIDIA: u32 = 0x10DE;

macro_rules! opaque {
    ($($name:ident),* $(,)?) => {
        $(
            /// Known by address only.
            #[repr(C)]
            pub(crate) struct $name {
                _opaque: [u8; 0],
            }
        )*
    };
}

opaque!(
    OrtDataType,
    OrtEpDevice,
    OrtEpGraphSupportInfo,
    OrtCustomOpDomain,
    OrtGraph,
    OrtHardwareDevice,
    OrtKernelContext,
    OrtKernelDef,
    OrtKernelDefBuilder,
    OrtKernelInfo,
    OrtKernelRegistry,
    OrtKeyValuePairs,
    OrtLogger,
    OrtMemoryDevice,
    OrtMemoryInfo,
    OrtNode,
    OrtOpAttr,
    OrtSessionOptions,
    OrtShapeInferContext,
    OrtStatus,
    OrtSyncStream,
    OrtTensorTypeAndShapeInfo,
    OrtTypeInfo,
    OrtValue,
    OrtValueInfo,
);

/// What a function returns that can fail: null where it did not.
pub(crate) type Status = *mut OrtStatus;

/// `OrtErrorCode`.
pub(crate) mod code {
    pub(crate) const FAIL: i32 = 1;
    pub(crate) const INVALID_ARGUMENT: i32 = 2;
    pub(crate) const NOT_IMPLEMENTED: i32 = 9;
    pub(crate) const EP_FAIL: i32 = 11;
}

/// `OrtMemoryInfoDeviceType`, and `OrtHardwareDeviceType` alike.
pub(crate) mod device_type {
    pub(crate) const CPU: i32 = 0;
    pub(crate) const GPU: i32 = 1;
}

/// `OrtMemType`.
pub(crate) mod mem_type {
    pub(crate) const CPU_INPUT: i32 = -2;
    pub(crate) const CPU_OUTPUT: i32 = -1;
}

/// `OrtLoggingLevel`.
pub(crate) mod level {
    pub(crate) const INFO: i32 = 1;
    pub(crate) const WARNING: i32 = 2;
}

/// `OrtOpAttrType`.
pub(crate) mod attr_type {
    pub(crate) const INT: i32 = 1;
    pub(crate) const FLOAT: i32 = 3;
    pub(crate) const STRING: i32 = 5;
}

/// `OrtDeviceMemoryType_DEFAULT`.
pub(crate) const DEVICE_MEMORY: i32 = 0;
/// `OrtDeviceAllocator`.
pub(crate) const DEVICE_ALLOCATOR: i32 = 0;

/// `OrtApiBase`.
#[repr(C)]
pub(crate) struct OrtApiBase {
    pub(crate) GetApi: unsafe extern "C" fn(u32) -> *const OrtApi,
    pub(crate) GetVersionString: unsafe extern "C" fn() -> *const c_char,
}

/// Declares functions of a table by their slots.
macro_rules! table {
    ($(#[$doc:meta])* $table:ident { $($slot:literal $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)?;)* }) => {
        $(#[$doc])*
        #[repr(C)]
        pub(crate) struct $table {
            _opaque: [u8; 0],
        }

        impl $table {
            $(
                /// The function of this name.
                ///
                /// # Safety
                ///
                /// What the header asks for.
                #[inline]
                #[allow(clippy::too_many_arguments, reason = "the header has as many")]
                pub(crate) unsafe fn $name(&self, $($argument: $type),*) $(-> $result)? {
                    // SAFETY: the table of the version that was asked for has this slot, and a function of this type in it.
                    unsafe {
                        let slot = std::ptr::from_ref(self).cast::<*const c_void>().add($slot);
                        let function = std::mem::transmute::<*const c_void, unsafe extern "C" fn($($type),*) $(-> $result)?>(*slot);
                        function($($argument),*)
                    }
                }
            )*
        }
    };
}

table! {
    /// `OrtApi`.
    OrtApi {
        0 CreateStatus(code: i32, message: *const c_char) -> Status;
        2 GetErrorMessage(status: *const OrtStatus) -> *const c_char;
        26 CreateCustomOpDomain(domain: *const c_char, out: *mut *mut OrtCustomOpDomain) -> Status;
        27 CustomOpDomain_Add(domain: *mut OrtCustomOpDomain, operator: *const OrtCustomOp) -> Status;
        51 GetTensorMutableData(value: *mut OrtValue, out: *mut *mut c_void) -> Status;
        55 CastTypeInfoToTensorInfo(info: *const OrtTypeInfo, out: *mut *const OrtTensorTypeAndShapeInfo) -> Status;
        57 CreateTensorTypeAndShapeInfo(out: *mut *mut OrtTensorTypeAndShapeInfo) -> Status;
        58 SetTensorElementType(info: *mut OrtTensorTypeAndShapeInfo, element: i32) -> Status;
        59 SetDimensions(info: *mut OrtTensorTypeAndShapeInfo, dims: *const i64, count: usize) -> Status;
        60 GetTensorElementType(info: *const OrtTensorTypeAndShapeInfo, out: *mut i32) -> Status;
        61 GetDimensionsCount(info: *const OrtTensorTypeAndShapeInfo, out: *mut usize) -> Status;
        62 GetDimensions(info: *const OrtTensorTypeAndShapeInfo, dims: *mut i64, count: usize) -> Status;
        63 GetSymbolicDimensions(
            info: *const OrtTensorTypeAndShapeInfo, names: *mut *const c_char, count: usize,
        ) -> Status;
        65 GetTensorTypeAndShape(value: *const OrtValue, out: *mut *mut OrtTensorTypeAndShapeInfo) -> Status;
        72 MemoryInfoGetId(info: *const OrtMemoryInfo, out: *mut c_int) -> Status;
        85 KernelInfoGetAttribute_float(info: *const OrtKernelInfo, name: *const c_char, out: *mut f32) -> Status;
        86 KernelInfoGetAttribute_int64(info: *const OrtKernelInfo, name: *const c_char, out: *mut i64) -> Status;
        88 KernelContext_GetInputCount(context: *const OrtKernelContext, out: *mut usize) -> Status;
        90 KernelContext_GetInput(context: *const OrtKernelContext, index: usize, out: *mut *const OrtValue) -> Status;
        91 KernelContext_GetOutput(
            context: *mut OrtKernelContext, index: usize, dims: *const i64, count: usize, out: *mut *mut OrtValue,
        ) -> Status;
        93 ReleaseStatus(status: Status);
        94 ReleaseMemoryInfo(info: *mut OrtMemoryInfo);
        99 ReleaseTensorTypeAndShapeInfo(info: *mut OrtTensorTypeAndShapeInfo);
        101 ReleaseCustomOpDomain(domain: *mut OrtCustomOpDomain);
        193 KernelContext_GetGPUComputeStream(context: *const OrtKernelContext, out: *mut *mut c_void) -> Status;
        231 KernelInfo_GetOutputCount(info: *const OrtKernelInfo, out: *mut usize) -> Status;
        233 KernelInfo_GetOutputName(info: *const OrtKernelInfo, index: usize, out: *mut c_char, size: *mut usize) -> Status;
        244 KernelInfo_GetNodeName(info: *const OrtKernelInfo, out: *mut c_char, size: *mut usize) -> Status;
        247 Logger_LogMessage(
            logger: *const OrtLogger, severity: i32, message: *const c_char, file: *const c_char, line: c_int,
            function: *const c_char,
        ) -> Status;
        248 Logger_GetLoggingSeverityLevel(logger: *const OrtLogger, out: *mut i32) -> Status;
        268 ShapeInferContext_GetInputTypeShape(
            context: *const OrtShapeInferContext, index: usize, out: *mut *mut OrtTensorTypeAndShapeInfo,
        ) -> Status;
        269 ShapeInferContext_GetAttribute(
            context: *const OrtShapeInferContext, name: *const c_char, out: *mut *const OrtOpAttr,
        ) -> Status;
        270 ShapeInferContext_SetOutputTypeShape(
            context: *const OrtShapeInferContext, index: usize, info: *const OrtTensorTypeAndShapeInfo,
        ) -> Status;
        271 SetSymbolicDimensions(
            info: *mut OrtTensorTypeAndShapeInfo, names: *mut *const c_char, count: usize,
        ) -> Status;
        272 ReadOpAttr(attribute: *const OrtOpAttr, kind: i32, data: *mut c_void, len: usize, out: *mut usize) -> Status;
        290 GetValueInfoTypeInfo(info: *const OrtValueInfo, out: *mut *const OrtTypeInfo) -> Status;
        289 GetValueInfoName(info: *const OrtValueInfo, out: *mut *const c_char) -> Status;
        295 CreateKeyValuePairs(out: *mut *mut OrtKeyValuePairs);
        296 AddKeyValuePair(pairs: *mut OrtKeyValuePairs, key: *const c_char, value: *const c_char);
        297 GetKeyValue(pairs: *const OrtKeyValuePairs, key: *const c_char) -> *const c_char;
        298 GetKeyValuePairs(
            pairs: *const OrtKeyValuePairs, keys: *mut *const *const c_char, values: *mut *const *const c_char,
            count: *mut usize,
        );
        300 ReleaseKeyValuePairs(pairs: *mut OrtKeyValuePairs);
        307 HardwareDevice_Type(device: *const OrtHardwareDevice) -> i32;
        308 HardwareDevice_VendorId(device: *const OrtHardwareDevice) -> u32;
        317 GetEpApi() -> *const OrtEpApi;
        318 GetTensorSizeInBytes(value: *const OrtValue, out: *mut usize) -> Status;
        320 CreateMemoryInfo_V2(
            name: *const c_char, device_type: i32, vendor: u32, device: i32, memory_type: i32, alignment: usize,
            allocator_type: i32, out: *mut *mut OrtMemoryInfo,
        ) -> Status;
        344 Graph_GetNumNodes(graph: *const OrtGraph, out: *mut usize) -> Status;
        345 Graph_GetNodes(graph: *const OrtGraph, nodes: *mut *const OrtNode, count: usize) -> Status;
        349 Node_GetName(node: *const OrtNode, out: *mut *const c_char) -> Status;
        350 Node_GetOperatorType(node: *const OrtNode, out: *mut *const c_char) -> Status;
        351 Node_GetDomain(node: *const OrtNode, out: *mut *const c_char) -> Status;
        352 Node_GetSinceVersion(node: *const OrtNode, out: *mut c_int) -> Status;
        353 Node_GetNumInputs(node: *const OrtNode, out: *mut usize) -> Status;
        354 Node_GetInputs(node: *const OrtNode, inputs: *mut *const OrtValueInfo, count: usize) -> Status;
        355 Node_GetNumOutputs(node: *const OrtNode, out: *mut usize) -> Status;
        356 Node_GetOutputs(node: *const OrtNode, outputs: *mut *const OrtValueInfo, count: usize) -> Status;
        359 Node_GetNumAttributes(node: *const OrtNode, out: *mut usize) -> Status;
        360 Node_GetAttributes(node: *const OrtNode, attributes: *mut *const OrtOpAttr, count: usize) -> Status;
        363 OpAttr_GetType(attribute: *const OrtOpAttr, out: *mut i32) -> Status;
        364 OpAttr_GetName(attribute: *const OrtOpAttr, out: *mut *const c_char) -> Status;
        379 GetSessionOptionsConfigEntries(options: *const OrtSessionOptions, out: *mut *mut OrtKeyValuePairs) -> Status;
        384 SyncStream_GetHandle(stream: *mut OrtSyncStream) -> *mut c_void;
    }
}

table! {
    /// `OrtEpApi`.
    OrtEpApi {
        0 CreateEpDevice(
            factory: *mut OrtEpFactory, hardware: *const OrtHardwareDevice, metadata: *const OrtKeyValuePairs,
            options: *const OrtKeyValuePairs, out: *mut *mut OrtEpDevice,
        ) -> Status;
        3 EpGraphSupportInfo_AddSingleNode(info: *mut OrtEpGraphSupportInfo, node: *const OrtNode) -> Status;
        5 EpDevice_AddAllocatorInfo(device: *mut OrtEpDevice, info: *const OrtMemoryInfo) -> Status;
        7 Value_GetMemoryDevice(value: *const OrtValue) -> *const OrtMemoryDevice;
        9 MemoryDevice_GetDeviceType(device: *const OrtMemoryDevice) -> i32;
        11 MemoryDevice_GetVendorId(device: *const OrtMemoryDevice) -> u32;
        12 MemoryDevice_GetDeviceId(device: *const OrtMemoryDevice) -> u32;
        16 CreateHardwareDevice(
            kind: i32, vendor: u32, device: u32, vendor_name: *const c_char, metadata: *const OrtKeyValuePairs,
            out: *mut *mut OrtHardwareDevice,
        ) -> Status;
        17 ReleaseHardwareDevice(device: *mut OrtHardwareDevice);
        18 CreateKernelRegistry(out: *mut *mut OrtKernelRegistry) -> Status;
        19 ReleaseKernelRegistry(registry: *mut OrtKernelRegistry);
        20 KernelRegistry_AddKernel(
            registry: *mut OrtKernelRegistry, definition: *const OrtKernelDef, create: OrtKernelCreateFunc,
            state: *mut c_void,
        ) -> Status;
        21 CreateKernelDefBuilder(out: *mut *mut OrtKernelDefBuilder) -> Status;
        22 ReleaseKernelDefBuilder(builder: *mut OrtKernelDefBuilder);
        23 KernelDefBuilder_SetOperatorType(builder: *mut OrtKernelDefBuilder, name: *const c_char) -> Status;
        24 KernelDefBuilder_SetDomain(builder: *mut OrtKernelDefBuilder, domain: *const c_char) -> Status;
        25 KernelDefBuilder_SetSinceVersion(builder: *mut OrtKernelDefBuilder, first: c_int, last: c_int) -> Status;
        26 KernelDefBuilder_SetExecutionProvider(builder: *mut OrtKernelDefBuilder, name: *const c_char) -> Status;
        27 KernelDefBuilder_SetInputMemType(builder: *mut OrtKernelDefBuilder, input: usize, kind: i32) -> Status;
        28 KernelDefBuilder_SetOutputMemType(builder: *mut OrtKernelDefBuilder, output: usize, kind: i32) -> Status;
        29 KernelDefBuilder_AddTypeConstraint(
            builder: *mut OrtKernelDefBuilder, name: *const c_char, types: *const *const OrtDataType, count: usize,
        ) -> Status;
        32 KernelDefBuilder_Build(builder: *mut OrtKernelDefBuilder, out: *mut *mut OrtKernelDef) -> Status;
        33 ReleaseKernelDef(definition: *mut OrtKernelDef);
        40 GetTensorDataType(element: i32, out: *mut *const OrtDataType) -> Status;
        41 EpGraphSupportInfo_LookUpKernel(
            info: *mut OrtEpGraphSupportInfo, node: *const OrtNode, out: *mut *const OrtKernelDef,
        ) -> Status;
        43 KernelInfo_GetEp(info: *const OrtKernelInfo, out: *mut *const OrtEp) -> Status;
    }
}

/// `OrtKernelCreateFunc`.
pub(crate) type OrtKernelCreateFunc =
    unsafe extern "C" fn(state: *mut c_void, info: *const OrtKernelInfo, out: *mut *mut OrtKernelImpl) -> Status;
