//! Events, and time as the device sees it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::sys::CUevent;

use crate::context::Core;
use crate::driver;
use crate::error::Result;
use crate::runtime::Runtime;

/// A mark in a stream.
pub struct Event {
    core: Arc<Core>,
    handle: CUevent,
}

// SAFETY: an event's handle may be used from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    pub(crate) fn new(core: &Arc<Core>) -> Result<Self> {
        core.bind()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the context is current, and the pointer is to a live handle.
        let code = unsafe { core.driver.table.cuEventCreate(&mut handle, driver::EVENT_DEFAULT) };
        core.driver.check("cuEventCreate", code)?;
        Ok(Self { core: Arc::clone(core), handle })
    }

    /// Marks the present end of the runtime's stream. It must be of the context that the event was made in.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn record(&self, runtime: &Runtime) -> Result<()> {
        let core = runtime.core();
        core.bind()?;
        // SAFETY: event and stream are live; the driver refuses those of different contexts.
        core.driver.check("cuEventRecord", unsafe { core.driver.table.cuEventRecord(self.handle, core.stream) })
    }

    /// Waits until the stream has passed the mark.
    ///
    /// # Errors
    ///
    /// [`Error::Capturing`](crate::Error::Capturing) during capture, or the failure of earlier work.
    pub fn synchronize(&self) -> Result<()> {
        self.core.refuse_capture("waiting for an event")?;
        // SAFETY: the event is live.
        self.core.driver.check("cuEventSynchronize", unsafe { self.core.driver.table.cuEventSynchronize(self.handle) })
    }

    /// Whether the stream has passed the mark.
    ///
    /// # Errors
    ///
    /// [`Error::Capturing`](crate::Error::Capturing) during capture, or the failure of earlier work.
    pub fn is_done(&self) -> Result<bool> {
        self.core.refuse_capture("asking for an event")?;
        // SAFETY: the event is live.
        match unsafe { self.core.driver.table.cuEventQuery(self.handle) } {
            driver::ERROR_NOT_READY => Ok(false),
            code => self.core.driver.check("cuEventQuery", code).map(|()| true),
        }
    }

    /// Milliseconds between two marks. Waits for the second.
    ///
    /// # Errors
    ///
    /// As [`Event::synchronize`].
    pub fn elapsed_ms(start: &Self, end: &Self) -> Result<f32> {
        end.synchronize()?;
        let mut milliseconds = 0.0;
        let table = &end.core.driver.table;
        // SAFETY: both events are live, and the pointer is to a live number.
        let code = unsafe { table.cuEventElapsedTime(&mut milliseconds, start.handle, end.handle) };
        end.core.driver.check("cuEventElapsedTime", code)?;
        Ok(milliseconds)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.core.bind().is_ok() {
            // SAFETY: the event is ours and not used again; the driver keeps it until a pending record is over.
            unsafe { self.core.driver.table.cuEventDestroy_v2(self.handle) };
        }
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Event({:p})", self.handle)
    }
}

/// Measures work on a stream by events, so without the time that the host takes.
#[derive(Debug)]
pub struct GpuTimer {
    runtime: Runtime,
    start: Event,
    end: Event,
}

impl GpuTimer {
    pub(crate) fn new(runtime: &Runtime) -> Result<Self> {
        Ok(Self { start: runtime.event()?, end: runtime.event()?, runtime: runtime.clone() })
    }

    /// Marks the beginning.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn start(&self) -> Result<()> {
        self.start.record(&self.runtime)
    }

    /// Marks the end, waits for it, and returns the time since the beginning.
    ///
    /// # Errors
    ///
    /// As [`Event::synchronize`]; the driver refuses a timer that was not started.
    pub fn stop(&self) -> Result<Duration> {
        self.end.record(&self.runtime)?;
        let milliseconds = Event::elapsed_ms(&self.start, &self.end)?;
        Ok(Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3))
    }
}
