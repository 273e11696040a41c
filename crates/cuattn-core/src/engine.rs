//! What an engine is: it looks at a problem, makes a plan or refuses with every reason, and a plan launches.

use std::fmt;

use curt::{Capabilities, DevicePtr, Runtime};

use crate::{Problem, Refusal, VarlenProblem};

/// The engines of this workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum EngineId {
    /// The float64 host reference. Never chosen for a GPU problem.
    Reference,
    /// cuBLASLt, softmax kernel, cuBLASLt.
    Phase2a,
    /// Fused online-softmax attention.
    Flash,
    /// Packed sequences.
    Varlen,
}

impl fmt::Display for EngineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reference => "reference",
            Self::Phase2a => "phase2a",
            Self::Flash => "flash",
            Self::Varlen => "varlen",
        })
    }
}

/// Device operands of one launch of a dense [`Problem`]. Pointers carry their lengths in bytes, which are checked.
///
/// `None` is right exactly where the problem does not ask for the operand.
#[derive(Clone, Copy, Debug, Default)]
pub struct Operands {
    /// Queries.
    pub q: DevicePtr,
    /// Keys.
    pub k: DevicePtr,
    /// Values.
    pub v: DevicePtr,
    /// Output. Must not overlap any input.
    pub o: DevicePtr,
    /// The bias of [`crate::Mask::bias`].
    pub bias: Option<DevicePtr>,
    /// The array of [`crate::Mask::key_lengths`], `[batch]`.
    pub key_lengths: Option<DevicePtr>,
    /// The array of [`crate::Alignment::PerBatch`], `[batch]`.
    pub query_offsets: Option<DevicePtr>,
    /// One float32 a query head.
    pub sinks: Option<DevicePtr>,
    /// Log-sum-exp output, float32 `[batch, q_heads, q_len]`.
    pub log_sum_exp: Option<DevicePtr>,
    /// Scores output, `[batch, q_heads, q_len, kv_len]`.
    pub scores: Option<DevicePtr>,
    /// Buffers of the [`crate::ScoreMod`].
    pub score_mod_buffers: [Option<DevicePtr>; crate::MAX_SCORE_MOD_BUFFERS],
    /// Page table, `i32 [batch, max_pages]`.
    pub page_table: Option<DevicePtr>,
}

/// Device operands of one launch of a packed [`VarlenProblem`]. Pointers carry their lengths in bytes, which are
/// checked.
///
/// `None` is right exactly where the problem does not ask for the operand; `schedule` alone is the caller's choice.
#[derive(Clone, Copy, Debug, Default)]
pub struct VarlenOperands {
    /// Queries, `[total_q, q_heads, head_dim]`.
    pub q: DevicePtr,
    /// Keys, `[total_kv, kv_heads, head_dim]`, or their pages.
    pub k: DevicePtr,
    /// Values, `[total_kv, kv_heads, v_head_dim]`, or their pages.
    pub v: DevicePtr,
    /// Output, `[total_q, q_heads, v_head_dim]`. Must not overlap any input. Tokens of no sequence are left as they
    /// are.
    pub o: DevicePtr,
    /// Where each query sequence starts, `[batch + 1]`.
    pub cu_seqlens_q: DevicePtr,
    /// Where each key sequence starts, `[batch + 1]`.
    pub cu_seqlens_kv: DevicePtr,
    /// Keys in use of each sequence's span, `[batch]`, of the type of the offsets.
    pub used_lengths: Option<DevicePtr>,
    /// The array of [`crate::Alignment::PerBatch`], `[batch]`.
    pub query_offsets: Option<DevicePtr>,
    /// One float32 a query head.
    pub sinks: Option<DevicePtr>,
    /// Log-sum-exp output, float32 `[q_heads, total_q]`.
    pub log_sum_exp: Option<DevicePtr>,
    /// Buffers of the [`crate::ScoreMod`].
    pub score_mod_buffers: [Option<DevicePtr>; crate::MAX_SCORE_MOD_BUFFERS],
    /// Page table, `i32 [batch, max_pages]`.
    pub page_table: Option<DevicePtr>,
    /// A work list that [`VarlenPlan::build_schedule`] has made from the same lengths. Without it the launch makes its
    /// own.
    pub schedule: Option<DevicePtr>,
    /// Where a `u32` of [`crate::OffsetFaults`] is written.
    pub status: Option<DevicePtr>,
}

/// Scratch memory that a plan needs for a launch. The caller owns it, and may share it among launches of one stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct WorkspaceSize {
    /// Bytes, exactly what a launch carves.
    pub bytes: usize,
    /// Alignment of its first byte.
    pub align: usize,
}

/// What a launch computes and moves, for tracing and benches.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Floating-point operations of the two products over visible pairs: `2 * pairs * (head_dim + v_head_dim)`. Lengths
    /// on the device and biases count as if everything were visible.
    pub flops: f64,
    /// Bytes of inputs read once and outputs written once.
    pub bytes: f64,
}

/// Why a plan is what it is, for people.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The engine that was chosen.
    pub engine: EngineId,
    /// Its path: `mma`, `simt`, `sm90`, ….
    pub path: String,
    /// Why this one, in a sentence.
    pub why: String,
    /// Tile sizes, variants, splits: a line each.
    pub details: Vec<String>,
    /// Paths and engines that were looked at and refused, each with every reason.
    pub refused: Vec<Refusal>,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.engine, self.path, self.why)?;
        self.details.iter().try_for_each(|detail| write!(f, "\n  * {detail}"))?;
        self.refused.iter().try_for_each(|refusal| write!(f, "\n{refusal}"))
    }
}

