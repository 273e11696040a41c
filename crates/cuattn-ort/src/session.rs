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
    /// Streams of another provider, by handle.
    foreign: Mutex<HashMap<usize, Device>>,
}

impl Session {
    pub(crate) fn new(accelerator: Arc<Accelerator>, options: Options) -> Arc<Self> {
        Arc::new(Self { accelerator, options, foreign: Mutex::default() })
    }

    /// The device to run on, and whether ONNX Runtime knows its stream.
    ///
    /// # Safety
    ///
    /// `handle` is null, or a live stream that outlives the session.
    pub(crate) unsafe fn device(&self, handle: *mut c_void) -> Result<(Device, bool)> {
        if handle.is_null() {
            return Ok((self.accelerator.base()?, false));
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
