//! The Hopper path: `flash/sm90.cu`, with TMA, wgmma and warpgroups of different roles.

use std::fmt;
use std::sync::LazyLock;

use super::tiles::{self, Choice, Condition, Row};
use crate::{Architecture, BiasKind, Element, Source, Variant};

/// The kernel's name.
pub const ENTRY: &str = "flash_sm90";

/// Largest head size.
pub const MAX_HEAD_DIM: usize = 256;

/// Columns of a panel: how tiles lie in shared memory, and how wide the boxes of tensor maps are.
pub const PANEL: usize = 64;

/// Rows of the usual tile, of two consumer warpgroups, and of the one of three.
const TALL_ROWS: usize = 2 * GROUP_ROWS;
const TALLEST_ROWS: usize = 3 * GROUP_ROWS;

/// Query rows of a consumer warpgroup, and of the boxes that load and store them.
pub const GROUP_ROWS: usize = 64;

/// How a block divides its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tile {
    /// Consumer warpgroups, 64 rows each.
    pub warpgroups: usize,
    /// Keys of a step.
    pub block_keys: usize,
    /// Sets of query slices: with 2, the next tile's queries are loaded under this one.
    pub q_stages: usize,
    /// Stages of K and of V.
    pub kv_stages: usize,
    /// Whether warpgroups take turns at issuing products.
    pub ping_pong: bool,
    /// Whether the first block of a tile is done by half where no row of a warpgroup sees the other half: the diagonal of a causal
    /// mask, where the upper warpgroup's rows end before the lower one's.
    pub half_first: bool,
    /// Whether all warpgroups take the same 64 rows and share the keys out among them: twice as many tiles, for grids that would
    /// leave multiprocessors idle.
    pub split_keys: bool,
    /// Whether consumers write their output themselves, instead of by way of their query slice and the copy engine.
    pub direct_store: bool,
    /// Blocks that share a multiprocessor: two of one consumer warpgroup each, where tiles are so short that most of their time goes into
    /// beginning and ending.
    pub blocks_per_multiprocessor: usize,
}

impl Tile {
    /// Threads of a block: the consumers, and the warpgroup that loads and stores.
    pub const fn threads(&self) -> usize {
        (self.warpgroups + 1) * 128
    }

    /// Query rows of a tile.
    pub const fn block_rows(&self) -> usize {
        self.slices() * GROUP_ROWS
    }

    /// Query slices of a tile.
    const fn slices(&self) -> usize {
        if self.split_keys { 1 } else { self.warpgroups }
    }

    /// Registers of a consumer's and of a producer's thread. They share the 65,536 of a multiprocessor.
    const fn registers(&self) -> (usize, usize) {
        match (self.warpgroups, self.blocks_per_multiprocessor) {
            (1, 1) => (256, 56),
            (1, _) => (208, 48),
            (2, _) => (232, 40),
            _ => (160, 32),
        }
    }

    /// Dynamic shared memory that each block may have.
    const fn most_shared_bytes(&self) -> usize {
        // The driver takes 1 KiB of each block for itself.
        let each = (BLOCK_SHARED_BYTES + 1024) / self.blocks_per_multiprocessor - 1024;
        each - STATIC_BYTES.next_multiple_of(1024)
    }

    /// The tile that prints like this.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let unusual = text.strip_prefix("Tile { ").and_then(|rest| rest.strip_suffix(" }"));
        let (flags, usual) = unusual.map_or(Some(("", text)), |rest| rest.split_once(".."))?;
        let [warpgroups, block_keys, q_stages, kv_stages] = tiles::numbers(usual, "tile(", ")")?;
        let mut parsed = tile(warpgroups, block_keys, q_stages, kv_stages);
        for flag in flags.split_terminator(", ") {
            let (name, value) = flag.split_once(": ")?;
            let own = match name {
                "direct_store" => &mut parsed.direct_store,
                "ping_pong" => &mut parsed.ping_pong,
                "half_first" => &mut parsed.half_first,
                "split_keys" => &mut parsed.split_keys,
                "blocks_per_multiprocessor" => {
                    parsed.blocks_per_multiprocessor = value.parse().ok().filter(|blocks| (1..=2).contains(blocks))?;
                    continue;
                }
                _ => return None,
            };
            *own = value.parse().ok()?;
        }
        (parsed.to_string() == text).then_some(parsed)
    }

    /// Whether plain attention over such heads fits a block in this tile, and its output, where that is staged, a slice of the queries.
    pub(super) fn fits(self, head_dim: usize, v_head_dim: usize) -> bool {
        let fits_slice = self.direct_store || v_head_dim.div_ceil(PANEL) <= head_dim.div_ceil(PANEL);
        let within = head_dim <= MAX_HEAD_DIM && v_head_dim <= MAX_HEAD_DIM;
        within && fits_slice && Sm90::in_tile(Element::Bf16, head_dim, v_head_dim, self).is_legal()
    }
}

