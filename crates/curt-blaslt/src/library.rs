//! The functions of cuBLASLt that this crate calls.

use std::ffi::{c_int, c_void};
use std::path::Path;
use std::sync::OnceLock;

use curt::dylib::{self, LibrarySpec, SearchPaths};

use crate::error::Result;

curt::dylib_table! {
    /// cuBLASLt. Enumerations are passed as numbers: a newer library may return values that an older enumeration has not.
    pub(crate) struct Library {
        fn cublasLtGetVersion() -> usize;
        fn cublasLtCreate(handle: *mut *mut c_void) -> u32;
        fn cublasLtDestroy(handle: *mut c_void) -> u32;
        fn cublasLtMatmul(
            handle: *mut c_void, multiplication: *mut c_void, alpha: *const c_void, a: *const c_void,
            a_layout: *mut c_void, b: *const c_void, b_layout: *mut c_void, beta: *const c_void, c: *const c_void,
            c_layout: *mut c_void, d: *mut c_void, d_layout: *mut c_void, algorithm: *const c_void, workspace: *mut c_void,
            workspace_bytes: usize, stream: *mut c_void,
        ) -> u32;
        fn cublasLtMatmulAlgoGetHeuristic(
            handle: *mut c_void, multiplication: *mut c_void, a_layout: *mut c_void, b_layout: *mut c_void,
            c_layout: *mut c_void, d_layout: *mut c_void, preference: *mut c_void, requested: c_int, results: *mut c_void,
            returned: *mut c_int,
        ) -> u32;
        fn cublasLtMatmulDescCreate(desc: *mut *mut c_void, compute_type: u32, scale_type: u32) -> u32;
        fn cublasLtMatmulDescDestroy(desc: *mut c_void) -> u32;
        fn cublasLtMatmulDescSetAttribute(desc: *mut c_void, attribute: u32, value: *const c_void, bytes: usize) -> u32;
        fn cublasLtMatrixLayoutCreate(
            layout: *mut *mut c_void, element: u32, rows: u64, columns: u64, leading: i64,
        ) -> u32;
        fn cublasLtMatrixLayoutDestroy(layout: *mut c_void) -> u32;
        fn cublasLtMatrixLayoutSetAttribute(
            layout: *mut c_void, attribute: u32, value: *const c_void, bytes: usize,
        ) -> u32;
        fn cublasLtMatmulPreferenceCreate(preference: *mut *mut c_void) -> u32;
        fn cublasLtMatmulPreferenceDestroy(preference: *mut c_void) -> u32;
        fn cublasLtMatmulPreferenceSetAttribute(
            preference: *mut c_void, attribute: u32, value: *const c_void, bytes: usize,
        ) -> u32;
    }
}

impl Library {
    /// The library, loaded once for the process. A failure is not kept: the next call looks again.
    pub(crate) fn get() -> Result<&'static Self> {
        static LOADED: OnceLock<Library> = OnceLock::new();
        if let Some(library) = LOADED.get() {
            return Ok(library);
        }
        let loaded = dylib::load::<Self>(&SPEC, &SearchPaths::current(), |_, _: &Path| Ok(()))?;
        tracing::debug!(path = %loaded.path.display(), "cuBLASLt loaded");
        Ok(LOADED.get_or_init(|| loaded.table))
    }
}

const SPEC: LibrarySpec = curt::CUBLASLT;
