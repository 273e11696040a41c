//! The attention problem, apart from any way to compute it: what is asked for, whether it is legal, what it costs, what
//! an engine must do, and a float64 reference that does all of it on the host.
//!
//! Most people want the facade crate, `cuattn`. This crate is for those who write an engine, or glue between a
//! framework and the engines: it has no kernel, and needs no GPU.
//!
//! # One design decision
//!
//! A problem is **data**. [`Problem`] and [`VarlenProblem`] are plain structs with public fields: every extent, every
//! stride, every mask, and nothing of how it is computed. So an engine can be asked whether it would do a problem
//! without a GPU ([`Engine::consider`]), a test can draw problems at random, and two engines can be compared on the
//! same value. What a problem does not say, an engine does not know: pointers come with each launch, lengths are read
//! on the device, and one plan, or one captured graph, serves them all.
//!
//! ```
//! use cuattn_core::{Alignment, DType, Mask, Problem, Shape};
//!
//! let shape = Shape { batch: 2, q_heads: 32, kv_heads: 8, q_len: 512, kv_len: 2048, head_dim: 128, v_head_dim: 128 };
//! let mut problem = Problem::bshd(shape, DType::Bf16);
//! problem.mask = Mask::causal(Alignment::BottomRight);
//! problem.softcap = Some(50.0);
//! problem.validate()?;
//! assert_eq!(problem.extents()?.k, 2 * 8 * 2048 * 128 * 2);
//! assert_eq!(problem.work().flops, 4.0 * 128.0 * (2 * 32) as f64 * (512.0 * 1536.0 + 512.0 * 513.0 / 2.0));
//! # Ok::<(), cuattn_core::Refusal>(())
//! ```
//!
//! # The contract
//!
//! Every engine computes the same thing, in this order:
//!
//! 1. `s = scale * q.k`, with query head `h` against key head `h / (q_heads / kv_heads)`;
//! 2. softcap: `s = c * tanh(s / c)`;
//! 3. the user's own score modification ([`ScoreMod`]);
//! 4. bias, then causal mask, window, key lengths: a key must pass all of them ([`Mask`]);
//! 5. softmax in float32, a sink taking its share of the denominator;
//! 6. `o = p.v`.
//!
//! And keeps these promises, each of which some attention kernel has broken:
//!
//! * **A row that may see no key** gives zeros, and a log-sum-exp of -infinity (of the sink, where there is one).
//!   `kv_len` 0 is legal. Where `batch`, `q_heads` or `q_len` is 0, nothing is launched.
//! * **Masked keys are selected away**, never added as a large number. NaN or infinity in a masked or padded key or
//!   value does not reach a valid row; NaN in a visible one does. An additive bias of -infinity is a mask; a row of
//!   most negative finite numbers is a uniform softmax. A NaN bias makes its row NaN.
//! * **Alignment is said, not guessed.** Row `i` stands at position `offset + i`; a causal mask lets it see keys up to
//!   its position, a window those within reach of it. [`Alignment`] says what `offset` is: ONNX and FlashAttention
//!   differ.
//! * **Any group size, any head size** from 1 up; the value's may differ from the key's.
//! * **Any strides** that are not negative, as long as a vector's elements are contiguous, and any address that is a
//!   multiple of the element size. What is not aligned to 16 bytes may be slower; it does not fail. Offsets have 64
//!   bits.
//! * **Log-sum-exp** is natural, and includes scale, softcap, score modification, bias and sink.
//! * **Float32 means float32**: a relative L2 error of at most 2e-6 against float64, TF32 never. Float16 and bfloat16
//!   accumulate in float32, with one rounding at the end.
//! * **A launch never allocates, compiles, loads, synchronises or reads back**, so it can be captured into a graph. All
//!   that happens when a [`Plan`] is made.
//! * **The same plan with the same inputs gives the same bits.**
//! * **Nothing is refused silently**: a [`Refusal`] lists every [`Reason`], and each says what, why, and how to fix it.
//!   Operands and workspace are checked before anything is enqueued.
//!
//! [`mod@reference`] computes the contract in float64, and is what all engines are tested against.
//!
//! # What is where
//!
//! | | |
//! |---|---|
//! | [`Problem`], [`Shape`], [`Strides`], [`Mask`], [`Bias`], [`Paging`] | a dense problem |
//! | [`VarlenProblem`], [`VarlenShape`], [`TokenStrides`], [`VarlenPaging`] | a packed one |
//! | [`Engine`], [`Plan`], [`Operands`]; [`VarlenEngine`], [`VarlenPlan`], [`VarlenOperands`] | what an engine is |
//! | [`Refusal`], [`Reason`], [`Explanation`] | why not, and why so |
//! | [`Extents`], [`VarlenExtents`], [`Work`], [`WorkspaceSize`], [`Layout`] | bytes and operations |
//! | [`mod@reference`] | the float64 host reference |

mod broadcast;
mod dtype;
mod engine;
mod extents;
pub mod lowering;
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
