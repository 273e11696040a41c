//! What a runtime sees of an operator: a factory that claims nodes, and kernels that run them.

use cuattn::curt::DevicePtr;

use crate::{AttributeKind, Device, ExecuteError, InputInfo, Node, OutputSpec, Reason, TensorMut, TensorView};

/// How long scratch memory is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Lifetime {
    /// From the enqueueing of one execute until the stream has passed it. The next node may use the same memory.
    StepScoped,
}

/// What memory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Role {
    /// Scratch: nothing in it matters before or after.
    Workspace,
}

/// The scratch memory of one execute: exactly what is used, 0 bytes where nothing is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WorkspaceRequirement {
    /// Bytes.
    pub bytes: usize,
    /// Alignment of the first byte.
    pub align: usize,
    /// How long it is needed.
    pub lifetime: Lifetime,
    /// What it is for.
    pub role: Role,
}

/// Whether the **next** execute with the same shapes on the same device can be captured into a CUDA graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CaptureSupport {
    /// Yes: nothing is compiled, allocated, waited for or read back.
    Ready,
    /// [`Kernel::execute_with_workspace`] can; [`Kernel::execute`] allocates its workspace and cannot.
    WithWorkspace,
    /// Not yet: there is no plan for these shapes. After one execute, or [`Kernel::prepare`], ask again.
    NotPlanned,
    /// Never on this device: there is no stream to capture.
    Never,
}

/// Claims nodes of one operator, and makes kernels for them.
pub trait KernelFactory: Send + Sync {
    /// The operator's domain; empty for ONNX's own.
    fn domain(&self) -> &'static str;

    /// The operator's name.
    fn op_type(&self) -> &'static str;

    /// The versions of the operator that are known, rising.
    fn versions(&self) -> &'static [u32];

    /// Names of the inputs, in order.
    fn inputs(&self) -> &'static [&'static str];

    /// Names of the outputs, in order.
    fn outputs(&self) -> &'static [&'static str];

    /// Every attribute of any version, and of which kind it is.
    fn attributes(&self) -> &'static [(&'static str, AttributeKind)];

    /// Whether the node would run on `device`. What is not known yet is looked at when the node runs.
    ///
    /// # Errors
    ///
    /// The first reason why not, so that a planner can leave the node to somebody else.
    fn claim(&self, device: &Device, node: &Node, inputs: &[Option<InputInfo>]) -> Result<(), Reason>;

    /// Makes the node's kernel.
    ///
    /// # Errors
    ///
    /// As [`KernelFactory::claim`], for what can be seen without inputs.
    fn create(&self, node: &Node) -> Result<Box<dyn Kernel>, Reason>;
}

/// A node made ready to run, any number of times, with any shapes, from any threads.
///
/// Shapes are looked at when a kernel runs; plans are kept for each combination of shapes and device.
pub trait Kernel: Send + Sync {
    /// Type and shape of each output that the node uses, from the inputs'.
    ///
    /// # Errors
    ///
    /// Where the inputs do not go together.
    fn outputs(&self, inputs: &[Option<TensorView<'_>>]) -> Result<Vec<Option<OutputSpec>>, ExecuteError>;

    /// Makes the plan for these shapes, so that no later execute compiles. Not during capture. Reads no tensor.
    ///
    /// # Errors
    ///
    /// Where the inputs do not go together, no engine does the problem, or compilation fails.
    fn prepare(&self, device: &Device, inputs: &[Option<TensorView<'_>>]) -> Result<(), ExecuteError>;

    /// The scratch memory that [`Kernel::execute_with_workspace`] needs for these shapes. Makes the plan.
    ///
    /// # Errors
    ///
    /// As [`Kernel::prepare`].
    fn workspace_requirement(
        &self,
        device: &Device,
        inputs: &[Option<TensorView<'_>>],
    ) -> Result<WorkspaceRequirement, ExecuteError>;

    /// Whether the next execute with these shapes can be captured. Makes no plan.
    fn capture_support(&self, device: &Device, inputs: &[Option<TensorView<'_>>]) -> CaptureSupport;

    /// Whether an input may have strides, its last dimension contiguous.
    fn supports_strided_input(&self, index: usize) -> bool;

    /// Enqueues the computation on the device's stream, with scratch memory of its own, allocated and freed in stream
    /// order. On the host it has been done when the call returns.
    ///
    /// # Errors
    ///
    /// Names node, input, shape and type. Nothing has been enqueued then, unless the driver failed.
    ///
    /// # Safety
    ///
    /// Every tensor must be memory of the device, valid for its length until the stream has passed the call; outputs
    /// must not overlap inputs, nor be used by work that is not ordered against the stream.
    unsafe fn execute(
        &self,
        device: &Device,
        inputs: &[Option<TensorView<'_>>],
        outputs: &[Option<TensorMut>],
    ) -> Result<(), ExecuteError>;

    /// [`Kernel::execute`] with the caller's scratch memory: never allocates. Does not compile either, once there is a
    /// plan for these shapes.
    ///
    /// # Errors
    ///
    /// As [`Kernel::execute`]; also where the workspace is less than what [`Kernel::workspace_requirement`] says.
    ///
    /// # Safety
    ///
    /// As [`Kernel::execute`], for the workspace too.
    unsafe fn execute_with_workspace(
        &self,
        device: &Device,
        inputs: &[Option<TensorView<'_>>],
        outputs: &[Option<TensorMut>],
        workspace: DevicePtr,
    ) -> Result<(), ExecuteError>;
}
