//! Attention as two cuBLASLt products around a softmax kernel.
//!
//! Scores are computed by one strided-batched product, a kernel turns each row into probabilities, and a second product multiplies
//! them with the values. Every step is simple and takes any shape, so this engine is two things to the others: the independent
//! oracle on the GPU, and the fallback for what they refuse. It is also the only one that can hand out its scores, at any of the
//! four stages that ONNX names.
//!
//! ```no_run
//! use cuattn_core::{DType, Engine, Operands, Problem, Shape};
//! use cuattn_phase2a::Phase2a;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let runtime = curt::Runtime::new(0)?;
//! let shape = Shape { batch: 1, q_heads: 2, kv_heads: 1, q_len: 4, kv_len: 4, head_dim: 8, v_head_dim: 8 };
//! let plan = Phase2a::new().plan(&runtime, &Problem::bhsd(shape, DType::F32))?;
//!
//! let q = runtime.upload(&[0.5f32; 2 * 4 * 8])?;
//! let kv = runtime.upload(&[1.0f32; 4 * 8])?;
//! let o = runtime.alloc(2 * 4 * 8 * 4)?;
//! let workspace = runtime.alloc(plan.workspace().bytes)?;
//! let operands = Operands { q: q.ptr(), k: kv.ptr(), v: kv.ptr(), o: o.ptr(), ..Default::default() };
//! // SAFETY: all buffers belong to this runtime and outlive the read below.
//! unsafe { plan.launch(&operands, workspace.ptr())? };
//! assert_eq!(o.read::<f32>()?, [1.0; 64]);
//! # Ok(())
//! # }
//! ```
//!
//! # How it works
//!
//! **Arrangement.** A strided-batched product has one row stride and one batch stride an operand; attention has four loops. Query heads
//! that share a key head become rows of one product where their rows are evenly spaced (always so for contiguous
//! `[batch, heads, len, dim]`), which also reads the keys once for all of them. What remains is batched along its longest axis, and
//! only the rest is a loop of launches.
//!
//! **Chunks.** Scores are float32 whatever the inputs are, for float16 scores overflow and bfloat16 ones lose three digits. They live in one
//! buffer that every chunk of heads or query rows reuses, so the workspace is bounded for any lengths. For 16-bit inputs a chunk's
//! scores fit the second-level cache. Probabilities overwrite the scores in place, in the type of the inputs.
//!
//! **Masked values.** A masked key has probability 0, but 0 times NaN is NaN, and caches hold garbage beyond a sequence's length. Where any key can
//! be masked, values are copied first with infinities and NaN made 0, and a bit for each such key is kept. After the product a kernel
//! adds what those values do to the rows that *see* them: NaN and infinity propagate exactly where they should. It can tell
//! because a masked key's probability is stored as negative zero. Without such values, which is nearly always, that kernel reads a few
//! words and ends.
//!
//! **Capture.** A launch enqueues products and kernels and does nothing else, whatever the lengths on the device are: it can be
//! captured, and lengths may change between replays.

mod arrangement;
mod element;
mod engine;
mod outline;
mod parameters;
mod plan;
mod score_cap;

pub use engine::{Options, Phase2a};
