//! The `sm90` path: who may take it, and how it is launched.

use cuattn_core::lowering::{HopperLaunches, bias_kind, element};
use cuattn_core::{Bias, BiasKind, DType, LaunchError, Operand, Operands, Problem, Reason, Shape, Strides};
use cuattn_kernels::abi::{FlashParams, HopperParams, Sm90Params};
use cuattn_kernels::flash::MIN_HEAD_DIM;
use cuattn_kernels::flash::sm90::{Demand, GROUP_ROWS, MAX_HEAD_DIM, PANEL, Sm90, boxed_heads};
use cuattn_kernels::flash::tiles::Row;
use curt::{
    Capabilities, DevicePtr, Function, KernelArgs, L2Promotion, Launch, Runtime, Swizzle, TensorMap, TensorMapType,
};

use crate::Path;
use crate::outline::{Grid, Kernel, Rows, edges};

/// What a launch needs to know of the tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub(crate) pack: u32,
    pub(crate) block_keys: u32,
    pub(crate) tiles: u32,
}

/// The kernel for `problem`, or every reason against it.
pub(crate) fn kernel(device: &Capabilities, problem: &Problem) -> Result<Kernel, Vec<Reason>> {
    kernel_of(device, problem, &variant(device, problem)?)
}

/// The kernels for `problem` that tuning measures, the first as [`kernel`] has it; or every reason against it.
pub(crate) fn candidates(device: &Capabilities, problem: &Problem) -> Result<Vec<Kernel>, Vec<Reason>> {
    let variants = variant(device, problem)?.candidates();
    variants.iter().map(|variant| kernel_of(device, problem, variant)).collect()
}

/// The row of the table whose tile [`kernel`] takes as it is.
pub(crate) fn row(device: &Capabilities, problem: &Problem) -> Option<&'static Row> {
    variant(device, problem).ok()?.row(demand(device, problem))
}

fn demand(device: &Capabilities, problem: &Problem) -> Demand {
    let shape = problem.shape;
    let Rows { pack, rows } = Rows::of(problem, TALL_ROWS);
    Demand {
        q_len: rows,
        kv_len: shape.kv_len,
        heads: shape.batch * shape.q_heads / pack,
        edges: edges(problem),
        softcap: problem.softcap.is_some(),
        multiprocessors: device.multiprocessors as usize,
    }
}

fn variant(device: &Capabilities, problem: &Problem) -> Result<Sm90, Vec<Reason>> {
    let reasons = reasons_against(device, problem);
    if !reasons.is_empty() {
        return Err(reasons);
    }
    let shape = problem.shape;
    let variant = Sm90 {
        pack: Rows::of(problem, TALL_ROWS).pack,
        score_mod: problem.score_mod.as_ref().map(|score_mod| score_mod.body.to_string()),
        unusual_scale: problem.scale <= 0.0,
        ..Sm90::plain(element(problem.dtype), shape.head_dim, shape.v_head_dim, demand(device, problem))
    };
    variant.with_bias(bias_kind(problem)).ok_or_else(|| {
        let feature = format!("a boolean bias at head size {}", shape.head_dim.max(shape.v_head_dim));
        vec![Reason::unsupported(
            feature,
            Path::Sm90.name(),
            "its tile does not fit shared memory; the mma path adds it",
        )]
    })
}

fn kernel_of(device: &Capabilities, problem: &Problem, variant: &Sm90) -> Result<Kernel, Vec<Reason>> {
    let shape = problem.shape;
    let block_rows = variant.tile.block_rows();
    let rows = Rows { pack: variant.pack, rows: shape.q_len * variant.pack };
    let grid = Grid::new(problem, rows, block_rows, 1).map_err(|reason| vec![reason])?;
    let tiles = grid.blocks;
    let grid =
        Grid { blocks: tiles.min(device.multiprocessors * variant.tile.blocks_per_multiprocessor as u32), ..grid };
    let mut details = vec![
        format!("{block_rows} x {} tile, {} consumer warpgroups", variant.tile.block_keys, variant.tile.warpgroups),
        format!("{tiles} tiles drawn by {} persistent blocks of {} bytes", grid.blocks, variant.shared_bytes()),
    ];
    details.extend(grid.details());
    Ok(Kernel {
        path: Path::Sm90,
        tile: variant.tile.to_string(),
        same_tile: variant.same_tile().map(|tile| tile.to_string()),
        source: variant.source(),
        grid,
        threads: variant.tile.threads() as u32,
        shared_bytes: variant.shared_bytes() as u32,
        alignment: 16,
        sm90: Some(Geometry { pack: variant.pack as u32, block_keys: variant.tile.block_keys as u32, tiles }),
        halves: None,
        why: format!(
            "{} at head size {} fits Hopper's copy engine and warpgroup products",
            problem.dtype, shape.head_dim
        ),
        details,
    })
}

