//! The `simt` path: it takes everything that the engine takes.

use cuattn_core::lowering::element;
use cuattn_core::{Reason, VarlenProblem};
use cuattn_kernels::flash::simt::{Demand, Simt};
use cuattn_kernels::varlen;
use curt::Capabilities;

use crate::Path;
use crate::outline::{Average, Grid, Kernel, key_storage};

/// The kernel for `problem`. Refused only on devices that no path runs on, and where the grid would be larger than a launch can have.
pub(crate) fn kernel(device: &Capabilities, problem: &VarlenProblem) -> Result<Kernel, Vec<Reason>> {
    if device.compute_capability < (8, 0) {
        return Err(vec![Reason::ArchUnsupported {
            by: Path::Simt.name().to_owned(),
            need: "8.0 or newer".to_owned(),
            got: device.compute_capability,
            instead: "no path of this engine runs on it".to_owned(),
        }]);
    }
    let shape = problem.shape;
    let demand = Demand {
        rows: Average::of(problem).q_len.saturating_mul(shape.group()),
        kv_heads: shape.batch.saturating_mul(shape.kv_heads),
        multiprocessors: device.multiprocessors as usize,
        shared_bytes_per_block: device.shared_bytes_per_block,
    };
    let variant = Simt {
        softcap: problem.softcap.is_some(),
        score_mod: problem.score_mod.as_ref().map(|score_mod| score_mod.body.to_string()),
        ..Simt::plain(element(problem.dtype), shape.head_dim, shape.v_head_dim, demand)
    };
    let block_rows = variant.tile.block_rows();
    let splits = variant.splits(shape.v_head_dim);
    let grid = Grid::new(problem, block_rows, splits).map_err(|reason| vec![reason])?;
    let mut details = vec![format!("{block_rows} x {} tile, {} warps", variant.tile.block_keys, variant.tile.warps)];
    if splits > 1 {
        details.push(format!("value columns split over {splits} blocks, each of which computes the scores"));
    }
    details.extend(grid.details());
    Ok(Kernel {
        path: Path::Simt,
        source: varlen::simt(&variant, key_storage(problem)),
        grid,
        threads: variant.tile.threads() as u32,
        shared_bytes: variant.tile.shared_bytes() as u32,
        alignment: problem.dtype.size(),
        list: None,
        sm90: None,
        why: "it takes every element type, head size, stride and alignment".to_owned(),
        details,
    })
}
