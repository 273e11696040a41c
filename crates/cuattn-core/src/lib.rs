//! The attention problem, apart from any way to compute it.
#![doc = "\n(The full page is written below, with the reference.)"]

mod broadcast;
mod dtype;
mod engine;
mod extents;
mod mask;
mod problem;
pub mod reference;
mod refusal;
mod validate;
mod varlen;
mod work;
mod workspace;

pub use broadcast::BroadcastRule;
pub use dtype::{DType, IndexType};
pub use engine::{
    Engine, EngineId, Explanation, LaunchError, Operands, Plan, PlanError, VarlenEngine, VarlenOperands, VarlenPlan,
    Work, WorkspaceSize,
};
pub use extents::{Extents, VarlenExtents};
pub use mask::{Alignment, Bias, BiasKind, KeyLengths, Mask, Window};
pub use problem::{MAX_SCORE_MOD_BUFFERS, Paging, Problem, ScoreMod, ScoreStage, ScoresOutput, Shape, Strides};
pub use refusal::{Operand, Reason, Refusal, ScoreModFault};
pub use varlen::{OffsetFaults, TokenStrides, VarlenPaging, VarlenProblem, VarlenShape};
pub use work::{SequenceLengths, visible_pairs};
pub use workspace::{Layout, Region, WORKSPACE_ALIGN};
