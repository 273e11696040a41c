//! A product made ready: algorithm chosen, descriptors built, workspace known.

use std::ffi::c_void;
use std::fmt;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::cublaslt::sys;
use curt::DevicePtr;

use crate::descriptor::{self, Owned};
use crate::error::{Error, Fault, Faults, OperandName, Result, Status, pointer_faults};
use crate::gemm::{Alignment, Epilogue, Gemm, Matrix, Stored, StoredOperands};
use crate::handle::Shared;

/// Alignment of a workspace.
pub const WORKSPACE_ALIGN: usize = 256;

/// Device memory of one launch. Lengths are in bytes and are checked.
#[derive(Clone, Copy, Debug, Default)]
pub struct GemmOperands {
    /// The left matrices. Not read where `k` is 0.
    pub a: DevicePtr,
    /// The right matrices. Not read where `k` is 0.
    pub b: DevicePtr,
    /// The added matrices, laid out as D; `None` for D itself. Not read where `beta` is 0.
    pub c: Option<DevicePtr>,
    /// The results.
    pub d: DevicePtr,
    /// The epilogue's vector: `n` elements of D's type.
    pub bias: Option<DevicePtr>,
}

/// How a planned product is computed.
enum Method {
    /// There is no element in D.
    Nothing,
    /// `k` is 0, and D is one span of memory that becomes zero.
    ClearDense { bytes: usize },
    /// cuBLASLt multiplies.
    Multiply(Box<Multiply>),
    /// `k` is 0, which cuBLASLt does not take: it multiplies a column by a row of zeros that launch puts in the workspace, so that
    /// `beta`, the epilogue and every layout of D mean what they always do.
    MultiplyZeros { multiply: Box<Multiply>, zeros: usize },
}

struct Multiply {
    /// Setting the bias pointer changes the descriptor, so launches of one plan from several threads take turns.
    multiplication: Mutex<Owned>,
    a: Owned,
    b: Owned,
    d: Owned,
    algorithm: sys::cublasLtMatmulAlgo_t,
    workspace: usize,
    waves: f32,
}

/// Bytes that the operands must have.
#[derive(Clone, Copy)]
struct Needs {
    a: usize,
    b: usize,
    d: usize,
    bias: usize,
}

/// A product made ready for one device. Cheap to clone, reusable for any number of launches, from any thread.
#[derive(Clone)]
pub struct GemmPlan {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    gemm: Gemm,
    alignment: Alignment,
    method: Method,
}

// SAFETY: layouts and the algorithm are only read after construction, and the one descriptor that changes is behind a mutex.
unsafe impl Sync for Multiply {}

/// `cublasLtMatmulHeuristicResult_t`, with the status as a number: a newer library may return one that the enum has not.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct HeuristicResult {
    algorithm: sys::cublasLtMatmulAlgo_t,
    workspace: usize,
    state: u32,
    waves: f32,
    reserved: [i32; 4],
}

const _: () = assert!(size_of::<HeuristicResult>() == size_of::<sys::cublasLtMatmulHeuristicResult_t>());

impl GemmPlan {
    pub(crate) fn new(shared: Arc<Shared>, gemm: &Gemm, alignment: Alignment, max_workspace: usize) -> Result<Self> {
        let mut faults = gemm.faults();
        faults.extend(alignment.faults(gemm));
        if !faults.is_empty() {
            return Err(Error::Invalid { gemm: Box::new(gemm.clone()), faults: Faults(faults) });
        }
        let method = if gemm.is_empty() {
            Method::Nothing
        } else if gemm.k == 0 {
            Self::without_products(&shared, gemm, alignment, max_workspace)?
        } else {
            Method::Multiply(Box::new(Multiply::new(&shared, gemm, alignment, max_workspace)?))
        };
        Ok(Self { inner: Arc::new(Inner { shared, gemm: gemm.clone(), alignment, method }) })
    }

    fn without_products(
        shared: &Arc<Shared>,
        gemm: &Gemm,
        alignment: Alignment,
        max_workspace: usize,
    ) -> Result<Method> {
        let (m, n) = (gemm.m as i64, gemm.n as i64);
        let dense = (gemm.m == 1 || gemm.d.leading == n) && (gemm.batch == 1 || gemm.d.batch_stride == m * n);
        if dense && gemm.beta == 0.0 && gemm.epilogue == Epilogue::None {
            return Ok(Method::ClearDense { bytes: gemm.m * gemm.n * gemm.batch * gemm.output_type.size() });
        }
        let zeros = (gemm.m.max(gemm.n) * gemm.input_type.size()).next_multiple_of(WORKSPACE_ALIGN);
        let mut outer = gemm.clone();
        outer.k = 1;
        outer.a = Matrix::row_major(1, 0);
        outer.b = Matrix::row_major(n, 0);
        let alignment = Alignment { a: 256, b: 256, ..alignment };
        let multiply = Multiply::new(shared, &outer, alignment, max_workspace.saturating_sub(zeros))?;
        Ok(Method::MultiplyZeros { multiply: Box::new(multiply), zeros })
    }

