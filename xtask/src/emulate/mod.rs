//! `emulate`: the text of kernels for tensor cores, compiled for this machine's processor and run against float64. It needs no GPU.
//!
//! `tests/emulation` has C++ in the place of the instructions that the text has in PTX. So what is looked at is everything but them, and
//! but time: which rows and keys, masks, biases, the running softmax, barriers, rings, tiles, addresses and swizzles.

mod compiler;
mod device;

use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use std::{fs, io};

use anyhow::Context as _;
use cuattn_kernels::flash::mma::{Demand as MmaDemand, Limits, Mma};
use cuattn_kernels::flash::simt::{Demand as SimtDemand, Simt};
use cuattn_kernels::flash::sm90::{Demand, Edges, Sm90};
use cuattn_kernels::flash::sm90_f32::Sm90F32;
use cuattn_kernels::varlen::{self, KeyStorage, RowBoxes};
use cuattn_kernels::{BiasKind, Element, Source};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};

use crate::emulate::compiler::{Compiler, emulated};
pub(crate) use crate::emulate::device::{EmulatedGpu, ModuleArgs, make_module};
use crate::repository;
use crate::step::Outcome;
use crate::table::table;

/// Runs kernels' text on this machine's processor, instruction by instruction, and compares with float64. Needs a C++ compiler, no GPU
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only kernels whose name contains this
    #[arg(long, value_name = "SUBSTRING")]
    filter: Option<String>,
    /// Instead of a kernel's own problems this one, such as `heads=8/2 len=300/400 causal scale=6` (tests/emulation/problem.h)
    #[arg(long, value_name = "WORDS", conflicts_with = "random")]
    problem: Option<String>,
    /// Instead of a kernel's own problems so many random ones
    #[arg(long, value_name = "COUNT")]
    random: Option<usize>,
    /// Seed of the random problems; from the clock without it
    #[arg(long, requires = "random")]
    seed: Option<u64>,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut kernels = kernels();
    kernels.retain(|kernel| kernel.name.contains(args.filter.as_deref().unwrap_or_default()));
    if let Some(problem) = args.problem {
        kernels.iter_mut().for_each(|kernel| kernel.problems = vec![problem.clone()]);
    }
    if let Some(count) = args.random {
        let clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_secs());
        let seed = args.seed.unwrap_or_else(clock);
        println!("random problems of seed {seed}");
        let mut rng = StdRng::seed_from_u64(seed);
        for kernel in &mut kernels {
            kernel.problems = (0..count).map(|_| random_problem(&kernel.source, &mut rng)).collect();
        }
    }
    Ok(emulate(&kernels)?.told())
}

/// As a step of `ci`.
pub(crate) fn check() -> anyhow::Result<Outcome> {
    emulate(&kernels())
}

/// A kernel, and problems for it.
struct Emulated {
    name: String,
    source: Source,
    problems: Vec<String>,
}

