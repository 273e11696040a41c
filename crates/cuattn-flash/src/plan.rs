//! A flash plan: compiled kernels, and the struct that each launch completes.

use cuattn_core::lowering::{HopperLaunches, address, mask_params, score_params, strides};
use cuattn_core::{Explanation, LaunchError, Operands, Plan, PlanError, Problem, Work, WorkspaceSize};
use cuattn_kernels::abi::FlashParams;
use curt::{DevicePtr, Function, KernelArgs, Launch, ModuleSource, Runtime};

use crate::outline::{Kernel, Outline};
use crate::sm90::Sm90Launch;
use crate::sm90_f32::{Halves, LoadedHalves, Sm90F32Launch};

/// One compiled kernel.
#[derive(Debug)]
struct Loaded {
    function: Function,
    launch: Launch,
    kernel: Kernel,
    /// What launches of the `sm90` path share.
    hopper: Option<HopperLaunches>,
    /// What the `sm90_f32` path launches around it.
    halves: Option<LoadedHalves>,
}

impl Loaded {
    fn new(runtime: &Runtime, kernel: Kernel) -> Result<Self, curt::Error> {
        let source = &kernel.source;
        let module = runtime.load(&ModuleSource::new(source.root(), source.assemble()))?;
        let function = module.function_with_shared(source.entry(), kernel.shared_bytes as usize)?;
        let launch = Launch::new([kernel.grid.blocks, 1, 1], [kernel.threads, 1, 1]).shared_bytes(kernel.shared_bytes);
        let hopper = kernel.sm90.map(|_| HopperLaunches::new(runtime)).transpose()?;
        let halves = kernel.halves.as_deref().map(|halves| LoadedHalves::new(runtime, halves.clone())).transpose()?;
        Ok(Self { function, launch, kernel, hopper, halves })
    }

    /// What the compiler made of it, and how the device holds it.
    fn describe(&self) -> Result<String, curt::Error> {
        let attributes = self.function.attributes();
        let blocks = self.function.occupancy(self.kernel.threads, self.kernel.shared_bytes as usize)?;
        let (registers, local) = (attributes.registers, attributes.local_bytes);
        Ok(format!(
            "{registers} registers and {local} bytes of local memory a thread, {blocks} blocks a multiprocessor"
        ))
    }
}

#[derive(Debug)]
pub(crate) struct FlashPlan {
    runtime: Runtime,
    problem: Problem,
    explanation: Explanation,
    work: Work,
    kernel: Option<Loaded>,
    unaligned: Option<Loaded>,
}

impl FlashPlan {
    pub(crate) fn new(runtime: &Runtime, problem: &Problem, outline: Outline) -> Result<Self, PlanError> {
        let mut explanation = outline.explanation();
        let load = |kernel: Option<Kernel>| kernel.map(|kernel| Loaded::new(runtime, kernel)).transpose();
        let kernel = load(outline.kernel)?;
        if let Some(loaded) = &kernel {
            explanation.details.push(loaded.describe()?);
        }
        Ok(Self {
            runtime: runtime.clone(),
            problem: problem.clone(),
            explanation,
            work: problem.work(),
            kernel,
            unaligned: load(outline.unaligned)?,
        })
    }

    fn params(&self, kernel: &Kernel, operands: &Operands) -> FlashParams {
        let shape = self.problem.shape;
        FlashParams {
            q: operands.q.address(),
            k: operands.k.address(),
            v: operands.v.address(),
            o: operands.o.address(),
            sinks: address(operands.sinks),
            log_sum_exp: address(operands.log_sum_exp),
            q_strides: strides(self.problem.q),
            k_strides: strides(self.problem.k),
            v_strides: strides(self.problem.v),
            o_strides: strides(self.problem.o),
            mask: mask_params(&self.problem, operands),
            score: score_params(&self.problem, operands),
            batch: shape.batch as i32,
            q_heads: shape.q_heads as i32,
            kv_heads: shape.kv_heads as i32,
            head_dim: shape.head_dim as i32,
            v_head_dim: shape.v_head_dim as i32,
            pack: kernel.grid.pack,
            order: kernel.grid.order,
        }
    }

    /// The kernel that such pointers can take. `None` where there is nothing to compute.
    fn kernel_for(&self, operands: &Operands) -> Option<&Loaded> {
        let kernel = self.kernel.as_ref()?;
        let alignment = kernel.kernel.alignment;
        let tiles = [operands.q, operands.k, operands.v, operands.o];
        let aligned = tiles.iter().chain(&operands.bias).all(|pointer| pointer.is_aligned(alignment));
        if aligned { Some(kernel) } else { self.unaligned.as_ref().or(Some(kernel)) }
    }
}

impl Plan for FlashPlan {
    fn problem(&self) -> &Problem {
        &self.problem
    }

    fn workspace(&self) -> WorkspaceSize {
        let halves = self.kernel.as_ref().and_then(|loaded| loaded.kernel.halves.as_deref());
        halves.map_or(WorkspaceSize { bytes: 0, align: 1 }, Halves::workspace)
    }

    fn work(&self) -> Work {
        self.work
    }

    fn explain(&self) -> Explanation {
        self.explanation.clone()
    }

    unsafe fn launch(&self, operands: &Operands, workspace: DevicePtr) -> Result<(), LaunchError> {
        operands.check(&self.problem, workspace, self.workspace())?;
        let Some(loaded) = self.kernel_for(operands) else {
            return Ok(());
        };
        let params = self.params(&loaded.kernel, operands);
        if let Some(around) = &loaded.halves {
            let (runtime, function, launch) = (&self.runtime, &loaded.function, &loaded.launch);
            let launch = Sm90F32Launch { runtime, function, launch, around, workspace };
            let simt = self.params(around.fallback(), operands);
            // SAFETY: as the caller vouches for.
            unsafe { launch.enqueue(&self.problem, operands, params, simt) }
        } else if let (Some(geometry), Some(hopper)) = (loaded.kernel.sm90, &loaded.hopper) {
            let launch = Sm90Launch {
                runtime: &self.runtime,
                function: &loaded.function,
                launch: &loaded.launch,
                geometry,
                hopper,
            };
            // SAFETY: as the caller vouches for.
            unsafe { launch.enqueue(&self.problem, operands, params) }
        } else {
            let arguments = KernelArgs::new().arg(&params);
            // SAFETY: the caller vouches for the operands' memory, and `check` has compared its length with what the kernel may
            // touch; the kernel takes one `FlashParams` by value.
            unsafe { self.runtime.launch(&loaded.function, &loaded.launch, &arguments) }?;
            Ok(())
        }
    }
}
