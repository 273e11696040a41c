//! Fused online-softmax attention: no score tensor, every mask, every dtype, every head size.
//!
//! One launch reads q, k and v once and writes o. Scores live in registers for the length of one block of keys; the softmax is kept
//! running, so memory does not grow with `q_len * kv_len`. Only the path `sm90_f32` needs a workspace, as large as q, k and v.
//!
//! # Paths
//!
//! The engine is several kernels that compute the same function, and picks one for the device and the problem:
//!
//! | path | device | takes |
//! |---|---|---|
//! | `sm90` | sm_90 | f16, bf16; head sizes that are multiples of 8 from 16 to 256; strides that a tensor map can express; queries that fill a tile |
//! | `sm90_f32` | sm_90 | f32 from 128 rows and keys on; head sizes that are multiples of 8 from 16 to 128; any strides and alignment |
//! | `mma` | sm_80 and up | f16, bf16; head sizes that are multiples of 8 from 16 to 256; strides of multiples of 8; 16-byte aligned pointers |
//! | `simt` | sm_80 and up | every dtype, head size, stride and alignment; float32 with float32 accuracy |
//!
//! A plan for `sm90` or `mma` also holds the `simt` kernel, and a launch whose pointers are not aligned takes it: slower, but never a
//! failure. [`Engine::consider`] says which path a problem takes and, for each path that it does not, every reason.
//!
//! ```
//! use cuattn_core::{DType, Engine, Problem, Shape};
//! use cuattn_flash::Flash;
//! let shape = Shape { batch: 1, q_heads: 32, kv_heads: 8, q_len: 4096, kv_len: 4096, head_dim: 128, v_head_dim: 128 };
//! let device = curt::Capabilities::h200();
//!
//! let half = Flash.consider(&device, &Problem::bhsd(shape, DType::Bf16))?;
//! assert_eq!(half.path, "sm90");
//!
//! let single = Flash.consider(&device, &Problem::bhsd(shape, DType::F32))?;
//! assert_eq!(single.path, "sm90_f32");
//! assert!(single.refused[0].to_string().contains("f32"));
//! # Ok::<(), cuattn_core::Refusal>(())
//! ```
//!
//! # Float32 on tensor cores
//!
//! `sm90_f32` splits every float32, scaled by a power of two for each head, into the sum of two f16 numbers, and makes each product of
//! three: its results are as close to float64's as those of float32 arithmetic. Which heads keep that accuracy is found out on the
//! device in every launch. A head that does not, because values that some row may see are not finite or differ in magnitude by more
//! than about 2^16, is computed by the `simt` kernel in the same launch: slower, but never wrong.
//!
//! # What masked values cannot do
//!
//! Tensor cores multiply a masked key's probability, 0, with whatever V holds there, and 0 times NaN is NaN. Rows beyond a sequence's
//! length are read as zeros. For the rest, a block that ends with a value that is not finite starts over and leaves masked keys out,
//! so NaN or infinity reaches exactly the rows that see it. Finite inputs never pay for this.

mod engine;
mod mma;
mod outline;
mod path;
mod plan;
mod simt;
mod sm90;
mod sm90_f32;
pub mod tuning;

pub use engine::{Flash, FlashPath};
pub use path::Path;

#[doc(no_inline)]
pub use cuattn_core::Engine;
