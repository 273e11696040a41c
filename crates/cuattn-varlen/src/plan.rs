//! A varlen plan: compiled kernels, and the structs that each launch completes.

use cuattn_core::lowering::HopperLaunches;
use cuattn_core::{
    Explanation, LaunchError, Operand, PlanError, Reason, Refusal, VarlenOperands, VarlenPlan, VarlenProblem, Work,
    WorkspaceSize,
};
use cuattn_kernels::varlen::{self, THREADS};
use curt::{DevicePtr, Function, KernelArgs, Launch, ModuleSource, Runtime};

use crate::outline::{Kernel, Outline, key_storage};
use crate::params::params;
use crate::sm90::Sm90Launch;

/// One compiled attention kernel.
#[derive(Debug)]
struct Loaded {
    function: Function,
    launch: Launch,
    kernel: Kernel,
    /// What launches of the `sm90` path share.
    hopper: Option<HopperLaunches>,
}

impl Loaded {
    fn new(runtime: &Runtime, kernel: Kernel) -> Result<Self, curt::Error> {
        let source = &kernel.source;
        let module = runtime.load(&ModuleSource::new(source.root(), source.assemble()))?;
        let function = module.function_with_shared(source.entry(), kernel.shared_bytes as usize)?;
        let launch = Launch::new([kernel.grid.blocks, 1, 1], [kernel.threads, 1, 1]).shared_bytes(kernel.shared_bytes);
        let hopper = kernel.sm90.map(|_| HopperLaunches::new(runtime)).transpose()?;
        Ok(Self { function, launch, kernel, hopper })
    }
}

/// A kernel of one block that looks at the lengths.
fn one_block(runtime: &Runtime, source: &cuattn_kernels::Source) -> Result<Function, curt::Error> {
    runtime.load(&ModuleSource::new(source.root(), source.assemble()))?.function(source.entry())
}

const ONE_BLOCK: Launch = Launch::new([1, 1, 1], [THREADS as u32, 1, 1]);

#[derive(Debug)]
pub(crate) struct PackedPlan {
    runtime: Runtime,
    problem: VarlenProblem,
    explanation: Explanation,
    work: Work,
    schedule: WorkspaceSize,
    kernel: Option<Loaded>,
    unaligned: Option<Loaded>,
    /// Lists tiles, where they are listed.
    builder: Option<Function>,
    /// Looks for faults in the offsets, where that is asked for.
    checker: Option<Function>,
}

impl PackedPlan {
    pub(crate) fn new(runtime: &Runtime, problem: &VarlenProblem, outline: Outline) -> Result<Self, PlanError> {
        let explanation = outline.explanation();
        let keys = key_storage(problem);
        let schedule = match outline.schedule.size() {
            WorkspaceSize { bytes: 0, .. } => WorkspaceSize { bytes: 0, align: 1 },
            size => size,
        };
        let lists = schedule.bytes > 0;
        let checks = problem.checks_offsets && outline.kernel.is_some();
        let load = |kernel: Option<Kernel>| kernel.map(|kernel| Loaded::new(runtime, kernel)).transpose();
        Ok(Self {
            runtime: runtime.clone(),
            problem: problem.clone(),
            explanation,
            work: problem.work(None),
            schedule,
            kernel: load(outline.kernel)?,
            unaligned: load(outline.unaligned)?,
            builder: lists.then(|| one_block(runtime, &varlen::build_schedule(keys))).transpose()?,
            checker: checks.then(|| one_block(runtime, &varlen::check_starts(keys))).transpose()?,
        })
    }

    /// The kernel that such pointers can take. `None` where there is nothing to compute.
    fn kernel_for(&self, operands: &VarlenOperands) -> Option<&Loaded> {
        let kernel = self.kernel.as_ref()?;
        let alignment = kernel.kernel.alignment;
        let aligned =
            [operands.q, operands.k, operands.v, operands.o].iter().all(|pointer| pointer.is_aligned(alignment));
        if aligned { Some(kernel) } else { self.unaligned.as_ref().or(Some(kernel)) }
    }

    /// Enqueues the making of the list of one kernel, where it has one.
    ///
    /// # Safety
    ///
    /// As for [`VarlenPlan::build_schedule`].
    unsafe fn build(&self, operands: &VarlenOperands, kernel: &Kernel, schedule: DevicePtr) -> Result<(), curt::Error> {
        let (Some(builder), Some(list)) = (&self.builder, kernel.list) else {
            return Ok(());
        };
        let params = params(&self.problem, operands, &kernel.grid, Some(list.of(schedule)));
        let block_rows = kernel.grid.block_rows as i32;
        let arguments = KernelArgs::new().arg(&params).arg(&block_rows);
        // SAFETY: the caller vouches for the memory; the kernel takes a `VarlenParams` and an `i32`, and writes as many items as
        // the region was made for.
        unsafe { self.runtime.launch(builder, &ONE_BLOCK, &arguments) }
    }

