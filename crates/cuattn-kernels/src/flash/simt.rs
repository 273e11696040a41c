//! The path without tensor cores: float32 at float32's accuracy, and every shape, stride and alignment: `flash/simt.cu`.

use std::fmt;
use std::sync::LazyLock;

use super::tiles::{self, Choice, Condition, Row};
use crate::{Architecture, BiasKind, Element, Source, Variant};

/// The kernel's name.
pub const ENTRY: &str = "flash_simt";

/// How a block divides its work; `flash/simt_lanes.cuh` explains the lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tile {
    /// Warps of a block.
    pub warps: usize,
    /// Lanes of a warp that stand below one another: 1, 2 or 4.
    pub row_lanes: usize,
    /// Rows of a lane.
    pub lane_rows: usize,
    /// Keys of a step.
    pub block_keys: usize,
    /// Elements of q and k that are in shared memory at once; longer heads pass through in chunks.
    pub dim_chunk: usize,
    /// Columns of v of a block; wider values are split over blocks.
    pub v_columns: usize,
    /// Blocks that should share a multiprocessor: bounds the registers of a thread.
    pub blocks_per_multiprocessor: usize,
}

impl Tile {
    /// Threads of a block.
    pub const fn threads(&self) -> usize {
        self.warps * 32
    }

    /// Packed query rows of a block.
    pub const fn block_rows(&self) -> usize {
        self.warps * self.row_lanes * self.lane_rows
    }

    /// The tile that prints like this.
    pub(super) fn parse(text: &str) -> Option<Self> {
        tiles::numbers(text, "tile([", "])").map(tile)
    }

    /// Dynamic shared memory of a block: q, k, v and p in float32, and 16 bytes a row. Mirrors `SharedTiles`.
    pub const fn shared_bytes(&self) -> usize {
        let rows = self.block_rows();
        let q = rows * self.dim_chunk;
        let k = self.block_keys * self.dim_chunk;
        let v = self.block_keys * self.v_columns;
        let p = rows * self.block_keys;
        (q + k + v + p) * 4 + rows * 16
    }

    /// Whether a block has room for it on the smallest device: 99 KiB, on 8.6, 8.9 and 12.0.
    pub(super) const fn fits_any_device(&self) -> bool {
        self.shared_bytes() <= 99 << 10
    }
}

/// As the table of tiles has it.
impl fmt::Display for Tile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { warps, row_lanes, lane_rows, block_keys, dim_chunk, v_columns, blocks_per_multiprocessor } = self;
        let lanes = format_args!("{warps}, {row_lanes}, {lane_rows}");
        write!(f, "tile([{lanes}, {block_keys}, {dim_chunk}, {v_columns}, {blocks_per_multiprocessor}])")
    }
}

/// The lanes, the block and the chunk of one row of the table, in the order of the fields of [`Tile`].
const fn tile([warps, row_lanes, lane_rows, block_keys, dim_chunk, v_columns, blocks]: [usize; 7]) -> Tile {
    Tile { warps, row_lanes, lane_rows, block_keys, dim_chunk, v_columns, blocks_per_multiprocessor: blocks }
}

/// The rows of the table: for each head size the tallest tile first, and the lowest, which fits any device, without a condition.
static CHOICES: LazyLock<Vec<Choice<Tile>>> = LazyLock::new(|| tiles::choices("simt", Tile::parse));

/// Those of each head size.
fn choices_by_size() -> impl Iterator<Item = &'static [Choice<Tile>]> {
    CHOICES.chunk_by(|one, next| one.row.head_dim == next.row.head_dim)
}

/// Tiles for head sizes up to `head_dim`.
struct Candidates {
    head_dim: usize,
    tiles: &'static [Tile],
}

