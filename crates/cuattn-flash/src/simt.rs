//! The `simt` path: it takes everything that the engine takes.

use cuattn_core::lowering::{bias_kind, element};
use cuattn_core::{Problem, Reason};
use cuattn_kernels::flash::simt::{Demand, Simt};
use cuattn_kernels::flash::sm90_f32;
use cuattn_kernels::flash::tiles::Row;
use curt::Capabilities;

use crate::Path;
use crate::outline::{Grid, Kernel, Rows};

/// The kernel for `problem`. Refused only on devices that no path runs on, and where the grid would be larger than a launch can have.
pub(crate) fn kernel(device: &Capabilities, problem: &Problem) -> Result<Kernel, Vec<Reason>> {
    kernel_of(problem, &variant(device, problem)?)
}

/// The same kernel for those heads alone that the `sm90_f32` path leaves out.
pub(crate) fn fallback(device: &Capabilities, problem: &Problem) -> Result<Kernel, Vec<Reason>> {
    let variant = variant(device, problem)?;
    Ok(Kernel { source: sm90_f32::fallback(&variant), ..kernel_of(problem, &variant)? })
}

/// The kernels for `problem` that tuning measures, the first as [`kernel`] has it; or the reason against it.
pub(crate) fn candidates(device: &Capabilities, problem: &Problem) -> Result<Vec<Kernel>, Vec<Reason>> {
    let shape = problem.shape;
    let variants = variant(device, problem)?.candidates(shape.head_dim, shape.v_head_dim, demand(device, problem));
    variants.iter().map(|variant| kernel_of(problem, variant)).collect()
}

/// The row of the table whose tile [`kernel`] takes as it is.
pub(crate) fn row(device: &Capabilities, problem: &Problem) -> Option<&'static Row> {
    let shape = problem.shape;
    variant(device, problem).ok()?.row(shape.head_dim, shape.v_head_dim, demand(device, problem))
}

fn demand(device: &Capabilities, problem: &Problem) -> Demand {
    let shape = problem.shape;
    Demand {
        rows: shape.q_len * shape.group(),
        kv_heads: shape.batch * shape.kv_heads,
        multiprocessors: device.multiprocessors as usize,
        shared_bytes_per_block: device.shared_bytes_per_block,
    }
}

fn variant(device: &Capabilities, problem: &Problem) -> Result<Simt, Vec<Reason>> {
    if device.compute_capability < (8, 0) {
        return Err(vec![Reason::ArchUnsupported {
            by: Path::Simt.name().to_owned(),
            need: "8.0 or newer".to_owned(),
            got: device.compute_capability,
            instead: "no path of this engine runs on it".to_owned(),
        }]);
    }
    let shape = problem.shape;
    Ok(Simt {
        bias: bias_kind(problem),
        softcap: problem.softcap.is_some(),
        score_mod: problem.score_mod.as_ref().map(|score_mod| score_mod.body.to_string()),
        ..Simt::plain(element(problem.dtype), shape.head_dim, shape.v_head_dim, demand(device, problem))
    })
}

fn kernel_of(problem: &Problem, variant: &Simt) -> Result<Kernel, Vec<Reason>> {
    let block_rows = variant.tile.block_rows();
    let splits = variant.splits(problem.shape.v_head_dim);
    let grid = Grid::new(problem, Rows::of(problem, block_rows), block_rows, splits).map_err(|reason| vec![reason])?;
    let mut details = vec![
        format!("{block_rows} x {} tile, {} warps", variant.tile.block_keys, variant.tile.warps),
        format!("{} blocks of {} bytes of shared memory", grid.blocks, variant.tile.shared_bytes()),
    ];
    if splits > 1 {
        details.push(format!("value columns split over {splits} blocks, each of which computes the scores"));
    }
    details.extend(grid.details());
    Ok(Kernel {
        path: Path::Simt,
        tile: variant.tile.to_string(),
        same_tile: None,
        source: variant.source(),
        grid,
        threads: variant.tile.threads() as u32,
        shared_bytes: variant.tile.shared_bytes() as u32,
        alignment: problem.dtype.size(),
        why: "it takes every element type, head size, stride and alignment".to_owned(),
        sm90: None,
        halves: None,
        details,
    })
}