/// As the table of tiles has it.
impl fmt::Display for Tile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { warpgroups, block_keys, q_stages, kv_stages, .. } = *self;
        let usual = tile(warpgroups, block_keys, q_stages, kv_stages);
        let flags = [
            ("direct_store", self.direct_store, usual.direct_store),
            ("ping_pong", self.ping_pong, usual.ping_pong),
            ("half_first", self.half_first, usual.half_first),
            ("split_keys", self.split_keys, usual.split_keys),
        ];
        let (blocks, usual_blocks) = (self.blocks_per_multiprocessor, usual.blocks_per_multiprocessor);
        let is_unusual = flags.iter().any(|(_, own, usual)| own != usual) || blocks != usual_blocks;
        if is_unusual {
            f.write_str("Tile { ")?;
        }
        for (name, own, _) in flags.iter().filter(|(_, own, usual)| own != usual) {
            write!(f, "{name}: {own}, ")?;
        }
        if blocks != usual_blocks {
            write!(f, "blocks_per_multiprocessor: {blocks}, ")?;
        }
        let (from, end) = if is_unusual { ("..", " }") } else { ("", "") };
        write!(f, "{from}tile({warpgroups}, {block_keys}, {q_stages}, {kv_stages}){end}")
    }
}

/// Which ends of what a row sees move with the row. The text of a kernel that need not look for the others is half as long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Edges {
    /// A window's left end.
    pub left: bool,
    /// A window's right end, or a causal mask's.
    pub right: bool,
}

impl Edges {
    /// A causal mask without a window.
    pub const CAUSAL: Self = Self { left: false, right: true };

    /// Whether rows see different keys.
    pub const fn any(self) -> bool {
        self.left || self.right
    }
}

/// What is to be computed and on what, as far as the choice of a tile depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Query rows of the heads that are folded together.
    pub q_len: usize,
    /// Keys.
    pub kv_len: usize,
    /// Query heads of all sequences, those that are folded together counted once.
    pub heads: usize,
    /// Where rows see different keys.
    pub edges: Edges,
    /// Whether scores are softcapped.
    pub softcap: bool,
    /// Multiprocessors of the device.
    pub multiprocessors: usize,
}

impl Demand {
    /// Enough of everything: the tile for long sequences.
    pub const PLENTY: Self = Self {
        kv_len: 1 << 20,
        q_len: 1 << 20,
        heads: 1024,
        edges: Edges { left: false, right: false },
        softcap: false,
        multiprocessors: 132,
    };

    /// Whether tiles of `rows` rows leave no multiprocessor without one.
    const fn fills(&self, rows: usize) -> bool {
        self.q_len.div_ceil(rows) * self.heads > self.multiprocessors
    }

    /// What a row's condition means here.
    const fn meets(&self, condition: Condition) -> bool {
        match condition {
            Condition::Always => true,
            // Tiles of 64 rows that differ in length even out, however many there are.
            Condition::FewTiles => !self.fills(TALL_ROWS) && (self.edges.any() || !self.fills(GROUP_ROWS)),
            // A tile of 128 rows would stand half empty, or a block of 128 keys.
            Condition::RowsOrKeysUpTo(most) => self.q_len <= most || self.kv_len <= most,
            Condition::TallAbove(rows) => {
                self.fills(TALLEST_ROWS) && !self.softcap && (self.q_len > rows || !self.edges.any())
            }
            // Of other paths.
            Condition::RowsUpTo(_) | Condition::KeysUpTo(_) | Condition::Filled => false,
        }
    }
}

/// Query heads that a box of [`GROUP_ROWS`] rows can hold of each row: the largest power of two in the group.
pub const fn boxed_heads(group: usize) -> usize {
    let power = 1 << group.trailing_zeros();
    if power < GROUP_ROWS { power } else { GROUP_ROWS }
}

