//! The allocator: a memory pool of the driver that belongs to one runtime.
//!
//! The device's default pool gives memory back to the system at every synchronisation, and the next allocation then costs milliseconds.
//! Ours keeps a bounded amount, and is nobody else's: what the host application does with the default pool does not touch it.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use cudarc::driver::sys::{CUdevice, CUmemoryPool};

use super::DevicePtr;
use crate::context::Core;
use crate::driver::{self, Driver, PoolProperties, device_attribute, pool_attribute};
use crate::error::{Error, Result};

/// Counts of a runtime's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// Allocations made, without those of zero bytes.
    pub allocations: u64,
    /// Allocations for which the pool had memory. Zero on a device without pools.
    pub pool_hits: u64,
    /// Bytes that the pool holds and nobody uses.
    pub retained_bytes: usize,
    /// Bytes in use, as asked for.
    pub used_bytes: usize,
    /// The most bytes that were in use at once.
    pub peak_used_bytes: usize,
}

#[derive(Debug)]
pub(crate) struct Allocator {
    /// None on a device without memory pools, where allocation is not in stream order.
    pool: Option<CUmemoryPool>,
    reserved: AtomicU64,
    allocations: AtomicU64,
    pool_hits: AtomicU64,
    used: AtomicUsize,
    peak: AtomicUsize,
    /// Freed while the stream was being captured: a free would have become part of the graph.
    deferred: Mutex<Vec<DevicePtr>>,
    /// The same of page-locked host memory, by address: freeing it waits for the device.
    deferred_pinned: Mutex<Vec<usize>>,
}

impl Allocator {
    /// An allocator of the current context's device.
    pub(crate) fn new(driver: &Driver, device: CUdevice, retained_bytes: u64) -> Result<Self> {
        let supported = driver.device_attribute(device, device_attribute::MEMORY_POOLS_SUPPORTED)? != 0;
        let pool = if supported { Some(create_pool(driver, device, retained_bytes)?) } else { None };
        Ok(Self {
            pool,
            reserved: AtomicU64::new(0),
            allocations: AtomicU64::new(0),
            pool_hits: AtomicU64::new(0),
            used: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            deferred: Mutex::new(Vec::new()),
            deferred_pinned: Mutex::new(Vec::new()),
        })
    }

    fn pool_attribute(&self, driver: &Driver, attribute: i32) -> u64 {
        let Some(pool) = self.pool else { return 0 };
        let mut value = 0u64;
        // SAFETY: the pool is live, and these attributes are 64-bit integers.
        let code = unsafe { driver.table.cuMemPoolGetAttribute(pool, attribute, (&raw mut value).cast::<c_void>()) };
        if code == driver::SUCCESS { value } else { 0 }
    }

    fn count(&self, driver: &Driver, bytes: usize) {
        self.allocations.fetch_add(1, Relaxed);
        let used = self.used.fetch_add(bytes, Relaxed) + bytes;
        self.peak.fetch_max(used, Relaxed);
        if self.pool.is_some() {
            let reserved = self.pool_attribute(driver, pool_attribute::RESERVED_MEM_CURRENT);
            if self.reserved.swap(reserved, Relaxed) >= reserved {
                self.pool_hits.fetch_add(1, Relaxed);
            }
        }
    }

    pub(crate) fn stats(&self, driver: &Driver) -> MemoryStats {
        let reserved = self.pool_attribute(driver, pool_attribute::RESERVED_MEM_CURRENT);
        let in_use = self.pool_attribute(driver, pool_attribute::USED_MEM_CURRENT);
        MemoryStats {
            allocations: self.allocations.load(Relaxed),
            pool_hits: self.pool_hits.load(Relaxed),
            retained_bytes: usize::try_from(reserved.saturating_sub(in_use)).unwrap_or(usize::MAX),
            used_bytes: self.used.load(Relaxed),
            peak_used_bytes: self.peak.load(Relaxed),
        }
    }

    /// Destroys the pool. Memory that is still allocated from it lives on until it is freed.
    pub(crate) fn destroy(&mut self, driver: &Driver) {
        if let Some(pool) = self.pool.take() {
            // SAFETY: the pool is live, ours, and not used again.
            unsafe { driver.table.cuMemPoolDestroy(pool) };
        }
    }
}

fn create_pool(driver: &Driver, device: CUdevice, retained_bytes: u64) -> Result<CUmemoryPool> {
    let properties = PoolProperties::of_device(device);
    let mut pool = std::ptr::null_mut();
    // SAFETY: the properties have the driver's layout, and the pointer is to a live handle.
    driver.check("cuMemPoolCreate", unsafe { driver.table.cuMemPoolCreate(&mut pool, &properties) })?;
    let mut threshold = retained_bytes;
    // SAFETY: the pool was just made, and the threshold is a 64-bit integer.
    let code = unsafe {
        let value = (&raw mut threshold).cast::<c_void>();
        driver.table.cuMemPoolSetAttribute(pool, pool_attribute::RELEASE_THRESHOLD, value)
    };
    driver.check("cuMemPoolSetAttribute", code).inspect_err(|_| {
        // SAFETY: the pool is ours and unused.
        unsafe { driver.table.cuMemPoolDestroy(pool) };
    })?;
    Ok(pool)
}