/// Every kind of tile of the table, every option once, and the ways to find rows.
fn kernels() -> Vec<Emulated> {
    let mut all = Vec::new();
    let mut push = |name: &str, source: Source, problems: &[&str]| {
        let problems = problems.iter().map(|&problem| problem.to_owned()).collect();
        all.push(Emulated { name: name.to_owned(), source, problems });
    };
    let bf16 = Element::Bf16;
    let causal = Demand { edges: Edges::CAUSAL, ..Demand::PLENTY };
    let medium = Demand { q_len: 1024, ..causal };
    let short = Demand { q_len: 64, ..causal };
    let few = Demand { q_len: 512, heads: 8, ..causal };
    let window = Demand { edges: Edges { left: true, right: true }, ..medium };
    let left = Demand { edges: Edges { left: true, right: false }, ..medium };
    let of = |d, demand| Sm90::plain(bf16, d, d, demand);
    let dense = [
        "heads=4/2 len=300/300 causal blocks=2",
        "heads=2/1 len=129/200 batch=2 causal blocks=3 scale=6",
        "heads=2/2 len=200/100 causal",
    ];
    // Scores that grow by 12 are made good; those that grow by 100 take the tile a second time.
    let growing = [
        "heads=2/1 len=200/520 causal growth=12",
        "heads=4/1 len=130/650 causal growth=100 blocks=2",
        "heads=2/1 len=200/200 causal nan=150",
    ];
    push("sm90 d64", of(64, medium).source(), &dense);
    push("sm90 d64 f16", Sm90::plain(Element::F16, 64, 64, medium).source(), &growing);
    push("sm90 d128 f16", Sm90::plain(Element::F16, 128, 128, causal).source(), &growing);
    push("sm90 d64 tall", of(64, causal).source(), &dense);
    push("sm90 d64 few tiles", of(64, few).source(), &dense);
    push("sm90 d128", of(128, causal).source(), &dense);
    push("sm90 d128 few tiles", of(128, few).source(), &dense);
    // The second has tiles without keys.
    push(
        "sm90 d256",
        of(256, causal).source(),
        &["heads=2/1 len=200/200 causal blocks=2", "heads=2/1 len=315/2 causal blocks=2 scale=8"],
    );
    push("sm90 d192/128", Sm90::plain(bf16, 192, 128, causal).source(), &["heads=2/1 len=200/200 causal blocks=2"]);
    push(
        "sm90 d64 window",
        of(64, window).source(),
        &["heads=4/2 len=300/300 causal window=100 blocks=2", "heads=2/1 len=260/400 causal window=3 blocks=2"],
    );
    push("sm90 d64 left edge", of(64, left).source(), &["heads=2/1 len=260/300 window=70 blocks=2"]);
    push(
        "sm90 d64 softcap",
        of(64, Demand { softcap: true, ..causal }).source(),
        &["heads=2/1 len=200/300 causal scale=6"],
    );
    for (pack, heads) in [(4, "heads=8/2 len=20/300 causal blocks=2"), (8, "heads=8/1 len=33/100 causal scale=6")] {
        push(&format!("sm90 d64, {pack} heads"), Sm90 { pack, ..of(64, medium) }.source(), &[heads]);
    }
    for (name, bias) in [("bias", BiasKind::Element), ("f32 bias", BiasKind::F32), ("boolean bias", BiasKind::Boolean)]
    {
        // The second key lies in the block that tiles begin with, whose rows have no maximum yet.
        let problems = ["heads=2/1 len=200/400 blocks=2 scale=6 nan=7", "heads=2/1 len=70/300 nan=290"];
        if let Some(sm90) = of(64, Demand::PLENTY).with_bias(bias) {
            push(&format!("sm90 d64 {name}"), sm90.source(), &problems);
        }
        if let Some(sm90) = of(128, causal).with_bias(bias) {
            push(&format!("sm90 d128 {name}"), sm90.source(), &["heads=2/1 len=130/300 causal scale=6 nan=40"]);
        }
    }
    let packed = [
        "heads=8/2 len=40/40,0/5,7/0,1/1,64/64,65/65,33/100,100/33,3/70 causal blocks=2",
        "heads=8/2 len=20/20,31/31,5/5,64/64,1/1,17/17,0/0,12/40,200/300 causal scale=4",
        // Warps of a tile find out one after another that it must be done again.
        "heads=8/2 len=0/5,2/33,17/100,65/200 causal scale=4 growth=12",
    ];
    for (name, pack, demand) in [
        ("short", 1, short),
        ("short, 4 heads", 4, short),
        ("2 heads", 2, medium),
        ("few tiles, 4 heads", 4, Demand { q_len: 128, heads: 1, ..causal }),
    ] {
        let sm90 = RowBoxes::Ragged.fit(Sm90 { pack, ..of(64, demand) });
        push(&format!("varlen sm90 d64 {name}"), varlen::sm90(&sm90, RowBoxes::Ragged, None), &packed);
    }
    let sm90 = RowBoxes::Ragged.fit(of(64, medium));
    for page_size in [16, 256] {
        let source = varlen::sm90(&sm90, RowBoxes::Ragged, Some(page_size));
        push(&format!("varlen sm90 d64, pages of {page_size}"), source, &packed);
    }
    let h200 = Limits { compute_major: 9, shared_bytes_per_block: 232_448, shared_bytes_per_multiprocessor: 233_472 };
    for (d, rows, keys) in [(64, 4096, 4096), (64, 4096, 64), (128, 4096, 4096), (128, 64, 4096), (256, 4096, 4096)] {
        if let Some(mma) = Mma::plain(bf16, d, d).with_best_tile(MmaDemand { rows, keys }, h200) {
            push(
                &format!("mma d{d} {}", mma.tile),
                mma.source(),
                &[
                    "heads=2/1 len=150/200 causal scale=6",
                    "heads=2/1 len=70/300 window=90",
                    "heads=2/1 len=130/650 causal growth=100",
                    "heads=2/1 len=200/200 causal nan=150",
                ],
            );
        }
    }
    for (name, bias) in [("bias", BiasKind::Element), ("boolean bias", BiasKind::Boolean)] {
        let biased = Mma { bias, bias_staged: true, ..Mma::plain(bf16, 64, 64) };
        if let Some(mma) = biased.with_best_tile(MmaDemand { rows: 4096, keys: 4096 }, h200) {
            push(&format!("mma d64 {name}"), mma.source(), &["heads=2/1 len=130/200 scale=6 nan=7"]);
        }
    }
    if let Some(mma) = Mma::plain(bf16, 64, 64).with_best_tile(MmaDemand { rows: 64, keys: 4096 }, h200) {
        let problem = "heads=4/2 len=40/40,0/5,7/0,1/1,65/65,33/100 causal";
        push("varlen mma d64", varlen::mma(&mma, KeyStorage::Packed), &[problem]);
        push("varlen mma d64, pages", varlen::mma(&mma, KeyStorage::Paged), &[problem]);
    }
    let float32 = [
        "heads=2/1 len=150/200 batch=2 causal blocks=2",
        "heads=2/1 len=70/300 window=90 scale=6",
        // Tiles without keys.
        "heads=2/2 len=193/33 causal blocks=2",
    ];
    for d in [64, 128] {
        let plain = Sm90F32::plain(d, d);
        push(&format!("sm90_f32 d{d}"), plain.source(), &float32);
        push(&format!("sm90_f32 d{d} softcap"), Sm90F32 { softcap: true, ..plain.clone() }.source(), &float32);
        if let Some(biased) = plain.with_bias(BiasKind::F32) {
            push(&format!("sm90_f32 d{d} bias"), biased.source(), &["heads=2/1 len=130/200"]);
        }
    }
    let simt = |element, dim, rows| {
        let demand = SimtDemand { rows, kv_heads: 64, multiprocessors: 132, shared_bytes_per_block: 232_448 };
        Simt::plain(element, dim, dim, demand)
    };
    let any = ["heads=2/1 len=70/90 causal dim=64/64", "heads=2/1 len=70/90 causal nan=60 dim=40/57"];
    push("simt f32 d64", simt(Element::F32, 64, 4096).source(), &any[..1]);
    push("simt f32 d57", simt(Element::F32, 57, 4096).source(), &any[1..]);
    push("simt bf16 d57, few rows", simt(bf16, 57, 1).source(), &any[1..]);
    push("simt f32 d264", simt(Element::F32, 264, 4096).source(), &["heads=1/1 len=40/70 window=30 dim=264/130"]);
    all
}

