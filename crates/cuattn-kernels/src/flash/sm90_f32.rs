//! The Hopper path for float32: `flash/sm90_f32.cu`, with each product made of three products of f16 halves, and the kernels around it.

use std::fmt;
use std::sync::LazyLock;

use super::simt::Simt;
use super::sm90::{GROUP_ROWS, PANEL};
use super::tiles::{self, Choice, Row};
use crate::{Architecture, BiasKind, Element, Source, Variant};

/// The name of the kernel that computes attention.
pub const ENTRY: &str = "flash_sm90_f32";
/// The name of the one that measures the heads of q, k and v.
pub const MEASURE_ENTRY: &str = "flash_sm90_f32_measure";
/// The name of the one that splits them.
pub const SPLIT_ENTRY: &str = "flash_sm90_f32_split";
/// The name of the one that computes the heads whose halves would not keep float32's accuracy.
pub const FALLBACK_ENTRY: &str = "flash_sm90_f32_fallback";

/// Largest head size: the output and the part that a block of keys adds to it are both in registers.
pub const MAX_HEAD_DIM: usize = 128;

/// Rows of a head that one block measures and splits. Blocks of keys divide it: what is not written is in none that is read.
pub const CHUNK_ROWS: usize = 128;
/// Threads of such a block.
pub const SPLIT_THREADS: usize = 256;

/// Fewest query rows and keys. Splitting moves 36 bytes an element, which at 4.3 TB/s takes as long as 80 keys do on the `simt` path at
/// 38 TFLOP/s; and below a tile's 128 rows, most of its products are for nothing.
pub const MIN_LEN: usize = 128;
/// Fewest multiplications. Below, the `simt` path is done before the three launches around the kernel are (7 to 10 us; estimated,
/// not measured).
pub const MIN_MULTIPLICATIONS: usize = 1 << 26;

/// How a block divides its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tile {
    /// Consumer warpgroups, 64 rows each.
    pub warpgroups: usize,
    /// Keys of a step.
    pub block_keys: usize,
    /// Stages of K and of V.
    pub kv_stages: usize,
}

impl Tile {
    /// Threads of a block: the consumers, and the warpgroup that loads.
    pub const fn threads(&self) -> usize {
        (self.warpgroups + 1) * 128
    }

    /// Query rows of a tile.
    pub const fn block_rows(&self) -> usize {
        self.warpgroups * GROUP_ROWS
    }

    /// Registers of a consumer's and of a producer's thread. They share the 65,536 of a multiprocessor.
    const fn registers(&self) -> (usize, usize) {
        if self.warpgroups == 2 { (232, 40) } else { (160, 32) }
    }

    /// The tile that prints like this.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let [warpgroups, block_keys, kv_stages] = tiles::numbers(text, "tile(", ")")?;
        Some(tile(warpgroups, block_keys, kv_stages))
    }

    /// Whether attention over such heads fits a block in this tile, and its blocks of keys the chunks that are split.
    pub(super) fn fits(self, head_dim: usize, v_head_dim: usize) -> bool {
        let within = head_dim <= MAX_HEAD_DIM && v_head_dim <= MAX_HEAD_DIM;
        let divides = CHUNK_ROWS.is_multiple_of(self.block_keys);
        within && divides && Sm90F32::in_tile(head_dim, v_head_dim, self).is_legal()
    }
}

/// As the table of tiles has it.
impl fmt::Display for Tile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tile({}, {}, {})", self.warpgroups, self.block_keys, self.kv_stages)
    }
}

const fn tile(warpgroups: usize, block_keys: usize, kv_stages: usize) -> Tile {
    Tile { warpgroups, block_keys, kv_stages }
}

/// The rows of the table.
static CHOICES: LazyLock<Vec<Choice<Tile>>> = LazyLock::new(|| tiles::choices("sm90_f32", Tile::parse));

/// What tuning measures beside the tile of the table, which is among them, for head sizes up to `head_dim`.
struct Candidates {
    head_dim: usize,
    tiles: &'static [Tile],
}

const CANDIDATES: &[Candidates] = &[
    Candidates { head_dim: 64, tiles: &[tile(2, 128, 2), tile(2, 128, 3), tile(2, 64, 4), tile(3, 64, 3)] },
    Candidates { head_dim: MAX_HEAD_DIM, tiles: &[tile(2, 64, 2), tile(2, 32, 3), tile(2, 32, 4)] },
];

/// Shared memory that a block has on Hopper, less the records of its tiles, which take up what its alignment leaves.
const MOST_SHARED_BYTES: usize = 232_448 - 1024;

