//! Where kernels run: a GPU's stream, or the host.

mod gpu;
mod host;

use std::alloc;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use cuattn::curt::{Capabilities, DeviceBuffer, DevicePtr, Runtime};
use cuattn::{Policy, Work, WorkspaceSize};

use crate::error::Fault;
use crate::recipe::{Memory, Place, Recipe};
use crate::{Reason, TensorMut, TensorView};
use gpu::{Gpu, GpuPlan};

/// Alignment of scratch tensors, and of workspaces.
const ALIGN: usize = 256;

/// Where kernels run. Cheap to clone; a clone is the same device.
#[derive(Clone, Debug)]
pub struct Device(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Host,
    Gpu(Arc<Gpu>),
}

impl Device {
    /// The host: every operator in float64, on all cores. For tests of graphs and glue; it is slow.
    pub const fn host() -> Self {
        Self(Kind::Host)
    }

    /// A GPU's stream. Kernels keep their plans for each such device, so make one a stream, and clone it.
    pub fn gpu(runtime: Runtime, policy: Policy) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let identity = NEXT.fetch_add(1, Relaxed);
        Self(Kind::Gpu(Arc::new(Gpu { runtime, policy, identity })))
    }

    /// Whether this is the host.
    pub const fn is_host(&self) -> bool {
        matches!(self.0, Kind::Host)
    }

    /// The GPU's runtime.
    pub fn runtime(&self) -> Option<&Runtime> {
        match &self.0 {
            Kind::Host => None,
            Kind::Gpu(gpu) => Some(&gpu.runtime),
        }
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        match &self.0 {
            Kind::Host => "the host",
            Kind::Gpu(gpu) => &gpu.runtime.capabilities().name,
        }
    }

    pub(crate) fn identity(&self) -> u64 {
        match &self.0 {
            Kind::Host => 0,
            Kind::Gpu(gpu) => gpu.identity,
        }
    }

    /// Whether it would follow a recipe, without compiling anything.
    pub(crate) fn consider(&self, recipe: &Recipe) -> Result<(), Reason> {
        match &self.0 {
            Kind::Host => Ok(()),
            Kind::Gpu(gpu) => gpu::consider(gpu.runtime.capabilities(), gpu.policy, recipe),
        }
    }

    pub(crate) fn prepare(&self, recipe: Arc<Recipe>) -> Result<Prepared, Fault> {
        let mut bytes = 0usize;
        let mut scratch = Vec::with_capacity(recipe.scratch.len());
        for &size in &recipe.scratch {
            scratch.push((bytes, size));
            bytes = bytes.saturating_add(size.next_multiple_of(ALIGN));
        }
        let gpu = match &self.0 {
            Kind::Host => None,
            Kind::Gpu(gpu) => Some(GpuPlan::new(gpu, &recipe)?),
        };
        let of_plan = gpu.as_ref().map(GpuPlan::workspace).unwrap_or_default();
        let begin = bytes.next_multiple_of(of_plan.align.max(1));
        let plan_workspace = (begin, of_plan.bytes);
        let bytes = if of_plan.bytes == 0 { bytes } else { begin.saturating_add(of_plan.bytes) };
        let size = WorkspaceSize { bytes, align: ALIGN.max(of_plan.align) };
        Ok(Prepared { recipe, scratch, plan_workspace, size, gpu })
    }

    pub(crate) fn allocate(&self, size: WorkspaceSize) -> Result<Workspace, Fault> {
        match &self.0 {
            _ if size.bytes == 0 => Ok(Workspace::None),
            Kind::Host => HostMemory::new(size).map(Workspace::Host),
            Kind::Gpu(gpu) => Ok(Workspace::Gpu(gpu.runtime.alloc(size.bytes)?)),
        }
    }

    /// # Safety
    ///
    /// As [`crate::Kernel::execute_with_workspace`]; tensors and workspace are as large as the recipe wants.
    pub(crate) unsafe fn run(&self, prepared: &Prepared, memories: &Memories<'_>) -> Result<(), Fault> {
        match &prepared.gpu {
            // SAFETY: as the caller promises.
            None => unsafe { host::run(&prepared.recipe, memories) },
            Some(plan) => {
                let (begin, bytes) = prepared.plan_workspace;
                let workspace = if bytes == 0 { DevicePtr::NULL } else { memories.workspace.slice(begin, bytes)? };
                // SAFETY: as the caller promises.
                unsafe { plan.run(&prepared.recipe, memories, workspace) }
            }
        }
    }
}

