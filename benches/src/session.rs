//! Our side of the comparison: plans on a foreign stream, launched on foreign tensors, timed through the public API
//! alone.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use cuattn::Policy;
use cuattn_core::{
    Engine as _, Explanation, LaunchError, Operands, Plan, VarlenOperands, VarlenPlan, Work, WorkspaceSize,
};
use cuattn_flash::{FlashPath, Path};
use curt::{DeviceBuffer, DevicePtr, Event, Runtime};
use serde_json::{Value, json};

use crate::description::{self, Description};

/// Launches between two waits while launch overhead is measured: fewer than the driver queues, so that it never blocks
/// for the device in between.
const LAUNCHES_IN_FLIGHT: usize = 100;

/// A runtime on the caller's stream.
pub struct Session {
    runtime: Runtime,
    /// What [`Session::time_eager`] overwrites to empty the L2 cache; made once.
    flush: Mutex<Option<DeviceBuffer>>,
}

/// A plan and what is known about it.
pub struct Prepared {
    plan: AnyPlan,
    took: Duration,
}

/// A plan of either kind.
enum AnyPlan {
    Dense(Box<dyn Plan>),
    Varlen(Box<dyn VarlenPlan>),
}

impl AnyPlan {
    fn explain(&self) -> Explanation {
        match self {
            Self::Dense(plan) => plan.explain(),
            Self::Varlen(plan) => plan.explain(),
        }
    }

    fn workspace(&self) -> WorkspaceSize {
        match self {
            Self::Dense(plan) => plan.workspace(),
            Self::Varlen(plan) => plan.workspace(),
        }
    }

    fn work(&self) -> Work {
        match self {
            Self::Dense(plan) => plan.work(),
            Self::Varlen(plan) => plan.work(),
        }
    }

    /// # Safety
    ///
    /// As for [`Plan::launch`].
    unsafe fn launch(&self, launch: &Launch) -> Result<(), LaunchError> {
        match self {
            // SAFETY: the caller's promises.
            Self::Dense(plan) => unsafe { plan.launch(&launch.dense(), launch.workspace) },
            // SAFETY: the caller's promises.
            Self::Varlen(plan) => unsafe { plan.launch(&launch.varlen(), launch.workspace) },
        }
    }
}

/// Operands of a launch, dense or packed, and its workspace.
#[derive(Clone, Copy, Debug, Default)]
pub struct Launch {
    /// Queries.
    pub q: DevicePtr,
    /// Keys.
    pub k: DevicePtr,
    /// Values.
    pub v: DevicePtr,
    /// Output.
    pub o: DevicePtr,
    /// What is added to the scores of a dense problem.
    pub bias: Option<DevicePtr>,
    /// Where the query sequences of a packed problem start.
    pub cu_seqlens_q: DevicePtr,
    /// Where its key sequences start.
    pub cu_seqlens_kv: DevicePtr,
    /// Scratch memory.
    pub workspace: DevicePtr,
}

impl Launch {
    fn dense(&self) -> Operands {
        let Self { q, k, v, o, bias, .. } = *self;
        Operands { q, k, v, o, bias, ..Operands::default() }
    }

    fn varlen(&self) -> VarlenOperands {
        let Self { q, k, v, o, cu_seqlens_q, cu_seqlens_kv, .. } = *self;
        VarlenOperands { q, k, v, o, cu_seqlens_q, cu_seqlens_kv, ..VarlenOperands::default() }
    }
}

impl Session {
    /// A session on a runtime.
    pub fn new(runtime: Runtime) -> Self {
        Self { runtime, flush: Mutex::new(None) }
    }

