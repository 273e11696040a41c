//! The kernels around attention that graph operators need: caches that grow, biases that are packed.
//!
//! | root file | entry | does |
//! |---|---|---|
//! | `ep/gather_rows.cu` | `gather_rows` | past and new rows into one tensor, for up to three tensors at once |
//! | `ep/pack_bias.cu` | `pack_bias` | a padding mask and an additive bias into one float32 bias |
//! | `ep/fill.cu` | `fill` | one integer, for each sequence the same |

use bytemuck::{Pod, Zeroable};

use crate::abi::Strides;
use crate::{Architecture, Element, Source, Variant};

/// Threads of a block of each kernel here.
pub const THREADS: u32 = 256;

/// Rows of a block of [`gather_rows`].
pub const TILE_ROWS: usize = 64;

/// Tensors of a launch of [`gather_rows`].
pub const MOST_TENSORS: usize = 3;

/// The source of the gathering of rows. The kernel takes a [`GatherParams`]; the grid is `[blocks, tensors, 1]`, with
/// `slices * ceil(rows / TILE_ROWS)` blocks for the tensor that has most.
pub fn gather_rows(element: Element) -> Source {
    Source::new("ep/gather_rows.cu", "gather_rows").define("ELEMENT", element as u32)
}

/// The source of the packing of a bias; `element` is that of the additive one. The kernel takes a [`PackBiasParams`].
pub fn pack_bias(element: Element) -> Source {
    Source::new("ep/pack_bias.cu", "pack_bias").define("ELEMENT", element as u32)
}

/// The source of the filling of an array of 64-bit integers. The kernel takes a [`FillParams`].
pub fn fill() -> Source {
    Source::new("ep/fill.cu", "fill")
}

/// One tensor of a [`gather_rows`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub struct GatherTensor {
    /// Device address of the rows that come first, or 0.
    pub past: u64,
    /// Device address of the rows that come then.
    pub new: u64,
    /// Device address of a vector `[heads, dim]` that is added to each new row, or 0.
    pub add: u64,
    /// Device address of the result.
    pub target: u64,
    /// Layout of the past.
    pub from_past: Strides,
    /// Layout of the new rows.
    pub from_new: Strides,
    /// Layout of the result.
    pub to: Strides,
    /// `batch * heads`.
    pub slices: i32,
    /// Heads.
    pub heads: i32,
    /// Rows of the past.
    pub past_rows: i32,
    /// Rows of the result.
    pub rows: i32,
    /// Elements of a row.
    pub dim: i32,
    /// 1 where every row, in all three, can be taken in pieces of 16 bytes.
    pub wide: i32,
}

/// What [`gather_rows`] takes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub struct GatherParams {
    /// The tensors.
    pub tensors: [GatherTensor; MOST_TENSORS],
}

/// What [`PackBiasParams::padding`] holds, as `ep/pack_bias.cu` numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PaddingForm {
    /// `[batch]`: how many keys are there.
    Lengths = 0,
    /// `[batch, keys]`: 0 where a key is not there.
    Keys = 1,
    /// `[batch, rows, keys]`: likewise, for each query row.
    QueryKeys = 2,
}

/// What [`pack_bias`] takes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub struct PackBiasParams {
    /// Device address of the padding mask, 32-bit integers.
    pub padding: u64,
    /// Device address of the additive bias, or 0.
    pub bias: u64,
    /// Device address of the float32 result `[batch, heads, rows, keys]`.
    pub target: u64,
    /// Element stride of the additive bias from one sequence to the next.
    pub bias_batch: i64,
    /// Element stride of the additive bias from one head to the next.
    pub bias_head: i64,
    /// Element stride of the additive bias from one row to the next.
    pub bias_row: i64,
    /// Elements of the result.
    pub count: i64,
    /// Heads of the result.
    pub heads: i32,
    /// Rows of the result.
    pub rows: i32,
    /// Keys of the result.
    pub keys: i32,
    /// A [`PaddingForm`].
    pub form: i32,
    /// What is added where a key is not there.
    pub filter: f32,
    /// Padding.
    pub reserved: i32,
}

/// What [`fill`] takes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub struct FillParams {
    /// Device address of 64-bit integers.
    pub target: u64,
    /// What each becomes.
    pub value: i64,
    /// How many.
    pub count: i32,
    /// Padding.
    pub reserved: i32,
}

/// The variants of the compile suite: all that there are.
pub fn variants() -> Vec<Variant> {
    let mut list = Vec::new();
    let mut push = |name: String, source: Source| {
        list.push(Variant { name, source, architectures: Architecture::FROM_AMPERE, tuned: true });
    };
    for element in Element::ALL {
        push(format!("ep/gather_rows {}", element.name()), gather_rows(element));
        push(format!("ep/pack_bias {}", element.name()), pack_bias(element));
    }
    push("ep/fill".to_owned(), fill());
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structs_have_the_size_that_the_device_sees() {
        assert_eq!(size_of::<GatherTensor>(), 4 * 8 + 3 * 24 + 24);
        assert_eq!(size_of::<GatherParams>(), MOST_TENSORS * size_of::<GatherTensor>());
        assert_eq!(size_of::<PackBiasParams>(), 7 * 8 + 24);
        assert_eq!(size_of::<FillParams>(), 24);
    }
}
