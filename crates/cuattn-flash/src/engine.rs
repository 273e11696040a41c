//! The engine: from a problem to a plan.

use cuattn_core::{Engine, EngineId, Explanation, Plan, PlanError, Problem, Refusal};
use curt::{Capabilities, Runtime};

use crate::outline::Outline;
use crate::plan::FlashPlan;

/// Fused online-softmax attention.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flash;

impl Engine for Flash {
    fn id(&self) -> EngineId {
        EngineId::Flash
    }

    fn consider(&self, device: &Capabilities, problem: &Problem) -> Result<Explanation, Refusal> {
        Ok(Outline::new(device, problem)?.explanation())
    }

    fn plan(&self, runtime: &Runtime, problem: &Problem) -> Result<Box<dyn Plan>, PlanError> {
        let outline = Outline::new(runtime.capabilities(), problem)?;
        if runtime.is_capturing()? {
            return Err(curt::Error::Capturing { what: "making a flash plan" }.into());
        }
        Ok(Box::new(FlashPlan::new(runtime, problem, outline)?))
    }
}
