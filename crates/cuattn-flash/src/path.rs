//! The kernels that the engine is made of.

use std::fmt;

/// One of the engine's kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Path {
    /// TMA and wgmma, for Hopper.
    Sm90,
    /// The same for float32, each product made of three f16 ones.
    Sm90F32,
    /// `mma.sync`, for sm_80 and up.
    Mma,
    /// No tensor cores, no conditions.
    Simt,
}

impl Path {
    /// Every path, the fastest first.
    pub const ALL: [Self; 4] = [Self::Sm90, Self::Sm90F32, Self::Mma, Self::Simt];

    /// `sm90`, `sm90_f32`, `mma` or `simt`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sm90 => "sm90",
            Self::Sm90F32 => "sm90_f32",
            Self::Mma => "mma",
            Self::Simt => "simt",
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