const fn tile(warpgroups: usize, block_keys: usize, q_stages: usize, kv_stages: usize) -> Tile {
    Tile {
        warpgroups,
        block_keys,
        q_stages,
        kv_stages,
        ping_pong: warpgroups > 1,
        half_first: warpgroups == 2 && block_keys == 128,
        split_keys: false,
        direct_store: false,
        blocks_per_multiprocessor: 1,
    }
}

const fn split(block_keys: usize) -> Tile {
    Tile { ping_pong: false, half_first: false, split_keys: true, ..tile(2, block_keys, 2, 4) }
}

const fn short(block_keys: usize, kv_stages: usize) -> Tile {
    Tile { blocks_per_multiprocessor: 2, ..tile(1, block_keys, 2, kv_stages) }
}

/// The rows of the table, in the order in which they are asked.
static CHOICES: LazyLock<Vec<Choice<Tile>>> = LazyLock::new(|| tiles::choices("sm90", Tile::parse));

/// The first row of the table that holds the head sizes and whose condition is met. The last one holds everything.
fn choice(head_dim: usize, v_head_dim: usize, demand: &Demand) -> &'static Choice<Tile> {
    let mut holding = tiles::holding(&CHOICES, head_dim, v_head_dim);
    holding.find(|choice| demand.meets(choice.row.condition)).unwrap_or(&CHOICES[CHOICES.len() - 1])
}

/// What tuning measures beside the tile of the table, for head sizes above `above` and up to `head_dim`. Those that the table has today
/// are among them, or a table that changes would forget them.
struct Candidates {
    above: usize,
    head_dim: usize,
    tiles: &'static [Tile],
}

const CANDIDATES: &[Candidates] = &[
    Candidates {
        above: 0,
        head_dim: 64,
        tiles: &[
            tile(2, 128, 2, 2),
            tile(2, 128, 2, 3),
            tile(2, 128, 2, 4),
            tile(2, 192, 2, 2),
            tile(3, 128, 2, 2),
            tile(3, 128, 2, 3),
            tile(3, 128, 2, 4),
            split(128),
            short(64, 3),
        ],
    },
    Candidates {
        above: 64,
        head_dim: 128,
        tiles: &[
            tile(2, 128, 2, 2),
            tile(2, 128, 1, 2),
            tile(2, 64, 2, 4),
            tile(2, 160, 1, 2),
            tile(2, 176, 1, 2),
            split(64),
            short(64, 2),
        ],
    },
    Candidates {
        above: 128,
        head_dim: 192,
        tiles: &[tile(2, 128, 1, 2), tile(2, 96, 1, 2), tile(2, 112, 1, 2), tile(2, 80, 1, 2), tile(2, 64, 1, 3)],
    },
    Candidates {
        above: 192,
        head_dim: 256,
        tiles: &[tile(2, 64, 1, 2), tile(2, 80, 1, 2), tile(2, 48, 1, 2), tile(2, 32, 1, 4)],
    },
];

/// Shared memory that a block has on Hopper.
pub(crate) const BLOCK_SHARED_BYTES: usize = 232_448;

/// What is static: the records of four tiles, and the list of those to be done again. What follows is aligned to the swizzle's pattern.
pub(crate) const STATIC_BYTES: usize = 4 * 80 + 256;

/// A variant of the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Sm90 {
    /// f16 or bf16.
    pub element: Element,
    /// A multiple of 8, at most [`MAX_HEAD_DIM`].
    pub head_dim: usize,
    /// A multiple of 8, at most [`MAX_HEAD_DIM`].
    pub v_head_dim: usize,
    /// Query heads folded into the rows of a tile: see [`boxed_heads`].
    pub pack: usize,
    /// How a block divides its work.
    pub tile: Tile,
    /// Which ends of what a row sees move with the row.
    pub edges: Edges,
    /// What the bias is.
    pub bias: BiasKind,
    /// Whether scores are softcapped.
    pub softcap: bool,
    /// The user's score modification.
    pub score_mod: Option<String>,
    /// Whether the scale is negative or 0: then it cannot be folded into the exponential.
    pub unusual_scale: bool,
}

