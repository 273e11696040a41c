//! The one way in which this crate, and crates above it, load a shared library.
//!
//! A library is described by a [`LibrarySpec`], its functions by a struct that [`dylib_table!`](crate::dylib_table) declares, and the
//! places to look by [`SearchPaths`]. [`load`] walks the places in order and returns the first library that loads, exports every
//! function of the table, and passes the caller's check. Whatever fails on the way is kept and told: a missing library is an
//! [`Error::LibraryMissing`] with every place that was tried, a library of the wrong version an [`Error::SymbolMissing`] with every
//! function that it lacks.
//!
//! Libraries are never unloaded again: function pointers of a CUDA library may be in use by threads of its own until the
//! process ends.
//!
//! ```
//! use std::ffi::c_int;
//! use curt::dylib::{self, LibrarySpec, SearchPaths};
//!
//! curt::dylib_table! {
//!     /// Two functions of the C library's mathematics.
//!     pub struct Libm {
//!         fn abs(value: c_int) -> c_int;
//!     }
//! }
//!
//! let spec = LibrarySpec { name: "libc", files: &["libc.so.6"], ..LibrarySpec::EMPTY };
//! # #[cfg(target_os = "linux")] {
//! let libc = dylib::load::<Libm>(&spec, &SearchPaths::from_env(), |_, _| Ok(()))?;
//! // SAFETY: `abs` is declared as C declares it.
//! assert_eq!(unsafe { libc.table.abs(-3) }, 3);
//! # }
//! # Ok::<(), curt::Error>(())
//! ```

use std::ffi::{OsStr, c_void};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

use crate::error::{Error, Result};

/// What a shared library is called and where it is found.
#[derive(Clone, Copy, Debug)]
pub struct LibrarySpec {
    /// Its name in NVIDIA's documentation, for messages.
    pub name: &'static str,
    /// File names, best first.
    pub files: &'static [&'static str],
    /// File name prefixes of libraries in the same directory that must be loaded first and be visible to it, because it opens
    /// them by name and has no search path of its own.
    pub companions: &'static [&'static str],
    /// Whether it comes with the CUDA toolkit (and so with Python wheels). The driver does not.
    pub toolkit: bool,
    /// Folder names under `nvidia/` of a Python wheel that hold it, for wheels with one folder a component.
    pub wheel_components: &'static [&'static str],
    /// Directories of the system to look into that the loader may not know.
    pub system_directories: &'static [&'static str],
    /// How to get it.
    pub fix: &'static str,
}

impl LibrarySpec {
    /// A description with nothing in it, to fill in with `..LibrarySpec::EMPTY`.
    pub const EMPTY: Self = Self {
        name: "",
        files: &[],
        companions: &[],
        toolkit: false,
        wheel_components: &[],
        system_directories: &[],
        fix: "install it",
    };
}

/// A place that was looked at, and what was there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Why this place: an environment variable, the loader, a wheel.
    pub origin: String,
    /// The directory or file.
    pub path: PathBuf,
    /// What happened.
    pub outcome: String,
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.path.display(), self.origin, self.outcome)
    }
}

/// A place to look for libraries.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    origin: String,
    path: PathBuf,
}

/// Where to look for libraries, in order: explicit paths, toolkit roots, the loader, Python wheels, the system's toolkits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SearchPaths {
    explicit: Vec<Place>,
    toolkits: Vec<Place>,
    loader: bool,
    wheels: Vec<Place>,
    system: bool,
}

static DEFAULT_PATHS: RwLock<Option<SearchPaths>> = RwLock::new(None);

impl SearchPaths {
    /// Where the process looks: what [`SearchPaths::make_default`] set, or else [`SearchPaths::from_env`].
    pub fn current() -> Self {
        DEFAULT_PATHS.read().unwrap_or_else(PoisonError::into_inner).clone().unwrap_or_else(Self::from_env)
    }

    /// Makes this the process's search. Libraries that are already loaded stay as they are.
    pub fn make_default(self) {
        *DEFAULT_PATHS.write().unwrap_or_else(PoisonError::into_inner) = Some(self);
    }

