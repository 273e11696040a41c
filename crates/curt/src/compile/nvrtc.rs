//! The NVRTC library: its function table, how it is found, and one compilation.

use std::ffi::{CStr, CString, c_char, c_int};
use std::path::{Path, PathBuf};

use cudarc::nvrtc::sys::nvrtcProgram;

use super::diagnostics::{self, CompileFailure};
use super::{Cubin, ModuleSource};
use crate::arch::Arch;
use crate::dylib::{self, LibrarySpec, SearchPaths};
use crate::error::{Error, Result};

const SUCCESS: c_int = 0;
const ERROR_INVALID_OPTION: c_int = 5;
const ERROR_COMPILATION: c_int = 6;
const ERROR_BUILTIN_OPERATION_FAILURE: c_int = 7;

crate::dylib_table! {
    /// What this crate calls of NVRTC.
    pub(super) struct NvrtcTable {
        fn nvrtcVersion(major: *mut c_int, minor: *mut c_int) -> c_int;
        fn nvrtcGetErrorString(result: c_int) -> *const c_char;
        fn nvrtcCreateProgram(
            program: *mut nvrtcProgram, source: *const c_char, name: *const c_char,
            header_count: c_int, headers: *const *const c_char, header_names: *const *const c_char,
        ) -> c_int;
        fn nvrtcDestroyProgram(program: *mut nvrtcProgram) -> c_int;
        fn nvrtcCompileProgram(program: nvrtcProgram, option_count: c_int, options: *const *const c_char) -> c_int;
        fn nvrtcGetProgramLogSize(program: nvrtcProgram, bytes: *mut usize) -> c_int;
        fn nvrtcGetProgramLog(program: nvrtcProgram, log: *mut c_char) -> c_int;
        fn nvrtcGetCUBINSize(program: nvrtcProgram, bytes: *mut usize) -> c_int;
        fn nvrtcGetCUBIN(program: nvrtcProgram, image: *mut c_char) -> c_int;
    }
}

/// How NVRTC is found.
const NVRTC: LibrarySpec = LibrarySpec {
    name: "NVRTC",
    files: if cfg!(windows) {
        &["nvrtc64_130_0.dll", "nvrtc64_120_0.dll"]
    } else {
        &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"]
    },
    // The wheel of CUDA 13.0 has no RPATH: NVRTC opens its builtins by name and would not find them.
    companions: if cfg!(windows) { &["nvrtc-builtins64_"] } else { &["libnvrtc-builtins.so"] },
    toolkit: true,
    wheel_components: &["cuda_nvrtc"],
    system_directories: &[],
    fix: "pip install nvidia-cuda-nvrtc (and set CURT_WHEELS to that site-packages, unless its environment is active), or install the \
          CUDA toolkit 12 or 13 and set CUDA_HOME",
};

/// A loaded NVRTC.
#[derive(Debug)]
pub(crate) struct Nvrtc {
    table: NvrtcTable,
    pub(crate) path: PathBuf,
    pub(crate) version: (u32, u32),
}

impl Nvrtc {
    pub(crate) fn load(search: &SearchPaths) -> Result<Self> {
        let loaded = dylib::load::<NvrtcTable>(&NVRTC, search, |table, path| {
            let (major, minor) = version(table)?;
            require_builtins(path, major, minor)
        })?;
        let version = version(&loaded.table)?;
        Ok(Self { table: loaded.table, path: loaded.path, version })
    }

    pub(crate) fn compile(&self, source: &ModuleSource, arch: Arch) -> Result<Cubin> {
        source.check()?;
        let options = std::iter::once(format!("--gpu-architecture={arch}")).chain(source.options().iter().cloned());
        let options: Vec<CString> = options.map(|option| c_string(&option)).collect();
        let option_pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();

        let program = Program::new(self, source)?;
        let count = option_pointers.len() as c_int;
        // SAFETY: the program is live, and the options are as many C strings as stated, alive until after the call.
        let code = unsafe { self.table.nvrtcCompileProgram(program.handle, count, option_pointers.as_ptr()) };
        let log = program.log()?;
        match code {
            SUCCESS => Ok(Cubin { image: program.cubin()?.into(), log }),
            ERROR_BUILTIN_OPERATION_FAILURE => Err(Error::BuiltinsMissing {
                nvrtc: self.path.clone(),
                expected: builtins_file(self.version),
                reason: log,
            }),
            ERROR_COMPILATION | ERROR_INVALID_OPTION => Err(CompileFailure {
                module: source.name().to_owned(),
                arch,
                options: source.options().to_vec(),
                nvrtc_version: self.version,
                diagnostics: diagnostics::parse(&log),
                log,
            }
            .into()),
            code => Err(self.error("nvrtcCompileProgram", code)),
        }
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<()> {
        if code == SUCCESS { Ok(()) } else { Err(self.error(call, code)) }
    }

    fn error(&self, call: &'static str, code: c_int) -> Error {
        error(&self.table, call, code)
    }
}

/// A program of NVRTC, destroyed with this value.
struct Program<'a> {
    nvrtc: &'a Nvrtc,
    handle: nvrtcProgram,
}

