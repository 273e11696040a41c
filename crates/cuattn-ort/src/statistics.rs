//! Counts of what the plugin did, for tests of placement: that nothing was copied, that a node ran here.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A count of this process.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Relaxed);
    }
}

#[derive(Debug, Default)]
pub(crate) struct Statistics {
    /// Nodes that ran.
    pub(crate) executes: Count,
    /// Tensors copied from host to device.
    pub(crate) to_device: Count,
    /// Tensors copied from device to host.
    pub(crate) to_host: Count,
    /// Tensors copied on the device.
    pub(crate) on_device: Count,
    /// Allocations of device memory.
    pub(crate) allocations: Count,
    /// Streams made.
    pub(crate) streams: Count,
}

pub(crate) static STATISTICS: Statistics = Statistics {
    executes: Count(AtomicU64::new(0)),
    to_device: Count(AtomicU64::new(0)),
    to_host: Count(AtomicU64::new(0)),
    on_device: Count(AtomicU64::new(0)),
    allocations: Count(AtomicU64::new(0)),
    streams: Count(AtomicU64::new(0)),
};

/// Writes up to `count` of six counts of this process to `out`, and returns how many it wrote: nodes run, tensors copied
/// to the device, to the host and on the device, allocations of device memory, and streams made.
///
/// # Safety
///
/// `out` is for `count` integers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn CuattnStatistics(out: *mut u64, count: usize) -> usize {
    let all = &STATISTICS;
    let counts = [&all.executes, &all.to_device, &all.to_host, &all.on_device, &all.allocations, &all.streams];
    let written = counts.len().min(count);
    for (index, count) in counts.iter().take(written).enumerate() {
        // SAFETY: the caller promises that there is room.
        unsafe { out.add(index).write(count.0.load(Relaxed)) };
    }
    written
}
