//! Counters in device memory, for kernels whose blocks draw their work.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::Result;
use crate::memory::{DeviceBuffer, DevicePtr};
use crate::runtime::Runtime;

/// 32-bit counters in device memory, all 0: one for eager launches, which the stream keeps apart, and one for each captured launch, since
/// graphs may be replayed on several streams at once.
///
/// A kernel that uses one must leave it at 0.
#[derive(Debug)]
pub struct LaunchCounters {
    memory: DeviceBuffer,
    captured: AtomicUsize,
}

impl LaunchCounters {
    /// How many captured launches there are counters for.
    pub const CAPTURED: usize = 4095;

    /// Allocates them, and waits until they are 0: a graph may be replayed on another stream, which would not wait for the zeros.
    ///
    /// # Errors
    ///
    /// As [`Runtime::alloc_zeroed`] and [`Runtime::synchronize`].
    pub fn new(runtime: &Runtime) -> Result<Self> {
        let memory = runtime.alloc_zeroed((1 + Self::CAPTURED) * size_of::<u32>())?;
        runtime.synchronize()?;
        Ok(Self { memory, captured: AtomicUsize::new(0) })
    }

    /// The counter of a launch that is enqueued now. `None` where as many launches as can be have been captured.
    pub fn take(&self, runtime: &Runtime) -> Option<DevicePtr> {
        let capturing = runtime.is_capturing().unwrap_or(false);
        let number = if capturing { 1 + self.captured.fetch_add(1, Ordering::Relaxed) } else { 0 };
        self.memory.ptr().slice(number.checked_mul(size_of::<u32>())?, size_of::<u32>()).ok()
    }
}
