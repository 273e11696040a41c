//! Folders that run on a machine which has a GPU but no Rust: what is built, a `run.sh`, and what these need.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};

use crate::repository;

/// The most that a bundle may weigh: it must travel.
const LARGEST: u64 = 64 << 20;

/// Copies `built` into `folder` as `name`, and gives the copy's path.
pub(crate) fn put(built: &Path, folder: &Path, name: &str) -> anyhow::Result<PathBuf> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
    let copy = folder.join(name);
    // A running, loaded or read-only old copy is replaced, not written into.
    let _ = fs::remove_file(&copy);
    fs::copy(built, &copy).with_context(|| format!("cannot copy {} to {}", built.display(), copy.display()))?;
    Ok(copy)
}

/// Writes the script that is called there, and gives its path.
pub(crate) fn put_run_script(folder: &Path, text: &str) -> anyhow::Result<PathBuf> {
    let script = folder.join("run.sh");
    fs::write(&script, text).with_context(|| format!("cannot write {}", script.display()))?;
    make_executable(&script)?;
    Ok(script)
}

/// Refuses a bundle of `bytes` that is too heavy, and says how to call it: `needs` of the machine beside a GPU, if any, and `arguments`.
pub(crate) fn announce(folder: &Path, bytes: u64, needs: &str, arguments: &str) -> anyhow::Result<()> {
    ensure!(bytes < LARGEST, "the bundle has {bytes} bytes, more than {LARGEST}");
    println!(
        "{}: {:.1} MiB, commit {}. On the GPU machine{needs}: OUT=results {}/run.sh{arguments}",
        folder.display(),
        bytes as f64 / f64::from(1 << 20),
        repository::commit(),
        folder.display(),
    );
    Ok(())
}

#[cfg(unix)]
pub(crate) fn make_executable(path: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o755))?)
}

#[cfg(not(unix))]
pub(crate) fn make_executable(_: &Path) -> anyhow::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_copy_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let built = folder.path().join("built");
        for text in ["old", "new"] {
            fs::write(&built, text).unwrap();
            let copy = put(&built, &folder.path().join("bundle"), "program").unwrap();
            assert_eq!(fs::read_to_string(&copy).unwrap(), text);
            let mut permissions = fs::metadata(&copy).unwrap().permissions();
            permissions.set_readonly(true);
            fs::set_permissions(&copy, permissions).unwrap();
        }
    }

    #[test]
    fn what_cannot_travel_is_refused() {
        assert!(announce(Path::new("bundle"), LARGEST - 1, "", "").is_ok());
        assert!(announce(Path::new("bundle"), LARGEST, "", "").is_err());
    }
}