    /// Enqueues the check of the offsets, where it is asked for.
    ///
    /// # Safety
    ///
    /// As for [`VarlenPlan::launch`].
    unsafe fn check(&self, operands: &VarlenOperands, kernel: &Kernel) -> Result<(), curt::Error> {
        let (Some(checker), Some(status)) = (&self.checker, operands.status) else {
            return Ok(());
        };
        let params = params(&self.problem, operands, &kernel.grid, None);
        let longest = |len: usize| i64::try_from(len).unwrap_or(i64::MAX);
        let (q, kv) = (longest(self.problem.shape.max_q_len), longest(self.problem.shape.max_kv_len));
        let address = status.address();
        let arguments = KernelArgs::new().arg(&params).arg(&q).arg(&kv).arg(&address);
        // SAFETY: the caller vouches for the memory; the kernel takes a `VarlenParams`, two `i64` and the address of a `u32`.
        unsafe { self.runtime.launch(checker, &ONE_BLOCK, &arguments) }
    }

    /// Whether the arrays of lengths, and the list, are there and long enough.
    fn check_lengths(&self, operands: &VarlenOperands, schedule: DevicePtr) -> Result<(), Refusal> {
        let extents = self.problem.extents()?;
        let offset = self.problem.offsets.size();
        let position = self.problem.alignment.index_type().map_or(1, |index| index.size());
        let asked = |extent: Option<usize>, got: Option<DevicePtr>| extent.map(|need| (need, got.unwrap_or_default()));
        let arrays = [
            (Operand::CuSeqlensQ, offset, Some((extents.cu_seqlens_q, operands.cu_seqlens_q))),
            (Operand::CuSeqlensKv, offset, Some((extents.cu_seqlens_kv, operands.cu_seqlens_kv))),
            (Operand::UsedLengths, offset, asked(extents.used_lengths, operands.used_lengths)),
            (Operand::QueryOffsets, position, asked(extents.query_offsets, operands.query_offsets)),
            (Operand::Schedule, self.schedule.align, Some((self.schedule.bytes, schedule))),
        ];
        let mut reasons = Vec::new();
        for (operand, align, array) in arrays {
            let Some((need, got)) = array else { continue };
            if need == 0 {
                continue;
            }
            if got.is_null() {
                reasons.push(Reason::OperandMissing { operand });
                continue;
            }
            if got.len() < need {
                reasons.push(Reason::OperandTooSmall { operand, need, got: got.len() });
            }
            if !got.is_aligned(align) {
                reasons.push(Reason::OperandMisaligned { operand, address: got.address(), align });
            }
        }
        if reasons.is_empty() { Ok(()) } else { Err(Refusal { engine: None, path: None, reasons }) }
    }
}

impl VarlenPlan for PackedPlan {
    fn problem(&self) -> &VarlenProblem {
        &self.problem
    }

    fn workspace(&self) -> WorkspaceSize {
        self.schedule
    }

    fn schedule(&self) -> WorkspaceSize {
        self.schedule
    }

    fn work(&self) -> Work {
        self.work
    }

    fn explain(&self) -> Explanation {
        self.explanation.clone()
    }

    unsafe fn build_schedule(&self, operands: &VarlenOperands, schedule: DevicePtr) -> Result<(), LaunchError> {
        if self.schedule.bytes == 0 {
            return Ok(());
        }
        self.check_lengths(operands, schedule)?;
        // A launch may turn out to be unaligned, so there is a list for either kernel.
        for loaded in [&self.kernel, &self.unaligned].into_iter().flatten() {
            // SAFETY: the caller vouches for the memory, and its length has been checked.
            unsafe { self.build(operands, &loaded.kernel, schedule)? };
        }
        Ok(())
    }

    unsafe fn launch(&self, operands: &VarlenOperands, workspace: DevicePtr) -> Result<(), LaunchError> {
        operands.check(&self.problem, self.schedule, workspace, self.schedule)?;
        let Some(loaded) = self.kernel_for(operands) else {
            return Ok(());
        };
        let kernel = &loaded.kernel;
        // SAFETY: the caller vouches for the memory, and `check` has compared its length with what the kernels may touch.
        unsafe { self.check(operands, kernel)? };
        let schedule = match operands.schedule {
            Some(schedule) => schedule,
            None => {
                // SAFETY: as above.
                unsafe { self.build(operands, kernel, workspace)? };
                workspace
            }
        };
        let params = params(&self.problem, operands, &kernel.grid, kernel.list.map(|list| list.of(schedule)));
        if let (Some(geometry), Some(hopper)) = (kernel.sm90, &loaded.hopper) {
            let launch = Sm90Launch {
                runtime: &self.runtime,
                function: &loaded.function,
                launch: &loaded.launch,
                geometry,
                hopper,
            };
            // SAFETY: as above.
            return unsafe { launch.enqueue(&self.problem, operands, params) };
        }
        // SAFETY: as above; the kernel takes one `VarlenParams` by value.
        unsafe { self.runtime.launch(&loaded.function, &loaded.launch, &KernelArgs::new().arg(&params))? };
        Ok(())
    }
}
