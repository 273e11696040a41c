//! A plan: kernels loaded, algorithms chosen, and the launch that strings them together.

use std::collections::HashMap;
use std::fmt;

use bytemuck::NoUninit;
use cuattn_core::lowering::{address, mask_params, score_params, strides};
use cuattn_core::{
    EngineId, Explanation, LaunchError, Layout, Operand, Operands, Plan, PlanError, Problem, Reason, Refusal, Strides,
    Work, WorkspaceSize,
};
use cuattn_kernels::Source;
use cuattn_kernels::softmax::{
    self, Chunk as ChunkParams, CopyParams, NonfiniteParams, RowShape, Softmax, SoftmaxParams, TILE_ROWS, TILE_THREADS,
};
use curt::{DevicePtr, Function, KernelArgs, Launch, ModuleSource, Runtime};
use curt_blaslt::{Alignment, BlasLt, Gemm, GemmOperands, GemmPlan, Matrix, Output, Preference};

use crate::Options;
use crate::arrangement::{Chunk, Layouts};
use crate::element::Element;
use crate::engine::plan_error;
use crate::outline::{Outline, Products, Regions, may_mask, probability_scale};
use crate::parameters::stage;

/// Alignment that a fast product wants of its operands.
const FAST_ALIGN: u32 = 16;

pub(crate) struct Phase2aPlan {
    runtime: Runtime,
    problem: Problem,
    outline: Outline,
    regions: Regions,
    layout: Layout,
    steps: Steps,
    // Keeps the handle for other plans of this runtime.
    _blas: Option<BlasLt>,
}

enum Steps {
    Nothing,
    NoKeys { zero: Function, log_sum_exp: Option<RowKernel> },
    Products(Box<ProductSteps>),
}

struct RowKernel {
    function: Function,
    shape: RowShape,
}

struct ProductSteps {
    softmax: RowKernel,
    /// For inputs whose rows overlap.
    copy: Option<Function>,
    /// For values, where keys can be masked.
    copy_finite: Option<Function>,
    /// After the second product, where keys can be masked.
    repair: Option<Function>,
    /// The products of each chunk shape, and for each chunk which it is.
    pairs: Vec<Pair>,
    pair_of_chunk: Vec<usize>,
}

/// The two products of chunks of one shape.
struct Pair {
    scores: Product,
    values: Product,
}

/// A product for pointers that are well aligned, and for any.
struct Product {
    fast: GemmPlan,
    /// `None` where cuBLASLt has no algorithm for such pointers.
    any: Option<GemmPlan>,
}

impl Product {
    fn new(blas: &BlasLt, gemm: &Gemm, fast: Alignment, max_workspace: usize) -> Result<Self, PlanError> {
        let plan = |alignment| blas.plan(gemm, Preference { alignment, max_workspace });
        let element = Alignment {
            a: gemm.input_type.size() as u32,
            b: gemm.input_type.size() as u32,
            d: gemm.output_type.size() as u32,
        };
        let fast_plan = plan(fast).map_err(plan_error)?;
        let any = match plan(element) {
            Ok(any) => Some(any),
            Err(curt_blaslt::Error::NoAlgorithm { .. }) => None,
            Err(error) => return Err(plan_error(error)),
        };
        Ok(Self { fast: fast_plan, any })
    }

    fn workspace_bytes(&self) -> usize {
        self.fast.workspace_bytes().max(self.any.as_ref().map_or(0, GemmPlan::workspace_bytes))
    }

    /// The plan for these pointers, or which of them no plan takes.
    fn for_operands(&self, operands: &GemmOperands) -> Result<&GemmPlan, DevicePtr> {
        let Alignment { a, b, d } = self.fast.alignment();
        let misaligned = [(operands.a, a), (operands.b, b), (operands.d, d)]
            .into_iter()
            .find(|(pointer, align)| !pointer.address().is_multiple_of(u64::from(*align)));
        match (misaligned, &self.any) {
            (None, _) => Ok(&self.fast),
            (Some(_), Some(any)) => Ok(any),
            (Some((pointer, _)), None) => Err(pointer),
        }
    }
}

/// What every pointer to a chunk's operand is a multiple of, at most [`FAST_ALIGN`], where the operand's first byte is one of 16.
fn alignment_of(offsets: impl Iterator<Item = i64>, stride: i64, element: usize) -> u32 {
    let bits = offsets.fold(stride, |bits, offset| bits | offset);
    Alignment::of_address(bits as u64 * element as u64).min(FAST_ALIGN)
}

