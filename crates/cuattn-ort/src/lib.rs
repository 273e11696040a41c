//! A plugin execution provider that gives stock ONNX Runtime, 1.24 or newer, the cuattn attention kernels.
//!
//! The library is loaded by ONNX Runtime, not linked to: no ONNX Runtime, header or toolkit is needed to build it.
//!
//! ```python
//! import onnxruntime as ort
//!
//! ort.register_execution_provider_library("cuattn", "libcuattn_ort.so")
//! devices = [device for device in ort.get_ep_devices() if device.ep_name == "CuattnExecutionProvider"]
//! options = ort.SessionOptions()
//! options.add_provider_for_devices(devices[:1], {"engine": "auto"})
//! session = ort.InferenceSession("model.onnx", sess_options=options)
//! ```
//!
//! | option | |
//! |---|---|
//! | `engine` | `auto` (default), `flash` or `phase2a`: which engine computes; one that is named is the only one |
//! | `cache_dir` | where compiled kernels are kept, instead of the user's cache directory |
//! | `device_id` | the CUDA device that must have been chosen, or the session is refused |
//! | `explain` | `1`: each attention node that is not claimed is a warning that says why |
//!
//! With `CUATTN_ORT_HOST=1` in the environment the host computes, in float64, and its memory passes for a GPU's: for
//! tests of graphs on machines without one. It says so on standard error.
//!
//! # One design decision
//!
//! The provider is a **kernel registry**, not a compiler of subgraphs: it claims single attention nodes, and ONNX
//! Runtime keeps everything else. So what a node means is decided in one place, `cuattn-ep`, and this crate is the C
//! interface around it: devices, memory in stream order, streams, copies, and claims.
//!
//! * No panic crosses the interface: each becomes a status with its message.
//! * A device that ONNX Runtime does not discover, as in many containers, is made known to it.
//! * An input that is in host memory by mistake is an error that names the node, not a crash of the GPU.
//! * Only `CreateEpFactories`, `ReleaseEpFactory` and `CuattnStatistics` are exported.

mod abi;
mod accelerator;
mod allocator;
mod api;
mod custom_operators;
mod ep;
mod factory;
mod failure;
mod kernel;
mod node;
mod options;
mod session;
mod statistics;
mod stream;
mod transfer;

use std::ffi::{c_char, c_void};

use abi::{OrtApiBase, OrtEpFactory, OrtLogger};
use factory::Factory;

pub use statistics::CuattnStatistics;

/// What ONNX Runtime calls when the library is registered. A runtime that is too old for the plugin's interface gets no
/// factories; otherwise there is one, or a status that says why not.
///
/// # Safety
///
/// As ONNX Runtime's `CreateEpApiFactoriesFn`: `base` and `logger` are live, `factories` is for `most` pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn CreateEpFactories(
    _registered_name: *const c_char,
    base: *const c_void,
    logger: *const c_void,
    factories: *mut *mut c_void,
    most: usize,
    count: *mut usize,
) -> *mut c_void {
    // SAFETY: as the caller promises.
    let opened = unsafe {
        count.write(0);
        api::open(base.cast::<OrtApiBase>(), logger.cast::<OrtLogger>())
    };
    if opened.is_none() || most == 0 {
        return std::ptr::null_mut();
    }
    let status = failure::callback("CreateEpFactories", || {
        let factory = Factory::into_raw()?;
        // SAFETY: as the caller promises.
        unsafe {
            factories.write(factory.cast());
            count.write(1);
        }
        Ok(())
    });
    status.cast()
}

/// What ONNX Runtime calls when the library is unregistered.
///
/// # Safety
///
/// `factory` came from [`CreateEpFactories`], and is released once, after all that came from it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ReleaseEpFactory(factory: *mut c_void) -> *mut c_void {
    // SAFETY: as the caller promises.
    failure::callback("ReleaseEpFactory", || unsafe { Factory::release(factory.cast::<OrtEpFactory>()) }).cast()
}
