//! An address and a length, owned by nobody here.

use std::fmt;

use crate::error::{Error, Result};

/// A range of device memory, by address and length in bytes. It owns nothing and promises nothing.
///
/// ```
/// use curt::DevicePtr;
///
/// let memory = DevicePtr::new(0x1000, 64);
/// assert_eq!(memory.slice(16, 16)?.address(), 0x1010);
/// assert!(memory.slice(60, 8).is_err());
/// # Ok::<(), curt::Error>(())
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct DevicePtr {
    address: u64,
    len: usize,
}

impl DevicePtr {
    /// No memory.
    pub const NULL: Self = Self { address: 0, len: 0 };

    /// `len` bytes at `address`.
    pub const fn new(address: u64, len: usize) -> Self {
        Self { address, len }
    }

    /// The address on the device.
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// The length in bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether the range holds no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the address is zero.
    pub const fn is_null(&self) -> bool {
        self.address == 0
    }

    /// Whether the address is a multiple of `alignment`, which must not be zero.
    pub const fn is_aligned(&self, alignment: usize) -> bool {
        self.address.is_multiple_of(alignment as u64)
    }

    /// `len` bytes from `offset` on.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] where they reach past the end.
    pub fn slice(&self, offset: usize, len: usize) -> Result<Self> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(Self { address: self.address.wrapping_add(offset as u64), len }),
            _ => Err(Error::OutOfRange { what: "slice of device memory", offset, len, available: self.len }),
        }
    }

    /// Whether two ranges share a byte.
    pub const fn overlaps(&self, other: &Self) -> bool {
        !self.is_empty()
            && !other.is_empty()
            && self.address < other.address.saturating_add(other.len as u64)
            && other.address < self.address.saturating_add(self.len as u64)
    }
}

impl fmt::Debug for DevicePtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DevicePtr({:#x}, {} bytes)", self.address, self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_checked() {
        let memory = DevicePtr::new(0x100, 10);
        assert_eq!(memory.slice(0, 10).unwrap(), memory);
        assert_eq!(memory.slice(10, 0).unwrap(), DevicePtr::new(0x10a, 0));
        for (offset, len) in [(0, 11), (11, 0), (1, usize::MAX), (usize::MAX, 2)] {
            assert!(memory.slice(offset, len).is_err(), "{offset} {len}");
        }
        insta::assert_snapshot!(
            memory.slice(8, 4).unwrap_err(),
            @"slice of device memory: bytes 8..12 reach past the end of 10 bytes"
        );
    }

    #[test]
    fn overlap_needs_a_shared_byte() {
        let memory = DevicePtr::new(0x100, 16);
        assert!(memory.overlaps(&DevicePtr::new(0x10f, 1)));
        assert!(!memory.overlaps(&DevicePtr::new(0x110, 1)));
        assert!(!memory.overlaps(&DevicePtr::new(0x108, 0)));
    }
}
