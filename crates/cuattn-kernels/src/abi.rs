//! Launch structs, mirrored field for field by `cuda/params.cuh`.

use bytemuck::{Pod, Zeroable};

/// Element strides of a `[batch, head, row, dim]` tensor.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub struct Strides {
    /// From one sequence to the next.
    pub batch: i64,
    /// From one head to the next.
    pub head: i64,
    /// From one row to the next.
    pub row: i64,
}

/// `MaskParams::alignment`: offset 0.
pub const ALIGN_TOP_LEFT: i32 = 0;
/// `MaskParams::alignment`: offset `keys - q_len`.
pub const ALIGN_BOTTOM_RIGHT: i32 = 1;
/// `MaskParams::alignment`: offset from `query_offsets`.
pub const ALIGN_PER_BATCH: i32 = 2;

/// `MaskParams::lengths`: all `kv_len` keys.
pub const LENGTHS_FULL: i32 = 0;
/// `MaskParams::lengths`: `key_lengths[batch]` keys.
pub const LENGTHS_PER_BATCH: i32 = 1;
/// `MaskParams::lengths`: `key_lengths[batch] + q_len` keys.
pub const LENGTHS_PAST_PLUS_QUERY: i32 = 2;

/// Which keys a row may see.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub struct MaskParams {
    /// Device address of the bias, or 0.
    pub bias: u64,
    /// Element stride of the bias from one sequence to the next.
    pub bias_batch: i64,
    /// Element stride of the bias from one query head to the next.
    pub bias_head: i64,
    /// Element stride of the bias from one query row to the next.
    pub bias_row: i64,
    /// Element stride of the bias from one key to the next.
    pub bias_key: i64,
    /// Device address of `[batch]` lengths, or 0.
    pub key_lengths: u64,
    /// Device address of `[batch]` offsets, or 0.
    pub query_offsets: u64,
    /// Keys `j >= p - window_left`; negative for no limit, else less than 2^30.
    pub window_left: i64,
    /// Keys `j <= p + window_right`; negative for no limit, 0 for causal, else less than 2^30.
    pub window_right: i64,
    /// Query rows of a sequence.
    pub q_len: i32,
    /// Keys of a sequence, before device lengths.
    pub kv_len: i32,
    /// Keys from here on are masked.
    pub bias_keys: i32,
    /// One of the `ALIGN_` constants.
    pub alignment: i32,
    /// One of the `LENGTHS_` constants.
    pub lengths: i32,
    /// 1 where `key_lengths` holds 64-bit integers.
    pub key_lengths_64: i32,
    /// 1 where `query_offsets` holds 64-bit integers.
    pub query_offsets_64: i32,
    /// Padding.
    pub reserved: i32,
}

/// What happens to a score before the softmax.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub struct ScoreParams {
    /// Device addresses of the user's buffers, or 0.
    pub buffers: [u64; 4],
    /// Factor on `q.k`.
    pub scale: f32,
    /// `c` of `c * tanh(s / c)`.
    pub softcap: f32,
}

/// A number to divide by on the device, prepared here: `n / value` is `n * multiplier >> shift` for `n` below 2^31.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Divisor {
    /// The factor.
    pub multiplier: u32,
    /// What the product is shifted by.
    pub shift: i32,
    /// The number itself.
    pub value: i32,
}

impl Divisor {
    /// To divide by `value`, from 1 to 2^31 - 1.
    pub fn new(value: i32) -> Self {
        // With the least power of two that is not below the value, 2^shift / value lies between 2^31 and 2^32; rounding it up adds less
        // than 2^-31 of itself, which changes no quotient of a number below 2^31.
        let shift = 31 + value.max(1).unsigned_abs().next_power_of_two().trailing_zeros();
        let multiplier = (1_u64 << shift).div_ceil(u64::from(value.max(1).unsigned_abs()));
        Self { multiplier: multiplier as u32, shift: shift as i32, value }
    }
}

/// In which order the tiles of a launch are numbered: by sections of head units, in each the last rows first, and units innermost.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct TileOrder {
    /// Head units whose tiles are drawn together.
    pub section: Divisor,
    /// The same of the last section, which may be smaller.
    pub last_section: Divisor,
    /// Tiles of a section that is not the last.
    pub section_tiles: Divisor,
    /// Head units of a sequence.
    pub units: Divisor,
    /// Query heads that share a K/V head.
    pub group: Divisor,
    /// Sections before the last.
    pub whole_sections: i32,
    /// Tiles over the packed rows of a head unit.
    pub row_tiles: i32,
    /// Padding.
    pub reserved: i32,
}

impl TileOrder {
    /// For packed sequences, which have tiles of their own: `units` head units of a sequence, and `group` query heads that share a K/V
    /// head.
    pub fn of_heads(units: usize, group: usize) -> Self {
        Self { units: Divisor::new(units as i32), group: Divisor::new(group as i32), ..Self::default() }
    }

