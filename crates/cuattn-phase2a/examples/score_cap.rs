//! How fast attention is with score buffers of different sizes: the measurement behind the engine's table of caps.
//!
//! ```text
//! cargo run --release -p cuattn-phase2a --example score_cap
//! cargo run --release -p cuattn-phase2a --example score_cap -- BATCH HEADS LEN HEAD_DIM
//! ```

use std::error::Error;

use cuattn_core::{DType, Engine, Operands, Plan, Problem, Shape};
use cuattn_phase2a::Phase2a;
use curt::Runtime;

/// Batch, heads, length and head size of the two shapes that are compared with PyTorch.
const SHAPES: [[usize; 4]; 2] = [[32, 16, 512, 128], [4, 16, 4096, 128]];

const MIB: usize = 1 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let given: Vec<usize> = std::env::args().skip(1).map(|argument| argument.parse()).collect::<Result<_, _>>()?;
    let shapes = match given.as_slice() {
        [] => SHAPES.to_vec(),
        &[batch, heads, len, head_dim] => vec![[batch, heads, len, head_dim]],
        _ => return Err("give BATCH HEADS LEN HEAD_DIM, or nothing".into()),
    };
    let runtime = Runtime::new(0)?;
    println!("{}", runtime.capabilities().name);
    for [batch, heads, len, head_dim] in shapes {
        for dtype in [DType::F16, DType::F32] {
            println!("b{batch} h{heads} {len} d{head_dim} {dtype}");
            let caps = [8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 4096].map(|mib| Some(mib * MIB));
            for cap in [None].into_iter().chain(caps) {
                let engine = cap.map_or_else(Phase2a::new, Phase2a::with_score_cap);
                let shape = Shape {
                    batch,
                    q_heads: heads,
                    kv_heads: heads,
                    q_len: len,
                    kv_len: len,
                    head_dim,
                    v_head_dim: head_dim,
                };
                measure(&runtime, &engine, &Problem::bhsd(shape, dtype), cap)?;
            }
        }
    }
    Ok(())
}

fn measure(runtime: &Runtime, engine: &Phase2a, problem: &Problem, cap: Option<usize>) -> Result<(), Box<dyn Error>> {
    let plan = engine.plan(runtime, problem)?;
    let extents = problem.extents()?;
    // Small numbers that differ: all zeros would draw less power than real work, and clock higher.
    let pattern: Vec<u8> =
        (0..extents.q.max(extents.k)).map(|i| if i % 2 == 1 { 0x2c } else { (i * 37 % 251) as u8 }).collect();
    let q = runtime.upload(&pattern[..extents.q])?;
    let k = runtime.upload(&pattern[..extents.k])?;
    let v = runtime.upload(&pattern[..extents.v])?;
    let o = runtime.alloc(extents.o)?;
    let workspace = runtime.alloc(plan.workspace().bytes)?;
    let operands = Operands { q: q.ptr(), k: k.ptr(), v: v.ptr(), o: o.ptr(), ..Operands::default() };
    // SAFETY: all buffers are those of the problem, and live until the stream has been synchronised below.
    let launch = |plan: &dyn Plan| unsafe { plan.launch(&operands, workspace.ptr()) };
    for _ in 0..3 {
        launch(plan.as_ref())?;
    }
    let mut times = Vec::new();
    for _ in 0..20 {
        let (start, end) = (runtime.event()?, runtime.event()?);
        start.record(runtime)?;
        launch(plan.as_ref())?;
        end.record(runtime)?;
        end.synchronize()?;
        times.push(curt::Event::elapsed_ms(&start, &end)?);
    }
    runtime.synchronize()?;
    times.sort_by(f32::total_cmp);
    let median = times[times.len() / 2];
    let details = plan.explain().details;
    let chunks = details.iter().find(|line| line.starts_with("chunks")).map_or("", String::as_str);
    println!(
        "  cap {:>8}: {median:8.3} ms  {:7.1} TFLOP/s  {chunks}",
        cap.map_or("default".to_owned(), |bytes| format!("{} MiB", bytes / MIB)),
        plan.work().flops / f64::from(median) / 1e9,
    );
    Ok(())
}
