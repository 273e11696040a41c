//! The device runtime: everything of `curt` that only a GPU can show.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use curt::{
    CacheOptions, CompileCache, DevicePtr, Error, Event, FunctionOptions, KernelArgs, Launch, LaunchViolation,
    ModuleSource, OutOfBounds, Runtime, RuntimeOptions, Swizzle, TensorMap, TensorMapType, TensorMapViolation,
};

use crate::{Context, Suite};

type Outcome = anyhow::Result<()>;

/// The suite.
pub fn suite() -> Suite {
    // Some of its cases measure the host's time.
    Suite::new("runtime")
        .alone()
        .case("launch with a list of arguments", launch_list)
        .case("launch with one struct", launch_struct)
        .case("launch with more arguments than are inline", launch_many)
        .case("launches against the rules are refused", launch_refusals)
        .case("function attributes, occupancy and opt-in shared memory", function_properties)
        .case("cluster launch", cluster_launch)
        .case("cooperative launch", cooperative_launch)
        .case("programmatic dependent launch", dependent_launch)
        .case("launch overhead", launch_overhead)
        .case("copies", copies)
        .case("pinned copies", pinned_copies)
        .case("copies out of range are refused", copy_refusals)
        .case("zero bytes", zero_bytes)
        .case("sizes that overflow are refused", size_overflow)
        .case("1 TiB is out of memory, and the runtime goes on", out_of_memory)
        .case("alignment of allocations", alignment)
        .case("the pool is reused and counted", pool_reuse)
        .case("raw allocations", raw_allocations)
        .case("the BLAS workspace is one", blas_workspace)
        .case("compile errors name the line", compile_errors)
        .case("missing entries are refused", missing_entries)
        .case("cache tiers", cache_tiers)
        .case("modules are unloaded", unload)
        .case("a foreign context and stream", foreign_handles)
        .case("a stream of cudarc", cudarc_stream)
        .case("two runtimes on one device", two_runtimes)
        .case("eight threads on one runtime", eight_threads)
        .case("events and timer", events)
        .case("tensor maps are encoded and load their box", tensor_maps)
        .case("tensor maps against the rules are refused", tensor_map_refusals)
        .case("capture and replay", capture_and_replay)
        .case("capture refuses what cannot be captured", capture_refusals)
        .case("capture ends cleanly when its work fails or panics", capture_failures)
        .case("a capture that another library breaks is told", capture_invalidated)
        .case("buffers dropped in a capture are freed after it", capture_drop)
}

const BASIC: &str = r#"
extern "C" __global__ void saxpy(float a, const float* x, float* y, unsigned count) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) y[i] = a * x[i] + y[i];
}

struct Parameters { unsigned long long out; double factor; int offset; unsigned count; };

extern "C" __global__ void fill(const Parameters p) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < p.count) ((double*)p.out)[i] = p.factor * i + p.offset;
}

extern "C" __global__ void sum20(
    unsigned long long* out, int a, int b, int c, int d, int e, int f, int g, int h, int i, int j, int k, int l, int m, int n, int o,
    int p, int q, int r, int s) {
    long long digits[19] = {a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s};
    long long sum = 0;
    for (int at = 0; at < 19; at++) sum += digits[at] * (at + 1);
    *out = sum;
}

