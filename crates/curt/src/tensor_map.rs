//! Tensor maps: what the tensor memory accelerator of Hopper and later knows of a tensor.
//!
//! `cuTensorMapEncodeTiled` answers whatever it does not like with "invalid value". Here every rule is checked first, without a GPU, and each
//! one that is broken is named with its numbers.

mod cache;

use std::fmt;

use bytemuck::{Pod, Zeroable};

use crate::error::{Error, Result};
use crate::memory::DevicePtr;
use crate::runtime::Runtime;

pub use self::cache::TensorMapCache;

/// The most dimensions of a tensor map.
const MAX_RANK: usize = 5;

/// Rows that a ragged map counts, whatever the tensor has: see [`TensorMapBuilder::ragged`].
pub const RAGGED_ROWS: u64 = 1 << 30;

/// What a ragged map's stride wraps around at, together with [`RAGGED_ROWS`]: 2^30 such strides are 2^65 bytes, which is none.
const RAGGED_WRAP: u64 = 1 << 35;

/// Extent of the two dimensions that a ragged map has besides. More than any coordinate in them.
const RAGGED_EXTENT: u64 = 0x7fff_0000;

/// An encoded tensor map, to be passed to a kernel as a `const __grid_constant__` parameter of 128 bytes.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub struct TensorMap {
    opaque: [u64; 16],
}

const _: () = assert!(size_of::<TensorMap>() == 128);

impl fmt::Debug for TensorMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TensorMap")
    }
}

/// Element type of a tensor map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TensorMapType {
    /// Unsigned 8-bit; also 8-bit floats.
    U8,
    /// Unsigned 16-bit.
    U16,
    /// Unsigned 32-bit.
    U32,
    /// Signed 32-bit.
    I32,
    /// Unsigned 64-bit.
    U64,
    /// Signed 64-bit.
    I64,
    /// IEEE binary16.
    F16,
    /// IEEE binary32.
    F32,
    /// IEEE binary64.
    F64,
    /// bfloat16.
    Bf16,
}

impl TensorMapType {
    /// Bytes of an element.
    pub const fn size(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::U16 | Self::F16 | Self::Bf16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }

    const fn code(self) -> i32 {
        match self {
            Self::U8 => 0,
            Self::U16 => 1,
            Self::U32 => 2,
            Self::I32 => 3,
            Self::U64 => 4,
            Self::I64 => 5,
            Self::F16 => 6,
            Self::F32 => 7,
            Self::F64 => 8,
            Self::Bf16 => 9,
        }
    }

    const fn is_float(self) -> bool {
        matches!(self, Self::F16 | Self::F32 | Self::F64 | Self::Bf16)
    }
}

/// How the box is arranged in shared memory, so that its columns fall into different banks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Swizzle {
    /// As it is in memory.
    #[default]
    None,
    /// Within 32 bytes.
    Bytes32,
    /// Within 64 bytes.
    Bytes64,
    /// Within 128 bytes.
    Bytes128,
}

impl Swizzle {
    /// The bytes that a row of the box may have at most.
    const fn span(self) -> Option<usize> {
        match self {
            Self::None => None,
            Self::Bytes32 => Some(32),
            Self::Bytes64 => Some(64),
            Self::Bytes128 => Some(128),
        }
    }
}

/// Layouts with channels in slices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Interleave {
    /// Elements of the first dimension are neighbours.
    #[default]
    None,
    /// Slices of 16 bytes, as in NC/8HWC8.
    Bytes16,
    /// Slices of 32 bytes, as in NC/16HWC16.
    Bytes32,
}

/// What a load brings into the level 2 cache besides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum L2Promotion {
    /// Nothing.
    None,
    /// Up to 64 bytes.
    Bytes64,
    /// Up to 128 bytes.
    #[default]
    Bytes128,
    /// Up to 256 bytes.
    Bytes256,
}

/// What elements outside the tensor read as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OutOfBounds {
    /// Zero.
    #[default]
    Zero,
    /// A NaN, for floating-point types: it shows when a kernel uses what it should not.
    Nan,
}

