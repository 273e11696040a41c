//! The `sm90` path: who may take it, and how it is launched.

use cuattn_core::lowering::{HopperLaunches, MAX_SEQUENCE, element};
use cuattn_core::{DType, LaunchError, Operand, Reason, TokenStrides, VarlenOperands, VarlenProblem};
use cuattn_kernels::abi::{HopperParams, VarlenParams, VarlenSm90Params};
use cuattn_kernels::flash::MIN_HEAD_DIM;
use cuattn_kernels::flash::packed_heads;
use cuattn_kernels::flash::sm90::{Demand, Edges, GROUP_ROWS, MAX_HEAD_DIM, PANEL, Sm90, boxed_heads};
use cuattn_kernels::varlen::{self, RowBoxes};
use curt::{
    Capabilities, DevicePtr, Function, KernelArgs, L2Promotion, Launch, Runtime, Swizzle, TensorMap, TensorMapBuilder,
    TensorMapType,
};

use crate::Path;
use crate::outline::{Average, Grid, Kernel};

/// How boxes of rows end. `RowBoxes::Plain` is the way round the copy engine's bounds, should a device not keep to them.
const ROW_BOXES: RowBoxes = RowBoxes::Ragged;

/// Query rows of an average sequence below which the `mma` path is taken, whose tiles are smaller and fold the heads of a group together.
/// At an average of 32 rows this path does 1.08 to 1.42 times as much on an H200; fewer have not been measured.
const FEWEST_ROWS: usize = 24;

/// What a launch needs to know of the tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// Query heads folded into the rows of a tile.
    pub(crate) pack: usize,
    /// Keys of a box.
    pub(crate) box_keys: u32,
}

/// Why the `mma` path is the better one, where it is.
pub(crate) fn reason_for_mma(problem: &VarlenProblem) -> Option<Reason> {
    let rows = Average::of(problem).q_len;
    (rows < FEWEST_ROWS).then(|| {
        let feature = format!("{rows} query rows a sequence, on average");
        let instead = format!("from {FEWEST_ROWS} on its tiles are filled enough; the mma path has smaller ones");
        Reason::unsupported(feature, Path::Sm90.name(), instead)
    })
}

/// The kernel for `problem`, or every reason against it.
pub(crate) fn kernel(device: &Capabilities, problem: &VarlenProblem) -> Result<Kernel, Vec<Reason>> {
    let mut reasons = reasons_against(device, problem);
    let shape = problem.shape;
    let page_size = problem.paging.map(|paging| paging.paging.page_size);
    let average = Average::of(problem);
    let pack = Grid::pack_that_fits(problem, packed_heads(average.q_len, boxed_heads(shape.group()), 2 * GROUP_ROWS));
    let demand = Demand {
        q_len: average.q_len * pack,
        kv_len: average.kv_len,
        heads: shape.batch.saturating_mul(shape.q_heads / pack),
        edges: Edges { left: problem.window.left.is_some(), right: problem.causal || problem.window.right.is_some() },
        softcap: problem.softcap.is_some(),
        multiprocessors: device.multiprocessors as usize,
    };
    let variant = ROW_BOXES.fit(Sm90 {
        pack,
        score_mod: problem.score_mod.as_ref().map(|score_mod| score_mod.body.to_string()),
        unusual_scale: problem.scale <= 0.0,
        ..Sm90::plain(element(problem.dtype), shape.head_dim, shape.v_head_dim, demand)
    });
    let block_keys = variant.tile.block_keys;
    let box_keys = page_size.map_or(Some(block_keys), |page_size| varlen::page_box(page_size, block_keys));
    if let (None, Some(page_size)) = (box_keys, page_size) {
        let feature = format!("pages of {page_size} keys");
        let instead = "its boxes take multiples of 8 keys; the mma path follows the table key by key";
        reasons.push(Reason::unsupported(feature, Path::Sm90.name(), instead));
    }
    let block_rows = variant.tile.block_rows();
    let (grid, box_keys) = match (Grid::packed(problem, pack, block_rows, 1), box_keys) {
        (Ok(grid), Some(box_keys)) if reasons.is_empty() => (grid, box_keys as u32),
        (grid, _) => {
            reasons.extend(grid.err());
            return Err(reasons);
        }
    };
    let tiles = grid.blocks;
    let grid =
        Grid { blocks: tiles.min(device.multiprocessors * variant.tile.blocks_per_multiprocessor as u32), ..grid };
    let details = vec![
        format!("{block_rows} x {block_keys} tile, {} consumer warpgroups", variant.tile.warpgroups),
        format!(
            "up to {} tiles of rows, {tiles} with those of all heads, drawn by {} persistent blocks of {} bytes",
            grid.row_tiles,
            grid.blocks,
            variant.shared_bytes()
        ),
    ];
    Ok(Kernel {
        path: Path::Sm90,
        source: varlen::sm90(&variant, ROW_BOXES, page_size),
        grid,
        threads: variant.tile.threads() as u32,
        shared_bytes: variant.shared_bytes() as u32,
        alignment: 16,
        list: None,
        sm90: Some(Geometry { pack, box_keys }),
        why: format!(
            "{} at head size {} fits Hopper's copy engine and warpgroup products",
            problem.dtype, shape.head_dim
        ),
        details,
    })
}

