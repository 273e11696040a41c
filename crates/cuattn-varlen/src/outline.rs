//! Which path does a packed problem, decided without a GPU.

use cuattn_core::lowering::MAX_SEQUENCE;
use cuattn_core::{EngineId, Explanation, Layout, Reason, Refusal, Region, VarlenProblem};
use cuattn_kernels::Source;
use cuattn_kernels::abi::WorkItem;
use cuattn_kernels::flash::packed_heads;
use cuattn_kernels::varlen::{KeyStorage, SCANNED_SEQUENCES};
use curt::Capabilities;

use crate::{Path, mma, simt, sm90};

/// A kernel and how it is launched for one problem.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    pub(crate) path: Path,
    pub(crate) source: Source,
    pub(crate) grid: Grid,
    pub(crate) threads: u32,
    pub(crate) shared_bytes: u32,
    /// Alignment in bytes that q, k, v and o must have.
    pub(crate) alignment: usize,
    /// Where its list of tiles lies in a schedule. `None`: its warps sort the lengths themselves.
    pub(crate) list: Option<Region>,
    /// What the `sm90` path's launch needs beside.
    pub(crate) sm90: Option<sm90::Geometry>,
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
    /// The lists of both.
    pub(crate) schedule: Layout,
    refused: Vec<Refusal>,
}

impl Outline {
    /// The first of `paths` that takes the problem, and is not known to be slower than another one of them.
    pub(crate) fn new(device: &Capabilities, problem: &VarlenProblem, paths: &[Path]) -> Result<Self, Refusal> {
        problem.validate()?;
        let shape = problem.shape;
        let mut reasons = Vec::new();
        let tokens = [("total_q", shape.total_q), ("total_kv", shape.total_kv), ("max_kv_len", shape.max_kv_len)];
        // With pages, the tokens of the pool are never counted through.
        for (what, tokens) in tokens.into_iter().filter(|(what, _)| *what != "total_kv" || problem.paging.is_none()) {
            if tokens > MAX_SEQUENCE {
                let feature = format!("{what} {tokens}");
                reasons.push(Reason::unsupported(feature, "varlen", format!("keep it at most {MAX_SEQUENCE}")));
            }
        }
        if !reasons.is_empty() {
            return Err(Refusal::by_engine(EngineId::Varlen, reasons));
        }
        let mut outline = Self { kernel: None, unaligned: None, schedule: Layout::new(), refused: Vec::new() };
        if shape.is_empty() {
            return Ok(outline);
        }
        for &path in paths {
            let kernel = match path {
                Path::Sm90 => match sm90::reason_for_mma(problem) {
                    Some(reason) if paths.contains(&Path::Mma) => Err(vec![reason]),
                    _ => sm90::kernel(device, problem),
                },
                Path::Mma => mma::kernel(device, problem),
                Path::Simt => simt::kernel(device, problem),
            };
            match kernel {
                Ok(kernel) => {
                    let asks_for_alignment = kernel.alignment > problem.dtype.size();
                    let unaligned = if asks_for_alignment { simt::kernel(device, problem).ok() } else { None };
                    outline.kernel = Some(outline.with_list(problem, kernel)?);
                    outline.unaligned = unaligned.map(|kernel| outline.with_list(problem, kernel)).transpose()?;
                    return Ok(outline);
                }
                Err(reasons) => outline.refused.push(Refusal::by_path(EngineId::Varlen, path.name(), reasons)),
            }
        }
        // One path was asked for, and its reasons are the engine's; or simt, the last, refused: a grid too large for any launch.
        Err(outline.refused.pop().unwrap_or_else(|| Refusal::by_engine(EngineId::Varlen, Vec::new())))
    }

