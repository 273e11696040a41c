//! `OrtEp`: the provider of one session, which claims nodes.

use std::ffi::c_char;
use std::sync::Arc;

use cuattn_ep::Registry;

use crate::abi::{
    API_VERSION, OrtEp, OrtEpGraphSupportInfo, OrtGraph, OrtKernelRegistry, OrtMemoryDevice, OrtSyncStreamImpl, Status,
    level,
};
use crate::api::{log, logs, tables};
use crate::factory::Kernels;
use crate::failure::{Result, callback, check};
use crate::node;
use crate::session::Session;
use crate::stream::Stream;

/// The provider's name.
pub(crate) const NAME: &std::ffi::CStr = c"CuattnExecutionProvider";

#[repr(C)]
pub(crate) struct Ep {
    base: OrtEp,
    session: Arc<Session>,
    kernels: Arc<Kernels>,
}

impl Ep {
    pub(crate) fn into_raw(session: Arc<Session>, kernels: Arc<Kernels>) -> *mut OrtEp {
        let base = OrtEp {
            ort_version_supported: API_VERSION,
            GetName: name,
            GetCapability: get_capability,
            Compile: None,
            ReleaseNodeComputeInfos: None,
            GetPreferredDataLayout: None,
            ShouldConvertDataLayoutForOp: None,
            SetDynamicOptions: None,
            OnRunStart: None,
            OnRunEnd: None,
            CreateAllocator: None,
            CreateSyncStreamForDevice: create_stream,
            GetCompiledModelCompatibilityInfo: None,
            GetKernelRegistry: kernel_registry,
            IsConcurrentRunSupported: is_concurrent_run_supported,
            newer: Default::default(),
        };
        Box::into_raw(Box::new(Self { base, session, kernels })).cast()
    }

    /// # Safety
    ///
    /// `ep` came from [`Ep::into_raw`], and is released once.
    pub(crate) unsafe fn release(ep: *mut OrtEp) {
        // SAFETY: as the caller promises.
        drop(unsafe { Box::from_raw(ep.cast::<Self>()) });
    }

    /// # Safety
    ///
    /// `ep` came from [`Ep::into_raw`], and is live.
    unsafe fn of<'a>(ep: *const OrtEp) -> &'a Self {
        // SAFETY: as the caller promises; the interface is the struct's first field.
        unsafe { &*ep.cast::<Self>() }
    }

    /// # Safety
    ///
    /// `ep` came from [`Ep::into_raw`], and is live.
    pub(crate) unsafe fn session(ep: *const OrtEp) -> Arc<Session> {
        // SAFETY: as the caller promises.
        Arc::clone(&unsafe { Self::of(ep) }.session)
    }

    /// # Safety
    ///
    /// `graph` and `info` are live.
    unsafe fn claim(&self, graph: *const OrtGraph, info: *mut OrtEpGraphSupportInfo) -> Result {
        let api = tables()?;
        let registry = Registry::standard();
        let mut count = 0;
        // SAFETY: as the caller promises; the array is of the size that was asked for.
        let nodes = unsafe {
            check(api.ort.Graph_GetNumNodes(graph, &mut count))?;
            let mut nodes = vec![std::ptr::null(); count];
            check(api.ort.Graph_GetNodes(graph, nodes.as_mut_ptr(), count))?;
            nodes
        };
        for ort_node in nodes {
            // SAFETY: nodes of a live graph are live.
            let (node, inputs) = unsafe { node::read(ort_node)? };
            if !registry.factories().any(|factory| factory.domain() == node.domain && factory.op_type() == node.op_type)
            {
                continue;
            }
            let mut definition = std::ptr::null();
            // SAFETY: as above.
            unsafe { check(api.ep.EpGraphSupportInfo_LookUpKernel(info, ort_node, &mut definition))? };
            match registry.claim(self.session.planner(), &node, &inputs) {
                Ok(()) if definition.is_null() => {
                    self.report(&format!("{node} is not claimed: ONNX Runtime found no kernel for its types"));
                }
                // SAFETY: as above.
                Ok(()) => unsafe { check(api.ep.EpGraphSupportInfo_AddSingleNode(info, ort_node))? },
                Err(reason) => self.report(&format!("{node} is not claimed: {reason}")),
            }
        }
        Ok(())
    }

    fn report(&self, message: &str) {
        let severity = if self.session.options.explain { level::WARNING } else { level::INFO };
        if logs(severity) {
            log(severity, message);
        }
    }
}

unsafe extern "C" fn name(_: *const OrtEp) -> *const c_char {
    NAME.as_ptr()
}

unsafe extern "C" fn get_capability(
    ep: *mut OrtEp,
    graph: *const OrtGraph,
    info: *mut OrtEpGraphSupportInfo,
) -> Status {
    // SAFETY: ONNX Runtime calls with a provider of ours, and with what is live.
    callback("GetCapability", || unsafe { Ep::of(ep).claim(graph, info) })
}

unsafe extern "C" fn create_stream(
    ep: *mut OrtEp,
    _: *const OrtMemoryDevice,
    out: *mut *mut OrtSyncStreamImpl,
) -> Status {
    callback("CreateSyncStreamForDevice", || {
        // SAFETY: ONNX Runtime calls with a provider of ours, and the pointer is for the answer.
        unsafe {
            let session = &Ep::of(ep).session;
            out.write(Stream::into_raw(&session.accelerator, &session.options)?);
        }
        Ok(())
    })
}

unsafe extern "C" fn kernel_registry(ep: *mut OrtEp, out: *mut *const OrtKernelRegistry) -> Status {
    callback("GetKernelRegistry", || {
        // SAFETY: ONNX Runtime calls with a provider of ours, and the pointer is for the answer.
        unsafe { out.write(Ep::of(ep).kernels.registry()) };
        Ok(())
    })
}

unsafe extern "C" fn is_concurrent_run_supported(_: *mut OrtEp, out: *mut bool) -> Status {
    // SAFETY: the pointer is for the answer.
    unsafe { out.write(true) };
    std::ptr::null_mut()
}
