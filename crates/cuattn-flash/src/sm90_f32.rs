//! The `sm90_f32` path: who may take it, and the four kernels of a launch.

use cuattn_core::lowering::{HopperLaunches, bias_kind};
use cuattn_core::{
    DType, LaunchError, Layout, Operand, Operands, Problem, Reason, Refusal, Region, Strides, WorkspaceSize,
};
use cuattn_kernels::Source;
use cuattn_kernels::abi::{FlashParams, HeadRange, Sm90F32Params};
use cuattn_kernels::flash::MIN_HEAD_DIM;
use cuattn_kernels::flash::sm90::GROUP_ROWS;
use cuattn_kernels::flash::sm90_f32::{CHUNK_ROWS, MAX_HEAD_DIM, MIN_LEN, MIN_MULTIPLICATIONS, SPLIT_THREADS, Sm90F32};
use cuattn_kernels::flash::tiles::Row;
use curt::{Capabilities, DevicePtr, Function, KernelArgs, L2Promotion, Launch, ModuleSource, Runtime, TensorMapType};

use crate::Path;
use crate::outline::{Grid, Kernel, Rows};
use crate::simt;
use crate::sm90::{Geometry, Mapped, bias_map, fits_map};

/// What a launch consists of beside the kernel itself.
#[derive(Clone, Debug)]
pub(crate) struct Halves {
    measure: Source,
    split: Source,
    /// Blocks of each of these two.
    blocks: u32,
    /// The kernel for heads whose halves would not keep float32's accuracy.
    pub(crate) fallback: Kernel,
    geometry: Geometry,
    regions: Regions,
    workspace: WorkspaceSize,
}

impl Halves {
    pub(crate) fn workspace(&self) -> WorkspaceSize {
        self.workspace
    }
}

/// The parts of the workspace.
#[derive(Clone, Copy, Debug)]
struct Regions {
    q: Region,
    k: Region,
    v: Region,
    parts: Region,
    ranges: Region,
}

impl Regions {
    fn new(problem: &Problem, blocks: usize) -> Result<(Self, WorkspaceSize), Refusal> {
        let shape = problem.shape;
        let (q_heads, kv_heads) = (shape.batch * shape.q_heads, shape.batch * shape.kv_heads);
        let mut layout = Layout::new();
        // Two halves of two bytes take the room of a float32.
        let regions = Self {
            q: layout.push_array(q_heads * shape.q_len * shape.head_dim, DType::F32.size())?,
            k: layout.push_array(kv_heads * shape.kv_len * shape.head_dim, DType::F32.size())?,
            v: layout.push_array(kv_heads * shape.kv_len * shape.v_head_dim, DType::F32.size())?,
            parts: layout.push_array(blocks, size_of::<HeadRange>())?,
            ranges: layout.push_array(q_heads + 2 * kv_heads, size_of::<HeadRange>())?,
        };
        Ok((regions, layout.size()))
    }
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
    variant(device, problem).ok()?.row()
}

fn variant(device: &Capabilities, problem: &Problem) -> Result<Sm90F32, Vec<Reason>> {
    let reasons = reasons_against(device, problem);
    if !reasons.is_empty() {
        return Err(reasons);
    }
    let shape = problem.shape;
    let variant = Sm90F32 {
        softcap: problem.softcap.is_some(),
        score_mod: problem.score_mod.as_ref().map(|score_mod| score_mod.body.to_string()),
        unusual_scale: problem.scale <= 0.0,
        ..Sm90F32::plain(shape.head_dim, shape.v_head_dim)
    };
    variant.with_bias(bias_kind(problem)).ok_or_else(|| {
        let feature = format!("a boolean bias at head size {}", shape.head_dim.max(shape.v_head_dim));
        let instead = "its panels are wider than a block of keys; the simt path adds it, or pass it as float32";
        vec![Reason::unsupported(feature, Path::Sm90F32.name(), instead)]
    })
}

