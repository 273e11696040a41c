//! The tensor-core path for f16 and bf16 on every device from sm_80 on: `flash/mma.cu`.

use std::fmt;
use std::sync::LazyLock;

use super::tiles::{self, Choice, Condition, Row};
use crate::{Architecture, BiasKind, Element, Source, Variant};

/// The kernel's name.
pub const ENTRY: &str = "flash_mma";

/// Largest head size: beyond, the accumulators of a row do not fit a warp's registers.
pub const MAX_HEAD_DIM: usize = 256;

/// How a block divides its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tile {
    /// Warps of a block.
    pub warps: usize,
    /// 16-row tiles of a warp.
    pub row_tiles: usize,
    /// Keys of a step.
    pub block_keys: usize,
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
        self.warps * self.row_tiles * 16
    }

    /// The tile that prints like this.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let [warps, row_tiles, block_keys, blocks_per_multiprocessor] = tiles::numbers(text, "tile(", ")")?;
        Some(tile(warps, row_tiles, block_keys, blocks_per_multiprocessor))
    }
}

/// As the table of tiles has it.
impl fmt::Display for Tile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { warps, row_tiles, block_keys, blocks_per_multiprocessor: blocks } = self;
        write!(f, "tile({warps}, {row_tiles}, {block_keys}, {blocks})")
    }
}

const fn tile(warps: usize, row_tiles: usize, block_keys: usize, blocks_per_multiprocessor: usize) -> Tile {
    Tile { warps, row_tiles, block_keys, blocks_per_multiprocessor }
}

/// The rows of the table, in order of preference; the first that holds the head size, suits the demand and fits the device is taken.
static CHOICES: LazyLock<Vec<Choice<Tile>>> = LazyLock::new(|| tiles::choices("mma", Tile::parse));

const SMALLEST_TILE: Tile = tile(4, 1, 16, 1);

/// What is to be computed, as far as the choice of a tile depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Query rows that share a key head: those of a sequence, times the heads of a group.
    pub rows: usize,
    /// Keys of a sequence.
    pub keys: usize,
}

impl Demand {
    /// What a row's condition means here.
    const fn meets(&self, condition: Condition) -> bool {
        match condition {
            Condition::Always => true,
            Condition::RowsUpTo(most) => self.rows <= most,
            Condition::KeysUpTo(most) => self.keys <= most,
            // Of other paths.
            _ => false,
        }
    }
}

/// What tuning measures beside the tiles of the table. Those that it has today are among them, or a table that changes would forget them.
const CANDIDATES: &[Tile] = &[
    tile(4, 2, 128, 1),
    tile(4, 2, 128, 2),
    tile(4, 2, 96, 2),
    tile(4, 2, 64, 2),
    tile(4, 2, 48, 2),
    tile(4, 2, 48, 3),
    tile(4, 2, 32, 2),
    tile(4, 2, 32, 3),
    tile(8, 2, 64, 1),
    tile(8, 2, 48, 1),
    tile(8, 2, 32, 1),
    tile(8, 1, 128, 1),
    tile(8, 1, 96, 1),
    tile(8, 1, 64, 1),
    tile(8, 1, 64, 2),
    tile(8, 1, 48, 1),
    tile(8, 1, 32, 1),
    tile(8, 1, 32, 2),
    tile(4, 1, 128, 2),
    tile(4, 1, 64, 2),
    tile(4, 1, 64, 3),
    tile(4, 1, 32, 2),
    tile(4, 1, 32, 3),
    tile(4, 1, 64, 4),
    tile(4, 1, 32, 4),
    tile(4, 1, 32, 1),
    tile(4, 2, 64, 1),
    tile(4, 2, 48, 1),
    SMALLEST_TILE,
];

/// What a device offers a kernel, as far as the choice of a tile depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Compute capability, major.
    pub compute_major: u32,
    /// Largest dynamic shared memory of a block, in bytes.
    pub shared_bytes_per_block: usize,
    /// Shared memory of a multiprocessor, in bytes.
    pub shared_bytes_per_multiprocessor: usize,
}

