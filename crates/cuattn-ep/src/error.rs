//! Why a kernel did not run.

use cuattn::{LaunchError, Refusal, curt};

use crate::Reason;

/// Why a kernel did not run. Names the node.
#[derive(Debug, thiserror::Error)]
#[error("{node}: {why}")]
pub struct ExecuteError {
    /// The node, with its operator.
    pub node: String,
    /// What happened.
    pub why: Fault,
}

/// What happened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// Inputs, attributes or outputs that do not go together, or that no engine does.
    #[error(transparent)]
    Refused(#[from] Reason),

    /// An output tensor that was not given, or not as large as it must be.
    #[error("output {index} has {got} bytes of memory, and needs {need} for shape {shape:?}")]
    OutputTooSmall {
        /// Which output.
        index: usize,
        /// Bytes that were given.
        got: usize,
        /// Bytes that are needed.
        need: usize,
        /// The shape that it must have.
        shape: Vec<usize>,
    },

    /// An input tensor with less memory than its shape says.
    #[error("input {index} has {got} bytes of memory, and its shape {shape:?} needs {need}")]
    InputTooSmall {
        /// Which input.
        index: usize,
        /// Bytes that were given.
        got: usize,
        /// Bytes that are needed.
        need: usize,
        /// Its shape.
        shape: Vec<usize>,
    },

    /// A workspace that is too small or not aligned.
    #[error(
        "the workspace has {got} bytes at address {address:#x}, and {need} bytes are needed, aligned to {align}: ask \
         workspace_requirement with the same shapes"
    )]
    Workspace {
        /// Bytes that were given.
        got: usize,
        /// Its address.
        address: u64,
        /// Bytes that are needed.
        need: usize,
        /// The alignment that is needed.
        align: usize,
    },

    /// A plan, and with it compilation, would be needed while the stream is being captured.
    #[error(
        "the stream is being captured, and there is no plan for these shapes yet: run the node once with the same \
         shapes before the capture"
    )]
    NotPlanned,

    /// Operands that do not fit the plan.
    #[error(transparent)]
    Launch(Refusal),

    /// The runtime failed: compilation, memory, the driver.
    #[error(transparent)]
    Runtime(#[from] curt::Error),
}

impl From<LaunchError> for Fault {
    fn from(error: LaunchError) -> Self {
        match error {
            LaunchError::Runtime(error) => Self::Runtime(error),
            LaunchError::Refused(refusal) => Self::Launch(refusal),
            other => Self::Refused(Reason::Engine(other.to_string())),
        }
    }
}

impl From<cuattn::Error> for Fault {
    fn from(error: cuattn::Error) -> Self {
        match error {
            cuattn::Error::Runtime(error) => Self::Runtime(error),
            cuattn::Error::Illegal(refusal) => Self::Refused(Reason::Problem(refusal)),
            other => Self::Refused(Reason::Engine(other.to_string())),
        }
    }
}
