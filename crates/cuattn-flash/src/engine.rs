//! The engine: from a problem to a plan.

use cuattn_core::{Engine, EngineId, Explanation, Plan, PlanError, Problem, Refusal};
use curt::{Capabilities, Runtime};

use crate::Path;
use crate::outline::Outline;
use crate::plan::FlashPlan;

/// Fused online-softmax attention, by the fastest path that takes the problem.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flash;

/// The engine held to one path: what the others would do is refused. For tests, measurements, and whoever must know.
#[derive(Clone, Copy, Debug)]
pub struct FlashPath(pub Path);

impl Engine for Flash {
    fn id(&self) -> EngineId {
        EngineId::Flash
    }

    fn consider(&self, device: &Capabilities, problem: &Problem) -> Result<Explanation, Refusal> {
        Ok(Outline::new(device, problem, &Path::ALL)?.explanation())
    }

    fn plan(&self, runtime: &Runtime, problem: &Problem) -> Result<Box<dyn Plan>, PlanError> {
        plan(runtime, problem, &Path::ALL)
    }
}

impl Engine for FlashPath {
    fn id(&self) -> EngineId {
        EngineId::Flash
    }

    fn consider(&self, device: &Capabilities, problem: &Problem) -> Result<Explanation, Refusal> {
        Ok(Outline::new(device, problem, &[self.0])?.explanation())
    }

    fn plan(&self, runtime: &Runtime, problem: &Problem) -> Result<Box<dyn Plan>, PlanError> {
        plan(runtime, problem, &[self.0])
    }
}

fn plan(runtime: &Runtime, problem: &Problem, paths: &[Path]) -> Result<Box<dyn Plan>, PlanError> {
    let outline = Outline::new(runtime.capabilities(), problem, paths)?;
    if runtime.is_capturing()? {
        return Err(curt::Error::Capturing { what: "making a flash plan" }.into());
    }
    Ok(Box::new(FlashPlan::new(runtime, problem, outline)?))
}
