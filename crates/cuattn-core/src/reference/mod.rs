//! The host reference: attention in float64, from the stored inputs, for the whole contract.
//!
//! It is the oracle of every test, and what runs where there is no GPU. It uses all cores and is written to be read,
//! not to race: expect a few GFLOP/s a core. It never pretends to be a GPU; who calls it should say so.
//!
//! [`attention`] does a dense [`crate::Problem`], [`attention_varlen`] a packed [`crate::VarlenProblem`]. Operands are
//! the very bytes that a device would get, so that one buffer serves both.
//!
//! ```
//! use cuattn_core::reference::{self, HostOperands};
//! use cuattn_core::{Alignment, DType, Mask, Problem, Shape};
//!
//! let shape = Shape { batch: 1, q_heads: 1, kv_heads: 1, q_len: 2, kv_len: 2, head_dim: 1, v_head_dim: 1 };
//! let mut problem = Problem::bhsd(shape, DType::F32);
//! problem.mask = Mask::causal(Alignment::TopLeft);
//!
//! let q = reference::encode(&[0.0, 0.0], DType::F32);
//! let k = reference::encode(&[1.0, 2.0], DType::F32);
//! let v = reference::encode(&[10.0, 20.0], DType::F32);
//! let output = reference::attention(&problem, &HostOperands { q: &q, k: &k, v: &v, ..HostOperands::default() })?;
//! assert_eq!(output.o, [10.0, 15.0]);
//! assert_eq!(output.log_sum_exp, [0.0, 2.0f64.ln()]);
//! # Ok::<(), cuattn_core::Refusal>(())
//! ```
//!
//! # Where the contract leaves a choice
//!
//! * A row that sees no key but has a sink gives zeros, and its log-sum-exp is the sink: a sink joins the denominator
//!   only.
//! * A visible key whose score is -infinity because of its data has weight 0; a row of nothing else counts as seeing no
//!   key. A visible +infinity or NaN makes the row NaN.
//! * After an additive bias a score is at least `-f32::MAX`, so that a row of most negative numbers is a uniform
//!   softmax.
//! * At the stages [`crate::ScoreStage::Raw`] and [`crate::ScoreStage::Softcapped`] every key has its score, masked or
//!   beyond the sequence's length; with pages there are none beyond it, and those are -infinity.

mod core;
mod dense;
mod element;
mod varlen;
mod vector;

pub use dense::{HostOperands, HostOutput, attention};
pub use element::{decode, encode};
pub use varlen::{VarlenHostOperands, VarlenHostOutput, attention_varlen};

/// A user's own score modification, as a closure: what [`crate::ScoreMod`] is to a GPU. Returning -infinity masks the
/// key.
pub type HostScoreMod<'a> = dyn Fn(f64, ScoreIndex) -> f64 + Sync + 'a;

/// Which score a [`HostScoreMod`] is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ScoreIndex {
    /// The sequence.
    pub batch: usize,
    /// The query head.
    pub head: usize,
    /// The query row, from 0 within the sequence.
    pub q: usize,
    /// The key, from 0 within the sequence.
    pub k: usize,
}