extern "C" __global__ void __launch_bounds__(128) reverse(unsigned* x) {
    extern __shared__ unsigned staged[];
    unsigned last = blockDim.x - 1;
    staged[last - threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = staged[threadIdx.x];
}

extern "C" __global__ void touch_last(unsigned* x, unsigned word) {
    extern __shared__ unsigned staged[];
    staged[word] = 77;
    __syncthreads();
    *x = staged[word];
}

extern "C" __global__ void increment(unsigned* x) { atomicAdd(x, 1u); }

extern "C" __global__ void nothing() {}
"#;

fn basic() -> ModuleSource {
    ModuleSource::new("basic.cu", BASIC).entry("saxpy").entry("fill")
}

/// Runs `entry` of the basic module with one block of one thread and one address.
fn launch_on(runtime: &Runtime, entry: &str, memory: DevicePtr) -> Outcome {
    let function = runtime.load(&basic())?.function(entry)?;
    let address = memory.address();
    // SAFETY: the kernels that this is used with take one address and touch its first word, which the callers own. The basic module
    // stays loaded in its runtime.
    unsafe { runtime.launch(&function, &Launch::new([1, 1, 1], [1, 1, 1]), &KernelArgs::new().arg(&address)) }?;
    Ok(())
}

fn launch_list(cx: &Context<'_>) -> Outcome {
    let runtime = cx.runtime();
    let saxpy = runtime.load(&basic())?.function("saxpy")?;
    for count in [1u32, 255, 256, 257, 100_003] {
        let x: Vec<f32> = (0..count).map(|i| i as f32).collect();
        let (device_x, device_y) = (runtime.upload(&x)?, runtime.upload(&vec![0.5f32; count as usize])?);
        let (a, x_address, y_address) = (3.0f32, device_x.ptr().address(), device_y.ptr().address());
        let arguments = KernelArgs::new().arg(&a).arg(&x_address).arg(&y_address).arg(&count);
        // SAFETY: the arguments are the kernel's parameters, and both buffers hold `count` floats.
        unsafe { runtime.launch(&saxpy, &Launch::new([count.div_ceil(256), 1, 1], [256, 1, 1]), &arguments) }?;
        let y = device_y.read::<f32>()?;
        ensure!(y.iter().zip(&x).all(|(&y, &x)| y == 3.0f32.mul_add(x, 0.5)), "wrong with {count} elements");
    }
    Ok(())
}

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Parameters {
    out: u64,
    factor: f64,
    offset: i32,
    count: u32,
}

fn launch_struct(cx: &Context<'_>) -> Outcome {
    let runtime = cx.runtime();
    let fill = runtime.load(&basic())?.function("fill")?;
    let out = runtime.alloc_array::<f64>(1000)?;
    let parameters = Parameters { out: out.ptr().address(), factor: 0.25, offset: -7, count: 1000 };
    // SAFETY: the struct has the layout of the kernel's, and the buffer holds 1000 doubles.
    unsafe { runtime.launch(&fill, &Launch::new([8, 1, 1], [128, 1, 1]), &KernelArgs::new().arg(&parameters)) }?;
    let values = out.read::<f64>()?;
    ensure!(values.iter().enumerate().all(|(i, &value)| value == 0.25 * i as f64 - 7.0));
    Ok(())
}

fn launch_many(cx: &Context<'_>) -> Outcome {
    let runtime = cx.runtime();
    let sum = runtime.load(&basic())?.function("sum20")?;
    let out = runtime.alloc(8)?;
    let address = out.ptr().address();
    let digits: Vec<i32> = (0..19).map(|i| i * i - 40).collect();
    let arguments = digits.iter().fold(KernelArgs::new().arg(&address), |arguments, digit| arguments.arg(digit));
    // SAFETY: twenty arguments for twenty parameters, and the buffer holds the result.
    unsafe { runtime.launch(&sum, &Launch::new([1, 1, 1], [1, 1, 1]), &arguments) }?;
    let expected: i64 = digits.iter().zip(1i64..).map(|(&digit, weight)| i64::from(digit) * weight).sum();
    ensure!(out.read::<i64>()? == [expected]);
    Ok(())
}

fn launch_refusals(cx: &Context<'_>) -> Outcome {
    let runtime = cx.runtime();
    let module = runtime.load(&basic())?;
    let (reverse, nothing) = (module.function("reverse")?, module.function("nothing")?);
    let base = Launch::new([4, 1, 1], [32, 1, 1]);
    let untouched = runtime.upload(&[9u32; 128])?;
    let address = untouched.ptr().address();
    let refused = |function, launch: Launch| -> anyhow::Result<LaunchViolation> {
        // SAFETY: nothing is launched, which is what this checks.
        match unsafe { runtime.launch(function, &launch, &KernelArgs::new().arg(&address)) } {
            Err(Error::InvalidLaunch { why, .. }) => Ok(why),
            other => bail!("{launch:?} gave {other:?}"),
        }
    };
    use LaunchViolation as Why;
    ensure!(matches!(refused(&nothing, Launch::new([0, 1, 1], [1, 1, 1]))?, Why::ZeroDimension { .. }));
    ensure!(matches!(refused(&nothing, Launch::new([1, 1, 1], [1, 0, 1]))?, Why::ZeroDimension { .. }));
    ensure!(matches!(refused(&reverse, Launch::new([1, 1, 1], [129, 1, 1]))?, Why::BlockTooLarge { limit: 128, .. }));
    ensure!(matches!(refused(&nothing, Launch::new([1, 1 << 16, 1], [1, 1, 1]))?, Why::GridTooLarge { .. }));
    ensure!(matches!(refused(&nothing, base.shared_bytes(60 << 10))?, Why::SharedTooLarge { .. }));
    if runtime.capabilities().compute_capability.0 >= 9 {
        ensure!(matches!(refused(&nothing, base.cluster([3, 1, 1]))?, Why::PartialCluster { .. }));
        ensure!(matches!(
            refused(&nothing, Launch::new([32, 1, 1], [1, 1, 1]).cluster([32, 1, 1]))?,
            Why::ClusterTooLarge { .. }
        ));
    } else {
        ensure!(matches!(refused(&nothing, base.cluster([2, 1, 1]))?, Why::NeedsHopper { .. }));
        ensure!(matches!(refused(&nothing, base.pdl())?, Why::NeedsHopper { .. }));
    }
    ensure!(untouched.read::<u32>()? == [9; 128], "a refused launch ran");
    Ok(())
}

fn function_properties(cx: &Context<'_>) -> Outcome {
    let runtime = cx.runtime();
    let device = runtime.capabilities();
    let module = runtime.load(&basic())?;
    let reverse = module.function("reverse")?;
    let attributes = reverse.attributes();
    ensure!(attributes.threads_per_block == 128, "{attributes:?}");
    ensure!(attributes.registers > 0 && attributes.local_bytes == 0, "{attributes:?}");
    let blocks = reverse.occupancy(128, 0)?;
    ensure!((1..=32).contains(&blocks), "{blocks} blocks");
    ensure!(reverse.occupancy(128, device.shared_bytes_per_block)? <= 2);

    let most = device.shared_bytes_per_block;
    let function = module.function_with_shared("touch_last", most)?;
    ensure!(function.shared_limit() as usize == most);
    let out = runtime.alloc(4)?;
    let (address, word) = (out.ptr().address(), (most / 4 - 1) as u32);
    let launch = Launch::new([1, 1, 1], [1, 1, 1]).shared_bytes(most as u32);
    // SAFETY: the kernel writes one word of the buffer, and within the shared memory asked for.
    unsafe { runtime.launch(&function, &launch, &KernelArgs::new().arg(&address).arg(&word)) }?;
    ensure!(out.read::<u32>()? == [77]);
    // Whoever takes the same kernel for less does not take it away from the first.
    module.function_with_shared("touch_last", 1024)?;
    // SAFETY: as above.
    unsafe { runtime.launch(&function, &launch, &KernelArgs::new().arg(&address).arg(&word)) }?;
    runtime.synchronize()?;
    match module.function_with_shared("touch_last", most + 1) {
        Err(Error::InvalidLaunch { why: LaunchViolation::SharedBeyondDevice { limit, .. }, .. }) => {
            ensure!(limit == most)
        }
        other => bail!("{other:?}"),
    }
    Ok(())
}

const CLUSTER: &str = r#"
extern "C" __global__ void ranks(unsigned* out) {
    unsigned rank, size;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
    out[blockIdx.x] = size * 100 + rank;
}
"#;

fn cluster_launch(cx: &Context<'_>) -> Outcome {
    let runtime = cx.runtime();
    if runtime.capabilities().compute_capability.0 < 9 {
        // That it is refused here is part of the refusals.
        return Ok(());
    }
    let module = runtime.load(&ModuleSource::new("cluster.cu", CLUSTER))?;
    for size in [1u32, 2, 4, 8] {
        let ranks = module.function("ranks")?;
        check_ranks(runtime, &ranks, size)?;
    }
    let options = FunctionOptions { non_portable_cluster: true, ..FunctionOptions::default() };
    check_ranks(runtime, &module.function_with("ranks", options)?, 16)
}

fn check_ranks(runtime: &Runtime, ranks: &curt::Function, size: u32) -> Outcome {
    let out = runtime.alloc_array::<u32>(32)?;
    let address = out.ptr().address();
    let launch = Launch::new([32, 1, 1], [32, 1, 1]).cluster([size, 1, 1]);
    // SAFETY: the kernel writes one word for each of 32 blocks.
    unsafe { runtime.launch(ranks, &launch, &KernelArgs::new().arg(&address)) }
        .with_context(|| format!("cluster of {size}"))?;
    let expected: Vec<u32> = (0..32).map(|block| size * 100 + block % size).collect();
    ensure!(out.read::<u32>()? == expected, "cluster of {size}");
    Ok(())
}

const COOPERATIVE: &str = r#"
extern "C" __global__ void all_arrive(unsigned* counter, unsigned* seen) {
    if (threadIdx.x == 0) {
        atomicAdd(counter, 1u);
        while (atomicAdd(counter, 0u) < gridDim.x) {}
        seen[blockIdx.x] = 1;
    }
}
"#;

fn cooperative_launch(cx: &Context<'_>) -> Outcome {
    let runtime = cx.runtime();
    let function = runtime.load(&ModuleSource::new("cooperative.cu", COOPERATIVE))?.function("all_arrive")?;
    let blocks = runtime.capabilities().multiprocessors;
    let counter = runtime.alloc_zeroed(4)?;
    let seen = runtime.alloc_zeroed(4 * blocks as usize)?;
    let (counter_address, seen_address) = (counter.ptr().address(), seen.ptr().address());
    let arguments = KernelArgs::new().arg(&counter_address).arg(&seen_address);
    // SAFETY: the buffers hold what the kernel writes; all blocks run at once, so none waits for ever.
    unsafe { runtime.launch(&function, &Launch::new([blocks, 1, 1], [32, 1, 1]).cooperative(), &arguments) }?;
    ensure!(seen.read::<u32>()?.iter().all(|&seen| seen == 1));
    Ok(())
}

const DEPENDENT: &str = r#"
extern "C" __global__ void produce(unsigned* x, unsigned count, unsigned value) {
    asm volatile("griddepcontrol.launch_dependents;");
    long long start = clock64();
    while (clock64() - start < 20000) {}
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) x[i] = value;
}

