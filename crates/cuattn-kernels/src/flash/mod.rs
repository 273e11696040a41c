//! The kernels of the flash engine: fused online-softmax attention.

use crate::Variant;

pub mod mma;
pub mod simt;
pub mod sm90;

/// The variants of the compile suite.
pub fn variants() -> Vec<Variant> {
    let mut all = mma::variants();
    all.extend(simt::variants());
    all.extend(sm90::variants());
    all
}
