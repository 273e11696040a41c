//! Owned device memory.

use std::fmt;
use std::sync::Arc;

use bytemuck::{AnyBitPattern, Pod};

use super::DevicePtr;
use crate::context::Core;
use crate::error::{Error, Result};

/// Device memory that is freed in stream order when dropped. Its first byte is aligned to 256.
///
/// Raw bytes: what they mean is up to whoever launches kernels on them.
pub struct DeviceBuffer {
    core: Arc<Core>,
    memory: DevicePtr,
}

impl DeviceBuffer {
    pub(crate) fn new(core: &Arc<Core>, bytes: usize) -> Result<Self> {
        Ok(Self { memory: core.allocate(bytes)?, core: Arc::clone(core) })
    }

    /// Address and length, for launches. Valid until the buffer is dropped, and, as the memory is freed in stream order, for all work
    /// that was enqueued on the runtime's stream before.
    pub const fn ptr(&self) -> DevicePtr {
        self.memory
    }

    /// Length in bytes.
    pub const fn len(&self) -> usize {
        self.memory.len()
    }

    /// Whether it has no bytes.
    pub const fn is_empty(&self) -> bool {
        self.memory.is_empty()
    }

    /// Sets every byte.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`] where the driver refuses.
    pub fn fill(&self, value: u8) -> Result<()> {
        // SAFETY: the memory is ours and live.
        unsafe { self.core.memset(self.memory, value) }
    }

    /// Waits for the stream and copies everything to the host.
    ///
    /// # Errors
    ///
    /// [`Error::PartialElement`] where the length is not a whole number of `T`, [`Error::Capturing`] during capture, or what the
    /// driver says.
    pub fn read<T: AnyBitPattern + Pod>(&self) -> Result<Vec<T>> {
        let size = size_of::<T>();
        if size == 0 || !self.len().is_multiple_of(size) {
            return Err(Error::PartialElement { bytes: self.len(), size });
        }
        let mut host = vec![T::zeroed(); self.len() / size];
        // SAFETY: the memory is ours and live.
        unsafe { self.core.dtoh(self.memory, &mut host) }?;
        Ok(host)
    }

    /// Copies `data` to the first bytes, and returns when it may be changed again.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] where it is longer, [`Error::Capturing`] during capture, or what the driver says.
    pub fn write<T: bytemuck::NoUninit>(&self, data: &[T]) -> Result<()> {
        // SAFETY: the memory is ours and live.
        unsafe { self.core.htod(data, self.memory) }
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        // SAFETY: the memory came from this core's `allocate`, and nobody can reach it any more.
        if let Err(error) = unsafe { self.core.free(self.memory) } {
            tracing::debug!("{} bytes were not freed: {error}", self.memory.len());
        }
    }
}

impl fmt::Debug for DeviceBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DeviceBuffer").field(&self.memory).finish()
    }
}