/// A variant of the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Mma {
    /// f16 or bf16.
    pub element: Element,
    /// A multiple of 8, at most [`MAX_HEAD_DIM`].
    pub head_dim: usize,
    /// A multiple of 8, at most [`MAX_HEAD_DIM`].
    pub v_head_dim: usize,
    /// How a block divides its work.
    pub tile: Tile,
    /// What the bias is.
    pub bias: BiasKind,
    /// Whether bias rows can be copied in 16-byte pieces: contiguous keys, 16-byte aligned rows.
    pub bias_staged: bool,
    /// Whether scores are softcapped.
    pub softcap: bool,
    /// The user's score modification.
    pub score_mod: Option<String>,
    /// Whether the scale is negative or 0: then it cannot be folded into the exponential.
    pub unusual_scale: bool,
}

impl Mma {
    /// Attention without bias, softcap or score modification, in the tile that fits everywhere.
    pub const fn plain(element: Element, head_dim: usize, v_head_dim: usize) -> Self {
        Self {
            element,
            head_dim,
            v_head_dim,
            tile: SMALLEST_TILE,
            bias: BiasKind::None,
            bias_staged: false,
            softcap: false,
            score_mod: None,
            unusual_scale: false,
        }
    }

    /// This variant with the tile that suits the demand on such a device. `None` where nothing fits.
    pub fn with_best_tile(&self, demand: Demand, device: Limits) -> Option<Self> {
        self.choice(demand, device).map(|choice| Self { tile: choice.tile, ..self.clone() })
    }

