//! What can go wrong, with the numbers.

use std::fmt;

use curt::DevicePtr;

use crate::gemm::{Alignment, ElementType, Gemm};

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

/// An operand of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OperandName {
    /// The left matrix.
    A,
    /// The right matrix.
    B,
    /// The added matrix.
    C,
    /// The result.
    D,
    /// The epilogue's vector.
    Bias,
}

impl fmt::Display for OperandName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::A => "A",
            Self::B => "B",
            Self::C => "C",
            Self::D => "D",
            Self::Bias => "bias",
        })
    }
}

/// One thing that is wrong with a description or with a launch's operands.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// cuBLASLt has no such combination of types.
    #[error("{input} inputs cannot give a {output} result; make it {input} or f32")]
    OutputType {
        /// Type of A and B.
        input: ElementType,
        /// Type of D.
        output: ElementType,
    },
    /// TF32 was asked for with inputs that are not float32.
    #[error(
        "TF32 is a way to multiply f32 inputs, and these are {input}; use Compute::Strict, which keeps {input} on tensor cores"
    )]
    Tf32Input {
        /// Type of A and B.
        input: ElementType,
    },
    /// `alpha` or `beta` is not a number one can scale by.
    #[error("{name} is {value}; it must be finite")]
    Factor {
        /// `alpha` or `beta`.
        name: &'static str,
        /// Its value.
        value: f32,
    },
    /// cuBLASLt counts in 32 bits.
    #[error("{name} is {value}, more than {}; split the product", i32::MAX)]
    Extent {
        /// Which extent.
        name: &'static str,
        /// Its value.
        value: usize,
    },
    /// Rows would overlap or run backwards.
    #[error(
        "{operand} is stored as {rows} rows of {cols} elements, so its leading dimension must be at least {cols}, and is {leading}"
    )]
    Leading {
        /// Whose.
        operand: OperandName,
        /// Elements from row to row.
        leading: i64,
        /// Stored rows.
        rows: usize,
        /// Elements of a stored row.
        cols: usize,
    },
    /// Batches cannot run backwards.
    #[error("{operand} has batch stride {stride}; it must not be negative")]
    BatchStride {
        /// Whose.
        operand: OperandName,
        /// The stride.
        stride: i64,
    },
    /// Two matrices of the result's batch share elements.
    #[error(
        "matrices of D that are {apart} apart in the batch share elements (leading dimension {leading}, batch stride {stride}); give each its own memory"
    )]
    OutputOverlap {
        /// Elements from row to row.
        leading: i64,
        /// Elements from matrix to matrix.
        stride: i64,
        /// Distance in the batch of two that collide.
        apart: usize,
    },
    /// The last element's offset does not fit in 63 bits.
    #[error(
        "{operand}'s extent overflows: {rows} x {cols}, leading dimension {leading}, {batch} matrices {stride} apart"
    )]
    Overflow {
        /// Whose.
        operand: OperandName,
        /// Stored rows.
        rows: usize,
        /// Elements of a stored row.
        cols: usize,
        /// Elements from row to row.
        leading: i64,
        /// Matrices.
        batch: usize,
        /// Elements from matrix to matrix.
        stride: i64,
    },
    /// An alignment that cannot be.
    #[error("{operand}'s stated alignment of {bytes} bytes must be a power of two and at least an element's {element}")]
    Alignment {
        /// Whose.
        operand: OperandName,
        /// The stated alignment.
        bytes: u32,
        /// Bytes of an element.
        element: usize,
    },
    /// A pointer is less aligned than its plan was told.
    #[error(
        "{operand} at {address:#x} is not aligned to the {promised} bytes that the plan was made for; plan with this pointer's alignment"
    )]
    Misaligned {
        /// Whose.
        operand: OperandName,
        /// Where it is.
        address: u64,
        /// What the plan relies on.
        promised: u32,
    },
    /// A pointer's memory ends before the matrix does.
    #[error("{operand} needs {needed} bytes from its first element on, and {given} were given")]
    TooSmall {
        /// Whose.
        operand: OperandName,
        /// Bytes the layout spans.
        needed: usize,
        /// Bytes behind the pointer.
        given: usize,
    },
    /// The epilogue wants a bias and none was given, or the other way round.
    #[error("a bias was {}, but the epilogue {}", if *.given { "given" } else { "not given" }, if *.given { "takes none" } else { "needs one" })]
    Bias {
        /// Whether a bias was given.
        given: bool,
    },
    /// Workspace too small or misaligned.
    #[error("the workspace must hold {needed} bytes at a multiple of 256, and is {given} bytes at {address:#x}")]
    Workspace {
        /// Bytes the plan needs.
        needed: usize,
        /// Bytes given.
        given: usize,
        /// Where.
        address: u64,
    },
}

