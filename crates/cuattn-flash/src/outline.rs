//! Which path does a problem, decided without a GPU.

use cuattn_core::lowering::MAX_SEQUENCE;
use cuattn_core::{EngineId, Explanation, Problem, Reason, Refusal};
use cuattn_kernels::Source;
use cuattn_kernels::abi::TileOrder;
use cuattn_kernels::flash::packed_heads;
use cuattn_kernels::flash::sm90::Edges;
use curt::Capabilities;

use crate::{Path, mma, simt, sm90, sm90_f32};

/// A kernel and how it is launched for one problem.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    pub(crate) path: Path,
    /// Its tile, as the table of tiles has it.
    pub(crate) tile: String,
    /// What the table would call the same kernel as well.
    pub(crate) same_tile: Option<String>,
    pub(crate) source: Source,
    pub(crate) grid: Grid,
    pub(crate) threads: u32,
    pub(crate) shared_bytes: u32,
    /// Alignment in bytes that q, k, v, o and the bias must have.
    pub(crate) alignment: usize,
    /// What the `sm90` path's launch needs beside.
    pub(crate) sm90: Option<sm90::Geometry>,
    /// What the `sm90_f32` path launches around it.
    pub(crate) halves: Option<Box<sm90_f32::Halves>>,
    pub(crate) why: String,
    pub(crate) details: Vec<String>,
}

/// What a plan consists of.
#[derive(Clone, Debug)]
pub(crate) struct Outline {
    /// The kernel for a launch whose pointers are aligned; `None` where there is nothing to compute.
    pub(crate) kernel: Option<Kernel>,
    /// The kernel for any other launch, where the first one asks for alignment.
    pub(crate) unaligned: Option<Kernel>,
    refused: Vec<Refusal>,
}

impl Outline {
    /// The first of `paths` that takes the problem.
    pub(crate) fn new(device: &Capabilities, problem: &Problem, paths: &[Path]) -> Result<Self, Refusal> {
        check(problem)?;
        if problem.shape.is_empty() {
            return Ok(Self { kernel: None, unaligned: None, refused: Vec::new() });
        }
        let mut refused = Vec::new();
        for &path in paths {
            let kernel = match path {
                Path::Sm90 => sm90::kernel(device, problem),
                Path::Sm90F32 => sm90_f32::kernel(device, problem),
                Path::Mma => mma::kernel(device, problem),
                Path::Simt => simt::kernel(device, problem),
            };
            match kernel {
                Ok(kernel) => return Ok(Self { refused, ..Self::of(device, problem, kernel) }),
                Err(reasons) => refused.push(Refusal::by_path(EngineId::Flash, path.name(), reasons)),
            }
        }
        // One path was asked for, and its reasons are the engine's; or simt, the last, refused: too old a device, or too large a grid.
        Err(refused.pop().unwrap_or_else(|| Refusal::by_engine(EngineId::Flash, Vec::new())))
    }

    /// Of a kernel for the problem, and of another one for launches that it cannot take.
    pub(crate) fn of(device: &Capabilities, problem: &Problem, kernel: Kernel) -> Self {
        let asks_for_alignment = kernel.alignment > problem.dtype.size();
        let unaligned = if asks_for_alignment { simt::kernel(device, problem).ok() } else { None };
        Self { kernel: Some(kernel), unaligned, refused: Vec::new() }
    }

    pub(crate) fn explanation(&self) -> Explanation {
        let engine = EngineId::Flash;
        let refused = self.refused.clone();
        match &self.kernel {
            Some(kernel) => {
                let (path, why, details) = (kernel.path.name().to_owned(), kernel.why.clone(), kernel.details.clone());
                Explanation { engine, path, why, details, refused }
            }
            None => Explanation {
                engine,
                path: "nothing".to_owned(),
                why: "the output has no element, so nothing is launched".to_owned(),
                details: Vec::new(),
                refused,
            },
        }
    }
}

