//! Page-locked host memory, which the device copies from and to without a detour.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::context::Core;
use crate::driver;
use crate::error::{Error, Result};

/// Page-locked host memory, zeroed at first.
///
/// It dereferences to bytes; `bytemuck::cast_slice` makes elements of them. Dropping it waits for the device.
pub struct PinnedBuffer {
    core: Arc<Core>,
    memory: *mut u8,
    len: usize,
}

// SAFETY: page-locked memory may be used from any thread, and this value is its only owner.
unsafe impl Send for PinnedBuffer {}
// SAFETY: shared access only reads.
unsafe impl Sync for PinnedBuffer {}

impl PinnedBuffer {
    pub(crate) fn new(core: &Arc<Core>, bytes: usize) -> Result<Self> {
        core.refuse_capture("allocation of page-locked memory")?;
        if isize::try_from(bytes).is_err() {
            return Err(Error::SizeOverflow { what: "allocation of page-locked memory", count: bytes, size: 1 });
        }
        let mut memory = std::ptr::null_mut();
        if bytes > 0 {
            core.bind()?;
            // SAFETY: the context is current, and the pointer is to a live pointer.
            let code = unsafe { core.driver.table.cuMemHostAlloc(&mut memory, bytes, 0) };
            if code == driver::ERROR_OUT_OF_MEMORY {
                return Err(Error::OutOfHostMemory { asked: bytes });
            }
            core.driver.check("cuMemHostAlloc", code)?;
            // SAFETY: the driver just gave this many bytes.
            unsafe { memory.cast::<u8>().write_bytes(0, bytes) };
        }
        Ok(Self { core: Arc::clone(core), memory: memory.cast(), len: bytes })
    }
}

impl Deref for PinnedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: the memory is ours, initialised, and of this length.
        unsafe { std::slice::from_raw_parts(self.memory, self.len) }
    }
}

impl DerefMut for PinnedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        if self.len == 0 {
            return &mut [];
        }
        // SAFETY: the memory is ours, initialised, of this length, and borrowed for writing.
        unsafe { std::slice::from_raw_parts_mut(self.memory, self.len) }
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: the memory came from `PinnedBuffer::new`, and nobody can reach it any more.
            unsafe { self.core.free_pinned(self.memory) };
        }
    }
}

impl fmt::Debug for PinnedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PinnedBuffer({} bytes)", self.len)
    }
}
