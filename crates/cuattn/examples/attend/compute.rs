//! The computation, on the GPU or on the host.

use std::time::{Duration, Instant};

use cuattn::curt::{Capabilities, DeviceBuffer, Runtime};
use cuattn::reference::{self, HostOutput};
use cuattn::{Explanation, Operands, Policy, Problem};

use crate::input::Input;

/// What was computed, and by whom.
pub(crate) struct Computed {
    pub(crate) by: By,
    /// In the problem's type and strides.
    pub(crate) o: Vec<u8>,
    /// `[batch, heads, tokens]`.
    pub(crate) log_sum_exp: Vec<f32>,
    /// Of one computation.
    pub(crate) time: Duration,
    pub(crate) repeated: u32,
}

/// Who computed.
pub(crate) enum By {
    Gpu { device: Capabilities, explanation: Explanation, planned: Duration, workspace: usize },
    Host { exact: HostOutput },
}

/// Plans, launches and times on the first GPU.
pub(crate) fn on_gpu(input: &Input<'_>, policy: Policy, repeat: u32) -> anyhow::Result<Computed> {
    let problem = &input.problem;
    let runtime = Runtime::new(0)?;
    let start = Instant::now();
    let plan = cuattn::plan(&runtime, problem, policy)?;
    let planned = start.elapsed();

    let extents = problem.extents()?;
    let upload = |bytes: &[u8]| runtime.upload(bytes);
    let upload_if = |bytes: Option<&[u8]>| bytes.map(upload).transpose();
    let (q, k, v) = (upload(input.operands.q)?, upload(input.operands.k)?, upload(input.operands.v)?);
    let bias = upload_if(input.operands.bias)?;
    let key_lengths = upload_if(input.operands.key_lengths)?;
    let sinks = upload_if(input.operands.sinks)?;
    let (o, lse) = (runtime.alloc(extents.o)?, runtime.alloc(extents.log_sum_exp.unwrap_or(0))?);
    let workspace = runtime.alloc(plan.workspace().bytes)?;
    // NaN in every type: what a launch does not write is seen.
    o.fill(0xff)?;
    lse.fill(0xff)?;
    let ptr = |buffer: &Option<DeviceBuffer>| buffer.as_ref().map(DeviceBuffer::ptr);
    let operands = Operands {
        q: q.ptr(),
        k: k.ptr(),
        v: v.ptr(),
        o: o.ptr(),
        bias: ptr(&bias),
        key_lengths: ptr(&key_lengths),
        sinks: ptr(&sinks),
        log_sum_exp: Some(lse.ptr()),
        ..Operands::default()
    };
    let launch = || {
        // SAFETY: every buffer is of this runtime and outlives the synchronisation below; nothing else uses them.
        unsafe { plan.launch(&operands, workspace.ptr()) }
    };
    launch()?;
    runtime.synchronize()?;
    let timer = runtime.timer()?;
    timer.start()?;
    for _ in 0..repeat {
        launch()?;
    }
    let time = timer.stop()? / repeat;
    Ok(Computed {
        by: By::Gpu {
            device: runtime.capabilities().clone(),
            explanation: plan.explain(),
            planned,
            workspace: workspace.len(),
        },
        o: o.read()?,
        log_sum_exp: lse.read()?,
        time,
        repeated: repeat,
    })
}

/// Computes in float64 on the host's cores, and rounds once.
pub(crate) fn on_host(input: &Input<'_>, repeat: u32) -> anyhow::Result<Computed> {
    let problem: &Problem = &input.problem;
    let start = Instant::now();
    let mut exact = reference::attention(problem, &input.operands)?;
    for _ in 1..repeat {
        exact = reference::attention(problem, &input.operands)?;
    }
    let time = start.elapsed() / repeat;
    let mut o = vec![0; problem.extents()?.o];
    exact.write_o(problem, &mut o)?;
    let log_sum_exp = exact.log_sum_exp.iter().map(|&value| value as f32).collect();
    Ok(Computed { by: By::Host { exact }, o, log_sum_exp, time, repeated: repeat })
}