/// Refuses what no path of the engine takes.
pub(crate) fn check(problem: &Problem) -> Result<(), Refusal> {
    problem.validate()?;
    let mut reasons = Vec::new();
    if let Some(scores) = problem.scores {
        let feature = format!("handing out scores ({:?})", scores.stage);
        reasons.push(Reason::unsupported(feature, "flash", "use the phase2a engine, which keeps a score tensor"));
    }
    if problem.paging.is_some() {
        reasons.push(Reason::unsupported("paged keys and values", "flash", "gather the pages into a dense cache"));
    }
    for (what, len) in [("q_len", problem.shape.q_len), ("kv_len", problem.shape.kv_len)] {
        if len > MAX_SEQUENCE {
            let feature = format!("{what} {len}");
            reasons.push(Reason::unsupported(feature, "flash", format!("keep it at most {MAX_SEQUENCE}")));
        }
    }
    if reasons.is_empty() { Ok(()) } else { Err(Refusal::by_engine(EngineId::Flash, reasons)) }
}

/// The rows of a head unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rows {
    pub(crate) pack: usize,
    pub(crate) rows: usize,
}

impl Rows {
    pub(crate) fn of(problem: &Problem, block_rows: usize) -> Self {
        let q_len = problem.shape.q_len;
        let pack = packed_heads(q_len, problem.shape.group(), block_rows);
        Self { pack, rows: q_len * pack }
    }
}

/// The blocks of a launch and their order; `tile_scheduler.cuh` turns a block's number into its tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grid {
    pub(crate) blocks: u32,
    /// Query heads folded into the rows of a tile.
    pub(crate) pack: i32,
    /// How they are numbered.
    pub(crate) order: TileOrder,
}

impl Grid {
    /// One block for each tile of `block_rows` rows, times `splits`.
    pub(crate) fn new(problem: &Problem, rows: Rows, block_rows: usize, splits: usize) -> Result<Self, Reason> {
        let shape = problem.shape;
        let units = shape.batch * shape.q_heads / rows.pack;
        let row_tiles = rows.rows.div_ceil(block_rows);
        let blocks = units as u128 * row_tiles as u128 * splits as u128;
        match u32::try_from(blocks) {
            Ok(blocks) if blocks <= i32::MAX as u32 => Ok(Self {
                blocks,
                pack: rows.pack as i32,
                order: TileOrder::new(
                    shape.batch,
                    shape.q_heads / rows.pack,
                    shape.group(),
                    section(problem, rows.pack),
                    row_tiles,
                ),
            }),
            _ => {
                let feature = format!("a grid of {blocks} blocks");
                Err(Reason::unsupported(feature, "a launch", "split the batch over several launches"))
            }
        }
    }

    /// What people may want to know of it.
    pub(crate) fn details(self) -> impl Iterator<Item = String> {
        let packed = (self.pack > 1).then(|| format!("{} query heads packed into the rows of a tile", self.pack));
        let section = self.order.section.value;
        let sections = (section > 1).then(|| format!("longest tiles first, in sections of {section} heads"));
        packed.into_iter().chain(sections)
    }
}

/// Bytes of K and V that the tiles in flight may touch before they fall out of L2. Causal sections of 8 MB for short and 16 MB for
/// longer sequences measured best among 8, 16, 32 MB and one wave on an H200.
fn section_bytes(kv_len: usize) -> usize {
    if kv_len <= 512 { 8 << 20 } else { 16 << 20 }
}

/// Which ends of what a row sees move with the row.
pub(crate) fn edges(problem: &Problem) -> Edges {
    let window = problem.mask.window;
    Edges { left: window.left.is_some(), right: problem.mask.causal || window.right.is_some() }
}

/// Head units whose tiles are drawn together: several where tiles differ in length, so that the long ones of all come first; one
/// where they are alike, so that a head's K and V stay in L2 while its rows are done.
fn section(problem: &Problem, pack: usize) -> usize {
    let shape = problem.shape;
    let units = shape.batch * shape.q_heads / pack;
    if !edges(problem).any() {
        return 1;
    }
    let kv_bytes = shape.kv_len.max(1) * (shape.head_dim + shape.v_head_dim) * problem.dtype.size();
    let kv_heads = (section_bytes(shape.kv_len) / kv_bytes).max(1);
    (kv_heads * (shape.group() / pack)).clamp(1, units)
}