    /// The search that the environment describes.
    ///
    /// `CURT_CUDA_PATH` (a library, a directory or a toolkit root; several as in `PATH`), `CUDA_HOME`, `CUDA_PATH`, the loader, wheels
    /// below `CURT_WHEELS`, `VIRTUAL_ENV`, `CONDA_PREFIX`, the `python3` of `PATH` and `~/.local`, then `/usr/local/cuda*`.
    pub fn from_env() -> Self {
        Self::from_variables(|name| std::env::var_os(name).filter(|value| !value.is_empty()))
    }

    fn from_variables(variable: impl Fn(&str) -> Option<std::ffi::OsString>) -> Self {
        let mut paths = Self { loader: true, system: true, ..Self::default() };
        for path in variable("CURT_CUDA_PATH").iter().flat_map(std::env::split_paths) {
            paths.explicit.push(Place { origin: "CURT_CUDA_PATH".to_owned(), path });
        }
        for name in ["CUDA_HOME", "CUDA_PATH"] {
            for path in variable(name).iter().flat_map(std::env::split_paths) {
                paths.toolkits.push(Place { origin: name.to_owned(), path });
            }
        }
        for path in variable("CURT_WHEELS").iter().flat_map(std::env::split_paths) {
            paths.wheels.push(Place { origin: "CURT_WHEELS".to_owned(), path });
        }
        for name in ["VIRTUAL_ENV", "CONDA_PREFIX"] {
            if let Some(prefix) = variable(name) {
                paths.push_python_prefix(name, Path::new(&prefix));
            }
        }
        if let Some(python) = variable("PATH").and_then(|path| find_python(&path))
            && let Some(prefix) = python.parent().and_then(Path::parent)
        {
            paths.push_python_prefix("python3 of PATH", prefix);
            // Where Debian's python3 installs to.
            paths.push_python_prefix("python3 of PATH", &prefix.join("local"));
        }
        if let Some(home) = variable("HOME") {
            paths.push_python_prefix("pip install --user", &Path::new(&home).join(".local"));
        }
        paths
    }

    /// A search of these files and directories and nothing else: no environment, no loader, no wheels.
    pub fn only<P: Into<PathBuf>>(paths: impl IntoIterator<Item = P>) -> Self {
        paths.into_iter().fold(Self::default(), Self::explicit)
    }

    /// Adds a library file, a directory or a toolkit root. What was added first is looked at first, before all else.
    #[must_use]
    pub fn explicit(mut self, path: impl Into<PathBuf>) -> Self {
        self.explicit.push(Place { origin: "explicit path".to_owned(), path: path.into() });
        self
    }

    /// Adds a folder of Python packages (`site-packages`), or its `nvidia` folder.
    #[must_use]
    pub fn wheels(mut self, path: impl Into<PathBuf>) -> Self {
        self.wheels.push(Place { origin: "wheels".to_owned(), path: path.into() });
        self
    }

    fn push_python_prefix(&mut self, origin: &str, prefix: &Path) {
        for library in ["lib", "lib64"] {
            for python in children(&prefix.join(library), |name| name.starts_with("python3")) {
                for packages in ["site-packages", "dist-packages"] {
                    let path = python.join(packages);
                    if path.is_dir() && !self.wheels.iter().any(|place| place.path == path) {
                        self.wheels.push(Place { origin: origin.to_owned(), path });
                    }
                }
            }
        }
        if origin == "CONDA_PREFIX" {
            self.toolkits.push(Place { origin: origin.to_owned(), path: prefix.to_owned() });
        }
    }

    /// The directories and names to try for `spec`, in order.
    fn steps(&self, spec: &LibrarySpec) -> Vec<Step> {
        let mut steps = Vec::new();
        for place in &self.explicit {
            steps.extend(explicit_steps(place));
        }
        if spec.toolkit {
            for place in &self.toolkits {
                steps.push(Step::directories(&place.origin, &place.path, toolkit_directories(&place.path)));
            }
        }
        if self.loader {
            steps.push(Step::Loader);
        }
        if spec.toolkit {
            for place in &self.wheels {
                steps.push(Step::directories(&place.origin, &place.path, wheel_directories(&place.path, spec)));
            }
        }
        if self.system {
            for directory in spec.system_directories {
                steps.push(Step::directories("system", Path::new(directory), vec![PathBuf::from(directory)]));
            }
            if spec.toolkit && cfg!(unix) {
                let mut roots = children(Path::new("/usr/local"), |name| name.starts_with("cuda"));
                // The plain link first, then the newest version.
                roots.sort_by(|a, b| (a.as_os_str().len(), b).cmp(&(b.as_os_str().len(), a)));
                let directories = roots.iter().flat_map(|root| toolkit_directories(root)).collect();
                steps.push(Step::directories("system", Path::new("/usr/local/cuda*"), directories));
            }
        }
        steps
    }
}