impl Core {
    /// Allocates in stream order. The context need not be current.
    pub(crate) fn allocate(&self, bytes: usize) -> Result<DevicePtr> {
        self.refuse_capture("allocation of device memory")?;
        if bytes == 0 {
            return Ok(DevicePtr::NULL);
        }
        if isize::try_from(bytes).is_err() {
            return Err(Error::SizeOverflow { what: "allocation of device memory", count: bytes, size: 1 });
        }
        self.bind()?;
        self.free_deferred();
        let (mut address, mut code) = self.try_allocate(bytes);
        if code == driver::ERROR_OUT_OF_MEMORY {
            // What the pool retains may be in pieces that are too small: give it back, and ask once more.
            self.give_back_retained(0);
            (address, code) = self.try_allocate(bytes);
        }
        if code == driver::ERROR_OUT_OF_MEMORY {
            let (free, total) = self.memory_info().unwrap_or((0, self.capabilities.memory_bytes));
            return Err(Error::OutOfMemory { asked: bytes, free, total });
        }
        self.driver.check("cuMemAllocFromPoolAsync", code)?;
        self.allocator.count(self.driver, bytes);
        Ok(DevicePtr::new(address, bytes))
    }

    fn try_allocate(&self, bytes: usize) -> (u64, driver::CuResult) {
        let mut address = 0;
        let table = &self.driver.table;
        let code = match self.allocator.pool {
            // SAFETY: pool and stream are live, and the pointer is to a live address.
            Some(pool) => unsafe { table.cuMemAllocFromPoolAsync(&mut address, bytes, pool, self.stream) },
            // SAFETY: the context is current, and the pointer is to a live address.
            None => unsafe { table.cuMemAlloc_v2(&mut address, bytes) },
        };
        (address, code)
    }

    /// Frees in stream order.
    ///
    /// # Safety
    ///
    /// `memory` came from [`Core::allocate`] of this core, is not freed twice, and no work enqueued later uses it.
    pub(crate) unsafe fn free(&self, memory: DevicePtr) -> Result<()> {
        if memory.is_null() {
            return Ok(());
        }
        self.allocator.used.fetch_sub(memory.len(), Relaxed);
        if self.is_capturing().unwrap_or(false) {
            self.allocator.deferred.lock().unwrap_or_else(PoisonError::into_inner).push(memory);
            return Ok(());
        }
        self.bind()?;
        self.free_deferred();
        self.free_now(memory)
    }

    fn free_now(&self, memory: DevicePtr) -> Result<()> {
        let table = &self.driver.table;
        match self.allocator.pool {
            Some(_) => {
                // SAFETY: `free` was promised that the memory is ours, live and not used by later work.
                self.driver.check("cuMemFreeAsync", unsafe { table.cuMemFreeAsync(memory.address(), self.stream) })
            }
            None => {
                // SAFETY: as above; this call waits for the device.
                self.driver.check("cuMemFree", unsafe { table.cuMemFree_v2(memory.address()) })
            }
        }
    }

    /// Frees page-locked memory, after the capture where one is under way.
    ///
    /// # Safety
    ///
    /// `memory` came from cuMemHostAlloc, is not freed twice, and is not used again.
    pub(crate) unsafe fn free_pinned(&self, memory: *mut u8) {
        let mut deferred = self.allocator.deferred_pinned.lock().unwrap_or_else(PoisonError::into_inner);
        deferred.push(memory.expose_provenance());
        drop(deferred);
        if !self.is_capturing().unwrap_or(true) {
            self.free_deferred();
        }
    }

    /// Frees what was dropped during a capture that has ended. The context is current and nothing is being captured.
    pub(crate) fn free_deferred(&self) {
        let deferred = std::mem::take(&mut *self.allocator.deferred.lock().unwrap_or_else(PoisonError::into_inner));
        for memory in deferred {
            // A lost context frees everything with itself.
            let _ = self.free_now(memory);
        }
        let pinned =
            std::mem::take(&mut *self.allocator.deferred_pinned.lock().unwrap_or_else(PoisonError::into_inner));
        for address in pinned {
            // SAFETY: `free_pinned` was promised that it is ours and unused; the call waits for copies under way.
            unsafe { self.driver.table.cuMemFreeHost(std::ptr::with_exposed_provenance_mut(address)) };
        }
    }

    /// Gives unused memory of the pool beyond `keep` bytes back to the system, after the stream has passed all frees.
    pub(crate) fn give_back_retained(&self, keep: usize) {
        let Some(pool) = self.allocator.pool else { return };
        // SAFETY: the stream and the pool are live.
        unsafe {
            self.driver.table.cuStreamSynchronize(self.stream);
            self.driver.table.cuMemPoolTrimTo(pool, keep);
        }
    }

    /// Free and total bytes of the device.
    pub(crate) fn memory_info(&self) -> Result<(usize, usize)> {
        self.bind()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both pointers are to live integers.
        self.driver.check("cuMemGetInfo", unsafe { self.driver.table.cuMemGetInfo_v2(&mut free, &mut total) })?;
        Ok((free, total))
    }
}
