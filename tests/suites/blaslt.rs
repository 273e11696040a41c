//! cuBLASLt products against float64 on the host.

use anyhow::{Context as _, bail, ensure};
use cuattn_core::DType;
use cuattn_core::reference::{decode, encode};
use curt::{DevicePtr, Runtime};
use curt_blaslt::{
    Alignment, BlasLt, Compute, ElementType, Epilogue, Error, Gemm, GemmOperands, Matrix, Output, Preference, Transpose,
};
use rand::Rng;
use rand::seq::IndexedRandom as _;

use crate::compare::{Tolerance, errors};
use crate::tensors::{Distribution, Guarded, POISON};
use crate::{Context, Suite};

/// The suite.
pub fn suite() -> Suite {
    Suite::new("blaslt")
        .case("types and epilogues", types_and_epilogues)
        .case("layouts, batches and alignments", layouts)
        .case("products of size zero", size_zero)
        .case("C is added, in place and out of place", added)
        .case("TF32 only when asked", tf32)
        .case("fifty launches are one", fifty_launches)
        .case("captured and replayed", captured)
        .case("refusals leave memory alone", refusals)
        .case("a description is planned once", planned_once)
}

const ELEMENTS: [ElementType; 3] = [ElementType::F32, ElementType::F16, ElementType::Bf16];

fn dtype(element: ElementType) -> DType {
    match element {
        ElementType::F32 => DType::F32,
        ElementType::F16 => DType::F16,
        ElementType::Bf16 => DType::Bf16,
    }
}

/// Float32 results carry float32 sums; 16-bit ones one rounding more. cuBLASLt's GELU is an approximation: 3e-6 was seen on an H200
/// where the product itself was exact.
fn tolerance(output: ElementType, epilogue: Epilogue) -> Tolerance {
    let (relative_l2, worst_element) = match output {
        ElementType::F32 if matches!(epilogue, Epilogue::Gelu | Epilogue::GeluBias) => (6e-6, 2e-5),
        ElementType::F32 => (2e-6, 1e-5),
        ElementType::F16 => (4e-4, 1e-3),
        ElementType::Bf16 => (3e-3, 8e-3),
    };
    Tolerance { relative_l2, worst_element, log_sum_exp: 0.0 }
}

/// Operands of a product on the host, as bytes.
struct Host {
    a: Vec<u8>,
    b: Vec<u8>,
    c: Vec<u8>,
    bias: Vec<u8>,
}

/// Elements that a batch of stored matrices spans.
fn span(rows: usize, cols: usize, leading: i64, stride: i64, batch: usize) -> usize {
    if rows == 0 || cols == 0 || batch == 0 {
        return 0;
    }
    (rows - 1) * leading as usize + (batch - 1) * stride as usize + cols
}

fn input_span(matrix: Matrix, rows: usize, cols: usize, batch: usize) -> usize {
    let (rows, cols) = if matrix.transpose == Transpose::Yes { (cols, rows) } else { (rows, cols) };
    span(rows, cols, matrix.leading, matrix.batch_stride, batch)
}

fn output_span(gemm: &Gemm) -> usize {
    span(gemm.m, gemm.n, gemm.d.leading, gemm.d.batch_stride, gemm.batch)
}

impl Host {
    fn draw(gemm: &Gemm, rng: &mut impl Rng) -> Self {
        let mut random = |count: usize, element: ElementType| {
            let values: Vec<_> = (0..count).map(|_| Distribution::Normal.key(rng)).collect();
            encode(&values, dtype(element))
        };
        Self {
            a: random(input_span(gemm.a, gemm.m, gemm.k, gemm.batch), gemm.input_type),
            b: random(input_span(gemm.b, gemm.k, gemm.n, gemm.batch), gemm.input_type),
            c: random(output_span(gemm), gemm.output_type),
            bias: random(gemm.n, gemm.output_type),
        }
    }

