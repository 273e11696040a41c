//! What a device can do, asked once when a runtime is made.

use cudarc::driver::sys::CUdevice;

use crate::arch::Arch;
use crate::driver::{Driver, device_attribute};
use crate::error::Result;

/// What a device can do.
///
/// A plain value, so that choices which depend on the device can be tested without one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The device's name.
    pub name: String,
    /// Compute capability, such as (9, 0).
    pub compute_capability: (u32, u32),
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Shared memory that a block can opt in to.
    pub shared_bytes_per_block: usize,
    /// Shared memory of a multiprocessor.
    pub shared_bytes_per_multiprocessor: usize,
    /// The most threads that a block can have.
    pub threads_per_block: u32,
    /// 32-bit registers of a multiprocessor.
    pub registers_per_multiprocessor: u32,
    /// Size of the level 2 cache.
    pub l2_bytes: usize,
    /// Peak clock of the multiprocessors.
    pub clock_khz: u32,
    /// Peak clock of the memory.
    pub memory_clock_khz: u32,
    /// Device memory.
    pub memory_bytes: usize,
    /// The newest CUDA version that the driver knows.
    pub driver_version: (u32, u32),
}

impl Capabilities {
    /// What to compile for.
    pub const fn arch(&self) -> Arch {
        Arch::for_compute_capability(self.compute_capability.0, self.compute_capability.1)
    }

    /// An H200 (SXM, 141 GB).
    pub fn h200() -> Self {
        Self {
            name: "NVIDIA H200".to_owned(),
            compute_capability: (9, 0),
            multiprocessors: 132,
            shared_bytes_per_block: 232_448,
            shared_bytes_per_multiprocessor: 233_472,
            threads_per_block: 1024,
            registers_per_multiprocessor: 65_536,
            l2_bytes: 60 << 20,
            clock_khz: 1_980_000,
            memory_clock_khz: 3_201_000,
            memory_bytes: 150_109_880_320,
            driver_version: (13, 0),
        }
    }

    /// An A100 (SXM, 80 GB).
    pub fn a100() -> Self {
        Self {
            name: "NVIDIA A100-SXM4-80GB".to_owned(),
            compute_capability: (8, 0),
            multiprocessors: 108,
            shared_bytes_per_block: 166_912,
            shared_bytes_per_multiprocessor: 167_936,
            threads_per_block: 1024,
            registers_per_multiprocessor: 65_536,
            l2_bytes: 40 << 20,
            clock_khz: 1_410_000,
            memory_clock_khz: 1_593_000,
            memory_bytes: 85_094_825_984,
            driver_version: (13, 0),
        }
    }

    /// A GeForce RTX 4090.
    pub fn rtx4090() -> Self {
        Self {
            name: "NVIDIA GeForce RTX 4090".to_owned(),
            compute_capability: (8, 9),
            multiprocessors: 128,
            shared_bytes_per_block: 101_376,
            shared_bytes_per_multiprocessor: 102_400,
            threads_per_block: 1024,
            registers_per_multiprocessor: 65_536,
            l2_bytes: 72 << 20,
            clock_khz: 2_520_000,
            memory_clock_khz: 10_501_000,
            memory_bytes: 25_393_692_672,
            driver_version: (13, 0),
        }
    }

    pub(crate) fn query(driver: &Driver, device: CUdevice) -> Result<Self> {
        let attribute = |attribute| driver.device_attribute(device, attribute);
        Ok(Self {
            name: driver.device_name(device)?,
            compute_capability: (
                attribute(device_attribute::COMPUTE_CAPABILITY_MAJOR)?,
                attribute(device_attribute::COMPUTE_CAPABILITY_MINOR)?,
            ),
            multiprocessors: attribute(device_attribute::MULTIPROCESSOR_COUNT)?,
            shared_bytes_per_block: attribute(device_attribute::MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as usize,
            shared_bytes_per_multiprocessor: attribute(device_attribute::MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?
                as usize,
            threads_per_block: attribute(device_attribute::MAX_THREADS_PER_BLOCK)?,
            registers_per_multiprocessor: attribute(device_attribute::MAX_REGISTERS_PER_MULTIPROCESSOR)?,
            l2_bytes: attribute(device_attribute::L2_CACHE_SIZE)? as usize,
            clock_khz: attribute(device_attribute::CLOCK_RATE)?,
            memory_clock_khz: attribute(device_attribute::MEMORY_CLOCK_RATE)?,
            memory_bytes: driver.device_memory(device)?,
            driver_version: driver.version,
        })
    }
}