impl<'a> Program<'a> {
    fn new(nvrtc: &'a Nvrtc, source: &ModuleSource) -> Result<Self> {
        let text = c_string(source.text());
        let name = c_string(source.name());
        let mut handle = std::ptr::null_mut();
        // SAFETY: both strings are C strings alive during the call, which copies them; there are no headers.
        let code = unsafe {
            nvrtc.table.nvrtcCreateProgram(
                &mut handle,
                text.as_ptr(),
                name.as_ptr(),
                0,
                std::ptr::null(),
                std::ptr::null(),
            )
        };
        nvrtc.check("nvrtcCreateProgram", code)?;
        Ok(Self { nvrtc, handle })
    }

    fn log(&self) -> Result<String> {
        let mut size = 0;
        // SAFETY: the program is live and the pointer is to a live integer.
        let code = unsafe { self.nvrtc.table.nvrtcGetProgramLogSize(self.handle, &mut size) };
        self.nvrtc.check("nvrtcGetProgramLogSize", code)?;
        let mut log = vec![0u8; size];
        if size > 0 {
            // SAFETY: the buffer has the size that NVRTC just stated.
            let code = unsafe { self.nvrtc.table.nvrtcGetProgramLog(self.handle, log.as_mut_ptr().cast()) };
            self.nvrtc.check("nvrtcGetProgramLog", code)?;
        }
        let end = log.iter().position(|&byte| byte == 0).unwrap_or(log.len());
        Ok(String::from_utf8_lossy(&log[..end]).trim_end().to_owned())
    }

    fn cubin(&self) -> Result<Vec<u8>> {
        let mut size = 0;
        // SAFETY: the program is live and the pointer is to a live integer.
        let code = unsafe { self.nvrtc.table.nvrtcGetCUBINSize(self.handle, &mut size) };
        self.nvrtc.check("nvrtcGetCUBINSize", code)?;
        let mut image = vec![0u8; size];
        // SAFETY: the buffer has the size that NVRTC just stated.
        let code = unsafe { self.nvrtc.table.nvrtcGetCUBIN(self.handle, image.as_mut_ptr().cast()) };
        self.nvrtc.check("nvrtcGetCUBIN", code)?;
        Ok(image)
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: the program is live and not used again.
        unsafe { self.nvrtc.table.nvrtcDestroyProgram(&mut self.handle) };
    }
}

/// A C string of text that [`ModuleSource::check`] has passed.
fn c_string(text: &str) -> CString {
    let mut bytes = text.as_bytes().to_vec();
    bytes.retain(|&byte| byte != 0);
    CString::new(bytes).unwrap_or_default()
}

fn version(table: &NvrtcTable) -> Result<(u32, u32)> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both pointers are to live integers.
    let code = unsafe { table.nvrtcVersion(&mut major, &mut minor) };
    if code == SUCCESS {
        Ok((major.unsigned_abs(), minor.unsigned_abs()))
    } else {
        Err(error(table, "nvrtcVersion", code))
    }
}

fn error(table: &NvrtcTable, call: &'static str, code: c_int) -> Error {
    // SAFETY: NVRTC answers every number, unknown ones too, with a constant C string.
    let text = unsafe { table.nvrtcGetErrorString(code) };
    let name = if text.is_null() {
        "unknown error".to_owned()
    } else {
        // SAFETY: it is a constant C string of the library.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    };
    Error::Nvrtc { call, code, name }
}

fn builtins_file((major, minor): (u32, u32)) -> String {
    if cfg!(windows) {
        format!("nvrtc-builtins64_{major}{minor}.dll")
    } else {
        format!("libnvrtc-builtins.so.{major}.{minor}")
    }
}

/// The companions beside NVRTC are loaded by now. This finds them by name, or lets the loader find them elsewhere.
fn require_builtins(nvrtc: &Path, major: u32, minor: u32) -> Result<()> {
    let expected = builtins_file((major, minor));
    dylib::load_global(&expected).map_err(|reason| Error::BuiltinsMissing { nvrtc: nvrtc.to_owned(), expected, reason })
}
