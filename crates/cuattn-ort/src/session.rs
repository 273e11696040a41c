//! What the nodes of a session share: their device, and its streams.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

use cuattn_ep::Device;

use crate::accelerator::{Accelerator, Kind};
use crate::failure::Result;
use crate::options::Options;

/// A session's part of the plugin.
pub(crate) struct Session {
    pub(crate) accelerator: Arc<Accelerator>,
    pub(crate) options: Options,
    /// The device's own stream with the session's engines: for claims, and where there is no other stream.
    planner: Device,
    /// Streams of another provider, by handle.
    foreign: Mutex<HashMap<usize, Device>>,
}

impl Session {
    /// A device that does not work is an error here, and not when the first node runs.
    pub(crate) fn new(accelerator: Arc<Accelerator>, options: Options) -> Result<Arc<Self>> {
        let base = accelerator.base()?;
        let planner = match base.runtime() {
            Some(runtime) => Device::gpu(runtime.clone(), options.policy),
            None => base,
        };
        Ok(Arc::new(Self { accelerator, options, planner, foreign: Mutex::default() }))
    }

    /// The device that claims are made for.
    pub(crate) const fn planner(&self) -> &Device {
        &self.planner
    }

    /// The device to run on, and whether ONNX Runtime knows its stream.
    ///
    /// # Safety
    ///
    /// `handle` is null, or a live stream that outlives the session.
    pub(crate) unsafe fn device(&self, handle: *mut c_void) -> Result<(Device, bool)> {
        if handle.is_null() {
            return Ok((self.planner.clone(), false));
        }
        if let Some(device) = self.accelerator.stream(handle) {
            return Ok((device, true));
        }
        if self.accelerator.kind == Kind::Host {
            return Ok((Device::host(), true));
        }
        let mut foreign = self.foreign.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(device) = foreign.get(&handle.addr()) {
            return Ok((device.clone(), true));
        }
        // SAFETY: as the caller promises.
        let device = unsafe { self.accelerator.foreign_stream(handle, self.options.policy)? };
        foreign.insert(handle.addr(), device.clone());
        Ok((device, true))
    }
}
