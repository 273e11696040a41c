//! From a problem to the engine that does it.

use cuattn_core::{
    Engine, EngineId, Explanation, LaunchError, Operands, Plan, PlanError, Problem, Reason, Refusal, Work,
    WorkspaceSize,
};
use curt::{Capabilities, DevicePtr, Runtime};

use crate::choice;
use crate::engines::engine;
use crate::error::Error;

/// Who may do a problem.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Policy {
    /// The engine that was measured to be best at such problems, or the next one that does it.
    #[default]
    Auto,
    /// This engine or none: it never falls back.
    Only(EngineId),
}

/// Which engine [`plan`] would choose for `problem` on such a device, and why. Needs no GPU, compiles nothing.
///
/// [`Explanation::refused`] lists every engine and path that does not do the problem, with every reason, whether it
/// would have come before the chosen one or after it.
///
/// # Errors
///
/// [`Error::Illegal`] where no engine could do the problem, [`Error::NoEngine`] where those that the policy allows do
/// not.
pub fn consider(device: &Capabilities, problem: &Problem, policy: Policy) -> Result<Explanation, Error> {
    let candidates = Candidates::of(device, problem, policy)?;
    let Some((_, explanation)) = candidates.willing.first() else {
        return Err(Error::NoEngine { refused: candidates.refused });
    };
    Ok(candidates.complete(explanation.clone(), candidates.refused.clone()))
}

/// Chooses an engine and makes its plan: compiles what it needs, or finds it in the cache. Not during graph capture.
///
/// # Errors
///
/// [`Error::Illegal`] where no engine could do the problem, [`Error::NoEngine`] where those that the policy allows do
/// not, and [`Error::Runtime`] where compiling, loading or allocating fails: no other engine is tried then, so that a
/// broken installation is seen and not slow.
pub fn plan(runtime: &Runtime, problem: &Problem, policy: Policy) -> Result<Box<dyn Plan>, Error> {
    let candidates = Candidates::of(runtime.capabilities(), problem, policy)?;
    let mut refused = candidates.refused.clone();
    for (engine, _) in &candidates.willing {
        match engine.plan(runtime, problem) {
            Ok(plan) => {
                let explanation = candidates.complete(plan.explain(), refused);
                return Ok(Box::new(ChosenPlan { plan, explanation }));
            }
            // What an engine cannot know before it asks its libraries.
            Err(PlanError::Refused(refusal)) => refused.push(refusal),
            Err(other) => return Err(other.into()),
        }
    }
    Err(Error::NoEngine { refused })
}

/// The engines that a policy allows, asked.
struct Candidates {
    why: String,
    willing: Vec<(&'static dyn Engine, Explanation)>,
    refused: Vec<Refusal>,
}

impl Candidates {
    fn of(device: &Capabilities, problem: &Problem, policy: Policy) -> Result<Self, Error> {
        problem.validate().map_err(Error::Illegal)?;
        let (order, why) = match policy {
            Policy::Only(id) => (vec![id], "asked for by name".to_owned()),
            Policy::Auto => match choice::rule(device, problem) {
                Some(rule) => (rule.engines.clone(), rule.to_string()),
                None => (crate::engines().map(Engine::id).collect(), "no row of the choice table fits".to_owned()),
            },
        };
        let mut candidates = Self { why, willing: Vec::new(), refused: Vec::new() };
        for id in order {
            match engine(id) {
                Some(engine) => match engine.consider(device, problem) {
                    Ok(explanation) => candidates.willing.push((engine, explanation)),
                    Err(refusal) => candidates.refused.push(refusal),
                },
                None => candidates.refused.push(Refusal::by_engine(id, vec![not_a_choice(id)])),
            }
        }
        Ok(candidates)
    }

    /// An engine's explanation, with why it was chosen and who was not.
    fn complete(&self, mut explanation: Explanation, mut refused: Vec<Refusal>) -> Explanation {
        explanation.why = format!("{} ({})", explanation.why, self.why);
        refused.append(&mut explanation.refused);
        explanation.refused = refused;
        explanation
    }
}

fn not_a_choice(id: EngineId) -> Reason {
    match id {
        EngineId::Reference => Reason::unsupported(
            "launches on a GPU",
            "the reference",
            "call cuattn::reference::attention with host memory",
        ),
        EngineId::Varlen => {
            Reason::unsupported("dense problems", "varlen", "use flash or phase2a, or pack the sequences")
        }
        other => Reason::unsupported("dense problems", other.to_string(), "use flash or phase2a"),
    }
}

/// An engine's plan that knows how it was chosen.
#[derive(Debug)]
struct ChosenPlan {
    plan: Box<dyn Plan>,
    explanation: Explanation,
}

impl Plan for ChosenPlan {
    fn problem(&self) -> &Problem {
        self.plan.problem()
    }

    fn workspace(&self) -> WorkspaceSize {
        self.plan.workspace()
    }

    fn work(&self) -> Work {
        self.plan.work()
    }

    fn explain(&self) -> Explanation {
        self.explanation.clone()
    }

    unsafe fn launch(&self, operands: &Operands, workspace: DevicePtr) -> Result<(), LaunchError> {
        // SAFETY: the caller's promise is the one that the inner plan asks for.
        unsafe { self.plan.launch(operands, workspace) }
    }
}