/// What tuning measures beside the tiles of the table. Those that it has today are among them, or a table that changes would forget them.
const CANDIDATES: &[Candidates] = &[
    Candidates {
        head_dim: 64,
        tiles: &[
            tile([8, 4, 8, 64, 64, 64, 1]),
            tile([4, 4, 8, 32, 64, 64, 2]),
            tile([4, 4, 4, 64, 64, 64, 3]),
            tile([4, 2, 8, 64, 64, 64, 2]),
            tile([4, 2, 8, 64, 64, 64, 3]),
            tile([4, 2, 8, 32, 64, 64, 4]),
            tile([8, 2, 8, 64, 64, 64, 1]),
            tile([4, 4, 8, 64, 64, 64, 2]),
            tile([4, 4, 4, 64, 64, 64, 2]),
            tile([4, 2, 4, 64, 64, 64, 2]),
            tile([4, 2, 1, 64, 64, 64, 4]),
        ],
    },
    Candidates {
        head_dim: 128,
        tiles: &[
            tile([8, 2, 8, 64, 128, 128, 1]),
            tile([8, 2, 8, 32, 128, 128, 1]),
            tile([4, 2, 8, 32, 128, 128, 3]),
            tile([4, 4, 4, 64, 128, 128, 2]),
            tile([4, 4, 4, 32, 128, 128, 3]),
            tile([8, 4, 4, 64, 128, 128, 1]),
            tile([8, 2, 4, 64, 128, 128, 2]),
            tile([8, 2, 4, 32, 128, 128, 2]),
            tile([12, 2, 4, 64, 128, 128, 1]),
            tile([12, 2, 8, 32, 128, 128, 1]),
            tile([4, 2, 8, 64, 64, 128, 2]),
            tile([4, 2, 8, 32, 64, 128, 3]),
            tile([4, 2, 8, 64, 128, 128, 2]),
            tile([4, 2, 8, 32, 128, 128, 2]),
            tile([4, 2, 4, 64, 128, 128, 2]),
            tile([4, 2, 1, 64, 128, 128, 2]),
        ],
    },
    Candidates {
        head_dim: usize::MAX,
        tiles: &[
            tile([8, 2, 8, 64, 64, 128, 1]),
            tile([4, 2, 8, 32, 64, 128, 3]),
            tile([4, 2, 8, 64, 64, 128, 2]),
            tile([4, 2, 4, 64, 64, 128, 2]),
            tile([4, 2, 1, 64, 64, 256, 2]),
        ],
    },
];

/// What is to be computed and on what, as far as the choice of a tile depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Query rows that share a key head: `q_len` times the heads of a group.
    pub rows: usize,
    /// Key heads of all sequences.
    pub kv_heads: usize,
    /// Multiprocessors of the device.
    pub multiprocessors: usize,
    /// Largest dynamic shared memory of a block, in bytes.
    pub shared_bytes_per_block: usize,
}

impl Demand {
    /// Whether a row is meant for this, and its tile fits the device. One without a condition is the lowest, and fits any.
    const fn takes(&self, choice: &Choice<Tile>) -> bool {
        let tile = choice.tile;
        match choice.row.condition {
            Condition::Always => true,
            // A low tile does little with each key that it reads: at 512 rows of 8 heads, 128 blocks of 32 rows ran 1.2 to 1.5 times as
            // fast as 512 blocks of 8 (H200, `cargo xtask tune`).
            Condition::Filled => {
                let blocks = self.rows.div_ceil(tile.block_rows()).saturating_mul(self.kv_heads);
                tile.shared_bytes() <= self.shared_bytes_per_block
                    && self.rows * 2 > tile.block_rows()
                    && blocks * 4 >= self.multiprocessors * 3
            }
            // Of other paths.
            _ => false,
        }
    }
}

/// A variant of the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Simt {
    /// Element type.
    pub element: Element,
    /// How a block divides its work.
    pub tile: Tile,
    /// Whether head_dim and v_head_dim are just what the tile holds, which saves the kernel the odd ends.
    pub exact: bool,
    /// What the bias is.
    pub bias: BiasKind,
    /// Whether scores are softcapped.
    pub softcap: bool,
    /// The user's score modification.
    pub score_mod: Option<String>,
}

impl Simt {
    /// Attention without bias, softcap or score modification, in the tile that suits the demand. There is one for any head size.
    pub fn plain(element: Element, head_dim: usize, v_head_dim: usize, demand: Demand) -> Self {
        Self::in_tile(element, head_dim, v_head_dim, choice(head_dim.max(v_head_dim), demand).tile)
    }

    pub(crate) fn in_tile(element: Element, head_dim: usize, v_head_dim: usize, tile: Tile) -> Self {
        let any = Self { element, tile, exact: false, bias: BiasKind::None, softcap: false, score_mod: None };
        any.with_tile(tile, head_dim, v_head_dim)
    }

    /// This variant in another tile.
    fn with_tile(&self, tile: Tile, head_dim: usize, v_head_dim: usize) -> Self {
        let exact = head_dim == tile.dim_chunk && v_head_dim == tile.v_columns;
        Self { tile, exact, ..self.clone() }
    }

