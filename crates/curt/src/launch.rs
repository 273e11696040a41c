//! Launching kernels.

use std::ffi::c_void;

use bytemuck::NoUninit;

use crate::capabilities::Capabilities;
use crate::context::Core;
use crate::driver::{LaunchAttribute, LaunchConfig};
use crate::error::{Error, LaunchViolation, Result};
use crate::module::Function;

/// The largest grid: its first dimension, and its second and third.
const MAX_GRID: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];
/// The largest cluster of any device, if its function allows clusters that are not portable.
const MAX_CLUSTER_BLOCKS: u32 = 16;

/// The shape of a launch.
///
/// ```
/// use curt::Launch;
///
/// let launch = Launch::new([64, 1, 1], [256, 1, 1]).shared_bytes(16 << 10).cluster([2, 1, 1]).pdl();
/// assert_eq!(launch.cluster, Some([2, 1, 1]));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Launch {
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block.
    pub shared_bytes: u32,
    /// Blocks of a cluster (compute capability 9.0).
    pub cluster: Option<[u32; 3]>,
    /// Programmatic dependent launch: the kernel may start before the one before it in the stream has ended, and must wait with
    /// `griddepcontrol.wait` before it touches that one's results (compute capability 9.0).
    pub pdl: bool,
    /// All blocks run at the same time, so that they may wait for each other.
    pub cooperative: bool,
}

impl Launch {
    /// A launch with neither dynamic shared memory nor cluster.
    pub const fn new(grid: [u32; 3], block: [u32; 3]) -> Self {
        Self { grid, block, shared_bytes: 0, cluster: None, pdl: false, cooperative: false }
    }

    /// Sets the dynamic shared memory.
    #[must_use]
    pub const fn shared_bytes(mut self, bytes: u32) -> Self {
        self.shared_bytes = bytes;
        self
    }

    /// Sets the cluster.
    #[must_use]
    pub const fn cluster(mut self, cluster: [u32; 3]) -> Self {
        self.cluster = Some(cluster);
        self
    }

    /// Allows the kernel to start early.
    #[must_use]
    pub const fn pdl(mut self) -> Self {
        self.pdl = true;
        self
    }

    /// Asks for all blocks at the same time.
    #[must_use]
    pub const fn cooperative(mut self) -> Self {
        self.cooperative = true;
        self
    }

    /// The first rule that this launch breaks on such a device, for a kernel with these limits.
    fn violation(&self, device: &Capabilities, threads_per_block: u32, shared_limit: u32) -> Option<LaunchViolation> {
        let zero = |dims: [u32; 3]| dims.contains(&0);
        if zero(self.grid) {
            return Some(LaunchViolation::ZeroDimension { what: "grid", dims: self.grid });
        }
        if zero(self.block) {
            return Some(LaunchViolation::ZeroDimension { what: "block", dims: self.block });
        }
        if self.grid.iter().zip(MAX_GRID).any(|(&asked, limit)| asked > limit) {
            return Some(LaunchViolation::GridTooLarge { grid: self.grid });
        }
        let threads = volume(self.block);
        if threads > u64::from(threads_per_block) || self.block[2] > 64 {
            return Some(LaunchViolation::BlockTooLarge { block: self.block, threads, limit: threads_per_block });
        }
        if self.shared_bytes > shared_limit {
            return Some(LaunchViolation::SharedTooLarge { asked: self.shared_bytes, limit: shared_limit });
        }
        let hopper = device.compute_capability.0 >= 9;
        if self.pdl && !hopper {
            return Some(LaunchViolation::NeedsHopper {
                what: "programmatic dependent launch",
                have: device.compute_capability,
            });
        }
        let cluster = self.cluster?;
        if !hopper {
            return Some(LaunchViolation::NeedsHopper { what: "a cluster", have: device.compute_capability });
        }
        if zero(cluster) {
            return Some(LaunchViolation::ZeroDimension { what: "cluster", dims: cluster });
        }
        if self.grid.iter().zip(cluster).any(|(blocks, of)| blocks % of != 0) {
            return Some(LaunchViolation::PartialCluster { grid: self.grid, cluster });
        }
        let blocks = volume(cluster);
        (blocks > u64::from(MAX_CLUSTER_BLOCKS)).then_some(LaunchViolation::ClusterTooLarge {
            cluster,
            blocks,
            limit: MAX_CLUSTER_BLOCKS,
        })
    }
}

/// The product of three dimensions, or the largest number where it has no room.
fn volume(dims: [u32; 3]) -> u64 {
    dims.iter().fold(1u64, |product, &dim| product.saturating_mul(u64::from(dim)))
}

/// The arguments that a list holds without the heap.
const INLINE_ARGUMENTS: usize = 16;

/// References to a kernel's arguments, in order.
///
/// An argument is anything of plain old data with the layout of the kernel's parameter: an ABI struct, a number, an address, a
/// [`TensorMap`](crate::TensorMap). It is copied by the launch and need not live longer.
///
/// ```
/// use curt::KernelArgs;
///
/// let (length, factor, address) = (1024u32, 0.5f32, 0x1000u64);
/// let arguments = KernelArgs::new().arg(&address).arg(&factor).arg(&length);
/// assert_eq!(arguments.len(), 3);
/// ```
///
/// What has no layout of its own, or does not live as long as the list, is refused by the compiler:
///
/// ```compile_fail,E0277
/// let text = String::from("not plain data");
/// let arguments = curt::KernelArgs::new().arg(&text);
/// ```
///
/// ```compile_fail,E0716
/// let arguments = curt::KernelArgs::new().arg(&u64::from(3u32));
/// assert_eq!(arguments.len(), 1);
/// ```
#[derive(Clone, Debug)]
pub struct KernelArgs<'a> {
    inline: [*const c_void; INLINE_ARGUMENTS],
    count: usize,
    /// All of them, once there are more than the array holds.
    spilled: Vec<*const c_void>,
    borrowed: std::marker::PhantomData<&'a ()>,
}