enum Step {
    Loader,
    File { origin: String, path: PathBuf },
    Directories { origin: String, shown: PathBuf, directories: Vec<PathBuf> },
}

impl Step {
    fn directories(origin: &str, shown: &Path, directories: Vec<PathBuf>) -> Self {
        Self::Directories { origin: origin.to_owned(), shown: shown.to_owned(), directories }
    }
}

fn explicit_steps(place: &Place) -> Option<Step> {
    let Place { origin, path } = place.clone();
    Some(if path.is_dir() {
        Step::directories(&origin, &path, toolkit_directories(&path))
    } else {
        Step::File { origin, path }
    })
}

fn toolkit_directories(root: &Path) -> Vec<PathBuf> {
    let target = if cfg!(target_arch = "aarch64") { "targets/sbsa-linux/lib" } else { "targets/x86_64-linux/lib" };
    ["", "lib64", "lib", target, "bin", "bin/x64"]
        .iter()
        .map(|sub| if sub.is_empty() { root.to_owned() } else { root.join(sub) })
        .collect()
}

fn wheel_directories(root: &Path, spec: &LibrarySpec) -> Vec<PathBuf> {
    let nvidia = root.join("nvidia");
    let nvidia = if nvidia.is_dir() { nvidia } else { root.to_owned() };
    let library = if cfg!(windows) { "bin" } else { "lib" };
    let mut directories: Vec<PathBuf> =
        ["cu13", "cu12"].iter().map(|version| nvidia.join(version).join(library)).collect();
    directories.extend(spec.wheel_components.iter().map(|component| nvidia.join(component).join(library)));
    directories.push(root.to_owned());
    directories
}

fn children(directory: &Path, wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let mut found: Vec<PathBuf> = entries
        .filter_map(|entry| entry.ok())
        .filter(|entry| entry.file_name().to_str().is_some_and(&wanted))
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found
}

fn find_python(path: &OsStr) -> Option<PathBuf> {
    std::env::split_paths(path).map(|directory| directory.join("python3")).find(|python| python.is_file())
}

/// A struct of function pointers, declared by [`dylib_table!`](crate::dylib_table).
pub trait Table: Sized {
    /// The names that the library must export.
    const SYMBOLS: &'static [&'static str];

    /// Builds the table from the addresses of [`Table::SYMBOLS`], in that order.
    ///
    /// # Safety
    ///
    /// Each address must be that of a C function of the declared type, in a library that stays loaded.
    unsafe fn from_addresses(addresses: &[*const c_void]) -> Self;
}

/// A library that is loaded, with its functions. It stays loaded for the rest of the process.
#[derive(Debug)]
pub struct Loaded<T> {
    /// The functions.
    pub table: T,
    /// The file it came from, as far as the system tells.
    pub path: PathBuf,
}

