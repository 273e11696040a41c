//! `OrtSyncStreamImpl` and `OrtSyncNotificationImpl`: streams of a device, and marks in them.

use std::ffi::c_void;
use std::sync::Arc;

use cuattn_ep::Device;
use cuattn_ep::cuattn::curt::Event;

use crate::abi::{API_VERSION, OrtSyncNotificationImpl, OrtSyncStream, OrtSyncStreamImpl, Status};
use crate::accelerator::Accelerator;
use crate::failure::{Result, callback, callback_or};
use crate::options::Options;

#[repr(C)]
pub(crate) struct Stream {
    base: OrtSyncStreamImpl,
    accelerator: Arc<Accelerator>,
    device: Device,
    handle: *mut c_void,
}

impl Stream {
    pub(crate) fn into_raw(accelerator: &Arc<Accelerator>, options: &Options) -> Result<*mut OrtSyncStreamImpl> {
        let base = OrtSyncStreamImpl {
            ort_version_supported: API_VERSION,
            Release: release,
            GetHandle: handle,
            CreateNotification: create_notification,
            Flush: flush,
            OnSessionRunEnd: on_session_run_end,
        };
        let accelerator = Arc::clone(accelerator);
        let mut stream = Box::new(Self { base, accelerator, device: Device::host(), handle: std::ptr::null_mut() });
        let own = std::ptr::from_ref(&*stream).cast::<c_void>();
        (stream.device, stream.handle) = stream.accelerator.new_stream(options, own)?;
        Ok(Box::into_raw(stream).cast())
    }

    /// # Safety
    ///
    /// `stream` came from [`Stream::into_raw`], and is live.
    unsafe fn of<'a>(stream: *mut OrtSyncStreamImpl) -> &'a Self {
        // SAFETY: as the caller promises; the interface is the struct's first field.
        unsafe { &*stream.cast::<Self>() }
    }
}

unsafe extern "C" fn release(stream: *mut OrtSyncStreamImpl) {
    callback_or("the release of a stream", (), || {
        // SAFETY: ONNX Runtime releases a stream of ours once.
        let stream = unsafe { Box::from_raw(stream.cast::<Stream>()) };
        stream.accelerator.forget_stream(stream.handle);
        Ok(())
    });
}

unsafe extern "C" fn handle(stream: *mut OrtSyncStreamImpl) -> *mut c_void {
    // SAFETY: ONNX Runtime calls with a stream of ours.
    unsafe { Stream::of(stream) }.handle
}

unsafe extern "C" fn flush(stream: *mut OrtSyncStreamImpl) -> Status {
    callback("Flush", || {
        // SAFETY: ONNX Runtime calls with a stream of ours.
        match unsafe { Stream::of(stream) }.device.runtime() {
            Some(runtime) => Ok(runtime.synchronize()?),
            None => Ok(()),
        }
    })
}

unsafe extern "C" fn on_session_run_end(_: *mut OrtSyncStreamImpl) -> Status {
    std::ptr::null_mut()
}

unsafe extern "C" fn create_notification(
    stream: *mut OrtSyncStreamImpl,
    out: *mut *mut OrtSyncNotificationImpl,
) -> Status {
    callback("CreateNotification", || {
        // SAFETY: ONNX Runtime calls with a stream of ours.
        let device = unsafe { Stream::of(stream) }.device.clone();
        let event = device.runtime().map(|runtime| runtime.event()).transpose()?;
        let base = OrtSyncNotificationImpl {
            ort_version_supported: API_VERSION,
            Release: release_notification,
            Activate: activate,
            WaitOnDevice: wait_on_device,
            WaitOnHost: wait_on_host,
        };
        // SAFETY: the pointer is for the answer.
        unsafe { out.write(Box::into_raw(Box::new(Notification { base, device, event })).cast()) };
        Ok(())
    })
}

/// A mark in a stream. On the host there is nothing to wait for.
#[repr(C)]
struct Notification {
    base: OrtSyncNotificationImpl,
    device: Device,
    event: Option<Event>,
}

impl Notification {
    /// # Safety
    ///
    /// `notification` came from [`create_notification`], and is live.
    unsafe fn of<'a>(notification: *mut OrtSyncNotificationImpl) -> &'a Self {
        // SAFETY: as the caller promises; the interface is the struct's first field.
        unsafe { &*notification.cast::<Self>() }
    }

    fn wait(&self) -> Result {
        match &self.event {
            Some(event) => Ok(event.synchronize()?),
            None => Ok(()),
        }
    }
}

unsafe extern "C" fn release_notification(notification: *mut OrtSyncNotificationImpl) {
    callback_or("the release of a notification", (), || {
        // SAFETY: ONNX Runtime releases a notification of ours once.
        drop(unsafe { Box::from_raw(notification.cast::<Notification>()) });
        Ok(())
    });
}

unsafe extern "C" fn activate(notification: *mut OrtSyncNotificationImpl) -> Status {
    callback("Activate", || {
        // SAFETY: ONNX Runtime calls with a notification of ours.
        let notification = unsafe { Notification::of(notification) };
        match (&notification.event, notification.device.runtime()) {
            (Some(event), Some(runtime)) => Ok(event.record(runtime)?),
            _ => Ok(()),
        }
    })
}

/// The host waits, and then the consumer need not: right for any consumer, ours or another provider's.
unsafe extern "C" fn wait_on_device(notification: *mut OrtSyncNotificationImpl, _: *mut OrtSyncStream) -> Status {
    // SAFETY: ONNX Runtime calls with a notification of ours.
    callback("WaitOnDevice", || unsafe { Notification::of(notification) }.wait())
}

unsafe extern "C" fn wait_on_host(notification: *mut OrtSyncNotificationImpl) -> Status {
    // SAFETY: ONNX Runtime calls with a notification of ours.
    callback("WaitOnHost", || unsafe { Notification::of(notification) }.wait())
}
