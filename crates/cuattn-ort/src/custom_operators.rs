//! Operators that ONNX Runtime does not know, as custom operators, so that a model with them loads.
//!
//! ONNX Runtime prefers a custom operator's own kernel to one of the provider's registry, so that is where it comes from:
//! the same kernel, made and run by the same functions.

use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::Arc;

use cuattn_ep::{KernelFactory, Registry};

use crate::abi::{
    API_VERSION, OrtApi, OrtCustomOp, OrtCustomOpDomain, OrtKernelContext, OrtKernelInfo, OrtShapeInferContext, Status,
    attr_type,
};
use crate::api::tables;
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
        Self { base, name, inputs: factory.inputs().len(), outputs: factory.outputs().len(), registration }
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

/// Every output is of the type of the first input. The first output has its shape up to the last dimension; all that is
/// known of the others is their rank.
unsafe extern "C" fn infer(operator: *const OrtCustomOp, context: *mut OrtShapeInferContext) -> Status {
    callback("the shape inference of a custom operator", || {
        let api = tables()?;
        let (mut first, mut element, mut rank) = (std::ptr::null_mut(), 0, 0);
        // SAFETY: ONNX Runtime calls with an operator of ours and a live context, which owns the info of an input; the
        // array is of the rank that was asked for.
        unsafe {
            check(api.ort.ShapeInferContext_GetInputTypeShape(context, 0, &mut first))?;
            check(api.ort.GetTensorElementType(first, &mut element))?;
            check(api.ort.GetDimensionsCount(first, &mut rank))?;
            let mut dims = vec![UNKNOWN; rank];
            check(api.ort.GetDimensions(first, dims.as_mut_ptr(), rank))?;
            if let Some(last) = dims.last_mut() {
                *last = UNKNOWN;
            }
            // A node may have fewer outputs than its operator, and to set one that is not there is not checked. Only the
            // node's attribute says how many there are.
            for output in 0..output_count_of(context).min(CustomOperator::get(operator).outputs) {
                set_output(context, output, element, if output == 0 { &dims } else { &[UNKNOWN; 4] })?;
            }
        }
        Ok(())
    })
}

/// How many outputs the node has, as its attribute says; 1 without it.
///
/// # Safety
///
/// `context` is live.
unsafe fn output_count_of(context: *const OrtShapeInferContext) -> usize {
    let Ok(api) = tables() else { return 1 };
    let (mut attribute, mut count, mut written) = (std::ptr::null(), 1i64, 0);
    // SAFETY: as the caller promises; the name is a C string, and the buffer is an integer of 8 bytes.
    let read = unsafe {
        check(api.ort.ShapeInferContext_GetAttribute(context, c"outputs".as_ptr(), &mut attribute)).and_then(|()| {
            check(api.ort.ReadOpAttr(attribute, attr_type::INT, (&raw mut count).cast(), 8, &mut written))
        })
    };
    if read.is_err() { 1 } else { usize::try_from(count).unwrap_or(1) }
}

/// An extent that is not known.
const UNKNOWN: i64 = -1;

/// # Safety
///
/// `context` is live.
unsafe fn set_output(context: *mut OrtShapeInferContext, output: usize, element: i32, dims: &[i64]) -> Result {
    let api = tables()?;
    let mut info = std::ptr::null_mut();
    // SAFETY: as the caller promises; the info is copied, and released once.
    unsafe {
        check(api.ort.CreateTensorTypeAndShapeInfo(&mut info))?;
        let set = check(api.ort.SetTensorElementType(info, element))
            .and_then(|()| check(api.ort.SetDimensions(info, dims.as_ptr(), dims.len())))
            .and_then(|()| check(api.ort.ShapeInferContext_SetOutputTypeShape(context, output, info)));
        api.ort.ReleaseTensorTypeAndShapeInfo(info);
        set
    }
}