    /// The description it was made for.
    pub fn gemm(&self) -> &Gemm {
        &self.inner.gemm
    }

    /// What it relies on pointers to be aligned to.
    pub fn alignment(&self) -> Alignment {
        self.inner.alignment
    }

    /// Bytes of scratch memory that each launch needs, aligned to [`WORKSPACE_ALIGN`].
    pub fn workspace_bytes(&self) -> usize {
        match &self.inner.method {
            Method::Nothing | Method::ClearDense { .. } => 0,
            Method::Multiply(multiply) => multiply.workspace,
            Method::MultiplyZeros { multiply, zeros } => zeros + multiply.workspace,
        }
    }

    /// Enqueues the product on the runtime's stream and returns at once. Never allocates, so it can be captured into a graph.
    ///
    /// # Errors
    ///
    /// [`Error::Operands`] with every pointer that is too short or less aligned than planned, before anything is enqueued;
    /// [`Error::Call`] where cuBLASLt refuses.
    ///
    /// # Safety
    ///
    /// Every pointer must be device memory of the runtime's context, valid for its stated length until the stream has passed
    /// this launch. D must overlap neither A, B nor the workspace; C may be D, and must not overlap it otherwise. Nothing that
    /// is not ordered against the stream may use D or the workspace meanwhile.
    pub unsafe fn launch(&self, operands: &GemmOperands, workspace: DevicePtr) -> Result<()> {
        let inner = &*self.inner;
        if matches!(inner.method, Method::Nothing) {
            return Ok(());
        }
        self.check(operands, workspace)?;
        let runtime = &inner.shared.runtime;
        match &inner.method {
            Method::Nothing => Ok(()),
            Method::ClearDense { bytes } => {
                let d = operands.d.slice(0, *bytes)?;
                // SAFETY: D holds `bytes` bytes of device memory, by this function's contract.
                Ok(unsafe { runtime.memset(d, 0) }?)
            }
            // SAFETY: this function's contract.
            Method::Multiply(multiply) => unsafe { self.multiply(multiply, operands, workspace) },
            Method::MultiplyZeros { multiply, zeros } => {
                let vector = workspace.slice(0, *zeros)?;
                let rest = workspace.slice(*zeros, multiply.workspace)?;
                // SAFETY: the workspace is device memory that nothing else uses, by this function's contract.
                unsafe { runtime.memset(vector, 0) }?;
                let operands = GemmOperands { a: vector, b: vector, ..*operands };
                // SAFETY: this function's contract; `vector` holds max(m, n) zeros, as A and as B.
                unsafe { self.multiply(multiply, &operands, rest) }
            }
        }
    }

    /// Every way in which operands and workspace do not fit.
    fn check(&self, operands: &GemmOperands, workspace: DevicePtr) -> Result<()> {
        let Inner { gemm, alignment, .. } = &*self.inner;
        let needs = Needs::of(gemm);
        let mut faults = Vec::new();
        if gemm.k > 0 {
            pointer_faults(OperandName::A, operands.a, needs.a, alignment.a, &mut faults);
            pointer_faults(OperandName::B, operands.b, needs.b, alignment.b, &mut faults);
        }
        pointer_faults(OperandName::D, operands.d, needs.d, alignment.d, &mut faults);
        if let (Some(c), true) = (operands.c, gemm.beta != 0.0) {
            pointer_faults(OperandName::C, c, needs.d, alignment.d, &mut faults);
        }
        match operands.bias {
            Some(bias) if gemm.epilogue.has_bias() => {
                pointer_faults(OperandName::Bias, bias, needs.bias, gemm.output_type.size() as u32, &mut faults);
            }
            bias if bias.is_some() != gemm.epilogue.has_bias() => faults.push(Fault::Bias { given: bias.is_some() }),
            _ => {}
        }
        let needed = self.workspace_bytes();
        if needed > 0 && (workspace.len() < needed || !workspace.is_aligned(WORKSPACE_ALIGN)) {
            faults.push(Fault::Workspace { needed, given: workspace.len(), address: workspace.address() });
        }
        if faults.is_empty() {
            return Ok(());
        }
        Err(Error::Operands { gemm: Box::new(gemm.clone()), faults: Faults(faults) })
    }