/// A rule of tensor maps that is broken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorMapViolation {
    /// Too few or too many dimensions.
    #[error("{rank} dimensions, must be {at_least} to 5")]
    Rank {
        /// The dimensions.
        rank: usize,
        /// The fewest: 3 with interleaving.
        at_least: usize,
    },
    /// A list has not one element for each dimension, or for strides, one for each but the first.
    #[error("{given} {what}, must be {wanted}")]
    Count {
        /// The list.
        what: &'static str,
        /// Its length.
        given: usize,
        /// What it should be.
        wanted: usize,
    },
    /// The address is not aligned.
    #[error("address {address:#x} must be a multiple of {alignment}")]
    Address {
        /// The address.
        address: u64,
        /// The alignment.
        alignment: u64,
    },
    /// A dimension is zero or beyond 2^32.
    #[error("dimension {index} is {size}, must be 1 to 4294967296")]
    Dimension {
        /// Which.
        index: usize,
        /// Its size.
        size: u64,
    },
    /// A stride is not aligned or too large.
    #[error("stride of dimension {index} is {bytes} bytes, must be a multiple of {alignment} below 2^40")]
    Stride {
        /// Which dimension.
        index: usize,
        /// The stride.
        bytes: u64,
        /// The alignment.
        alignment: u64,
    },
    /// A side of the box is zero or beyond 256.
    #[error("box side {index} is {size}, must be 1 to 256")]
    BoxSide {
        /// Which.
        index: usize,
        /// Its size.
        size: u32,
    },
    /// The box's first side is not a whole number of 16 bytes.
    #[error("box side 0 has {bytes} bytes, must be a multiple of 16")]
    BoxRow {
        /// Its bytes.
        bytes: usize,
    },
    /// The box's first side is longer than the swizzle.
    #[error("box side 0 has {bytes} bytes, a swizzle of {span} bytes takes at most {span}")]
    SwizzleSpan {
        /// Its bytes.
        bytes: usize,
        /// The swizzle's.
        span: usize,
    },
    /// A step between elements is zero or beyond 8.
    #[error("element stride {index} is {stride}, must be 1 to 8")]
    ElementStride {
        /// Which.
        index: usize,
        /// The step.
        stride: u32,
    },
    /// A ragged map of a tensor that has too few dimensions, or too many beside its own two.
    #[error("a ragged tensor of {rank} dimensions, must be 2 or 3")]
    RaggedRank {
        /// Those of the tensor.
        rank: usize,
    },
    /// A ragged map of more rows than it can count.
    #[error("a ragged dimension of {rows} rows, must be at most {RAGGED_ROWS}")]
    RaggedRows {
        /// The rows.
        rows: u64,
    },
    /// Interleaving by 32 bytes without a swizzle of 32 bytes.
    #[error("an interleave of 32 bytes needs a swizzle of 32 bytes, not {swizzle:?}")]
    InterleaveSwizzle {
        /// The swizzle.
        swizzle: Swizzle,
    },
    /// NaN for a type that has none.
    #[error("elements outside the tensor cannot be NaN in {data_type:?}")]
    NanFill {
        /// The type.
        data_type: TensorMapType,
    },
    /// The tensor is larger than the memory that was given for it.
    #[error("the tensor takes {needed} bytes, the memory has {available}")]
    Extent {
        /// Bytes from the first to the last element.
        needed: u128,
        /// Bytes there are.
        available: usize,
    },
    /// The device has no tensor memory accelerator.
    #[error("tensor maps need compute capability 9.0, this device has {}.{}", have.0, have.1)]
    NeedsHopper {
        /// What it is.
        have: (u32, u32),
    },
}

/// Describes a tensor in device memory and the box that one load brings to shared memory.
///
/// Dimensions go from the innermost, whose elements are neighbours, outwards.
///
/// ```
/// use curt::{DevicePtr, Swizzle, TensorMap, TensorMapType};
///
/// // 4096 rows of 128 bfloat16, loaded 64 columns and 64 rows at a time.
/// let memory = DevicePtr::new(0x7000_0000, 4096 * 256);
/// let map = TensorMap::builder(TensorMapType::Bf16, memory)
///     .dims(&[128, 4096])
///     .strides(&[256])
///     .box_dims(&[64, 64])
///     .swizzle(Swizzle::Bytes128);
/// map.validate()?;
/// # Ok::<(), curt::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct TensorMapBuilder {
    data_type: TensorMapType,
    memory: DevicePtr,
    dims: Vec<u64>,
    strides: Vec<u64>,
    box_dims: Vec<u32>,
    element_strides: Option<Vec<u32>>,
    interleave: Interleave,
    swizzle: Swizzle,
    l2_promotion: L2Promotion,
    out_of_bounds: OutOfBounds,
    ragged: bool,
}

impl TensorMap {
    /// Begins the description of a tensor in `memory`.
    pub fn builder(data_type: TensorMapType, memory: DevicePtr) -> TensorMapBuilder {
        TensorMapBuilder {
            data_type,
            memory,
            dims: Vec::new(),
            strides: Vec::new(),
            box_dims: Vec::new(),
            element_strides: None,
            interleave: Interleave::default(),
            swizzle: Swizzle::default(),
            l2_promotion: L2Promotion::default(),
            out_of_bounds: OutOfBounds::default(),
            ragged: false,
        }
    }
}

