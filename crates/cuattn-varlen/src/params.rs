//! The struct that every kernel of the engine takes.

use cuattn_core::lowering::{MAX_SEQUENCE, address};
use cuattn_core::{Alignment, IndexType, TokenStrides, VarlenOperands, VarlenProblem};
use cuattn_kernels::abi::{
    self, FlashParams, MaskParams, PackedParams, PageParams, ScoreParams, TileOrder, VarlenParams,
};
use curt::DevicePtr;

use crate::outline::Grid;

/// Bytes of K and V that the tiles in flight may touch before they fall out of L2; what measured best for dense causal batches.
const SECTION_BYTES: usize = 16 << 20;

/// What a launch of `grid` takes. `list` is where its tiles are listed, where they are.
pub(crate) fn params(
    problem: &VarlenProblem,
    operands: &VarlenOperands,
    grid: &Grid,
    list: Option<DevicePtr>,
) -> VarlenParams {
    let shape = problem.shape;
    let strides =
        |TokenStrides { token, head }: TokenStrides, page: i64| abi::Strides { batch: page, head, row: token };
    let (k_page, v_page) = problem.paging.map_or((0, 0), |paging| (paging.k_page, paging.v_page));
    let flash = FlashParams {
        q: operands.q.address(),
        k: operands.k.address(),
        v: operands.v.address(),
        o: operands.o.address(),
        sinks: address(operands.sinks),
        log_sum_exp: address(operands.log_sum_exp),
        q_strides: strides(problem.q, 0),
        k_strides: strides(problem.k, k_page),
        v_strides: strides(problem.v, v_page),
        o_strides: strides(problem.o, 0),
        mask: mask(problem, operands),
        score: ScoreParams {
            buffers: operands.score_mod_buffers.map(address),
            scale: problem.scale,
            softcap: problem.softcap.unwrap_or(0.0),
        },
        batch: shape.batch as i32,
        q_heads: shape.q_heads as i32,
        kv_heads: shape.kv_heads as i32,
        head_dim: shape.head_dim as i32,
        v_head_dim: shape.v_head_dim as i32,
        pack: grid.pack as i32,
        order: TileOrder::of_heads(shape.q_heads / grid.pack, shape.q_heads / shape.kv_heads),
    };
    let packed = PackedParams {
        q_starts: operands.cu_seqlens_q.address(),
        kv_starts: operands.cu_seqlens_kv.address(),
        used_lengths: address(operands.used_lengths),
        schedule: address(list),
        total_q: shape.total_q as i32,
        total_kv: if problem.paging.is_some() { 0 } else { shape.total_kv as i32 },
        starts_64: i32::from(problem.offsets == IndexType::I64),
        capacity: grid.row_tiles as i32,
        section_keys: section_keys(problem),
        reserved: 0,
    };
    let pages = problem.paging.map_or(PageParams::default(), |paging| {
        let clamped = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
        PageParams {
            table: address(operands.page_table),
            page_size: clamped(paging.paging.page_size),
            max_pages: clamped(paging.paging.max_pages),
            pages: clamped(paging.paging.pages),
            reserved: 0,
        }
    });
    VarlenParams { flash, packed, pages }
}

/// Everything of it that does not depend on the sequence.
fn mask(problem: &VarlenProblem, operands: &VarlenOperands) -> MaskParams {
    // No sequence is as long as the longest window that kernels take.
    let limit = |keys: Option<u32>| keys.map_or(-1, |keys| i64::from(keys).min(MAX_SEQUENCE as i64 - 1));
    MaskParams {
        query_offsets: address(operands.query_offsets),
        window_left: limit(problem.window.left),
        // A causal mask is a window that ends at the row's own position.
        window_right: if problem.causal { 0 } else { limit(problem.window.right) },
        // There is no bias that could end before the keys do.
        bias_keys: i32::MAX,
        alignment: match problem.alignment {
            Alignment::TopLeft => abi::ALIGN_TOP_LEFT,
            Alignment::BottomRight => abi::ALIGN_BOTTOM_RIGHT,
            Alignment::PerBatch(_) => abi::ALIGN_PER_BATCH,
        },
        query_offsets_64: i32::from(problem.alignment.index_type() == Some(IndexType::I64)),
        ..MaskParams::default()
    }
}

/// Several heads' tiles are drawn together where tiles differ in length; where they are alike, a head's K and V stay in L2 while its
/// rows are done.
fn section_keys(problem: &VarlenProblem) -> i32 {
    let alike = !problem.causal && problem.window.right.is_none() && problem.window.left.is_none();
    let key_bytes = (problem.shape.head_dim + problem.shape.v_head_dim) * problem.dtype.size();
    if alike { 0 } else { (SECTION_BYTES / key_bytes.max(1)) as i32 }
}
