//! The C interface of `libcuattn_bench.so`, which `peers/ours.py` loads.
//!
//! Every function that can fail returns a status: [`OK`], or something else, and then [`cuattn_bench_error`] has the
//! reason. No panic crosses the border. Handles belong to the caller, who closes each once; a plan is closed before its
//! session. Strings that are handed out live as long as the handle they came from.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use anyhow::{Context, ensure};
use curt::{DevicePtr, Runtime};

use crate::session::{Launch, Prepared, Session};

/// Version of this interface; `peers/ours.py` refuses another one.
pub const VERSION: u32 = 1;

/// All went well.
pub const OK: i32 = 0;
/// It did not; the reason is in [`cuattn_bench_error`].
pub const FAILED: i32 = 1;
/// A bug in this library, which was caught.
pub const PANICKED: i32 = 2;

/// An open session.
pub struct SessionHandle {
    session: Session,
    description: CString,
}

/// A plan. Belongs to the session it was made in.
pub struct PlanHandle {
    session: *const SessionHandle,
    prepared: Prepared,
    description: CString,
}

/// A tensor's memory: where it starts, and how far it reaches. Address 0 where there is no such operand.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Span {
    /// Device address.
    pub address: u64,
    /// Bytes from the first to the last element.
    pub bytes: u64,
}

/// The operands of a launch. `peers/ours.py` has the same fields in the same order.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "named as in cuattn_core::Operands and VarlenOperands")]
pub struct OperandSpans {
    pub q: Span,
    pub k: Span,
    pub v: Span,
    pub o: Span,
    pub bias: Span,
    pub cu_seqlens_q: Span,
    pub cu_seqlens_kv: Span,
    pub workspace: Span,
}

impl Span {
    fn pointer(self) -> anyhow::Result<DevicePtr> {
        Ok(DevicePtr::new(self.address, usize::try_from(self.bytes).context("a tensor beyond the address space")?))
    }

    fn optional(self) -> anyhow::Result<Option<DevicePtr>> {
        (self.address != 0).then(|| self.pointer()).transpose()
    }
}

impl OperandSpans {
    fn launch(&self) -> anyhow::Result<Launch> {
        Ok(Launch {
            q: self.q.pointer()?,
            k: self.k.pointer()?,
            v: self.v.pointer()?,
            o: self.o.pointer()?,
            bias: self.bias.optional()?,
            cu_seqlens_q: self.cu_seqlens_q.pointer()?,
            cu_seqlens_kv: self.cu_seqlens_kv.pointer()?,
            workspace: self.workspace.pointer()?,
        })
    }
}

thread_local! {
    static ERROR: RefCell<CString> = RefCell::default();
}

fn keep_error(text: &str) {
    // A NUL would end the text early for the reader; nothing else of it is lost.
    let text = CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default();
    ERROR.with(|error| *error.borrow_mut() = text);
}

fn guarded(body: impl FnOnce() -> anyhow::Result<()>) -> i32 {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => OK,
        Ok(Err(error)) => {
            keep_error(&format!("{error:#}"));
            FAILED
        }
        Err(payload) => {
            let text = payload.downcast_ref::<&str>().copied();
            let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
            keep_error(&format!("a bug in the library, please report it: {text}"));
            PANICKED
        }
    }
}

/// # Safety
///
/// `handle` is null or a live handle of this type.
unsafe fn borrowed<'a, T>(handle: *const T, what: &str) -> anyhow::Result<&'a T> {
    // SAFETY: the caller's promise.
    unsafe { handle.as_ref() }.with_context(|| format!("{what} is null"))
}

/// The version of this interface.
#[unsafe(no_mangle)]
pub extern "C" fn cuattn_bench_abi_version() -> u32 {
    VERSION
}

/// Why the last call of this thread that failed did so. Valid until the next one fails.
#[unsafe(no_mangle)]
pub extern "C" fn cuattn_bench_error() -> *const c_char {
    ERROR.with(|error| error.borrow().as_ptr())
}

