//! What makes two compilations the same.

use std::fmt;

use crate::arch::Arch;
use crate::compile::ModuleSource;

/// Changes whenever the layout of a disk entry or of a key does. Entries of other versions are never looked at.
pub(super) const FORMAT_VERSION: u32 = 1;

/// A hash of everything that decides what a compiler makes: source text, options, architecture and version of NVRTC.
///
/// The module's name is not part of it: it shows in diagnostics only. Neither are paths or times.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CacheKey([u8; 32]);

impl CacheKey {
    /// The key of a compilation.
    pub fn new(source: &ModuleSource, arch: Arch, nvrtc_version: (u32, u32)) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&FORMAT_VERSION.to_le_bytes());
        hasher.update(&nvrtc_version.0.to_le_bytes());
        hasher.update(&nvrtc_version.1.to_le_bytes());
        // Each part goes with its length, so that no two lists of parts read alike.
        let mut part = |text: &str| {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        };
        part(&arch.to_string());
        part(source.text());
        for option in source.options() {
            part(option);
        }
        Self(*hasher.finalize().as_bytes())
    }

    /// The hash.
    pub const fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for CacheKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for CacheKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CacheKey({self})")
    }
}
