//! What a plan will do, worked out from the problem and the device's figures alone.

use cuattn_core::{DType, EngineId, Explanation, KeyLengths, Layout, Problem, Reason, Refusal, Region, Shape, Strides};
use cuattn_kernels::softmax::RowShape;
use curt::Capabilities;

use crate::Options;
use crate::arrangement::{Arrangement, Chunk, Layouts, Unit};
use crate::score_cap::SCORE_CAP;

const ENGINE: EngineId = EngineId::Phase2a;
const NAME: &str = "phase2a";

/// Which inputs are copied into the workspace first, and why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Copies {
    /// Rows overlap, which a product cannot read.
    pub(crate) q: bool,
    /// Rows overlap.
    pub(crate) k: bool,
    /// Rows overlap, or keys can be masked and what their values hold must not reach any row.
    pub(crate) v: bool,
}

/// The work of a problem with outputs and keys.
#[derive(Clone, Debug)]
pub(crate) struct Products {
    pub(crate) arrangement: Arrangement,
    pub(crate) layouts: Layouts,
    pub(crate) copies: Copies,
    pub(crate) chunks: Vec<Chunk>,
    /// Floats from score row to score row.
    pub(crate) leading: usize,
    /// Score rows of the largest chunk.
    pub(crate) most_rows: usize,
    /// Bytes that a chunk's scores may take.
    pub(crate) cap: usize,
}

/// What there is to do at all.
#[derive(Clone, Debug)]
pub(crate) enum Outline {
    /// No output element.
    Nothing,
    /// No key: zeros, and log-sum-exps of sinks alone.
    NoKeys,
    /// Products.
    Products(Box<Products>),
}

/// The workspace's regions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Regions {
    pub(crate) scores: Region,
    pub(crate) q: Region,
    pub(crate) k: Region,
    pub(crate) v: Region,
    pub(crate) nonfinite: Region,
    pub(crate) blas: Region,
}

/// Whether some row may not see some key. Only then can a value that is infinite or NaN be one that must not be multiplied.
pub(crate) fn may_mask(problem: &Problem) -> bool {
    let mask = &problem.mask;
    mask.causal
        || mask.window.left.is_some()
        || mask.window.right.is_some()
        || mask.bias.is_some()
        || mask.key_lengths != KeyLengths::Full
        || problem.score_mod.is_some()
}

/// The factor on stored probabilities, undone by the second product. Float16 has full precision from 2^-14 on, and a row of
/// thousands of keys has smaller probabilities; 2^15 is the largest power of two that keeps a probability of 1 finite.
pub(crate) const fn probability_scale(dtype: DType) -> f32 {
    match dtype {
        DType::F16 => 32_768.0,
        _ => 1.0,
    }
}

/// Rows of a copy start at multiples of 16 bytes, which is what fast products ask for.
fn copied(heads: usize, rows: usize, dim: usize) -> Strides {
    Strides::bhsd(heads, rows, dim.next_multiple_of(8))
}

impl Outline {
    /// # Errors
    ///
    /// A refusal with every reason.
    pub(crate) fn new(device: &Capabilities, problem: &Problem, options: Options) -> Result<Self, Refusal> {
        problem.validate()?;
        let reasons = refused(device, problem);
        if !reasons.is_empty() {
            return Err(Refusal::by_engine(ENGINE, reasons));
        }
        let shape = problem.shape;
        if shape.is_empty() {
            return Ok(Self::Nothing);
        }
        if shape.kv_len == 0 {
            return Ok(Self::NoKeys);
        }
        let overlap = |strides: Strides, rows: usize, dim: usize| rows > 1 && strides.row < dim as i64;
        let copies = Copies {
            q: overlap(problem.q, shape.q_len, shape.head_dim),
            k: overlap(problem.k, shape.kv_len, shape.head_dim),
            v: overlap(problem.v, shape.kv_len, shape.v_head_dim) || may_mask(problem),
        };
        let Shape { q_heads, kv_heads, q_len, kv_len, head_dim, v_head_dim, .. } = shape;
        let layouts = Layouts {
            q: if copies.q { copied(q_heads, q_len, head_dim) } else { problem.q },
            k: if copies.k { copied(kv_heads, kv_len, head_dim) } else { problem.k },
            v: if copies.v { copied(kv_heads, kv_len, v_head_dim) } else { problem.v },
            o: problem.o,
        };
        let arrangement = Arrangement::new(shape, layouts);
        // Multiples of 8 keep rows of float32 and of 16-bit elements at multiples of 16 bytes.
        let leading = kv_len.next_multiple_of(8);
        let row_bytes = leading * 4;
        let cap = options.score_cap.unwrap_or(SCORE_CAP);
        let chunks = arrangement.chunks((cap / row_bytes).min(i32::MAX as usize));
        let most_rows = chunks.iter().map(|chunk| chunk.slices * chunk.rows).max().unwrap_or(0);
        Ok(Self::Products(Box::new(Products { arrangement, layouts, copies, chunks, leading, most_rows, cap })))
    }