/// Rows of a tile that two warpgroups make.
const TALL_ROWS: usize = 2 * GROUP_ROWS;

/// Bytes at which a stride no longer fits a tensor map.
const MAX_STRIDE: i64 = 1 << 40;

fn reasons_against(device: &Capabilities, problem: &Problem) -> Vec<Reason> {
    let path = Path::Sm90.name();
    let shape = problem.shape;
    let mut reasons = Vec::new();
    let mut refuse = |feature: String, instead: &str| reasons.push(Reason::unsupported(feature, path, instead));
    if problem.dtype == DType::F32 {
        refuse("f32 tensors".to_owned(), "tensor cores would round them; the simt path keeps float32 accuracy");
    }
    if problem.mask.bias.is_some_and(|bias| !fits_map(shape, bias)) {
        let feature = "a bias whose keys are not next to each other, whose rows do not begin at multiples of 16 bytes, or are all one";
        refuse(feature.to_owned(), "no tensor map can express it; the mma path adds it");
    }
    for (what, dim) in [("head_dim", shape.head_dim), ("v_head_dim", shape.v_head_dim)] {
        if dim < MIN_HEAD_DIM {
            refuse(format!("{what} {dim}"), "tensor cores have nothing to gain here; the simt path rounds less");
        } else if dim % 8 != 0 || dim > MAX_HEAD_DIM {
            refuse(
                format!("{what} {dim}"),
                "it takes multiples of 8 from 16 to 256; pad the tensors, or take the simt path",
            );
        }
    }
    if shape.kv_len == 0 {
        refuse("keys of length 0".to_owned(), "a tensor map cannot be empty; the mma path writes the zeros");
    }
    let Rows { pack, rows } = Rows::of(problem, TALL_ROWS);
    let fits_boxes = rows >= GROUP_ROWS && boxed_heads(pack) == pack && problem.mask.bias.is_none();
    if pack > 1 && !fits_boxes {
        refuse(
            format!("{} query rows with {} heads a key head", shape.q_len, shape.group()),
            "the mma path folds the heads of a group into its tiles, whatever they are",
        );
    }
    for (what, strides, is_output) in
        [("q", problem.q, true), ("k", problem.k, false), ("v", problem.v, false), ("o", problem.o, true)]
    {
        let used = used_strides(shape, strides, what == "q" || what == "o");
        if used.iter().any(|stride| stride % 8 != 0 || stride * 2 >= MAX_STRIDE) {
            let feature = format!("strides of {what} that are no multiples of 8 elements, or reach 2^40 bytes");
            refuse(feature, "no tensor map can express them; the mma or simt path takes them");
        } else if strides.row == 0 || (is_output && used.contains(&0)) {
            refuse(format!("a stride of 0 in {what}"), "no tensor map can express it; the mma path takes it");
        }
    }
    if device.compute_capability != (9, 0) {
        reasons.push(Reason::ArchUnsupported {
            by: path.to_owned(),
            need: "9.0 exactly".to_owned(),
            got: device.compute_capability,
            instead: "the mma path runs on 8.0 and newer".to_owned(),
        });
    }
    reasons
}

/// The strides that are ever stepped over.
fn used_strides(shape: Shape, strides: Strides, is_query: bool) -> Vec<i64> {
    let (heads, rows) = if is_query { (shape.q_heads, shape.q_len) } else { (shape.kv_heads, shape.kv_len) };
    [(shape.batch, strides.batch), (heads, strides.head), (rows, strides.row)]
        .into_iter()
        .filter_map(|(extent, stride)| (extent > 1).then_some(stride))
        .collect()
}