impl Sm90 {
    /// Attention without bias or score modification, in the tile that suits the demand.
    pub fn plain(element: Element, head_dim: usize, v_head_dim: usize, demand: Demand) -> Self {
        let mut tile = choice(head_dim, v_head_dim, &demand).tile;
        // An output wider than the queries does not fit where they lay.
        tile.direct_store |= v_head_dim.div_ceil(PANEL) > head_dim.div_ceil(PANEL);
        let (edges, softcap) = (demand.edges, demand.softcap);
        Self { edges, softcap, ..Self::in_tile(element, head_dim, v_head_dim, tile) }
    }

    const fn in_tile(element: Element, head_dim: usize, v_head_dim: usize, tile: Tile) -> Self {
        Self {
            element,
            head_dim,
            v_head_dim,
            pack: 1,
            tile,
            edges: Edges { left: false, right: false },
            bias: BiasKind::None,
            softcap: false,
            score_mod: None,
            unusual_scale: false,
        }
    }

    /// The row of the table whose tile this is, where it was chosen for the demand and is as the row has it. `None` with a bias or a
    /// softcap, whose tiles are made from those of plain attention: what is the best for them says little of those.
    pub fn row(&self, demand: Demand) -> Option<&'static Row> {
        let choice = choice(self.head_dim, self.v_head_dim, &demand);
        let is_plain = self.bias == BiasKind::None && !self.softcap && self.score_mod.is_none();
        (is_plain && self.tile == choice.tile).then_some(choice.row)
    }

    /// The other tile, as a table may have it, that makes the same kernel: without a right edge there is no diagonal to do by half.
    pub fn same_tile(&self) -> Option<Tile> {
        let Tile { warpgroups, block_keys, q_stages, kv_stages, split_keys, half_first, .. } = self.tile;
        let has_halves = tile(warpgroups, block_keys, q_stages, kv_stages).half_first && !split_keys;
        (has_halves && !self.edges.right).then_some(Tile { half_first: !half_first, ..self.tile })
    }

    /// This variant in every tile that tuning measures: first its own. Each comes with and without the options that it may have.
    pub fn candidates(&self) -> Vec<Self> {
        let widest = self.head_dim.max(self.v_head_dim);
        let meant = |candidates: &&Candidates| (candidates.above + 1..=candidates.head_dim).contains(&widest);
        let more = CANDIDATES.iter().filter(meant).flat_map(|candidates| candidates.tiles).copied();
        let mut all = vec![self.clone()];
        for tile in std::iter::once(self.tile).chain(more) {
            // Warpgroups that split the keys have no turns to take.
            let options: &[_] = if tile.split_keys || tile.warpgroups == 1 {
                &[(false, false)]
            } else {
                &[(true, true), (true, false), (false, false)]
            };
            for &(ping_pong, half_first) in options {
                let direct_store = self.tile.direct_store;
                let half_first = half_first && tile.half_first && self.edges.right;
                let tile = Tile { ping_pong, half_first, direct_store, ..tile };
                let candidate = Self { tile, ..self.clone() };
                let is_new = !all.iter().any(|one| *one == candidate || one.same_tile() == Some(tile));
                if candidate.is_legal() && is_new {
                    all.push(candidate);
                }
            }
        }
        all
    }

    /// Whether the tile fits a block, and its bias the tile: in whole panels, and in one sequence of blocks.
    fn is_legal(&self) -> bool {
        let is_one_sequence = !self.tile.split_keys && self.tile.blocks_per_multiprocessor == 1;
        let bias_fits = self.bias == BiasKind::None
            || is_one_sequence && self.tile.block_keys.is_multiple_of(PANEL * 2 / self.bias.size(self.element));
        self.shared_bytes() <= self.tile.most_shared_bytes() && bias_fits
    }

    /// This variant with a bias, in a tile that leaves shared memory for it: the bias of one block of keys for all rows of the tile.
    /// `None` where no tile does: a boolean bias at head sizes above 128, whose panels hold 128 keys.
    pub fn with_bias(mut self, bias: BiasKind) -> Option<Self> {
        self.bias = bias;
        if bias == BiasKind::None {
            return Some(self);
        }
        let direct_store = self.tile.direct_store;
        if self.tile.split_keys || self.tile.blocks_per_multiprocessor > 1 {
            // There is one place for the bias, which serves one sequence of blocks.
            self.tile = Tile { direct_store, ..tile(2, 128, 2, 2) };
        } else if self.tile.warpgroups > 2 && bias == BiasKind::Boolean && self.edges.any() {
            // The 160 registers of a thread do not hold bytes beside the scores where there are edges to be masked: 148 bytes of spills.
            self.tile = Tile { direct_store, ..tile(2, 128, 2, 3) };
        }
        let panel_keys = PANEL * 2 / bias.size(self.element);
        self.tile.block_keys = self.tile.block_keys / panel_keys.max(64) * panel_keys.max(64);
        while self.tile.block_keys > 0 && self.shared_bytes() > self.tile.most_shared_bytes() {
            if self.tile.q_stages > 1 {
                self.tile.q_stages -= 1;
            } else if self.tile.kv_stages > 2 {
                self.tile.kv_stages -= 1;
            } else {
                self.tile.block_keys -= panel_keys.max(64);
            }
        }
        self.tile.half_first &= self.tile.block_keys == 128;
        (self.tile.block_keys > 0).then_some(self)
    }

    /// Whether scores reach the softmax finished, in natural units, rather than as plain `q.k` or in units of the softcap.
    pub fn is_natural(&self) -> bool {
        let adds_bias = !matches!(self.bias, BiasKind::None | BiasKind::Boolean);
        adds_bias || self.score_mod.is_some() || self.unusual_scale
    }

    /// Without a right edge there is no diagonal.
    const fn half_first(&self) -> bool {
        self.tile.half_first && self.edges.right
    }

    /// The kernel's source. It takes the maps of q, k, v and o and one [`crate::abi::Sm90Params`].
    pub fn source(&self) -> Source {
        self.define_constants(Source::new("flash/sm90.cu", ENTRY))
    }

    /// `source` with the constants and options of this variant.
    pub(crate) fn define_constants(&self, source: Source) -> Source {
        let (consumer, producer) = self.tile.registers();
        let v_columns = self.v_head_dim.next_multiple_of(16);
        source
            .define("ELEMENT", self.element as u32)
            .define("HEAD_DIM", self.head_dim)
            .define("V_HEAD_DIM", self.v_head_dim)
            .define("PACK", self.pack)
            .define("WARPGROUPS", self.tile.warpgroups)
            .define("BLOCK_KEYS", self.tile.block_keys)
            .define("Q_STAGES", self.tile.q_stages)
            .define("KV_STAGES", self.tile.kv_stages)
            .define("CONSUMER_REGISTERS", consumer)
            .define("PRODUCER_REGISTERS", producer)
            .define("BLOCKS_PER_SM", self.tile.blocks_per_multiprocessor)
            .define("BIAS", self.bias as u32)
            .define("LEFT_EDGE", u32::from(self.edges.left))
            .define("RIGHT_EDGE", u32::from(self.edges.right))
            .define_if(self.tile.ping_pong, "PING_PONG")
            .define_if(self.half_first(), "HALF_FIRST")
            .define_if(self.tile.split_keys, "SPLIT_KEYS")
            .define_if(self.tile.direct_store, "DIRECT_STORE")
            .define_if(self.v_head_dim > 128, "RESCALE_BEFORE")
            .define_if(self.softcap, "SOFTCAP")
            .define_if(self.is_natural(), "NATURAL")
            .product_width(self.tile.block_keys)
            .product_width(v_columns)
            .product_width(if self.half_first() { self.tile.block_keys / 2 } else { v_columns })
            .score_mod(self.score_mod.as_deref())
    }

    /// Dynamic shared memory of a block. Mirrors `SharedMap`.
    pub fn shared_bytes(&self) -> usize {
        let Tile { block_keys, q_stages, kv_stages, .. } = self.tile;
        let row = |dim: usize| dim.div_ceil(PANEL) * PANEL * 2;
        let q = q_stages * self.tile.slices() * GROUP_ROWS * row(self.head_dim);
        let kv = kv_stages * block_keys * (row(self.head_dim) + row(self.v_head_dim));
        let slices = self.tile.slices();
        let merges = if self.tile.split_keys { 2 } else { 0 };
        let barriers = (8 * (3 * q_stages * slices + 4 * kv_stages + 2 * slices + merges)).next_multiple_of(16);
        let bias = slices * GROUP_ROWS * block_keys * self.bias.size(self.element);
        let partial = if self.tile.split_keys { (self.v_head_dim.next_multiple_of(16) / 8 + 1) * 128 * 16 } else { 0 };
        q + kv + bias + barriers + partial
    }
}