    /// The order of `row_tiles` tiles for each of `batch * units` head units, `section` of which are drawn together. There must be fewer
    /// than 2^31 tiles, and at least one.
    pub fn new(batch: usize, units: usize, group: usize, section: usize, row_tiles: usize) -> Self {
        let divisor = |value: usize| Divisor::new(value as i32);
        let whole_sections = (batch * units).saturating_sub(1) / section.max(1);
        Self {
            section: divisor(section),
            last_section: divisor(batch * units - whole_sections * section),
            // Where there is no whole section this may be more than there are tiles, and more than 31 bits hold.
            section_tiles: divisor((section * row_tiles).min(i32::MAX as usize)),
            units: divisor(units),
            group: divisor(group),
            whole_sections: whole_sections as i32,
            row_tiles: row_tiles as i32,
            reserved: 0,
        }
    }
}

/// Everything a fused attention kernel needs.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub struct FlashParams {
    /// Device address of the queries.
    pub q: u64,
    /// Device address of the keys.
    pub k: u64,
    /// Device address of the values.
    pub v: u64,
    /// Device address of the output.
    pub o: u64,
    /// Device address of one float32 a query head, or 0.
    pub sinks: u64,
    /// Device address of the log-sum-exp output, or 0.
    pub log_sum_exp: u64,
    /// Strides of q.
    pub q_strides: Strides,
    /// Strides of k.
    pub k_strides: Strides,
    /// Strides of v.
    pub v_strides: Strides,
    /// Strides of o.
    pub o_strides: Strides,
    /// Which keys a row may see.
    pub mask: MaskParams,
    /// What happens to a score before the softmax.
    pub score: ScoreParams,
    /// Sequences.
    pub batch: i32,
    /// Query heads.
    pub q_heads: i32,
    /// Key and value heads.
    pub kv_heads: i32,
    /// Elements of a query or key vector.
    pub head_dim: i32,
    /// Elements of a value vector.
    pub v_head_dim: i32,
    /// Query heads folded into the rows of a tile: 1, or all of a group.
    pub pack: i32,
    /// In which order tiles are numbered.
    pub order: TileOrder,
}

/// What the Hopper path takes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub struct Sm90Params {
    /// What every fused kernel needs.
    pub flash: FlashParams,
    /// What it needs beside.
    pub hopper: HopperParams,
}

/// What the Hopper path needs beside [`FlashParams`] or [`VarlenParams`]: how it draws tiles, and how its maps are stepped through.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub struct HopperParams {
    /// Device address of a 32-bit counter that is 0 before the launch and after it.
    pub counter: u64,
    /// Tiles of the launch; of packed sequences, whose number only the device knows, unused.
    pub tiles: i32,
    /// 0 where the map of K has one head for all, else 1.
    pub k_head_step: i32,
    /// 0 where the map of K has one sequence for all, else 1.
    pub k_batch_step: i32,
    /// 0 where the map of V has one head for all, else 1.
    pub v_head_step: i32,
    /// 0 where the map of V has one sequence for all, else 1.
    pub v_batch_step: i32,
    /// 0 where the map of the bias has one head for all, else 1.
    pub bias_head_step: i32,
    /// 0 where the map of the bias has one sequence for all, else 1.
    pub bias_batch_step: i32,
    /// Padding.
    pub reserved: i32,
}

/// What float32 on Hopper's tensor cores needs beside [`FlashParams`]. Everything behind `flash` is the launch's own memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub struct Sm90F32Params {
    /// What every fused kernel needs.
    pub flash: FlashParams,
    /// Device address of `[2, batch, heads, rows, dim]` f16 halves of q, the high ones first.
    pub q: u64,
    /// The same of k.
    pub k: u64,
    /// The same of v.
    pub v: u64,
    /// Device address of one [`HeadRange`] for each block that measures.
    pub parts: u64,
    /// Device address of one [`HeadRange`] for each head of q, then of k, then of v.
    pub ranges: u64,
    /// Device address of a 32-bit counter that is 0 before the launch and after it.
    pub counter: u64,
    /// Tiles of the launch.
    pub tiles: i32,
    /// 0 where the map of the bias has one head for all, else 1.
    pub bias_head_step: i32,
    /// 0 where the map of the bias has one sequence for all, else 1.
    pub bias_batch_step: i32,
    /// Padding.
    pub reserved: i32,
}

/// What the device finds out about a head of q, k or v.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct HeadRange {
    /// Bits of the largest magnitude.
    pub largest: u32,
    /// Of q and k the largest sum of a row's magnitudes, of v the smallest of the rows' largest magnitudes.
    pub row: f32,
}

/// Sequences packed one after another.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub struct PackedParams {
    /// Device address of `[batch + 1]` query starts.
    pub q_starts: u64,
    /// Device address of `[batch + 1]` key starts.
    pub kv_starts: u64,
    /// Device address of `[batch]` keys in use of each span, or 0.
    pub used_lengths: u64,
    /// Device address of `capacity` [`WorkItem`]s, or 0 where blocks look at the lengths themselves.
    pub schedule: u64,
    /// Query tokens.
    pub total_q: i32,
    /// Key tokens.
    pub total_kv: i32,
    /// 1 where starts and lengths in use are 64-bit integers.
    pub starts_64: i32,
    /// The most row tiles that there can be.
    pub capacity: i32,
    /// Keys, summed over heads, that tiles in flight should share; 0 for those of one head unit.
    pub section_keys: i32,
    /// Padding.
    pub reserved: i32,
}