/// Loads the first library that fits `spec`, exports all of `T`, and passes `check`.
///
/// # Errors
///
/// The most telling failure: what `check` said of a library that was otherwise right, or else [`Error::SymbolMissing`] for one that
/// loaded but was of the wrong version, or else [`Error::LibraryMissing`].
pub fn load<T: Table>(
    spec: &LibrarySpec,
    search: &SearchPaths,
    check: impl Fn(&T, &Path) -> Result<()>,
) -> Result<Loaded<T>> {
    let mut tried = Vec::new();
    let mut telling: Option<Error> = None;
    let mut attempt = |origin: &str, path: &Path, tried: &mut Vec<Attempt>| -> Option<Loaded<T>> {
        let failure = match open::<T>(spec, path) {
            Ok(loaded) => match check(&loaded.table, &loaded.path) {
                Ok(()) => return Some(loaded),
                Err(error) => Failure::Refused(error),
            },
            Err(failure) => failure,
        };
        let outcome = match failure {
            Failure::NotLoaded(reason) => reason,
            Failure::Refused(error) => {
                let outcome = error.to_string().lines().next().unwrap_or_default().to_owned();
                if !matches!((&telling, &error), (Some(_), Error::SymbolMissing { .. })) {
                    telling = Some(error);
                }
                outcome
            }
        };
        tried.push(Attempt { origin: origin.to_owned(), path: path.to_owned(), outcome });
        None
    };

    for step in search.steps(spec) {
        match step {
            Step::File { origin, path } => {
                // One explicit file may be meant for another library of the same search.
                let wanted = path.file_name().and_then(OsStr::to_str).is_some_and(|name| names_library(name, spec));
                if wanted && let Some(loaded) = attempt(&origin, &path, &mut tried) {
                    return Ok(loaded);
                }
            }
            Step::Loader => {
                for file in spec.files {
                    if let Some(loaded) = attempt("loader", Path::new(file), &mut tried) {
                        return Ok(loaded);
                    }
                }
            }
            Step::Directories { origin, shown, directories } => {
                let files =
                    directories.iter().flat_map(|directory| spec.files.iter().map(move |file| directory.join(file)));
                let mut any = false;
                for path in files.filter(|path| path.exists()) {
                    any = true;
                    if let Some(loaded) = attempt(&origin, &path, &mut tried) {
                        return Ok(loaded);
                    }
                }
                if !any {
                    tried.push(Attempt {
                        origin,
                        path: shown,
                        outcome: format!("no {} below it", spec.files.join(" or ")),
                    });
                }
            }
        }
    }
    Err(telling.unwrap_or(Error::LibraryMissing { library: spec.name, tried, fix: spec.fix.to_owned() }))
}

/// Whether a file's name starts as one of the library's: `libnvrtc.so.13.0.88` for `libnvrtc.so.13`.
fn names_library(name: &str, spec: &LibrarySpec) -> bool {
    let stem = |file: &str| file.split('.').next().unwrap_or_default().to_owned();
    spec.files.iter().any(|file| stem(file) == stem(name))
}

enum Failure {
    NotLoaded(String),
    Refused(Error),
}

fn open<T: Table>(spec: &LibrarySpec, path: &Path) -> Result<Loaded<T>, Failure> {
    if let Some(directory) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        load_companions(spec, directory);
    }
    // SAFETY: CUDA libraries' initialisers have no preconditions; the caller chose the search paths.
    let library = unsafe { libloading::Library::new(path) }.map_err(|error| Failure::NotLoaded(loader_text(&error)))?;

    let mut addresses = Vec::with_capacity(T::SYMBOLS.len());
    let mut missing = Vec::new();
    for &symbol in T::SYMBOLS {
        // SAFETY: only the address is taken here; `Table::from_addresses` states what its type must be.
        match unsafe { library.get::<*const c_void>(symbol) } {
            Ok(found) => addresses.push(*found),
            Err(_) => missing.push(symbol),
        }
    }
    let file = addresses.first().and_then(|&address| file_of(address)).unwrap_or_else(|| path.to_owned());
    if !missing.is_empty() {
        return Err(Failure::Refused(Error::SymbolMissing {
            library: spec.name,
            path: file,
            symbols: missing,
            fix: format!("it is of another version; {}", spec.fix),
        }));
    }
    if let Some(directory) = file.parent().filter(|directory| path.parent() != Some(directory)) {
        load_companions(spec, directory);
    }
    // A CUDA library must never be unloaded: it may have threads of its own.
    std::mem::forget(library);
    // SAFETY: every address was found under its name, the declared types are those of the library's header, and the library
    // stays loaded.
    let table = unsafe { T::from_addresses(&addresses) };
    Ok(Loaded { table, path: file })
}

fn load_companions(spec: &LibrarySpec, directory: &Path) {
    for prefix in spec.companions {
        for path in children(directory, |name| name.starts_with(prefix)) {
            // A companion that does not load is told of by the check of the library that needs it.
            let _ = load_global(&path);
        }
    }
}