/// A problem that a kernel of such constants takes: lengths around the edges of tiles half of the time.
fn random_problem(source: &Source, rng: &mut StdRng) -> String {
    let constant =
        |name: &str| source.defines().iter().find(|(other, _)| *other == name).map(|(_, value)| value.as_str());
    let is_packed = source.root().starts_with("varlen/");
    let is_float32 = constant("ELEMENT") == Some("0");
    let is_biased = constant("BIAS").is_some_and(|bias| bias != "0");
    let mut pick = |list: &[usize]| list.choose(rng).copied().unwrap_or(1);
    let kv_heads = pick(&[1, 1, 2]);
    let heads = kv_heads * constant("PACK").and_then(|pack| pack.parse().ok()).unwrap_or(1) * pick(&[1, 1, 2, 3]);
    let scale = pick(if is_float32 { &[1, 3] } else { &[1, 1, 4, 8] });
    let mut words = vec![format!("heads={heads}/{kv_heads} blocks={} scale={scale}", pick(&[1, 2, 3]))];
    if constant("RIGHT_EDGE") != Some("0") && pick(&[0, 1, 1]) == 1 {
        words.push("causal".to_owned());
    }
    // Kernels that know where rows end know also that there is no window.
    if constant("LEFT_EDGE") != Some("0") && pick(&[0, 1]) == 1 {
        words.push(format!("window={}", pick(&[0, 3, 30, 70, 200])));
    }
    if !is_float32 && pick(&[0, 0, 0, 1]) == 1 {
        words.push(format!("growth={}", pick(&[5, 12, 60])));
    }
    if constant("HEAD_DIM").is_none() && constant("EXACT").is_none() {
        words.push(format!("dim={}/{}", pick(&[1, 8, 33, 57, 64]), pick(&[1, 8, 33, 57, 64])));
    }
    const EDGES: &[usize] = &[1, 2, 7, 63, 64, 65, 127, 128, 129, 191, 192, 193, 255, 256, 257];
    let length = |most: usize, rng: &mut StdRng| {
        if rng.random_bool(0.5) { *EDGES.choose(rng).unwrap_or(&1) % most } else { rng.random_range(0..most) }
    };
    if is_packed {
        let sequences = rng.random_range(1..10);
        let lengths: Vec<_> = (0..sequences).map(|_| format!("{}/{}", length(131, rng), length(201, rng))).collect();
        words.push(format!("len={}", lengths.join(",")));
    } else {
        let (q_len, kv_len) = (length(330, rng).max(1), length(330, rng).max(1));
        let batch = if is_biased { 1 } else { rng.random_range(1..3) };
        words.push(format!("len={q_len}/{kv_len} batch={batch}"));
        // A head with such a value is not the float32 path's.
        if source.root() != "flash/sm90_f32.cu" && rng.random_ratio(1, 4) {
            words.push(format!("nan={}", rng.random_range(0..kv_len)));
        }
    }
    words.join(" ")
}

