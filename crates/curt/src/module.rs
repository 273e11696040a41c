//! Loaded modules and their kernels.

use std::collections::HashMap;
use std::ffi::{CString, c_int};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::{CUfunction, CUmodule};

use crate::context::Core;
use crate::driver::{self, CuResult, function_attribute};
use crate::error::{Error, LaunchViolation, Result};

/// The dynamic shared memory that every kernel may use without opting in.
const SHARED_WITHOUT_OPT_IN: u32 = 48 << 10;

/// A module in one context, unloaded when the last holder goes.
pub(crate) struct ModuleInner {
    core: Arc<Core>,
    handle: CUmodule,
    name: String,
    /// Dynamic shared memory opted in for each kernel. It is a property of the kernel, not of its holder, so it only grows.
    opted_in: Mutex<HashMap<String, u32>>,
}

// SAFETY: a module's handle may be used from any thread.
unsafe impl Send for ModuleInner {}
// SAFETY: as above.
unsafe impl Sync for ModuleInner {}

impl ModuleInner {
    pub(crate) fn load(core: &Arc<Core>, name: &str, image: &[u8]) -> Result<Self> {
        core.bind()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the image is a whole CUBIN: NVRTC made it, or the caller of `load_image` vouches for it.
        let code = unsafe { core.driver.table.cuModuleLoadData(&mut handle, image.as_ptr().cast()) };
        if code != driver::SUCCESS {
            return Err(refusal(core, name, code));
        }
        Ok(Self { core: Arc::clone(core), handle, name: name.to_owned(), opted_in: Mutex::new(HashMap::new()) })
    }
}

fn refusal(core: &Core, name: &str, code: CuResult) -> Error {
    match code {
        driver::ERROR_INVALID_IMAGE | driver::ERROR_NO_BINARY_FOR_GPU | driver::ERROR_UNSUPPORTED_PTX_VERSION => {
            Error::ModuleRefused {
                module: name.to_owned(),
                arch: core.capabilities.arch(),
                driver: core.driver.version,
                code,
                name: core.driver.error_name(code),
                fix: format!(
                    "NVRTC must not be of a later major version than the driver: install one of CUDA {}, or update the driver",
                    core.driver.version.0
                ),
            }
        }
        driver::ERROR_OUT_OF_MEMORY => {
            let (free, total) = core.memory_info().unwrap_or((0, core.capabilities.memory_bytes));
            Error::OutOfMemory { asked: 0, free, total }
        }
        code => match core.driver.check("cuModuleLoadData", code) {
            Err(error) => error,
            Ok(()) => unreachable!("only failures come here"),
        },
    }
}

impl Drop for ModuleInner {
    fn drop(&mut self) {
        // Work that uses the module may still be under way, and a graph being captured may hold its kernels.
        match self.core.synchronize() {
            // SAFETY: the module is ours, and the stream has passed everything that used it.
            Ok(()) => drop(unsafe { self.core.driver.table.cuModuleUnload(self.handle) }),
            Err(error) => tracing::debug!("module {} stays loaded until its context ends: {error}", self.name),
        }
    }
}

/// A module that is loaded in a runtime's context. Cheap to clone.
#[derive(Clone)]
pub struct Module(Arc<ModuleInner>);

impl Module {
    pub(crate) fn new(inner: Arc<ModuleInner>) -> Self {
        Self(inner)
    }

    /// The name of its source.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// A kernel, with up to 48 KiB of dynamic shared memory.
    ///
    /// # Errors
    ///
    /// [`Error::EntryMissing`], or what the driver says.
    pub fn function(&self, entry: &str) -> Result<Function> {
        self.function_with(entry, FunctionOptions::default())
    }

    /// A kernel that is launched with up to `bytes` of dynamic shared memory.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidLaunch`] where a block of this device does not have as much, and as [`Module::function`].
    pub fn function_with_shared(&self, entry: &str, bytes: usize) -> Result<Function> {
        self.function_with(entry, FunctionOptions { shared_bytes: bytes, ..FunctionOptions::default() })
    }

    /// A kernel, with all options.
    ///
    /// # Errors
    ///
    /// As [`Module::function_with_shared`].
    pub fn function_with(&self, entry: &str, options: FunctionOptions) -> Result<Function> {
        let core = &self.0.core;
        let missing = || Error::EntryMissing { module: self.0.name.clone(), entry: entry.to_owned() };
        let name = CString::new(entry).map_err(|_| missing())?;
        core.bind()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the module is live, the name is a C string, and the pointer is to a live handle.
        let code = unsafe { core.driver.table.cuModuleGetFunction(&mut handle, self.0.handle, name.as_ptr()) };
        // The driver calls an empty name an invalid value; no module has a kernel of that name either.
        if code == driver::ERROR_NOT_FOUND || entry.is_empty() {
            return Err(missing());
        }
        core.driver.check("cuModuleGetFunction", code)?;

        let mut function = Function {
            module: Arc::clone(&self.0),
            handle,
            entry: entry.into(),
            attributes: FunctionAttributes::default(),
            shared_limit: 0,
        };
        function.attributes = function.query_attributes()?;
        function.shared_limit = function.opt_in(options.shared_bytes)?;
        if options.non_portable_cluster {
            function.set_attribute(function_attribute::NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)?;
        }
        Ok(function)
    }
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Module({})", self.0.name)
    }
}

