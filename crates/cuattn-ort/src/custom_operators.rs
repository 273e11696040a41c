//! Operators that ONNX Runtime does not know, as custom operators, so that a model with them loads.
//!
//! ONNX Runtime prefers a custom operator's own kernel to one of the provider's registry, so that is where it comes from:
//! the same kernel, made and run by the same functions.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use cuattn_ep::{KernelFactory, Registry};

use crate::abi::{
    API_VERSION, OrtApi, OrtCustomOp, OrtCustomOpDomain, OrtKernelContext, OrtKernelInfo, OrtShapeInferContext, Status,
    attr_type,
};
use crate::api::{tables, text};
use crate::ep::NAME;
use crate::factory::Registration;
use crate::failure::{Result, callback, check};
use crate::kernel;

/// Domains whose schemas ONNX Runtime has itself.
pub(crate) const KNOWN: [&str; 2] = ["", "com.microsoft"];

/// `ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED`: any type.
const ANY_TYPE: i32 = 0;
/// `OrtCustomOpInputOutputCharacteristic`.
const REQUIRED: c_int = 0;
const OPTIONAL: c_int = 1;
/// Inputs that every operator here needs, of those that custom operators have.
const REQUIRED_INPUTS: usize = 3;

#[repr(C)]
struct CustomOperator {
    base: OrtCustomOp,
    name: CString,
    inputs: usize,
    outputs: usize,
    /// The rank of inputs whose last extent is that of one head.
    rank_by_head: usize,
    registration: Registration,
}

/// The domains, and their operators.
pub(crate) struct CustomOperators {
    domains: Vec<*mut OrtCustomOpDomain>,
    /// ONNX Runtime keeps their addresses.
    #[expect(clippy::vec_box, reason = "their addresses must not change when the list grows")]
    _operators: Vec<Box<CustomOperator>>,
}

impl CustomOperators {
    pub(crate) fn new() -> Result<Self> {
        let api = tables()?;
        let registry = Arc::new(Registry::standard());
        let mut all = Self { domains: Vec::new(), _operators: Vec::new() };
        let mut names: Vec<_> =
            registry.factories().map(KernelFactory::domain).filter(|name| !KNOWN.contains(name)).collect();
        names.sort_unstable();
        names.dedup();
        for name in names {
            let c_name = CString::new(name).unwrap_or_default();
            let mut domain = std::ptr::null_mut();
            // SAFETY: the name is a C string, and the pointer is to a live handle.
            check(unsafe { api.ort.CreateCustomOpDomain(c_name.as_ptr(), &mut domain) })?;
            all.domains.push(domain);
            for (index, factory) in registry.factories().enumerate().filter(|(_, factory)| factory.domain() == name) {
                let version = factory.versions().last().copied().unwrap_or(1);
                let registration = Registration { registry: Arc::clone(&registry), index, version };
                let operator = Box::new(CustomOperator::of(factory, registration));
                // SAFETY: the domain is live, and the operator lives as long as this value does.
                check(unsafe { api.ort.CustomOpDomain_Add(domain, std::ptr::from_ref(&*operator).cast()) })?;
                all._operators.push(operator);
            }
        }
        Ok(all)
    }

    pub(crate) fn domains(&self) -> &[*mut OrtCustomOpDomain] {
        &self.domains
    }
}

impl Drop for CustomOperators {
    fn drop(&mut self) {
        let Ok(api) = tables() else { return };
        for &domain in &self.domains {
            // SAFETY: it was made in `new`, and is released once.
            unsafe { api.ort.ReleaseCustomOpDomain(domain) };
        }
    }
}

impl CustomOperator {
    fn of(factory: &dyn KernelFactory, registration: Registration) -> Self {
        let base = OrtCustomOp {
            version: API_VERSION,
            CreateKernel: create_kernel,
            GetName: name,
            GetExecutionProviderType: provider,
            GetInputType: input_type,
            GetInputTypeCount: input_count,
            GetOutputType: output_type,
            GetOutputTypeCount: output_count,
            KernelCompute: kernel_compute,
            KernelDestroy: kernel_destroy,
            GetInputCharacteristic: input_characteristic,
            GetOutputCharacteristic: output_characteristic,
            GetInputMemoryType: input_memory,
            GetVariadicInputMinArity: zero,
            GetVariadicInputHomogeneity: zero,
            GetVariadicOutputMinArity: zero,
            GetVariadicOutputHomogeneity: zero,
            CreateKernelV2: Some(create_kernel_v2),
            KernelComputeV2: Some(kernel_compute_v2),
            InferOutputShapeFn: infer,
            GetStartVersion: start_version,
            GetEndVersion: end_version,
            GetMayInplace: None,
            ReleaseMayInplace: None,
            GetAliasMap: None,
            ReleaseAliasMap: None,
        };
        let name = CString::new(factory.op_type()).unwrap_or_default();
        let rank_by_head = if factory.op_type() == "PackedVarlenAttention" { 3 } else { 4 };
        Self {
            base,
            name,
            rank_by_head,
            inputs: factory.inputs().len(),
            outputs: factory.outputs().len(),
            registration,
        }
    }