impl Phase2aPlan {
    pub(crate) fn new(
        runtime: &Runtime,
        blas: Option<BlasLt>,
        problem: &Problem,
        outline: Outline,
        options: Options,
    ) -> Result<Self, PlanError> {
        let element = Element::of(problem.dtype).map_err(Refusal::from)?;
        let steps = match (&outline, &blas) {
            (Outline::Products(products), Some(blas)) => {
                Steps::Products(Box::new(ProductSteps::new(runtime, blas, problem, products, element, options)?))
            }
            (Outline::NoKeys, _) => Steps::NoKeys {
                zero: load(runtime, &softmax::copy_rows(element.kernel, softmax::Copy::Zero))?,
                log_sum_exp: if problem.wants_log_sum_exp {
                    Some(RowKernel::load(runtime, &Softmax::plain(element.kernel, 0))?)
                } else {
                    None
                },
            },
            _ => Steps::Nothing,
        };
        let blas_bytes = match &steps {
            Steps::Products(steps) => steps.pairs.iter().map(Pair::workspace_bytes).max().unwrap_or(0),
            _ => 0,
        };
        let (regions, layout) = outline.workspace(problem, blas_bytes)?;
        Ok(Self { runtime: runtime.clone(), problem: problem.clone(), outline, regions, layout, steps, _blas: blas })
    }
}

impl RowKernel {
    fn load(runtime: &Runtime, softmax: &Softmax) -> Result<Self, PlanError> {
        Ok(Self { function: load(runtime, &softmax.source())?, shape: softmax.shape })
    }
}

impl Pair {
    fn takes_any_pointer(&self) -> bool {
        self.scores.any.is_some() && self.values.any.is_some()
    }

    fn workspace_bytes(&self) -> usize {
        self.scores.workspace_bytes().max(self.values.workspace_bytes())
    }
}

impl ProductSteps {
    fn new(
        runtime: &Runtime,
        blas: &BlasLt,
        problem: &Problem,
        products: &Products,
        element: Element,
        options: Options,
    ) -> Result<Self, PlanError> {
        let softmax = Softmax {
            every_key: !may_mask(problem),
            bias: element.bias(problem.mask.bias.map(|bias| bias.kind)),
            softcap: problem.softcap.is_some(),
            score_mod: problem.score_mod.as_ref().map(|score_mod| score_mod.body.to_string()),
            stage: stage(problem.scores.map(|scores| scores.stage)),
            stage_f32: problem.scores.is_some_and(|scores| scores.dtype != problem.dtype),
            ..Softmax::plain(element.kernel, problem.shape.kv_len)
        };
        let (masked, copies) = (may_mask(problem), products.copies);
        let load_if = |wanted: bool, source: Source| wanted.then(|| load(runtime, &source)).transpose();
        let plain = copies.q || copies.k || (copies.v && !masked);
        let mut steps = Self {
            softmax: RowKernel::load(runtime, &softmax)?,
            copy: load_if(plain, softmax::copy_rows(element.kernel, softmax::Copy::Plain))?,
            copy_finite: load_if(masked, softmax::copy_rows(element.kernel, softmax::Copy::Finite))?,
            repair: load_if(masked, softmax::nonfinite_values(element.kernel))?,
            pairs: Vec::new(),
            pair_of_chunk: Vec::with_capacity(products.chunks.len()),
        };
        let mut known = HashMap::new();
        for chunk in &products.chunks {
            let shape = (chunk.slices, chunk.rows);
            let pair = match known.get(&shape) {
                Some(&pair) => pair,
                None => {
                    let description = Description { problem, products, element, chunk };
                    steps.pairs.push(description.pair(blas, options.max_blas_workspace)?);
                    known.insert(shape, steps.pairs.len() - 1);
                    steps.pairs.len() - 1
                }
            };
            steps.pair_of_chunk.push(pair);
        }
        Ok(steps)
    }
}

/// What the products of one chunk shape are made from.
struct Description<'a> {
    problem: &'a Problem,
    products: &'a Products,
    element: Element,
    chunk: &'a Chunk,
}