    /// Contiguous `[batch, m, n]`.
    fn product(&self, gemm: &Gemm) -> Vec<f64> {
        let a = decode(&self.a, dtype(gemm.input_type));
        let b = decode(&self.b, dtype(gemm.input_type));
        let c = decode(&self.c, dtype(gemm.output_type));
        let bias = decode(&self.bias, dtype(gemm.output_type));
        let at = |matrix: Matrix, batch: usize, row: usize, col: usize| {
            let (row, col) = if matrix.transpose == Transpose::Yes { (col, row) } else { (row, col) };
            batch * matrix.batch_stride as usize + row * matrix.leading as usize + col
        };
        let mut d = Vec::new();
        for batch in 0..gemm.batch {
            for i in 0..gemm.m {
                for (j, bias) in bias.iter().enumerate() {
                    let sum: f64 = (0..gemm.k).map(|l| a[at(gemm.a, batch, i, l)] * b[at(gemm.b, batch, l, j)]).sum();
                    let mut value = f64::from(gemm.alpha) * sum;
                    if gemm.beta != 0.0 {
                        value += f64::from(gemm.beta) * c[place(gemm, batch, i) + j];
                    }
                    if gemm.epilogue.has_bias() {
                        value += bias;
                    }
                    d.push(match gemm.epilogue {
                        Epilogue::Relu | Epilogue::ReluBias => value.max(0.0),
                        Epilogue::Gelu | Epilogue::GeluBias => gelu(value),
                        Epilogue::None | Epilogue::Bias => value,
                    });
                }
            }
        }
        d
    }
}

fn place(gemm: &Gemm, batch: usize, row: usize) -> usize {
    batch * gemm.d.batch_stride as usize + row * gemm.d.leading as usize
}

fn gelu(x: f64) -> f64 {
    let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
    0.5 * x * (1.0 + inner.tanh())
}

/// Whether C is D.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Added {
    InPlace,
    OutOfPlace,
}

/// Launches once with every tensor between guards, and reads D.
fn launch(blas: &BlasLt, gemm: &Gemm, host: &Host, misaligned: usize, added: Added) -> anyhow::Result<Vec<u8>> {
    let runtime = blas.runtime();
    let (input, output) = (gemm.input_type.size(), gemm.output_type.size());
    let a = Guarded::upload(runtime, &host.a, misaligned * input)?;
    let b = Guarded::upload(runtime, &host.b, misaligned * input)?;
    let c = Guarded::upload(runtime, &host.c, misaligned * output)?;
    let d = match added {
        Added::InPlace => Guarded::upload(runtime, &host.c, misaligned * output)?,
        Added::OutOfPlace => Guarded::poisoned(runtime, host.c.len(), misaligned * output)?,
    };
    let bias = Guarded::upload(runtime, &host.bias, 0)?;
    let alignment = Alignment {
        a: Alignment::of_address(a.ptr().address()),
        b: Alignment::of_address(b.ptr().address()),
        d: Alignment::of_address(d.ptr().address()),
    };
    let plan = blas.plan(gemm, Preference { alignment, ..Preference::default() })?;
    let workspace = Guarded::poisoned(runtime, plan.workspace_bytes(), 0)?;
    let operands = GemmOperands {
        a: a.ptr(),
        b: b.ptr(),
        c: (added == Added::OutOfPlace).then(|| c.ptr()),
        d: d.ptr(),
        bias: gemm.epilogue.has_bias().then(|| bias.ptr()),
    };
    // SAFETY: all tensors are allocations of this runtime that live until the reads below have synchronised.
    unsafe { plan.launch(&operands, workspace.ptr()) }?;
    let bytes = d.read().context("D")?;
    workspace.read().context("workspace")?;
    ensure!(a.read().context("A")? == host.a && b.read().context("B")? == host.b, "an input was written");
    Ok(bytes)
}

/// Launches `gemm` with random operands and compares.
fn check(
    cx: &Context<'_>,
    blas: &BlasLt,
    gemm: &Gemm,
    misaligned: usize,
    added: Added,
    rng: &mut impl Rng,
) -> anyhow::Result<()> {
    let host = Host::draw(gemm, rng);
    let bytes = launch(blas, gemm, &host, misaligned, added).with_context(|| gemm.to_string())?;
    let d = decode(&bytes, dtype(gemm.output_type));
    let mut rows = Vec::new();
    for batch in 0..gemm.batch {
        for row in 0..gemm.m {
            rows.extend_from_slice(&d[place(gemm, batch, row)..][..gemm.n]);
        }
    }
    let expected = host.product(gemm);
    let found = errors(&rows, &expected);
    found.within(&tolerance(gemm.output_type, gemm.epilogue)).with_context(|| gemm.to_string())?;
    let mut covered = vec![false; d.len()];
    for batch in 0..gemm.batch {
        for row in 0..gemm.m {
            covered[place(gemm, batch, row)..][..gemm.n].fill(true);
        }
    }
    let size = gemm.output_type.size();
    let before = match added {
        Added::InPlace => host.c.clone(),
        Added::OutOfPlace => vec![POISON; bytes.len()],
    };
    for (element, covered) in covered.into_iter().enumerate() {
        let range = element * size..(element + 1) * size;
        ensure!(covered || bytes[range.clone()] == before[range], "{gemm}: element {element} between rows was written");
    }
    cx.count(1);
    cx.record_error_of(dtype(gemm.output_type), found.relative_l2, found.worst_element);
    Ok(())
}