    /// The row of the table that [`Mma::with_best_tile`] takes the tile of. A bias changes what fits, but no tile.
    pub fn row(&self, demand: Demand, device: Limits) -> Option<&'static Row> {
        self.choice(demand, device).map(|choice| choice.row)
    }

    fn choice(&self, demand: Demand, device: Limits) -> Option<&'static Choice<Tile>> {
        let widest = self.head_dim.max(self.v_head_dim);
        let mut holding = tiles::holding(&CHOICES, widest, widest);
        holding.find(|choice| {
            let variant = Self { tile: choice.tile, ..self.clone() };
            demand.meets(choice.row.condition) && variant.fits(device) && !variant.spills_on(device.compute_major)
        })
    }

    /// This variant in every tile that tuning measures on such a device: first the one that the table has for the demand.
    pub fn candidates(&self, demand: Demand, device: Limits) -> Vec<Self> {
        let mut all: Vec<_> = self.with_best_tile(demand, device).into_iter().collect();
        for tile in CHOICES.iter().map(|choice| choice.tile).chain(CANDIDATES.iter().copied()) {
            let candidate = Self { tile, ..self.clone() };
            if candidate.fits(device) && candidate.has_registers() && !all.contains(&candidate) {
                all.push(candidate);
            }
        }
        all
    }

    /// Whether as many blocks fit a multiprocessor as the tile says.
    fn fits(&self, device: Limits) -> bool {
        let together = self.shared_bytes() + SYSTEM_SHARED_BYTES;
        self.shared_bytes() <= device.shared_bytes_per_block
            && self.tile.blocks_per_multiprocessor * together <= device.shared_bytes_per_multiprocessor
    }

    /// Whether a thread has registers for its scores and its part of the output, and some besides: what has not, spills.
    fn has_registers(&self) -> bool {
        let Tile { row_tiles, block_keys, blocks_per_multiprocessor, .. } = self.tile;
        let there_are = (65_536 / (self.tile.threads() * blocks_per_multiprocessor)).min(255);
        row_tiles * (block_keys + self.v_head_dim.next_multiple_of(16)) / 2 + 40 <= there_are
    }

    /// The tiles that the table holds for long and short sequences, few rows and wide heads, each with a head size and a value head
    /// size that it is meant for: what a compile suite should look at.
    pub fn tuned_tiles() -> impl Iterator<Item = (usize, usize, Tile)> {
        [
            (64, 64, tile(4, 2, 64, 2)),
            (64, 64, tile(4, 2, 48, 3)),
            (64, 64, tile(4, 1, 64, 4)),
            (96, 96, tile(4, 2, 64, 2)),
            (128, 128, tile(4, 2, 64, 2)),
            (128, 128, tile(4, 2, 48, 1)),
            (128, 128, tile(4, 1, 64, 2)),
            (128, 128, tile(4, 1, 32, 4)),
            (192, 128, tile(8, 1, 64, 1)),
            (256, 256, tile(8, 1, 64, 1)),
            (256, 256, tile(4, 1, 32, 1)),
        ]
        .into_iter()
    }

    /// Whether the tile takes more registers than a thread has: 255, or 168 where three blocks share a multiprocessor. From sm_100 on, ptxas
    /// needs a few more than before.
    fn spills_on(&self, compute_major: u32) -> bool {
        let Tile { row_tiles, block_keys, blocks_per_multiprocessor, .. } = self.tile;
        let most_keys = if self.is_natural() || self.softcap { 48 } else { 32 };
        let is_wide = self.head_dim.max(self.v_head_dim) > 112 && block_keys > most_keys;
        let is_narrow = block_keys >= 48 && blocks_per_multiprocessor == 3;
        compute_major >= 10 && row_tiles == 2 && (is_wide || is_narrow)
    }

    /// Whether scores reach the softmax finished, in natural units, rather than as plain `q.k` or in units of the softcap.
    pub fn is_natural(&self) -> bool {
        self.bias != BiasKind::None || self.score_mod.is_some() || self.unusual_scale
    }

    /// The kernel's source.
    pub fn source(&self) -> Source {
        self.define_constants(Source::new("flash/mma.cu", ENTRY))
    }

    pub(crate) fn define_constants(&self, source: Source) -> Source {
        source
            .define("ELEMENT", self.element as u32)
            .define("HEAD_DIM", self.head_dim)
            .define("V_HEAD_DIM", self.v_head_dim)
            .define("WARPS", self.tile.warps)
            .define("ROW_TILES", self.tile.row_tiles)
            .define("BLOCK_KEYS", self.tile.block_keys)
            .define("BLOCKS_PER_SM", self.tile.blocks_per_multiprocessor)
            .define("BIAS", self.bias as u32)
            .define_if(self.bias_staged, "BIAS_STAGED")
            .define_if(self.softcap, "SOFTCAP")
            .define_if(self.is_natural(), "NATURAL")
            .score_mod(self.score_mod.as_deref())
    }

    /// Dynamic shared memory of a block: Q, two stages of K and V, and each warp's scratch. Mirrors the kernel's layout.
    pub fn shared_bytes(&self) -> usize {
        let Tile { warps, row_tiles, block_keys, .. } = self.tile;
        let q = tile_bytes(self.tile.block_rows(), self.head_dim);
        let k = tile_bytes(block_keys, self.head_dim);
        let v = tile_bytes(block_keys, self.v_head_dim);
        let staging = tile_bytes(self.tile.block_rows(), self.v_head_dim);
        let warp_rows = row_tiles * 16;
        let bias = match (self.bias_staged, self.bias) {
            (false, _) | (_, BiasKind::None) => 0,
            (true, BiasKind::Element) => warp_rows * (block_keys * 2 + 16),
            (true, BiasKind::F32) => warp_rows * (block_keys * 4 + 32),
            (true, BiasKind::Boolean) => warp_rows * (block_keys + 16),
        };
        let probabilities = warp_rows * block_keys * 2;
        (q + 2 * k + 2 * v + warps * bias.max(probabilities)).max(staging)
    }
}

/// Shared memory that the system takes of each block.
const SYSTEM_SHARED_BYTES: usize = 2048;

