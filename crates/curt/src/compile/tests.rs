use super::*;
use crate::dylib::Table as _;
use crate::fake_library::build;

const VERBOSE_LOG: &str = r#"soft.cuh(10): warning #177-D: variable "unused" was declared but never referenced
  extern "C" __global__ void k(float*x){ int unused=3; }
                                             ^

Remark: The warnings can be suppressed with "-diag-suppress <warning-number>"

ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to insufficient register resources for the wgmma pipeline in function 'k'
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'k2' for 'sm_90a'
ptxas info    : Function properties for k2
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 1 barriers, 128 bytes smem
ptxas info    : Compile time = 2.402 ms
ptxas info    : Compiling entry function 'k' for 'sm_90a'
ptxas info    : Function properties for k
    256 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 80 registers, used 0 barriers, 256 bytes cumulative stack size, 400 bytes cmem[0]
ptxas info    : Function properties for helper
    64 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
ptxas info    : Compile time = 24.039 ms
"#;

#[test]
fn resources_are_those_of_each_kernel() {
    let found = Cubin { image: Arc::new([]), log: VERBOSE_LOG.to_owned() }.resources();
    let k2 = KernelResources {
        name: "k2".to_owned(),
        registers: 10,
        barriers: 1,
        static_shared_bytes: 128,
        ..KernelResources::default()
    };
    let k = KernelResources {
        name: "k".to_owned(),
        registers: 80,
        stack_bytes: 256,
        spill_store_bytes: 12,
        spill_load_bytes: 16,
        ..KernelResources::default()
    };
    assert_eq!(found, [k2, k]);
    assert!(Cubin { image: Arc::new([]), log: String::new() }.resources().is_empty());
}

#[test]
fn warnings_hold_lost_performance_too() {
    let found = Cubin { image: Arc::new([]), log: VERBOSE_LOG.to_owned() }.warnings();
    assert_eq!(found.len(), 2);
    assert_eq!((found[0].file.as_deref(), found[0].line), (Some("soft.cuh"), Some(10)));
    assert!(found[1].message.starts_with("(C7510)"));
}

fn failure(log: &str) -> CompileFailure {
    CompileFailure {
        module: "attention.cu".to_owned(),
        arch: Arch::SM_90A,
        options: vec!["-DHEAD_DIM=64".to_owned(), "--use_fast_math".to_owned()],
        nvrtc_version: (13, 0),
        diagnostics: diagnostics::parse(log),
        log: log.to_owned(),
    }
}