/// A variant of the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Sm90F32 {
    /// A multiple of 8, at most [`MAX_HEAD_DIM`].
    pub head_dim: usize,
    /// A multiple of 8, at most [`MAX_HEAD_DIM`].
    pub v_head_dim: usize,
    /// How a block divides its work.
    pub tile: Tile,
    /// What the bias is.
    pub bias: BiasKind,
    /// Whether scores are softcapped.
    pub softcap: bool,
    /// The user's score modification.
    pub score_mod: Option<String>,
    /// Whether the scale is negative or 0: then it cannot be folded into the exponential.
    pub unusual_scale: bool,
}

impl Sm90F32 {
    /// Attention without bias, softcap or score modification.
    pub fn plain(head_dim: usize, v_head_dim: usize) -> Self {
        Self::in_tile(head_dim, v_head_dim, choice(head_dim, v_head_dim).tile)
    }

    const fn in_tile(head_dim: usize, v_head_dim: usize, tile: Tile) -> Self {
        let bias = BiasKind::None;
        Self { head_dim, v_head_dim, tile, bias, softcap: false, score_mod: None, unusual_scale: false }
    }

    /// This variant with a bias. `None` where it does not fit the tile: a boolean bias at head sizes above 64, whose panels hold 128
    /// keys.
    pub fn with_bias(self, bias: BiasKind) -> Option<Self> {
        // The element type of a float32 problem is the other name of float32.
        let bias = if bias == BiasKind::Element { BiasKind::F32 } else { bias };
        let biased = Self { bias, ..self };
        biased.is_legal().then_some(biased)
    }

    /// This variant in every tile that tuning measures: first its own.
    pub fn candidates(&self) -> Vec<Self> {
        let widest = self.head_dim.max(self.v_head_dim);
        let meant = CANDIDATES.iter().find(|candidates| widest <= candidates.head_dim);
        let tiles = meant.map_or(&[][..], |candidates| candidates.tiles);
        let others = tiles.iter().filter(|tile| **tile != self.tile).map(|&tile| Self { tile, ..self.clone() });
        std::iter::once(self.clone()).chain(others.filter(Self::is_legal)).collect()
    }

    /// The row of the table whose tile this is. `None` for what is more than plain attention.
    pub fn row(&self) -> Option<&'static Row> {
        let choice = choice(self.head_dim, self.v_head_dim);
        let is_plain = self.bias == BiasKind::None && !self.softcap && self.score_mod.is_none();
        (is_plain && self.tile == choice.tile).then_some(choice.row)
    }

    /// Whether the tile fits a block, and its bias the tile, in whole panels.
    fn is_legal(&self) -> bool {
        let bias_fits = self.bias == BiasKind::None
            || self.tile.block_keys.is_multiple_of(PANEL * 2 / self.bias.size(Element::F32));
        self.shared_bytes() <= MOST_SHARED_BYTES && bias_fits
    }

    /// Whether scores reach the softmax finished, in natural units, rather than as plain `q.k`.
    pub fn is_natural(&self) -> bool {
        self.bias != BiasKind::None || self.softcap || self.score_mod.is_some() || self.unusual_scale
    }

    /// The kernel's source. It takes the maps of the halves of q, k and v, that of the bias, and one [`crate::abi::Sm90F32Params`].
    pub fn source(&self) -> Source {
        let (consumer, producer) = self.tile.registers();
        self.sizes(Source::new("flash/sm90_f32.cu", ENTRY))
            .define("WARPGROUPS", self.tile.warpgroups)
            .define("BLOCK_KEYS", self.tile.block_keys)
            .define("KV_STAGES", self.tile.kv_stages)
            .define("CONSUMER_REGISTERS", consumer)
            .define("PRODUCER_REGISTERS", producer)
            .define("BIAS", self.bias as u32)
            .define_if(self.softcap, "SOFTCAP")
            .define_if(self.is_natural(), "NATURAL")
            .product_width(self.tile.block_keys)
            .product_width(self.v_head_dim.next_multiple_of(16))
            .score_mod(self.score_mod.as_deref())
    }

    /// The source of the kernel that measures. It takes one [`crate::abi::Sm90F32Params`].
    pub fn measure(&self) -> Source {
        self.before(MEASURE_ENTRY)
    }

    /// The source of the kernel that splits: the same text.
    pub fn split(&self) -> Source {
        self.before(SPLIT_ENTRY)
    }

    fn before(&self, entry: &'static str) -> Source {
        self.sizes(Source::new("flash/sm90_f32_split.cu", entry)).define("BIAS", BiasKind::None as u32)
    }

    fn sizes(&self, source: Source) -> Source {
        source
            .define("ELEMENT", Element::F32 as u32)
            .define("HEAD_DIM", self.head_dim)
            .define("V_HEAD_DIM", self.v_head_dim)
    }

    /// Dynamic shared memory of a block. Mirrors `SharedMap`.
    pub fn shared_bytes(&self) -> usize {
        let Tile { warpgroups, block_keys, kv_stages } = self.tile;
        // High and low halves.
        let row = |dim: usize| dim.div_ceil(PANEL) * PANEL * 2 * 2;
        let q = warpgroups * GROUP_ROWS * row(self.head_dim);
        let kv = kv_stages * block_keys * (row(self.head_dim) + row(self.v_head_dim));
        let barriers = (8 * (3 * warpgroups + 4 * kv_stages + 2 * warpgroups)).next_multiple_of(16);
        let bias = warpgroups * GROUP_ROWS * block_keys * self.bias.size(Element::F32);
        q + kv + bias + barriers
    }
}