extern "C" __global__ void consume(const unsigned* x, unsigned* y, unsigned count) {
    asm volatile("griddepcontrol.wait;" ::: "memory");
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) y[i] = x[i] + 1;
}
"#;

fn dependent_launch(cx: &Context<'_>) -> Outcome {
    let runtime = cx.runtime();
    if runtime.capabilities().compute_capability.0 < 9 {
        return Ok(());
    }
    let module = runtime.load(&ModuleSource::new("dependent.cu", DEPENDENT))?;
    let (produce, consume) = (module.function("produce")?, module.function("consume")?);
    let count = 1u32 << 16;
    let (x, y) = (runtime.alloc_array::<u32>(count as usize)?, runtime.alloc_array::<u32>(count as usize)?);
    let (x_address, y_address) = (x.ptr().address(), y.ptr().address());
    let launch = Launch::new([64, 1, 1], [256, 1, 1]);
    for value in 0..cx.scaled(50, 3) as u32 {
        let first = KernelArgs::new().arg(&x_address).arg(&count).arg(&value);
        let second = KernelArgs::new().arg(&x_address).arg(&y_address).arg(&count);
        // SAFETY: both kernels stay within `count` words of their buffers.
        unsafe {
            runtime.launch(&produce, &launch, &first)?;
            runtime.launch(&consume, &launch.pdl(), &second)?;
        }
        ensure!(y.read::<u32>()?.iter().all(|&y| y == value + 1), "round {value}");
    }
    Ok(())
}

fn launch_overhead(cx: &Context<'_>) -> Outcome {
    if cx.reduced() {
        // A sanitizer takes the time that this would measure.
        return Ok(());
    }
    let runtime = cx.runtime();
    let nothing = runtime.load(&basic())?.function("nothing")?;
    let launch = Launch::new([1, 1, 1], [32, 1, 1]);
    let round = || -> anyhow::Result<Duration> {
        runtime.synchronize()?;
        let start = Instant::now();
        for _ in 0..200 {
            // SAFETY: the kernel has no parameters.
            unsafe { runtime.launch(&nothing, &launch, &KernelArgs::new()) }?;
        }
        Ok(start.elapsed() / 200)
    };
    round()?;
    let mut times = (0..9).map(|_| round()).collect::<anyhow::Result<Vec<_>>>()?;
    times.sort();
    // The driver alone takes about 2 microseconds. The median of rounds keeps a busy host out.
    ensure!(times[4] < Duration::from_micros(10), "a launch takes {:?} of the host's time", times[4]);
    Ok(())
}

