//! `OrtDataTransferImpl`, and the kernels by which ONNX Runtime copies within a graph.

use std::ffi::c_void;
use std::sync::Arc;

use cuattn_ep::cuattn::curt::DevicePtr;

use crate::abi::{
    API_VERSION, NVIDIA, OrtDataTransferImpl, OrtKernelContext, OrtKernelImpl, OrtKernelInfo, OrtMemoryDevice,
    OrtSyncStream, OrtValue, Status, device_type,
};
use crate::accelerator::{Accelerator, Kind};
use crate::api::{MemoryPlace, tables};
use crate::failure::{Failure, Result, callback, callback_or, check};
use crate::statistics::STATISTICS;

/// The devices that there are, for whoever copies.
pub(crate) type Accelerators = Arc<[Arc<Accelerator>]>;

#[repr(C)]
pub(crate) struct Transfer {
    base: OrtDataTransferImpl,
    accelerators: Accelerators,
}

impl Transfer {
    pub(crate) fn into_raw(accelerators: Accelerators) -> *mut OrtDataTransferImpl {
        let base = OrtDataTransferImpl {
            ort_version_supported: API_VERSION,
            Release: release,
            CanCopy: can_copy,
            CopyTensors: copy_tensors,
        };
        Box::into_raw(Box::new(Self { base, accelerators })).cast()
    }
}

unsafe extern "C" fn release(transfer: *mut OrtDataTransferImpl) {
    callback_or("the release of the data transfer", (), || {
        // SAFETY: ONNX Runtime releases ours once.
        drop(unsafe { Box::from_raw(transfer.cast::<Transfer>()) });
        Ok(())
    });
}

unsafe extern "C" fn can_copy(
    transfer: *const OrtDataTransferImpl,
    from: *const OrtMemoryDevice,
    to: *const OrtMemoryDevice,
) -> bool {
    callback_or("CanCopy", false, || {
        let api = tables()?;
        // SAFETY: ONNX Runtime calls with ours, and with live devices.
        let (transfer, from, to) = unsafe { (&*transfer.cast::<Transfer>(), api.place(from), api.place(to)) };
        let ours = |place: MemoryPlace| {
            let known = transfer.accelerators.iter().any(|accelerator| accelerator.ordinal() == place.id as usize);
            place.device_type == device_type::GPU && place.vendor == NVIDIA && known
        };
        let host = |place: MemoryPlace| place.device_type == device_type::CPU;
        Ok(match (ours(from), ours(to)) {
            (true, true) => from.id == to.id,
            (true, false) => host(to),
            (false, true) => host(from),
            (false, false) => false,
        })
    })
}

unsafe extern "C" fn copy_tensors(
    transfer: *mut OrtDataTransferImpl,
    from: *const *const OrtValue,
    to: *const *mut OrtValue,
    streams: *const *mut OrtSyncStream,
    count: usize,
) -> Status {
    callback("CopyTensors", || {
        let api = tables()?;
        // SAFETY: ONNX Runtime calls with ours.
        let accelerators = unsafe { &(*transfer.cast::<Transfer>()).accelerators };
        for index in 0..count {
            // SAFETY: the arrays are of `count`, where there is one; stream and values are live.
            unsafe {
                let stream = if streams.is_null() { std::ptr::null_mut() } else { *streams.add(index) };
                let handle = if stream.is_null() { std::ptr::null_mut() } else { api.ort.SyncStream_GetHandle(stream) };
                copy(accelerators, *from.add(index), *to.add(index), handle)?;
            }
        }
        Ok(())
    })
}