/// Bytes at which a stride no longer fits a tensor map.
const MAX_STRIDE: i64 = 1 << 40;
/// Bytes at which the stride between rows no longer fits a ragged one.
const MAX_RAGGED_STRIDE: i64 = 1 << 35;

fn reasons_against(device: &Capabilities, problem: &VarlenProblem) -> Vec<Reason> {
    let path = Path::Sm90.name();
    let shape = problem.shape;
    let mut reasons = Vec::new();
    let mut refuse = |feature: String, instead: &str| reasons.push(Reason::unsupported(feature, path, instead));
    if problem.dtype == DType::F32 {
        refuse("f32 tensors".to_owned(), "tensor cores would round them; the simt path keeps float32 accuracy");
    }
    for (what, dim) in [("head_dim", shape.head_dim), ("v_head_dim", shape.v_head_dim)] {
        if dim < MIN_HEAD_DIM || dim % 8 != 0 || dim > MAX_HEAD_DIM {
            refuse(
                format!("{what} {dim}"),
                "it takes multiples of 8 from 16 to 256; pad the tensors, or take the simt path",
            );
        }
    }
    if shape.total_kv == 0 {
        refuse("no key at all".to_owned(), "a tensor map cannot be empty; the mma path writes the zeros");
    }
    let (k_page, v_page) = problem.paging.map_or((0, 0), |paging| (paging.k_page, paging.v_page));
    for (what, strides, page) in
        [("q", problem.q, 0), ("k", problem.k, k_page), ("v", problem.v, v_page), ("o", problem.o, 0)]
    {
        let is_query = what == "q" || what == "o";
        let (tokens, heads) = if is_query { (shape.total_q, shape.q_heads) } else { (shape.total_kv, shape.kv_heads) };
        let used = |extent: usize, stride: i64| (extent > 1).then_some(stride);
        let token = used(tokens, strides.token);
        let pages = problem.paging.filter(|_| !is_query).and_then(|paging| used(paging.paging.pages, page));
        let all = [token, used(heads, strides.head), pages];
        let is_legal = |&stride: &i64| stride % 8 == 0 && stride * 2 < MAX_STRIDE;
        if !all.iter().flatten().all(is_legal) || token.is_some_and(|stride| stride * 2 >= MAX_RAGGED_STRIDE) {
            let feature = format!("strides of {what} that are no multiples of 8 elements, or reach 2^35 bytes a token");
            refuse(feature, "no tensor map can express them; the mma or simt path takes them");
        } else if token == Some(0) || pages == Some(0) || (is_query && all.contains(&Some(0))) {
            refuse(format!("a stride of 0 in {what}"), "no tensor map can express it; the mma path takes it");
        }
    }
    if let Some(paging) = problem.paging.map(|paging| paging.paging)
        && (paging.page_size > MAX_SEQUENCE || i32::try_from(paging.pages).is_err())
    {
        let feature = format!("{} pages of {} keys", paging.pages, paging.page_size);
        refuse(feature, "no tensor map can express them; the mma path takes them");
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
        problem: &VarlenProblem,
        operands: &VarlenOperands,
        varlen: VarlenParams,
    ) -> Result<(), LaunchError> {
        let shape = problem.shape;
        let pack = self.geometry.pack;
        let box_sides = [pack as u32, (GROUP_ROWS / pack) as u32];
        let box_keys = self.geometry.box_keys;
        let queries =
            |operand: Operand, memory: DevicePtr, strides: TokenStrides, dim: usize, promotion: L2Promotion| {
                let dims = [dim, shape.q_heads, shape.total_q];
                let map = || token_map(problem.dtype, memory, strides, dims, box_sides).l2_promotion(promotion);
                self.hopper.map(operand, memory, || map().build(self.runtime))
            };
        let keys = |operand: Operand, memory: DevicePtr, strides: TokenStrides, page: Option<i64>, dim: usize| {
            let map = || match (problem.paging, page) {
                (Some(paging), Some(page)) => {
                    let dims = [dim, paging.paging.page_size, shape.kv_heads, paging.paging.pages];
                    page_map(problem.dtype, memory, strides, page, dims, box_keys)
                }
                _ => token_map(problem.dtype, memory, strides, [dim, shape.kv_heads, shape.total_kv], [1, box_keys]),
            };
            self.hopper.map(operand, memory, || map().l2_promotion(L2Promotion::Bytes256).build(self.runtime))
        };
        let (k_page, v_page) = problem.paging.map(|paging| (paging.k_page, paging.v_page)).unzip();
        let q = queries(Operand::Q, operands.q, problem.q, shape.head_dim, L2Promotion::Bytes128)?;
        let k = keys(Operand::K, operands.k, problem.k, k_page, shape.head_dim)?;
        let v = keys(Operand::V, operands.v, problem.v, v_page, shape.v_head_dim)?;
        let o = queries(Operand::O, operands.o, problem.o, shape.v_head_dim, L2Promotion::None)?;
        let hopper = HopperParams {
            counter: self.hopper.tile_counter(self.runtime, Path::Sm90.name())?,
            k_head_step: i32::from(problem.k.head != 0),
            v_head_step: i32::from(problem.v.head != 0),
            ..HopperParams::default()
        };
        let params = VarlenSm90Params { varlen, hopper };
        let arguments = KernelArgs::new().arg(&q).arg(&k).arg(&v).arg(&o).arg(&params);
        // SAFETY: the caller vouches for the memory; the kernel takes four maps and one `VarlenSm90Params`.
        unsafe { self.runtime.launch(self.function, self.launch, &arguments)? };
        Ok(())
    }
}