impl Description<'_> {
    fn pair(&self, blas: &BlasLt, max_workspace: usize) -> Result<Pair, PlanError> {
        let Self { problem, products, element, chunk } = *self;
        let Products { arrangement, layouts, leading, .. } = products;
        let shape = problem.shape;
        let size = problem.dtype.size();
        // One product of a batch has no batch stride, so that chunks which differ only in it share an algorithm.
        let stride = |stride: i64| if chunk.slices > 1 { stride } else { 0 };
        let batch = arrangement.batch.strides;
        let (q, k, v, o) = (stride(batch.q), stride(batch.k), stride(batch.v), stride(batch.o));
        let offsets = || products.chunks.iter().map(|chunk| chunk.offsets);
        let leading = *leading as i64;
        let slice = chunk.rows as i64 * leading;
        // Probabilities lie in the scores' rows, from each row's start.
        let narrower = 4 / size as i64;

        let mut scores = Gemm::packed(chunk.rows, shape.kv_len, shape.head_dim, element.blas);
        scores.batch = chunk.slices;
        scores.output_type = curt_blaslt::ElementType::F32;
        scores.a = Matrix::row_major(arrangement.q_row, q);
        scores.b = Matrix::transposed(layouts.k.row, k);
        scores.d = Output { leading, batch_stride: stride(slice) };

        let mut values = Gemm::packed(chunk.rows, shape.v_head_dim, shape.kv_len, element.blas);
        values.batch = chunk.slices;
        values.a = Matrix::row_major(leading * narrower, stride(slice * narrower));
        values.b = Matrix::row_major(layouts.v.row, v);
        values.d = Output { leading: arrangement.o_row, batch_stride: o };
        values.alpha = 1.0 / probability_scale(problem.dtype);

        let fast_scores = Alignment {
            a: alignment_of(offsets().map(|offsets| offsets.q), q, size),
            b: alignment_of(offsets().map(|offsets| offsets.k), k, size),
            d: FAST_ALIGN,
        };
        let fast_values = Alignment {
            a: FAST_ALIGN,
            b: alignment_of(offsets().map(|offsets| offsets.v), v, size),
            d: alignment_of(offsets().map(|offsets| offsets.o), o, size),
        };
        Ok(Pair {
            scores: Product::new(blas, &scores, fast_scores, max_workspace)?,
            values: Product::new(blas, &values, fast_values, max_workspace)?,
        })
    }
}

fn load(runtime: &Runtime, source: &Source) -> Result<Function, PlanError> {
    let module = runtime.load(&ModuleSource::new(source.root(), source.assemble()))?;
    Ok(module.function(source.entry())?)
}

/// A launch in progress: the plan with its operands.
struct Launching<'a> {
    plan: &'a Phase2aPlan,
    operands: &'a Operands,
    workspace: DevicePtr,
}

