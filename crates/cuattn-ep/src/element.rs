//! Element types as ONNX numbers them.

use std::fmt;

use cuattn::DType;

/// The element type of a tensor of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ElementType {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// bfloat16.
    Bf16,
    /// IEEE binary64.
    F64,
    /// One byte, 0 or 1.
    Bool,
    /// Signed 32-bit.
    I32,
    /// Signed 64-bit.
    I64,
    /// Any other type, by its number in `TensorProto.DataType`.
    Other(i32),
}

impl ElementType {
    /// From the number of `TensorProto.DataType`, which ONNX Runtime uses too.
    pub const fn from_onnx(number: i32) -> Self {
        match number {
            1 => Self::F32,
            6 => Self::I32,
            7 => Self::I64,
            9 => Self::Bool,
            10 => Self::F16,
            11 => Self::F64,
            16 => Self::Bf16,
            other => Self::Other(other),
        }
    }

    /// The number of `TensorProto.DataType`.
    pub const fn to_onnx(self) -> i32 {
        match self {
            Self::F32 => 1,
            Self::I32 => 6,
            Self::I64 => 7,
            Self::Bool => 9,
            Self::F16 => 10,
            Self::F64 => 11,
            Self::Bf16 => 16,
            Self::Other(number) => number,
        }
    }

    /// The type as attention knows it, where it does.
    pub const fn dtype(self) -> Option<DType> {
        match self {
            Self::F32 => Some(DType::F32),
            Self::F16 => Some(DType::F16),
            Self::Bf16 => Some(DType::Bf16),
            _ => None,
        }
    }

    /// Bytes of an element; `None` of a type that no operator here takes.
    pub const fn size(self) -> Option<usize> {
        match self {
            Self::F32 | Self::I32 => Some(4),
            Self::F16 | Self::Bf16 => Some(2),
            Self::F64 | Self::I64 => Some(8),
            Self::Bool => Some(1),
            Self::Other(_) => None,
        }
    }
}

impl From<DType> for ElementType {
    fn from(dtype: DType) -> Self {
        match dtype {
            DType::F16 => Self::F16,
            DType::Bf16 => Self::Bf16,
            // The enum may grow; there is nothing else today.
            _ => Self::F32,
        }
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "float32",
            Self::F16 => "float16",
            Self::Bf16 => "bfloat16",
            Self::F64 => "float64",
            Self::Bool => "bool",
            Self::I32 => "int32",
            Self::I64 => "int64",
            Self::Other(number) => {
                const NAMES: [(i32, &str); 12] = [
                    (2, "uint8"),
                    (3, "int8"),
                    (4, "uint16"),
                    (5, "int16"),
                    (8, "string"),
                    (12, "uint32"),
                    (13, "uint64"),
                    (14, "complex64"),
                    (15, "complex128"),
                    (17, "float8e4m3fn"),
                    (19, "float8e5m2"),
                    (22, "int4"),
                ];
                return match NAMES.iter().find(|(known, _)| known == number) {
                    Some((_, name)) => f.write_str(name),
                    None => write!(f, "TensorProto type {number}"),
                };
            }
        })
    }
}
