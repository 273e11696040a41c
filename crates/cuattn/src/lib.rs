//! Scaled-dot-product and grouped-query attention on NVIDIA GPUs, from Rust: describe a problem, get a plan, launch it.
//!
//! No CUDA toolkit is needed to build, and none to run: kernels are CUDA C++ text in this crate's dependencies,
//! compiled by NVRTC for the GPU that is there and kept in a cache. The driver and NVRTC are found at run time, and
//! cuBLASLt where the one engine that uses it is chosen; [`curt::probe`] says what is there and how to get what is not.
//!
//! ```no_run
//! use cuattn::{Alignment, DType, Mask, Operands, Policy, Problem, Shape};
//! use cuattn::curt::Runtime;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let shape = Shape { batch: 2, q_heads: 32, kv_heads: 8, q_len: 512, kv_len: 512, head_dim: 128, v_head_dim: 128 };
//! let mut problem = Problem::bhsd(shape, DType::Bf16);
//! problem.mask = Mask::causal(Alignment::BottomRight);
//!
//! let runtime = Runtime::new(0)?;
//! let plan = cuattn::plan(&runtime, &problem, Policy::Auto)?;
//! println!("{}", plan.explain());
//!
//! let extents = problem.extents()?;
//! let [q, k, v] = [extents.q, extents.k, extents.v].map(|bytes| runtime.alloc_zeroed(bytes));
//! let (q, k, v) = (q?, k?, v?);
//! let (o, workspace) = (runtime.alloc(extents.o)?, runtime.alloc(plan.workspace().bytes)?);
//! let operands = Operands { q: q.ptr(), k: k.ptr(), v: v.ptr(), o: o.ptr(), ..Operands::default() };
//! // SAFETY: the buffers are of this runtime, and live until the stream has been waited for.
//! unsafe { plan.launch(&operands, workspace.ptr())? };
//! runtime.synchronize()?;
//! # Ok(())
//! # }
//! ```
//!
//! # One design decision
//!
//! **Nothing falls back silently.** An engine that cannot do a problem refuses it with every reason, and the choice
//! among engines says which were refused and why: [`Explanation::refused`] of a plan, or [`Error::NoEngine`] where none
//! is left. With [`Policy::Only`] no other engine is ever used. The host reference ([`mod@reference`]) is never chosen
//! for a launch; who wants it calls it.
//!
//! The order in which [`Policy::Auto`] asks the engines is a table of measurements, kept as data beside the name of the
//! report each row comes from (`src/choice.csv`), not constants in code. [`consider`] answers the same question for a
//! device that is not there:
//!
//! ```
//! use cuattn::curt::Capabilities;
//! use cuattn::{DType, EngineId, Policy, Problem, ScoreStage, ScoresOutput, Shape};
//!
//! let shape = Shape { batch: 1, q_heads: 8, kv_heads: 8, q_len: 64, kv_len: 64, head_dim: 64, v_head_dim: 64 };
//! let mut problem = Problem::bhsd(shape, DType::F16);
//! problem.scores = Some(ScoresOutput { stage: ScoreStage::Probabilities, dtype: DType::F16 });
//!
//! let explanation = cuattn::consider(&Capabilities::h200(), &problem, Policy::Auto)?;
//! assert_eq!(explanation.engine, EngineId::Phase2a);
//! assert_eq!(explanation.refused[0].engine, Some(EngineId::Flash));
//! # Ok::<(), cuattn::Error>(())
//! ```
//!
//! # Layers
//!
//! | crate | what it is |
//! |---|---|
//! | [`curt`] | the CUDA runtime beneath: discovery, compile cache, memory, launches, graphs |
//! | [`cuattn_core`] | the problem and the contract: what every engine computes, to the last NaN |
//! | [`cuattn_flash`] | the engine without a score tensor |
//! | [`cuattn_varlen`] | the same kernels over packed sequences, whose lengths are read on the device |
//! | [`cuattn_phase2a`] | the engine of two matrix products, which can hand out its scores |
//!
//! Everything of the contract that one needs to call [`plan`] or, for packed sequences, [`plan_varlen`] is re-exported here.

mod choice;
mod engines;
mod error;
mod plan;
mod varlen;

pub use cuattn_core::{
    Alignment, Bias, BiasKind, BroadcastRule, DType, Engine, EngineId, Explanation, Extents, IndexType, KeyLengths,
    LaunchError, MAX_SCORE_MOD_BUFFERS, Mask, OffsetFaults, Operand, Operands, Paging, Plan, PlanError, Problem,
    Reason, Refusal, ScoreMod, ScoreStage, ScoresOutput, SequenceLengths, Shape, Strides, TokenStrides, VarlenEngine,
    VarlenExtents, VarlenOperands, VarlenPaging, VarlenPlan, VarlenProblem, VarlenShape, Window, Work, WorkspaceSize,
    reference,
};
pub use cuattn_flash::Flash;
pub use cuattn_phase2a::Phase2a;
pub use cuattn_varlen::Varlen;
pub use curt;

pub use self::engines::engines;
pub use self::error::Error;
pub use self::plan::{Policy, consider, plan};
pub use self::varlen::{consider_varlen, plan_varlen};
