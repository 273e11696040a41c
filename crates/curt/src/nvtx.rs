//! Named ranges on the timeline of Nsight Systems.
//!
//! With the feature `nvtx`, and where `libnvToolsExt` can be loaded, a range is shown by the profiler. Otherwise it is nothing.

/// A range that ends when dropped, on the thread that began it.
#[derive(Debug)]
#[must_use = "the range ends when this is dropped"]
pub struct Range {
    // Ranges nest by thread.
    _thread_bound: std::marker::PhantomData<*const ()>,
}

/// Begins a range.
///
/// ```
/// let _range = curt::nvtx::range("prefill");
/// ```
pub fn range(name: &str) -> Range {
    imp::push(name);
    Range { _thread_bound: std::marker::PhantomData }
}

impl Drop for Range {
    fn drop(&mut self) {
        imp::pop();
    }
}

#[cfg(not(feature = "nvtx"))]
mod imp {
    pub(super) fn push(_name: &str) {}
    pub(super) fn pop() {}
}

#[cfg(feature = "nvtx")]
mod imp {
    use std::ffi::{CString, c_char, c_int};
    use std::sync::OnceLock;

    use crate::dylib::{self, LibrarySpec, Loaded, SearchPaths};

    crate::dylib_table! {
        struct Nvtx {
            fn nvtxRangePushA(name: *const c_char) -> c_int;
            fn nvtxRangePop() -> c_int;
        }
    }

    const NVTX: LibrarySpec = LibrarySpec {
        name: "NVTX",
        files: if cfg!(windows) { &["nvToolsExt64_1.dll"] } else { &["libnvToolsExt.so.1"] },
        toolkit: true,
        wheel_components: &["nvtx"],
        ..LibrarySpec::EMPTY
    };

    fn library() -> Option<&'static Nvtx> {
        static LIBRARY: OnceLock<Option<Loaded<Nvtx>>> = OnceLock::new();
        let library = LIBRARY.get_or_init(|| dylib::load(&NVTX, &SearchPaths::current(), |_, _| Ok(())).ok());
        library.as_ref().map(|loaded| &loaded.table)
    }

    pub(super) fn push(name: &str) {
        if let (Some(nvtx), Ok(name)) = (library(), CString::new(name.replace('\0', " "))) {
            // SAFETY: the name is a C string, which the call copies.
            unsafe { nvtx.nvtxRangePushA(name.as_ptr()) };
        }
    }

    pub(super) fn pop() {
        if let Some(nvtx) = library() {
            // SAFETY: it has no precondition; without an open range it does nothing.
            unsafe { nvtx.nvtxRangePop() };
        }
    }
}
