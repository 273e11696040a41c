//! Owned cuBLASLt descriptors: created, filled and destroyed in one place.

use std::ffi::c_void;
use std::ptr;

use cudarc::cublaslt::sys;

use crate::error::{Error, Result, Status};
use crate::gemm::{Alignment, Compute, ElementType, Epilogue, Gemm, Stored, Transpose};
use crate::library::Library;

/// `CUDA_R_32F`, `CUDA_R_16F`, `CUDA_R_16BF` of the ABI.
pub(crate) const fn data_type(element: ElementType) -> u32 {
    match element {
        ElementType::F32 => sys::cudaDataType_t::CUDA_R_32F as u32,
        ElementType::F16 => sys::cudaDataType_t::CUDA_R_16F as u32,
        ElementType::Bf16 => sys::cudaDataType_t::CUDA_R_16BF as u32,
    }
}

const fn compute_type(compute: Compute) -> u32 {
    match compute {
        Compute::Strict => sys::cublasComputeType_t::CUBLAS_COMPUTE_32F as u32,
        Compute::Tf32 => sys::cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32 as u32,
    }
}

const fn epilogue_code(epilogue: Epilogue) -> u32 {
    use sys::cublasLtEpilogue_t as Code;
    match epilogue {
        Epilogue::None => Code::CUBLASLT_EPILOGUE_DEFAULT as u32,
        Epilogue::Bias => Code::CUBLASLT_EPILOGUE_BIAS as u32,
        Epilogue::Relu => Code::CUBLASLT_EPILOGUE_RELU as u32,
        Epilogue::ReluBias => Code::CUBLASLT_EPILOGUE_RELU_BIAS as u32,
        Epilogue::Gelu => Code::CUBLASLT_EPILOGUE_GELU as u32,
        Epilogue::GeluBias => Code::CUBLASLT_EPILOGUE_GELU_BIAS as u32,
    }
}

/// `CUBLAS_OP_N` and `CUBLAS_OP_T`, which the bindings of cuBLASLt leave out.
const OPERATION_N: u32 = 0;
const OPERATION_T: u32 = 1;

/// Turns a status into an error that names the call.
pub(crate) fn check(call: &'static str, status: u32) -> Result<()> {
    if status == 0 { Ok(()) } else { Err(Error::Call { call, status: Status(status), gemm: None }) }
}

/// A descriptor that is destroyed when dropped.
pub(crate) struct Owned {
    pointer: *mut c_void,
    kind: Kind,
    library: &'static Library,
}

#[derive(Clone, Copy)]
enum Kind {
    Multiplication,
    Layout,
    Preference,
}

// SAFETY: a descriptor is plain memory of the library that no thread owns.
unsafe impl Send for Owned {}

impl Owned {
    pub(crate) fn pointer(&self) -> *mut c_void {
        self.pointer
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        let Self { pointer, library, .. } = *self;
        // SAFETY: the pointer came from the create function of its kind, and this is its only destruction.
        unsafe {
            match self.kind {
                Kind::Multiplication => library.cublasLtMatmulDescDestroy(pointer),
                Kind::Layout => library.cublasLtMatrixLayoutDestroy(pointer),
                Kind::Preference => library.cublasLtMatmulPreferenceDestroy(pointer),
            }
        };
    }
}

/// `cublasLtMatmulDesc_t`: how to multiply.
pub(crate) fn multiplication(library: &'static Library, gemm: &Gemm) -> Result<Owned> {
    use sys::cublasLtMatmulDescAttributes_t as Attribute;
    let mut pointer = ptr::null_mut();
    let scale_type = data_type(ElementType::F32);
    // SAFETY: `pointer` is a place for the created descriptor.
    let status = unsafe { library.cublasLtMatmulDescCreate(&mut pointer, compute_type(gemm.compute), scale_type) };
    check("cublasLtMatmulDescCreate", status)?;
    let owned = Owned { pointer, kind: Kind::Multiplication, library };
    // cuBLASLt is column-major: a row-major product is its transpose, so its A is our B, and the flags carry over.
    let transpose = |transpose: Transpose| match transpose {
        Transpose::No => OPERATION_N,
        Transpose::Yes => OPERATION_T,
    };
    set_multiplication(library, &owned, Attribute::CUBLASLT_MATMUL_DESC_TRANSA as u32, &transpose(gemm.b.transpose))?;
    set_multiplication(library, &owned, Attribute::CUBLASLT_MATMUL_DESC_TRANSB as u32, &transpose(gemm.a.transpose))?;
    let epilogue = epilogue_code(gemm.epilogue);
    set_multiplication(library, &owned, Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE as u32, &epilogue)?;
    if gemm.epilogue.has_bias() {
        // The heuristic looks at whether there is a pointer, and at its alignment; launch sets the real one.
        set_bias(library, &owned, 256)?;
    }
    Ok(owned)
}