    /// This variant in every tile that tuning measures on such a device: first its own.
    pub fn candidates(&self, head_dim: usize, v_head_dim: usize, demand: Demand) -> Vec<Self> {
        let widest = head_dim.max(v_head_dim);
        let of_table = choices_by_size().find(|choices| widest <= choices[0].row.head_dim).into_iter().flatten();
        let others = CANDIDATES.iter().find(|candidates| widest <= candidates.head_dim);
        let others = others.into_iter().flat_map(|candidates| candidates.tiles).copied();
        let mut all = vec![self.clone()];
        for tile in of_table.map(|choice| choice.tile).chain(others) {
            let candidate = self.with_tile(tile, head_dim, v_head_dim);
            if tile.shared_bytes() <= demand.shared_bytes_per_block && !all.contains(&candidate) {
                all.push(candidate);
            }
        }
        all
    }

    /// The row of the table whose tile this is, where it was chosen for the demand. `None` for what is more than plain attention.
    pub fn row(&self, head_dim: usize, v_head_dim: usize, demand: Demand) -> Option<&'static Row> {
        let choice = choice(head_dim.max(v_head_dim), demand);
        let is_plain = self.bias == BiasKind::None && !self.softcap && self.score_mod.is_none();
        (is_plain && self.tile == choice.tile).then_some(choice.row)
    }

    /// Every tile of the table, with the head size that it is meant for.
    pub(crate) fn tuned_tiles() -> impl Iterator<Item = (usize, Tile)> {
        CHOICES.iter().map(|choice| (choice.row.head_dim.min(256), choice.tile))
    }

    /// Blocks over which the columns of v are split. The grid is one-dimensional: tiles of rows, times this.
    pub const fn splits(&self, v_head_dim: usize) -> usize {
        v_head_dim.div_ceil(self.tile.v_columns)
    }

    /// The kernel's source. It takes one [`crate::abi::FlashParams`].
    pub fn source(&self) -> Source {
        self.define_constants(Source::new("flash/simt.cu", ENTRY))
    }

    pub(crate) fn define_constants(&self, source: Source) -> Source {
        source
            .define("ELEMENT", self.element as u32)
            .define("WARPS", self.tile.warps)
            .define("ROW_LANES", self.tile.row_lanes)
            .define("LANE_ROWS", self.tile.lane_rows)
            .define("BLOCK_KEYS", self.tile.block_keys)
            .define("DIM_CHUNK", self.tile.dim_chunk)
            .define("V_COLUMNS", self.tile.v_columns)
            .define("BLOCKS_PER_SM", self.tile.blocks_per_multiprocessor)
            .define("BIAS", self.bias as u32)
            .define_if(self.exact, "EXACT")
            .define_if(self.softcap, "SOFTCAP")
            .score_mod(self.score_mod.as_deref())
    }
}

/// The first row of the table that holds the head size, whose condition is met and whose tile fits the device; else the last.
fn choice(head_dim: usize, demand: Demand) -> &'static Choice<Tile> {
    let mut holding = tiles::holding(&CHOICES, head_dim, head_dim);
    holding.find(|choice| demand.takes(choice)).unwrap_or(&CHOICES[CHOICES.len() - 1])
}

