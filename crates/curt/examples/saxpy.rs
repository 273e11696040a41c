//! A kernel of one's own, from CUDA C++ text to a result, in a project that needs nothing else of this workspace.
//!
//! ```text
//! cargo run -p curt --example saxpy
//! ```

use std::process::ExitCode;

use curt::{KernelArgs, Launch, ModuleSource, Runtime};

const SAXPY: &str = r#"
extern "C" __global__ void saxpy(float a, const float* x, float* y, unsigned count) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) y[i] = a * x[i] + y[i];
}
"#;

const THREADS: u32 = 256;

fn main() -> ExitCode {
    let report = curt::probe();
    if !report.has_gpu() || !report.nvrtc.is_found() {
        println!("This example needs an NVIDIA GPU and NVRTC, and this machine lacks something:\n\n{report}");
        return ExitCode::SUCCESS;
    }
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> curt::Result<()> {
    let runtime = Runtime::new(0)?;
    println!("{} ({})", runtime.capabilities().name, runtime.capabilities().arch());

    // Compiled on the first run, taken from the disk cache on the next.
    let module = runtime.load(&ModuleSource::new("saxpy.cu", SAXPY).entry("saxpy"))?;
    let saxpy = module.function("saxpy")?;

    let count = 1_000_000u32;
    let a = 2.0f32;
    let host_x: Vec<f32> = (0..count).map(|i| i as f32).collect();
    let x = runtime.upload(&host_x)?;
    let y = runtime.upload(&vec![1.0f32; count as usize])?;

    let launch = Launch::new([count.div_ceil(THREADS), 1, 1], [THREADS, 1, 1]);
    let (x_address, y_address) = (x.ptr().address(), y.ptr().address());
    let arguments = KernelArgs::new().arg(&a).arg(&x_address).arg(&y_address).arg(&count);
    let timer = runtime.timer()?;
    timer.start()?;
    // SAFETY: the arguments are the kernel's parameters in order, and both buffers hold `count` floats until `read` has waited.
    unsafe { runtime.launch(&saxpy, &launch, &arguments) }?;
    let time = timer.stop()?;

    let result = y.read::<f32>()?;
    let wrong = result.iter().zip(&host_x).filter(|&(&y, &x)| y != a.mul_add(x, 1.0)).count();
    let stats = runtime.cache_stats();
    println!("{count} elements in {time:?}, {wrong} wrong");
    println!("compiled {}, from disk {}, {:?} in NVRTC", stats.compiled, stats.disk_hits, stats.nvrtc_time);
    Ok(())
}