impl TensorMapBuilder {
    /// Elements of each dimension, innermost first.
    #[must_use]
    pub fn dims(mut self, dims: &[u64]) -> Self {
        self.dims = dims.to_vec();
        self
    }

    /// Bytes from one element to the next in each dimension but the innermost.
    #[must_use]
    pub fn strides(mut self, bytes: &[u64]) -> Self {
        self.strides = bytes.to_vec();
        self
    }

    /// Elements of the box in each dimension, innermost first.
    #[must_use]
    pub fn box_dims(mut self, dims: &[u32]) -> Self {
        self.box_dims = dims.to_vec();
        self
    }

    /// Takes every n-th element of each dimension only.
    #[must_use]
    pub fn element_strides(mut self, strides: &[u32]) -> Self {
        self.element_strides = Some(strides.to_vec());
        self
    }

    /// Sets the arrangement in shared memory.
    #[must_use]
    pub fn swizzle(mut self, swizzle: Swizzle) -> Self {
        self.swizzle = swizzle;
        self
    }

    /// Sets the layout of sliced channels.
    #[must_use]
    pub fn interleave(mut self, interleave: Interleave) -> Self {
        self.interleave = interleave;
        self
    }

    /// Sets what is brought into the level 2 cache.
    #[must_use]
    pub fn l2_promotion(mut self, promotion: L2Promotion) -> Self {
        self.l2_promotion = promotion;
        self
    }

    /// Sets what elements outside the tensor read as.
    #[must_use]
    pub fn out_of_bounds(mut self, fill: OutOfBounds) -> Self {
        self.out_of_bounds = fill;
        self
    }

    /// Makes the map one of many sequences of rows, one after another in the last dimension, each of which ends for the copy engine where it
    /// ends in truth: boxes that reach beyond are filled up, or not written there, as at the end of a tensor. Where sequences lie
    /// is told with each copy, so lengths may be known to the device alone.
    ///
    /// The tensor has two or three dimensions, and the map two more, in which boxes have extent 1. The box from row `row` on of the
    /// sequence of `len` rows that begins at row `first` of the tensor is the one at
    ///
    /// | dimension | coordinate |
    /// |---|---|
    /// | the tensor's last, of [`RAGGED_ROWS`] rows | `RAGGED_ROWS - len + row`: the sequence ends where the map does |
    /// | the one before the last, with the stride of a row | `first + len` |
    /// | the last, with a stride of 2^35 bytes less a row | `RAGGED_ROWS`: minus that many rows, as addresses count modulo 2^64 |
    ///
    /// What the boxes touch must lie in the tensor, for nothing else than the sequence's end is a bound: `first + len` must not exceed
    /// its rows.
    #[must_use]
    pub fn ragged(mut self) -> Self {
        self.ragged = true;
        self
    }

    /// As the driver is told: dimensions, strides and box sides, with those that a ragged map has besides.
    fn encoded(&self) -> (Vec<u64>, Vec<u64>, Vec<u32>) {
        let (mut dims, mut strides, mut sides) = (self.dims.clone(), self.strides.clone(), self.box_dims.clone());
        if let (true, Some(rows), Some(&row)) = (self.ragged, dims.last_mut(), self.strides.last()) {
            *rows = RAGGED_ROWS;
            dims.extend([RAGGED_EXTENT; 2]);
            strides.extend([row, RAGGED_WRAP.wrapping_sub(row)]);
            sides.extend([1; 2]);
        }
        (dims, strides, sides)
    }

    /// Checks every rule. Needs no GPU.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidTensorMap`] with all that are broken.
    pub fn validate(&self) -> Result<()> {
        let violations = self.violations();
        if violations.is_empty() { Ok(()) } else { Err(Error::InvalidTensorMap { violations }) }
    }

