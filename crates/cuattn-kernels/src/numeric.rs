//! The element types and bias kinds that kernels are compiled for.

/// Element type of q, k, v and o, as `numeric.cuh` numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    /// IEEE binary32.
    F32 = 0,
    /// IEEE binary16.
    F16 = 1,
    /// bfloat16.
    Bf16 = 2,
}

impl Element {
    /// Every element type.
    pub const ALL: [Self; 3] = [Self::F32, Self::F16, Self::Bf16];

    /// Bytes of an element.
    pub const fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// `f32`, `f16` or `bf16`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }
}

/// What [`crate::abi::MaskParams::bias`] points to, as `mask.cuh` numbers it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BiasKind {
    /// Nothing.
    #[default]
    None = 0,
    /// Added, of the problem's element type.
    Element = 1,
    /// Added, float32.
    F32 = 2,
    /// One byte, 0 masks.
    Boolean = 3,
}

impl BiasKind {
    /// Bytes of an element, in a problem of type `element`; 0 where there is no bias.
    pub const fn size(self, element: Element) -> usize {
        match self {
            Self::None => 0,
            Self::Element => element.size(),
            Self::F32 => 4,
            Self::Boolean => 1,
        }
    }
}
