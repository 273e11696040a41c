//! The list of kernel variants that the compile suite builds: what engines choose from, and a sample of every option.

use crate::Source;

/// Architectures that a variant claims to compile and run on, as NVRTC names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Architecture(pub &'static str);

impl Architecture {
    /// Ampere and everything after it, by the architecture that stands for each generation in the compile suite.
    pub const FROM_AMPERE: &'static [Self] =
        &[Self("sm_80"), Self("sm_86"), Self("sm_89"), Self("sm_90a"), Self("sm_100"), Self("sm_120")];
    /// The oldest and the one that is measured: for a variant that differs in one option, or in the names of instructions, from one
    /// that is compiled for all.
    pub const SAMPLE: &'static [Self] = &[Self("sm_80"), Self("sm_90a")];
    /// Hopper alone.
    pub const HOPPER: &'static [Self] = &[Self("sm_90a")];
}

/// A kernel variant of the compile suite.
#[derive(Clone, Debug)]
pub struct Variant {
    /// A unique name, such as `flash/mma bf16 d128`.
    pub name: String,
    /// What is compiled.
    pub source: Source,
    /// Where it must compile.
    pub architectures: &'static [Architecture],
    /// Whether it must not spill registers.
    pub tuned: bool,
}

/// Every variant of the compile suite, in a stable order.
pub fn variants() -> Vec<Variant> {
    let mut all = crate::softmax::variants();
    all.extend(crate::flash::variants());
    all.extend(crate::varlen::variants());
    all.extend(crate::ep::variants());
    all
}