fn copies(cx: &Context<'_>) -> Outcome {
    let runtime = cx.runtime();
    for count in [1usize, 3, 255, 4096, 1_000_001] {
        let bytes: Vec<u8> = (0..count).map(|i| (i * 31 % 251) as u8).collect();
        let (a, b) = (runtime.upload(&bytes)?, runtime.alloc(count)?);
        b.fill(0xee)?;
        ensure!(b.read::<u8>()?.iter().all(|&byte| byte == 0xee), "fill of {count}");
        // SAFETY: both are live and apart.
        unsafe { runtime.dtod(a.ptr(), b.ptr(), count) }?;
        ensure!(b.read::<u8>()? == bytes, "copies of {count}");
        let part = a.ptr().slice(count / 2, count - count / 2)?;
        let mut host = vec![0u8; part.len()];
        // SAFETY: the slice is part of a live buffer.
        unsafe {
            runtime.memset(part, 5)?;
            runtime.dtoh(part, &mut host)?;
        }
        ensure!(host.iter().all(|&byte| byte == 5));
        ensure!(a.read::<u8>()?[..count / 2] == bytes[..count / 2], "a fill of a part of {count} reached beyond it");
    }
    let numbers = runtime.upload(&[1.5f32, -2.0, f32::INFINITY])?;
    ensure!(numbers.read::<f32>()? == [1.5, -2.0, f32::INFINITY]);
    ensure!(runtime.alloc_zeroed(40)?.read::<u64>()? == [0; 5]);
    Ok(())
}

fn pinned_copies(cx: &Context<'_>) -> Outcome {
    let runtime = cx.runtime();
    let count = 1 << 20;
    let (mut to, mut from) = (runtime.alloc_pinned(count)?, runtime.alloc_pinned(count)?);
    ensure!(from.iter().all(|&byte| byte == 0), "pinned memory is not zeroed");
    to.iter_mut().enumerate().for_each(|(i, byte)| *byte = (i % 253) as u8);
    let buffer = runtime.alloc(count)?;
    // SAFETY: all three live, and are not touched, until the stream has passed the copies.
    unsafe {
        runtime.htod_pinned(&to, buffer.ptr())?;
        runtime.dtoh_pinned(buffer.ptr(), &mut from)?;
    }
    runtime.synchronize()?;
    ensure!(from[..] == to[..]);
    ensure!(runtime.alloc_pinned(0)?.is_empty());
    Ok(())
}

fn copy_refusals(cx: &Context<'_>) -> Outcome {
    let runtime = cx.runtime();
    let buffer = runtime.upload(&[7u8; 10])?;
    let refused = |outcome: curt::Result<()>| matches!(outcome, Err(Error::OutOfRange { .. }));
    ensure!(refused(buffer.write(&[0u8; 11])));
    // SAFETY: all are refused before anything is copied, which is what this checks.
    unsafe {
        ensure!(refused(runtime.dtoh(buffer.ptr(), &mut [0u8; 11])));
        ensure!(refused(runtime.dtod(buffer.ptr(), buffer.ptr(), 11)));
    }
    ensure!(matches!(buffer.read::<u32>(), Err(Error::PartialElement { bytes: 10, size: 4 })));
    ensure!(buffer.read::<u8>()? == [7; 10]);
    Ok(())
}

fn zero_bytes(cx: &Context<'_>) -> Outcome {
    let runtime = cx.runtime();
    let buffer = runtime.alloc(0)?;
    ensure!(buffer.is_empty() && buffer.read::<u64>()?.is_empty());
    buffer.fill(1)?;
    buffer.write::<u8>(&[])?;
    let raw = runtime.alloc_raw(0)?;
    // SAFETY: it came from `alloc_raw` and is freed once.
    unsafe { runtime.free_raw(raw) }?;
    ensure!(runtime.upload::<f32>(&[])?.is_empty());
    Ok(())
}

fn size_overflow(cx: &Context<'_>) -> Outcome {
    let runtime = cx.runtime();
    let refused = |error| matches!(error, Error::SizeOverflow { .. });
    ensure!(refused(runtime.alloc(usize::MAX).unwrap_err()));
    ensure!(refused(runtime.alloc_array::<f64>(usize::MAX / 4).unwrap_err()));
    ensure!(refused(runtime.alloc_pinned(usize::MAX).unwrap_err()));
    Ok(())
}

fn out_of_memory(cx: &Context<'_>) -> Outcome {
    if cx.reduced() {
        // Under a sanitizer every call that the driver refuses is an error.
        return Ok(());
    }
    let runtime = cx.runtime();
    let used = runtime.memory_stats().used_bytes;
    for bytes in [1usize << 40, isize::MAX as usize] {
        match runtime.alloc(bytes) {
            Err(Error::OutOfMemory { asked, free, total }) => {
                ensure!(asked == bytes);
                ensure!(free > 0 && free <= total && total < bytes, "{free} of {total}");
            }
            other => bail!("{bytes} bytes gave {other:?}"),
        }
        ensure!(runtime.memory_stats().used_bytes == used, "memory that was not allocated is counted");
        runtime.synchronize().context("after out of memory")?;
        launch_list(cx).context("after out of memory")?;
    }
    Ok(())
}

fn alignment(cx: &Context<'_>) -> Outcome {
    let buffers: Vec<_> = [1usize, 3, 255, 256, 257, 5000, 1 << 21]
        .iter()
        .map(|&bytes| cx.runtime().alloc(bytes))
        .collect::<Result<_, _>>()?;
    for (index, buffer) in buffers.iter().enumerate() {
        ensure!(buffer.ptr().is_aligned(256), "{:?}", buffer.ptr());
        ensure!(buffers[..index].iter().all(|other| !other.ptr().overlaps(&buffer.ptr())));
    }
    Ok(())
}

fn pool_reuse(_cx: &Context<'_>) -> Outcome {
    let runtime = Runtime::new(0)?;
    let bytes = 64 << 20;
    drop(runtime.alloc(bytes)?);
    runtime.synchronize()?;
    let first = runtime.memory_stats();
    ensure!(first.allocations == 1 && first.used_bytes == 0 && first.peak_used_bytes == bytes, "{first:?}");
    ensure!(first.retained_bytes >= bytes, "a synchronisation gave the memory back: {first:?}");
    for _ in 0..10 {
        let buffer = runtime.alloc(bytes)?;
        ensure!(runtime.memory_stats().used_bytes == bytes);
        drop(buffer);
        runtime.synchronize()?;
    }
    let later = runtime.memory_stats();
    ensure!(later.allocations == 11 && later.pool_hits >= 10, "{later:?}");
    runtime.trim(0)?;
    ensure!(runtime.memory_stats().retained_bytes == 0, "{:?}", runtime.memory_stats());

    let forgetful = Runtime::with_options(0, RuntimeOptions::new().retained_bytes(0))?;
    drop(forgetful.alloc(bytes)?);
    forgetful.synchronize()?;
    ensure!(forgetful.memory_stats().retained_bytes < bytes, "{:?}", forgetful.memory_stats());
    Ok(())
}