/// Opens a session on a CUDA stream of the caller's. A null context is the one that is current, or the device's primary
/// one.
///
/// # Safety
///
/// `context` and `stream` are a driver context and one of its streams, and outlive the session. `session` can be
/// written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuattn_bench_open(
    context: *mut c_void,
    stream: *mut c_void,
    session: *mut *mut SessionHandle,
) -> i32 {
    guarded(|| {
        ensure!(!session.is_null(), "no place for the session: the pointer is null");
        // SAFETY: the caller vouches for context and stream.
        let opened = Session::new(unsafe { Runtime::from_raw(context, stream)? });
        let description = CString::new(opened.describe().to_string())?;
        // SAFETY: not null, and the caller says that it can be written to.
        unsafe { *session = Box::into_raw(Box::new(SessionHandle { session: opened, description })) };
        Ok(())
    })
}

/// The device and libraries of a session, as JSON. Null for a null session.
///
/// # Safety
///
/// `session` is null or a live session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuattn_bench_describe(session: *const SessionHandle) -> *const c_char {
    // SAFETY: the caller's promise.
    unsafe { session.as_ref() }.map_or(std::ptr::null(), |session| session.description.as_ptr())
}

/// Closes a session. Null is nothing.
///
/// # Safety
///
/// `session` is null or a live session without live plans, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuattn_bench_close(session: *mut SessionHandle) {
    if !session.is_null() {
        guarded(|| {
            // SAFETY: it came from `cuattn_bench_open`, and the caller gives it up.
            drop(unsafe { Box::from_raw(session) });
            Ok(())
        });
    }
}

/// Plans a problem, given as the JSON of [`crate::description`].
///
/// # Safety
///
/// `session` is null or a live session; `description` is null or a NUL-terminated string; `plan` can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuattn_bench_plan(
    session: *const SessionHandle,
    description: *const c_char,
    plan: *mut *mut PlanHandle,
) -> i32 {
    guarded(|| {
        ensure!(!plan.is_null() && !description.is_null(), "the description or the place for the plan is null");
        // SAFETY: the caller's promises; null was refused above.
        let (open, text) = unsafe { (borrowed(session, "the session")?, CStr::from_ptr(description)) };
        let prepared = open.session.plan(text.to_str().context("the description is not UTF-8")?)?;
        let description = CString::new(prepared.describe().to_string())?;
        // SAFETY: not null, and the caller says that it can be written to.
        unsafe { *plan = Box::into_raw(Box::new(PlanHandle { session, prepared, description })) };
        Ok(())
    })
}

/// Engine, path, workspace and work of a plan, as JSON. Null for a null plan.
///
/// # Safety
///
/// `plan` is null or a live plan.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuattn_bench_plan_describe(plan: *const PlanHandle) -> *const c_char {
    // SAFETY: the caller's promise.
    unsafe { plan.as_ref() }.map_or(std::ptr::null(), |plan| plan.description.as_ptr())
}

/// Closes a plan. Null is nothing.
///
/// # Safety
///
/// `plan` is null or a live plan, no launch of it is in flight or captured in a graph that still runs, and it is not
/// used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuattn_bench_plan_close(plan: *mut PlanHandle) {
    if !plan.is_null() {
        guarded(|| {
            // SAFETY: it came from `cuattn_bench_plan`, and the caller gives it up.
            drop(unsafe { Box::from_raw(plan) });
            Ok(())
        });
    }
}

/// Launches a plan once, on the session's stream.
///
/// # Safety
///
/// `plan` is null or a live plan; `operands` is null or readable, and what it points at satisfies
/// `cuattn_core::Plan::launch`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuattn_bench_launch(plan: *const PlanHandle, operands: *const OperandSpans) -> i32 {
    guarded(|| {
        // SAFETY: the caller's promises.
        let (plan, operands) = unsafe { (borrowed(plan, "the plan")?, borrowed(operands, "the operands")?) };
        // SAFETY: the caller vouches for the operands.
        unsafe { plan.prepared.launch(&operands.launch()?) }
    })
}

