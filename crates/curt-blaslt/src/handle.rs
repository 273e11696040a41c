//! The cuBLASLt handle of a runtime, and the cache of planned products.

use std::collections::HashMap;
use std::fmt;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use curt::Runtime;

use crate::descriptor::check;
use crate::error::Result;
use crate::gemm::{Alignment, Compute, ElementType, Epilogue, Gemm, Matrix, Output};
use crate::library::Library;
use crate::plan::GemmPlan;

/// Workspace that a plan may ask for unless told otherwise: what cuBLAS itself takes on Hopper.
pub const DEFAULT_MAX_WORKSPACE: usize = 32 << 20;

/// What a plan may rely on and ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Preference {
    /// What pointers will be aligned to.
    pub alignment: Alignment,
    /// The most workspace that the plan may ask for.
    pub max_workspace: usize,
}

impl Default for Preference {
    fn default() -> Self {
        Self { alignment: Alignment::FULL, max_workspace: DEFAULT_MAX_WORKSPACE }
    }
}

/// cuBLASLt on one runtime. Cheap to clone; any thread may plan and launch.
#[derive(Clone)]
pub struct BlasLt {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    plans: Mutex<HashMap<Key, GemmPlan>>,
}

/// A [`BlasLt`] that does not keep its handle and runtime alive: for caches.
#[derive(Clone)]
pub struct WeakBlasLt {
    inner: Weak<Inner>,
}

impl WeakBlasLt {
    /// The handle, if anyone still holds it.
    pub fn upgrade(&self) -> Option<BlasLt> {
        self.inner.upgrade().map(|inner| BlasLt { inner })
    }
}

impl fmt::Debug for WeakBlasLt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WeakBlasLt").field("alive", &(self.inner.strong_count() > 0)).finish()
    }
}

/// What every plan of a runtime needs.
pub(crate) struct Shared {
    // Dropped in this order: the handle before the runtime whose context it lives in.
    pub(crate) handle: Handle,
    pub(crate) library: &'static Library,
    pub(crate) version: usize,
    pub(crate) runtime: Runtime,
}

pub(crate) struct Handle {
    pointer: *mut std::ffi::c_void,
    library: &'static Library,
    runtime: Runtime,
}

// SAFETY: a cuBLASLt handle may be used from several threads at once, as its documentation says.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Handle {
    pub(crate) fn pointer(&self) -> *mut std::ffi::c_void {
        self.pointer
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.runtime.bind().is_ok() {
            // SAFETY: the handle came from cublasLtCreate, in the context that is now current, and is destroyed once.
            unsafe { self.library.cublasLtDestroy(self.pointer) };
        }
    }
}

/// A description as a key: floats by their bits.
#[derive(PartialEq, Eq, Hash)]
struct Key {
    extents: [usize; 4],
    types: (ElementType, ElementType, Compute, Epilogue),
    layouts: (Matrix, Matrix, Output),
    factors: [u32; 2],
    preference: Preference,
}

impl Key {
    fn new(gemm: &Gemm, preference: Preference) -> Self {
        Self {
            extents: [gemm.m, gemm.n, gemm.k, gemm.batch],
            types: (gemm.input_type, gemm.output_type, gemm.compute, gemm.epilogue),
            layouts: (gemm.a, gemm.b, gemm.d),
            factors: [gemm.alpha.to_bits(), gemm.beta.to_bits()],
            preference,
        }
    }
}

impl BlasLt {
    /// Loads cuBLASLt and makes a handle in the runtime's context. Not during graph capture.
    ///
    /// # Errors
    ///
    /// [`curt::Error`] where the library or one of its functions is missing, with what was tried; [`crate::Error::Call`] where
    /// cuBLASLt cannot start.
    pub fn new(runtime: &Runtime) -> Result<Self> {
        let library = Library::get()?;
        if runtime.is_capturing()? {
            return Err(curt::Error::Capturing { what: "creating a cuBLASLt handle" }.into());
        }
        runtime.bind()?;
        let mut pointer = ptr::null_mut();
        // SAFETY: the context is current, and `pointer` is a place for the handle.
        check("cublasLtCreate", unsafe { library.cublasLtCreate(&mut pointer) })?;
        let handle = Handle { pointer, library, runtime: runtime.clone() };
        // SAFETY: a function without arguments that returns a number.
        let version = unsafe { library.cublasLtGetVersion() };
        let shared = Shared { handle, library, version, runtime: runtime.clone() };
        Ok(Self { inner: Arc::new(Inner { shared: Arc::new(shared), plans: Mutex::default() }) })
    }

    /// The library's version, `10000 * major + 100 * minor + patch`.
    pub fn version(&self) -> usize {
        self.inner.shared.version
    }

    /// The runtime whose stream launches go to.
    pub fn runtime(&self) -> &Runtime {
        &self.inner.shared.runtime
    }

    /// Makes `gemm` ready, or finds it made: asking cuBLASLt for an algorithm takes microseconds, so each description is asked
    /// for once.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Invalid`] with everything that is wrong with the description, before any call;
    /// [`crate::Error::NoAlgorithm`] where cuBLASLt has none.
    pub fn plan(&self, gemm: &Gemm, preference: Preference) -> Result<GemmPlan> {
        let key = Key::new(gemm, preference);
        let known = self.plans().get(&key).cloned();
        if let Some(plan) = known {
            return Ok(plan);
        }
        let plan = GemmPlan::new(Arc::clone(&self.inner.shared), gemm, preference.alignment, preference.max_workspace)?;
        tracing::debug!(plan = %plan, "cuBLASLt plan");
        self.plans().insert(key, plan.clone());
        Ok(plan)
    }

    /// A reference that does not keep the handle and its runtime alive.
    pub fn downgrade(&self) -> WeakBlasLt {
        WeakBlasLt { inner: Arc::downgrade(&self.inner) }
    }

    fn plans(&self) -> MutexGuard<'_, HashMap<Key, GemmPlan>> {
        self.inner.plans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many products are planned.
    pub fn cached_plans(&self) -> usize {
        self.plans().len()
    }
}

impl fmt::Debug for BlasLt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlasLt").field("version", &self.version()).field("cached_plans", &self.cached_plans()).finish()
    }
}
