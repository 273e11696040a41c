//! Recipes on a GPU: rows are gathered by small kernels, and attention is a plan.

use cuattn::curt::{Capabilities, DevicePtr, Function, KernelArgs, Launch, ModuleSource, Runtime};
use cuattn::{DType, Operands, Plan, Policy, VarlenOperands, VarlenPlan, WorkspaceSize};
use cuattn_kernels::abi::Strides as KernelStrides;
use cuattn_kernels::ep::{
    self, FillParams, GatherParams, GatherTensor, MOST_TENSORS, PackBiasParams, PaddingForm, THREADS, TILE_ROWS,
};
use cuattn_kernels::{Element, Source};

use super::Memories;
use crate::Reason;
use crate::error::Fault;
use crate::recipe::{Attend, Gather, KeyPadding, Recipe};

/// One stream of a GPU.
pub(crate) struct Gpu {
    pub(super) runtime: Runtime,
    pub(super) policy: Policy,
    pub(super) identity: u64,
}

pub(super) fn consider(device: &Capabilities, policy: Policy, recipe: &Recipe) -> Result<(), Reason> {
    let considered = match &recipe.attend {
        Attend::Dense(problem, _) => cuattn::consider(device, problem, policy),
        Attend::Packed(problem, _) => cuattn::consider_varlen(device, problem, policy),
    };
    match considered {
        Ok(_) => Ok(()),
        Err(cuattn::Error::Illegal(refusal)) => Err(Reason::Problem(refusal)),
        Err(other) => Err(Reason::Engine(other.to_string())),
    }
}

/// Everything that following a recipe needs: compiled, loaded and planned.
pub(super) struct GpuPlan {
    runtime: Runtime,
    fill: Option<Function>,
    gather: Option<(Function, Launch)>,
    pack: Option<(Function, Launch)>,
    attend: Attending,
}

enum Attending {
    Dense(Box<dyn Plan>),
    Packed(Box<dyn VarlenPlan>),
}

impl GpuPlan {
    pub(super) fn new(gpu: &Gpu, recipe: &Recipe) -> Result<Self, Fault> {
        let runtime = &gpu.runtime;
        if runtime.is_capturing()? {
            return Err(Fault::NotPlanned);
        }
        let load = |source: Source| -> Result<Function, Fault> {
            let module = runtime.load(&ModuleSource::new(source.root(), source.assemble()))?;
            Ok(module.function(source.entry())?)
        };
        let fill = recipe.fill.map(|_| load(ep::fill())).transpose()?;
        let gather = match gather_launch(&recipe.gathers)? {
            Some((dtype, launch)) => Some((load(ep::gather_rows(element(dtype)?))?, launch)),
            None => None,
        };
        let pack = match &recipe.pack_bias {
            Some(pack) => {
                let dtype = pack.bias.map_or(DType::F32, |(_, dtype, _)| dtype);
                let count: usize = pack.extents.iter().product();
                let blocks = count.div_ceil(THREADS as usize).clamp(1, 1 << 20) as u32;
                Some((load(ep::pack_bias(element(dtype)?))?, Launch::new([blocks, 1, 1], [THREADS, 1, 1])))
            }
            None => None,
        };
        let attend = match &recipe.attend {
            Attend::Dense(problem, _) => Attending::Dense(cuattn::plan(runtime, problem, gpu.policy)?),
            Attend::Packed(problem, _) => Attending::Packed(cuattn::plan_varlen(runtime, problem, gpu.policy)?),
        };
        Ok(Self { runtime: runtime.clone(), fill, gather, pack, attend })
    }

    pub(super) fn workspace(&self) -> WorkspaceSize {
        match &self.attend {
            Attending::Dense(plan) => plan.workspace(),
            Attending::Packed(plan) => plan.workspace(),
        }
    }