fn raw_allocations(cx: &Context<'_>) -> Outcome {
    let runtime = cx.runtime();
    let memory = runtime.alloc_raw(1000)?;
    let mut host = [0u8; 1000];
    // SAFETY: the memory is live until it is freed, once, at the end.
    unsafe {
        runtime.memset(memory, 3)?;
        runtime.dtoh(memory, &mut host)?;
        runtime.free_raw(memory)?;
    }
    ensure!(host == [3; 1000]);
    Ok(())
}

fn blas_workspace(cx: &Context<'_>) -> Outcome {
    let workspace = cx.runtime().blas_workspace()?;
    ensure!(workspace.is_aligned(256) && workspace.len() >= 4 << 20);
    ensure!(cx.runtime().blas_workspace()? == workspace);
    Ok(())
}

fn compile_errors(cx: &Context<'_>) -> Outcome {
    let source =
        ModuleSource::new("broken.cu", "#line 7 \"part.cuh\"\nextern \"C\" __global__ void k() { missing(); }\n");
    match cx.runtime().load(&source) {
        Err(Error::Compile(failure)) => {
            let text = failure.to_string();
            ensure!(
                text.contains("part.cuh:7") && text.contains(&cx.runtime().capabilities().arch().to_string()),
                "{text}"
            );
        }
        other => bail!("{other:?}"),
    }
    let nul = cx.runtime().load(&ModuleSource::new("nul.cu", "\0"));
    ensure!(matches!(nul, Err(Error::NulByte { .. })), "{nul:?}");
    Ok(())
}

fn missing_entries(cx: &Context<'_>) -> Outcome {
    let runtime = cx.runtime();
    let module = runtime.load(&basic())?;
    for entry in ["nowhere", "", "nul\0"] {
        let outcome = module.function(entry);
        ensure!(matches!(outcome, Err(Error::EntryMissing { .. })), "{entry:?}: {outcome:?}");
    }
    let outcome = runtime.load(&basic().entry("nowhere"));
    ensure!(matches!(outcome, Err(Error::EntryMissing { .. })), "{outcome:?}");
    Ok(())
}

fn cache_tiers(_cx: &Context<'_>) -> Outcome {
    let directory = tempfile::tempdir()?;
    let runtime = || Runtime::with_options(0, RuntimeOptions::new().cache_directory(directory.path()));
    let cold = runtime()?;
    for _ in 0..2 {
        increments(&cold)?;
    }
    let stats = cold.cache_stats();
    ensure!((stats.compiled, stats.memory_hits, stats.disk_hits) == (1, 1, 0), "{stats:?}");
    ensure!(stats.nvrtc_time > Duration::ZERO);

    let warm = runtime()?;
    increments(&warm)?;
    let stats = warm.cache_stats();
    ensure!((stats.compiled, stats.memory_hits, stats.disk_hits) == (0, 0, 1), "{stats:?}");

    for entry in std::fs::read_dir(directory.path())? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "cubin") {
            let mut bytes = std::fs::read(&path)?;
            let middle = bytes.len() / 2;
            bytes[middle] ^= 0x10;
            std::fs::write(&path, bytes)?;
        }
    }
    let damaged = runtime()?;
    increments(&damaged)?;
    ensure!(damaged.cache_stats().compiled == 1, "{:?}", damaged.cache_stats());

    // Two runtimes that share a cache compile once, and each loads for itself.
    let shared = Arc::new(CompileCache::new(CacheOptions::in_memory()));
    for hits in [0, 1] {
        let runtime = Runtime::with_options(0, RuntimeOptions::new().cache(Arc::clone(&shared)))?;
        increments(&runtime)?;
        ensure!(runtime.cache_stats().memory_hits == hits, "{:?}", runtime.cache_stats());
    }
    Ok(())
}

/// Loads, launches and checks the smallest kernel.
fn increments(runtime: &Runtime) -> Outcome {
    let word = runtime.upload(&[41u32])?;
    launch_on(runtime, "increment", word.ptr())?;
    ensure!(word.read::<u32>()? == [42]);
    Ok(())
}

fn unload(_cx: &Context<'_>) -> Outcome {
    let runtime = Runtime::with_options(0, RuntimeOptions::new().without_disk_cache())?;
    let source = basic();
    ensure!(!runtime.unload(&source)?);
    let increment = runtime.load(&source)?.function("increment")?;
    ensure!(runtime.unload(&source)? && !runtime.unload(&source)?);
    // The function holds its module.
    let word = runtime.upload(&[0u32])?;
    let address = word.ptr().address();
    // SAFETY: the kernel adds to one word, which the buffer holds.
    unsafe { runtime.launch(&increment, &Launch::new([10, 1, 1], [10, 1, 1]), &KernelArgs::new().arg(&address)) }?;
    // Dropped while its kernel may still run.
    drop(increment);
    ensure!(word.read::<u32>()? == [100]);
    increments(&runtime)?;
    let stats = runtime.cache_stats();
    ensure!(
        stats.compiled == 1 && stats.memory_hits == 1,
        "an unloaded module is loaded again, not compiled: {stats:?}"
    );
    Ok(())
}

