//! The tiles that a path could have taken, for whoever measures which are the fastest.
//!
//! How a kernel divides its work is a matter of measurement, and what is measured stands in a table, `tiles.csv` of `cuattn-kernels`.
//! [`candidates`] lists the tiles for one problem, that of the table and some besides; each makes a plan like any other. `cargo xtask
//! tune` measures them, and with `--write` writes what it found into the rows that [`Candidate::row`] names. Applications have no use for this: [`crate::Flash`] takes the table's choice.
//!
//! ```
//! use cuattn_core::{DType, Problem, Shape};
//! use cuattn_flash::{Path, tuning};
//! let shape = Shape { batch: 1, q_heads: 16, kv_heads: 16, q_len: 4096, kv_len: 4096, head_dim: 128, v_head_dim: 128 };
//! let problem = Problem::bhsd(shape, DType::Bf16);
//!
//! let candidates = tuning::candidates(&curt::Capabilities::h200(), &problem, Path::Mma)?;
//! assert!(candidates[0].is_choice() && candidates.len() > 1);
//! let row = candidates[0].row().unwrap();
//! assert!(row.starts_with("mma,128,128,always") && row.contains(candidates[0].tile()));
//! # Ok::<(), cuattn_core::Refusal>(())
//! ```

use cuattn_core::{EngineId, Plan, PlanError, Problem, Refusal};
use cuattn_kernels::flash::tiles::Row;
use curt::{Capabilities, Runtime};

use crate::outline::{self, Kernel, Outline};
use crate::plan::FlashPlan;
use crate::{Path, mma, simt, sm90, sm90_f32};

/// One kernel that could do a problem.
#[derive(Clone, Debug)]
pub struct Candidate {
    problem: Problem,
    kernel: Kernel,
    is_choice: bool,
    row: Option<&'static Row>,
}

/// The candidates of a path for a problem on such a device, the table's choice first. Not all compile without spilled registers.
///
/// # Errors
///
/// Where the path does not take the problem. There are no candidates for a problem without output, of which nothing is computed.
pub fn candidates(device: &Capabilities, problem: &Problem, path: Path) -> Result<Vec<Candidate>, Refusal> {
    outline::check(problem)?;
    if problem.shape.is_empty() {
        return Ok(Vec::new());
    }
    let kernels = match path {
        Path::Sm90 => sm90::candidates(device, problem),
        Path::Sm90F32 => sm90_f32::candidates(device, problem),
        Path::Mma => mma::candidates(device, problem),
        Path::Simt => simt::candidates(device, problem),
    };
    let kernels = kernels.map_err(|reasons| Refusal::by_path(EngineId::Flash, path.name(), reasons))?;
    let row = match path {
        Path::Sm90 => sm90::row(device, problem),
        Path::Sm90F32 => sm90_f32::row(device, problem),
        Path::Mma => mma::row(device, problem),
        Path::Simt => simt::row(device, problem),
    };
    let candidate = |(index, kernel)| {
        let is_choice = index == 0;
        Candidate { problem: problem.clone(), kernel, is_choice, row: row.filter(|_| is_choice) }
    };
    Ok(kernels.into_iter().enumerate().map(candidate).collect())
}

impl Candidate {
    /// The path whose kernel this is.
    pub fn path(&self) -> Path {
        self.kernel.path
    }

    /// The tile, written as the path's table of tiles has it.
    pub fn tile(&self) -> &str {
        &self.kernel.tile
    }

    /// What the table would call the same kernel as well, where one of a tile's options makes no difference to the problem.
    pub fn same_tile(&self) -> Option<&str> {
        self.kernel.same_tile.as_deref()
    }

    /// The row that this tile comes from, as the table's columns up to the tile. `None` for a tile that is none of the table's choice, or
    /// was made from it to leave room for a bias.
    pub fn row(&self) -> Option<String> {
        self.row.map(Row::key)
    }

    /// Whether the table has this tile for the problem, so that [`crate::FlashPath`] would take it.
    pub fn is_choice(&self) -> bool {
        self.is_choice
    }

    /// A plan for the problem that takes this kernel.
    ///
    /// # Errors
    ///
    /// Where the kernel does not compile or load, which on a smaller device than the candidate was made for it may not.
    pub fn plan(&self, runtime: &Runtime) -> Result<Box<dyn Plan>, PlanError> {
        if runtime.is_capturing()? {
            return Err(curt::Error::Capturing { what: "making a flash plan" }.into());
        }
        let outline = Outline::of(runtime.capabilities(), &self.problem, self.kernel.clone());
        Ok(Box::new(FlashPlan::new(runtime, &self.problem, outline)?))
    }
}

#[cfg(test)]
mod tests {
    use cuattn_core::{Bias, BiasKind, DType, Mask, Shape};

    use super::*;

    fn problem(dtype: DType, head_dim: usize) -> Problem {
        let shape =
            Shape { batch: 2, q_heads: 8, kv_heads: 8, q_len: 4096, kv_len: 4096, head_dim, v_head_dim: head_dim };
        Problem::bhsd(shape, dtype)
    }

    #[test]
    fn the_choice_comes_first_and_nothing_twice() {
        let device = Capabilities::h200();
        for path in Path::ALL {
            let most = if path == Path::Sm90F32 { 128 } else { 256 };
            for head_dim in [64, 96, 128, 192, 256].into_iter().filter(|head_dim| *head_dim <= most) {
                let dtype = if matches!(path, Path::Simt | Path::Sm90F32) { DType::F32 } else { DType::Bf16 };
                let problem = problem(dtype, head_dim);
                let candidates = candidates(&device, &problem, path).unwrap();
                let chosen = Outline::new(&device, &problem, &[path]).unwrap().kernel.unwrap();
                assert_eq!(candidates[0].tile(), chosen.tile);
                let row = candidates[0].row().unwrap();
                assert!(
                    row.starts_with(&format!("{path},")) && row.ends_with(&format!("\"{}\"", chosen.tile)),
                    "{row}"
                );
                assert!(candidates[1..].iter().all(|candidate| candidate.row().is_none()));
                let mut tiles: Vec<_> = candidates.iter().map(Candidate::tile).collect();
                tiles.sort_unstable();
                tiles.dedup();
                assert_eq!(tiles.len(), candidates.len());
                assert!(candidates.len() > 2, "{path} d{head_dim}: {tiles:?}");
                assert_eq!(candidates.iter().filter(|candidate| candidate.is_choice()).count(), 1);
            }
        }
    }

    #[test]
    fn a_tile_that_was_changed_is_of_no_row() {
        let mut problem = problem(DType::Bf16, 64);
        let bias = Bias { kind: BiasKind::Additive(DType::F32), batch: 0, head: 0, row: 4096, key: 1, keys: 4096 };
        problem.mask = Mask { bias: Some(bias), ..Mask::none() };
        let choice = |path| candidates(&Capabilities::h200(), &problem, path).unwrap().swap_remove(0);
        assert_eq!(choice(Path::Sm90).row(), None);
        // Here the bias decided which row's tile fits.
        assert!(choice(Path::Mma).row().is_some());
    }

    #[test]
    fn a_path_that_refuses_the_problem_has_no_candidates() {
        let refusal = candidates(&Capabilities::h200(), &problem(DType::F32, 64), Path::Mma).unwrap_err();
        assert!(refusal.to_string().contains("f32"), "{refusal}");
    }
}
