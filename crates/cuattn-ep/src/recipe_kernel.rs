//! The factory and the kernel of every operator: claims, and recipes that are followed.

use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};

use cuattn::curt::DevicePtr;

use crate::device::{Device, Memories, Prepared};
use crate::error::Fault;
use crate::kernel::{CaptureSupport, Kernel, KernelFactory, Lifetime, Role, WorkspaceRequirement};
use crate::operators::Operator;
use crate::recipe::Recipe;
use crate::tensor::Layout;
use crate::{AttributeKind, ExecuteError, InputInfo, Node, OutputSpec, Reason, TensorMut, TensorView};

/// Plans that a kernel keeps. A decoder that grows by a token a step makes one a step; those of long ago go.
const KEPT_PLANS: usize = 256;

pub(crate) struct Factory<O>(PhantomData<fn() -> O>);

impl<O: Operator> Factory<O> {
    pub(crate) fn boxed() -> Box<dyn KernelFactory> {
        Box::new(Self(PhantomData))
    }
}

impl<O: Operator> KernelFactory for Factory<O> {
    fn domain(&self) -> &'static str {
        O::DOMAIN
    }

    fn op_type(&self) -> &'static str {
        O::OP_TYPE
    }

    fn versions(&self) -> &'static [u32] {
        O::VERSIONS
    }

    fn inputs(&self) -> &'static [&'static str] {
        O::INPUTS
    }

    fn outputs(&self) -> &'static [&'static str] {
        O::OUTPUTS
    }

    fn attributes(&self) -> &'static [(&'static str, AttributeKind)] {
        O::ATTRIBUTES
    }

    fn claim(&self, device: &Device, node: &Node, inputs: &[Option<InputInfo>]) -> Result<(), Reason> {
        let operator = O::new(node)?;
        operator.check(inputs)?;
        let layouts: Option<Vec<Option<Layout>>> = inputs
            .iter()
            .map(|input| match input {
                None => Some(None),
                Some(info) => info.known_shape().map(|shape| Some(Layout::contiguous(info.element, &shape))),
            })
            .collect();
        match layouts {
            Some(layouts) => device.consider(&operator.lower(&layouts)?),
            None => Ok(()),
        }
    }

    fn create(&self, node: &Node) -> Result<Box<dyn Kernel>, Reason> {
        Ok(Box::new(RecipeKernel {
            operator: O::new(node)?,
            node: node.to_string(),
            recipes: Mutex::default(),
            plans: Mutex::default(),
        }))
    }
}

/// Layouts of the inputs: what a recipe depends on.
type Layouts = Vec<Option<Layout>>;

struct RecipeKernel<O> {
    operator: O,
    node: String,
    recipes: Mutex<Kept<Layouts, Arc<Recipe>>>,
    /// By layouts and device.
    plans: Mutex<Kept<(Layouts, u64), Arc<Prepared>>>,
}

impl<O: Operator> RecipeKernel<O> {
    fn error(&self, why: impl Into<Fault>) -> ExecuteError {
        ExecuteError { node: self.node.clone(), why: why.into() }
    }

    fn recipe(&self, layouts: &Layouts) -> Result<Arc<Recipe>, ExecuteError> {
        if let Some(recipe) = lock(&self.recipes).get(layouts) {
            return Ok(recipe);
        }
        let infos: Vec<_> =
            layouts.iter().map(|layout| layout.as_ref().map(|l| InputInfo::new(l.element, &l.shape))).collect();
        self.operator.check(&infos).map_err(|reason| self.error(reason))?;
        for (index, layout) in layouts.iter().enumerate() {
            if let Some(layout) = layout.as_ref().filter(|layout| !layout.is_contiguous())
                && !O::STRIDED.contains(&index)
            {
                return Err(self.error(Reason::InputStrides {
                    input: O::INPUTS[index],
                    shape: layout.shape.clone(),
                    strides: layout.strides.clone(),
                    want: "this input must be contiguous",
                }));
            }
        }
        let recipe = Arc::new(self.operator.lower(layouts).map_err(|reason| self.error(reason))?);
        lock(&self.recipes).keep(layouts.clone(), Arc::clone(&recipe));
        Ok(recipe)
    }