fn emulate(kernels: &[Emulated]) -> anyhow::Result<Outcome> {
    let compiler = match Compiler::find() {
        Ok(compiler) => compiler,
        Err(why) => return Ok(Outcome::NotRun(why.to_owned())),
    };
    let folder = repository::target()?.join("emulation");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
    if kernels.is_empty() {
        return Ok(Outcome::Failed("no kernel has such a name".to_owned()));
    }
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::new());
    let work = || -> anyhow::Result<()> {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(kernel) = kernels.get(number) else { return Ok(()) };
            let begun = Instant::now();
            let lines = run_problems(&compiler, kernel, &folder)?;
            let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
            results.push((number, lines, begun.elapsed()));
        }
    };
    std::thread::scope(|scope| {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().unwrap_or_else(|_| anyhow::bail!("a worker panicked")))
    })?;
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(number, ..)| *number);
    let mut shown = table(&["kernel", "problem", "seconds", ""], 2);
    let (mut ran, mut failed) = (0, Vec::new());
    for (number, lines, took) in results {
        for (problem, line) in lines {
            ran += 1;
            let name = &kernels[number].name;
            if !line.starts_with("ok") {
                failed.push(format!("{name}, {problem}: {line}"));
            }
            shown.add_row([name.clone(), problem, format!("{:.1}", took.as_secs_f64()), line]);
        }
    }
    println!("{shown}");
    Ok(if failed.is_empty() {
        Outcome::Passed(format!("{ran} problems through {} kernels, by {}", kernels.len(), compiler.command))
    } else {
        Outcome::Failed(format!("{} of {ran} problems: {}", failed.len(), failed.join("; ")))
    })
}

/// Compiles a kernel and runs its problems: each of them, and the line that it printed.
fn run_problems(compiler: &Compiler, kernel: &Emulated, folder: &Path) -> anyhow::Result<Vec<(String, String)>> {
    let name: String = kernel.name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    let (text, program) = (folder.join(format!("{name}.cpp")), folder.join(&name));
    fs::write(&text, emulated(&kernel.source.assemble(), PROBLEM))
        .with_context(|| format!("cannot write {}", text.display()))?;
    let compiled = compiler.compile(&text, &program, &[])?;
    if !compiled.status.success() {
        let errors = String::from_utf8_lossy(&compiled.stderr);
        let first = errors.lines().find(|line| line.contains("error")).unwrap_or("no error was printed");
        return Ok(vec![("-".to_owned(), format!("not compiled: {first} ({})", text.display()))]);
    }
    kernel.problems.iter().map(|problem| Ok((problem.clone(), output_of(&program, problem)?))).collect()
}

/// What follows a kernel's text here.
const PROBLEM: &str = "#include \"problem.h\"\n";

fn output_of(program: &Path, problem: &str) -> io::Result<String> {
    let output = Command::new(program).args(problem.split_whitespace()).output()?;
    let line = String::from_utf8_lossy(&output.stdout).lines().last().unwrap_or_default().to_owned();
    Ok(if output.status.success() { line } else { format!("{line} ({})", output.status) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_kernel_has_assembly_that_is_not_replaced() {
        for kernel in kernels() {
            let text = emulated(&kernel.source.assemble(), PROBLEM);
            assert!(!text.contains("asm"), "{}", kernel.name);
            assert!(!kernel.problems.is_empty(), "{}", kernel.name);
        }
    }
}
