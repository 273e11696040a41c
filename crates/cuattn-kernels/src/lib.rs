//! The CUDA C++ of the cuattn kernels, and its assembly into sources that NVRTC compiles without a toolkit.
//!
//! Kernels live as `.cu` and `.cuh` files below `cuda/`, one device concern a file, and are embedded in the library. A *variant* is a
//! root file and a list of constants; [`Source::assemble`] turns it into one string. Nothing of the CUDA toolkit is ever
//! included: 16-bit floats are integers with PTX conversions, and every PTX instruction stands in a small named function of
//! a file below `cuda/ptx/`. So NVRTC alone compiles everything, on any machine, and a variant can be cached by its text.
//!
//! This crate knows no device and no runtime: it makes text ([`source`]), and the plain-old-data structs that kernels take ([`abi`]).
//!
//! ```
//! use cuattn_kernels::Source;
//! let text = Source::new("mask.cuh", "none").define("ELEMENT", 1).assemble();
//! assert!(!text.contains("#include"));
//! ```

pub mod abi;
pub mod ep;
pub mod flash;
mod numeric;
pub mod softmax;
pub mod source;
mod variants;
pub mod varlen;

pub use numeric::{BiasKind, Element};
pub use source::Source;
pub use variants::{Architecture, Variant, variants};

/// Every embedded file: its path below `cuda/`, and its text.
pub fn sources() -> impl Iterator<Item = (&'static str, &'static str)> {
    source::FILES.iter().copied()
}