    fn prepared(&self, device: &Device, inputs: &[Option<TensorView<'_>>]) -> Result<Arc<Prepared>, ExecuteError> {
        let key = (layouts(inputs), device.identity());
        if let Some(prepared) = lock(&self.plans).get(&key) {
            return Ok(prepared);
        }
        let recipe = self.recipe(&key.0)?;
        // Not under the lock: a plan may take a compilation. Two threads at once make two, and one is kept.
        let prepared = Arc::new(device.prepare(recipe).map_err(|fault| self.error(fault))?);
        lock(&self.plans).keep(key, Arc::clone(&prepared));
        Ok(prepared)
    }

    fn check_memory(
        &self,
        recipe: &Recipe,
        inputs: &[Option<TensorView<'_>>],
        outputs: &[Option<TensorMut>],
    ) -> Result<(), ExecuteError> {
        for (index, view) in inputs.iter().enumerate() {
            let Some(view) = view else { continue };
            let need = extent(view);
            if view.data.len() < need {
                let (got, shape) = (view.data.len(), view.shape.to_vec());
                return Err(self.error(Fault::InputTooSmall { index, got, need, shape }));
            }
        }
        for (index, spec) in recipe.outputs.iter().enumerate() {
            let Some(spec) = spec else { continue };
            let need = spec.bytes().unwrap_or(usize::MAX);
            let got = outputs.get(index).copied().flatten().map_or(0, |output| output.data.len());
            if got < need {
                return Err(self.error(Fault::OutputTooSmall { index, got, need, shape: spec.shape.clone() }));
            }
        }
        Ok(())
    }

    /// # Safety
    ///
    /// As [`Kernel::execute_with_workspace`]. The workspace is as large and as aligned as the plan wants it.
    unsafe fn run(
        &self,
        device: &Device,
        prepared: &Prepared,
        inputs: &[Option<TensorView<'_>>],
        outputs: &[Option<TensorMut>],
        workspace: DevicePtr,
    ) -> Result<(), ExecuteError> {
        let recipe = prepared.recipe();
        self.check_memory(recipe, inputs, outputs)?;
        let work = prepared.work();
        let span = tracing::info_span!(
            "execute",
            node = %self.node,
            device = device.name(),
            bytes = work.bytes,
            flops = work.flops
        );
        let _entered = span.enter();
        let memories = Memories { inputs, outputs, workspace, scratch: prepared.scratch() };
        // SAFETY: tensors are as large as the recipe wants, as was just checked; the caller vouches for the rest.
        unsafe { device.run(prepared, &memories) }.map_err(|fault| self.error(fault))
    }
}

impl<O: Operator> Kernel for RecipeKernel<O> {
    fn outputs(&self, inputs: &[Option<TensorView<'_>>]) -> Result<Vec<Option<OutputSpec>>, ExecuteError> {
        Ok(self.recipe(&layouts(inputs))?.outputs.clone())
    }

    fn prepare(&self, device: &Device, inputs: &[Option<TensorView<'_>>]) -> Result<(), ExecuteError> {
        self.prepared(device, inputs).map(drop)
    }

    fn workspace_requirement(
        &self,
        device: &Device,
        inputs: &[Option<TensorView<'_>>],
    ) -> Result<WorkspaceRequirement, ExecuteError> {
        let size = self.prepared(device, inputs)?.workspace();
        let (lifetime, role) = (Lifetime::StepScoped, Role::Workspace);
        Ok(WorkspaceRequirement { bytes: size.bytes, align: size.align, lifetime, role })
    }

    fn capture_support(&self, device: &Device, inputs: &[Option<TensorView<'_>>]) -> CaptureSupport {
        if device.is_host() {
            return CaptureSupport::Never;
        }
        match lock(&self.plans).get(&(layouts(inputs), device.identity())) {
            None => CaptureSupport::NotPlanned,
            Some(prepared) if prepared.workspace().bytes == 0 => CaptureSupport::Ready,
            Some(_) => CaptureSupport::WithWorkspace,
        }
    }

    fn supports_strided_input(&self, index: usize) -> bool {
        O::STRIDED.contains(&index)
    }

    unsafe fn execute(
        &self,
        device: &Device,
        inputs: &[Option<TensorView<'_>>],
        outputs: &[Option<TensorMut>],
    ) -> Result<(), ExecuteError> {
        let prepared = self.prepared(device, inputs)?;
        let workspace = device.allocate(prepared.workspace()).map_err(|fault| self.error(fault))?;
        // SAFETY: the workspace has just been made as the plan wants it, and is freed in stream order; the caller
        // vouches for the rest.
        unsafe { self.run(device, &prepared, inputs, outputs, workspace.ptr()) }
    }

    unsafe fn execute_with_workspace(
        &self,
        device: &Device,
        inputs: &[Option<TensorView<'_>>],
        outputs: &[Option<TensorMut>],
        workspace: DevicePtr,
    ) -> Result<(), ExecuteError> {
        let prepared = self.prepared(device, inputs)?;
        let need = prepared.workspace();
        let aligned = need.bytes == 0 || workspace.is_aligned(need.align.max(1));
        if workspace.len() < need.bytes || !aligned {
            let (got, address) = (workspace.len(), workspace.address());
            return Err(self.error(Fault::Workspace { got, address, need: need.bytes, align: need.align }));
        }
        // SAFETY: the workspace is as the plan wants it; the caller vouches for the rest.
        unsafe { self.run(device, &prepared, inputs, outputs, workspace) }
    }
}

fn layouts(inputs: &[Option<TensorView<'_>>]) -> Layouts {
    let mut layouts: Layouts = inputs.iter().map(|view| view.as_ref().map(Layout::of)).collect();
    // Inputs that are left away at the end are as good as absent.
    while layouts.last().is_some_and(Option::is_none) {
        layouts.pop();
    }
    layouts
}

/// Bytes from the first to the last element.
fn extent(view: &TensorView<'_>) -> usize {
    let layout = Layout::of(view);
    if layout.shape.contains(&0) {
        return 0;
    }
    let steps = layout.shape.iter().zip(&layout.strides);
    let last = steps.fold(0usize, |last, (&extent, &stride)| {
        last.saturating_add((extent - 1).saturating_mul(usize::try_from(stride).unwrap_or(0)))
    });
    last.saturating_add(1).saturating_mul(layout.element.size().unwrap_or(0))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What was used last, up to [`KEPT_PLANS`] of it.
struct Kept<K, V> {
    entries: HashMap<K, (u64, V)>,
    clock: u64,
}

impl<K, V> Default for Kept<K, V> {
    fn default() -> Self {
        Self { entries: HashMap::new(), clock: 0 }
    }
}

impl<K: std::hash::Hash + Eq + Clone, V: Clone> Kept<K, V> {
    fn get(&mut self, key: &K) -> Option<V> {
        self.clock += 1;
        let (used, value) = self.entries.get_mut(key)?;
        *used = self.clock;
        Some(value.clone())
    }

    fn keep(&mut self, key: K, value: V) {
        self.clock += 1;
        if self.entries.len() >= KEPT_PLANS {
            let oldest = self.entries.iter().min_by_key(|(_, (used, _))| *used).map(|(key, _)| key.clone());
            if let Some(oldest) = oldest {
                self.entries.remove(&oldest);
            }
        }
        self.entries.insert(key, (self.clock, value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_long_ago_goes_first() {
        let mut kept = Kept::default();
        for key in 0..KEPT_PLANS {
            kept.keep(key, key);
        }
        assert_eq!(kept.get(&0), Some(0));
        kept.keep(KEPT_PLANS, KEPT_PLANS);
        assert_eq!((kept.get(&0), kept.get(&1), kept.get(&KEPT_PLANS)), (Some(0), None, Some(KEPT_PLANS)));
        assert_eq!(kept.entries.len(), KEPT_PLANS);
    }
}