    /// # Safety
    ///
    /// `operator` is one of ours, and live.
    unsafe fn get<'a>(operator: *const OrtCustomOp) -> &'a Self {
        // SAFETY: as the caller promises; the interface is the struct's first field.
        unsafe { &*operator.cast::<Self>() }
    }
}

unsafe extern "C" fn create_kernel(_: *const OrtCustomOp, _: *const OrtApi, _: *const OrtKernelInfo) -> *mut c_void {
    std::ptr::null_mut()
}

unsafe extern "C" fn create_kernel_v2(
    operator: *const OrtCustomOp,
    _: *const OrtApi,
    info: *const OrtKernelInfo,
    out: *mut *mut c_void,
) -> Status {
    // SAFETY: ONNX Runtime calls with an operator of ours, which outlives the kernel, and with a live info.
    unsafe {
        let registration = std::ptr::from_ref(&CustomOperator::get(operator).registration).cast_mut().cast();
        kernel::create(registration, info, out.cast())
    }
}

/// Called by no ONNX Runtime that has the other.
unsafe extern "C" fn kernel_compute(_: *mut c_void, _: *mut OrtKernelContext) {}

unsafe extern "C" fn kernel_compute_v2(kernel: *mut c_void, context: *mut OrtKernelContext) -> Status {
    // SAFETY: ONNX Runtime calls with a kernel of ours and a live context.
    unsafe { kernel::compute(kernel.cast(), context) }
}

unsafe extern "C" fn kernel_destroy(kernel: *mut c_void) {
    // SAFETY: ONNX Runtime releases a kernel of ours once.
    unsafe { kernel::release(kernel.cast()) }
}

unsafe extern "C" fn name(operator: *const OrtCustomOp) -> *const c_char {
    // SAFETY: ONNX Runtime calls with an operator of ours.
    unsafe { CustomOperator::get(operator) }.name.as_ptr()
}

unsafe extern "C" fn provider(_: *const OrtCustomOp) -> *const c_char {
    NAME.as_ptr()
}

unsafe extern "C" fn input_type(_: *const OrtCustomOp, _: usize) -> i32 {
    ANY_TYPE
}

unsafe extern "C" fn input_count(operator: *const OrtCustomOp) -> usize {
    // SAFETY: ONNX Runtime calls with an operator of ours.
    unsafe { CustomOperator::get(operator) }.inputs
}

unsafe extern "C" fn output_type(_: *const OrtCustomOp, _: usize) -> i32 {
    ANY_TYPE
}

unsafe extern "C" fn output_count(operator: *const OrtCustomOp) -> usize {
    // SAFETY: ONNX Runtime calls with an operator of ours.
    unsafe { CustomOperator::get(operator) }.outputs
}

unsafe extern "C" fn input_characteristic(_: *const OrtCustomOp, index: usize) -> c_int {
    if index < REQUIRED_INPUTS { REQUIRED } else { OPTIONAL }
}

unsafe extern "C" fn output_characteristic(_: *const OrtCustomOp, index: usize) -> c_int {
    if index == 0 { REQUIRED } else { OPTIONAL }
}

unsafe extern "C" fn input_memory(_: *const OrtCustomOp, _: usize) -> c_int {
    /// `OrtMemTypeDefault`.
    const DEFAULT: c_int = 0;
    DEFAULT
}

unsafe extern "C" fn zero(_: *const OrtCustomOp) -> c_int {
    0
}

unsafe extern "C" fn start_version(_: *const OrtCustomOp) -> c_int {
    1
}

unsafe extern "C" fn end_version(_: *const OrtCustomOp) -> c_int {
    c_int::MAX
}

/// Every output is of the type of the first input. The first output has its shape, with the value's head size; all that
/// is said of the others is their rank.
unsafe extern "C" fn infer(operator: *const OrtCustomOp, context: *mut OrtShapeInferContext) -> Status {
    callback("the shape inference of a custom operator", || {
        // SAFETY: ONNX Runtime calls with an operator of ours and a live context.
        unsafe {
            let operator = CustomOperator::get(operator);
            let (element, mut shape) = input_shape(context, QUERY)?;
            let rank = shape.len();
            if let Some(last) = shape.last_mut() {
                *last = match input_shape(context, VALUE)?.1.pop() {
                    Some(Extent::Known(value)) => operator.last_extent(context, rank, value),
                    _ => Extent::Unknown,
                };
            }
            // A node may have fewer outputs than its operator, and to set one that is not there is not checked. Only the
            // node's attribute says how many there are.
            let count = attribute(context, c"outputs").unwrap_or(1);
            for output in 0..usize::try_from(count).unwrap_or(1).min(operator.outputs) {
                let unknown = [const { Extent::Unknown }; 4];
                set_output(context, output, element, if output == 0 { &shape } else { &unknown })?;
            }
        }
        Ok(())
    })
}