#[test]
fn a_failure_shows_file_line_architecture_options_and_version() {
    let log = r#"soft.cuh(10): error: identifier "foo" is undefined
  extern "C" __global__ void k(float*x){ foo(x); }
                                         ^

soft.cuh(11): warning #2365-D: a parenthesized initializer is odd
   int bar( {
            ^

At end of source: error: expected a "}"

2 errors detected in the compilation of "attention.cu".
"#;
    insta::assert_snapshot!(failure(log), @r#"
    attention.cu does not compile for sm_90a with NVRTC 13.0, options -DHEAD_DIM=64 --use_fast_math
    soft.cuh:10: error: identifier "foo" is undefined
      extern "C" __global__ void k(float*x){ foo(x); }
                                             ^
    At end of source: error: expected a "}"
    "#);
}

#[test]
fn assembler_and_option_errors_are_shown() {
    let log = "ptxas application ptx input, line 23; error   : Not a name of any known instruction: 'bogus'\n\
               ptxas fatal   : Ptx assembly aborted due to errors";
    let errors = diagnostics::parse(log);
    assert_eq!(errors.len(), 2);
    assert_eq!(errors[0].to_string(), "ptx:23: error: Not a name of any known instruction: 'bogus'");
    assert_eq!(errors[1].to_string(), "ptx: error: Ptx assembly aborted due to errors");

    let shown = failure("nvrtc: error: unrecognized option --nonsense found").to_string();
    assert!(shown.ends_with("nvrtc: error: unrecognized option --nonsense found"), "{shown}");
    let fatal = diagnostics::parse("k.cu(1): catastrophic error: could not open source file \"nope.h\"");
    assert_eq!(fatal[0].to_string(), "k.cu:1: error: could not open source file \"nope.h\"");
}

#[test]
fn a_log_without_diagnostics_is_shown_whole() {
    assert!(failure("something new").to_string().ends_with("\nsomething new"));
}

#[test]
fn nul_bytes_are_refused_wherever_they_are() {
    let source = || ModuleSource::new("k.cu", "text");
    for (what, source) in [
        ("name", ModuleSource::new("k\0.cu", "text")),
        ("source", ModuleSource::new("k.cu", "te\0xt")),
        ("option", source().define("A", "1\0")),
        ("entry", source().entry("\0")),
    ] {
        match source.check() {
            Err(Error::NulByte { what: found, .. }) => assert_eq!(found, what),
            other => panic!("{what}: {other:?}"),
        }
    }
    source().check().unwrap();
    insta::assert_snapshot!(ModuleSource::new("a\0b.cu", "").check().unwrap_err(), @r"
    name of module a␀b.cu holds a NUL byte at offset 1
      fix: remove it; C strings end there
    ");
}

/// A library with NVRTC's functions that says it is version 99.7 and does nothing.
fn fake_nvrtc(except: &[&str]) -> String {
    let rest: Vec<&str> = nvrtc::NvrtcTable::SYMBOLS
        .iter()
        .copied()
        .filter(|name| !["nvrtcVersion", "nvrtcGetErrorString"].contains(name))
        .collect();
    let mut text = crate::fake_library::functions(&rest, except);
    text += "int nvrtcVersion(int* major, int* minor) { *major = 99; *minor = 7; return 0; }\n";
    text += "const char* nvrtcGetErrorString(int code) { return \"FAKE\"; }\n";
    text
}

#[test]
fn nvrtc_without_its_builtins_is_a_typed_error() {
    let root = tempfile::tempdir().unwrap();
    let Some(file) = build("builtins", root.path(), "libnvrtc.so.13", &fake_nvrtc(&[])) else { return };
    let search = SearchPaths::only([root.path()]);
    match Compiler::with_search(&search).unwrap_err() {
        Error::BuiltinsMissing { nvrtc, expected, .. } => {
            assert_eq!(nvrtc, file);
            assert_eq!(expected, "libnvrtc-builtins.so.99.7");
        }
        other => panic!("{other}"),
    }
    // Companions are loaded by path; the name by which NVRTC opens them is their SONAME.
    let builtins = root.path().join("libnvrtc-builtins.so.99.7");
    let status = std::process::Command::new("cc")
        .args(["-shared", "-fPIC", "-Wl,-soname,libnvrtc-builtins.so.99.7", "-x", "c", "/dev/null", "-o"])
        .arg(&builtins)
        .status();
    assert!(status.unwrap().success());
    assert_eq!(Compiler::with_search(&search).unwrap().version(), (99, 7));
}

#[test]
fn nvrtc_of_another_version_is_a_typed_error() {
    let root = tempfile::tempdir().unwrap();
    let text = fake_nvrtc(&["nvrtcGetCUBIN", "nvrtcGetCUBINSize"]);
    let Some(_) = build("old NVRTC", root.path(), "libnvrtc.so", &text) else { return };
    match Compiler::with_search(&SearchPaths::only([root.path()])).unwrap_err() {
        Error::SymbolMissing { symbols, .. } => assert_eq!(symbols, ["nvrtcGetCUBINSize", "nvrtcGetCUBIN"]),
        other => panic!("{other}"),
    }
}

#[test]
fn absent_nvrtc_is_a_typed_error() {
    let empty = tempfile::tempdir().unwrap();
    let error = Compiler::with_search(&SearchPaths::only([empty.path()])).unwrap_err();
    assert!(error.is_missing_hardware_or_library());
    let text = error.to_string().replace(&empty.path().display().to_string(), "DIR");
    insta::assert_snapshot!(text, @r"
    NVRTC was not found
      tried DIR (explicit path): no libnvrtc.so.13 or libnvrtc.so.12 or libnvrtc.so below it
      fix: pip install nvidia-cuda-nvrtc (and set CURT_WHEELS to that site-packages, unless its environment is active), or install the CUDA toolkit 12 or 13 and set CUDA_HOME
    ");
}

/// The machine's compiler, or none, told by name.
pub(crate) fn real_compiler(test: &str) -> Option<Compiler> {
    match Compiler::new() {
        Ok(compiler) => Some(compiler),
        Err(error) => {
            eprintln!("NOT RUN: {test}: {error}");
            None
        }
    }
}

#[test]
fn a_kernel_compiles_to_machine_code_for_every_architecture() {
    let Some(compiler) = real_compiler("a_kernel_compiles_to_machine_code_for_every_architecture") else { return };
    let source =
        ModuleSource::new("fill.cu", r#"extern "C" __global__ void fill(float* x) { x[threadIdx.x] = VALUE; }"#)
            .define("VALUE", "2.0f")
            .verbose();
    for arch in [Arch::SM_80, Arch::SM_86, Arch::SM_89, Arch::SM_90A, Arch::SM_100, Arch::SM_120] {
        let cubin = compiler.compile(&source, arch).unwrap();
        assert_eq!(&cubin.image[..4], b"\x7fELF", "{arch}");
        let resources = cubin.resources();
        assert_eq!(resources.len(), 1, "{}", cubin.log);
        assert_eq!(resources[0].name, "fill");
        assert!(resources[0].registers > 0);
    }
}

#[test]
fn a_real_error_names_the_included_file_and_its_line() {
    let Some(compiler) = real_compiler("a_real_error_names_the_included_file_and_its_line") else { return };
    let text = "#line 1 \"head.cuh\"\nint\n#line 41 \"tail.cuh\"\n\nextern \"C\" __global__ void k() { nothing(); }\n";
    let source = ModuleSource::new("whole.cu", text).option("--use_fast_math");
    let Err(Error::Compile(failure)) = compiler.compile(&source, Arch::SM_80) else { panic!("it compiled") };
    let error = failure.diagnostics.iter().find(|found| found.message.contains("nothing")).unwrap();
    assert_eq!((error.file.as_deref(), error.line), (Some("tail.cuh"), Some(42)));
    let shown = failure.to_string();
    let (major, minor) = compiler.version();
    for part in ["whole.cu", "sm_80", "--use_fast_math", "tail.cuh:42", &format!("NVRTC {major}.{minor}")] {
        assert!(shown.contains(part), "{part} is not in:\n{shown}");
    }
}

#[test]
fn real_option_and_architecture_errors_are_compile_failures() {
    let Some(compiler) = real_compiler("real_option_and_architecture_errors_are_compile_failures") else { return };
    let source = ModuleSource::new("k.cu", "extern \"C\" __global__ void k() {}");
    let nonsense = source.clone().option("--nonsense");
    for (source, arch, part) in [(&nonsense, "sm_80", "--nonsense"), (&source, "sm_35", "gpu-architecture")] {
        let error = compiler.compile(source, arch.parse().unwrap()).unwrap_err();
        assert!(matches!(error, Error::Compile(_)), "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }
    let nul = ModuleSource::new("k.cu", "\0");
    assert!(matches!(compiler.compile(&nul, Arch::SM_80).unwrap_err(), Error::NulByte { .. }));
}