    /// The workspace: its regions, and their layout. Sizes and pointers both come from here.
    pub(crate) fn workspace(&self, problem: &Problem, blas_bytes: usize) -> Result<(Regions, Layout), Refusal> {
        let Shape { batch, q_heads, kv_heads, q_len, kv_len, .. } = problem.shape;
        let element = problem.dtype.size();
        let mut layout = Layout::new();
        let copy = |layout: &mut Layout, wanted: bool, sizes: [usize; 3], strides: Option<Strides>| {
            let row = strides.map_or(0, |strides| strides.row as usize);
            let elements = sizes.iter().try_fold(row, |product, &size| product.checked_mul(size));
            layout.push_array(
                if wanted { elements.ok_or(Reason::SizeOverflow { what: "the workspace" })? } else { 0 },
                element,
            )
        };
        let products = match self {
            Self::Products(products) => Some(products),
            _ => None,
        };
        let copies = products.map_or(Copies::default(), |products| products.copies);
        let layouts = products.map(|products| products.layouts);
        let (most_rows, leading) = products.map_or((0, 0), |products| (products.most_rows, products.leading));
        let score_elements = most_rows.checked_mul(leading).ok_or(Reason::SizeOverflow { what: "the workspace" })?;
        let words = if copies.v { batch * kv_heads * kv_len.div_ceil(64) } else { 0 };
        let regions = Regions {
            scores: layout.push_array(score_elements, 4)?,
            q: copy(&mut layout, copies.q, [batch, q_heads, q_len], layouts.map(|layouts| layouts.q))?,
            k: copy(&mut layout, copies.k, [batch, kv_heads, kv_len], layouts.map(|layouts| layouts.k))?,
            v: copy(&mut layout, copies.v, [batch, kv_heads, kv_len], layouts.map(|layouts| layouts.v))?,
            nonfinite: layout.push_array(words, 8)?,
            blas: layout.push(blas_bytes)?,
        };
        Ok((regions, layout))
    }

    /// The outline in words.
    pub(crate) fn explain(&self, problem: &Problem) -> Explanation {
        let mut details = Vec::new();
        if let Self::Products(products) = self {
            let Products { arrangement, copies, chunks, leading, most_rows, cap, .. } = &**products;
            let unit = match arrangement.unit {
                Unit::Group => {
                    format!("{} query heads of a key head as the rows of one product", arrangement.heads_per_unit)
                }
                Unit::Head => "a query head a product".to_owned(),
            };
            details.push(format!(
                "arrangement: {unit}, {} in a batch, {} batches",
                arrangement.batch.count,
                arrangement.launches()
            ));
            details.push(format!(
                "chunks: {} of at most {most_rows} score rows, {} bytes of scores under a cap of {cap}",
                chunks.len(),
                most_rows * leading * 4
            ));
            details.push(match RowShape::for_keys(problem.shape.kv_len) {
                RowShape::Registers { team, values, .. } => {
                    format!("softmax: {team} threads a row, {values} scores each in registers")
                }
                RowShape::Streaming { team } => format!("softmax: {team} threads a row, two passes"),
            });
            for (copied, name, why) in [
                (copies.q, "q", "its rows overlap"),
                (copies.k, "k", "its rows overlap"),
                (
                    copies.v,
                    "v",
                    if may_mask(problem) { "masked values must not be multiplied" } else { "its rows overlap" },
                ),
            ] {
                if copied {
                    details.push(format!("copies {name}: {why}"));
                }
            }
        }
        let (path, why) = match self {
            Self::Nothing => ("nothing", "the problem has no output element"),
            Self::NoKeys => ("no keys", "there is no key: the output is zeros"),
            Self::Products(_) => {
                ("cublaslt", "two strided-batched products around a softmax kernel do every dense problem")
            }
        };
        Explanation { engine: ENGINE, path: path.to_owned(), why: why.to_owned(), details, refused: Vec::new() }
    }
}

/// Why this engine would not do a legal problem.
fn refused(device: &Capabilities, problem: &Problem) -> Vec<Reason> {
    let mut reasons = Vec::new();
    if problem.paging.is_some() {
        let instead = "use the flash engine, which reads pages, or gather the pages into dense keys and values";
        reasons.push(Reason::unsupported("paged keys and values", NAME, instead));
    }
    if device.compute_capability < (8, 0) {
        reasons.push(Reason::ArchUnsupported {
            by: NAME.to_owned(),
            need: "8.0 or newer".to_owned(),
            got: device.compute_capability,
            instead: "its kernels use conversions that older devices lack".to_owned(),
        });
    }
    let Shape { batch, q_heads, q_len, kv_len, head_dim, v_head_dim, .. } = problem.shape;
    let limit = i32::MAX as u64 / 2;
    let tiles = |rows: usize| rows.div_ceil(64) as u64;
    let heads = (batch as u64).saturating_mul(q_heads as u64);
    for (what, got) in [
        ("batch times q_heads", heads),
        ("q_heads times q_len", (q_heads as u64).saturating_mul(q_len as u64)),
        ("kv_len", kv_len as u64),
        ("head_dim", head_dim as u64),
        ("v_head_dim", v_head_dim as u64),
        ("batch times q_heads times q_len / 64", heads.saturating_mul(tiles(q_len))),
        ("batch times q_heads times kv_len / 64", heads.saturating_mul(tiles(kv_len))),
    ] {
        if got > limit {
            reasons.push(Reason::TooLarge {
                what: what.to_owned(),
                got,
                by: NAME.to_owned(),
                limit,
                instead: "split the problem along the batch or the heads".to_owned(),
            });
        }
    }
    if kv_len == 0 && heads.saturating_mul(q_len as u64) > limit {
        reasons.push(Reason::TooLarge {
            what: "batch times q_heads times q_len".to_owned(),
            got: heads.saturating_mul(q_len as u64),
            by: NAME.to_owned(),
            limit,
            instead: "split the problem along the batch or the heads".to_owned(),
        });
    }
    reasons
}