/// Copies a tensor, in the order of a stream where there is one.
///
/// # Safety
///
/// Both are live tensors, and `handle` is null or a live stream.
unsafe fn copy(accelerators: &Accelerators, from: *const OrtValue, to: *mut OrtValue, handle: *mut c_void) -> Result {
    let api = tables()?;
    // SAFETY: as the caller promises.
    let (from_place, to_place, (source, bytes), (target, room)) =
        unsafe { (api.device_of(from), api.device_of(to), api.memory(from)?, api.memory(to)?) };
    let on_device = |place: MemoryPlace| place.device_type == device_type::GPU;
    let count = match (on_device(from_place), on_device(to_place)) {
        (false, true) => &STATISTICS.to_device,
        (true, false) => &STATISTICS.to_host,
        (true, true) => &STATISTICS.on_device,
        (false, false) => return Err(Failure::new("a copy from host to host, which is not this plugin's")),
    };
    count.add();
    if bytes == 0 {
        return Ok(());
    }
    if room < bytes {
        return Err(Failure::new(format!("a copy of {bytes} bytes into a tensor of {room}")));
    }
    let id = if on_device(to_place) { to_place.id } else { from_place.id };
    let accelerator = accelerators
        .iter()
        .find(|accelerator| accelerator.ordinal() == id as usize)
        .ok_or_else(|| Failure::new(format!("a copy with device {id}, which this plugin does not have")))?;
    if accelerator.kind == Kind::Host {
        let source = std::ptr::with_exposed_provenance::<u8>(source);
        let target = std::ptr::with_exposed_provenance_mut::<u8>(target);
        // SAFETY: both are host memory of this size; a tensor may be copied onto itself.
        unsafe { std::ptr::copy(source, target, bytes) };
        return Ok(());
    }
    let stream = if handle.is_null() { None } else { accelerator.stream(handle) };
    let device = match &stream {
        Some(device) => device.clone(),
        None => {
            // Without a stream of ours the copy is to be over when the call returns, and after all that was enqueued.
            accelerator.synchronize()?;
            accelerator.base()?
        }
    };
    let Some(runtime) = device.runtime() else { return Err(Failure::new("a device without a stream")) };
    // SAFETY: sources and targets hold this many bytes where they are said to be.
    unsafe {
        match (on_device(from_place), on_device(to_place)) {
            (false, _) => {
                let source = std::slice::from_raw_parts(std::ptr::with_exposed_provenance::<u8>(source), bytes);
                runtime.htod(source, DevicePtr::new(target as u64, bytes))?;
            }
            (true, false) => {
                let target = std::ptr::with_exposed_provenance_mut::<u8>(target);
                runtime.dtoh(DevicePtr::new(source as u64, bytes), std::slice::from_raw_parts_mut(target, bytes))?;
            }
            (true, true) => {
                runtime.dtod(DevicePtr::new(source as u64, bytes), DevicePtr::new(target as u64, bytes), bytes)?;
                if stream.is_none() {
                    runtime.synchronize()?;
                }
            }
        }
    }
    Ok(())
}

/// `MemcpyFromHost` and `MemcpyToHost`: without kernels of our own for them, ONNX Runtime would copy nothing, and hand
/// kernels host memory.
#[repr(C)]
struct MemcpyKernel {
    base: OrtKernelImpl,
    accelerators: Accelerators,
}

/// # Safety
///
/// `state` is an [`Accelerators`] that outlives the kernel.
pub(crate) unsafe extern "C" fn create_memcpy(
    state: *mut c_void,
    _: *const OrtKernelInfo,
    out: *mut *mut OrtKernelImpl,
) -> Status {
    callback("the creation of a memcpy kernel", || {
        let base = OrtKernelImpl {
            ort_version_supported: API_VERSION,
            flags: 0,
            Compute: compute_memcpy,
            Release: release_memcpy,
            PrePackWeight: None,
            SetSharedPrePackedWeight: None,
        };
        // SAFETY: the state is what was registered.
        let accelerators = Arc::clone(unsafe { &*state.cast::<Accelerators>() });
        // SAFETY: the pointer is for the answer.
        unsafe { out.write(Box::into_raw(Box::new(MemcpyKernel { base, accelerators })).cast()) };
        Ok(())
    })
}

unsafe extern "C" fn release_memcpy(kernel: *mut OrtKernelImpl) {
    callback_or("the release of a memcpy kernel", (), || {
        // SAFETY: ONNX Runtime releases a kernel of ours once.
        drop(unsafe { Box::from_raw(kernel.cast::<MemcpyKernel>()) });
        Ok(())
    });
}

unsafe extern "C" fn compute_memcpy(kernel: *mut OrtKernelImpl, context: *mut OrtKernelContext) -> Status {
    callback("a memcpy kernel", || {
        let api = tables()?;
        let (mut from, mut to, mut handle) = (std::ptr::null(), std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: ONNX Runtime calls with a kernel of ours and a live context; the pointers are to live values.
        unsafe {
            check(api.ort.KernelContext_GetInput(context, 0, &mut from))?;
            let (_, shape) = api.shape(from)?;
            let dims: Vec<_> = shape.iter().map(|&extent| extent as i64).collect();
            check(api.ort.KernelContext_GetOutput(context, 0, dims.as_ptr(), dims.len(), &mut to))?;
            // Without a stream there is an error, and no handle.
            let _ = check(api.ort.KernelContext_GetGPUComputeStream(context, &mut handle));
            copy(&(*kernel.cast::<MemcpyKernel>()).accelerators, from, to, handle)
        }
    })
}