fn outputs(input: ElementType) -> Vec<ElementType> {
    let mut outputs = vec![ElementType::F32];
    if input != ElementType::F32 {
        outputs.push(input);
    }
    outputs
}

fn types_and_epilogues(cx: &Context<'_>) -> anyhow::Result<()> {
    let blas = BlasLt::new(cx.runtime())?;
    let mut rng = cx.rng();
    let (m, n, k) = if cx.reduced() { (32, 48, 40) } else { (160, 192, 136) };
    for input in ELEMENTS {
        for output_type in outputs(input) {
            for epilogue in Epilogue::ALL {
                let gemm = Gemm { output_type, epilogue, alpha: 0.125, ..Gemm::packed(m, n, k, input) };
                check(cx, &blas, &gemm, 0, Added::OutOfPlace, &mut rng)?;
            }
        }
    }
    Ok(())
}

/// A random product with random layouts.
fn draw(rng: &mut impl Rng, longest: usize) -> Gemm {
    let pick = |rng: &mut dyn rand::RngCore| {
        let edges = [1, 2, 3, 7, 8, 16, 31, 64, 65, 128, 200];
        (*edges.choose(rng).expect("there are edges")).min(longest)
    };
    let (m, n, k) = (pick(rng), pick(rng), pick(rng));
    let input = *ELEMENTS.choose(rng).expect("there are types");
    let mut gemm = Gemm::packed(m, n, k, input);
    gemm.output_type = *outputs(input).choose(rng).expect("there are types");
    gemm.batch = *[1, 1, 2, 5].choose(rng).expect("there are sizes");
    gemm.alpha = *[1.0, -0.5, 0.0].choose(rng).expect("there are factors");
    let mut matrix = |rows: usize, cols: usize| {
        let transpose = if rng.random_bool(0.5) { Transpose::Yes } else { Transpose::No };
        let (rows, cols) = if transpose == Transpose::Yes { (cols, rows) } else { (rows, cols) };
        let leading = (cols + rng.random_range(0..4) * rng.random_range(0..5)) as i64;
        let apart = rows as i64 * leading + rng.random_range(0..9);
        let batch_stride = if rng.random_ratio(1, 3) { 0 } else { apart };
        Matrix { transpose, leading, batch_stride }
    };
    gemm.a = matrix(m, k);
    gemm.b = matrix(k, n);
    gemm.d = if rng.random_bool(0.5) {
        let leading = (n + rng.random_range(0..5)) as i64;
        Output { leading, batch_stride: m as i64 * leading + rng.random_range(0..7) }
    } else {
        Output { leading: (n * gemm.batch + rng.random_range(0..3)) as i64, batch_stride: n as i64 }
    };
    gemm
}

fn layouts(cx: &Context<'_>) -> anyhow::Result<()> {
    let blas = BlasLt::new(cx.runtime())?;
    let mut rng = cx.rng();
    for _ in 0..cx.scaled(200, 12) {
        let gemm = draw(&mut rng, if cx.reduced() { 31 } else { 200 });
        let misaligned = usize::from(rng.random_ratio(1, 3));
        check(cx, &blas, &gemm, misaligned, Added::OutOfPlace, &mut rng)?;
    }
    Ok(())
}

