//! Compiled modules, kept in three tiers: this process, the disk, the compiler.
//!
//! A key is a hash of the source text, the options, the architecture, the version of NVRTC and the version of this format, and of nothing
//! else. What the disk holds is trusted only if its checksum is right. Anything wrong with the disk is a miss, never an error.

mod disk;
mod key;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

pub use self::key::CacheKey;

use self::disk::Disk;
use crate::arch::Arch;
use crate::compile::{Compiler, Cubin, ModuleSource};
use crate::error::Result;
use crate::single_flight::{Maker, SingleFlight};

/// Where compiled modules are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheOptions {
    /// The directory on disk; none keeps modules in the process only.
    pub directory: Option<PathBuf>,
    /// When the directory holds more than this, what was used least recently is removed.
    pub max_bytes: u64,
}

impl CacheOptions {
    const DEFAULT_MAX_BYTES: u64 = 512 << 20;

    /// What the environment says: `CURT_CACHE=0` for no disk cache, `CURT_CACHE_DIR` for its directory, or else `curt` in the user's
    /// cache directory.
    pub fn from_env() -> Self {
        let disabled = std::env::var_os("CURT_CACHE").is_some_and(|value| value == "0");
        let chosen = std::env::var_os("CURT_CACHE_DIR").filter(|value| !value.is_empty()).map(PathBuf::from);
        let directory = if disabled { None } else { chosen.or_else(default_directory) };
        Self { directory, max_bytes: Self::DEFAULT_MAX_BYTES }
    }

    /// A cache in this directory.
    pub fn at(directory: impl Into<PathBuf>) -> Self {
        Self { directory: Some(directory.into()), max_bytes: Self::DEFAULT_MAX_BYTES }
    }

    /// No disk cache: every process compiles for itself, once.
    pub const fn in_memory() -> Self {
        Self { directory: None, max_bytes: Self::DEFAULT_MAX_BYTES }
    }
}

fn default_directory() -> Option<PathBuf> {
    use etcetera::BaseStrategy as _;
    let strategy = etcetera::choose_base_strategy().ok()?;
    Some(strategy.cache_dir().join("curt"))
}

/// Which tier a module came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheOutcome {
    /// The process had it, or another thread was just compiling it.
    Memory,
    /// The disk had it.
    Disk,
    /// It was compiled, in this time.
    Compiled(Duration),
}

/// Counts of a cache or of a runtime.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Modules compiled.
    pub compiled: u64,
    /// Modules that the process had.
    pub memory_hits: u64,
    /// Modules that the disk had.
    pub disk_hits: u64,
    /// Time spent in NVRTC.
    pub nvrtc_time: Duration,
}

#[derive(Debug, Default)]
pub(crate) struct CacheCounters {
    compiled: AtomicU64,
    memory_hits: AtomicU64,
    disk_hits: AtomicU64,
    nvrtc_nanoseconds: AtomicU64,
}

impl CacheCounters {
    pub(crate) fn count(&self, outcome: CacheOutcome) {
        match outcome {
            CacheOutcome::Memory => self.memory_hits.fetch_add(1, Relaxed),
            CacheOutcome::Disk => self.disk_hits.fetch_add(1, Relaxed),
            CacheOutcome::Compiled(time) => {
                self.nvrtc_nanoseconds.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Relaxed);
                self.compiled.fetch_add(1, Relaxed)
            }
        };
    }

    pub(crate) fn stats(&self) -> CacheStats {
        CacheStats {
            compiled: self.compiled.load(Relaxed),
            memory_hits: self.memory_hits.load(Relaxed),
            disk_hits: self.disk_hits.load(Relaxed),
            nvrtc_time: Duration::from_nanos(self.nvrtc_nanoseconds.load(Relaxed)),
        }
    }
}