/// Times `repetitions` launches by CUDA events, the L2 cache overwritten before each by writing `flush_bytes`, and
/// writes the milliseconds of each to `times`.
///
/// # Safety
///
/// As for [`cuattn_bench_launch`]; the plan's session is live, and `times` has room for `repetitions` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuattn_bench_time_eager(
    plan: *const PlanHandle,
    operands: *const OperandSpans,
    repetitions: u64,
    flush_bytes: u64,
    times: *mut f32,
) -> i32 {
    guarded(|| {
        ensure!(!times.is_null(), "no place for the times: the pointer is null");
        // SAFETY: the caller's promises.
        let (plan, operands) = unsafe { (borrowed(plan, "the plan")?, borrowed(operands, "the operands")?) };
        // SAFETY: the caller keeps the session open.
        let session = unsafe { borrowed(plan.session, "the session")? };
        let (repetitions, flush_bytes) = (usize::try_from(repetitions)?, usize::try_from(flush_bytes)?);
        // SAFETY: the caller vouches for the operands.
        let measured =
            unsafe { session.session.time_eager(&plan.prepared, &operands.launch()?, repetitions, flush_bytes)? };
        // SAFETY: room for `repetitions` numbers, which is how many were measured.
        unsafe { std::ptr::copy_nonoverlapping(measured.as_ptr(), times, measured.len()) };
        Ok(())
    })
}

/// Host time of a launch in microseconds, over at least `launches` of them.
///
/// # Safety
///
/// As for [`cuattn_bench_launch`]; the plan's session is live, and `microseconds` can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuattn_bench_launch_overhead(
    plan: *const PlanHandle,
    operands: *const OperandSpans,
    launches: u64,
    microseconds: *mut f64,
) -> i32 {
    guarded(|| {
        ensure!(!microseconds.is_null(), "no place for the time: the pointer is null");
        // SAFETY: the caller's promises.
        let (plan, operands) = unsafe { (borrowed(plan, "the plan")?, borrowed(operands, "the operands")?) };
        // SAFETY: the caller keeps the session open.
        let session = unsafe { borrowed(plan.session, "the session")? };
        // SAFETY: the caller vouches for the operands.
        let each = unsafe {
            session.session.launch_overhead(&plan.prepared, &operands.launch()?, usize::try_from(launches)?)?
        };
        // SAFETY: not null, and the caller says that it can be written to.
        unsafe { *microseconds = each.as_secs_f64() * 1e6 };
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last_error() -> String {
        // SAFETY: always a NUL-terminated string of this thread.
        unsafe { CStr::from_ptr(cuattn_bench_error()) }.to_string_lossy().into_owned()
    }

    #[test]
    fn null_handles_are_errors() {
        let mut plan = std::ptr::null_mut();
        // SAFETY: nulls are what the functions must withstand; the rest is valid.
        let status = unsafe { cuattn_bench_plan(std::ptr::null(), c"{}".as_ptr(), &mut plan) };
        assert_eq!((status, last_error().as_str()), (FAILED, "the session is null"));
        // SAFETY: as above.
        let status = unsafe { cuattn_bench_launch(std::ptr::null(), &OperandSpans::default()) };
        assert_eq!((status, last_error().as_str()), (FAILED, "the plan is null"));
        // SAFETY: as above.
        unsafe {
            cuattn_bench_close(std::ptr::null_mut());
            cuattn_bench_plan_close(std::ptr::null_mut());
            assert!(cuattn_bench_describe(std::ptr::null()).is_null());
        }
    }

    #[test]
    fn panics_stop_at_the_border() {
        assert_eq!(guarded(|| panic!("row {} of none", 3)), PANICKED);
        assert_eq!(last_error(), "a bug in the library, please report it: row 3 of none");
    }

    #[test]
    fn an_error_keeps_its_causes_and_survives_a_nul() {
        assert_eq!(guarded(|| Err(anyhow::anyhow!("in\0ner").context("outer"))), FAILED);
        assert_eq!(last_error(), "outer: in\u{fffd}ner");
    }

    #[test]
    fn an_absent_operand_is_none_and_an_empty_workspace_is_legal() {
        let spans = OperandSpans { q: Span { address: 256, bytes: 8 }, ..OperandSpans::default() };
        let launch = spans.launch().unwrap();
        assert_eq!((launch.q.address(), launch.q.len()), (256, 8));
        assert!(launch.bias.is_none());
        assert!(launch.workspace.is_empty());
    }
}
