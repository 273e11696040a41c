//! One context and one stream: what every part of a runtime shares and keeps alive.

use std::fmt;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use cudarc::driver::sys::{CUcontext, CUdevice, CUstream};

use crate::capabilities::Capabilities;
use crate::driver::{self, Driver};
use crate::error::{Error, Result};
use crate::memory::Allocator;

/// Who owns context and stream.
enum Owner {
    /// We do: the primary context is retained, the stream is ours.
    Us,
    /// cudarc does, for as long as this lives.
    Cudarc(#[expect(dead_code, reason = "held, not used")] Arc<CudaStream>),
    /// Somebody else, who promised to keep both alive.
    Foreign,
}

pub(crate) struct Core {
    pub(crate) driver: &'static Driver,
    pub(crate) context: CUcontext,
    pub(crate) stream: CUstream,
    device: CUdevice,
    owner: Owner,
    pub(crate) capabilities: Capabilities,
    pub(crate) allocator: Allocator,
}

// SAFETY: the driver's handles may be used from any thread; the allocator's state is atomic or locked.
unsafe impl Send for Core {}
// SAFETY: as above.
unsafe impl Sync for Core {}

impl Core {
    /// The device's primary context, and a new stream that does not wait for the default stream.
    pub(crate) fn of_device(driver: &'static Driver, ordinal: usize, retained_bytes: u64) -> Result<Self> {
        let device = driver.device(ordinal)?;
        let mut context = std::ptr::null_mut();
        // SAFETY: the pointer is to a live handle.
        let code = unsafe { driver.table.cuDevicePrimaryCtxRetain(&mut context, device) };
        driver.check("cuDevicePrimaryCtxRetain", code)?;
        let release = |_: &Error| {
            // SAFETY: it was retained above.
            unsafe { driver.table.cuDevicePrimaryCtxRelease_v2(device) };
        };
        let stream = with_context(driver, context, || {
            let mut stream = std::ptr::null_mut();
            // SAFETY: the pointer is to a live handle.
            let code = unsafe { driver.table.cuStreamCreate(&mut stream, driver::STREAM_NON_BLOCKING) };
            driver.check("cuStreamCreate", code).map(|()| stream)
        })
        .inspect_err(release)?;
        Self::assemble(driver, context, stream, Owner::Us, retained_bytes).inspect_err(|error| {
            // SAFETY: the stream was made above and is unused.
            unsafe { driver.table.cuStreamDestroy_v2(stream) };
            release(error);
        })
    }

    pub(crate) fn of_stream(stream: Arc<CudaStream>, retained_bytes: u64) -> Result<Self> {
        let driver = Driver::global()?;
        let (context, handle) = (stream.context().cu_ctx(), stream.cu_stream());
        Self::assemble(driver, context, handle, Owner::Cudarc(stream), retained_bytes)
    }

    /// # Safety
    ///
    /// As [`Runtime::from_raw`](crate::Runtime::from_raw).
    pub(crate) unsafe fn of_raw(
        driver: &'static Driver,
        context: CUcontext,
        stream: CUstream,
        retained_bytes: u64,
    ) -> Result<Self> {
        let context = if !context.is_null() {
            context
        } else if is_default_stream(stream) {
            let current = driver.current_context()?;
            if current.is_null() {
                return Err(Error::NoContext {
                    why: "the default stream was given, and no context is current on this thread",
                });
            }
            current
        } else {
            let mut context = std::ptr::null_mut();
            // SAFETY: the caller vouches for the stream, and the pointer is to a live handle.
            driver.check("cuStreamGetCtx", unsafe { driver.table.cuStreamGetCtx(stream, &mut context) })?;
            context
        };
        Self::assemble(driver, context, stream, Owner::Foreign, retained_bytes)
    }

    fn assemble(
        driver: &'static Driver,
        context: CUcontext,
        stream: CUstream,
        owner: Owner,
        retained_bytes: u64,
    ) -> Result<Self> {
        let (device, allocator) = with_context(driver, context, || {
            let mut device = 0;
            // SAFETY: the pointer is to a live integer.
            driver.check("cuCtxGetDevice", unsafe { driver.table.cuCtxGetDevice(&mut device) })?;
            Ok((device, Allocator::new(driver, device, retained_bytes)?))
        })?;
        let capabilities = Capabilities::query(driver, device)?;
        Ok(Self { driver, context, stream, device, owner, capabilities, allocator })
    }

    /// Makes the context current on this thread. Asking first is several times cheaper than setting.
    #[inline]
    pub(crate) fn bind(&self) -> Result<()> {
        if self.driver.current_context()? == self.context {
            return Ok(());
        }
        // SAFETY: the context is alive for as long as this value is.
        self.driver.check("cuCtxSetCurrent", unsafe { self.driver.table.cuCtxSetCurrent(self.context) })
    }

    pub(crate) fn is_capturing(&self) -> Result<bool> {
        self.bind()?;
        let mut status = driver::CAPTURE_STATUS_NONE;
        // SAFETY: the stream is live and the pointer is to a live integer.
        match unsafe { self.driver.table.cuStreamIsCapturing(self.stream, &mut status) } {
            // The default stream, while a stream that it waits for is being captured.
            driver::ERROR_CAPTURE_IMPLICIT => Ok(true),
            code => {
                self.driver.check("cuStreamIsCapturing", code)?;
                Ok(status != driver::CAPTURE_STATUS_NONE)
            }
        }
    }

    pub(crate) fn refuse_capture(&self, what: &'static str) -> Result<()> {
        if self.is_capturing()? { Err(Error::Capturing { what }) } else { Ok(()) }
    }

    /// Waits for the stream, without asking whether it is being captured.
    pub(crate) fn wait(&self) -> Result<()> {
        // SAFETY: the stream is live.
        self.driver.check("cuStreamSynchronize", unsafe { self.driver.table.cuStreamSynchronize(self.stream) })
    }

    pub(crate) fn synchronize(&self) -> Result<()> {
        self.refuse_capture("synchronisation")?;
        self.free_deferred();
        self.wait()
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        // A foreign context may be gone by now, and with it everything that was in it.
        if self.bind().is_ok() {
            self.free_deferred();
            self.allocator.destroy(self.driver);
        }
        if let Owner::Us = self.owner {
            // SAFETY: stream and retained context are ours, and nothing else of this runtime is left.
            unsafe {
                self.driver.table.cuStreamDestroy_v2(self.stream);
                self.driver.table.cuDevicePrimaryCtxRelease_v2(self.device);
            }
        }
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core")
            .field("device", &self.device)
            .field("name", &self.capabilities.name)
            .finish_non_exhaustive()
    }
}

/// The two default streams are numbers, not objects: 0 and 1 are the legacy one, 2 is the thread's own.
fn is_default_stream(stream: CUstream) -> bool {
    stream.addr() <= 2
}

/// Runs `work` with `context` current, and then restores what was current before.
fn with_context<T>(driver: &Driver, context: CUcontext, work: impl FnOnce() -> Result<T>) -> Result<T> {
    // SAFETY: the context is live.
    driver.check("cuCtxPushCurrent", unsafe { driver.table.cuCtxPushCurrent_v2(context) })?;
    let outcome = work();
    let mut popped = std::ptr::null_mut();
    // SAFETY: undoes the push above.
    unsafe { driver.table.cuCtxPopCurrent_v2(&mut popped) };
    outcome
}