/// Loads a library for others to find by name, and keeps it.
///
/// # Errors
///
/// What the loader said.
pub fn load_global(path: impl AsRef<OsStr>) -> Result<(), String> {
    #[cfg(unix)]
    // SAFETY: as for every library here, its initialisers have no preconditions.
    let library = unsafe {
        use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
        Library::open(Some(path.as_ref()), RTLD_NOW | RTLD_GLOBAL)
    };
    #[cfg(not(unix))]
    // SAFETY: as above.
    let library = unsafe { libloading::Library::new(path.as_ref()) };
    library.map(std::mem::forget).map_err(|error| loader_text(&error))
}

/// The loader's own words; libloading wraps them.
fn loader_text(error: &libloading::Error) -> String {
    use std::error::Error as _;
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

#[cfg(unix)]
fn file_of(address: *const c_void) -> Option<PathBuf> {
    use std::ffi::{CStr, c_char, c_int};
    use std::os::unix::ffi::OsStrExt as _;

    #[repr(C)]
    struct DlInfo {
        file: *const c_char,
        base: *mut c_void,
        symbol: *const c_char,
        symbol_address: *mut c_void,
    }
    unsafe extern "C" {
        fn dladdr(address: *const c_void, info: *mut DlInfo) -> c_int;
    }
    let mut info = DlInfo {
        file: std::ptr::null(),
        base: std::ptr::null_mut(),
        symbol: std::ptr::null(),
        symbol_address: std::ptr::null_mut(),
    };
    // SAFETY: `info` has the layout of the C library's `Dl_info`; any address may be asked about.
    let found = unsafe { dladdr(address, &mut info) };
    if found == 0 || info.file.is_null() {
        return None;
    }
    // SAFETY: a successful dladdr gives a C string that lives as long as the library, which is still loaded here.
    let file = unsafe { CStr::from_ptr(info.file) };
    Some(PathBuf::from(OsStr::from_bytes(file.to_bytes())))
}

#[cfg(not(unix))]
fn file_of(_address: *const c_void) -> Option<PathBuf> {
    None
}

/// Declares a struct of function pointers, with a method for each, that [`dylib::load`](crate::dylib::load) can fill.
///
/// Names are the exported names, with their version suffix (`cuMemAlloc_v2`): what a C header would have renamed silently is written
/// out. Every method is `unsafe`, with the contract of the C function.
#[macro_export]
macro_rules! dylib_table {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident {
            $( $(#[$function_meta:meta])* fn $symbol:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)?; )*
        }
    ) => {
        $(#[$meta])*
        #[allow(non_snake_case)]
        #[derive(Clone, Copy)]
        $vis struct $name {
            $( $symbol: unsafe extern "C" fn($($ty),*) $(-> $ret)?, )*
        }

        #[allow(non_snake_case, dead_code, clippy::too_many_arguments, clippy::missing_safety_doc)]
        impl $name {
            $(
                $(#[$function_meta])*
                #[doc = concat!("`", stringify!($symbol), "` of the library, with its contract.")]
                #[inline]
                $vis unsafe fn $symbol(&self, $($arg: $ty),*) $(-> $ret)? {
                    // SAFETY: the caller keeps the contract of the C function.
                    unsafe { (self.$symbol)($($arg),*) }
                }
            )*
        }

        impl ::std::fmt::Debug for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }

        impl $crate::dylib::Table for $name {
            const SYMBOLS: &'static [&'static str] = &[$(stringify!($symbol)),*];

            unsafe fn from_addresses(addresses: &[*const ::std::ffi::c_void]) -> Self {
                let mut next = addresses.iter().copied();
                Self {
                    $(
                        // SAFETY: the caller gives one address for each symbol, in order, each of a function of this type.
                        $symbol: unsafe {
                            ::std::mem::transmute::<
                                *const ::std::ffi::c_void,
                                unsafe extern "C" fn($($ty),*) $(-> $ret)?,
                            >(next.next().expect("one address for each symbol"))
                        },
                    )*
                }
            }
        }
    };
}

#[cfg(test)]
mod tests;