/// The variants of the compile suite: every tile, the tall ones with every element type and kind of bias, and each option once.
pub fn variants() -> Vec<Variant> {
    let mut all = Vec::new();
    // 16-bit elements become float32 where they are loaded, and an option changes the softmax alone: a sample will do for both.
    let (every, sample) = (Architecture::FROM_AMPERE, Architecture::SAMPLE);
    let mut push = |name: String, simt: &Simt, architectures, tuned| {
        all.push(Variant { name: format!("flash/simt {name}"), source: simt.source(), architectures, tuned });
    };
    let of = |element, tile: Tile, exact| Simt {
        element,
        tile,
        exact,
        bias: BiasKind::None,
        softcap: false,
        score_mod: None,
    };
    for choices in choices_by_size() {
        let is_widest = choices[0].row.head_dim == usize::MAX;
        for Choice { tile, .. } in choices {
            let size =
                format!("d{} v{} {} rows {} keys", tile.dim_chunk, tile.v_columns, tile.block_rows(), tile.block_keys);
            push(format!("f32 {size}"), &of(Element::F32, *tile, false), every, true);
            push(format!("bf16 {size}"), &of(Element::Bf16, *tile, false), sample, true);
            if !is_widest {
                push(format!("f32 {size} exact"), &of(Element::F32, *tile, true), sample, true);
            }
        }
        let tall = choices[0].tile;
        let size = format!("d{} v{}", tall.dim_chunk, tall.v_columns);
        push(format!("f16 {size}"), &of(Element::F16, tall, false), sample, true);
        let exact = !is_widest;
        push(
            format!("f32 {size} f32 bias"),
            &Simt { bias: BiasKind::F32, ..of(Element::F32, tall, exact) },
            sample,
            true,
        );
        let boolean = Simt { bias: BiasKind::Boolean, ..of(Element::F32, tall, exact) };
        push(format!("f32 {size} boolean bias"), &boolean, sample, true);
        push(
            format!("bf16 {size} bias"),
            &Simt { bias: BiasKind::Element, ..of(Element::Bf16, tall, false) },
            sample,
            true,
        );
        push(format!("f32 {size} softcap"), &Simt { softcap: true, ..of(Element::F32, tall, exact) }, sample, true);
        let score_mod = Some("return score - 0.5f * fabsf((float)(q - k));".to_owned());
        push(format!("f32 {size} score mod"), &Simt { score_mod, ..of(Element::F32, tall, exact) }, sample, false);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: Demand = Demand { rows: 4096, kv_heads: 16, multiprocessors: 132, shared_bytes_per_block: 232_448 };
    const RTX4090: Demand = Demand { multiprocessors: 128, shared_bytes_per_block: 101_376, ..H200 };

    #[test]
    fn every_head_size_has_a_tile_on_every_device() {
        for demand in [H200, RTX4090] {
            for head_dim in [1, 7, 64, 65, 128, 129, 512, 1000] {
                for rows in [1, 8, 33, 64, 65, 4096] {
                    let simt = Simt::plain(Element::F32, head_dim, head_dim, Demand { rows, ..demand });
                    assert!(
                        simt.tile.shared_bytes() <= demand.shared_bytes_per_block,
                        "{demand:?} d{head_dim} rows {rows}"
                    );
                    assert!(simt.tile.v_columns * simt.splits(head_dim) >= head_dim);
                }
            }
        }
    }

    #[test]
    fn the_lowest_tile_of_each_size_fits_any_device() {
        for choices in choices_by_size() {
            let (lowest, others) = choices.split_last().unwrap();
            assert!(lowest.tile.fits_any_device(), "{}", lowest.tile);
            assert_eq!(lowest.row.condition, Condition::Always);
            assert!(others.iter().all(|choice| choice.row.condition == Condition::Filled));
        }
    }

    #[test]
    fn a_tile_parses_from_what_it_prints() {
        let candidates = CANDIDATES.iter().flat_map(|candidates| candidates.tiles).copied();
        for tile in CHOICES.iter().map(|choice| choice.tile).chain(candidates) {
            assert_eq!(Tile::parse(&tile.to_string()), Some(tile));
        }
    }

    #[test]
    fn two_tall_blocks_share_a_hopper_multiprocessor() {
        for (head_dim, rows) in [(64, 128), (128, 64), (256, 64)] {
            let tile = Simt::plain(Element::F32, head_dim, head_dim, H200).tile;
            assert_eq!(tile.block_rows(), rows);
            // 1 KiB of each block is the system's.
            assert!(2 * (tile.shared_bytes() + 1024) <= 228 * 1024, "{tile:?}");
        }
    }

    #[test]
    fn odd_head_sizes_are_not_taken_for_exact() {
        assert!(Simt::plain(Element::F32, 128, 128, H200).exact);
        assert!(!Simt::plain(Element::F32, 128, 127, H200).exact);
        assert!(!Simt::plain(Element::F32, 64, 128, H200).exact);
        assert!(!Simt::plain(Element::F32, 256, 256, H200).exact);
    }

    #[test]
    fn few_rows_and_few_heads_take_low_tiles() {
        let rows = |demand| Simt::plain(Element::F32, 128, 128, demand).tile.block_rows();
        assert_eq!(rows(Demand { rows: 1, ..H200 }), 8);
        assert_eq!(rows(Demand { rows: 256, ..H200 }), 32);
        assert_eq!(rows(Demand { rows: 256, kv_heads: 64, ..H200 }), 64);
        assert_eq!(rows(Demand { rows: 20, kv_heads: 256, ..H200 }), 32);
    }
}