impl Launching<'_> {
    /// # Safety
    ///
    /// `parameters` must be what `function` takes, with the addresses of device memory that it may use.
    unsafe fn kernel<P: NoUninit>(
        &self,
        function: &Function,
        blocks: usize,
        threads: u32,
        parameters: &P,
    ) -> Result<(), LaunchError> {
        let launch = Launch::new([blocks as u32, 1, 1], [threads, 1, 1]);
        // SAFETY: this function's contract.
        Ok(unsafe { self.plan.runtime.launch(function, &launch, &KernelArgs::new().arg(parameters)) }?)
    }

    /// Copies the rows of one tensor.
    ///
    /// # Safety
    ///
    /// Both tensors must be device memory of these layouts.
    unsafe fn copy(&self, function: &Function, copy: &RowCopy) -> Result<(), LaunchError> {
        let element = self.plan.problem.dtype.size();
        let wide = copy.is_wide(element);
        let parameters = CopyParams {
            source: copy.source.address(),
            target: copy.target.address(),
            nonfinite: copy.nonfinite.address(),
            from: strides(copy.from),
            to: strides(copy.to),
            heads: copy.heads as i32,
            rows: copy.rows as i32,
            dim: copy.dim as i32,
            wide: i32::from(wide),
        };
        let blocks = self.plan.problem.shape.batch * copy.heads * copy.rows.div_ceil(TILE_ROWS);
        // SAFETY: the kernel is `copy_rows`, and the tensors are as this function's contract says.
        unsafe { self.kernel(function, blocks, TILE_THREADS, &parameters) }
    }

    fn softmax_params(&self, chunk: ChunkParams) -> SoftmaxParams {
        let Problem { shape, dtype, .. } = &self.plan.problem;
        SoftmaxParams {
            score: score_params(&self.plan.problem, self.operands),
            mask: mask_params(&self.plan.problem, self.operands),
            chunk,
            sinks: address(self.operands.sinks),
            log_sum_exp: address(self.operands.log_sum_exp),
            stage: address(self.operands.scores),
            q_heads: shape.q_heads as i32,
            probability_scale: probability_scale(*dtype),
        }
    }

    /// # Safety
    ///
    /// That of [`Plan::launch`].
    unsafe fn softmax(&self, kernel: &RowKernel, chunk: ChunkParams) -> Result<(), LaunchError> {
        let blocks = (chunk.total_rows as usize).div_ceil(kernel.shape.block_rows() as usize);
        // SAFETY: the kernel takes these parameters, whose addresses are the checked operands and the workspace.
        unsafe { self.kernel(&kernel.function, blocks, kernel.shape.block_threads(), &self.softmax_params(chunk)) }
    }

    /// # Safety
    ///
    /// That of [`Plan::launch`].
    unsafe fn no_keys(&self, zero: &Function, log_sum_exp: Option<&RowKernel>) -> Result<(), LaunchError> {
        let Problem { shape, o, .. } = &self.plan.problem;
        let rows = RowCopy {
            source: DevicePtr::default(),
            target: self.operands.o,
            nonfinite: DevicePtr::default(),
            from: Strides { batch: 0, head: 0, row: 0 },
            to: *o,
            heads: shape.q_heads,
            rows: shape.q_len,
            dim: shape.v_head_dim,
        };
        // SAFETY: a copy of zeros reads nothing, and the output was checked to have this layout.
        unsafe { self.copy(zero, &rows) }?;
        let Some(kernel) = log_sum_exp else { return Ok(()) };
        let chunk = ChunkParams {
            total_rows: (shape.batch * shape.q_heads * shape.q_len) as i32,
            rows: shape.q_len as i32,
            unit_step: 1,
            units: shape.q_heads as i32,
            heads_per_unit: 1,
            q_len: shape.q_len as i32,
            ..ChunkParams::default()
        };
        // SAFETY: this function's contract; rows of no keys have no scores to read.
        unsafe { self.softmax(kernel, chunk) }
    }

    /// # Safety
    ///
    /// That of [`Plan::launch`].
    unsafe fn products(&self, products: &Products, steps: &ProductSteps) -> Result<(), LaunchError> {
        // SAFETY: this function's contract.
        let inputs = unsafe { self.copy_inputs(products, steps) }?;
        for (chunk, &pair) in products.chunks.iter().zip(&steps.pair_of_chunk) {
            // SAFETY: this function's contract.
            unsafe { self.chunk(products, steps, &steps.pairs[pair], chunk, &inputs) }?;
        }
        Ok(())
    }

    /// Puts copies of inputs into the workspace, and says where the products find them.
    ///
    /// # Safety
    ///
    /// That of [`Plan::launch`].
    unsafe fn copy_inputs(&self, products: &Products, steps: &ProductSteps) -> Result<Inputs, LaunchError> {
        let Problem { shape, q, k, v, .. } = &self.plan.problem;
        let Regions { q: q_copy, k: k_copy, v: v_copy, nonfinite, .. } = self.plan.regions;
        let Layouts { q: q_to, k: k_to, v: v_to, .. } = products.layouts;
        let rows = |source: DevicePtr, target: DevicePtr, from: Strides, to: Strides, extents: [usize; 3]| RowCopy {
            source,
            target,
            nonfinite: nonfinite.of(self.workspace),
            from,
            to,
            heads: extents[0],
            rows: extents[1],
            dim: extents[2],
        };
        let mut inputs = Inputs { q: self.operands.q, k: self.operands.k, v: self.operands.v };
        if let (true, Some(copy)) = (products.copies.q, &steps.copy) {
            inputs.q = q_copy.of(self.workspace);
            let extents = [shape.q_heads, shape.q_len, shape.head_dim];
            // SAFETY: q was checked to have its layout, and its region was sized for the copy's.
            unsafe { self.copy(copy, &rows(self.operands.q, inputs.q, *q, q_to, extents)) }?;
        }
        if let (true, Some(copy)) = (products.copies.k, &steps.copy) {
            inputs.k = k_copy.of(self.workspace);
            let extents = [shape.kv_heads, shape.kv_len, shape.head_dim];
            // SAFETY: as for q.
            unsafe { self.copy(copy, &rows(self.operands.k, inputs.k, *k, k_to, extents)) }?;
        }
        if let (true, Some(copy)) = (products.copies.v, steps.copy_finite.as_ref().or(steps.copy.as_ref())) {
            inputs.v = v_copy.of(self.workspace);
            let extents = [shape.kv_heads, shape.kv_len, shape.v_head_dim];
            // SAFETY: as for q.
            unsafe { self.copy(copy, &rows(self.operands.v, inputs.v, *v, v_to, extents)) }?;
        }
        Ok(inputs)
    }

    /// # Safety
    ///
    /// That of [`Plan::launch`].
    unsafe fn chunk(
        &self,
        products: &Products,
        steps: &ProductSteps,
        pair: &Pair,
        chunk: &Chunk,
        inputs: &Inputs,
    ) -> Result<(), LaunchError> {
        let scores = self.plan.regions.scores.of(self.workspace);
        let GemmPair { scores: scores_operands, values: values_operands } =
            self.gemm_operands(chunk, inputs, scores)?;
        let arrangement = &products.arrangement;
        let parameters = ChunkParams {
            scores: scores.address(),
            leading: products.leading as i64,
            total_rows: (chunk.slices * chunk.rows) as i32,
            rows: chunk.rows as i32,
            first_row: chunk.first_row as i32,
            first_unit: chunk.first_unit as i32,
            unit_step: arrangement.batch.units as i32,
            units: arrangement.units as i32,
            heads_per_unit: arrangement.heads_per_unit as i32,
            q_len: self.plan.problem.shape.q_len as i32,
        };
        // SAFETY: operands and workspace were checked, and are device memory by this function's contract.
        unsafe {
            self.gemm(&pair.scores, &scores_operands)?;
            self.softmax(&steps.softmax, parameters)?;
            self.gemm(&pair.values, &values_operands)?;
        }
        let Some(repair) = &steps.repair else { return Ok(()) };
        let Problem { shape, v, o, .. } = &self.plan.problem;
        let parameters = NonfiniteParams {
            chunk: parameters,
            v: self.operands.v.address(),
            o: self.operands.o.address(),
            nonfinite: self.plan.regions.nonfinite.of(self.workspace).address(),
            v_strides: strides(*v),
            o_strides: strides(*o),
            kv_heads: shape.kv_heads as i32,
            group: shape.group() as i32,
            words: shape.kv_len.div_ceil(TILE_ROWS) as i32,
            v_dim: shape.v_head_dim as i32,
        };
        let blocks = chunk.slices * chunk.rows.div_ceil(TILE_ROWS);
        // SAFETY: the kernel takes these parameters; the words were written when the values were copied.
        unsafe { self.kernel(repair, blocks, TILE_THREADS, &parameters) }
    }

    fn gemm_operands(&self, chunk: &Chunk, inputs: &Inputs, scores: DevicePtr) -> Result<GemmPair, LaunchError> {
        let size = self.plan.problem.dtype.size();
        let from = |pointer: DevicePtr, offset: i64| {
            let offset = offset as usize * size;
            pointer.slice(offset, pointer.len().saturating_sub(offset))
        };
        Ok(GemmPair {
            scores: GemmOperands {
                a: from(inputs.q, chunk.offsets.q)?,
                b: from(inputs.k, chunk.offsets.k)?,
                d: scores,
                ..GemmOperands::default()
            },
            values: GemmOperands {
                a: scores,
                b: from(inputs.v, chunk.offsets.v)?,
                d: from(self.operands.o, chunk.offsets.o)?,
                ..GemmOperands::default()
            },
        })
    }

    /// # Safety
    ///
    /// The operands must be device memory of the product's layouts.
    unsafe fn gemm(&self, product: &Product, operands: &GemmOperands) -> Result<(), LaunchError> {
        // Launch has looked at the alignment of every operand already.
        let plan = product.for_operands(operands).unwrap_or(&product.fast);
        let workspace = self.plan.regions.blas.of(self.workspace);
        // SAFETY: this function's contract; the workspace's region was sized for the largest product.
        unsafe { plan.launch(operands, workspace) }.map_err(launch_error)
    }

    /// Refuses pointers that no planned product takes, before anything is enqueued.
    fn check_alignment(&self, products: &Products, steps: &ProductSteps) -> Result<(), LaunchError> {
        if steps.pairs.iter().all(Pair::takes_any_pointer) {
            return Ok(());
        }
        let Regions { scores, q, k, v, .. } = self.plan.regions;
        let copies = products.copies;
        let choose = |copied: bool, copy: DevicePtr, operand: DevicePtr| if copied { copy } else { operand };
        let inputs = Inputs {
            q: choose(copies.q, q.of(self.workspace), self.operands.q),
            k: choose(copies.k, k.of(self.workspace), self.operands.k),
            v: choose(copies.v, v.of(self.workspace), self.operands.v),
        };
        for (chunk, &pair) in products.chunks.iter().zip(&steps.pair_of_chunk) {
            let pair = &steps.pairs[pair];
            let operands = self.gemm_operands(chunk, &inputs, scores.of(self.workspace))?;
            for (product, operands, names) in [
                (&pair.scores, &operands.scores, [Operand::Q, Operand::K, Operand::Scores]),
                (&pair.values, &operands.values, [Operand::Scores, Operand::V, Operand::O]),
            ] {
                if let Err(pointer) = product.for_operands(operands) {
                    let pointers = [operands.a, operands.b, operands.d];
                    let at = pointers.iter().position(|&candidate| candidate == pointer).unwrap_or(0);
                    let reason = Reason::OperandMisaligned {
                        operand: names[at],
                        address: pointer.address(),
                        align: FAST_ALIGN as usize,
                    };
                    return Err(Refusal::by_engine(EngineId::Phase2a, vec![reason]).into());
                }
            }
        }
        Ok(())
    }
}