const QUERY: usize = 0;
const VALUE: usize = 2;

/// An extent of a shape, as far as it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Extent {
    Known(i64),
    /// The model's name for it.
    Named(CString),
    Unknown,
}

impl CustomOperator {
    /// The last extent of the first output, from that of the value: of one head, or of all heads together.
    ///
    /// # Safety
    ///
    /// `context` is live.
    unsafe fn last_extent(&self, context: *const OrtShapeInferContext, rank: usize, value: i64) -> Extent {
        if rank == self.rank_by_head {
            return Extent::Known(value);
        }
        // SAFETY: as the caller promises.
        let (heads, kv_heads) = unsafe {
            let heads = attribute(context, c"q_num_heads").or_else(|| attribute(context, c"num_heads"));
            (heads, attribute(context, c"kv_num_heads").or(heads))
        };
        match (heads, kv_heads) {
            (Some(heads), Some(kv_heads)) if kv_heads > 0 => Extent::Known(value / kv_heads * heads),
            _ => Extent::Unknown,
        }
    }
}

/// Type and shape of an input.
///
/// # Safety
///
/// `context` is live, and has such an input.
unsafe fn input_shape(context: *const OrtShapeInferContext, index: usize) -> Result<(i32, Vec<Extent>)> {
    let api = tables()?;
    let (mut info, mut element, mut rank) = (std::ptr::null_mut(), 0, 0);
    // SAFETY: as the caller promises; the context owns the info, whose names live as long, and the arrays are of its rank.
    unsafe {
        check(api.ort.ShapeInferContext_GetInputTypeShape(context, index, &mut info))?;
        check(api.ort.GetTensorElementType(info, &mut element))?;
        check(api.ort.GetDimensionsCount(info, &mut rank))?;
        let (mut dims, mut names) = (vec![0i64; rank], vec![std::ptr::null(); rank]);
        check(api.ort.GetDimensions(info, dims.as_mut_ptr(), rank))?;
        check(api.ort.GetSymbolicDimensions(info, names.as_mut_ptr(), rank))?;
        let extent = |(extent, name): (i64, *const c_char)| match text(name) {
            name if !name.is_empty() => Extent::Named(CString::new(name).unwrap_or_default()),
            _ if extent < 0 => Extent::Unknown,
            _ => Extent::Known(extent),
        };
        Ok((element, dims.into_iter().zip(names).map(extent).collect()))
    }
}

/// An attribute that is an integer, where it is there.
///
/// # Safety
///
/// `context` is live.
unsafe fn attribute(context: *const OrtShapeInferContext, name: &CStr) -> Option<i64> {
    let api = tables().ok()?;
    let (mut attribute, mut value, mut written) = (std::ptr::null(), 0i64, 0);
    // SAFETY: as the caller promises; the name is a C string, and the buffer is an integer of 8 bytes.
    unsafe {
        check(api.ort.ShapeInferContext_GetAttribute(context, name.as_ptr(), &mut attribute)).ok()?;
        check(api.ort.ReadOpAttr(attribute, attr_type::INT, (&raw mut value).cast(), 8, &mut written)).ok()?;
    }
    Some(value)
}

/// # Safety
///
/// `context` is live, and the node has such an output.
unsafe fn set_output(context: *const OrtShapeInferContext, output: usize, element: i32, shape: &[Extent]) -> Result {
    // Extents of one name are taken to be equal, so each that is not known has a name of its own.
    static UNKNOWN: AtomicU64 = AtomicU64::new(0);
    let api = tables()?;
    let mut info = std::ptr::null_mut();
    let owned: Vec<CString> = shape
        .iter()
        .map(|extent| match extent {
            Extent::Known(_) => CString::default(),
            Extent::Named(name) => name.clone(),
            Extent::Unknown => {
                CString::new(format!("cuattn_unknown_{}", UNKNOWN.fetch_add(1, Relaxed))).unwrap_or_default()
            }
        })
        .collect();
    let mut names: Vec<_> = owned.iter().map(|name| name.as_ptr()).collect();
    let dims: Vec<_> =
        shape.iter().map(|extent| if let Extent::Known(extent) = extent { *extent } else { -1 }).collect();
    // SAFETY: as the caller promises; the arrays are of the shape's rank, the info is copied, and released once.
    unsafe {
        check(api.ort.CreateTensorTypeAndShapeInfo(&mut info))?;
        let set = check(api.ort.SetTensorElementType(info, element))
            .and_then(|()| check(api.ort.SetDimensions(info, dims.as_ptr(), dims.len())))
            .and_then(|()| check(api.ort.SetSymbolicDimensions(info, names.as_mut_ptr(), names.len())))
            .and_then(|()| check(api.ort.ShapeInferContext_SetOutputTypeShape(context, output, info)));
        api.ort.ReleaseTensorTypeAndShapeInfo(info);
        set
    }
}