impl<'a> KernelArgs<'a> {
    /// No arguments.
    pub const fn new() -> Self {
        Self {
            inline: [std::ptr::null(); INLINE_ARGUMENTS],
            count: 0,
            spilled: Vec::new(),
            borrowed: std::marker::PhantomData,
        }
    }

    /// Adds an argument. Takes heap memory from the seventeenth on.
    #[must_use]
    #[inline]
    pub fn arg<T: NoUninit>(mut self, value: &'a T) -> Self {
        let pointer = std::ptr::from_ref(value).cast::<c_void>();
        if self.count < INLINE_ARGUMENTS {
            self.inline[self.count] = pointer;
        } else {
            if self.spilled.is_empty() {
                self.spilled.extend_from_slice(&self.inline);
            }
            self.spilled.push(pointer);
        }
        self.count += 1;
        self
    }

    /// How many there are.
    pub const fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    #[inline]
    fn as_ptr(&self) -> *const *const c_void {
        if self.spilled.is_empty() { self.inline.as_ptr() } else { self.spilled.as_ptr() }
    }
}

impl Default for KernelArgs<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl Function {
    /// # Safety
    ///
    /// As [`Runtime::launch`](crate::Runtime::launch).
    #[inline]
    pub(crate) unsafe fn launch(&self, core: &Core, launch: &Launch, arguments: &KernelArgs<'_>) -> Result<()> {
        let threads_per_block = self.attributes().threads_per_block;
        if let Some(why) = launch.violation(&core.capabilities, threads_per_block, self.shared_limit()) {
            return Err(self.refuse(why));
        }
        let mut attributes = [LaunchAttribute::NONE; 3];
        let mut count = 0;
        let mut push = |attribute| {
            attributes[count] = attribute;
            count += 1;
        };
        if let Some(cluster) = launch.cluster {
            push(LaunchAttribute::cluster(cluster));
        }
        if launch.pdl {
            push(LaunchAttribute::programmatic_stream_serialization());
        }
        if launch.cooperative {
            push(LaunchAttribute::cooperative());
        }
        let config = LaunchConfig {
            grid: launch.grid,
            block: launch.block,
            shared_bytes: launch.shared_bytes,
            stream: core.stream,
            attributes: attributes.as_ptr(),
            attribute_count: count as u32,
        };
        core.bind()?;
        // SAFETY: function and stream are live, the configuration and its attributes have the driver's layout, and the caller
        // vouches for the arguments, which the driver only reads.
        let code = unsafe {
            let pointers = arguments.as_ptr().cast_mut().cast::<*mut c_void>();
            core.driver.table.cuLaunchKernelEx(&config, self.handle, pointers, std::ptr::null_mut())
        };
        core.driver.check("cuLaunchKernelEx", code)
    }
}

/// A launch for a kernel that reduces each of `rows` rows of `row_len` elements with one block.
///
/// The block is a power of two, as a tree reduction wants it: at least a warp, at most what the device allows, and no larger than the row
/// needs. `shared_bytes_per_thread` of dynamic shared memory go to each thread.
///
/// # Errors
///
/// [`Error::InvalidLaunch`] where there are no rows or more rows than blocks of a grid, or a block of the device has not enough shared
/// memory.
///
/// ```
/// use curt::{Capabilities, reduction_launch_config};
///
/// let launch = reduction_launch_config(&Capabilities::h200(), 4096, 300, 4)?;
/// assert_eq!((launch.grid, launch.block, launch.shared_bytes), ([4096, 1, 1], [512, 1, 1], 2048));
/// # Ok::<(), curt::Error>(())
/// ```
pub fn reduction_launch_config(
    device: &Capabilities,
    rows: usize,
    row_len: usize,
    shared_bytes_per_thread: usize,
) -> Result<Launch> {
    const WARP: u32 = 32;
    let refuse = |why| Error::InvalidLaunch { kernel: "row reduction".to_owned(), why };
    if rows == 0 {
        return Err(refuse(LaunchViolation::ZeroDimension { what: "grid", dims: [0, 1, 1] }));
    }
    let grid = u32::try_from(rows).ok().filter(|&rows| rows <= MAX_GRID[0]);
    let grid = grid.ok_or_else(|| refuse(LaunchViolation::TooManyRows { rows }))?;
    // The largest power of two that the device allows.
    let largest = 1 << device.threads_per_block.max(WARP).ilog2();
    let wanted = u32::try_from(row_len).unwrap_or(largest).min(largest);
    let block = wanted.next_power_of_two().clamp(WARP, largest);
    let limit = device.shared_bytes_per_block;
    let asked = shared_bytes_per_thread.saturating_mul(block as usize);
    if asked > limit {
        return Err(refuse(LaunchViolation::SharedBeyondDevice { asked, fixed: 0, limit }));
    }
    Ok(Launch::new([grid, 1, 1], [block, 1, 1]).shared_bytes(asked as u32))
}

#[cfg(test)]
mod tests;
