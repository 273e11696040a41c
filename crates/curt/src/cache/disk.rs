//! The disk tier: one file an entry, written whole or not at all, believed only if its checksum is right.
//!
//! ```text
//! 0   magic "CURTCBIN"         8 bytes
//! 8   format version           u32
//! 12  zero                     u32
//! 16  key                      32 bytes
//! 48  length of the payload    u64
//! 56  payload
//! …   blake3 of all the above  32 bytes
//! ```

use std::fs::{self, File, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use super::key::{CacheKey, FORMAT_VERSION};

const MAGIC: &[u8; 8] = b"CURTCBIN";
const HEADER_BYTES: usize = 56;
const CHECKSUM_BYTES: usize = 32;
const ENTRY_SUFFIX: &str = ".cubin";
const TEMPORARY_PREFIX: &str = ".writing-";
/// A process that died while writing leaves a temporary file. One this old is nobody's.
const ABANDONED_AFTER: Duration = Duration::from_secs(3600);
/// Longer than any compilation takes. A process that is stuck must not hold up the others for ever.
const LOCK_PATIENCE: Duration = Duration::from_secs(120);

type Writer = fn(&mut File, &[u8]) -> io::Result<()>;

#[derive(Debug)]
pub(super) struct Disk {
    directory: PathBuf,
    max_bytes: u64,
    /// How an entry's bytes reach the file. Tests put a full disk here.
    writer: Writer,
}

impl Disk {
    pub(super) fn new(directory: PathBuf, max_bytes: u64) -> Self {
        Self { directory, max_bytes, writer: |file, bytes| file.write_all(bytes) }
    }

    #[cfg(test)]
    pub(super) fn with_writer(mut self, writer: Writer) -> Self {
        self.writer = writer;
        self
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(super) fn entry_path(&self, key: &CacheKey) -> PathBuf {
        self.directory.join(format!("{key}{ENTRY_SUFFIX}"))
    }

    /// The payload of `key`, if there is a whole and valid entry.
    pub(super) fn read(&self, key: &CacheKey) -> Option<Vec<u8>> {
        let path = self.entry_path(key);
        let mut file = File::open(&path).ok()?;
        let mut bytes = Vec::new();
        if let Err(error) = file.read_to_end(&mut bytes) {
            tracing::debug!("cache entry {} is unreadable: {error}", path.display());
            return None;
        }
        let Some(payload) = decode(key, bytes) else {
            tracing::debug!("cache entry {} is damaged and will be replaced", path.display());
            return None;
        };
        // Marks it as used, for pruning. On a read-only cache this fails, and nothing is pruned there either.
        let _ = file.set_modified(SystemTime::now());
        Some(payload)
    }

    /// Writes an entry. A failure leaves no entry, and is told at debug level only: the caller has its module.
    pub(super) fn write(&self, key: &CacheKey, payload: &[u8]) {
        if let Err(error) = self.try_write(key, payload) {
            tracing::debug!("nothing was cached in {}: {error}", self.directory.display());
            return;
        }
        self.prune(key);
    }

    fn try_write(&self, key: &CacheKey, payload: &[u8]) -> io::Result<()> {
        fs::create_dir_all(&self.directory)?;
        // In the same directory, so that the rename cannot cross a file system. Dropped, it is removed.
        let mut temporary = tempfile::Builder::new().prefix(TEMPORARY_PREFIX).tempfile_in(&self.directory)?;
        (self.writer)(temporary.as_file_mut(), &encode(key, payload))?;
        temporary.persist(self.entry_path(key)).map_err(|error| error.error)?;
        Ok(())
    }

    /// Keeps other processes from compiling the same. None where the file system has no locks, the directory cannot be written, or the
    /// holder seems stuck: then each process compiles for itself.
    pub(super) fn lock(&self, key: &CacheKey) -> Option<File> {
        let locks = self.directory.join("locks");
        fs::create_dir_all(&locks).ok()?;
        // One of 256 files, which stay: removing a lock file races with whoever is about to lock it.
        let path = locks.join(format!("{:02x}", key.bytes()[0]));
        let file = File::options().create(true).truncate(false).write(true).open(path).ok()?;
        let start = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => return Some(file),
                Err(TryLockError::WouldBlock) if start.elapsed() < LOCK_PATIENCE => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(_) => return None,
            }
        }
    }

    /// Removes what was used least recently until the directory fits, and what dead processes left. `keep` was just written.
    fn prune(&self, keep: &CacheKey) {
        let Ok(listing) = fs::read_dir(&self.directory) else { return };
        let keep = self.entry_path(keep);
        let now = SystemTime::now();
        let mut entries = Vec::new();
        let mut total = 0;
        for entry in listing.filter_map(|entry| entry.ok()) {
            let Ok(data) = entry.metadata() else { continue };
            let used = data.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            if name.starts_with(TEMPORARY_PREFIX) {
                if now.duration_since(used).is_ok_and(|age| age > ABANDONED_AFTER) {
                    let _ = fs::remove_file(entry.path());
                }
            } else if name.ends_with(ENTRY_SUFFIX) {
                total += data.len();
                entries.push((used, data.len(), entry.path()));
            }
        }
        if total <= self.max_bytes {
            return;
        }
        entries.sort();
        // A little below the cap, so that not every write prunes again.
        let target = self.max_bytes / 10 * 9;
        for (_, bytes, path) in entries {
            if total <= target {
                break;
            }
            if path != keep && fs::remove_file(&path).is_ok() {
                total -= bytes;
            }
        }
    }
}

fn encode(key: &CacheKey, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + payload.len() + CHECKSUM_BYTES);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(key.bytes());
    bytes.extend_from_slice(&(payload.len() as u64).to_le_bytes());
    bytes.extend_from_slice(payload);
    let checksum = blake3::hash(&bytes);
    bytes.extend_from_slice(checksum.as_bytes());
    bytes
}

fn decode(key: &CacheKey, mut bytes: Vec<u8>) -> Option<Vec<u8>> {
    let end = bytes.len().checked_sub(CHECKSUM_BYTES)?;
    let payload_len = end.checked_sub(HEADER_BYTES)? as u64;
    let right = bytes[..8] == *MAGIC
        && bytes[8..12] == FORMAT_VERSION.to_le_bytes()
        && bytes[16..48] == *key.bytes()
        && bytes[48..56] == payload_len.to_le_bytes()
        && blake3::hash(&bytes[..end]).as_bytes()[..] == bytes[end..];
    if !right {
        return None;
    }
    bytes.truncate(end);
    bytes.drain(..HEADER_BYTES);
    Some(bytes)
}
