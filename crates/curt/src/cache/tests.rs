use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicUsize;
use std::sync::{Barrier, atomic::Ordering::SeqCst};
use std::time::SystemTime;

use super::*;
use crate::error::Error;

fn key(text: &str) -> CacheKey {
    CacheKey::new(&ModuleSource::new("k.cu", text), Arch::SM_80, (13, 0))
}

fn image(text: &str) -> Cubin {
    Cubin { image: text.repeat(1000).into_bytes().into(), log: "log".to_owned() }
}

/// What a cache in `directory`, new as in a new process, answers for `text`.
fn ask(directory: &Path, text: &str) -> CacheOutcome {
    let cache = CompileCache::new(CacheOptions::at(directory));
    let (cubin, outcome) = cache.get_or_compile(key(text), || Ok(image(text))).unwrap();
    assert_eq!(cubin.image, image(text).image, "the wrong module");
    outcome
}

fn compiled(outcome: CacheOutcome) -> bool {
    matches!(outcome, CacheOutcome::Compiled(_))
}

fn files(directory: &Path, wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| wanted(path.file_name().unwrap().to_str().unwrap())).collect()
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    files(directory, |name| name.ends_with(".cubin"))
}

/// Permissions mean nothing to root, so tests of them have to see whether they hold.
fn permissions_hold(test: &str, path: &Path) -> bool {
    let denied = if path.is_dir() { File::create(path.join("try")).is_err() } else { File::open(path).is_err() };
    if !denied {
        eprintln!("NOT RUN: {test}: this user may read and write everything");
    }
    denied
}

#[test]
fn a_key_holds_everything_that_matters_and_nothing_else() {
    let source = || ModuleSource::new("k.cu", "text").option("-a").option("-b");
    let key = |source: &ModuleSource| CacheKey::new(source, Arch::SM_80, (13, 0));
    let base = key(&source());
    assert_eq!(base, key(&ModuleSource::new("other.cu", "text").option("-a").option("-b").entry("e")));
    assert_ne!(base, key(&ModuleSource::new("k.cu", "text2").option("-a").option("-b")));
    assert_ne!(base, key(&ModuleSource::new("k.cu", "text").option("-a-b")));
    assert_ne!(base, key(&ModuleSource::new("k.cu", "text").option("-b").option("-a")));
    assert_ne!(base, CacheKey::new(&source(), Arch::SM_86, (13, 0)));
    assert_ne!(base, CacheKey::new(&source(), Arch::SM_80, (13, 1)));
    // A change of the format must change every key: this one is written down.
    assert_eq!(base.to_string(), "cfce99bc5437ea595b719576e9cc2daf2519d6f28edc4db3e96d9ca2fa9bfd56");
}

#[test]
fn three_tiers() {
    let directory = tempfile::tempdir().unwrap();
    let cache = CompileCache::new(CacheOptions::at(directory.path()));
    assert!(compiled(cache.get_or_compile(key("a"), || Ok(image("a"))).unwrap().1));
    assert_eq!(cache.get_or_compile(key("a"), || unreachable!()).unwrap().1, CacheOutcome::Memory);
    cache.clear_memory();
    let (cubin, outcome) = cache.get_or_compile(key("a"), || unreachable!()).unwrap();
    assert_eq!((outcome, cubin.log.as_str()), (CacheOutcome::Disk, ""));
    assert_eq!(cubin.image, image("a").image);
    let stats = cache.stats();
    assert_eq!((stats.compiled, stats.memory_hits, stats.disk_hits), (1, 1, 1));
    assert_eq!(ask(directory.path(), "a"), CacheOutcome::Disk);
}

#[test]
fn no_directory_is_no_disk_cache() {
    let cache = CompileCache::new(CacheOptions::in_memory());
    assert!(compiled(cache.get_or_compile(key("a"), || Ok(image("a"))).unwrap().1));
    cache.clear_memory();
    assert!(compiled(cache.get_or_compile(key("a"), || Ok(image("a"))).unwrap().1));
    assert!(cache.directory().is_none());
}