/// Whether a tensor map can express the bias, as far as its strides tell.
pub(crate) fn fits_map(shape: Shape, bias: Bias) -> bool {
    let size = bias.kind.size() as i64;
    let legal = |extent: usize, stride: i64| extent <= 1 || (stride * size % 16 == 0 && stride * size < MAX_STRIDE);
    let rows_differ = shape.q_len <= 1 || bias.row > 0;
    bias.key == 1
        && bias.keys > 0
        && rows_differ
        && legal(shape.q_len, bias.row)
        && legal(shape.q_heads, bias.head)
        && legal(shape.batch, bias.batch)
}

/// One launch of the kernel.
pub(crate) struct Sm90Launch<'a> {
    pub(crate) runtime: &'a Runtime,
    pub(crate) function: &'a Function,
    pub(crate) launch: &'a Launch,
    pub(crate) geometry: Geometry,
    pub(crate) hopper: &'a HopperLaunches,
}

impl Sm90Launch<'_> {
    /// Encodes the maps of the operands and enqueues the kernel.
    ///
    /// # Safety
    ///
    /// As for a plan's launch.
    pub(crate) unsafe fn enqueue(
        &self,
        problem: &Problem,
        operands: &Operands,
        flash: FlashParams,
    ) -> Result<(), LaunchError> {
        let shape = problem.shape;
        let [q_dims, o_dims] =
            [shape.head_dim, shape.v_head_dim].map(|dim| [dim, shape.q_len, shape.q_heads, shape.batch]);
        let [k_dims, v_dims] =
            [shape.head_dim, shape.v_head_dim].map(|dim| [dim, shape.kv_len, shape.kv_heads, shape.batch]);
        let element = if problem.dtype == DType::F16 { TensorMapType::F16 } else { TensorMapType::Bf16 };
        let Geometry { pack, block_keys, .. } = self.geometry;
        let map = |memory: DevicePtr, strides: Strides, dims: [usize; 4], rows: u32, promotion: L2Promotion| Mapped {
            element,
            memory,
            strides,
            dims,
            rows,
            promotion,
        };
        let group_rows = GROUP_ROWS as u32;
        let q = map(operands.q, problem.q, q_dims, group_rows, L2Promotion::Bytes128);
        let k = map(operands.k, problem.k, k_dims, block_keys, L2Promotion::Bytes256);
        let v = map(operands.v, problem.v, v_dims, block_keys, L2Promotion::Bytes256);
        let o = map(operands.o, problem.o, o_dims, group_rows, L2Promotion::None);
        let queries = |operand: Operand, map: &Mapped| {
            self.hopper.map(operand, map.memory, || map.encode_heads_first(self.runtime, pack))
        };
        let keys = |operand: Operand, map: &Mapped| self.hopper.map(operand, map.memory, || map.encode(self.runtime));
        let (q, o) = (queries(Operand::Q, &q)?, queries(Operand::O, &o)?);
        let (k, v) = (keys(Operand::K, &k)?, keys(Operand::V, &v)?);
        // The kernel of a problem without a bias does not look at its map.
        let bias = bias_map(self.runtime, self.hopper, problem, operands)?.unwrap_or(o);
        let steps = |stride: i64| i32::from(stride != 0);
        let counter = self.hopper.tile_counter(self.runtime, Path::Sm90.name())?;
        let hopper = HopperParams {
            counter,
            tiles: self.geometry.tiles as i32,
            k_head_step: steps(problem.k.head),
            k_batch_step: steps(problem.k.batch),
            v_head_step: steps(problem.v.head),
            v_batch_step: steps(problem.v.batch),
            bias_head_step: problem.mask.bias.map_or(0, |bias| steps(bias.head)),
            bias_batch_step: problem.mask.bias.map_or(0, |bias| steps(bias.batch)),
            reserved: 0,
        };
        let params = Sm90Params { flash, hopper };
        let arguments = KernelArgs::new().arg(&q).arg(&k).arg(&v).arg(&o).arg(&bias).arg(&params);
        // SAFETY: the caller vouches for the memory; the kernel takes five maps and one `Sm90Params`.
        unsafe { self.runtime.launch(self.function, self.launch, &arguments)? };
        Ok(())
    }
}