/// Bytes of a tile of 16-bit elements in shared memory; see `shared_tile.cuh`.
fn tile_bytes(rows: usize, columns: usize) -> usize {
    let columns = columns.next_multiple_of(16);
    rows * (columns * 2 + if columns.is_multiple_of(64) { 0 } else { 16 })
}

/// The variants of the compile suite: the tuned tiles with every kind of bias, each option once, and odd head sizes. What
/// differs from a tile in one option is compiled for a sample of its architectures.
pub fn variants() -> Vec<Variant> {
    let mut all = Vec::new();
    let mut push = |name: String, mma: Mma, architectures, tuned| {
        all.push(Variant { name: format!("flash/mma {name}"), source: mma.source(), architectures, tuned });
    };
    let plain = |element, d, dv, tile| Mma { tile, ..Mma::plain(element, d, dv) };
    for element in [Element::F16, Element::Bf16] {
        let of = element.name();
        // The two types differ in the names of instructions: one of them is compiled for all architectures.
        let (every, wide) = match element {
            Element::Bf16 => (Architecture::FROM_AMPERE, &Architecture::FROM_AMPERE[..4]),
            _ => (Architecture::SAMPLE, Architecture::SAMPLE),
        };
        for d in [64, 96, 128] {
            let archs = if d == 128 { wide } else { every };
            push(format!("{of} d{d}"), plain(element, d, d, tile(4, 2, 64, 2)), archs, true);
        }
        for (keys, archs) in [(48, wide), (32, every)] {
            push(format!("{of} d128 {keys} keys"), plain(element, 128, 128, tile(4, 2, keys, 2)), archs, true);
        }
        for d in [192, 256] {
            push(format!("{of} d{d}"), plain(element, d, d, tile(8, 1, 64, 1)), wide, true);
            push(format!("{of} d{d} small"), plain(element, d, d, tile(4, 1, 32, 1)), every, true);
        }
        for d in [40, 64] {
            push(format!("{of} d{d} 48 keys"), plain(element, d, d, tile(4, 2, 48, 3)), wide, true);
        }
        push(format!("{of} d64 short"), plain(element, 64, 64, tile(4, 1, 64, 4)), every, true);
        // A register or two too many are kept in memory from the first lines to the last; no loop touches them.
        push(format!("{of} d128 short"), plain(element, 128, 128, tile(4, 1, 32, 4)), every, false);
        push(format!("{of} d192/128"), plain(element, 192, 128, tile(4, 2, 64, 1)), wide, true);
        push(format!("{of} d128 few rows"), plain(element, 128, 128, tile(4, 1, 64, 2)), every, true);
    }
    let sample = Architecture::SAMPLE;
    for d in [64, 128] {
        for (name, bias) in
            [("bias", BiasKind::Element), ("f32 bias", BiasKind::F32), ("boolean bias", BiasKind::Boolean)]
        {
            let base = Mma { bias, bias_staged: true, ..plain(Element::Bf16, d, d, tile(4, 2, 64, 2)) };
            push(format!("bf16 d{d} {name}"), base.clone(), sample, true);
            let (blocks, archs) =
                if d == 64 { (3, &Architecture::FROM_AMPERE[..4]) } else { (2, Architecture::FROM_AMPERE) };
            let short = Mma { tile: tile(4, 2, 48, blocks), ..base.clone() };
            push(format!("bf16 d{d} {name} 48 keys"), short, archs, true);
            push(format!("bf16 d{d} {name} unstaged"), Mma { bias_staged: false, ..base }, sample, false);
        }
        let base = plain(Element::Bf16, d, d, tile(4, 2, 64, 2));
        push(format!("bf16 d{d} softcap"), Mma { softcap: true, ..base.clone() }, sample, true);
        push(format!("bf16 d{d} negative scale"), Mma { unusual_scale: true, ..base.clone() }, sample, true);
        let alibi = Some("return score - 0.5f * fabsf((float)(q - k));".to_owned());
        push(format!("bf16 d{d} score mod"), Mma { score_mod: alibi.clone(), ..base }, sample, false);
        if d == 64 {
            let short = plain(Element::Bf16, d, d, tile(4, 2, 48, 3));
            push(format!("bf16 d{d} softcap 48 keys"), Mma { softcap: true, ..short.clone() }, sample, true);
            push(
                format!("bf16 d{d} negative scale 48 keys"),
                Mma { unusual_scale: true, ..short.clone() },
                sample,
                true,
            );
            push(format!("bf16 d{d} score mod 48 keys"), Mma { score_mod: alibi, ..short }, sample, false);
        }
    }
    for d in [8, 24, 40, 72, 80, 112] {
        push(format!("f16 d{d}"), plain(Element::F16, d, d, tile(4, 2, 64, 2)), sample, false);
    }
    for d in [136, 160, 200, 248] {
        push(format!("f16 d{d}"), plain(Element::F16, d, d, tile(8, 1, 64, 1)), sample, false);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: Limits =
        Limits { compute_major: 9, shared_bytes_per_block: 232_448, shared_bytes_per_multiprocessor: 233_472 };
    const RTX4090: Limits =
        Limits { compute_major: 8, shared_bytes_per_block: 101_376, shared_bytes_per_multiprocessor: 102_400 };
    const RTX5090: Limits = Limits { compute_major: 12, ..RTX4090 };
    const LONG: Demand = Demand { rows: 4096, keys: 4096 };

    #[test]
    fn every_head_size_has_a_tile_on_every_device() {
        for device in [H200, RTX4090, RTX5090] {
            for d in (8..=MAX_HEAD_DIM).step_by(8) {
                for rows in [1, 64, 65, 4096] {
                    let bias = BiasKind::F32;
                    let mma = Mma { bias, bias_staged: true, ..Mma::plain(Element::F16, d, d) };
                    let chosen = mma.with_best_tile(Demand { rows, keys: 4096 }, device);
                    assert!(chosen.is_some(), "{device:?} d{d} rows {rows}");
                }
            }
        }
    }

    #[test]
    fn a_staged_bias_leaves_hopper_two_blocks_at_d128() {
        for (bias, keys) in [(BiasKind::Boolean, 64), (BiasKind::Element, 48), (BiasKind::F32, 48)] {
            let mma = Mma { bias, bias_staged: true, ..Mma::plain(Element::Bf16, 128, 128) };
            assert_eq!(mma.with_best_tile(LONG, H200).unwrap().tile, tile(4, 2, keys, 2), "{bias:?}");
        }
    }

    #[test]
    fn short_sequences_leave_hopper_four_blocks() {
        for d in [32, 64, 96, 128] {
            let demand = Demand { rows: 280, keys: 70 };
            let tile = Mma::plain(Element::Bf16, d, d).with_best_tile(demand, H200).unwrap().tile;
            assert_eq!((tile.block_rows(), tile.blocks_per_multiprocessor), (64, 4), "d{d}");
            // Few rows over many keys are another matter.
            let tile =
                Mma::plain(Element::Bf16, d, d).with_best_tile(Demand { rows: 8, keys: 4096 }, H200).unwrap().tile;
            assert_eq!(tile.block_keys, 64, "d{d}");
        }
    }

    #[test]
    fn a_tile_parses_from_what_it_prints() {
        for tile in CHOICES.iter().map(|choice| choice.tile).chain(CANDIDATES.iter().copied()) {
            assert_eq!(Tile::parse(&tile.to_string()), Some(tile));
        }
    }

    #[test]
    fn hopper_runs_two_blocks_of_128_rows_at_d128() {
        let chosen = Mma::plain(Element::Bf16, 128, 128).with_best_tile(LONG, H200).unwrap();
        assert_eq!(chosen.tile, tile(4, 2, 64, 2));
        assert_eq!(chosen.shared_bytes(), (128 + 4 * 64) * 256 + 4 * 32 * 64 * 2);
    }
}
