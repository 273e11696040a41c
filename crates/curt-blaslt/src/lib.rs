//! cuBLASLt matrix products on the [`curt`] runtime.
//!
//! A [`Gemm`] describes one strided-batched product of row-major matrices; [`BlasLt::plan`] chooses an algorithm for it, once per
//! description; [`GemmPlan::launch`] enqueues it and does nothing else: no allocation, no query, no synchronisation, so it can be
//! captured into a CUDA graph.
//!
//! ```no_run
//! use curt_blaslt::{BlasLt, ElementType, Gemm, GemmOperands, Preference};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let runtime = curt::Runtime::new(0)?;
//! let blas = BlasLt::new(&runtime)?;
//! let plan = blas.plan(&Gemm::packed(2, 2, 2, ElementType::F32), Preference::default())?;
//!
//! let a = runtime.upload(&[1.0f32, 2.0, 3.0, 4.0])?;
//! let b = runtime.upload(&[1.0f32, 0.0, 0.0, 1.0])?;
//! let d = runtime.alloc(16)?;
//! let workspace = runtime.alloc(plan.workspace_bytes())?;
//! let operands = GemmOperands { a: a.ptr(), b: b.ptr(), d: d.ptr(), ..Default::default() };
//! // SAFETY: all four buffers belong to this runtime and outlive the read below.
//! unsafe { plan.launch(&operands, workspace.ptr())? };
//! assert_eq!(d.read::<f32>()?, [1.0, 2.0, 3.0, 4.0]);
//! # Ok(())
//! # }
//! ```
//!
//! # What it promises
//!
//! * Float32 means float32. TF32 is used only where [`Compute::Tf32`] asks for it. 16-bit inputs accumulate in float32.
//! * The same plan and inputs give the same bits: reductions whose order depends on timing are not offered to the heuristic.
//! * Products of size zero are legal. Without rows, columns or batch nothing is launched; where only `k` is 0 the result is
//!   `epilogue(beta * C)`, zeros in the plain case, for which cuBLASLt is not asked at all.
//! * A mistake is an [`Error`] with the whole description and everything that is wrong with it, before anything is called.
//!
//! # Row-major on a column-major library
//!
//! cuBLASLt is column-major. A row-major matrix *is* the column-major matrix of its transpose, and `D = A B` is `Dᵀ = Bᵀ Aᵀ`, so this
//! crate hands B over as the library's first operand and A as its second, and copies nothing. A bias, which cuBLASLt adds along
//! its rows, therefore runs along the columns of D: one element per output feature.

mod descriptor;
mod error;
mod gemm;
mod handle;
mod library;
mod plan;

pub use error::{Error, Fault, Faults, OperandName, Result, Status};
pub use gemm::{Alignment, Compute, ElementType, Epilogue, Gemm, Matrix, Output, Transpose};
pub use handle::{BlasLt, DEFAULT_MAX_WORKSPACE, Preference, WeakBlasLt};
pub use plan::{GemmOperands, GemmPlan, WORKSPACE_ALIGN};