fn foreign_handles(_cx: &Context<'_>) -> Outcome {
    let owner = Runtime::new(0)?;
    let (context, stream) = (owner.context_handle(), owner.stream_handle());
    let null = std::ptr::null_mut();
    for (name, context, stream) in
        [("both", context, stream), ("no context", null, stream), ("default stream", context, null)]
    {
        // SAFETY: the owner lives longer than the guest and what it makes.
        let guest = unsafe { Runtime::from_raw(context, stream) }.context(name)?;
        ensure!(guest.context_handle() == owner.context_handle(), "{name}");
        ensure!(guest.stream_handle() == stream, "{name}");
        increments(&guest).context(name)?;
        let memory = guest.upload(&[1u8, 2, 3])?;
        drop(guest);
        ensure!(memory.read::<u8>()? == [1, 2, 3], "{name}: a buffer did not outlive its runtime");
        drop(memory);
        increments(&owner).with_context(|| format!("{name}: the owner after its guest"))?;
    }
    // The default stream without a context: whatever is current.
    owner.bind()?;
    // SAFETY: as above.
    let guest = unsafe { Runtime::from_raw(null, null) }?;
    ensure!(guest.context_handle() == owner.context_handle());
    drop(guest);
    // A thread on which no context is current has none to give.
    let nothing = std::thread::spawn(|| {
        // SAFETY: there is no context, so nothing is made.
        unsafe { Runtime::from_raw(std::ptr::null_mut(), std::ptr::null_mut()) }.map(drop)
    });
    let outcome = nothing.join().expect("no panic");
    ensure!(matches!(outcome, Err(Error::NoContext { .. })), "{outcome:?}");
    increments(&owner)
}

fn cudarc_stream(_cx: &Context<'_>) -> Outcome {
    let context = cudarc::driver::CudaContext::new(0)?;
    let stream = context.new_stream()?;
    let runtime = Runtime::from_stream(Arc::clone(&stream))?;
    ensure!(runtime.stream_handle() == stream.cu_stream().cast());
    drop(context);
    increments(&runtime)?;
    // What cudarc enqueues on the stream is ordered with ours.
    let theirs = stream.clone_htod(&[5u32])?;
    let address = {
        use cudarc::driver::DevicePtr as _;
        theirs.device_ptr(&stream).0
    };
    launch_on(&runtime, "increment", DevicePtr::new(address, 4))?;
    ensure!(stream.clone_dtoh(&theirs)? == [6]);
    drop((theirs, stream));
    // The runtime keeps the stream.
    increments(&runtime)
}

fn two_runtimes(cx: &Context<'_>) -> Outcome {
    let (first, second) = (Runtime::new(0)?, Runtime::new(0)?);
    ensure!(first.stream_handle() != second.stream_handle());
    ensure!(first.context_handle() == second.context_handle(), "both are in the primary context");
    let (a, b) = (first.upload(&[1u32])?, second.upload(&[2u32])?);
    for _ in 0..10 {
        launch_on(&first, "increment", a.ptr())?;
        launch_on(&second, "increment", b.ptr())?;
    }
    ensure!(a.read::<u32>()? == [11] && b.read::<u32>()? == [12]);
    drop((first, a));
    increments(&second)?;
    drop((second, b));
    increments(cx.runtime())
}

fn eight_threads(cx: &Context<'_>) -> Outcome {
    let runtime = Runtime::with_options(0, RuntimeOptions::new().without_disk_cache())?;
    let rounds = cx.scaled(50, 3);
    let total = runtime.alloc_zeroed(4)?;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8u32)
            .map(|thread| {
                let (runtime, total) = (&runtime, total.ptr());
                scope.spawn(move || -> Outcome {
                    for round in 0..rounds as u32 {
                        let value = thread * 1000 + round;
                        let word = runtime.upload(&[value])?;
                        launch_on(runtime, "increment", word.ptr())?;
                        launch_on(runtime, "increment", total)?;
                        ensure!(word.read::<u32>()? == [value + 1], "thread {thread} round {round}");
                    }
                    Ok(())
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })?;
    ensure!(total.read::<u32>()? == [8 * rounds as u32]);
    let stats = runtime.cache_stats();
    ensure!(stats.compiled == 1, "{stats:?}");
    ensure!(runtime.memory_stats().used_bytes == 4, "{:?}", runtime.memory_stats());
    Ok(())
}

const SPIN: &str = r#"
extern "C" __global__ void spin(long long cycles) {
    long long start = clock64();
    while (clock64() - start < cycles) {}
}
"#;

fn events(cx: &Context<'_>) -> Outcome {
    let runtime = cx.runtime();
    let spin = runtime.load(&ModuleSource::new("spin.cu", SPIN))?.function("spin")?;
    let launch = |cycles: i64| {
        // SAFETY: the kernel touches no memory.
        unsafe { runtime.launch(&spin, &Launch::new([1, 1, 1], [1, 1, 1]), &KernelArgs::new().arg(&cycles)) }
    };
    launch(1)?;
    let (start, end) = (runtime.event()?, runtime.event()?);
    start.record(runtime)?;
    launch(i64::from(runtime.capabilities().clock_khz) * 5)?;
    end.record(runtime)?;
    if !cx.reduced() {
        ensure!(!end.is_done()?, "an event is done while the kernel before it spins");
    }
    end.synchronize()?;
    ensure!(start.is_done()? && end.is_done()?);
    let milliseconds = Event::elapsed_ms(&start, &end)?;
    ensure!(milliseconds > 1.0, "five milliseconds of cycles took {milliseconds} ms");

    let timer = runtime.timer()?;
    timer.start()?;
    launch(i64::from(runtime.capabilities().clock_khz))?;
    let time = timer.stop()?;
    ensure!(time > Duration::from_micros(200), "a millisecond of cycles took {time:?}");
    Ok(())
}

const LOAD_BOX: &str = r#"
struct alignas(64) TensorMap { unsigned long long opaque[16]; };

extern "C" __global__ void load_box(const __grid_constant__ TensorMap map, unsigned short* out, int x, int y) {
    __shared__ alignas(1024) unsigned short staged[ROWS * COLUMNS];
    __shared__ alignas(8) unsigned long long barrier;
    unsigned to = (unsigned)__cvta_generic_to_shared(staged);
    unsigned bar = (unsigned)__cvta_generic_to_shared(&barrier);
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bar) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(ROWS * COLUMNS * 2) : "memory");
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                     ::"r"(to), "l"(&map), "r"(x), "r"(y), "r"(bar) : "memory");
    }
    __syncthreads();
    unsigned done = 0;
    while (!done) {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(bar) : "memory");
    }
    for (int i = threadIdx.x; i < ROWS * COLUMNS; i += blockDim.x) out[i] = staged[i];
}
"#;

