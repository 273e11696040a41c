//! The engine: from a problem to a plan.

use std::sync::{Mutex, PoisonError};

use cuattn_core::{Engine, EngineId, Explanation, Plan, PlanError, Problem, Reason, Refusal};
use curt::{Capabilities, Runtime};
use curt_blaslt::{BlasLt, DEFAULT_MAX_WORKSPACE, WeakBlasLt};

use crate::outline::Outline;
use crate::plan::Phase2aPlan;

/// What bounds the workspace of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Bytes that the scores of one chunk may take; `None` for what was measured to be best on the device. One row is always
    /// held, however small this is.
    pub score_cap: Option<usize>,
    /// Bytes that cuBLASLt may ask for.
    pub max_blas_workspace: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { score_cap: None, max_blas_workspace: DEFAULT_MAX_WORKSPACE }
    }
}

/// Attention as two cuBLASLt products around a softmax kernel.
#[derive(Debug, Default)]
pub struct Phase2a {
    options: Options,
    /// Handles of runtimes for which plans are alive, so that their plans share one.
    handles: Mutex<Vec<WeakBlasLt>>,
}

impl Phase2a {
    /// The engine with default options.
    pub fn new() -> Self {
        Self::default()
    }

    /// The engine with these options.
    pub fn with_options(options: Options) -> Self {
        Self { options, ..Self::default() }
    }

    /// The engine with a score buffer of at most `bytes`: long problems are done in that many more blocks of query rows.
    pub fn with_score_cap(bytes: usize) -> Self {
        Self::with_options(Options { score_cap: Some(bytes), ..Options::default() })
    }

    /// The options it was made with.
    pub fn options(&self) -> Options {
        self.options
    }

    fn blas(&self, runtime: &Runtime) -> Result<BlasLt, curt_blaslt::Error> {
        let mut handles = self.handles.lock().unwrap_or_else(PoisonError::into_inner);
        handles.retain(|handle| handle.upgrade().is_some());
        let same = |blas: &BlasLt| {
            blas.runtime().stream_handle() == runtime.stream_handle()
                && blas.runtime().context_handle() == runtime.context_handle()
        };
        if let Some(blas) = handles.iter().filter_map(WeakBlasLt::upgrade).find(same) {
            return Ok(blas);
        }
        let blas = BlasLt::new(runtime)?;
        handles.push(blas.downgrade());
        Ok(blas)
    }
}

impl Engine for Phase2a {
    fn id(&self) -> EngineId {
        EngineId::Phase2a
    }

    fn consider(&self, device: &Capabilities, problem: &Problem) -> Result<Explanation, Refusal> {
        Ok(Outline::new(device, problem, self.options)?.explain(problem))
    }

    fn plan(&self, runtime: &Runtime, problem: &Problem) -> Result<Box<dyn Plan>, PlanError> {
        let outline = Outline::new(runtime.capabilities(), problem, self.options)?;
        if runtime.is_capturing()? {
            return Err(curt::Error::Capturing { what: "making a phase2a plan" }.into());
        }
        let blas = match &outline {
            Outline::Products(_) => Some(self.blas(runtime).map_err(plan_error)?),
            _ => None,
        };
        Ok(Box::new(Phase2aPlan::new(runtime, blas, problem, outline, self.options)?))
    }
}

/// A product that cannot be planned is a refusal of the problem; a library that cannot be loaded is the runtime's failure.
pub(crate) fn plan_error(error: curt_blaslt::Error) -> PlanError {
    match error {
        curt_blaslt::Error::Runtime(error) => error.into(),
        error => {
            let reason = Reason::unsupported(
                format!("a product of this problem ({error})"),
                "phase2a",
                "use the flash engine, or another layout",
            );
            Refusal::by_engine(EngineId::Phase2a, vec![reason]).into()
        }
    }
}