/// What a kernel is prepared for when it is taken from its module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FunctionOptions {
    /// The most dynamic shared memory that it will be launched with. Beyond 48 KiB the driver wants to know beforehand.
    pub shared_bytes: usize,
    /// Clusters of more than 8 blocks, which not every device of an architecture has.
    pub non_portable_cluster: bool,
}

/// What the compiler made of a kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FunctionAttributes {
    /// Registers a thread.
    pub registers: u32,
    /// Static shared memory a block.
    pub static_shared_bytes: usize,
    /// Local memory a thread: spilled registers and local arrays.
    pub local_bytes: usize,
    /// The most threads that a block may have.
    pub threads_per_block: u32,
}

/// A kernel, ready to launch. Keeps its module loaded. Cheap to clone.
#[derive(Clone)]
pub struct Function {
    module: Arc<ModuleInner>,
    pub(crate) handle: CUfunction,
    entry: Arc<str>,
    attributes: FunctionAttributes,
    shared_limit: u32,
}

// SAFETY: a function's handle may be used from any thread.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Function {
    /// The kernel's name.
    pub fn entry(&self) -> &str {
        &self.entry
    }

    /// What the compiler made of it.
    pub const fn attributes(&self) -> FunctionAttributes {
        self.attributes
    }

    /// The most dynamic shared memory that it can be launched with.
    pub const fn shared_limit(&self) -> u32 {
        self.shared_limit
    }

    /// How many of its blocks a multiprocessor runs at once.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn occupancy(&self, block_threads: u32, dynamic_shared_bytes: usize) -> Result<u32> {
        let core = &self.module.core;
        core.bind()?;
        let threads = c_int::try_from(block_threads).unwrap_or(c_int::MAX);
        let mut blocks = 0;
        // SAFETY: the function is live, and the pointer is to a live integer.
        let code = unsafe {
            core.driver.table.cuOccupancyMaxActiveBlocksPerMultiprocessor(
                &mut blocks,
                self.handle,
                threads,
                dynamic_shared_bytes,
            )
        };
        core.driver.check("cuOccupancyMaxActiveBlocksPerMultiprocessor", code)?;
        Ok(blocks.unsigned_abs())
    }

    #[cold]
    pub(crate) fn refuse(&self, why: LaunchViolation) -> Error {
        Error::InvalidLaunch { kernel: self.entry.to_string(), why }
    }

    fn attribute(&self, attribute: c_int) -> Result<u32> {
        let driver = self.module.core.driver;
        let mut value = 0;
        // SAFETY: the function is live, and the pointer is to a live integer.
        let code = unsafe { driver.table.cuFuncGetAttribute(&mut value, attribute, self.handle) };
        driver.check("cuFuncGetAttribute", code)?;
        Ok(value.unsigned_abs())
    }

    fn set_attribute(&self, attribute: c_int, value: c_int) -> Result<()> {
        let driver = self.module.core.driver;
        // SAFETY: the function is live.
        let code = unsafe { driver.table.cuFuncSetAttribute(self.handle, attribute, value) };
        driver.check("cuFuncSetAttribute", code)
    }

    fn query_attributes(&self) -> Result<FunctionAttributes> {
        Ok(FunctionAttributes {
            registers: self.attribute(function_attribute::NUM_REGS)?,
            static_shared_bytes: self.attribute(function_attribute::SHARED_SIZE_BYTES)? as usize,
            local_bytes: self.attribute(function_attribute::LOCAL_SIZE_BYTES)? as usize,
            threads_per_block: self.attribute(function_attribute::MAX_THREADS_PER_BLOCK)?,
        })
    }

    /// Allows launches with `bytes` of dynamic shared memory, and returns how much is allowed now.
    fn opt_in(&self, bytes: usize) -> Result<u32> {
        let limit = self.module.core.capabilities.shared_bytes_per_block;
        let fixed = self.attributes.static_shared_bytes;
        let beyond = || self.refuse(LaunchViolation::SharedBeyondDevice { asked: bytes, fixed, limit });
        if bytes.saturating_add(fixed) > limit {
            return Err(beyond());
        }
        let bytes = u32::try_from(bytes).map_err(|_| beyond())?;
        // Static and dynamic memory share what is given without opting in.
        let free = SHARED_WITHOUT_OPT_IN.saturating_sub(u32::try_from(fixed).unwrap_or(u32::MAX));
        let mut opted_in = self.module.opted_in.lock().unwrap_or_else(PoisonError::into_inner);
        let allowed = opted_in.get(&*self.entry).copied().unwrap_or(free);
        if bytes <= allowed {
            return Ok(allowed);
        }
        self.set_attribute(
            function_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES,
            c_int::try_from(bytes).unwrap_or(c_int::MAX),
        )?;
        opted_in.insert(self.entry.to_string(), bytes);
        Ok(bytes)
    }
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Function({} of {})", self.entry, self.module.name)
    }
}
