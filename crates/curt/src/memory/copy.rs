//! Copies and fills, in stream order.

use bytemuck::{AnyBitPattern, NoUninit};

use super::{DevicePtr, PinnedBuffer};
use crate::context::Core;
use crate::error::{Error, Result};

/// Bytes of a host slice, which must fit a device range.
fn fitting(what: &'static str, bytes: usize, memory: DevicePtr) -> Result<usize> {
    if bytes > memory.len() {
        return Err(Error::OutOfRange { what, offset: 0, len: bytes, available: memory.len() });
    }
    Ok(bytes)
}

impl Core {
    /// # Safety
    ///
    /// `to` is live device memory of this context.
    pub(crate) unsafe fn htod<T: NoUninit>(&self, from: &[T], to: DevicePtr) -> Result<()> {
        let bytes = fitting("copy to the device", size_of_val(from), to)?;
        // A copy from borrowed memory must be over before the borrow is, and a graph would replay it long after.
        self.refuse_capture("copy from borrowed host memory")?;
        if bytes == 0 {
            return Ok(());
        }
        self.bind()?;
        // SAFETY: source and target hold this many bytes; the source is borrowed until the stream has passed the copy.
        let code =
            unsafe { self.driver.table.cuMemcpyHtoDAsync_v2(to.address(), from.as_ptr().cast(), bytes, self.stream) };
        self.driver.check("cuMemcpyHtoDAsync", code)?;
        self.wait()
    }

    /// # Safety
    ///
    /// `from` is live device memory of this context.
    pub(crate) unsafe fn dtoh<T: AnyBitPattern>(&self, from: DevicePtr, to: &mut [T]) -> Result<()> {
        let bytes = fitting("copy from the device", size_of_val(to), from)?;
        self.refuse_capture("copy to the host")?;
        if bytes == 0 {
            return self.wait();
        }
        self.bind()?;
        // SAFETY: source and target hold this many bytes; any bytes are valid in the target, which is borrowed until the stream has
        // passed the copy.
        let code = unsafe {
            self.driver.table.cuMemcpyDtoHAsync_v2(to.as_mut_ptr().cast(), from.address(), bytes, self.stream)
        };
        self.driver.check("cuMemcpyDtoHAsync", code)?;
        self.wait()
    }

    /// # Safety
    ///
    /// `to` is live device memory of this context, and `from` stays alive and unchanged until the stream, or the last replay of a graph
    /// that captured this, has passed.
    pub(crate) unsafe fn htod_pinned(&self, from: &PinnedBuffer, to: DevicePtr) -> Result<()> {
        let bytes = fitting("copy to the device", from.len(), to)?;
        if bytes == 0 {
            return Ok(());
        }
        self.bind()?;
        // SAFETY: both hold this many bytes, for as long as the caller promised.
        let code =
            unsafe { self.driver.table.cuMemcpyHtoDAsync_v2(to.address(), from.as_ptr().cast(), bytes, self.stream) };
        self.driver.check("cuMemcpyHtoDAsync", code)
    }

    /// # Safety
    ///
    /// `from` is live device memory of this context, and `to` is neither read, written nor dropped until the stream, or the last replay
    /// of a graph that captured this, has passed.
    pub(crate) unsafe fn dtoh_pinned(&self, from: DevicePtr, to: &mut PinnedBuffer) -> Result<()> {
        let bytes = fitting("copy from the device", to.len(), from)?;
        if bytes == 0 {
            return Ok(());
        }
        self.bind()?;
        // SAFETY: both hold this many bytes, for as long as the caller promised.
        let code = unsafe {
            self.driver.table.cuMemcpyDtoHAsync_v2(to.as_mut_ptr().cast(), from.address(), bytes, self.stream)
        };
        self.driver.check("cuMemcpyDtoHAsync", code)
    }

    /// # Safety
    ///
    /// Both are live device memory of this context, and do not overlap.
    pub(crate) unsafe fn dtod(&self, from: DevicePtr, to: DevicePtr, bytes: usize) -> Result<()> {
        fitting("copy on the device, source", bytes, from)?;
        fitting("copy on the device, target", bytes, to)?;
        if bytes == 0 {
            return Ok(());
        }
        self.bind()?;
        // SAFETY: both hold this many bytes, as was just checked against what the caller vouches for.
        let code = unsafe { self.driver.table.cuMemcpyDtoDAsync_v2(to.address(), from.address(), bytes, self.stream) };
        self.driver.check("cuMemcpyDtoDAsync", code)
    }

    /// # Safety
    ///
    /// `memory` is live device memory of this context.
    pub(crate) unsafe fn memset(&self, memory: DevicePtr, value: u8) -> Result<()> {
        if memory.is_empty() {
            return Ok(());
        }
        self.bind()?;
        // SAFETY: the memory is live and of this length.
        let code = unsafe { self.driver.table.cuMemsetD8Async(memory.address(), value, memory.len(), self.stream) };
        self.driver.check("cuMemsetD8Async", code)
    }
}
