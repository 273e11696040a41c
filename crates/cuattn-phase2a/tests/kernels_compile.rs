//! Every softmax variant compiles for every generation, spills nothing, and warns of nothing. Needs NVRTC, and no GPU.

use cuattn_kernels::softmax;
use curt::{Arch, Compiler, ModuleSource};

fn compile_all(arch: Arch) {
    let compiler = match Compiler::new() {
        Ok(compiler) => compiler,
        Err(error) => {
            eprintln!("NOT RUN: the softmax kernels were not compiled for {arch}, because NVRTC is missing: {error}");
            return;
        }
    };
    for variant in softmax::variants() {
        let source = ModuleSource::new(variant.source.root(), variant.source.assemble()).verbose();
        let cubin =
            compiler.compile(&source, arch).unwrap_or_else(|error| panic!("{} for {arch}: {error}", variant.name));
        assert!(cubin.warnings().is_empty(), "{} for {arch}: {:?}", variant.name, cubin.warnings());
        let resources = cubin.resources();
        assert!(resources.iter().any(|kernel| kernel.name == variant.source.entry()), "{}", variant.name);
        for kernel in resources {
            assert_eq!(kernel.spill_store_bytes, 0, "{} for {arch} spills: {kernel:?}", variant.name);
        }
    }
}

#[test]
fn for_ampere() {
    compile_all(Arch::SM_80);
}

#[test]
fn for_hopper() {
    compile_all(Arch::SM_90A);
}

#[test]
fn for_blackwell() {
    compile_all(Arch::SM_100);
}

#[test]
fn for_consumer_blackwell() {
    compile_all(Arch::SM_120);
}