fn kernel_of(device: &Capabilities, problem: &Problem, variant: &Sm90F32) -> Result<Kernel, Vec<Reason>> {
    let shape = problem.shape;
    let block_rows = variant.tile.block_rows();
    let one = |reason| vec![reason];
    let grid = Grid::new(problem, Rows { pack: 1, rows: shape.q_len }, block_rows, 1).map_err(one)?;
    let tiles = grid.blocks;
    let grid = Grid { blocks: tiles.min(device.multiprocessors), ..grid };
    let blocks = split_blocks(problem).map_err(one)?;
    let (regions, workspace) = Regions::new(problem, blocks as usize).map_err(|refusal| refusal.reasons)?;
    let mut details = vec![
        format!("{block_rows} x {} tile, {} consumer warpgroups", variant.tile.block_keys, variant.tile.warpgroups),
        format!("{tiles} tiles drawn by {} persistent blocks of {} bytes", grid.blocks, variant.shared_bytes()),
        format!("{blocks} blocks measure, and again split, q, k and v before"),
        "heads with a value that is not finite, or too great a spread, are computed by the simt path after".to_owned(),
    ];
    details.extend(grid.details());
    Ok(Kernel {
        path: Path::Sm90F32,
        tile: variant.tile.to_string(),
        same_tile: None,
        source: variant.source(),
        grid,
        threads: variant.tile.threads() as u32,
        shared_bytes: variant.shared_bytes() as u32,
        // Tensors are split element by element where they are not aligned; the copy engine reads the bias.
        alignment: if problem.mask.bias.is_some() { 16 } else { problem.dtype.size() },
        sm90: None,
        halves: Some(Box::new(Halves {
            measure: variant.measure(),
            split: variant.split(),
            blocks,
            fallback: simt::fallback(device, problem)?,
            geometry: Geometry { pack: 1, block_keys: variant.tile.block_keys as u32, tiles },
            regions,
            workspace,
        })),
        why: format!("three products of f16 halves make one of f32 at head size {}", shape.head_dim),
        details,
    })
}

/// A block for each chunk of rows of a head of q, k and v.
fn split_blocks(problem: &Problem) -> Result<u32, Reason> {
    let shape = problem.shape;
    let chunks = |heads: usize, len: usize| shape.batch as u128 * heads as u128 * len.div_ceil(CHUNK_ROWS) as u128;
    let blocks = chunks(shape.q_heads, shape.q_len) + 2 * chunks(shape.kv_heads, shape.kv_len);
    match u32::try_from(blocks) {
        Ok(blocks) if blocks <= i32::MAX as u32 => Ok(blocks),
        _ => {
            let feature = format!("a grid of {blocks} blocks");
            Err(Reason::unsupported(feature, "a launch", "split the batch over several launches"))
        }
    }
}

fn reasons_against(device: &Capabilities, problem: &Problem) -> Vec<Reason> {
    let path = Path::Sm90F32.name();
    let shape = problem.shape;
    let mut reasons = Vec::new();
    let mut refuse = |feature: String, instead: &str| reasons.push(Reason::unsupported(feature, path, instead));
    if problem.dtype != DType::F32 {
        refuse(format!("{} tensors", problem.dtype), "they need no halves; the sm90 and mma paths take them");
    }
    for (what, dim) in [("head_dim", shape.head_dim), ("v_head_dim", shape.v_head_dim)] {
        if dim < MIN_HEAD_DIM || dim % 8 != 0 || dim > MAX_HEAD_DIM {
            refuse(
                format!("{what} {dim}"),
                "it takes multiples of 8 from 16 to 128; pad the tensors, or take the simt path",
            );
        }
    }
    for (what, len) in [("q_len", shape.q_len), ("kv_len", shape.kv_len)] {
        if len < MIN_LEN {
            let feature = format!("{what} {len}, less than {MIN_LEN}");
            refuse(feature, "splitting costs more than tensor cores gain; the simt path takes it");
        }
    }
    let multiplications = [shape.batch, shape.q_heads, shape.q_len, shape.kv_len, shape.head_dim + shape.v_head_dim]
        .into_iter()
        .fold(1, usize::saturating_mul);
    if multiplications < MIN_MULTIPLICATIONS {
        let feature = format!("{multiplications} multiplications, less than {MIN_MULTIPLICATIONS}");
        refuse(feature, "its four launches take longer than the simt path's one");
    }
    if problem.mask.bias.is_some_and(|bias| !fits_map(shape, bias)) {
        let feature = "a bias whose keys are not next to each other, whose rows do not begin at multiples of 16 bytes, or are all one";
        refuse(feature.to_owned(), "no tensor map can express it; the simt path adds it");
    }
    if device.compute_capability != (9, 0) {
        reasons.push(Reason::ArchUnsupported {
            by: path.to_owned(),
            need: "9.0 exactly".to_owned(),
            got: device.compute_capability,
            instead: "the simt path runs on 8.0 and newer".to_owned(),
        });
    }
    reasons
}

/// The kernels around the one that a plan's `Loaded` holds, compiled.
#[derive(Debug)]
pub(crate) struct LoadedHalves {
    halves: Halves,
    measure: Function,
    split: Function,
    fallback: Function,
    fallback_launch: Launch,
    hopper: HopperLaunches,
}