/// Tokens of packed sequences, `dims` being the elements of a head, the heads and the tokens, in boxes of some heads of some tokens.
fn token_map(
    dtype: DType,
    memory: DevicePtr,
    strides: TokenStrides,
    [dim, heads, tokens]: [usize; 3],
    [box_heads, box_tokens]: [u32; 2],
) -> TensorMapBuilder {
    let (heads, head_stride) = dimension(heads, strides.head);
    let (tokens, token_stride) = dimension(tokens, strides.token);
    let map = map(dtype, memory);
    match ROW_BOXES {
        RowBoxes::Ragged => map
            .dims(&[dim as u64, heads, tokens])
            .strides(&[head_stride, token_stride])
            .box_dims(&[PANEL as u32, box_heads, box_tokens])
            .ragged(),
        RowBoxes::Plain => map
            .dims(&[dim as u64, heads, tokens, 1])
            .strides(&[head_stride, token_stride, UNUSED_STRIDE])
            .box_dims(&[PANEL as u32, box_heads, box_tokens, 1]),
    }
}

/// Pages, `dims` being the elements of a head, the keys of a page, the heads and the pages, in boxes of `keys` keys of one page.
fn page_map(
    dtype: DType,
    memory: DevicePtr,
    strides: TokenStrides,
    page: i64,
    [dim, page_size, heads, pages]: [usize; 4],
    keys: u32,
) -> TensorMapBuilder {
    let dims = [dimension(page_size, strides.token), dimension(heads, strides.head), dimension(pages, page)];
    map(dtype, memory)
        .dims(&[dim as u64, dims[0].0, dims[1].0, dims[2].0])
        .strides(&dims.map(|(_, stride)| stride))
        .box_dims(&[PANEL as u32, keys, 1, 1])
}

