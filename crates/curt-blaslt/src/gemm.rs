//! What a matrix product is: extents, types, layouts, epilogue. Pure data, checked without a GPU.

use std::fmt;

use crate::error::{Fault, OperandName};

/// Element type of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ElementType {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// bfloat16.
    Bf16,
}

impl ElementType {
    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        })
    }
}

/// How float32 inputs are multiplied. 16-bit inputs always accumulate in float32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Compute {
    /// Float32 multiplications and additions. TF32 is never used.
    #[default]
    Strict,
    /// Inputs are rounded to 10 bits of mantissa and multiplied on tensor cores. Only for float32 inputs.
    Tf32,
}

/// Whether a matrix is stored as the product reads it, or transposed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Transpose {
    /// Stored as read.
    #[default]
    No,
    /// Stored transposed.
    Yes,
}

/// What is applied to the product before it is stored. A bias is a vector of `n` elements of D's type, one a column of D, shared
/// by the whole batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Epilogue {
    /// Nothing.
    #[default]
    None,
    /// `d + bias`.
    Bias,
    /// `max(d, 0)`.
    Relu,
    /// `max(d + bias, 0)`.
    ReluBias,
    /// The tanh approximation of GELU.
    Gelu,
    /// The tanh approximation of GELU of `d + bias`.
    GeluBias,
}

impl Epilogue {
    /// Every epilogue, for tests and tables.
    pub const ALL: [Self; 6] = [Self::None, Self::Bias, Self::Relu, Self::ReluBias, Self::Gelu, Self::GeluBias];

    /// Whether a bias vector must be given at launch.
    pub const fn has_bias(self) -> bool {
        matches!(self, Self::Bias | Self::ReluBias | Self::GeluBias)
    }
}

/// Row-major storage of one operand of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Matrix {
    /// Whether the stored matrix is the transpose of the one the product reads.
    pub transpose: Transpose,
    /// Elements from one stored row to the next: at least a stored row's length, where there is more than one row.
    pub leading: i64,
    /// Elements from one matrix of the batch to the next. 0 is legal for inputs: the whole batch reads one matrix.
    pub batch_stride: i64,
}

impl Matrix {
    /// Stored as the product reads it.
    pub const fn row_major(leading: i64, batch_stride: i64) -> Self {
        Self { transpose: Transpose::No, leading, batch_stride }
    }

    /// Stored as its transpose.
    pub const fn transposed(leading: i64, batch_stride: i64) -> Self {
        Self { transpose: Transpose::Yes, leading, batch_stride }
    }
}

/// Where D (and C, which shares its layout) lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Output {
    /// Elements from one row to the next.
    pub leading: i64,
    /// Elements from one matrix of the batch to the next. Matrices may interleave but not overlap.
    pub batch_stride: i64,
}

/// One strided-batched product, all matrices row-major:
/// `D[m, n] = epilogue(alpha * A[m, k] * B[k, n] + beta * C[m, n])`.
///
/// ```
/// use curt_blaslt::{ElementType, Gemm, Matrix};
/// // Scores of 8 heads that share one key matrix: q [8, 512, 64], k [512, 64] read as its transpose.
/// let mut gemm = Gemm::packed(512, 512, 64, ElementType::F16);
/// gemm.batch = 8;
/// gemm.a = Matrix::row_major(64, 512 * 64);
/// gemm.b = Matrix::transposed(64, 0);
/// gemm.output_type = ElementType::F32;
/// gemm.d.batch_stride = 512 * 512;
/// assert!(gemm.faults().is_empty());
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Gemm {
    /// Rows of A and D.
    pub m: usize,
    /// Columns of B and D.
    pub n: usize,
    /// Columns of A, rows of B. 0 is legal: the product is then all zeros.
    pub k: usize,
    /// Products in the batch. 0 is legal: nothing is done.
    pub batch: usize,
    /// Type of A and B.
    pub input_type: ElementType,
    /// Type of C, D and the bias: `input_type` or F32.
    pub output_type: ElementType,
    /// How float32 is multiplied.
    pub compute: Compute,
    /// Layout of A.
    pub a: Matrix,
    /// Layout of B.
    pub b: Matrix,
    /// Layout of D and C.
    pub d: Output,
    /// Factor on the product.
    pub alpha: f32,
    /// Factor on C. Where it is 0, C is not read: NaN there does not matter.
    pub beta: f32,
    /// What is applied before D is stored.
    pub epilogue: Epilogue,
}

