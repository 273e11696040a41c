use std::ffi::{OsString, c_int};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use super::*;
use crate::fake_library::build;

crate::dylib_table! {
    struct Calculator {
        fn add(a: c_int, b: c_int) -> c_int;
        fn negate(a: c_int) -> c_int;
    }
}

const CALCULATOR: LibrarySpec = LibrarySpec {
    name: "the calculator",
    files: &["libcalculator.so.2", "libcalculator.so"],
    toolkit: true,
    wheel_components: &["calculator"],
    fix: "install calculator 2",
    ..LibrarySpec::EMPTY
};

const WHOLE: &str = "int add(int a, int b) { return a + b; } int negate(int a) { return -a; }";

fn find(search: &SearchPaths) -> Result<Loaded<Calculator>> {
    load::<Calculator>(&CALCULATOR, search, |_, _| Ok(()))
}

#[test]
fn a_whole_library_is_found_below_a_root_and_works() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("lib64")).unwrap();
    let Some(file) = build("whole", &root.path().join("lib64"), "libcalculator.so.2", WHOLE) else { return };
    for search in [SearchPaths::only([root.path()]), SearchPaths::only([&file])] {
        let loaded = find(&search).unwrap();
        // SAFETY: both functions are declared as the C text above defines them.
        assert_eq!(unsafe { (loaded.table.add(2, 3), loaded.table.negate(4)) }, (5, -4));
        assert_eq!(loaded.path.canonicalize().unwrap(), file.canonicalize().unwrap());
    }
}

