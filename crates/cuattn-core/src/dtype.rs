//! Element types of tensors and of index arrays.

use std::fmt;

/// Element type of q, k, v and o (always one type for all four).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum DType {
    /// IEEE binary32. Float32 means float32-class accuracy: TF32 is never used in its place.
    F32,
    /// IEEE binary16. Products accumulate in float32; one rounding at the end.
    F16,
    /// bfloat16. Products accumulate in float32; one rounding at the end.
    Bf16,
}

impl DType {
    /// Every element type, for tests and tables.
    pub const ALL: [Self; 3] = [Self::F32, Self::F16, Self::Bf16];

    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        })
    }
}

/// Element type of a device array of lengths, offsets or page numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IndexType {
    /// Signed 32-bit.
    I32,
    /// Signed 64-bit (what ONNX hands over).
    I64,
}

impl IndexType {
    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            Self::I32 => 4,
            Self::I64 => 8,
        }
    }
}

impl fmt::Display for IndexType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::I32 => "i32",
            Self::I64 => "i64",
        })
    }
}
