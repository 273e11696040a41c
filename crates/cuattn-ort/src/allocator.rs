//! `OrtAllocator`: device memory, in stream order where there is a stream.

use std::ffi::c_void;
use std::sync::Arc;

use crate::abi::{API_VERSION, OrtAllocator, OrtMemoryInfo, OrtSyncStream};
use crate::accelerator::Accelerator;
use crate::api::tables;
use crate::failure::callback_or;

#[repr(C)]
pub(crate) struct Allocator {
    base: OrtAllocator,
    accelerator: Arc<Accelerator>,
}

impl Allocator {
    pub(crate) fn into_raw(accelerator: Arc<Accelerator>) -> *mut OrtAllocator {
        let base = OrtAllocator {
            version: API_VERSION,
            Alloc: alloc,
            Free: free,
            Info: info,
            Reserve: alloc,
            GetStats: None,
            AllocOnStream: alloc_on_stream,
            newer: Default::default(),
        };
        Box::into_raw(Box::new(Self { base, accelerator })).cast()
    }

    /// # Safety
    ///
    /// `allocator` came from [`Allocator::into_raw`], and is released once.
    pub(crate) unsafe fn release(allocator: *mut OrtAllocator) {
        // SAFETY: as the caller promises.
        drop(unsafe { Box::from_raw(allocator.cast::<Self>()) });
    }

    /// # Safety
    ///
    /// `allocator` came from [`Allocator::into_raw`], and is live.
    unsafe fn accelerator<'a>(allocator: *const OrtAllocator) -> &'a Accelerator {
        // SAFETY: as the caller promises; the allocator is the struct's first field.
        unsafe { &(*allocator.cast::<Self>()).accelerator }
    }
}

unsafe extern "C" fn alloc(allocator: *mut OrtAllocator, bytes: usize) -> *mut c_void {
    // SAFETY: ONNX Runtime calls with an allocator of ours.
    callback_or("Alloc", std::ptr::null_mut(), || unsafe { Allocator::accelerator(allocator) }.allocate(bytes, None))
}

unsafe extern "C" fn alloc_on_stream(
    allocator: *mut OrtAllocator,
    bytes: usize,
    stream: *mut OrtSyncStream,
) -> *mut c_void {
    callback_or("AllocOnStream", std::ptr::null_mut(), || {
        // SAFETY: ONNX Runtime calls with an allocator of ours.
        let accelerator = unsafe { Allocator::accelerator(allocator) };
        let device = match stream.is_null() {
            true => None,
            // SAFETY: the stream is live.
            false => accelerator.stream(unsafe { tables()?.ort.SyncStream_GetHandle(stream) }),
        };
        accelerator.allocate(bytes, device.as_ref())
    })
}

unsafe extern "C" fn free(allocator: *mut OrtAllocator, memory: *mut c_void) {
    // SAFETY: ONNX Runtime calls with an allocator of ours, and memory that it uses no more.
    callback_or("Free", (), || unsafe { Allocator::accelerator(allocator).free(memory) });
}

unsafe extern "C" fn info(allocator: *const OrtAllocator) -> *const OrtMemoryInfo {
    // SAFETY: ONNX Runtime calls with an allocator of ours.
    unsafe { Allocator::accelerator(allocator) }.memory_info()
}
