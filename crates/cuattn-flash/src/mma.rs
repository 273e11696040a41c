//! The `mma` path: who may take it, and how it is launched.

use cuattn_core::lowering::{bias_kind, element};
use cuattn_core::{DType, Problem, Reason};
use cuattn_kernels::flash::MIN_HEAD_DIM;
use cuattn_kernels::flash::mma::{self, Demand, Limits, Mma};
use cuattn_kernels::flash::tiles::Row;
use curt::Capabilities;

use crate::Path;
use crate::outline::{Grid, Kernel, Rows};

/// Bytes of the pieces in which tiles are copied.
const PIECE: usize = 16;

/// The kernel for `problem`, or every reason against it.
pub(crate) fn kernel(device: &Capabilities, problem: &Problem) -> Result<Kernel, Vec<Reason>> {
    let variant = variant(device, problem)?;
    let Some(variant) = variant.with_best_tile(demand(problem), limits(device)) else {
        let need = variant.shared_bytes();
        let got = device.shared_bytes_per_block;
        let instead = "the simt path takes any head size".to_owned();
        return Err(vec![Reason::SharedMemory { by: Path::Mma.name().to_owned(), need, got, instead }]);
    };
    kernel_of(problem, &variant)
}

/// The kernels for `problem` that tuning measures, the first as [`kernel`] has it; or every reason against it.
pub(crate) fn candidates(device: &Capabilities, problem: &Problem) -> Result<Vec<Kernel>, Vec<Reason>> {
    let variants = variant(device, problem)?.candidates(demand(problem), limits(device));
    variants.iter().map(|variant| kernel_of(problem, variant)).collect()
}

/// The row of the table whose tile [`kernel`] takes as it is.
pub(crate) fn row(device: &Capabilities, problem: &Problem) -> Option<&'static Row> {
    variant(device, problem).ok()?.row(demand(problem), limits(device))
}

/// The variant for `problem`, in whatever tile.
fn variant(device: &Capabilities, problem: &Problem) -> Result<Mma, Vec<Reason>> {
    let reasons = reasons_against(device, problem);
    if !reasons.is_empty() {
        return Err(reasons);
    }
    let shape = problem.shape;
    Ok(Mma {
        bias: bias_kind(problem),
        bias_staged: bias_in_pieces(problem),
        softcap: problem.softcap.is_some(),
        score_mod: problem.score_mod.as_ref().map(|score_mod| score_mod.body.to_string()),
        unusual_scale: problem.scale <= 0.0,
        ..Mma::plain(element(problem.dtype), shape.head_dim, shape.v_head_dim)
    })
}

fn limits(device: &Capabilities) -> Limits {
    Limits {
        compute_major: device.compute_capability.0,
        shared_bytes_per_block: device.shared_bytes_per_block,
        shared_bytes_per_multiprocessor: device.shared_bytes_per_multiprocessor,
    }
}

fn demand(problem: &Problem) -> Demand {
    let shape = problem.shape;
    Demand { rows: shape.q_len * shape.group(), keys: shape.kv_len }
}

fn kernel_of(problem: &Problem, variant: &Mma) -> Result<Kernel, Vec<Reason>> {
    let block_rows = variant.tile.block_rows();
    let grid = Grid::new(problem, Rows::of(problem, block_rows), block_rows, 1).map_err(|reason| vec![reason])?;
    let mut details = vec![
        format!("{block_rows} x {} tile, {} warps", variant.tile.block_keys, variant.tile.warps),
        format!("{} blocks of {} bytes of shared memory", grid.blocks, variant.shared_bytes()),
    ];
    details.extend(grid.details());
    Ok(Kernel {
        path: Path::Mma,
        tile: variant.tile.to_string(),
        same_tile: None,
        source: variant.source(),
        grid,
        threads: variant.tile.threads() as u32,
        shared_bytes: variant.shared_bytes() as u32,
        alignment: PIECE,
        why: format!("{} at head size {} fits the tensor cores", problem.dtype, problem.shape.head_dim),
        sm90: None,
        halves: None,
        details,
    })
}

fn reasons_against(device: &Capabilities, problem: &Problem) -> Vec<Reason> {
    let shape = problem.shape;
    let mut reasons = Vec::new();
    let path = Path::Mma.name();
    let mut refuse = |feature: String, instead: &str| reasons.push(Reason::unsupported(feature, path, instead));
    if problem.dtype == DType::F32 {
        refuse("f32 tensors".to_owned(), "tensor cores would round them; the simt path keeps float32 accuracy");
    }
    for (what, dim) in [("head_dim", shape.head_dim), ("v_head_dim", shape.v_head_dim)] {
        if dim < MIN_HEAD_DIM {
            refuse(format!("{what} {dim}"), "tensor cores have nothing to gain here; the simt path rounds less");
        } else if dim % 8 != 0 || dim > mma::MAX_HEAD_DIM {
            refuse(
                format!("{what} {dim}"),
                "it takes multiples of 8 from 16 to 256; pad the tensors, or take the simt path",
            );
        }
    }
    for (what, strides) in [("q", problem.q), ("k", problem.k), ("v", problem.v), ("o", problem.o)] {
        if [strides.batch, strides.head, strides.row].iter().any(|stride| stride % 8 != 0) {
            let feature = format!("strides of {what} that are no multiples of 8 elements");
            refuse(feature, "it copies 16 bytes at a time; align the rows, or take the simt path");
        }
    }
    if device.compute_capability.0 < 8 {
        reasons.push(Reason::ArchUnsupported {
            by: Path::Mma.name().to_owned(),
            need: "8.0 or newer".to_owned(),
            got: device.compute_capability,
            instead: "no path of this engine runs on it".to_owned(),
        });
    }
    reasons
}

/// Whether every row of the bias begins at a multiple of 16 bytes, as far as its strides tell.
fn bias_in_pieces(problem: &Problem) -> bool {
    problem.mask.bias.is_some_and(|bias| {
        let aligned = |stride: i64| (stride * bias.kind.size() as i64) % PIECE as i64 == 0;
        bias.key == 1 && aligned(bias.batch) && aligned(bias.head) && aligned(bias.row)
    })
}