fn size_zero(cx: &Context<'_>) -> anyhow::Result<()> {
    let blas = BlasLt::new(cx.runtime())?;
    let mut rng = cx.rng();
    for input in ELEMENTS {
        for (m, n, batch) in [(0, 4, 1), (4, 0, 1), (4, 4, 0)] {
            let gemm = Gemm { batch, ..Gemm::packed(m, n, 4, input) };
            let plan = blas.plan(&gemm, Preference::default())?;
            ensure!(plan.workspace_bytes() == 0, "{gemm}: workspace for nothing");
            // SAFETY: a product without elements touches nothing.
            unsafe { plan.launch(&GemmOperands::default(), DevicePtr::default()) }.with_context(|| gemm.to_string())?;
            cx.count(1);
        }
        let empty = Gemm { batch: 3, ..Gemm::packed(5, 7, 0, input) };
        let strided = Gemm { d: Output { leading: 9, batch_stride: 50 }, ..empty.clone() };
        for gemm in [empty, strided] {
            for epilogue in Epilogue::ALL {
                let gemm = Gemm { epilogue, ..gemm.clone() };
                check(cx, &blas, &gemm, 0, Added::OutOfPlace, &mut rng)?;
                let gemm = Gemm { beta: -0.5, ..gemm };
                check(cx, &blas, &gemm, 0, Added::OutOfPlace, &mut rng)?;
                check(cx, &blas, &gemm, 0, Added::InPlace, &mut rng)?;
            }
        }
    }
    Ok(())
}

fn added(cx: &Context<'_>) -> anyhow::Result<()> {
    let blas = BlasLt::new(cx.runtime())?;
    let mut rng = cx.rng();
    for input in ELEMENTS {
        for output_type in outputs(input) {
            let gemm = Gemm { output_type, batch: 2, beta: 0.75, ..Gemm::packed(33, 40, 24, input) };
            check(cx, &blas, &gemm, 0, Added::OutOfPlace, &mut rng)?;
            check(cx, &blas, &gemm, 0, Added::InPlace, &mut rng)?;
        }
        // Poison in C, which beta 0 must not read.
        let gemm = Gemm::packed(33, 40, 24, input);
        let mut host = Host::draw(&gemm, &mut rng);
        host.c.fill(POISON);
        let d = decode(&launch(&blas, &gemm, &host, 0, Added::InPlace)?, dtype(input));
        errors(&d, &host.product(&gemm)).within(&tolerance(input, gemm.epilogue)).with_context(|| gemm.to_string())?;
    }
    Ok(())
}

fn tf32(cx: &Context<'_>) -> anyhow::Result<()> {
    let blas = BlasLt::new(cx.runtime())?;
    let mut rng = cx.rng();
    let size = if cx.reduced() { 64 } else { 256 };
    let strict = Gemm::packed(size, size, size, ElementType::F32);
    let fast = Gemm { compute: Compute::Tf32, ..strict.clone() };
    let host = Host::draw(&strict, &mut rng);
    let expected = host.product(&strict);
    let error = |gemm: &Gemm| -> anyhow::Result<f64> {
        let d = decode(&launch(&blas, gemm, &host, 0, Added::OutOfPlace)?, DType::F32);
        Ok(errors(&d, &expected).relative_l2)
    };
    let (strict, fast) = (error(&strict)?, error(&fast)?);
    ensure!(strict <= 2e-6, "strict float32 is off by {strict:.2e}: TF32 was used");
    ensure!(fast <= 2e-3, "TF32 is off by {fast:.2e}");
    ensure!(fast > 2e-5, "TF32 was asked for, and the error is {fast:.2e}: it was not used");
    Ok(())
}

fn fifty_launches(cx: &Context<'_>) -> anyhow::Result<()> {
    let blas = BlasLt::new(cx.runtime())?;
    let mut rng = cx.rng();
    for input in ELEMENTS {
        // Few tiles and a long sum: what tempts the library to split it.
        let gemm = Gemm::packed(64, 64, if cx.reduced() { 512 } else { 16_384 }, input);
        let host = Host::draw(&gemm, &mut rng);
        let first = launch(&blas, &gemm, &host, 0, Added::OutOfPlace)?;
        for number in 1..cx.scaled(50, 3) {
            let again = launch(&blas, &gemm, &host, 0, Added::OutOfPlace)?;
            ensure!(again == first, "{gemm}: launch {number} differs from the first");
        }
    }
    Ok(())
}

