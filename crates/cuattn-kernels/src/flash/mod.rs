//! The kernels of the flash engine: fused online-softmax attention.

use crate::Variant;

pub mod mma;
pub mod simt;

/// The variants of the compile suite.
pub fn variants() -> Vec<Variant> {
    let mut all = mma::variants();
    all.extend(simt::variants());
    all
}