/// Sets the epilogue's bias vector.
pub(crate) fn set_bias(library: &'static Library, multiplication: &Owned, address: u64) -> Result<()> {
    let attribute = sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER as u32;
    set_multiplication(library, multiplication, attribute, &address)
}

fn set_multiplication<T: Copy>(library: &'static Library, owned: &Owned, attribute: u32, value: &T) -> Result<()> {
    // SAFETY: the descriptor is alive, and `value` is read for its own size.
    let status = unsafe {
        library.cublasLtMatmulDescSetAttribute(owned.pointer, attribute, ptr::from_ref(value).cast(), size_of::<T>())
    };
    check("cublasLtMatmulDescSetAttribute", status)
}

/// `cublasLtMatrixLayout_t` of a row-major matrix batch, seen column-major.
pub(crate) fn layout(library: &'static Library, stored: &Stored, batch: usize) -> Result<Owned> {
    use sys::cublasLtMatrixLayoutAttribute_t as Attribute;
    let mut pointer = ptr::null_mut();
    // SAFETY: `pointer` is a place for the created layout.
    let status = unsafe {
        library.cublasLtMatrixLayoutCreate(
            &mut pointer,
            data_type(stored.element),
            stored.cols as u64,
            stored.rows as u64,
            stored.accepted_leading(),
        )
    };
    check("cublasLtMatrixLayoutCreate", status)?;
    let owned = Owned { pointer, kind: Kind::Layout, library };
    let set = |attribute: u32, value: *const c_void, bytes: usize| {
        // SAFETY: the layout is alive, and `value` points to `bytes` readable bytes.
        check("cublasLtMatrixLayoutSetAttribute", unsafe {
            library.cublasLtMatrixLayoutSetAttribute(owned.pointer, attribute, value, bytes)
        })
    };
    let count = batch as i32;
    set(Attribute::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT as u32, ptr::from_ref(&count).cast(), size_of::<i32>())?;
    let offset = Attribute::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET as u32;
    set(offset, ptr::from_ref(&stored.batch_stride).cast(), size_of::<i64>())?;
    Ok(owned)
}

/// `cublasLtMatmulPreference_t`: what the heuristic may choose from.
pub(crate) fn preference(library: &'static Library, alignment: Alignment, max_workspace: usize) -> Result<Owned> {
    use sys::cublasLtMatmulPreferenceAttributes_t as Attribute;
    let mut pointer = ptr::null_mut();
    // SAFETY: `pointer` is a place for the created preference.
    check("cublasLtMatmulPreferenceCreate", unsafe { library.cublasLtMatmulPreferenceCreate(&mut pointer) })?;
    let owned = Owned { pointer, kind: Kind::Preference, library };
    let set = |attribute: Attribute, value: *const c_void, bytes: usize| {
        // SAFETY: the preference is alive, and `value` points to `bytes` readable bytes.
        check("cublasLtMatmulPreferenceSetAttribute", unsafe {
            library.cublasLtMatmulPreferenceSetAttribute(owned.pointer, attribute as u32, value, bytes)
        })
    };
    let bytes = max_workspace as u64;
    set(Attribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, ptr::from_ref(&bytes).cast(), size_of::<u64>())?;
    // Split-K partial sums are added in a fixed order in float32, or not made at all. In-place reduction depends on the order
    // in which blocks finish, and one in the output's type would round twice.
    let reductions = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
    set(Attribute::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, ptr::from_ref(&reductions).cast(), size_of::<u32>())?;
    // Our B is cuBLASLt's A.
    for (attribute, bytes) in [
        (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment.b),
        (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment.a),
        (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment.d),
        (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment.d),
    ] {
        set(attribute, ptr::from_ref(&bytes).cast(), size_of::<u32>())?;
    }
    Ok(owned)
}