/// The variants of the compile suite.
pub fn variants() -> Vec<Variant> {
    let mut all = Vec::new();
    let mut push = |name: String, sm90: Sm90, tuned| {
        let architectures = Architecture::HOPPER;
        all.push(Variant { name: format!("flash/sm90 {name}"), source: sm90.source(), architectures, tuned });
    };
    for element in [Element::F16, Element::Bf16] {
        let of = element.name();
        for (d, dv) in [(64, 64), (96, 96), (128, 128), (192, 128), (192, 192), (256, 256)] {
            push(format!("{of} d{d} v{dv}"), Sm90::plain(element, d, dv, Demand::PLENTY), true);
        }
    }
    let few = Demand { q_len: 512, ..Demand::PLENTY };
    for (d, pack) in [(64, 8), (128, 4)] {
        let variant =
            Sm90 { pack, ..Sm90::plain(Element::Bf16, d, d, Demand { edges: Edges::CAUSAL, ..Demand::PLENTY }) };
        push(format!("bf16 d{d} {pack} heads"), variant, true);
    }
    for d in [64, 128] {
        let rows = Demand { q_len: 64, edges: Edges::CAUSAL, ..few };
        push(format!("bf16 d{d} few rows"), Sm90::plain(Element::Bf16, d, d, rows), true);
    }
    push("bf16 d64 short".to_owned(), Sm90::plain(Element::Bf16, 64, 64, Demand { edges: Edges::CAUSAL, ..few }), true);
    let few = Demand { q_len: 512, heads: 8, edges: Edges::CAUSAL, ..Demand::PLENTY };
    for d in [64, 128] {
        push(format!("bf16 d{d} split keys"), Sm90::plain(Element::Bf16, d, d, few), true);
    }
    for d in [64, 128, 256] {
        let plain = Sm90::plain(Element::Bf16, d, d, Demand::PLENTY);
        let softcap = Demand { softcap: true, ..Demand::PLENTY };
        push(format!("bf16 d{d} softcap"), Sm90::plain(Element::Bf16, d, d, softcap), true);
        push(format!("bf16 d{d} negative scale"), Sm90 { unusual_scale: true, ..plain.clone() }, true);
        let alibi = Some("return score - 0.5f * fabsf((float)(q - k));".to_owned());
        push(format!("bf16 d{d} score mod"), Sm90 { score_mod: alibi, ..plain }, false);
    }
    for d in [64, 128, 192, 256] {
        for (name, bias) in
            [("bias", BiasKind::Element), ("f32 bias", BiasKind::F32), ("boolean bias", BiasKind::Boolean)]
        {
            if let Some(sm90) = Sm90::plain(Element::Bf16, d, d, Demand::PLENTY).with_bias(bias) {
                push(format!("bf16 d{d} {name}"), sm90, true);
            }
        }
    }
    for d in [8, 40, 72, 80, 112, 136, 160, 200] {
        push(format!("f16 d{d}"), Sm90::plain(Element::F16, d, d, Demand::PLENTY), false);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tile_reads_as_the_table_has_it() {
        assert_eq!(tile(2, 128, 2, 3).to_string(), "tile(2, 128, 2, 3)");
        let unusual = Tile { direct_store: true, ping_pong: false, ..tile(2, 64, 1, 2) };
        assert_eq!(unusual.to_string(), "Tile { direct_store: true, ping_pong: false, ..tile(2, 64, 1, 2) }");
    }

    #[test]
    fn a_tile_parses_from_what_it_prints() {
        let chosen = CHOICES.iter().map(|choice| choice.tile);
        for tile in chosen.chain(CANDIDATES.iter().flat_map(|candidates| candidates.tiles).copied()) {
            for bits in 0..16 {
                let [direct_store, ping_pong, half_first, split_keys] = [1, 2, 4, 8].map(|bit| bits & bit != 0);
                let tile = Tile { direct_store, ping_pong, half_first, split_keys, ..tile };
                assert_eq!(Tile::parse(&tile.to_string()), Some(tile), "{tile}");
            }
        }
        for text in [
            "",
            "tile(2, 128, 2)",
            "tile(2, 0, 2, 2)",
            "tile(2, 128, 2, 2) ",
            "Tile { ..tile(2, 128, 2, 2) }",
            "Tile { ping_pong: true, ..tile(2, 128, 2, 2) }",
            "Tile { polynomial: 4, ..tile(2, 128, 2, 2) }",
            "Tile { half_first: false, ping_pong: false, ..tile(2, 128, 2, 2) }",
            "Tile { blocks_per_multiprocessor: 1000, ..tile(1, 64, 2, 2) }",
        ] {
            assert_eq!(Tile::parse(text), None, "{text}");
        }
    }

    #[test]
    fn no_candidate_is_the_kernel_of_another() {
        for edges in [Edges::default(), Edges::CAUSAL] {
            let demand = Demand { edges, ..Demand::PLENTY };
            let candidates = Sm90::plain(Element::Bf16, 128, 128, demand).candidates();
            let mut texts: Vec<_> = candidates.iter().map(|one| one.source().assemble()).collect();
            texts.sort_unstable();
            texts.dedup();
            assert_eq!(texts.len(), candidates.len());
            let named_twice = candidates.iter().filter_map(Sm90::same_tile).count();
            assert_eq!(named_twice > 0, !edges.right);
        }
    }

    #[test]
    fn a_row_is_named_where_its_tile_is_used_unchanged() {
        let demand = Demand::PLENTY;
        let plain = Sm90::plain(Element::Bf16, 128, 128, demand);
        assert_eq!(plain.row(demand).unwrap().tile, plain.tile.to_string());
        assert!(plain.with_bias(BiasKind::Element).unwrap().row(demand).is_none());
        let softcap = Demand { softcap: true, ..demand };
        assert!(Sm90::plain(Element::Bf16, 128, 128, softcap).row(softcap).is_none());
        // Stored directly, which the row's is not.
        assert!(Sm90::plain(Element::Bf16, 64, 128, demand).row(demand).is_none());
    }

    #[test]
    fn every_candidate_fits_a_hopper_block() {
        for (d, dv) in [(64, 64), (96, 96), (128, 128), (192, 128), (192, 192), (256, 256)] {
            let candidates = Sm90::plain(Element::Bf16, d, dv, Demand::PLENTY).candidates();
            assert!(candidates.len() > 2, "{d}/{dv}");
            assert!(candidates.iter().all(|sm90| sm90.shared_bytes() <= sm90.tile.most_shared_bytes()));
        }
    }

    #[test]
    fn every_tile_fits_a_hopper_block() {
        for d in (8..=MAX_HEAD_DIM).step_by(8) {
            for dv in (8..=MAX_HEAD_DIM).step_by(8) {
                for demand in [Demand::PLENTY, Demand { q_len: 100, heads: 1, ..Demand::PLENTY }] {
                    let sm90 = Sm90::plain(Element::Bf16, d, dv, demand);
                    for bias in [BiasKind::Element, BiasKind::F32, BiasKind::Boolean] {
                        let Some(biased) = sm90.clone().with_bias(bias) else {
                            assert!(bias == BiasKind::Boolean && d.max(dv) > 128, "{d}/{dv} {bias:?}");
                            continue;
                        };
                        let panel = 128 / bias.size(Element::Bf16);
                        assert!(
                            biased.shared_bytes() <= biased.tile.most_shared_bytes(),
                            "{d}/{dv} {bias:?}: {:?}",
                            biased.tile
                        );
                        assert_eq!(biased.tile.block_keys % panel, 0, "{d}/{dv} {bias:?}: {:?}", biased.tile);
                    }
                    assert!(sm90.shared_bytes() <= sm90.tile.most_shared_bytes(), "{d}/{dv}: {}", sm90.shared_bytes());
                }
            }
        }
    }

    #[test]
    fn an_output_that_is_staged_fits_its_query_slice() {
        for (d, dv) in [(64, 128), (40, 128), (64, 256), (128, 192)] {
            for demand in [Demand::PLENTY, Demand { q_len: 100, heads: 1, ..Demand::PLENTY }] {
                for bias in [BiasKind::None, BiasKind::Element, BiasKind::F32, BiasKind::Boolean] {
                    let sm90 = Sm90::plain(Element::F16, d, dv, demand).with_bias(bias);
                    let staged = sm90.is_some_and(|sm90| !sm90.tile.direct_store);
                    assert!(!staged || dv.div_ceil(PANEL) <= d.div_ceil(PANEL), "{d}/{dv} {bias:?}");
                }
            }
        }
    }
}