/// Compiled modules in memory and on disk. Needs no GPU.
///
/// ```
/// use curt::{Arch, CacheKey, CacheOptions, CacheOutcome, CompileCache, Cubin, ModuleSource};
///
/// let cache = CompileCache::new(CacheOptions::in_memory());
/// let source = ModuleSource::new("k.cu", "…");
/// let key = CacheKey::new(&source, Arch::SM_80, (13, 0));
/// let compile = || Ok(Cubin { image: vec![1, 2, 3].into(), log: String::new() });
/// assert!(matches!(cache.get_or_compile(key, compile)?.1, CacheOutcome::Compiled(_)));
/// assert_eq!(cache.get_or_compile(key, || unreachable!())?.1, CacheOutcome::Memory);
/// # Ok::<(), curt::Error>(())
/// ```
#[derive(Debug)]
pub struct CompileCache {
    memory: SingleFlight<CacheKey, Arc<Cubin>>,
    disk: Option<Disk>,
    counters: CacheCounters,
}

static GLOBAL: OnceLock<Arc<CompileCache>> = OnceLock::new();

impl CompileCache {
    /// A cache of its own. Nothing is touched on disk until something is compiled.
    pub fn new(options: CacheOptions) -> Self {
        let disk = options.directory.map(|directory| Disk::new(directory, options.max_bytes));
        Self { memory: SingleFlight::new(), disk, counters: CacheCounters::default() }
    }

    /// The cache that runtimes of this process share unless they are given another.
    pub fn global() -> Arc<Self> {
        Arc::clone(GLOBAL.get_or_init(|| Arc::new(Self::new(CacheOptions::from_env()))))
    }

    /// The directory on disk.
    pub fn directory(&self) -> Option<&std::path::Path> {
        self.disk.as_ref().map(Disk::directory)
    }

    /// The compiled form of `source`.
    ///
    /// # Errors
    ///
    /// As [`Compiler::compile`]. Nothing that is wrong with the disk is an error.
    pub fn load(&self, compiler: &Compiler, source: &ModuleSource, arch: Arch) -> Result<(Arc<Cubin>, CacheOutcome)> {
        let key = CacheKey::new(source, arch, compiler.version());
        self.get_or_compile(key, || compiler.compile(source, arch))
    }

    /// The module of `key`, made by `compile` where neither the process nor the disk has it.
    ///
    /// Of threads that ask for one key at the same time, one compiles and the others wait; a failure is theirs too. Of processes that
    /// share a directory likewise, unless the file system has no locks: then each may compile once.
    ///
    /// # Errors
    ///
    /// What `compile` returned.
    pub fn get_or_compile(
        &self,
        key: CacheKey,
        compile: impl FnOnce() -> Result<Cubin>,
    ) -> Result<(Arc<Cubin>, CacheOutcome)> {
        let mut outcome = CacheOutcome::Memory;
        let (cubin, maker) = self.memory.get_or_make(&key, || {
            let (cubin, from) = self.read_or_compile(&key, compile)?;
            outcome = from;
            Ok(Arc::new(cubin))
        });
        let cubin = cubin?;
        debug_assert!(maker == Maker::Us || outcome == CacheOutcome::Memory);
        self.counters.count(outcome);
        Ok((cubin, outcome))
    }

    fn read_or_compile(
        &self,
        key: &CacheKey,
        compile: impl FnOnce() -> Result<Cubin>,
    ) -> Result<(Cubin, CacheOutcome)> {
        let from_disk = |image: Vec<u8>| (Cubin { image: image.into(), log: String::new() }, CacheOutcome::Disk);
        let timed = || {
            let start = Instant::now();
            compile().map(|cubin| (cubin, CacheOutcome::Compiled(start.elapsed())))
        };
        let Some(disk) = &self.disk else { return timed() };
        if let Some(image) = disk.read(key) {
            return Ok(from_disk(image));
        }
        let _lock = disk.lock(key);
        // Another process may have written it while this one waited for the lock.
        if let Some(image) = disk.read(key) {
            return Ok(from_disk(image));
        }
        let (cubin, outcome) = timed()?;
        disk.write(key, &cubin.image);
        Ok((cubin, outcome))
    }

    /// Counts since the cache was made.
    pub fn stats(&self) -> CacheStats {
        self.counters.stats()
    }

    /// Forgets what the process holds. The disk keeps its files.
    pub fn clear_memory(&self) {
        self.memory.clear();
    }
}

#[cfg(test)]
mod tests;
