//! What the host does before anything reaches a GPU: checking a problem, looking for an engine, assembling kernel
//! sources. Needs no GPU.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use cuattn::Policy;
use cuattn_core::{Alignment, DType, Mask, Problem, Shape};
use curt::Capabilities;

fn problem() -> Problem {
    let shape = Shape { batch: 4, q_heads: 32, kv_heads: 8, q_len: 4096, kv_len: 4096, head_dim: 128, v_head_dim: 128 };
    let mut problem = Problem::bhsd(shape, DType::Bf16);
    problem.mask = Mask::causal(Alignment::BottomRight);
    problem
}

fn checking(c: &mut Criterion) {
    let problem = problem();
    c.bench_function("validate a problem", |b| b.iter(|| black_box(&problem).validate().is_ok()));
}

fn choosing(c: &mut Criterion) {
    let (device, problem) = (Capabilities::h200(), problem());
    c.bench_function("choose an engine", |b| {
        b.iter(|| cuattn::consider(black_box(&device), black_box(&problem), Policy::Auto).is_ok());
    });
}

fn sources(c: &mut Criterion) {
    let variants = cuattn_kernels::variants();
    // The longest text is the one that costs.
    let Some(longest) = variants.iter().max_by_key(|variant| variant.source.assemble().len()) else { return };
    c.bench_function(&format!("assemble {}", longest.name), |b| b.iter(|| black_box(&longest.source).assemble()));
}

criterion_group!(benches, checking, choosing, sources);
criterion_main!(benches);