fn captured(cx: &Context<'_>) -> anyhow::Result<()> {
    let runtime = cx.runtime();
    let blas = BlasLt::new(runtime)?;
    let mut rng = cx.rng();
    for input in ELEMENTS {
        // Another size than any case before: its kernels may not be loaded when the capture begins.
        let gemm = Gemm { batch: 3, epilogue: Epilogue::Bias, ..Gemm::packed(96, 80, 72, input) };
        let host = Host::draw(&gemm, &mut rng);
        let plan = blas.plan(&gemm, Preference::default())?;
        let [a, b, bias] = [&host.a, &host.b, &host.bias].map(|bytes| runtime.upload(bytes));
        let (a, b, bias) = (a?, b?, bias?);
        let d = runtime.upload(&vec![POISON; host.c.len()])?;
        let workspace = Guarded::poisoned(runtime, plan.workspace_bytes(), 0)?;
        let operands = GemmOperands { a: a.ptr(), b: b.ptr(), c: None, d: d.ptr(), bias: Some(bias.ptr()) };
        let graph = runtime.capture(|_| {
            // SAFETY: all buffers live until the reads below have synchronised.
            unsafe { plan.launch(&operands, workspace.ptr()) }.map_err(runtime_error)
        })?;
        let eager = launch(&blas, &gemm, &host, 0, Added::OutOfPlace)?;
        for _ in 0..3 {
            d.fill(POISON)?;
            graph.launch()?;
            ensure!(d.read::<u8>()? == eager, "{gemm}: a replay differs from a launch");
        }
    }
    Ok(())
}

fn runtime_error(error: Error) -> curt::Error {
    match error {
        Error::Runtime(error) => error,
        other => panic!("a launch that fits failed: {other}"),
    }
}

/// Launches that must be refused, with a word that each must tell.
fn refusals(cx: &Context<'_>) -> anyhow::Result<()> {
    let runtime = cx.runtime();
    let blas = BlasLt::new(runtime)?;
    let gemm = Gemm { epilogue: Epilogue::Bias, ..Gemm::packed(16, 16, 16, ElementType::F32) };
    let plan = blas.plan(&gemm, Preference { alignment: Alignment::uniform(16), ..Preference::default() })?;
    let memory = |runtime: &Runtime| runtime.upload(&vec![POISON; 1024]);
    let (a, b, d, bias) = (memory(runtime)?, memory(runtime)?, memory(runtime)?, memory(runtime)?);
    let workspace = runtime.alloc(plan.workspace_bytes())?;
    let good = GemmOperands { a: a.ptr(), b: b.ptr(), c: None, d: d.ptr(), bias: Some(bias.ptr()) };
    let moved = DevicePtr::new(b.ptr().address() + 4, 1024);
    for (operands, word) in [
        (GemmOperands { a: a.ptr().slice(0, 1020)?, ..good }, "A needs 1024"),
        (GemmOperands { b: moved, ..good }, "not aligned to the 16 bytes"),
        (GemmOperands { d: DevicePtr::default(), ..good }, "D needs 1024"),
        (GemmOperands { bias: None, ..good }, "bias was not given"),
    ] {
        // SAFETY: the launch is to be refused before it touches memory, which is what is tested.
        match unsafe { plan.launch(&operands, workspace.ptr()) } {
            Err(error @ Error::Operands { .. }) => ensure!(error.to_string().contains(word), "no `{word}` in: {error}"),
            Err(other) => bail!("another error: {other}"),
            Ok(()) => bail!("a launch that does not fit was accepted: {word}"),
        }
    }
    ensure!(d.read::<u8>()?.iter().all(|&byte| byte == POISON), "a refused launch wrote");
    let bad = Gemm { a: Matrix::row_major(3, 0), ..gemm };
    match blas.plan(&bad, Preference::default()) {
        Err(Error::Invalid { .. }) => Ok(()),
        other => bail!("a bad leading dimension gave {other:?}"),
    }
}

fn planned_once(cx: &Context<'_>) -> anyhow::Result<()> {
    let blas = BlasLt::new(cx.runtime())?;
    let gemm = Gemm::packed(32, 32, 32, ElementType::F16);
    for _ in 0..3 {
        blas.plan(&gemm, Preference::default())?;
    }
    ensure!(blas.cached_plans() == 1, "{} plans of one description", blas.cached_plans());
    blas.plan(&Gemm { alpha: 2.0, ..gemm }, Preference::default())?;
    ensure!(blas.cached_plans() == 2, "{} plans of two descriptions", blas.cached_plans());
    Ok(())
}
