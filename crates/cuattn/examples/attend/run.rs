//! From arguments to the report.

use std::collections::HashMap;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, bail, ensure};
use cuattn::curt::{Finding, ProbeReport};
use cuattn::reference::{HostOutput, encode};
use cuattn::{Alignment, BiasKind, DType, EngineId, Policy, Problem};
use safetensors::{Dtype, tensor::TensorView};

use crate::arguments::{Arguments, EngineChoice, FileLayout};
use crate::compare::{Distance, allowed};
use crate::compute::{By, Computed, on_gpu, on_host};
use crate::input::Input;

/// Launches that are timed on a GPU where nobody says how many.
const REPEAT_ON_GPU: u32 = 20;

/// Computes, and writes the report to `out`.
///
/// # Errors
///
/// Where the file or the problem is not right, the engine that was asked for cannot be used, or the result is further
/// from the file's than its type allows.
pub(crate) fn run(arguments: &Arguments, probe: &ProbeReport, out: &mut impl Write) -> anyhow::Result<()> {
    let path = &arguments.file;
    let file = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let input = Input::parse(&file, arguments).with_context(|| format!("cannot use {}", path.display()))?;
    let missing = missing(probe);
    let repeat = |default: u32| arguments.repeat.map_or(default, |repeat| repeat.get());
    let policy = match arguments.engine {
        EngineChoice::Reference => None,
        EngineChoice::Auto if missing.is_some() => None,
        EngineChoice::Auto => Some(Policy::Auto),
        EngineChoice::Flash => Some(Policy::Only(EngineId::Flash)),
        EngineChoice::Phase2a => Some(Policy::Only(EngineId::Phase2a)),
    };
    let computed = match (policy, &missing) {
        (None, _) => on_host(&input, repeat(1))?,
        (Some(_), None) => on_gpu(&input, policy.unwrap_or_default(), repeat(REPEAT_ON_GPU))?,
        (Some(_), Some(missing)) => bail!("this engine needs a GPU, and --engine never falls back. {missing}"),
    };

    match (&computed.by, &missing) {
        (By::Host { .. }, Some(missing)) if arguments.engine == EngineChoice::Auto => {
            writeln!(out, "NO GPU: computed on the host in float64, many times slower than a GPU. {missing}")?;
        }
        (By::Host { .. }, _) => writeln!(out, "computed on the host in float64, as --engine reference asks")?,
        (By::Gpu { device, .. }, _) => {
            let (major, minor) = device.driver_version;
            writeln!(out, "device    {} ({}), driver for CUDA {major}.{minor}", device.name, device.arch())?;
        }
    }
    report(&input, &computed, out)?;
    if let Some(path) = &arguments.out {
        write_result(path, &input, &computed).with_context(|| format!("cannot write {}", path.display()))?;
        writeln!(out, "written   {}", path.display())?;
    }
    compare(&input, &computed, out)
}

/// What keeps this machine from computing on a GPU, and how to get it, in one line.
fn missing(probe: &ProbeReport) -> Option<String> {
    let lacks = |what: &str, finding: &Finding| match finding {
        Finding::Found { .. } => None,
        Finding::Missing { reason, fix, .. } => Some(format!("Missing: {what} ({reason}). To get it: {fix}")),
    };
    let text = lacks("the CUDA driver", &probe.driver)
        .or_else(|| {
            let fix = "check that nvidia-smi lists one, and CUDA_VISIBLE_DEVICES";
            probe.devices.is_empty().then(|| format!("Missing: a device (the driver shows none). To get it: {fix}"))
        })
        .or_else(|| lacks("NVRTC, which compiles the kernels", &probe.nvrtc))?;
    Some(text.split_whitespace().collect::<Vec<_>>().join(" "))
}

fn report(input: &Input<'_>, computed: &Computed, out: &mut impl Write) -> anyhow::Result<()> {
    writeln!(out, "problem   {}", describe(&input.problem, input.layout))?;
    match &computed.by {
        By::Host { .. } => {
            let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get());
            writeln!(out, "engine    reference, {threads} cores")?;
        }
        By::Gpu { explanation, planned, workspace, .. } => {
            let indented = explanation.to_string().replace('\n', "\n          ");
            writeln!(out, "engine    {indented}")?;
            writeln!(out, "plan      {:.1} ms, workspace {workspace} bytes", planned.as_secs_f64() * 1e3)?;
        }
    }
    let work = input.problem.work();
    let seconds = computed.time.as_secs_f64();
    let rate = |amount: f64| if seconds > 0.0 { amount / seconds } else { 0.0 };
    writeln!(
        out,
        "time      {:.3} ms, mean of {}: {:.3} TFLOP/s, {:.1} GB/s",
        seconds * 1e3,
        computed.repeated,
        rate(work.flops) / 1e12,
        rate(work.bytes) / 1e9
    )?;
    for name in &input.ignored {
        writeln!(out, "ignored   tensor `{name}`, whose name means nothing here")?;
    }
    Ok(())
}