    fn with_list(&mut self, problem: &VarlenProblem, mut kernel: Kernel) -> Result<Kernel, Refusal> {
        if problem.shape.batch > SCANNED_SEQUENCES {
            kernel.list = Some(self.schedule.push_array(kernel.grid.row_tiles, size_of::<WorkItem>())?);
            kernel
                .details
                .push(format!("longest sequences first, from a list of up to {} tiles", kernel.grid.row_tiles));
        } else {
            let whose = if kernel.path == Path::Sm90 { "block" } else { "warp" };
            kernel.details.push(format!("longest sequences first, sorted by each {whose}"));
        }
        Ok(kernel)
    }

    pub(crate) fn explanation(&self) -> Explanation {
        let engine = EngineId::Varlen;
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

/// How the keys of `problem` lie, for the kernels.
pub(crate) fn key_storage(problem: &VarlenProblem) -> KeyStorage {
    if problem.paging.is_some() { KeyStorage::Paged } else { KeyStorage::Packed }
}

/// Lengths by which kernels are chosen, all that the host can know: those of each sequence, were they equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Average {
    pub(crate) q_len: usize,
    pub(crate) kv_len: usize,
}

impl Average {
    /// Of a problem that is not empty, and so has a sequence.
    pub(crate) fn of(problem: &VarlenProblem) -> Self {
        let shape = problem.shape;
        let each = |total: usize| total.div_ceil(shape.batch.max(1));
        let kv_len = each(shape.total_kv);
        // With pages, the total is that of the pool, which may be far more than is in use.
        let kv_len = if problem.paging.is_some() { kv_len.min(shape.max_kv_len) } else { kv_len };
        Self { q_len: each(shape.total_q), kv_len }
    }
}

/// The blocks of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grid {
    pub(crate) blocks: u32,
    /// Rows of a tile.
    pub(crate) block_rows: usize,
    /// Query heads folded into them.
    pub(crate) pack: usize,
    /// The most tiles that the rows of one head unit of all sequences can make.
    pub(crate) row_tiles: usize,
}

impl Grid {
    /// Room for every way to divide the tokens into sequences, in tiles of `block_rows` rows, times `splits`.
    pub(crate) fn new(problem: &VarlenProblem, block_rows: usize, splits: usize) -> Result<Self, Reason> {
        let shape = problem.shape;
        let pack = packed_heads(Average::of(problem).q_len, shape.group(), block_rows);
        Self::packed(problem, Self::pack_that_fits(problem, pack), block_rows, splits)
    }

    /// `pack` query heads in the rows of a tile, or one where rows could not be counted.
    pub(crate) fn pack_that_fits(problem: &VarlenProblem, pack: usize) -> usize {
        let fits = |rows: usize| rows <= i32::MAX as usize / 2;
        if problem.shape.total_q.checked_mul(pack).is_some_and(fits) { pack } else { 1 }
    }

    /// The same with `pack` query heads in the rows of a tile.
    pub(crate) fn packed(
        problem: &VarlenProblem,
        pack: usize,
        block_rows: usize,
        splits: usize,
    ) -> Result<Self, Reason> {
        let shape = problem.shape;
        // Full tiles first; each sequence that has a row can leave one that is not.
        let row_tiles = shape.total_q * pack / block_rows + shape.batch.min(shape.total_q);
        let units = shape.q_heads / pack;
        let blocks = row_tiles as u128 * units as u128 * splits as u128;
        match u32::try_from(blocks) {
            Ok(blocks) if blocks <= i32::MAX as u32 => Ok(Self { blocks, block_rows, pack, row_tiles }),
            _ => {
                let feature = format!("a grid of {blocks} blocks");
                Err(Reason::unsupported(feature, "a launch", "split the batch over several launches"))
            }
        }
    }

    /// What people may want to know of it.
    pub(crate) fn details(self) -> Vec<String> {
        let mut details = vec![format!("up to {} tiles of rows in {} blocks", self.row_tiles, self.blocks)];
        if self.pack > 1 {
            details.push(format!("{} query heads packed into the rows of a tile", self.pack));
        }
        details
    }
}