#[test]
fn every_truncation_and_every_flipped_bit_is_a_miss() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Disk::new(directory.path().to_owned(), u64::MAX);
    let key = key("a");
    disk.write(&key, b"payload");
    let path = disk.entry_path(&key);
    let whole = fs::read(&path).unwrap();
    assert_eq!(disk.read(&key).unwrap(), b"payload");
    for len in 0..whole.len() {
        fs::write(&path, &whole[..len]).unwrap();
        assert!(disk.read(&key).is_none(), "{len} bytes of {} were believed", whole.len());
    }
    for bit in 0..whole.len() * 8 {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        fs::write(&path, bytes).unwrap();
        assert!(disk.read(&key).is_none(), "bit {bit} flipped and believed");
    }
    fs::write(&path, [&whole[..], b"more"].concat()).unwrap();
    assert!(disk.read(&key).is_none(), "a longer entry was believed");
}

#[test]
fn damaged_entries_are_replaced() {
    type Damage = fn(&Path);
    let damage: [(&str, Damage); 5] = [
        ("truncated", |path| File::options().write(true).open(path).unwrap().set_len(100).unwrap()),
        ("zero length", |path| File::create(path).map(drop).unwrap()),
        ("foreign", |path| {
            fs::write(path, "#!/bin/sh\necho something else entirely, and long enough for a header\n").unwrap()
        }),
        ("a bit", |path| {
            let mut bytes = fs::read(path).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            fs::write(path, bytes).unwrap();
        }),
        ("another key's", |path| {
            let directory = path.parent().unwrap();
            assert!(compiled(ask(directory, "b")));
            let other = entries(directory).into_iter().find(|other| other != path).unwrap();
            fs::rename(other, path).unwrap();
        }),
    ];
    for (name, damage) in damage {
        let directory = tempfile::tempdir().unwrap();
        assert!(compiled(ask(directory.path(), "a")));
        damage(&entries(directory.path())[0]);
        assert!(compiled(ask(directory.path(), "a")), "{name}");
        assert_eq!(ask(directory.path(), "a"), CacheOutcome::Disk, "{name} was not replaced");
    }
}

#[test]
fn a_directory_in_place_of_an_entry_is_a_miss() {
    let directory = tempfile::tempdir().unwrap();
    assert!(compiled(ask(directory.path(), "a")));
    let entry = entries(directory.path()).remove(0);
    fs::remove_file(&entry).unwrap();
    fs::create_dir(&entry).unwrap();
    fs::write(entry.join("in the way"), "").unwrap();
    assert!(compiled(ask(directory.path(), "a")));
    assert!(files(directory.path(), |name| name.starts_with(".writing-")).is_empty());
}

#[test]
fn an_unreadable_entry_is_replaced() {
    let directory = tempfile::tempdir().unwrap();
    assert!(compiled(ask(directory.path(), "a")));
    let entry = entries(directory.path()).remove(0);
    fs::set_permissions(&entry, fs::Permissions::from_mode(0o000)).unwrap();
    if !permissions_hold("an_unreadable_entry_is_replaced", &entry) {
        return;
    }
    assert!(compiled(ask(directory.path(), "a")));
    assert_eq!(ask(directory.path(), "a"), CacheOutcome::Disk);
}

#[test]
fn a_read_only_cache_is_read_and_not_written() {
    let directory = tempfile::tempdir().unwrap();
    assert!(compiled(ask(directory.path(), "a")));
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o555)).unwrap();
    if permissions_hold("a_read_only_cache_is_read_and_not_written", directory.path()) {
        assert_eq!(ask(directory.path(), "a"), CacheOutcome::Disk);
        assert!(compiled(ask(directory.path(), "b")));
        assert!(compiled(ask(directory.path(), "b")));
    }
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_missing_directory_is_made_and_an_impossible_one_is_bypassed() {
    let root = tempfile::tempdir().unwrap();
    let deep = root.path().join("not/there/yet");
    assert!(compiled(ask(&deep, "a")));
    assert_eq!(ask(&deep, "a"), CacheOutcome::Disk);
    let file = root.path().join("file");
    fs::write(&file, "").unwrap();
    for impossible in [file.join("below"), file, "/proc/nothing/here".into()] {
        assert!(compiled(ask(&impossible, "a")));
    }
}

