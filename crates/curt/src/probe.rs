//! What this machine has, and what it lacks.

use std::fmt;
use std::path::PathBuf;

use crate::arch::Arch;
use crate::compile::Compiler;
use crate::driver::{Driver, device_attribute};
use crate::dylib::{self, Attempt, LibrarySpec, SearchPaths};
use crate::error::Error;

/// How cuBLASLt is found.
pub const CUBLASLT: LibrarySpec = LibrarySpec {
    name: "cuBLASLt",
    files: if cfg!(windows) {
        &["cublasLt64_13.dll", "cublasLt64_12.dll"]
    } else {
        &["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"]
    },
    companions: &[],
    toolkit: true,
    wheel_components: &["cublas"],
    system_directories: &[],
    fix: "pip install nvidia-cublas (and set CURT_WHEELS to that site-packages, unless its environment is active), or install the CUDA \
          toolkit 12 or 13 and set CUDA_HOME. Only engines that multiply with cuBLASLt need it",
};

crate::dylib_table! {
    struct CublasLtVersion {
        fn cublasLtGetVersion() -> usize;
    }
}

/// Whether a library is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// It is there and loads.
    Found {
        /// The file.
        path: PathBuf,
        /// Its version; for the driver, the newest CUDA version that it knows.
        version: (u32, u32),
    },
    /// It is not there, or is of no use.
    Missing {
        /// What is wrong, in one line.
        reason: String,
        /// Every place that was looked at, if it was found nowhere.
        tried: Vec<Attempt>,
        /// What to do.
        fix: String,
    },
}

impl Finding {
    /// Whether it is there.
    pub const fn is_found(&self) -> bool {
        matches!(self, Self::Found { .. })
    }

    fn missing(error: Error) -> Self {
        let text = error.to_string();
        let (reason, rest) = text.split_once('\n').unwrap_or((&text, ""));
        let fix = rest.rsplit_once("fix: ").map_or(rest, |(_, fix)| fix).trim().to_owned();
        let reason = reason.to_owned();
        match error {
            Error::LibraryMissing { tried, .. } => Self::Missing { reason, tried, fix },
            _ => Self::Missing { reason, tried: Vec::new(), fix },
        }
    }
}

/// A device that the driver shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceReport {
    /// What to give [`Runtime::new`](crate::Runtime::new).
    pub ordinal: usize,
    /// Its name.
    pub name: String,
    /// Its compute capability.
    pub compute_capability: (u32, u32),
    /// Its memory.
    pub memory_bytes: usize,
}

/// What [`probe`] found. Shown as a table that says what to do about what is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeReport {
    /// The driver.
    pub driver: Finding,
    /// The devices that it shows.
    pub devices: Vec<DeviceReport>,
    /// The compiler.
    pub nvrtc: Finding,
    /// The matrix library, which some engines use.
    pub cublaslt: Finding,
}

impl ProbeReport {
    /// Whether there is a driver that works and at least one device.
    pub const fn has_gpu(&self) -> bool {
        self.driver.is_found() && !self.devices.is_empty()
    }
}

/// Looks for the driver, devices, NVRTC and cuBLASLt. Never panics, and makes no context.
///
/// ```
/// let report = curt::probe();
/// println!("{report}");
/// if !report.has_gpu() {
///     println!("this will run on the host");
/// }
/// ```
pub fn probe() -> ProbeReport {
    let driver = Driver::global();
    let devices = driver.as_ref().map(|driver| devices(driver)).unwrap_or_default();
    let driver = match driver {
        Ok(driver) => Finding::Found { path: driver.path.clone(), version: driver.version },
        Err(error) => Finding::missing(error),
    };
    let nvrtc = match Compiler::new() {
        Ok(compiler) => Finding::Found { path: compiler.path().to_owned(), version: compiler.version() },
        Err(error) => Finding::missing(error),
    };
    ProbeReport { driver, devices, nvrtc, cublaslt: find_cublaslt(&SearchPaths::current()) }
}

/// [`probe`] with a search of its own, beside what the process has loaded already.
pub fn probe_with(search: &SearchPaths) -> ProbeReport {
    let (driver, devices) = match Driver::load(search) {
        Ok(driver) => {
            let devices = devices(&driver);
            (Finding::Found { path: driver.path, version: driver.version }, devices)
        }
        Err(error) => (Finding::missing(error), Vec::new()),
    };
    let nvrtc = match Compiler::with_search(search) {
        Ok(compiler) => Finding::Found { path: compiler.path().to_owned(), version: compiler.version() },
        Err(error) => Finding::missing(error),
    };
    ProbeReport { driver, devices, nvrtc, cublaslt: find_cublaslt(search) }
}

fn find_cublaslt(search: &SearchPaths) -> Finding {
    match dylib::load::<CublasLtVersion>(&CUBLASLT, search, |_, _| Ok(())) {
        Ok(loaded) => {
            // SAFETY: the function has no precondition.
            let number = unsafe { loaded.table.cublasLtGetVersion() } as u32;
            // From 12 on: major * 10000 + minor * 100 + patch.
            Finding::Found { path: loaded.path, version: (number / 10_000, number % 10_000 / 100) }
        }
        Err(error) => Finding::missing(error),
    }
}

fn devices(driver: &Driver) -> Vec<DeviceReport> {
    let count = driver.device_count().unwrap_or(0);
    (0..count).filter_map(|ordinal| device(driver, ordinal).ok()).collect()
}

fn device(driver: &Driver, ordinal: usize) -> Result<DeviceReport, Error> {
    let device = driver.device(ordinal)?;
    let attribute = |attribute| driver.device_attribute(device, attribute);
    Ok(DeviceReport {
        ordinal,
        name: driver.device_name(device)?,
        compute_capability: (
            attribute(device_attribute::COMPUTE_CAPABILITY_MAJOR)?,
            attribute(device_attribute::COMPUTE_CAPABILITY_MINOR)?,
        ),
        memory_bytes: driver.device_memory(device)?,
    })
}

impl fmt::Display for ProbeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show(f, "driver", &self.driver)?;
        if self.driver.is_found() && self.devices.is_empty() {
            writeln!(f, "devices   none")?;
            writeln!(
                f,
                "          fix: check that nvidia-smi lists a GPU and that CUDA_VISIBLE_DEVICES does not hide it"
            )?;
        }
        for device in &self.devices {
            let (major, minor) = device.compute_capability;
            let arch = Arch::for_compute_capability(major, minor);
            let gib = device.memory_bytes as f64 / (1u64 << 30) as f64;
            writeln!(f, "device {}  {}, {arch}, {gib:.1} GiB", device.ordinal, device.name)?;
        }
        show(f, "NVRTC", &self.nvrtc)?;
        show(f, "cuBLASLt", &self.cublaslt)
    }
}

fn show(f: &mut fmt::Formatter<'_>, name: &str, finding: &Finding) -> fmt::Result {
    match finding {
        Finding::Found { path, version: (major, minor) } => {
            writeln!(f, "{name:<9} CUDA {major}.{minor} at {}", path.display())
        }
        Finding::Missing { reason, tried, fix } => {
            writeln!(f, "{name:<9} missing: {reason}")?;
            for attempt in tried {
                writeln!(f, "          tried {attempt}")?;
            }
            writeln!(f, "          fix: {fix}")
        }
    }
}