fn map(dtype: DType, memory: DevicePtr) -> TensorMapBuilder {
    let element = if dtype == DType::F16 { TensorMapType::F16 } else { TensorMapType::Bf16 };
    TensorMap::builder(element, memory).swizzle(Swizzle::Bytes128)
}

/// The stride in bytes of a dimension that is never stepped through: it must be legal all the same.
const UNUSED_STRIDE: u64 = 16;

/// Extent and stride in bytes of a dimension in a map, where one that is broadcast has extent 1.
fn dimension(extent: usize, stride: i64) -> (u64, u64) {
    match (extent, u64::try_from(stride)) {
        (2.., Ok(1..)) => (extent as u64, stride as u64 * 2),
        _ => (1, UNUSED_STRIDE),
    }
}

#[cfg(test)]
mod tests {
    use cuattn_core::VarlenShape;

    use super::*;

    fn problem(group: usize) -> VarlenProblem {
        let shape = VarlenShape {
            batch: 8,
            total_q: 8192,
            total_kv: 8192,
            max_q_len: 8192,
            max_kv_len: 8192,
            q_heads: 4 * group,
            kv_heads: 4,
            head_dim: 128,
            v_head_dim: 128,
        };
        VarlenProblem::packed(shape, DType::Bf16)
    }

    #[test]
    fn the_kernel_counts_rows_as_ragged_maps_do() {
        let (_, text) = cuattn_kernels::sources().find(|(path, _)| *path == "ptx/tma.cuh").unwrap();
        assert!(text.contains(&format!("constexpr int RAGGED_ROWS = 1 << {};", curt::RAGGED_ROWS.ilog2())));
    }

    #[test]
    fn maps_of_packed_operands_are_legal() {
        let memory = DevicePtr::new(0x1000, 1 << 40);
        for heads in [1, 4] {
            for strides in [TokenStrides { token: 520, head: 128 }, TokenStrides { token: 520, head: 0 }] {
                for sides in [[1, 64], [4, 16], [64, 1]] {
                    token_map(DType::F16, memory, strides, [128, heads, 8192], sides).validate().unwrap();
                    token_map(DType::F16, memory, strides, [128, heads, 1], sides).validate().unwrap();
                }
                page_map(DType::Bf16, memory, strides, 16 * 520, [128, 16, heads, 70], 16).validate().unwrap();
                page_map(DType::Bf16, memory, strides, 0, [128, 256, heads, 1], 128).validate().unwrap();
            }
        }
    }

    #[test]
    fn blocks_are_persistent_and_heads_are_not_folded() {
        let device = Capabilities::h200();
        let long = kernel(&device, &problem(4)).unwrap();
        assert_eq!((long.grid.blocks, long.grid.pack), (device.multiprocessors, 1));
        assert_eq!(long.grid.row_tiles, 8192 / 128 + 8);
        let mut few = problem(1);
        (few.shape.batch, few.shape.total_q) = (1, 200);
        let few = kernel(&device, &few).unwrap();
        assert!(few.grid.blocks < device.multiprocessors, "{:?}", few.grid);
    }

    #[test]
    fn what_no_map_expresses_is_refused() {
        let device = Capabilities::h200();
        let told = |spoil: fn(&mut VarlenProblem)| {
            let mut problem = problem(2);
            spoil(&mut problem);
            let reasons = kernel(&device, &problem).map(|kernel| kernel.why).unwrap_err();
            reasons.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
        };
        assert!(told(|problem| problem.q.token = 1 << 34).contains("2^35 bytes"));
        assert!(told(|problem| problem.v.head = 12).contains("strides of v"));
        assert!(told(|problem| problem.o.head = 0).contains("a stride of 0 in o"));
        assert!(told(|problem| problem.shape.total_kv = 0).contains("no key at all"));
        let mut broadcast = problem(2);
        broadcast.k.head = 0;
        assert!(kernel(&device, &broadcast).is_ok());
    }
}