/// The source of the kernel for heads that are left out: `simt` in float32. It takes one [`crate::abi::Sm90F32Params`], whose `flash` is
/// what `simt` would take.
pub fn fallback(simt: &Simt) -> Source {
    simt.define_constants(Source::new("flash/sm90_f32_fallback.cu", FALLBACK_ENTRY))
}

/// The first row of the table that holds the head sizes. The last one holds all.
fn choice(head_dim: usize, v_head_dim: usize) -> &'static Choice<Tile> {
    tiles::holding(&CHOICES, head_dim, v_head_dim).next().unwrap_or(&CHOICES[CHOICES.len() - 1])
}

/// The variants of the compile suite.
pub fn variants() -> Vec<Variant> {
    let mut all = Vec::new();
    let mut push = |name: String, source: Source, tuned| {
        all.push(Variant {
            name: format!("flash/sm90_f32 {name}"),
            source,
            architectures: Architecture::HOPPER,
            tuned,
        });
    };
    for (d, dv) in [(64, 64), (128, 128), (64, 128), (128, 64), (16, 16), (40, 40), (72, 72), (96, 96)] {
        let plain = Sm90F32::plain(d, dv);
        push(format!("d{d} v{dv}"), plain.source(), true);
        push(format!("d{d} v{dv} split"), plain.split(), true);
    }
    for d in [64, 128] {
        let plain = Sm90F32::plain(d, d);
        push(format!("d{d} softcap"), Sm90F32 { softcap: true, ..plain.clone() }.source(), true);
        push(format!("d{d} negative scale"), Sm90F32 { unusual_scale: true, ..plain.clone() }.source(), true);
        let alibi = Some("return score - 0.5f * fabsf((float)(q - k));".to_owned());
        push(format!("d{d} score mod"), Sm90F32 { score_mod: alibi, ..plain.clone() }.source(), true);
        for (name, bias) in [("bias", BiasKind::Element), ("boolean bias", BiasKind::Boolean)] {
            if let Some(biased) = plain.clone().with_bias(bias) {
                push(format!("d{d} {name}"), biased.source(), true);
            }
        }
    }
    for (d, tile) in Simt::tuned_tiles().filter(|(d, _)| *d <= MAX_HEAD_DIM) {
        let simt = Simt::in_tile(Element::F32, d, d, tile);
        push(format!("d{d} fallback {}x{}", tile.block_rows(), tile.block_keys), fallback(&simt), true);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tile_fits_a_hopper_block() {
        for d in (8..=MAX_HEAD_DIM).step_by(8) {
            for dv in (8..=MAX_HEAD_DIM).step_by(8) {
                let plain = Sm90F32::plain(d, dv);
                assert!(plain.is_legal(), "{d}/{dv}: {}", plain.shared_bytes());
                assert!(plain.clone().with_bias(BiasKind::Element).is_some(), "{d}/{dv}");
                let boolean = plain.clone().with_bias(BiasKind::Boolean);
                assert_eq!(boolean.is_some(), d.max(dv) <= 64, "{d}/{dv}");
                for candidate in plain.candidates() {
                    assert!(candidate.is_legal(), "{d}/{dv} {}", candidate.tile);
                }
            }
        }
    }

    #[test]
    fn chunks_are_those_of_the_kernel() {
        let (_, text) = crate::sources().find(|(path, _)| *path == "flash/sm90_f32_split.cu").unwrap();
        assert!(text.contains(&format!("constexpr int CHUNK_ROWS = {CHUNK_ROWS};")));
        assert!(text.contains(&format!("constexpr int THREADS = {SPLIT_THREADS};")));
        let candidates = CANDIDATES.iter().flat_map(|candidates| candidates.tiles);
        for tile in CHOICES.iter().map(|choice| &choice.tile).chain(candidates) {
            assert!(CHUNK_ROWS.is_multiple_of(tile.block_keys), "{tile}");
            assert_eq!(Tile::parse(&tile.to_string()), Some(*tile));
        }
    }
}