/// A recipe made ready for a device.
pub(crate) struct Prepared {
    recipe: Arc<Recipe>,
    /// Offset and bytes of each scratch tensor within the workspace.
    scratch: Vec<(usize, usize)>,
    /// Offset and bytes of the plan's own workspace.
    plan_workspace: (usize, usize),
    size: WorkspaceSize,
    gpu: Option<GpuPlan>,
}

impl Prepared {
    pub(crate) fn recipe(&self) -> &Recipe {
        &self.recipe
    }

    pub(crate) const fn workspace(&self) -> WorkspaceSize {
        self.size
    }

    pub(crate) fn scratch(&self) -> &[(usize, usize)] {
        &self.scratch
    }

    pub(crate) fn work(&self) -> Work {
        self.recipe.attend.work()
    }
}

/// The memory of one execute.
pub(crate) struct Memories<'a> {
    pub(crate) inputs: &'a [Option<TensorView<'a>>],
    pub(crate) outputs: &'a [Option<TensorMut>],
    pub(crate) workspace: DevicePtr,
    pub(crate) scratch: &'a [(usize, usize)],
}

impl Memories<'_> {
    /// A tensor's memory, from its first byte to the end of what holds it.
    pub(crate) fn resolve(&self, place: Place) -> Result<DevicePtr, Fault> {
        let whole = match place.memory {
            Memory::Input(index) => self.inputs.get(index).copied().flatten().map(|view| view.data),
            Memory::Output(index) => self.outputs.get(index).copied().flatten().map(|output| output.data),
            Memory::Scratch(index) => match self.scratch[index] {
                (_, 0) => Some(DevicePtr::NULL),
                (begin, bytes) => Some(self.workspace.slice(begin, bytes)?),
            },
        }
        .unwrap_or_default();
        // A tensor without elements may begin anywhere.
        let offset = place.offset.min(whole.len());
        Ok(whole.slice(offset, whole.len() - offset)?)
    }

    pub(crate) fn resolve_if(&self, place: Option<Place>) -> Result<Option<DevicePtr>, Fault> {
        place.map(|place| self.resolve(place)).transpose()
    }
}

/// Scratch memory of one execute.
pub(crate) enum Workspace {
    None,
    Host(HostMemory),
    Gpu(DeviceBuffer),
}

impl Workspace {
    pub(crate) fn ptr(&self) -> DevicePtr {
        match self {
            Self::None => DevicePtr::NULL,
            Self::Host(memory) => memory.ptr(),
            Self::Gpu(buffer) => buffer.ptr(),
        }
    }
}

/// Aligned host memory.
pub(crate) struct HostMemory {
    address: std::ptr::NonNull<u8>,
    layout: alloc::Layout,
}

impl HostMemory {
    fn new(size: WorkspaceSize) -> Result<Self, Fault> {
        let failed = || Fault::Refused(Reason::Engine(format!("the host has no {} bytes for a workspace", size.bytes)));
        let layout = alloc::Layout::from_size_align(size.bytes, size.align).map_err(|_| failed())?;
        // SAFETY: workspaces of 0 bytes are not allocated.
        let address = unsafe { alloc::alloc_zeroed(layout) };
        Ok(Self { address: std::ptr::NonNull::new(address).ok_or_else(failed)?, layout })
    }

    fn ptr(&self) -> DevicePtr {
        DevicePtr::new(self.address.as_ptr().expose_provenance() as u64, self.layout.size())
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        // SAFETY: it was allocated with this layout, and nobody uses it any more.
        unsafe { alloc::dealloc(self.address.as_ptr(), self.layout) };
    }
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Capabilities { name, .. } = self.runtime.capabilities();
        f.debug_struct("Gpu").field("name", name).field("policy", &self.policy).finish_non_exhaustive()
    }
}
