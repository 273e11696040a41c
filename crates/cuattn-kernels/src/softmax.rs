//! The softmax kernels of phase2a.

use crate::Variant;

/// The variants of the compile suite.
pub fn variants() -> Vec<Variant> {
    Vec::new()
}