    /// # Safety
    ///
    /// Tensors are device memory of this context, as large as the recipe wants; outputs and scratch overlap nothing.
    pub(super) unsafe fn run(
        &self,
        recipe: &Recipe,
        memories: &Memories<'_>,
        workspace: DevicePtr,
    ) -> Result<(), Fault> {
        if let (Some(function), Some(fill)) = (&self.fill, &recipe.fill) {
            let count = fill.count as i32;
            let params =
                FillParams { target: memories.resolve(fill.to)?.address(), value: fill.value, count, reserved: 0 };
            if fill.count > 0 {
                let launch = Launch::new([fill.count.div_ceil(THREADS as usize) as u32, 1, 1], [THREADS, 1, 1]);
                // SAFETY: the kernel writes `count` integers to scratch memory of that size.
                unsafe { self.runtime.launch(function, &launch, &KernelArgs::new().arg(&params))? };
            }
        }
        if let Some((function, launch)) = &self.gather {
            let params = gather_params(&recipe.gathers, memories)?;
            // SAFETY: the kernel reads and writes within the tensors, whose extents and strides it is given.
            unsafe { self.runtime.launch(function, launch, &KernelArgs::new().arg(&params))? };
        }
        if let (Some((function, launch)), Some(pack)) = (&self.pack, &recipe.pack_bias) {
            let [batch, heads, rows, keys] = pack.extents;
            let (padding, form) = pack.padding;
            let (bias, strides) = match pack.bias {
                Some((place, _, strides)) => (memories.resolve(place)?.address(), strides),
                None => (0, [0; 3]),
            };
            let params = PackBiasParams {
                padding: memories.resolve(padding)?.address(),
                bias,
                target: memories.resolve(pack.to)?.address(),
                bias_batch: strides[0],
                bias_head: strides[1],
                bias_row: strides[2],
                count: (batch * heads * rows * keys) as i64,
                heads: heads as i32,
                rows: rows as i32,
                keys: keys as i32,
                form: padding_form(form) as i32,
                filter: pack.filter,
                reserved: 0,
            };
            // SAFETY: the kernel reads and writes within the tensors, whose extents it is given.
            unsafe { self.runtime.launch(function, launch, &KernelArgs::new().arg(&params))? };
        }
        match (&self.attend, &recipe.attend) {
            (Attending::Dense(plan), Attend::Dense(_, places)) => {
                let operands = Operands {
                    q: memories.resolve(places.q)?,
                    k: memories.resolve(places.k)?,
                    v: memories.resolve(places.v)?,
                    o: memories.resolve(places.o)?,
                    bias: memories.resolve_if(places.bias)?,
                    key_lengths: memories.resolve_if(places.key_lengths)?,
                    query_offsets: memories.resolve_if(places.query_offsets)?,
                    scores: memories.resolve_if(places.scores)?,
                    ..Operands::default()
                };
                // SAFETY: as the caller promises.
                unsafe { plan.launch(&operands, workspace) }.map_err(Fault::from)
            }
            (Attending::Packed(plan), Attend::Packed(_, places)) => {
                let operands = VarlenOperands {
                    q: memories.resolve(places.q)?,
                    k: memories.resolve(places.k)?,
                    v: memories.resolve(places.v)?,
                    o: memories.resolve(places.o)?,
                    cu_seqlens_q: memories.resolve(places.cu_seqlens_q)?,
                    cu_seqlens_kv: memories.resolve(places.cu_seqlens_kv)?,
                    ..VarlenOperands::default()
                };
                // SAFETY: as the caller promises.
                unsafe { plan.launch(&operands, workspace) }.map_err(Fault::from)
            }
            (Attending::Dense(_), Attend::Packed(..)) | (Attending::Packed(_), Attend::Dense(..)) => {
                Err(Fault::Refused(Reason::Engine("a plan of another recipe".to_owned())))
            }
        }
    }
}

fn element(dtype: DType) -> Result<Element, Fault> {
    match dtype {
        DType::F32 => Ok(Element::F32),
        DType::F16 => Ok(Element::F16),
        DType::Bf16 => Ok(Element::Bf16),
        other => Err(Fault::Refused(Reason::Engine(format!("there is no kernel that moves rows of {other}")))),
    }
}

const fn padding_form(form: KeyPadding) -> PaddingForm {
    match form {
        KeyPadding::Lengths => PaddingForm::Lengths,
        KeyPadding::Keys => PaddingForm::Keys,
        KeyPadding::QueryKeys => PaddingForm::QueryKeys,
    }
}

/// One launch for all gathers, as there are at most three; none where they move nothing.
fn gather_launch(gathers: &[Gather]) -> Result<Option<(DType, Launch)>, Fault> {
    let Some(first) = gathers.first() else { return Ok(None) };
    // The kernel counts rows, heads and blocks in 31 bits.
    let fits = |count: usize| i32::try_from(count).is_ok();
    let mut most = 0;
    for gather in gathers {
        let blocks = (gather.batch * gather.heads).saturating_mul(gather.rows().div_ceil(TILE_ROWS));
        if !fits(gather.rows()) || !fits(gather.dim) || !fits(blocks) {
            let (batch, heads, rows, dim) = (gather.batch, gather.heads, gather.rows(), gather.dim);
            let text = format!("a cache of [{batch}, {heads}, {rows}, {dim}] has more rows than a launch can move");
            return Err(Fault::Refused(Reason::Engine(text)));
        }
        most = most.max(blocks);
    }
    let launch = Launch::new([most as u32, gathers.len() as u32, 1], [THREADS, 1, 1]);
    Ok((most > 0).then_some((first.dtype, launch)))
}