#[test]
fn a_full_disk_is_bypassed_and_leaves_nothing() {
    fn full(file: &mut File, bytes: &[u8]) -> io::Result<()> {
        file.write_all(&bytes[..bytes.len() / 2])?;
        Err(io::Error::from(io::ErrorKind::StorageFull))
    }
    let directory = tempfile::tempdir().unwrap();
    let cache = CompileCache {
        memory: SingleFlight::new(),
        disk: Some(Disk::new(directory.path().to_owned(), u64::MAX).with_writer(full)),
        counters: CacheCounters::default(),
    };
    let (cubin, outcome) = cache.get_or_compile(key("a"), || Ok(image("a"))).unwrap();
    assert!(compiled(outcome));
    assert_eq!(cubin.image, image("a").image);
    assert!(entries(directory.path()).is_empty());
    assert!(files(directory.path(), |name| name.starts_with(".writing-")).is_empty());
    assert!(compiled(ask(directory.path(), "a")));
    assert_eq!(ask(directory.path(), "a"), CacheOutcome::Disk);
}

#[test]
fn what_was_used_least_recently_goes_first() {
    let directory = tempfile::tempdir().unwrap();
    let entry_bytes = 1000 + 56 + 32;
    let cache =
        || CompileCache::new(CacheOptions { directory: Some(directory.path().into()), max_bytes: 4 * entry_bytes });
    let put = |text: &str| cache().get_or_compile(key(text), || Ok(image(text))).unwrap().1;
    let age = |text: &str, minutes: u64| {
        let path = directory.path().join(format!("{}.cubin", key(text)));
        let then = SystemTime::now() - Duration::from_secs(60 * minutes);
        File::options().write(true).open(path).unwrap().set_modified(then).unwrap();
    };
    for (text, minutes) in [("a", 40), ("b", 30), ("c", 20), ("d", 10)] {
        assert!(compiled(put(text)));
        age(text, minutes);
    }
    assert_eq!(put("a"), CacheOutcome::Disk, "a use makes it young");
    assert!(compiled(put("e")));
    let left: Vec<bool> =
        ["a", "b", "c", "d", "e"].map(|text| directory.path().join(format!("{}.cubin", key(text))).exists()).to_vec();
    assert_eq!(left, [true, false, false, true, true]);
}

#[test]
fn one_module_larger_than_the_cache_is_kept_until_the_next() {
    let directory = tempfile::tempdir().unwrap();
    let cache = || CompileCache::new(CacheOptions { directory: Some(directory.path().into()), max_bytes: 10 });
    cache().get_or_compile(key("a"), || Ok(image("a"))).unwrap();
    assert_eq!(entries(directory.path()).len(), 1);
    cache().get_or_compile(key("b"), || Ok(image("b"))).unwrap();
    assert_eq!(entries(directory.path()).len(), 1);
}

#[test]
fn only_old_temporary_files_are_removed() {
    let directory = tempfile::tempdir().unwrap();
    let (old, young) = (directory.path().join(".writing-old"), directory.path().join(".writing-young"));
    File::create(&young).unwrap();
    File::create(&old).unwrap().set_modified(SystemTime::now() - Duration::from_secs(7200)).unwrap();
    assert!(compiled(ask(directory.path(), "a")));
    assert!(!old.exists());
    assert!(young.exists(), "it may be another process's");
}