    fn violations(&self) -> Vec<TensorMapViolation> {
        use TensorMapViolation as Broken;
        let mut broken = Vec::new();
        let (dims, strides, box_dims) = self.encoded();
        let rank = dims.len();
        let at_least = if self.interleave == Interleave::None { 1 } else { 3 };
        if !(at_least..=MAX_RANK).contains(&rank) {
            broken.push(Broken::Rank { rank, at_least });
        }
        let mut count = |what, given, wanted| {
            if given != wanted {
                broken.push(Broken::Count { what, given, wanted });
            }
        };
        count("strides", strides.len(), rank.saturating_sub(1));
        count("box sides", box_dims.len(), rank);
        if let Some(strides) = &self.element_strides {
            count("element strides", strides.len(), rank);
        }

        let alignment = if self.interleave == Interleave::Bytes32 { 32 } else { 16 };
        let address = self.memory.address();
        if !address.is_multiple_of(alignment) || address == 0 {
            broken.push(Broken::Address { address, alignment });
        }
        if self.ragged {
            if !(2..=MAX_RANK - 2).contains(&self.dims.len()) {
                broken.push(Broken::RaggedRank { rank: self.dims.len() });
            }
            if let Some(&rows) = self.dims.last().filter(|&&rows| rows > RAGGED_ROWS) {
                broken.push(Broken::RaggedRows { rows });
            }
        }
        for (index, &size) in dims.iter().enumerate() {
            if size == 0 || size > 1 << 32 {
                broken.push(Broken::Dimension { index, size });
            }
        }
        for (index, &bytes) in strides.iter().enumerate() {
            if !bytes.is_multiple_of(alignment) || bytes >= 1 << 40 {
                broken.push(Broken::Stride { index: index + 1, bytes, alignment });
            }
        }
        for (index, &size) in box_dims.iter().enumerate() {
            if size == 0 || size > 256 {
                broken.push(Broken::BoxSide { index, size });
            }
        }
        for (index, &stride) in self.element_strides.iter().flatten().enumerate() {
            if stride == 0 || stride > 8 {
                broken.push(Broken::ElementStride { index, stride });
            }
        }
        self.row_violations(&mut broken);
        if self.interleave == Interleave::Bytes32 && self.swizzle != Swizzle::Bytes32 {
            broken.push(Broken::InterleaveSwizzle { swizzle: self.swizzle });
        }
        if self.out_of_bounds == OutOfBounds::Nan && !self.data_type.is_float() {
            broken.push(Broken::NanFill { data_type: self.data_type });
        }
        let needed = self.extent();
        if needed > self.memory.len() as u128 {
            broken.push(Broken::Extent { needed, available: self.memory.len() });
        }
        broken
    }

    /// The rules of the box's first side, which hold where channels are not sliced.
    fn row_violations(&self, broken: &mut Vec<TensorMapViolation>) {
        let Some(&row) = self.box_dims.first() else { return };
        if self.interleave != Interleave::None {
            return;
        }
        let bytes = row as usize * self.data_type.size();
        if !bytes.is_multiple_of(16) {
            broken.push(TensorMapViolation::BoxRow { bytes });
        }
        if let Some(span) = self.swizzle.span().filter(|&span| bytes > span) {
            broken.push(TensorMapViolation::SwizzleSpan { bytes, span });
        }
    }

    /// Bytes from the first to the last element.
    fn extent(&self) -> u128 {
        let size = self.data_type.size() as u128;
        let strides = std::iter::once(size).chain(self.strides.iter().map(|&stride| u128::from(stride)));
        let last = |(&count, stride): (&u64, u128)| u128::from(count.saturating_sub(1)).saturating_mul(stride);
        self.dims.iter().zip(strides).map(last).fold(size, u128::saturating_add)
    }

    /// Checks every rule, and encodes.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidTensorMap`] with all rules that are broken, or what the driver says.
    pub fn build(&self, runtime: &Runtime) -> Result<TensorMap> {
        let mut violations = self.violations();
        let have = runtime.capabilities().compute_capability;
        if have.0 < 9 {
            violations.push(TensorMapViolation::NeedsHopper { have });
        }
        if !violations.is_empty() {
            return Err(Error::InvalidTensorMap { violations });
        }
        let (dims, known_strides, box_dims) = self.encoded();
        let rank = dims.len();
        let element_strides = self.element_strides.clone().unwrap_or_else(|| vec![1; rank]);
        // The driver reads one stride a dimension but the innermost, and may not be given a dangling pointer for none.
        let mut strides = [0u64; MAX_RANK];
        strides[..known_strides.len()].copy_from_slice(&known_strides);
        let mut map = TensorMap::zeroed();
        runtime.bind()?;
        let driver = runtime.core().driver;
        // SAFETY: the map has the driver's size and alignment, and every array has the length that `rank` states, as was just checked.
        let code = unsafe {
            driver.table.cuTensorMapEncodeTiled(
                (&raw mut map).cast(),
                self.data_type.code(),
                rank as u32,
                self.memory.address() as *mut std::ffi::c_void,
                dims.as_ptr(),
                strides.as_ptr(),
                box_dims.as_ptr(),
                element_strides.as_ptr(),
                self.interleave as i32,
                self.swizzle as i32,
                self.l2_promotion as i32,
                self.out_of_bounds as i32,
            )
        };
        driver.check("cuTensorMapEncodeTiled", code)?;
        Ok(map)
    }
}

#[cfg(test)]
mod tests;
