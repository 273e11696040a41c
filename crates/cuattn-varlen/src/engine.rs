//! The engine: from a packed problem to a plan.

use cuattn_core::{EngineId, Explanation, PlanError, Refusal, VarlenEngine, VarlenPlan, VarlenProblem};
use curt::{Capabilities, Runtime};

use crate::Path;
use crate::outline::Outline;
use crate::plan::PackedPlan;

/// Attention over packed sequences, by the fastest path that takes the problem.
#[derive(Clone, Copy, Debug, Default)]
pub struct Varlen;

/// The engine held to one path: what the others would do is refused. For tests, measurements, and whoever must know.
#[derive(Clone, Copy, Debug)]
pub struct VarlenPath(pub Path);

impl VarlenEngine for Varlen {
    fn id(&self) -> EngineId {
        EngineId::Varlen
    }

    fn consider(&self, device: &Capabilities, problem: &VarlenProblem) -> Result<Explanation, Refusal> {
        Ok(Outline::new(device, problem, &Path::ALL)?.explanation())
    }

    fn plan(&self, runtime: &Runtime, problem: &VarlenProblem) -> Result<Box<dyn VarlenPlan>, PlanError> {
        plan(runtime, problem, &Path::ALL)
    }
}

impl VarlenEngine for VarlenPath {
    fn id(&self) -> EngineId {
        EngineId::Varlen
    }

    fn consider(&self, device: &Capabilities, problem: &VarlenProblem) -> Result<Explanation, Refusal> {
        Ok(Outline::new(device, problem, &[self.0])?.explanation())
    }

    fn plan(&self, runtime: &Runtime, problem: &VarlenProblem) -> Result<Box<dyn VarlenPlan>, PlanError> {
        plan(runtime, problem, &[self.0])
    }
}

fn plan(runtime: &Runtime, problem: &VarlenProblem, paths: &[Path]) -> Result<Box<dyn VarlenPlan>, PlanError> {
    let outline = Outline::new(runtime.capabilities(), problem, paths)?;
    if runtime.is_capturing()? {
        return Err(curt::Error::Capturing { what: "making a varlen plan" }.into());
    }
    Ok(Box::new(PackedPlan::new(runtime, problem, outline)?))
}
