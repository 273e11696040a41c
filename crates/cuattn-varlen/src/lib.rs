//! Attention over packed sequences of any lengths, read on the device.
//!
//! Queries, keys and values are packed one sequence after another, `[tokens, heads, head_dim]`, without padding. Where each starts is
//! on the device (`cu_seqlens_q`, `cu_seqlens_kv`), and the host never asks: a plan is sized from totals, nothing is read back, and
//! one captured graph serves whatever lengths the arrays hold when it is replayed.
//!
//! ```
//! use cuattn_core::{DType, VarlenEngine, VarlenProblem, VarlenShape};
//! use cuattn_varlen::Varlen;
//! let shape = VarlenShape {
//!     batch: 256, total_q: 17_811, total_kv: 17_811, max_q_len: 127, max_kv_len: 127,
//!     q_heads: 16, kv_heads: 16, head_dim: 128, v_head_dim: 128,
//! };
//! let mut problem = VarlenProblem::packed(shape, DType::Bf16);
//! problem.causal = true;
//! let explanation = Varlen.consider(&curt::Capabilities::h200(), &problem)?;
//! assert_eq!(explanation.path, "sm90");
//! # Ok::<(), cuattn_core::Refusal>(())
//! ```
//!
//! # One design decision
//!
//! **There is no second kernel.** The main loops are those of the flash engine, compiled with another answer to one question: where do
//! the rows of this tile lie? (`sequence_rows.cuh` of `cuattn-kernels`.) So whatever flash computes, this engine does too, and a batch
//! of equal lengths gives the same bits as flash gives for the dense tensor. A packed problem is planned as the dense one of its
//! average lengths: tile, and heads of a group in one tile, are chosen alike.
//!
//! | path | device | takes |
//! |---|---|---|
//! | `sm90` | sm_90 | f16, bf16; head sizes that are multiples of 8 from 16 to 256; strides that a tensor map can express; 16-byte aligned pointers; pages of multiples of 8 keys; sequences of 24 queries or more, on average |
//! | `mma` | sm_80 and up | f16, bf16; head sizes that are multiples of 8 up to 256; strides of multiples of 8; 16-byte aligned pointers |
//! | `simt` | sm_80 and up | every dtype, head size, stride and alignment; float32 with float32 accuracy |
//!
//! # Order of work
//!
//! Longest sequences come first, because a long one that begins late leaves the machine idle. In a batch of up to 64 sequences every
//! warp, or every persistent block of `sm90`, sorts the lengths itself. For larger ones a small kernel lists the tiles once;
//! [`VarlenPlan::build_schedule`] makes that list apart from a launch, for all layers of a step to share. The grid has room for every way to divide the totals into `batch`
//! sequences: the blocks that a batch does not need find nothing to do and are gone. Those of `sm90` draw as many tiles as there are.
//!
//! # Bad offsets
//!
//! Offsets are data on the device, and a launch cannot refuse them. Every start is brought into the stated token counts before it is
//! used, so bad ones give meaningless results and touch nothing else. To find them, pass host copies to
//! [`VarlenProblem::check_offsets`](cuattn_core::VarlenProblem::check_offsets), or set
//! [`VarlenProblem::checks_offsets`](cuattn_core::VarlenProblem::checks_offsets) and look at the status word. The stated maxima of
//! lengths are compared with there; no result depends on them.
//!
//! [`VarlenPlan::build_schedule`]: cuattn_core::VarlenPlan::build_schedule

mod engine;
mod mma;
mod outline;
mod params;
mod path;
mod plan;
mod simt;
mod sm90;

pub use engine::{Varlen, VarlenPath};
pub use path::Path;

#[doc(no_inline)]
pub use cuattn_core::{VarlenEngine, VarlenPlan};