/// The map of the bias, if there is one.
pub(crate) fn bias_map(
    runtime: &Runtime,
    hopper: &HopperLaunches,
    problem: &Problem,
    operands: &Operands,
) -> Result<Option<TensorMap>, curt::Error> {
    let (Some(bias), Some(memory)) = (problem.mask.bias, operands.bias) else {
        return Ok(None);
    };
    let shape = problem.shape;
    let element = match bias.kind {
        BiasKind::Boolean => TensorMapType::U8,
        BiasKind::Additive(DType::F32) => TensorMapType::F32,
        BiasKind::Additive(DType::F16) => TensorMapType::F16,
        BiasKind::Additive(_) => TensorMapType::Bf16,
    };
    let strides = Strides { batch: bias.batch, head: bias.head, row: bias.row };
    let dims = [bias.keys.min(shape.kv_len), shape.q_len, shape.q_heads, shape.batch];
    let (rows, promotion) = (GROUP_ROWS as u32, L2Promotion::Bytes256);
    let map = Mapped { element, memory, strides, dims, rows, promotion };
    hopper.map(Operand::Bias, memory, || map.encode(runtime)).map(Some)
}

/// A `[batch, head, row, dim]` tensor in boxes of `rows` rows of 128 bytes. A dimension that is broadcast has extent 1.
pub(crate) struct Mapped {
    pub(crate) element: TensorMapType,
    pub(crate) memory: DevicePtr,
    pub(crate) strides: Strides,
    pub(crate) dims: [usize; 4],
    pub(crate) rows: u32,
    pub(crate) promotion: L2Promotion,
}

impl Mapped {
    pub(crate) fn encode(&self, runtime: &Runtime) -> Result<TensorMap, curt::Error> {
        let [len, heads, batch] = self.dimensions();
        self.encode_dimensions(runtime, [(len, self.rows), (heads, 1), (batch, 1)])
    }

    /// The same with boxes of as many rows, `pack` heads of each, and those innermost.
    fn encode_heads_first(&self, runtime: &Runtime, pack: u32) -> Result<TensorMap, curt::Error> {
        let [len, heads, batch] = self.dimensions();
        self.encode_dimensions(runtime, [(heads, pack), (len, self.rows / pack), (batch, 1)])
    }

    /// Extents and strides in bytes of the rows, the heads and the batch.
    fn dimensions(&self) -> [(u64, u64); 3] {
        let Self { element, strides, dims: [_, len, heads, batch], .. } = *self;
        let size = element.size() as u64;
        // The stride of a dimension of extent 1 is never used, but must be legal.
        let legal = |extent: usize, stride: i64| if extent > 1 && stride > 0 { stride as u64 * size } else { 16 };
        let extent = |extent: usize, stride: i64| if stride == 0 { 1 } else { extent as u64 };
        [
            (len as u64, legal(len, strides.row)),
            (extent(heads, strides.head), legal(heads, strides.head)),
            (extent(batch, strides.batch), legal(batch, strides.batch)),
        ]
    }

    /// With these dimensions around a head's elements, each with a side of the box.
    fn encode_dimensions(
        &self,
        runtime: &Runtime,
        dimensions: [((u64, u64), u32); 3],
    ) -> Result<TensorMap, curt::Error> {
        let Self { element, memory, dims: [dim, ..], promotion, .. } = *self;
        let [(a, _), (b, _), (c, _)] = dimensions;
        let [side_a, side_b, side_c] = dimensions.map(|(_, side)| side);
        TensorMap::builder(element, memory)
            .dims(&[dim as u64, a.0, b.0, c.0])
            .strides(&[a.1, b.1, c.1])
            .box_dims(&[(PANEL_BYTES / element.size()) as u32, side_a, side_b, side_c])
            .swizzle(Swizzle::Bytes128)
            .l2_promotion(promotion)
            .build(runtime)
    }
}

/// Bytes of a row of a panel: what the swizzle spans.
const PANEL_BYTES: usize = PANEL * 2;