impl Gemm {
    /// One product of contiguous matrices of one type, `alpha` 1 and `beta` 0. Set what differs.
    pub const fn packed(m: usize, n: usize, k: usize, element: ElementType) -> Self {
        Self {
            m,
            n,
            k,
            batch: 1,
            input_type: element,
            output_type: element,
            compute: Compute::Strict,
            a: Matrix::row_major(k as i64, m.saturating_mul(k) as i64),
            b: Matrix::row_major(n as i64, k.saturating_mul(n) as i64),
            d: Output { leading: n as i64, batch_stride: m.saturating_mul(n) as i64 },
            alpha: 1.0,
            beta: 0.0,
            epilogue: Epilogue::None,
        }
    }

    /// Whether D has no element: such a product is legal and launches nothing.
    pub const fn is_empty(&self) -> bool {
        self.m == 0 || self.n == 0 || self.batch == 0
    }

    /// Floating-point operations of the whole batch.
    pub fn flops(&self) -> f64 {
        2.0 * self.m as f64 * self.n as f64 * self.k as f64 * self.batch as f64
    }

    /// Everything that is wrong with the description; empty where it is legal.
    pub fn faults(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        if self.output_type != self.input_type && self.output_type != ElementType::F32 {
            faults.push(Fault::OutputType { input: self.input_type, output: self.output_type });
        }
        if self.compute == Compute::Tf32 && self.input_type != ElementType::F32 {
            faults.push(Fault::Tf32Input { input: self.input_type });
        }
        for (name, value) in [("alpha", self.alpha), ("beta", self.beta)] {
            if !value.is_finite() {
                faults.push(Fault::Factor { name, value });
            }
        }
        for (name, value) in [("m", self.m), ("n", self.n), ("k", self.k), ("batch", self.batch)] {
            if value > i32::MAX as usize {
                faults.push(Fault::Extent { name, value });
            }
        }
        if !faults.is_empty() || self.is_empty() {
            return faults;
        }
        let StoredOperands { a, b, d } = self.stored();
        // Without a column of A nothing of A and B is read.
        let inputs = [(OperandName::A, a), (OperandName::B, b)].into_iter().filter(|_| self.k > 0);
        for (operand, stored) in inputs.chain([(OperandName::D, d)]) {
            let Stored { rows, cols, leading, batch_stride, .. } = stored;
            if leading < 0 || (rows > 1 && leading < cols as i64) {
                faults.push(Fault::Leading { operand, leading, rows, cols });
            } else if batch_stride < 0 {
                faults.push(Fault::BatchStride { operand, stride: batch_stride });
            } else if stored.bytes(self.batch).is_none() {
                faults.push(Fault::Overflow { operand, rows, cols, leading, batch: self.batch, stride: batch_stride });
            } else if operand == OperandName::D
                && let Some(apart) = stored.overlap(self.batch)
            {
                faults.push(Fault::OutputOverlap { leading, stride: batch_stride, apart });
            }
        }
        faults
    }

    /// The matrices as they lie in memory.
    pub(crate) fn stored(&self) -> StoredOperands {
        let input = |matrix: Matrix, rows: usize, cols: usize| {
            let (rows, cols) = match matrix.transpose {
                Transpose::No => (rows, cols),
                Transpose::Yes => (cols, rows),
            };
            let Matrix { leading, batch_stride, .. } = matrix;
            Stored { rows, cols, leading, batch_stride, element: self.input_type }
        };
        let Output { leading, batch_stride } = self.d;
        StoredOperands {
            a: input(self.a, self.m, self.k),
            b: input(self.b, self.k, self.n),
            d: Stored { rows: self.m, cols: self.n, leading, batch_stride, element: self.output_type },
        }
    }
}