/// Where the products find their inputs.
struct Inputs {
    q: DevicePtr,
    k: DevicePtr,
    v: DevicePtr,
}

struct GemmPair {
    scores: GemmOperands,
    values: GemmOperands,
}

/// One tensor's copy.
struct RowCopy {
    source: DevicePtr,
    target: DevicePtr,
    nonfinite: DevicePtr,
    from: Strides,
    to: Strides,
    heads: usize,
    rows: usize,
    dim: usize,
}

impl RowCopy {
    /// Whether every row starts at a multiple of 16 bytes, and ends at one.
    fn is_wide(&self, element: usize) -> bool {
        let bytes = |strides: Strides| (strides.batch | strides.head | strides.row) as u64 * element as u64;
        let all = self.source.address()
            | self.target.address()
            | bytes(self.from)
            | bytes(self.to)
            | (self.dim * element) as u64;
        all.is_multiple_of(16)
    }
}

impl Plan for Phase2aPlan {
    fn problem(&self) -> &Problem {
        &self.problem
    }

    fn workspace(&self) -> WorkspaceSize {
        self.layout.size()
    }

    fn work(&self) -> Work {
        self.problem.work()
    }

    fn explain(&self) -> Explanation {
        let mut explanation = self.outline.explain(&self.problem);
        if let Steps::Products(steps) = &self.steps {
            for pair in &steps.pairs {
                explanation.details.push(format!("scores: {}", pair.scores.fast));
                explanation.details.push(format!("values: {}", pair.values.fast));
            }
        }
        explanation
    }