impl LoadedHalves {
    pub(crate) fn new(runtime: &Runtime, halves: Halves) -> Result<Self, curt::Error> {
        let load = |source: &Source, shared: u32| {
            let module = runtime.load(&ModuleSource::new(source.root(), source.assemble()))?;
            module.function_with_shared(source.entry(), shared as usize)
        };
        let Kernel { source, grid, threads, shared_bytes, .. } = &halves.fallback;
        Ok(Self {
            measure: load(&halves.measure, 0)?,
            split: load(&halves.split, 0)?,
            fallback: load(source, *shared_bytes)?,
            fallback_launch: Launch::new([grid.blocks, 1, 1], [*threads, 1, 1]).shared_bytes(*shared_bytes),
            hopper: HopperLaunches::new(runtime)?,
            halves,
        })
    }

    pub(crate) fn fallback(&self) -> &Kernel {
        &self.halves.fallback
    }
}

/// One launch of all four.
pub(crate) struct Sm90F32Launch<'a> {
    pub(crate) runtime: &'a Runtime,
    pub(crate) function: &'a Function,
    pub(crate) launch: &'a Launch,
    pub(crate) around: &'a LoadedHalves,
    pub(crate) workspace: DevicePtr,
}

impl Sm90F32Launch<'_> {
    /// Encodes the maps of the halves and enqueues the kernels. `simt`: what the fallback takes.
    ///
    /// # Safety
    ///
    /// As for a plan's launch.
    pub(crate) unsafe fn enqueue(
        &self,
        problem: &Problem,
        operands: &Operands,
        flash: FlashParams,
        simt: FlashParams,
    ) -> Result<(), LaunchError> {
        let shape = problem.shape;
        let LoadedHalves { halves: Halves { blocks, geometry, regions, .. }, hopper, .. } = self.around;
        let [q, k, v, parts, ranges] =
            [regions.q, regions.k, regions.v, regions.parts, regions.ranges].map(|region| region.of(self.workspace));
        let halves =
            |operand: Operand, memory: DevicePtr, [heads, len, dim]: [usize; 3], rows: u32, promotion: L2Promotion| {
                let strides = Strides::bhsd(heads, len, dim);
                // The low halves lie where a second batch would.
                let dims = [dim, len, heads, 2 * shape.batch];
                let map = Mapped { element: TensorMapType::F16, memory, strides, dims, rows, promotion };
                hopper.map(operand, memory, || map.encode(self.runtime))
            };
        let (keys, whole, half) = (geometry.block_keys, L2Promotion::Bytes256, L2Promotion::Bytes128);
        let q_map = halves(Operand::Q, q, [shape.q_heads, shape.q_len, shape.head_dim], GROUP_ROWS as u32, half)?;
        let k_map = halves(Operand::K, k, [shape.kv_heads, shape.kv_len, shape.head_dim], keys, whole)?;
        let v_map = halves(Operand::V, v, [shape.kv_heads, shape.kv_len, shape.v_head_dim], keys, whole)?;
        // The kernel of a problem without a bias does not look at its map.
        let bias = bias_map(self.runtime, hopper, problem, operands)?.unwrap_or(q_map);
        let steps = |stride: i64| i32::from(stride != 0);
        let params = Sm90F32Params {
            flash,
            q: q.address(),
            k: k.address(),
            v: v.address(),
            parts: parts.address(),
            ranges: ranges.address(),
            counter: hopper.tile_counter(self.runtime, Path::Sm90F32.name())?,
            tiles: geometry.tiles as i32,
            bias_head_step: problem.mask.bias.map_or(0, |bias| steps(bias.head)),
            bias_batch_step: problem.mask.bias.map_or(0, |bias| steps(bias.batch)),
            reserved: 0,
        };
        let alone = KernelArgs::new().arg(&params);
        let arguments = KernelArgs::new().arg(&q_map).arg(&k_map).arg(&v_map).arg(&bias).arg(&params);
        let fallback_params = Sm90F32Params { flash: simt, ..params };
        let chunks = Launch::new([*blocks, 1, 1], [SPLIT_THREADS as u32, 1, 1]);
        // SAFETY: the caller vouches for the operands and the workspace, of which the regions are parts; each kernel takes one
        // `Sm90F32Params`, the third after four maps.
        unsafe {
            self.runtime.launch(&self.around.measure, &chunks, &alone)?;
            self.runtime.launch(&self.around.split, &chunks, &alone)?;
            self.runtime.launch(self.function, self.launch, &arguments)?;
            let arguments = KernelArgs::new().arg(&fallback_params);
            self.runtime.launch(&self.around.fallback, &self.around.fallback_launch, &arguments)?;
        }
        Ok(())
    }
}
