//! What goes wrong, as ONNX Runtime is told of it; and the border that no panic crosses.

use std::any::Any;
use std::ffi::{CStr, CString};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use cuattn_ep::cuattn::curt;
use cuattn_ep::{ExecuteError, Fault, Reason};

use crate::abi::{Status, code};
use crate::api::api;

/// An error code of ONNX Runtime, and a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    code: i32,
    message: String,
}

pub(crate) type Result<T = ()> = std::result::Result<T, Failure>;

impl Failure {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { code: code::EP_FAIL, message: message.into() }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self { code: code::INVALID_ARGUMENT, message: message.into() }
    }

    fn into_status(self) -> Status {
        let Some(api) = api() else { return std::ptr::null_mut() };
        let text = CString::new(format!("cuattn: {}", self.message).replace('\0', " ")).unwrap_or_default();
        // SAFETY: the text is a C string, which the function copies.
        unsafe { api.ort.CreateStatus(self.code, text.as_ptr()) }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<curt::Error> for Failure {
    fn from(error: curt::Error) -> Self {
        Self::new(error.to_string())
    }
}

impl From<Reason> for Failure {
    fn from(reason: Reason) -> Self {
        Self { code: code::NOT_IMPLEMENTED, message: reason.to_string() }
    }
}

impl From<ExecuteError> for Failure {
    fn from(error: ExecuteError) -> Self {
        let code = match error.why {
            Fault::Refused(_) => code::INVALID_ARGUMENT,
            _ => code::EP_FAIL,
        };
        Self { code, message: error.to_string() }
    }
}

/// Turns a status of ONNX Runtime into a result.
pub(crate) fn check(status: Status) -> Result {
    if status.is_null() {
        return Ok(());
    }
    let Some(api) = api() else { return Err(Failure::new("an error before the interface was there")) };
    // SAFETY: the status is live, its message is a C string of it, and it is released once.
    let message = unsafe {
        let message = CStr::from_ptr(api.ort.GetErrorMessage(status)).to_string_lossy().into_owned();
        api.ort.ReleaseStatus(status);
        message
    };
    Err(Failure { code: code::FAIL, message })
}

/// Runs what ONNX Runtime asked for. A panic is a failure like others, and goes no further.
pub(crate) fn callback(what: &'static str, work: impl FnOnce() -> Result) -> Status {
    match caught(what, work) {
        Ok(()) => std::ptr::null_mut(),
        Err(failure) => failure.into_status(),
    }
}

/// The same where there is no status to return: `otherwise` is the answer then.
pub(crate) fn callback_or<T>(what: &'static str, otherwise: T, work: impl FnOnce() -> Result<T>) -> T {
    match caught(what, work) {
        Ok(value) => value,
        Err(failure) => {
            crate::api::warn(&failure.message);
            otherwise
        }
    }
}

fn caught<T>(what: &'static str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(Failure::new(panic_message(what, &*panic))))
}

fn panic_message(what: &str, panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    format!("a panic in {what}: {text}; this is a mistake in the plugin, please report it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_a_failure() {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let failure = caught::<()>("a test", || panic!("went {}", "wrong")).unwrap_err();
        std::panic::set_hook(hook);
        insta::assert_snapshot!(
            failure,
            @"a panic in a test: went wrong; this is a mistake in the plugin, please report it"
        );
    }
}
