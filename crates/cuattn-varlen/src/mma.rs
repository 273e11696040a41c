//! The `mma` path: who may take it, and how it is launched.

use cuattn_core::lowering::element;
use cuattn_core::{DType, Reason, VarlenProblem};
use cuattn_kernels::flash::mma::{Demand, Limits, MAX_HEAD_DIM, Mma};
use cuattn_kernels::varlen;
use curt::Capabilities;

use crate::Path;
use crate::outline::{Average, Grid, Kernel, key_storage};

/// Bytes of the pieces in which tiles are copied.
const PIECE: usize = 16;

/// The kernel for `problem`, or every reason against it.
pub(crate) fn kernel(device: &Capabilities, problem: &VarlenProblem) -> Result<Kernel, Vec<Reason>> {
    let reasons = reasons_against(device, problem);
    if !reasons.is_empty() {
        return Err(reasons);
    }
    let shape = problem.shape;
    let limits = Limits {
        compute_major: device.compute_capability.0,
        shared_bytes_per_block: device.shared_bytes_per_block,
        shared_bytes_per_multiprocessor: device.shared_bytes_per_multiprocessor,
    };
    let average = Average::of(problem);
    let demand = Demand { rows: average.q_len.saturating_mul(shape.group()), keys: average.kv_len };
    let variant = Mma {
        softcap: problem.softcap.is_some(),
        score_mod: problem.score_mod.as_ref().map(|score_mod| score_mod.body.to_string()),
        unusual_scale: problem.scale <= 0.0,
        ..Mma::plain(element(problem.dtype), shape.head_dim, shape.v_head_dim)
    };
    let Some(variant) = variant.with_best_tile(demand, limits) else {
        let need = variant.shared_bytes();
        let got = device.shared_bytes_per_block;
        let instead = "the simt path takes any head size".to_owned();
        return Err(vec![Reason::SharedMemory { by: Path::Mma.name().to_owned(), need, got, instead }]);
    };
    let block_rows = variant.tile.block_rows();
    let grid = Grid::new(problem, block_rows, 1).map_err(|reason| vec![reason])?;
    let mut details = vec![format!("{block_rows} x {} tile, {} warps", variant.tile.block_keys, variant.tile.warps)];
    details.extend(grid.details());
    Ok(Kernel {
        path: Path::Mma,
        source: varlen::mma(&variant, key_storage(problem)),
        grid,
        threads: variant.tile.threads() as u32,
        shared_bytes: variant.shared_bytes() as u32,
        alignment: PIECE,
        list: None,
        sm90: None,
        why: format!("{} at head size {} fits the tensor cores", problem.dtype, shape.head_dim),
        details,
    })
}

fn reasons_against(device: &Capabilities, problem: &VarlenProblem) -> Vec<Reason> {
    let path = Path::Mma.name();
    let shape = problem.shape;
    let mut reasons = Vec::new();
    let mut refuse = |feature: String, instead: &str| reasons.push(Reason::unsupported(feature, path, instead));
    if problem.dtype == DType::F32 {
        refuse("f32 tensors".to_owned(), "tensor cores would round them; the simt path keeps float32 accuracy");
    }
    for (what, dim) in [("head_dim", shape.head_dim), ("v_head_dim", shape.v_head_dim)] {
        if dim % 8 != 0 || dim > MAX_HEAD_DIM {
            refuse(
                format!("{what} {dim}"),
                "it takes multiples of 8 up to 256; pad the tensors, or take the simt path",
            );
        }
    }
    let (k_page, v_page) = problem.paging.map_or((0, 0), |paging| (paging.k_page, paging.v_page));
    for (what, strides, page) in
        [("q", problem.q, 0), ("k", problem.k, k_page), ("v", problem.v, v_page), ("o", problem.o, 0)]
    {
        if [strides.token, strides.head, page].iter().any(|stride| stride % 8 != 0) {
            let feature = format!("strides of {what} that are no multiples of 8 elements");
            refuse(feature, "it copies 16 bytes at a time; align the rows, or take the simt path");
        }
    }
    if device.compute_capability.0 < 8 {
        reasons.push(Reason::ArchUnsupported {
            by: path.to_owned(),
            need: "8.0 or newer".to_owned(),
            got: device.compute_capability,
            instead: "no path of this engine runs on it".to_owned(),
        });
    }
    reasons
}