fn tensor_maps(cx: &Context<'_>) -> Outcome {
    let runtime = cx.runtime();
    if runtime.capabilities().compute_capability.0 < 9 {
        return Ok(());
    }
    const ROWS: usize = 16;
    const COLUMNS: usize = 64;
    let source = ModuleSource::new("load_box.cu", LOAD_BOX).define("ROWS", ROWS).define("COLUMNS", COLUMNS);
    let load = runtime.load(&source)?.function("load_box")?;

    // 100 rows of 80 columns, 96 apart.
    let (rows, columns, stride) = (100usize, 80usize, 96usize);
    let host: Vec<u16> = (0..rows * stride).map(|i| (i * 7 % 65_521) as u16).collect();
    let tensor = runtime.upload(&host)?;
    let out = runtime.alloc(ROWS * COLUMNS * 2)?;
    let out_address = out.ptr().address();
    for (swizzle, x, y) in [
        (Swizzle::None, 0, 0),
        (Swizzle::None, 16, 84),
        (Swizzle::None, 40, 90),
        (Swizzle::None, -8, -3),
        (Swizzle::Bytes128, 8, 5),
    ] {
        let map = TensorMap::builder(TensorMapType::U16, tensor.ptr())
            .dims(&[columns as u64, rows as u64])
            .strides(&[stride as u64 * 2])
            .box_dims(&[COLUMNS as u32, ROWS as u32])
            .swizzle(swizzle)
            .build(runtime)?;
        let arguments = KernelArgs::new().arg(&map).arg(&out_address).arg(&x).arg(&y);
        // SAFETY: the kernel writes one box, which the buffer holds, and reads through the map, which lies in the tensor.
        unsafe { runtime.launch(&load, &Launch::new([1, 1, 1], [128, 1, 1]), &arguments) }?;
        let found = out.read::<u16>()?;
        for row in 0..ROWS {
            for column in 0..COLUMNS {
                let (at_row, at_column) = (y as isize + row as isize, x as isize + column as isize);
                let inside = (0..rows as isize).contains(&at_row) && (0..columns as isize).contains(&at_column);
                let expected = if inside { host[at_row as usize * stride + at_column as usize] } else { 0 };
                // The swizzle of 128 bytes: pieces of 16 bytes change place within a row by the row's number.
                let piece = if swizzle == Swizzle::Bytes128 { (column / 8) ^ (row % 8) } else { column / 8 };
                let value = found[row * COLUMNS + piece * 8 + column % 8];
                ensure!(
                    value == expected,
                    "{swizzle:?} at ({x}, {y}), row {row} column {column}: {value}, not {expected}"
                );
            }
        }
    }

    // What the rules allow, the driver takes.
    for data_type in
        [TensorMapType::Bf16, TensorMapType::F16, TensorMapType::F32, TensorMapType::U8, TensorMapType::F64]
    {
        for swizzle in [Swizzle::None, Swizzle::Bytes32, Swizzle::Bytes64, Swizzle::Bytes128] {
            for rank in 1..=5usize {
                let size = data_type.size() as u64;
                let dims = [128 / size, 4, 3, 2, 2];
                let strides = [128, 512, 1536, 3072];
                let inner = if swizzle == Swizzle::Bytes32 { 32 } else { 64 } / size as u32;
                let fill = if data_type == TensorMapType::U8 { OutOfBounds::Zero } else { OutOfBounds::Nan };
                TensorMap::builder(data_type, tensor.ptr())
                    .dims(&dims[..rank])
                    .strides(&strides[..rank - 1])
                    .box_dims(&[inner, 2, 2, 1, 1][..rank])
                    .swizzle(swizzle)
                    .out_of_bounds(fill)
                    .build(runtime)
                    .with_context(|| format!("{data_type:?} {swizzle:?} rank {rank}"))?;
            }
        }
    }
    // Heads that share rows: strides that do not grow, and one that is zero.
    TensorMap::builder(TensorMapType::Bf16, tensor.ptr())
        .dims(&[64, 10, 4, 2])
        .strides(&[1024, 128, 0])
        .box_dims(&[64, 8, 1, 1])
        .swizzle(Swizzle::Bytes128)
        .build(runtime)
        .context("permuted strides")?;
    Ok(())
}

fn tensor_map_refusals(cx: &Context<'_>) -> Outcome {
    let runtime = cx.runtime();
    let memory = runtime.alloc(1 << 16)?;
    let map = TensorMap::builder(TensorMapType::F16, memory.ptr().slice(8, 1000)?)
        .dims(&[100, 1000])
        .strides(&[200])
        .box_dims(&[60, 300]);
    match map.build(runtime) {
        Err(Error::InvalidTensorMap { violations }) => {
            use TensorMapViolation as Broken;
            let has = |wanted: fn(&Broken) -> bool| violations.iter().any(wanted);
            ensure!(has(|broken| matches!(broken, Broken::Address { .. })), "{violations:?}");
            ensure!(has(|broken| matches!(broken, Broken::Stride { .. })), "{violations:?}");
            ensure!(has(|broken| matches!(broken, Broken::BoxSide { .. })), "{violations:?}");
            ensure!(has(|broken| matches!(broken, Broken::BoxRow { .. })), "{violations:?}");
            ensure!(has(|broken| matches!(broken, Broken::Extent { .. })), "{violations:?}");
        }
        other => bail!("{other:?}"),
    }
    Ok(())
}