#[test]
fn sixteen_threads_compile_once_and_share_a_failure() {
    let directory = tempfile::tempdir().unwrap();
    let cache = CompileCache::new(CacheOptions::at(directory.path()));
    let compilations = AtomicUsize::new(0);
    let barrier = Barrier::new(16);
    let round = |text: &str, result: fn(&str) -> Result<Cubin>| -> Vec<bool> {
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..16)
                .map(|_| {
                    scope.spawn(|| {
                        barrier.wait();
                        let compile = || {
                            compilations.fetch_add(1, SeqCst);
                            std::thread::sleep(Duration::from_millis(100));
                            result(text)
                        };
                        cache.get_or_compile(key(text), compile).is_ok()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    };
    assert_eq!(round("a", |text| Ok(image(text))), [true; 16]);
    assert_eq!(compilations.swap(0, SeqCst), 1);
    assert_eq!(cache.stats().memory_hits, 15);

    let fail = |_: &str| Err(Error::StubDriver { path: "stub".into() });
    assert_eq!(round("b", fail), [false; 16]);
    assert_eq!(compilations.swap(0, SeqCst), 1);
    // A failure is not kept.
    assert_eq!(round("b", |text| Ok(image(text))), [true; 16]);
    assert_eq!(compilations.load(SeqCst), 1);
}

#[test]
fn different_keys_are_compiled_side_by_side() {
    let cache = CompileCache::new(CacheOptions::in_memory());
    // Each compilation waits for the other: if one had to end before the other began, neither would.
    let both = Barrier::new(2);
    std::thread::scope(|scope| {
        for text in ["a", "b"] {
            let (cache, both) = (&cache, &both);
            scope.spawn(move || {
                let compile = || {
                    both.wait();
                    Ok(image(text))
                };
                assert!(compiled(cache.get_or_compile(key(text), compile).unwrap().1));
            });
        }
    });
}

#[test]
fn a_panic_in_a_compilation_leaves_the_cache_usable() {
    let cache = CompileCache::new(CacheOptions::in_memory());
    let panicking = std::panic::AssertUnwindSafe(|| {
        let _ = cache.get_or_compile(key("a"), || panic!("compiler bug"));
    });
    assert!(std::panic::catch_unwind(panicking).is_err());
    assert!(compiled(cache.get_or_compile(key("a"), || Ok(image("a"))).unwrap().1));
}

// Several processes: this binary runs one ignored test of itself again, told by the environment what to do.

const ROLE: &str = "CURT_TEST_CACHE_ROLE";
const DIRECTORY: &str = "CURT_TEST_CACHE_DIRECTORY";

fn child(role: &str, directory: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "cache::tests::child_process", "--ignored", "--nocapture", "--test-threads=1"]);
    command.env(ROLE, role).env(DIRECTORY, directory);
    command
}

#[test]
#[ignore = "run by other tests, in a process of its own"]
fn child_process() {
    let role = std::env::var(ROLE).expect("run by other tests only");
    let directory = PathBuf::from(std::env::var_os(DIRECTORY).unwrap());
    match role.as_str() {
        "compile" => {
            let cache = CompileCache::new(CacheOptions::at(&directory));
            for text in ["a", "b", "c"] {
                let compile = || {
                    std::thread::sleep(Duration::from_millis(50));
                    let record = directory.join(format!("compiled-{text}-{}", std::process::id()));
                    File::create_new(record).unwrap();
                    Ok(image(text))
                };
                let (cubin, _) = cache.get_or_compile(key(text), compile).unwrap();
                assert_eq!(cubin.image, image(text).image);
            }
        }
        "die" => {
            fn die(file: &mut File, bytes: &[u8]) -> io::Result<()> {
                file.write_all(&bytes[..bytes.len() / 2])?;
                file.sync_all()?;
                std::process::abort();
            }
            Disk::new(directory, u64::MAX).with_writer(die).write(&key("a"), &image("a").image);
            unreachable!("the writer aborts");
        }
        other => panic!("{other}"),
    }
}

#[test]
fn eight_processes_compile_once_together() {
    let directory = tempfile::tempdir().unwrap();
    let children: Vec<_> = (0..8).map(|_| child("compile", directory.path()).spawn().unwrap()).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    for text in ["a", "b", "c"] {
        let compilations = files(directory.path(), |name| name.starts_with(&format!("compiled-{text}-")));
        assert_eq!(compilations.len(), 1, "{compilations:?}");
        assert_eq!(ask(directory.path(), text), CacheOutcome::Disk);
    }
    assert_eq!(entries(directory.path()).len(), 3);
    assert!(files(directory.path(), |name| name.starts_with(".writing-")).is_empty());
}

#[test]
fn a_process_that_dies_while_writing_leaves_nothing_that_is_trusted() {
    let directory = tempfile::tempdir().unwrap();
    assert!(!child("die", directory.path()).output().unwrap().status.success());
    assert_eq!(files(directory.path(), |name| name.starts_with(".writing-")).len(), 1, "it died elsewhere");
    assert!(entries(directory.path()).is_empty());
    assert!(compiled(ask(directory.path(), "a")));
    assert_eq!(ask(directory.path(), "a"), CacheOutcome::Disk);
}

#[test]
fn real_modules_are_cached() {
    let Some(compiler) = crate::compile::tests::real_compiler("real_modules_are_cached") else { return };
    let directory = tempfile::tempdir().unwrap();
    let source =
        ModuleSource::new("fill.cu", r#"extern "C" __global__ void fill(float* x) { x[threadIdx.x] = 1.0f; }"#);
    let load = || CompileCache::new(CacheOptions::at(directory.path())).load(&compiler, &source, Arch::SM_80).unwrap();
    let (first, outcome) = load();
    let CacheOutcome::Compiled(time) = outcome else { panic!("{outcome:?}") };
    assert!(time > Duration::ZERO);
    let (second, outcome) = load();
    assert_eq!(outcome, CacheOutcome::Disk);
    assert_eq!(first.image, second.image);
}