/// Keys and values in pages.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub struct PageParams {
    /// Device address of the `[batch, max_pages]` table.
    pub table: u64,
    /// Rows of a page.
    pub page_size: i32,
    /// Columns of the table.
    pub max_pages: i32,
    /// Pages of the pool.
    pub pages: i32,
    /// Padding.
    pub reserved: i32,
}

/// [`FlashParams`] as kernels for packed sequences are compiled to take them.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub struct VarlenParams {
    /// What every fused kernel needs.
    pub flash: FlashParams,
    /// The sequences.
    pub packed: PackedParams,
    /// The pages; zeros without.
    pub pages: PageParams,
}

/// What the Hopper path takes for packed sequences.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub struct VarlenSm90Params {
    /// What every fused kernel for packed sequences needs.
    pub varlen: VarlenParams,
    /// What it needs beside.
    pub hopper: HopperParams,
}

/// A row tile of a sequence, as the device lists them.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct WorkItem {
    /// First query token of the sequence.
    pub q_first: i32,
    /// Query tokens of the sequence.
    pub q_len: i32,
    /// First key token of the sequence.
    pub kv_first: i32,
    /// Keys in use of the sequence.
    pub kv_len: i32,
    /// Its number; negative where the item holds nothing.
    pub batch: i32,
    /// The item of the sequence's first tile.
    pub first_item: i32,
    /// Items of the whole list that hold something.
    pub items: i32,
    /// Padding.
    pub reserved: i32,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the compiler of the kernels makes of the same members.
    #[test]
    fn structs_have_the_size_that_the_device_sees() {
        assert_eq!(size_of::<MaskParams>(), 9 * 8 + 8 * 4);
        assert_eq!(
            size_of::<FlashParams>(),
            6 * 8 + 4 * 24 + size_of::<MaskParams>() + 4 * 8 + 2 * 4 + 6 * 4 + size_of::<TileOrder>()
        );
        assert_eq!(size_of::<TileOrder>(), 5 * 12 + 3 * 4);
        assert_eq!(size_of::<Sm90F32Params>(), size_of::<FlashParams>() + 6 * 8 + 4 * 4);
        assert_eq!(size_of::<PackedParams>(), 4 * 8 + 6 * 4);
        assert_eq!(size_of::<PageParams>(), 8 + 4 * 4);
        assert_eq!(size_of::<VarlenParams>(), size_of::<FlashParams>() + 56 + 24);
        assert_eq!(size_of::<Sm90Params>(), size_of::<FlashParams>() + 8 + 8 * 4);
        assert_eq!(size_of::<VarlenSm90Params>(), size_of::<VarlenParams>() + 8 + 8 * 4);
        assert_eq!(size_of::<WorkItem>(), 32);
    }

    fn divide(n: u32, divisor: Divisor) -> u32 {
        ((u64::from(n) * u64::from(divisor.multiplier)) >> divisor.shift) as u32
    }

    #[test]
    fn divisors_divide() {
        let values = (1..200).chain([
            255,
            256,
            257,
            1000,
            65_535,
            65_537,
            1 << 20,
            (1 << 30) - 1,
            1 << 30,
            i32::MAX - 1,
            i32::MAX,
        ]);
        for value in values {
            let unsigned = value as u32;
            let near = |n: u32| [n.saturating_sub(1), n, n + 1];
            let multiples = [1, 2, 3, 1000, (i32::MAX as u32 / unsigned).max(1)]
                .map(|times| unsigned.saturating_mul(times).min((1 << 31) - 2));
            for n in [0, 1, 2, (1 << 31) - 1].into_iter().chain(multiples.into_iter().flat_map(near)) {
                assert_eq!(divide(n, Divisor::new(value)), n / unsigned, "{n} / {value}");
            }
        }
    }

    /// As `tile_at` goes about it: every unit and row tile has one number, and the last rows of a section come first.
    #[test]
    fn an_order_numbers_every_tile_once() {
        for (batch, units, section, row_tiles) in
            [(1, 1, 1, 1), (2, 3, 1, 4), (2, 3, 4, 5), (3, 4, 12, 2), (1, 7, 3, 3)]
        {
            let order = TileOrder::new(batch, units, 1, section, row_tiles);
            let mut seen = std::collections::HashSet::new();
            for number in 0..(batch * units * row_tiles) as u32 {
                let before = divide(number, order.section_tiles);
                let in_section = number - before * order.section_tiles.value as u32;
                let width = if before == order.whole_sections as u32 { order.last_section } else { order.section };
                let rank = divide(in_section, width);
                let unit = before * order.section.value as u32 + in_section - rank * width.value as u32;
                assert!(unit < (batch * units) as u32 && rank < row_tiles as u32, "{unit} {rank}");
                assert!(seen.insert((unit, rank)));
            }
        }
    }
}