fn capture_and_replay(cx: &Context<'_>) -> Outcome {
    let runtime = cx.runtime();
    // Loaded before: a capture loads nothing.
    let increment = runtime.load(&basic())?.function("increment")?;
    let word = runtime.upload(&[0u32])?;
    let copy = runtime.upload(&[0u32])?;
    let address = word.ptr().address();
    let graph = runtime.capture(|runtime| -> anyhow::Result<()> {
        ensure!(runtime.is_capturing()?);
        let arguments = KernelArgs::new().arg(&address);
        // SAFETY: buffers and module outlive the graph.
        unsafe {
            runtime.launch(&increment, &Launch::new([1, 1, 1], [1, 1, 1]), &arguments)?;
            runtime.launch(&increment, &Launch::new([4, 1, 1], [8, 1, 1]), &arguments)?;
            runtime.dtod(word.ptr(), copy.ptr(), 4)?;
        }
        Ok(())
    })?;
    ensure!(!runtime.is_capturing()?);
    ensure!(graph.node_count() == 3, "{} nodes", graph.node_count());
    ensure!(word.read::<u32>()? == [0], "a capture ran what it captured");
    for replay in 1..=5u32 {
        graph.launch()?;
        ensure!(copy.read::<u32>()? == [33 * replay]);
    }
    drop(graph);
    ensure!(runtime.capture(|_| -> curt::Result<()> { Ok(()) })?.node_count() == 0);
    increments(runtime)
}

fn capture_refusals(cx: &Context<'_>) -> Outcome {
    let runtime = cx.runtime();
    let buffer = runtime.upload(&[1u8, 2, 3])?;
    let event = runtime.event()?;
    event.record(runtime)?;
    runtime.load(&basic())?;
    let graph = runtime.capture(|runtime| -> anyhow::Result<()> {
        let refused = |name: &str, outcome: curt::Result<()>| match outcome {
            Err(Error::Capturing { .. }) => Ok(()),
            other => bail!("{name} in a capture: {other:?}"),
        };
        refused("allocation", runtime.alloc(100).map(drop))?;
        refused("allocation of nothing", runtime.alloc(0).map(drop))?;
        refused("raw allocation", runtime.alloc_raw(100).map(drop))?;
        refused("upload", runtime.upload(&[1u8]).map(drop))?;
        refused("pinned allocation", runtime.alloc_pinned(100).map(drop))?;
        refused("load of a loaded module", runtime.load(&basic()).map(drop))?;
        refused("load", runtime.load(&ModuleSource::new("new.cu", "extern \"C\" __global__ void n() {}")).map(drop))?;
        refused("synchronisation", runtime.synchronize())?;
        refused("trim", runtime.trim(0))?;
        refused("read", buffer.read::<u8>().map(drop))?;
        refused("write", buffer.write(&[1u8]))?;
        refused("waiting for an event", event.synchronize())?;
        refused("asking an event", event.is_done().map(drop))?;
        refused("a capture", runtime.capture(|_| -> curt::Result<()> { Ok(()) }).map(drop))?;
        // None of that has broken it.
        buffer.fill(9)?;
        Ok(())
    })?;
    ensure!(buffer.read::<u8>()? == [1, 2, 3]);
    graph.launch()?;
    ensure!(buffer.read::<u8>()? == [9, 9, 9]);
    increments(runtime)
}

fn capture_failures(cx: &Context<'_>) -> Outcome {
    let runtime = cx.runtime();
    let buffer = runtime.upload(&[1u8])?;
    let failed = runtime.capture(|runtime| -> curt::Result<()> {
        buffer.fill(2)?;
        runtime.synchronize()
    });
    ensure!(matches!(failed, Err(Error::Capturing { .. })), "{failed:?}");
    ensure!(!runtime.is_capturing()?);

    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        runtime.capture(|_| -> curt::Result<()> { panic!("in the captured work") })
    }));
    std::panic::set_hook(hook);
    ensure!(panicked.is_err());
    ensure!(!runtime.is_capturing()?);
    ensure!(buffer.read::<u8>()? == [1], "a capture that failed ran");
    capture_and_replay(cx)
}

fn capture_invalidated(cx: &Context<'_>) -> Outcome {
    if cx.reduced() {
        return Ok(());
    }
    // A second runtime waits on the stream that the first one captures, as a careless library would.
    let runtime = Runtime::new(0)?;
    let outcome = runtime.capture(|runtime| -> anyhow::Result<()> {
        let context = cudarc::driver::CudaContext::new(0)?;
        context.bind_to_thread()?;
        // SAFETY: the stream is live; that it is being captured is the point.
        let code = unsafe { cudarc::driver::sys::cuStreamSynchronize(runtime.stream_handle().cast()) };
        ensure!(code != cudarc::driver::sys::CUresult::CUDA_SUCCESS);
        Ok(())
    });
    match outcome {
        Err(error) if matches!(error.downcast_ref(), Some(Error::CaptureInvalidated { .. })) => {}
        other => bail!("{other:?}"),
    }
    ensure!(!runtime.is_capturing()?);
    increments(&runtime)
}

fn capture_drop(_cx: &Context<'_>) -> Outcome {
    let runtime = Runtime::new(0)?;
    let (kept, dropped) = (runtime.upload(&[1u8])?, runtime.alloc(32 << 20)?);
    let graph = runtime.capture(|_| -> curt::Result<()> {
        kept.fill(2)?;
        drop(dropped);
        Ok(())
    })?;
    ensure!(graph.node_count() == 1, "the free became part of the graph");
    for _ in 0..3 {
        graph.launch()?;
    }
    ensure!(kept.read::<u8>()? == [2]);
    runtime.synchronize()?;
    let stats = runtime.memory_stats();
    ensure!(stats.used_bytes == 1 && stats.retained_bytes >= 32 << 20, "{stats:?}");
    Ok(())
}