fn gather_params(gathers: &[Gather], memories: &Memories<'_>) -> Result<GatherParams, Fault> {
    let mut params = GatherParams { tensors: [GatherTensor::default(); MOST_TENSORS] };
    for (tensor, gather) in params.tensors.iter_mut().zip(gathers) {
        let (past, from_past) = match gather.past {
            Some((place, strides)) => (memories.resolve(place)?.address(), kernel_strides(strides)),
            None => (0, KernelStrides::default()),
        };
        let new = memories.resolve(gather.new.0)?.address();
        let add = memories.resolve_if(gather.add)?.map_or(0, |add| add.address());
        let target = memories.resolve(gather.to.0)?.address();
        let (from_new, to) = (kernel_strides(gather.new.1), kernel_strides(gather.to.1));
        *tensor = GatherTensor {
            past,
            new,
            add,
            target,
            from_past,
            from_new,
            to,
            slices: (gather.batch * gather.heads) as i32,
            heads: gather.heads as i32,
            past_rows: gather.past_rows as i32,
            rows: gather.rows() as i32,
            dim: gather.dim as i32,
            wide: i32::from(gather.add.is_none() && is_wide(gather, [past, new, target], [from_past, from_new, to])),
        };
    }
    Ok(params)
}

/// Whether every row can be taken in pieces of 16 bytes.
fn is_wide(gather: &Gather, addresses: [u64; 3], strides: [KernelStrides; 3]) -> bool {
    let elements = 16 / gather.dtype.size() as i64;
    let fits = |stride: i64| stride % elements == 0;
    gather.dim as i64 % elements == 0
        && addresses.iter().all(|address| address % 16 == 0)
        && strides.iter().all(|strides| fits(strides.batch) && fits(strides.head) && fits(strides.row))
}

fn kernel_strides(strides: cuattn::Strides) -> KernelStrides {
    KernelStrides { batch: strides.batch, head: strides.head, row: strides.row }
}

#[cfg(test)]
mod tests {
    use cuattn::Strides;

    use super::*;
    use crate::recipe::Place;

    fn gather(heads: usize, past_rows: usize, new_rows: usize) -> Gather {
        let strides = Strides::bhsd(heads, past_rows + new_rows, 8);
        Gather {
            dtype: DType::F16,
            batch: 2,
            heads,
            dim: 8,
            past_rows,
            new_rows,
            past: None,
            new: (Place::input(0), strides),
            add: None,
            to: (Place::output(0), strides),
        }
    }

    #[test]
    fn a_launch_has_blocks_for_the_longest_tensor_of_all() {
        let (_, launch) = gather_launch(&[gather(3, 64, 1), gather(3, 10, 1)]).unwrap().unwrap();
        assert_eq!((launch.grid, launch.block), ([2 * 3 * 2, 2, 1], [THREADS, 1, 1]));
        assert!(gather_launch(&[]).unwrap().is_none());
        assert!(gather_launch(&[gather(3, 0, 0)]).unwrap().is_none());
    }

    #[test]
    fn more_rows_than_a_launch_can_move_are_refused() {
        let error = gather_launch(&[gather(1, 1 << 31, 1)]).unwrap_err();
        insta::assert_snapshot!(error, @"a cache of [2, 1, 2147483649, 8] has more rows than a launch can move");
    }

    #[test]
    fn pieces_of_16_bytes_need_every_row_to_begin_at_one() {
        let of = |strides: Strides| kernel_strides(strides);
        let even = Strides { batch: 64, head: 32, row: 8 };
        let odd = Strides { row: 12, ..even };
        let gather = gather(1, 1, 1);
        assert!(is_wide(&gather, [16, 32, 64], [of(even); 3]));
        assert!(!is_wide(&gather, [16, 40, 64], [of(even); 3]));
        assert!(!is_wide(&gather, [16, 32, 64], [of(even), of(odd), of(even)]));
    }
}