    /// The device and libraries, for the report.
    pub fn describe(&self) -> Value {
        let device = self.runtime.capabilities();
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "device": device.name,
            "compute_capability": device.compute_capability,
            "driver": device.driver_version,
            "probe": curt::probe().to_string(),
            "kinds": ["dense", "varlen"],
        })
    }

    /// Plans a problem, as a user would.
    ///
    /// # Errors
    ///
    /// Where the text is no description, or the plan is refused.
    pub fn plan(&self, description: &str) -> anyhow::Result<Prepared> {
        match serde_json::from_str(description).context("this is no problem description")? {
            Description::Dense(dense) => {
                let problem = dense.problem();
                let policy = dense.engine.only().map_or(Policy::Auto, Policy::Only);
                let start = Instant::now();
                let plan = match dense.engine {
                    description::Engine::Mma => FlashPath(Path::Mma).plan(&self.runtime, &problem)?,
                    _ => cuattn::plan(&self.runtime, &problem, policy)?,
                };
                Ok(Prepared { plan: AnyPlan::Dense(plan), took: start.elapsed() })
            }
            Description::Varlen(varlen) => {
                let problem = varlen.problem();
                let policy = varlen.engine.only().map_or(Policy::Auto, Policy::Only);
                let start = Instant::now();
                let plan = cuattn::plan_varlen(&self.runtime, &problem, policy)?;
                Ok(Prepared { plan: AnyPlan::Varlen(plan), took: start.elapsed() })
            }
        }
    }

    /// Milliseconds of each of `repetitions` launches, by CUDA events around the launch, the L2 cache overwritten
    /// before each.
    ///
    /// # Errors
    ///
    /// Where a launch is refused or the driver fails.
    ///
    /// # Safety
    ///
    /// As for [`Plan::launch`].
    pub unsafe fn time_eager(
        &self,
        prepared: &Prepared,
        launch: &Launch,
        repetitions: usize,
        flush_bytes: usize,
    ) -> anyhow::Result<Vec<f32>> {
        let mut flush = self.flush.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if flush.as_ref().is_none_or(|buffer| buffer.len() < flush_bytes) {
            *flush = Some(self.runtime.alloc(flush_bytes)?);
        }
        let flush = flush.as_mut().context("the buffer was just made")?;
        let pairs: Vec<(Event, Event)> = (0..repetitions)
            .map(|_| Ok((self.runtime.event()?, self.runtime.event()?)))
            .collect::<Result<_, curt::Error>>()?;
        for (start, end) in &pairs {
            flush.fill(0)?;
            start.record(&self.runtime)?;
            // SAFETY: the caller vouches for the operands.
            unsafe { prepared.plan.launch(launch)? };
            end.record(&self.runtime)?;
        }
        self.runtime.synchronize()?;
        Ok(pairs.iter().map(|(start, end)| Event::elapsed_ms(start, end)).collect::<Result<_, _>>()?)
    }

    /// Host time of a launch: the median over rounds of `LAUNCHES_IN_FLIGHT` launches that do not wait for the
    /// device.
    ///
    /// # Errors
    ///
    /// Where `launches` is 0, a launch is refused or the driver fails.
    ///
    /// # Safety
    ///
    /// As for [`Plan::launch`].
    pub unsafe fn launch_overhead(
        &self,
        prepared: &Prepared,
        launch: &Launch,
        launches: usize,
    ) -> anyhow::Result<Duration> {
        ensure!(launches > 0, "no launch, no time: ask for at least one");
        let mut rounds = Vec::new();
        for _ in 0..launches.div_ceil(LAUNCHES_IN_FLIGHT) {
            self.runtime.synchronize()?;
            let start = Instant::now();
            for _ in 0..LAUNCHES_IN_FLIGHT {
                // SAFETY: the caller vouches for the operands.
                unsafe { prepared.plan.launch(launch)? };
            }
            rounds.push(start.elapsed() / LAUNCHES_IN_FLIGHT as u32);
        }
        self.runtime.synchronize()?;
        rounds.sort();
        Ok(rounds[rounds.len() / 2])
    }
}

impl Prepared {
    /// The plan, for the report.
    pub fn describe(&self) -> Value {
        let Explanation { engine, path, why, details, refused } = self.plan.explain();
        let WorkspaceSize { bytes, align } = self.plan.workspace();
        let work = self.plan.work();
        json!({
            "engine": engine.to_string(),
            "path": path,
            "why": why,
            "details": details,
            "refused": refused.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "workspace_bytes": bytes,
            "workspace_align": align,
            "flops": work.flops,
            "bytes": work.bytes,
            "plan_ms": self.took.as_secs_f64() * 1e3,
        })
    }

    /// Launches once.
    ///
    /// # Errors
    ///
    /// Where the operands or workspace do not fit the plan, or the driver refuses.
    ///
    /// # Safety
    ///
    /// As for [`Plan::launch`].
    pub unsafe fn launch(&self, launch: &Launch) -> anyhow::Result<()> {
        // SAFETY: the caller vouches for the operands.
        unsafe { self.plan.launch(launch)? };
        Ok(())
    }
}