#[test]
fn nothing_anywhere_tells_every_place() {
    let error = find(&SearchPaths::only(["/nowhere/libcalculator.so", "/nowhere/cuda"])).unwrap_err();
    let Error::LibraryMissing { library, tried, .. } = &error else { panic!("{error}") };
    assert_eq!(*library, "the calculator");
    assert_eq!(tried.len(), 1, "a path that is neither a directory nor this library's file is for another library");
    insta::assert_snapshot!(error, @r"
    the calculator was not found
      tried /nowhere/libcalculator.so (explicit path): /nowhere/libcalculator.so: cannot open shared object file: No such file or directory
      fix: install calculator 2
    ");
}

#[test]
fn a_library_of_another_version_tells_every_function_it_lacks() {
    let root = tempfile::tempdir().unwrap();
    let text = "int add(int a, int b) { return a + b; }";
    let Some(file) = build("version", root.path(), "libcalculator.so", text) else { return };
    let error = find(&SearchPaths::only([root.path()])).unwrap_err();
    let Error::SymbolMissing { symbols, path, .. } = &error else { panic!("{error}") };
    assert_eq!(symbols, &["negate"]);
    assert_eq!(path, &file);
    let text = error.to_string().replace(&root.path().display().to_string(), "DIR");
    insta::assert_snapshot!(text, @r"
    the calculator at DIR/libcalculator.so lacks negate
      fix: it is of another version; install calculator 2
    ");
}

#[test]
fn what_is_broken_is_passed_over_for_what_works() {
    let root = tempfile::tempdir().unwrap();
    let directories: Vec<_> = ["text", "empty", "old", "good"].iter().map(|name| root.path().join(name)).collect();
    directories.iter().for_each(|directory| fs::create_dir(directory).unwrap());
    fs::write(directories[0].join("libcalculator.so.2"), "this is not ELF".repeat(99)).unwrap();
    fs::write(directories[1].join("libcalculator.so.2"), "").unwrap();
    let Some(_) = build("old", &directories[2], "libcalculator.so", "int add(int a, int b) { return 0; }") else {
        return;
    };
    let Some(good) = build("good", &directories[3], "libcalculator.so.2", WHOLE) else { return };
    assert_eq!(find(&SearchPaths::only(&directories)).unwrap().path, good);

    let error = find(&SearchPaths::only(&directories[..2])).unwrap_err();
    let Error::LibraryMissing { tried, .. } = error else { panic!("{error}") };
    assert_eq!(tried.len(), 2);
    assert!(tried[0].outcome.contains("invalid ELF header"), "{}", tried[0]);
    assert!(tried[1].outcome.contains("file too short"), "{}", tried[1]);
}

#[test]
fn an_unreadable_library_is_told() {
    let root = tempfile::tempdir().unwrap();
    let Some(file) = build("unreadable", root.path(), "libcalculator.so.2", WHOLE) else { return };
    fs::set_permissions(&file, fs::Permissions::from_mode(0o000)).unwrap();
    if fs::File::open(&file).is_ok() {
        eprintln!("NOT RUN: an_unreadable_library_is_told: this user may read everything");
        return;
    }
    let error = find(&SearchPaths::only([root.path()])).unwrap_err();
    assert!(error.to_string().contains("Permission denied"), "{error}");
}

#[test]
fn a_refusal_by_the_caller_is_returned() {
    let root = tempfile::tempdir().unwrap();
    let Some(_) = build("refused", root.path(), "libcalculator.so.2", WHOLE) else { return };
    let refuse = |_: &Calculator, path: &Path| Err(Error::StubDriver { path: path.to_owned() });
    let outcome = load::<Calculator>(&CALCULATOR, &SearchPaths::only([root.path()]), refuse);
    assert!(matches!(outcome.unwrap_err(), Error::StubDriver { .. }));
}

#[test]
fn companions_are_loaded_from_the_same_directory() {
    let root = tempfile::tempdir().unwrap();
    let needs = "int parts(void); int add(int a, int b) { return a + b + parts(); } int negate(int a) { return -a; }";
    let Some(_) = build("companion", root.path(), "libcalculator-parts.so.2.1", "int parts(void) { return 100; }")
    else {
        return;
    };
    let Some(_) = build("companion", root.path(), "libcalculator.so.2", needs) else { return };
    let search = SearchPaths::only([root.path()]);
    let spec = LibrarySpec { companions: &["libcalculator-parts.so"], ..CALCULATOR };
    let loaded = load::<Calculator>(&spec, &search, |_, _| Ok(())).unwrap();
    // SAFETY: the function is declared as the C text defines it.
    assert_eq!(unsafe { loaded.table.add(1, 2) }, 103);
}

#[test]
fn the_environment_is_searched_in_order() {
    let root = tempfile::tempdir().unwrap();
    let site = root.path().join("venv/lib/python3.12/site-packages");
    fs::create_dir_all(site.join("nvidia/cu13/lib")).unwrap();
    let variables = |name: &str| -> Option<OsString> {
        match name {
            "CURT_CUDA_PATH" => Some("/first:/second".into()),
            "CUDA_HOME" => Some("/third".into()),
            "CURT_WHEELS" => Some("/wheels".into()),
            "VIRTUAL_ENV" => Some(root.path().join("venv").into()),
            _ => None,
        }
    };
    let search = SearchPaths::from_variables(variables);
    let shown: Vec<String> = search
        .steps(&CALCULATOR)
        .iter()
        .map(|step| match step {
            Step::Loader => "loader".to_owned(),
            Step::File { path, origin } | Step::Directories { shown: path, origin, .. } => {
                format!("{origin} {}", path.display()).replace(&root.path().display().to_string(), "")
            }
        })
        .collect();
    assert_eq!(
        shown,
        [
            "CURT_CUDA_PATH /first",
            "CURT_CUDA_PATH /second",
            "CUDA_HOME /third",
            "loader",
            "CURT_WHEELS /wheels",
            "VIRTUAL_ENV /venv/lib/python3.12/site-packages",
            "system /usr/local/cuda*",
        ]
    );
}

#[test]
fn wheels_of_both_layouts_are_found() {
    for (layout, base) in [
        ("nvidia/cu13/lib", ""),
        ("nvidia/cu12/lib", ""),
        ("nvidia/calculator/lib", ""),
        ("nvidia/calculator/lib", "nvidia"),
        ("nvidia/cu13/lib", "nvidia/cu13/lib"),
    ] {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join(layout)).unwrap();
        let Some(file) = build("wheels", &root.path().join(layout), "libcalculator.so.2", WHOLE) else { return };
        let search = SearchPaths::default().wheels(root.path().join(base));
        assert_eq!(find(&search).unwrap().path, file, "{layout} from {base:?}");
    }
}
