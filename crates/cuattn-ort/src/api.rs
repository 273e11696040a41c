//! The tables of functions that ONNX Runtime handed over, and its log.

use std::ffi::{CStr, CString, c_char};
use std::sync::OnceLock;

use crate::abi::{API_VERSION, OrtApi, OrtApiBase, OrtEpApi, OrtLogger, OrtMemoryDevice, OrtValue, level};
use crate::failure::{Failure, Result, check};

/// The tables.
#[derive(Clone, Copy)]
pub(crate) struct Api {
    pub(crate) ort: &'static OrtApi,
    pub(crate) ep: &'static OrtEpApi,
    logger: *const OrtLogger,
}

// SAFETY: the tables are constant, and the default logger may be used from any thread.
unsafe impl Send for Api {}
// SAFETY: as above.
unsafe impl Sync for Api {}

static API: OnceLock<Api> = OnceLock::new();

/// The tables, once there are any.
pub(crate) fn api() -> Option<Api> {
    API.get().copied()
}

/// The tables. They are there whenever ONNX Runtime calls.
pub(crate) fn tables() -> Result<Api> {
    api().ok_or_else(|| Failure::new("the plugin has not been registered"))
}

/// Takes the tables. `None` where this ONNX Runtime is too old, which it is told by having no factories.
///
/// # Safety
///
/// As `CreateEpFactories`.
pub(crate) unsafe fn open(base: *const OrtApiBase, logger: *const OrtLogger) -> Option<Api> {
    // SAFETY: as the caller promises; a table that is not null lives as long as the library does.
    let api = unsafe {
        let ort = ((*base).GetApi)(API_VERSION).as_ref()?;
        Api { ort, ep: ort.GetEpApi().as_ref()?, logger }
    };
    Some(*API.get_or_init(|| api))
}

/// Writes to ONNX Runtime's log.
pub(crate) fn log(severity: i32, message: &str) {
    let Some(api) = api() else { return };
    let text = CString::new(message.replace('\0', " ")).unwrap_or_default();
    // SAFETY: the logger is live as long as the environment that registered us, and all texts are C strings.
    let status = unsafe {
        let (file, function): (*const c_char, *const c_char) = (c"cuattn-ort".as_ptr(), c"cuattn".as_ptr());
        api.ort.Logger_LogMessage(api.logger, severity, text.as_ptr(), file, 0, function)
    };
    // A message that cannot be logged is lost.
    let _ = check(status);
}

pub(crate) fn warn(message: &str) {
    log(level::WARNING, message);
}

/// Whether messages of this severity are shown.
pub(crate) fn logs(severity: i32) -> bool {
    let Some(api) = api() else { return false };
    let mut least = level::WARNING;
    // SAFETY: the logger is live, and the pointer is to a live integer.
    let status = unsafe { api.ort.Logger_GetLoggingSeverityLevel(api.logger, &mut least) };
    check(status).is_ok() && severity >= least
}

/// Text of ONNX Runtime's.
///
/// # Safety
///
/// `text` is null or a C string.
pub(crate) unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: as the caller promises.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Text that is copied into a buffer of ours, whose size is asked for first.
pub(crate) fn sized_text(read: impl Fn(*mut c_char, *mut usize) -> crate::abi::Status) -> Result<String> {
    let mut size = 0;
    // The size comes with an error, as the buffer is too small; what counts is the second call.
    let _ = check(read(std::ptr::null_mut(), &mut size));
    if size == 0 {
        return Ok(String::new());
    }
    let mut buffer = vec![0u8; size];
    check(read(buffer.as_mut_ptr().cast(), &mut size))?;
    let end = buffer.iter().position(|&byte| byte == 0).unwrap_or(buffer.len());
    Ok(String::from_utf8_lossy(&buffer[..end]).into_owned())
}

impl Api {
    /// Address and bytes of a tensor.
    ///
    /// # Safety
    ///
    /// `value` is a live tensor.
    pub(crate) unsafe fn memory(&self, value: *const OrtValue) -> Result<(usize, usize)> {
        let (mut address, mut bytes) = (std::ptr::null_mut(), 0);
        // SAFETY: as the caller promises, and the pointers are to live values.
        unsafe {
            check(self.ort.GetTensorSizeInBytes(value, &mut bytes))?;
            check(self.ort.GetTensorMutableData(value.cast_mut(), &mut address))?;
        }
        Ok((address.expose_provenance(), bytes))
    }

    /// Element type and extents of a tensor.
    ///
    /// # Safety
    ///
    /// `value` is a live tensor.
    pub(crate) unsafe fn shape(&self, value: *const OrtValue) -> Result<(i32, Vec<usize>)> {
        let mut info = std::ptr::null_mut();
        // SAFETY: as the caller promises, and the pointers are to live values; the info is released once.
        unsafe {
            check(self.ort.GetTensorTypeAndShape(value, &mut info))?;
            let read = || {
                let (mut element, mut rank) = (0, 0);
                check(self.ort.GetTensorElementType(info, &mut element))?;
                check(self.ort.GetDimensionsCount(info, &mut rank))?;
                let mut dims = vec![0i64; rank];
                check(self.ort.GetDimensions(info, dims.as_mut_ptr(), rank))?;
                Ok((element, dims.into_iter().map(|extent| usize::try_from(extent).unwrap_or(0)).collect()))
            };
            let shape = read();
            self.ort.ReleaseTensorTypeAndShapeInfo(info);
            shape
        }
    }

    /// Type and number of the device that holds a tensor.
    ///
    /// # Safety
    ///
    /// `value` is a live tensor.
    pub(crate) unsafe fn device_of(&self, value: *const OrtValue) -> MemoryPlace {
        // SAFETY: as the caller promises.
        unsafe { self.place(self.ep.Value_GetMemoryDevice(value)) }
    }

    /// # Safety
    ///
    /// `device` is live.
    pub(crate) unsafe fn place(&self, device: *const OrtMemoryDevice) -> MemoryPlace {
        // SAFETY: as the caller promises.
        unsafe {
            MemoryPlace {
                device_type: self.ep.MemoryDevice_GetDeviceType(device),
                vendor: self.ep.MemoryDevice_GetVendorId(device),
                id: self.ep.MemoryDevice_GetDeviceId(device),
            }
        }
    }
}

/// Where memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryPlace {
    pub(crate) device_type: i32,
    pub(crate) vendor: u32,
    pub(crate) id: u32,
}
