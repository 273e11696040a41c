//! The kernels of the flash engine: fused online-softmax attention.

use crate::Variant;

pub mod mma;

/// The variants of the compile suite.
pub fn variants() -> Vec<Variant> {
    mma::variants()
}
