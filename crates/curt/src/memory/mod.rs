//! Device memory, allocated in stream order from a pool of our own, and the copies to and from it.

mod buffer;
mod copy;
mod pinned;
mod pointer;
mod pool;

pub use self::buffer::DeviceBuffer;
pub use self::pinned::PinnedBuffer;
pub use self::pointer::DevicePtr;
pub use self::pool::MemoryStats;

pub(crate) use self::pool::Allocator;
