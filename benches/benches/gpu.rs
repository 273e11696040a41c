//! Our own trend on a GPU, by CUDA events. Without a GPU it says so and measures nothing.
//!
//! Times here are of launches one after another on warm caches, for comparison with earlier times of the same machine;
//! how we stand beside others is what the peer comparison says.

use std::time::Duration;

use criterion::measurement::{Measurement, ValueFormatter, WallTime};
use criterion::{BenchmarkId, Criterion, Throughput};
use cuattn::Policy;
use cuattn_core::{Alignment, DType, Mask, Operands, Problem, Shape};
use curt::{DeviceBuffer, Event, Runtime};
use half::{bf16, f16};

/// Time on the device's clock, between two events on the runtime's stream.
struct EventTime {
    runtime: Runtime,
}

impl Measurement for EventTime {
    type Intermediate = Event;
    type Value = Duration;

    fn start(&self) -> Event {
        self.mark()
    }

    fn end(&self, start: Event) -> Duration {
        let end = self.mark();
        end.synchronize().expect("the device works");
        let ms = Event::elapsed_ms(&start, &end).expect("both events have passed");
        Duration::from_secs_f64(f64::from(ms) / 1e3)
    }

    fn add(&self, one: &Duration, other: &Duration) -> Duration {
        *one + *other
    }

    fn zero(&self) -> Duration {
        Duration::ZERO
    }

    fn to_f64(&self, value: &Duration) -> f64 {
        value.as_nanos() as f64
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        WallTime.formatter()
    }
}

impl EventTime {
    fn mark(&self) -> Event {
        let event = self.runtime.event().expect("an event can be made");
        event.record(&self.runtime).expect("an event can be recorded");
        event
    }
}

/// Tensors of a problem, filled with values that vary: constant data draws less power, and so runs faster than real
/// data.
struct Tensors {
    buffers: [DeviceBuffer; 4],
    workspace: DeviceBuffer,
}

impl Tensors {
    fn new(runtime: &Runtime, problem: &Problem, workspace: usize) -> curt::Result<Self> {
        let Shape { batch, q_heads, kv_heads, q_len, kv_len, head_dim, v_head_dim } = problem.shape;
        let elements = [
            batch * q_heads * q_len * head_dim,
            batch * kv_heads * kv_len * head_dim,
            batch * kv_heads * kv_len * v_head_dim,
        ];
        let [q, k, v] = elements.map(|count| filled(runtime, problem.dtype, count));
        let output = runtime.alloc(batch * q_heads * q_len * v_head_dim * problem.dtype.size())?;
        Ok(Self { buffers: [q?, k?, v?, output], workspace: runtime.alloc(workspace)? })
    }

    fn operands(&self) -> Operands {
        let [q, k, v, o] = [0, 1, 2, 3].map(|index: usize| self.buffers[index].ptr());
        Operands { q, k, v, o, ..Operands::default() }
    }
}

fn filled(runtime: &Runtime, dtype: DType, count: usize) -> curt::Result<DeviceBuffer> {
    // Weyl's sequence, spread over -1..1.
    let values =
        (0..count as u32).map(|index| (index.wrapping_mul(0x9E37_79B9) as f32 / u32::MAX as f32).mul_add(2.0, -1.0));
    match dtype {
        DType::F16 => runtime.upload(&values.map(f16::from_f32).collect::<Vec<_>>()),
        DType::Bf16 => runtime.upload(&values.map(bf16::from_f32).collect::<Vec<_>>()),
        _ => runtime.upload(&values.collect::<Vec<_>>()),
    }
}

fn square(batch: usize, heads: usize, length: usize, head_dim: usize) -> Shape {
    Shape { batch, q_heads: heads, kv_heads: heads, q_len: length, kv_len: length, head_dim, v_head_dim: head_dim }
}

fn attention(c: &mut Criterion<EventTime>, runtime: &Runtime) -> anyhow::Result<()> {
    let mut group = c.benchmark_group("attention");
    let shapes = [square(16, 16, 1024, 128), square(4, 16, 4096, 128), square(4, 32, 4096, 64)];
    for (shape, dtype, causal) in shapes
        .iter()
        .flat_map(|shape| [(shape, false), (shape, true)])
        .flat_map(|(shape, causal)| [DType::Bf16, DType::F32].map(|dtype| (*shape, dtype, causal)))
    {
        let mut problem = Problem::bhsd(shape, dtype);
        if causal {
            problem.mask = Mask::causal(Alignment::BottomRight);
        }
        let plan = cuattn::plan(runtime, &problem, Policy::Auto)?;
        let tensors = Tensors::new(runtime, &problem, plan.workspace().bytes)?;
        let Shape { batch, q_heads, q_len, head_dim, .. } = shape;
        let mask = if causal { "causal" } else { "full" };
        let name = format!("b{batch} h{q_heads} {q_len} d{head_dim} {dtype} {mask}");
        group.throughput(Throughput::Elements(plan.work().flops as u64));
        group.bench_function(BenchmarkId::new(plan.explain().engine.to_string(), name), |bencher| {
            bencher.iter(|| {
                // SAFETY: the tensors are this runtime's, of the problem's extents, and outlive the group's last wait.
                unsafe { plan.launch(&tensors.operands(), tensors.workspace.ptr()) }.expect("the launch fits the plan");
            });
        });
        runtime.synchronize()?;
    }
    group.finish();
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let probe = curt::probe();
    if !probe.has_gpu() {
        println!("NOT RUN: the benches of the device need a GPU, and there is none here.\n{probe}");
        return Ok(());
    }
    let runtime = Runtime::new(0)?;
    let mut criterion =
        Criterion::default().with_measurement(EventTime { runtime: runtime.clone() }).configure_from_args();
    attention(&mut criterion, &runtime)?;
    criterion.final_summary();
    Ok(())
}
