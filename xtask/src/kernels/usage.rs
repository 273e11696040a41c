//! What a kernel uses of the machine.

use curt::KernelResources;
use serde::{Deserialize, Serialize};

/// What one kernel uses on one architecture. Where a source has several kernels, the most that any of them uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Usage {
    /// Registers of a thread.
    pub(super) registers: u32,
    /// Static shared memory of a block, in bytes. Dynamic shared memory is the engine's to choose and not known here.
    pub(super) shared_bytes: u32,
    /// Bytes of a thread's stack frame: arrays that were not kept in registers.
    pub(super) stack_bytes: u32,
    /// Bytes of a thread's spill stores and loads.
    pub(super) spill_bytes: u32,
}

impl Usage {
    /// The most that any of `kernels` uses; nothing where there is none, which is not the same as a kernel that uses nothing.
    pub(super) fn most(kernels: &[KernelResources]) -> Option<Self> {
        let of = |kernel: &KernelResources| Self {
            registers: kernel.registers,
            shared_bytes: kernel.static_shared_bytes,
            stack_bytes: kernel.stack_bytes,
            spill_bytes: kernel.spill_store_bytes + kernel.spill_load_bytes,
        };
        kernels.iter().map(of).reduce(|a, b| Self {
            registers: a.registers.max(b.registers),
            shared_bytes: a.shared_bytes.max(b.shared_bytes),
            stack_bytes: a.stack_bytes.max(b.stack_bytes),
            spill_bytes: a.spill_bytes.max(b.spill_bytes),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_kernels_the_greediest_counts() {
        let first =
            KernelResources { registers: 168, spill_store_bytes: 4, spill_load_bytes: 8, ..KernelResources::default() };
        let second =
            KernelResources { registers: 40, static_shared_bytes: 1024, stack_bytes: 16, ..KernelResources::default() };
        let most = Usage { registers: 168, shared_bytes: 1024, stack_bytes: 16, spill_bytes: 12 };
        assert_eq!(Usage::most(&[first, second]), Some(most));
        assert_eq!(Usage::most(&[]), None);
    }
}