    unsafe fn launch(&self, operands: &Operands, workspace: DevicePtr) -> Result<(), LaunchError> {
        operands.check(&self.problem, workspace, self.workspace())?;
        let launching = Launching { plan: self, operands, workspace };
        match (&self.steps, &self.outline) {
            (Steps::NoKeys { zero, log_sum_exp }, _) => {
                // SAFETY: this function's contract, and the operands were checked.
                unsafe { launching.no_keys(zero, log_sum_exp.as_ref()) }
            }
            (Steps::Products(steps), Outline::Products(products)) => {
                launching.check_alignment(products, steps)?;
                // SAFETY: this function's contract, and the operands were checked.
                unsafe { launching.products(products, steps) }
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for Phase2aPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Phase2aPlan")
            .field("problem", &self.problem)
            .field("workspace", &self.workspace())
            .finish_non_exhaustive()
    }
}

fn launch_error(error: curt_blaslt::Error) -> LaunchError {
    match error {
        curt_blaslt::Error::Runtime(error) => error.into(),
        curt_blaslt::Error::Call { call, status, gemm } => curt::Error::Driver {
            call,
            code: status.0 as i32,
            name: status.name().to_owned(),
            text: gemm.map_or_else(String::new, |gemm| format!("for the product {gemm}")),
        }
        .into(),
        error => Refusal::by_engine(
            EngineId::Phase2a,
            vec![Reason::unsupported(
                format!("these operands ({error})"),
                "phase2a",
                "give operands that fit the plan's problem",
            )],
        )
        .into(),
    }
}