/// A list of faults, one a line.
#[derive(Clone, Debug, PartialEq)]
pub struct Faults(pub Vec<Fault>);

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|fault| write!(f, "\n  - {fault}"))
    }
}

/// A status that cuBLASLt returned.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Status(pub u32);

impl Status {
    /// cuBLASLt's name for it.
    pub const fn name(self) -> &'static str {
        match self.0 {
            0 => "CUBLAS_STATUS_SUCCESS",
            1 => "CUBLAS_STATUS_NOT_INITIALIZED",
            3 => "CUBLAS_STATUS_ALLOC_FAILED",
            7 => "CUBLAS_STATUS_INVALID_VALUE",
            8 => "CUBLAS_STATUS_ARCH_MISMATCH",
            11 => "CUBLAS_STATUS_MAPPING_ERROR",
            13 => "CUBLAS_STATUS_EXECUTION_FAILED",
            14 => "CUBLAS_STATUS_INTERNAL_ERROR",
            15 => "CUBLAS_STATUS_NOT_SUPPORTED",
            16 => "CUBLAS_STATUS_LICENSE_ERROR",
            _ => "unknown cuBLAS status",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.0)
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// cuBLASLt was not found, or the runtime failed.
    #[error(transparent)]
    Runtime(#[from] curt::Error),
    /// The description is not a legal product. Nothing was called.
    #[error("cannot plan the product {gemm}:{faults}")]
    Invalid {
        /// The whole description.
        gemm: Box<Gemm>,
        /// Everything that is wrong with it.
        faults: Faults,
    },
    /// The operands do not fit the plan. Nothing was launched.
    #[error("cannot launch the product {gemm}:{faults}")]
    Operands {
        /// The whole description.
        gemm: Box<Gemm>,
        /// Everything that is wrong with them.
        faults: Faults,
    },
    /// cuBLASLt knows no algorithm for this product under these conditions.
    #[error(
        "cuBLASLt {}.{}.{} has no deterministic algorithm for {gemm} (pointers aligned to A {}, B {}, D {} bytes, workspace up to \
         {max_workspace} bytes): {status}; align the pointers to 16 bytes, use leading dimensions that are multiples of 8, or \
         allow more workspace", version / 10_000, version / 100 % 100, version % 100, alignment.a, alignment.b, alignment.d
    )]
    NoAlgorithm {
        /// The whole description.
        gemm: Box<Gemm>,
        /// What pointers were promised to be aligned to.
        alignment: Alignment,
        /// The most workspace it was allowed.
        max_workspace: usize,
        /// What cuBLASLt answered.
        status: Status,
        /// The library's version, `10000 * major + 100 * minor + patch`.
        version: usize,
    },
    /// A call failed.
    #[error("{call} failed with {status}{}", gemm.as_ref().map(|gemm| format!(" for {gemm}")).unwrap_or_default())]
    Call {
        /// The function.
        call: &'static str,
        /// What it returned.
        status: Status,
        /// The product it was for.
        gemm: Option<Box<Gemm>>,
    },
}

/// Checks one pointer against what the plan relies on.
pub(crate) fn pointer_faults(
    operand: OperandName,
    pointer: DevicePtr,
    needed: usize,
    promised: u32,
    faults: &mut Vec<Fault>,
) {
    if pointer.len() < needed {
        faults.push(Fault::TooSmall { operand, needed, given: pointer.len() });
    }
    if needed > 0 && !pointer.address().is_multiple_of(u64::from(promised)) {
        faults.push(Fault::Misaligned { operand, address: pointer.address(), promised });
    }
}