fn describe(problem: &Problem, layout: FileLayout) -> String {
    let shape = problem.shape;
    let mut text = format!(
        "{} {}, batch {}, heads {}/{}, {} rows x {} keys, head size {}",
        problem.dtype,
        layout_name(layout),
        shape.batch,
        shape.q_heads,
        shape.kv_heads,
        shape.q_len,
        shape.kv_len,
        shape.head_dim
    );
    let mask = problem.mask;
    let mut add = |more: String| text.push_str(&format!(", {more}"));
    if shape.v_head_dim != shape.head_dim {
        add(format!("value size {}", shape.v_head_dim));
    }
    if mask.causal {
        add(match mask.alignment {
            Alignment::BottomRight => "causal from the bottom right".to_owned(),
            _ => "causal from the top left".to_owned(),
        });
    }
    if mask.window != cuattn::Window::default() {
        let side = |keys: Option<u32>| keys.map_or("all".to_owned(), |keys| keys.to_string());
        add(format!("window {} left, {} right", side(mask.window.left), side(mask.window.right)));
    }
    if let Some(bias) = mask.bias {
        add(match bias.kind {
            BiasKind::Boolean => "boolean bias".to_owned(),
            BiasKind::Additive(dtype) => format!("additive {dtype} bias"),
        });
    }
    if mask.key_lengths.index_type().is_some() {
        add("key lengths".to_owned());
    }
    if problem.has_sinks {
        add("sinks".to_owned());
    }
    if let Some(softcap) = problem.softcap {
        add(format!("softcap {softcap}"));
    }
    add(format!("scale {}", problem.scale));
    text
}

fn layout_name(layout: FileLayout) -> &'static str {
    match layout {
        FileLayout::Bhsd => "BHSD",
        FileLayout::Bshd => "BSHD",
    }
}

fn write_result(path: &Path, input: &Input<'_>, computed: &Computed) -> anyhow::Result<()> {
    let shape = input.problem.shape;
    let dims = match input.layout {
        FileLayout::Bhsd => vec![shape.batch, shape.q_heads, shape.q_len, shape.v_head_dim],
        FileLayout::Bshd => vec![shape.batch, shape.q_len, shape.q_heads, shape.v_head_dim],
    };
    let dtype = match input.problem.dtype {
        DType::F16 => Dtype::F16,
        DType::Bf16 => Dtype::BF16,
        _ => Dtype::F32,
    };
    let lse: Vec<f64> = computed.log_sum_exp.iter().copied().map(f64::from).collect();
    let lse = encode(&lse, DType::F32);
    let tensors = [
        ("o", TensorView::new(dtype, dims, &computed.o)?),
        ("lse", TensorView::new(Dtype::F32, vec![shape.batch, shape.q_heads, shape.q_len], &lse)?),
    ];
    let by = match &computed.by {
        By::Host { .. } => EngineId::Reference.to_string(),
        By::Gpu { explanation, .. } => format!("{} ({})", explanation.engine, explanation.path),
    };
    let metadata = HashMap::from([
        ("engine".to_owned(), by),
        ("layout".to_owned(), layout_name(input.layout).to_owned()),
        ("scale".to_owned(), input.problem.scale.to_string()),
    ]);
    Ok(safetensors::serialize_to_file(tensors, Some(metadata), path)?)
}

fn compare(input: &Input<'_>, computed: &Computed, out: &mut impl Write) -> anyhow::Result<()> {
    let problem = &input.problem;
    let mut faults = Vec::new();
    if let Some(want) = &input.o_ref {
        let allowed = allowed(problem.dtype);
        let distance = Distance::of(&HostOutput::read_o(problem, &computed.o)?, want);
        writeln!(out, "error     o against o_ref, as {}: {distance}; allowed {allowed:.0e}", problem.dtype)?;
        if let By::Host { exact } = &computed.by {
            writeln!(out, "          o against o_ref, in float64: {}", Distance::of(&exact.o, want))?;
        }
        if distance.relative.is_nan() || distance.relative > allowed {
            faults.push(format!("o has a relative error of {:.2e}", distance.relative));
        }
    }
    if let Some(want) = &input.lse_ref {
        let got: Vec<f64> = computed.log_sum_exp.iter().copied().map(f64::from).collect();
        let distance = Distance::of(&got, want);
        let allowed = 1e-3;
        writeln!(out, "          lse against lse_ref: {distance}; allowed {allowed:.0e} an element")?;
        if distance.worst > allowed {
            faults.push(format!("lse is off by {:.2e}", distance.worst));
        }
    }
    if input.o_ref.is_none() && input.lse_ref.is_none() {
        writeln!(out, "error     unknown: the file holds neither o_ref nor lse_ref")?;
    }
    ensure!(faults.is_empty(), "the result is wrong: {}", faults.join(", "));
    Ok(())
}
