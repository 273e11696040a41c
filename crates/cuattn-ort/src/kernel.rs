//! `OrtKernelImpl`: a node of a session.

use std::ffi::c_void;
use std::sync::Arc;

use cuattn_ep::cuattn::curt::DevicePtr;
use cuattn_ep::{Device, ElementType, Kernel, TensorMut, TensorView};

use crate::abi::{API_VERSION, OrtEp, OrtKernelContext, OrtKernelImpl, OrtKernelInfo, Status, device_type};
use crate::api::tables;
use crate::ep::Ep;
use crate::factory::Registration;
use crate::failure::{Failure, Result, callback, callback_or, check};
use crate::node;
use crate::session::Session;
use crate::statistics::STATISTICS;

#[repr(C)]
pub(crate) struct NodeKernel {
    base: OrtKernelImpl,
    kernel: Box<dyn Kernel>,
    session: Arc<Session>,
    /// For messages.
    inputs: &'static [&'static str],
    name: String,
}

/// # Safety
///
/// `state` is a [`Registration`] that outlives the kernel, `info` is live and of a node of a session of ours.
pub(crate) unsafe extern "C" fn create(
    state: *mut c_void,
    info: *const OrtKernelInfo,
    out: *mut *mut OrtKernelImpl,
) -> Status {
    callback("the creation of a kernel", || {
        let api = tables()?;
        // SAFETY: the state is what was registered; the provider of a node of ours is ours.
        unsafe {
            let registration = &*state.cast::<Registration>();
            let mut ep: *const OrtEp = std::ptr::null();
            check(api.ep.KernelInfo_GetEp(info, &mut ep))?;
            let session = Ep::session(ep);
            let node = node::of_kernel(info, registration.factory(), registration.version)?;
            let kernel = registration.factory().create(&node)?;
            let base = OrtKernelImpl {
                ort_version_supported: API_VERSION,
                flags: 0,
                Compute: compute,
                Release: release,
                PrePackWeight: None,
                SetSharedPrePackedWeight: None,
            };
            let inputs = registration.factory().inputs();
            let name = node.to_string();
            out.write(Box::into_raw(Box::new(NodeKernel { base, kernel, session, inputs, name })).cast());
        }
        Ok(())
    })
}

/// # Safety
///
/// `kernel` came from [`create`], and is released once.
pub(crate) unsafe extern "C" fn release(kernel: *mut OrtKernelImpl) {
    callback_or("the release of a kernel", (), || {
        // SAFETY: ONNX Runtime releases a kernel of ours once.
        drop(unsafe { Box::from_raw(kernel.cast::<NodeKernel>()) });
        Ok(())
    });
}

/// # Safety
///
/// `kernel` came from [`create`] and is live, and so is `context`.
pub(crate) unsafe extern "C" fn compute(kernel: *mut OrtKernelImpl, context: *mut OrtKernelContext) -> Status {
    // SAFETY: ONNX Runtime calls with a kernel of ours and a live context.
    callback("a kernel", || unsafe { (*kernel.cast::<NodeKernel>()).run(context) })
}

/// An input of a call.
struct Given {
    data: DevicePtr,
    element: ElementType,
    shape: Vec<usize>,
}

impl NodeKernel {
    /// # Safety
    ///
    /// `context` is live.
    unsafe fn run(&self, context: *mut OrtKernelContext) -> Result {
        let api = tables()?;
        let (mut count, mut handle) = (0, std::ptr::null_mut());
        // SAFETY: as the caller promises, and the pointers are to live values.
        unsafe {
            check(api.ort.KernelContext_GetInputCount(context, &mut count))?;
            // Without a stream there is an error, and no handle.
            let _ = check(api.ort.KernelContext_GetGPUComputeStream(context, &mut handle));
        }
        // SAFETY: the handle is of a live stream.
        let (device, has_stream) = unsafe { self.session.device(handle)? };
        // SAFETY: as the caller promises.
        let given = (0..count).map(|index| unsafe { self.input(context, index) }).collect::<Result<Vec<_>>>()?;
        let views: Vec<_> = given
            .iter()
            .map(|given| given.as_ref().map(|given| TensorView::new(given.data, given.element, &given.shape)))
            .collect();
        let specs = self.kernel.outputs(&views)?;
        let mut outputs = Vec::with_capacity(specs.len());
        for (index, spec) in specs.iter().enumerate() {
            let Some(spec) = spec else {
                outputs.push(None);
                continue;
            };
            let dims: Vec<_> = spec.shape.iter().map(|&extent| extent as i64).collect();
            let mut value = std::ptr::null_mut();
            // SAFETY: as the caller promises; the extents are `dims.len()` numbers.
            let (address, bytes) = unsafe {
                check(api.ort.KernelContext_GetOutput(context, index, dims.as_ptr(), dims.len(), &mut value))?;
                if value.is_null() { (0, 0) } else { api.memory(value)? }
            };
            outputs.push(Some(TensorMut { data: DevicePtr::new(address as u64, bytes) }));
        }
        STATISTICS.executes.add();
        // SAFETY: inputs and outputs are tensors of the device that ONNX Runtime keeps until the stream has passed.
        unsafe { self.kernel.execute(&device, &views, &outputs)? };
        if !has_stream {
            finish(&device)?;
        }
        Ok(())
    }

    /// # Safety
    ///
    /// `context` is live.
    unsafe fn input(&self, context: *const OrtKernelContext, index: usize) -> Result<Option<Given>> {
        let api = tables()?;
        let mut value = std::ptr::null();
        // SAFETY: as the caller promises.
        unsafe {
            check(api.ort.KernelContext_GetInput(context, index, &mut value))?;
            if value.is_null() {
                return Ok(None);
            }
            let (element, shape) = api.shape(value)?;
            let (address, bytes) = api.memory(value)?;
            if bytes > 0 && api.device_of(value).device_type != device_type::GPU {
                let input = self.inputs.get(index).copied().unwrap_or("?");
                return Err(Failure::new(format!(
                    "{}: input `{input}` of shape {shape:?} is in host memory, and a GPU kernel was called: this is a \
                     fault of the session's copies, please report it with the model",
                    self.name
                )));
            }
            let data = DevicePtr::new(address as u64, bytes);
            Ok(Some(Given { data, element: ElementType::from_onnx(element), shape }))
        }
    }
}

/// Waits, where ONNX Runtime gave no stream that it would wait for.
fn finish(device: &Device) -> Result {
    match device.runtime() {
        Some(runtime) => Ok(runtime.synchronize()?),
        None => Ok(()),
    }
}