/// A plan that cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The engine does not do this problem, or the problem is not legal.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The runtime failed: compilation, memory, a plan made during capture.
    #[error(transparent)]
    Runtime(#[from] curt::Error),
}

/// A launch that was not made. Device memory is untouched, unless the error came from the driver.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// Operands or workspace do not fit the plan.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The driver refused the launch.
    #[error(transparent)]
    Runtime(#[from] curt::Error),
}

/// One way to compute attention.
pub trait Engine: Send + Sync {
    /// Which engine this is.
    fn id(&self) -> EngineId;

    /// Whether and how it would do `problem` on such a device, without compiling or allocating anything. Needs no GPU.
    fn consider(&self, device: &Capabilities, problem: &Problem) -> Result<Explanation, Refusal>;

    /// Compiles, encodes and sizes everything that a launch needs. Not during graph capture.
    fn plan(&self, runtime: &Runtime, problem: &Problem) -> Result<Box<dyn Plan>, PlanError>;
}

/// A problem made ready for one device and stream. Reusable for any number of launches.
pub trait Plan: Send + Sync + fmt::Debug {
    /// The problem it was made for.
    fn problem(&self) -> &Problem;

    /// The scratch memory that each launch must be given.
    fn workspace(&self) -> WorkspaceSize;

    /// What a launch computes and moves.
    fn work(&self) -> Work;

    /// Why it is what it is.
    fn explain(&self) -> Explanation;

    /// Enqueues the computation on the runtime's stream and returns at once. Never allocates, compiles, synchronises or
    /// reads back, so it can be captured into a graph. Checks operand extents and the workspace before anything is
    /// enqueued.
    ///
    /// # Errors
    ///
    /// [`LaunchError::Refused`] with every operand that is missing, too small or not asked for, and where `workspace`
    /// is too small or misaligned; [`LaunchError::Runtime`] where the driver refuses.
    ///
    /// # Safety
    ///
    /// Every pointer must be device memory of the plan's context, valid for its stated length until the stream has
    /// passed this launch; outputs and workspace must not be used by other work that is not ordered against this
    /// stream.
    unsafe fn launch(&self, operands: &Operands, workspace: DevicePtr) -> Result<(), LaunchError>;
}

/// One way to compute attention over packed sequences: what [`Engine`] is to dense problems.
pub trait VarlenEngine: Send + Sync {
    /// Which engine this is.
    fn id(&self) -> EngineId;

    /// Whether and how it would do `problem` on such a device, without compiling or allocating anything. Needs no GPU.
    fn consider(&self, device: &Capabilities, problem: &VarlenProblem) -> Result<Explanation, Refusal>;

    /// Compiles, encodes and sizes everything that a launch needs, from totals alone. Not during graph capture.
    fn plan(&self, runtime: &Runtime, problem: &VarlenProblem) -> Result<Box<dyn VarlenPlan>, PlanError>;
}

/// A packed problem made ready for one device and stream. One plan, and one captured graph, serves any lengths within
/// its totals.
pub trait VarlenPlan: Send + Sync + fmt::Debug {
    /// The problem it was made for.
    fn problem(&self) -> &VarlenProblem;

    /// The scratch memory that each launch must be given.
    fn workspace(&self) -> WorkspaceSize;

    /// The memory of a work list that can be built once and used by every launch with the same lengths, as by all
    /// layers of one step. 0 bytes where a launch needs none.
    fn schedule(&self) -> WorkspaceSize;

    /// What a launch computes and moves, were every sequence of equal length: lengths are known to the device only.
    fn work(&self) -> Work;

    /// Why it is what it is.
    fn explain(&self) -> Explanation;

    /// Enqueues the making of a work list from the lengths that are in `operands` when the stream gets there. Reads
    /// nothing else of `operands`, and does nothing where [`VarlenPlan::schedule`] is 0 bytes.
    ///
    /// # Errors
    ///
    /// [`LaunchError::Refused`] where the arrays of lengths or `schedule` do not fit; [`LaunchError::Runtime`] where
    /// the driver refuses.
    ///
    /// # Safety
    ///
    /// As for [`VarlenPlan::launch`].
    unsafe fn build_schedule(&self, operands: &VarlenOperands, schedule: DevicePtr) -> Result<(), LaunchError>;

    /// Enqueues the computation on the runtime's stream and returns at once. Never allocates, compiles, synchronises or
    /// reads back, so it can be captured into a graph. Checks operand extents and the workspace before anything is
    /// enqueued.
    ///
    /// # Errors
    ///
    /// [`LaunchError::Refused`] with every operand that is missing, too small or not asked for, and where `workspace`
    /// is too small or misaligned; [`LaunchError::Runtime`] where the driver refuses.
    ///
    /// # Safety
    ///
    /// Every pointer must be device memory of the plan's context, valid for its stated length until the stream has
    /// passed this launch; outputs and workspace must not be used by other work that is not ordered against this
    /// stream. A `schedule` must have been built by this plan from the same lengths.
    unsafe fn launch(&self, operands: &VarlenOperands, workspace: DevicePtr) -> Result<(), LaunchError>;
}