impl fmt::Display for Gemm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = |matrix: Matrix| match matrix.transpose {
            Transpose::No => "n",
            Transpose::Yes => "t",
        };
        write!(
            f,
            "{}x {}x{}x{} {}->{} {:?}, A {} ld {} stride {}, B {} ld {} stride {}, D ld {} stride {}, alpha {}, beta {}, \
             epilogue {:?}",
            self.batch,
            self.m,
            self.n,
            self.k,
            self.input_type,
            self.output_type,
            self.compute,
            letter(self.a),
            self.a.leading,
            self.a.batch_stride,
            letter(self.b),
            self.b.leading,
            self.b.batch_stride,
            self.d.leading,
            self.d.batch_stride,
            self.alpha,
            self.beta,
            self.epilogue,
        )
    }
}

/// The three matrix batches of a product.
pub(crate) struct StoredOperands {
    pub(crate) a: Stored,
    pub(crate) b: Stored,
    pub(crate) d: Stored,
}

/// A row-major matrix batch as it lies in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stored {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) leading: i64,
    pub(crate) batch_stride: i64,
    pub(crate) element: ElementType,
}

impl Stored {
    /// The leading dimension that cuBLASLt accepts: it wants one of a row's length even where there is only one row.
    pub(crate) fn accepted_leading(&self) -> i64 {
        self.leading.max(self.cols as i64)
    }

    /// Bytes from the first element to past the last one; `None` where that does not fit in 63 bits.
    pub(crate) fn bytes(&self, batch: usize) -> Option<usize> {
        if self.rows == 0 || self.cols == 0 || batch == 0 {
            return Some(0);
        }
        let row = i64::try_from(self.rows - 1).ok()?.checked_mul(self.leading)?;
        let matrix = i64::try_from(batch - 1).ok()?.checked_mul(self.batch_stride)?;
        let elements = row.checked_add(matrix)?.checked_add(i64::try_from(self.cols).ok()?)?;
        usize::try_from(elements.checked_mul(self.element.size() as i64)?).ok()
    }

    /// How many matrices of the batch apart two matrices that share an element are, if any do.
    fn overlap(&self, batch: usize) -> Option<usize> {
        let (leading, cols) = (self.leading.max(1), self.cols as i64);
        let last_row = self.rows as i64 - 1;
        // Matrix 0 against matrix `apart`: rows collide where the distance of two row starts is less than a row's length.
        (1..batch).find(|&apart| {
            let distance = self.batch_stride * apart as i64;
            let below = (distance / leading).min(last_row);
            let above = (distance / leading + 1).min(last_row);
            [below, above].into_iter().any(|row| (distance - row * leading).abs() < cols)
        })
    }
}

/// Pointer alignments, in bytes, that an algorithm may rely on. Powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Alignment {
    /// Of A's first element.
    pub a: u32,
    /// Of B's first element.
    pub b: u32,
    /// Of C's and D's first elements.
    pub d: u32,
}

impl Alignment {
    /// What our own allocations have: the most that cuBLASLt makes use of.
    pub const FULL: Self = Self { a: 256, b: 256, d: 256 };

    /// One alignment for all.
    pub const fn uniform(bytes: u32) -> Self {
        Self { a: bytes, b: bytes, d: bytes }
    }

    /// What one address is aligned to, at most 256.
    pub const fn of_address(address: u64) -> u32 {
        if address == 0 {
            return 256;
        }
        let zeros = address.trailing_zeros();
        1 << if zeros > 8 { 8 } else { zeros }
    }

    pub(crate) fn faults(&self, gemm: &Gemm) -> Vec<Fault> {
        let (input, output) = (gemm.input_type.size(), gemm.output_type.size());
        [(OperandName::A, self.a, input), (OperandName::B, self.b, input), (OperandName::D, self.d, output)]
            .into_iter()
            .filter(|&(_, bytes, element)| !bytes.is_power_of_two() || (bytes as usize) < element)
            .map(|(operand, bytes, element)| Fault::Alignment { operand, bytes, element })
            .collect()
    }
}