    /// # Safety
    ///
    /// That of [`GemmPlan::launch`], for operands that fit `multiply`.
    unsafe fn multiply(&self, multiply: &Multiply, operands: &GemmOperands, workspace: DevicePtr) -> Result<()> {
        let Inner { shared, gemm, .. } = &*self.inner;
        shared.runtime.bind()?;
        let multiplication = multiply.multiplication.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bias) = operands.bias {
            descriptor::set_bias(shared.library, &multiplication, bias.address())?;
        }
        let c = if gemm.beta == 0.0 { operands.d } else { operands.c.unwrap_or(operands.d) };
        let device = |pointer: DevicePtr| pointer.address() as *mut c_void;
        // SAFETY: descriptors and the algorithm belong together and are alive, factors are read before the call returns, and
        // the pointers are device memory large enough for their layouts, by this function's contract.
        let status = unsafe {
            shared.library.cublasLtMatmul(
                shared.handle.pointer(),
                multiplication.pointer(),
                ptr::from_ref(&gemm.alpha).cast(),
                device(operands.b),
                multiply.b.pointer(),
                device(operands.a),
                multiply.a.pointer(),
                ptr::from_ref(&gemm.beta).cast(),
                device(c),
                multiply.d.pointer(),
                device(operands.d),
                multiply.d.pointer(),
                ptr::from_ref(&multiply.algorithm).cast(),
                device(workspace),
                multiply.workspace,
                shared.runtime.stream_handle(),
            )
        };
        if status == 0 {
            return Ok(());
        }
        Err(Error::Call { call: "cublasLtMatmul", status: Status(status), gemm: Some(Box::new(gemm.clone())) })
    }
}

impl fmt::Debug for GemmPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("GemmPlan").field(&format_args!("{self}")).finish()
    }
}

impl fmt::Display for GemmPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.inner.gemm)?;
        match &self.inner.method {
            Method::Nothing => f.write_str(": nothing to do"),
            Method::ClearDense { bytes } => write!(f, ": k is 0, {bytes} bytes cleared"),
            Method::Multiply(multiply) => write!(f, ": {multiply}"),
            Method::MultiplyZeros { multiply, .. } => write!(f, ": k is 0, zeros multiplied, {multiply}"),
        }
    }
}

impl fmt::Display for Multiply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "workspace {} bytes, {:.2} waves", self.workspace, self.waves)
    }
}

impl Needs {
    fn of(gemm: &Gemm) -> Self {
        let StoredOperands { a, b, d } = gemm.stored();
        // Planning has refused what overflows.
        let bytes = |stored: &Stored| stored.bytes(gemm.batch).unwrap_or(usize::MAX);
        Self { a: bytes(&a), b: bytes(&b), d: bytes(&d), bias: gemm.n * gemm.output_type.size() }
    }
}

impl Multiply {
    fn new(shared: &Shared, gemm: &Gemm, alignment: Alignment, max_workspace: usize) -> Result<Self> {
        let library = shared.library;
        let StoredOperands { a, b, d } = gemm.stored();
        let layout = |stored: &Stored| descriptor::layout(library, stored, gemm.batch);
        let (a, b, d) = (layout(&a)?, layout(&b)?, layout(&d)?);
        let multiplication = descriptor::multiplication(library, gemm)?;
        let preference = descriptor::preference(library, alignment, max_workspace)?;
        let mut found = HeuristicResult {
            algorithm: sys::cublasLtMatmulAlgo_t { data: [0; 8] },
            workspace: 0,
            state: 0,
            waves: 0.0,
            reserved: [0; 4],
        };
        let mut count = 0;
        shared.runtime.bind()?;
        // SAFETY: all descriptors are alive, and there is room for the one result asked for.
        let status = unsafe {
            library.cublasLtMatmulAlgoGetHeuristic(
                shared.handle.pointer(),
                multiplication.pointer(),
                b.pointer(),
                a.pointer(),
                d.pointer(),
                d.pointer(),
                preference.pointer(),
                1,
                ptr::from_mut(&mut found).cast(),
                &mut count,
            )
        };
        let status = if status == 0 { found.state } else { status };
        if status != 0 || count < 1 {
            return Err(Error::NoAlgorithm {
                gemm: Box::new(gemm.clone()),
                alignment,
                max_workspace,
                status: Status(if status == 0 { 15 } else { status }),
                version: shared.version,
            });
        }
        Ok(Self {
            multiplication: Mutex::new(multiplication),
            a,
            b,
            d,
            algorithm: found.algorithm,
            workspace: found.workspace.next_multiple_of(WORKSPACE_ALIGN),
            waves: found.waves,
        })
    }
}
