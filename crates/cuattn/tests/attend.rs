//! The `attend` example, from its arguments to its report and its file, on a machine without a GPU.

#[path = "../examples/attend/arguments.rs"]
mod arguments;
#[path = "../examples/attend/compare.rs"]
mod compare;
#[path = "../examples/attend/compute.rs"]
mod compute;
#[path = "../examples/attend/input.rs"]
mod input;
#[path = "../examples/attend/run.rs"]
mod run;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use clap::Parser;
use cuattn::DType;
use cuattn::curt::{Finding, ProbeReport};
use cuattn::reference::encode;
use rstest::rstest;
use safetensors::{Dtype, SafeTensors, tensor::TensorView};

use crate::arguments::Arguments;

/// What `curt::probe` says of a machine without a driver.
fn no_gpu() -> ProbeReport {
    let missing = |reason: &str, fix: &str| Finding::Missing { reason: reason.into(), tried: vec![], fix: fix.into() };
    ProbeReport {
        driver: missing("libcuda.so.1 is not found", "install the NVIDIA driver"),
        devices: vec![],
        nvrtc: missing("libnvrtc is not found", "pip install nvidia-cuda-nvrtc"),
        cublaslt: missing("libcublasLt is not found", "pip install nvidia-cublas"),
    }
}

fn real_file(layer: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/data/smollm2")
        .join(format!("{layer}_s256_bf16.safetensors"))
}

fn attend(file: &Path, options: &[&str]) -> anyhow::Result<String> {
    let arguments = ["attend".as_ref(), file.as_os_str()].into_iter().chain(options.iter().map(AsRef::as_ref));
    let arguments = Arguments::try_parse_from(arguments)?;
    let mut out = Vec::new();
    run::run(&arguments, &no_gpu(), &mut out)?;
    Ok(String::from_utf8(out)?)
}

/// A named tensor: type, extents, bytes.
type Named = (&'static str, Dtype, Vec<usize>, Vec<u8>);

fn f32s(name: &'static str, dims: &[usize], values: &[f64]) -> Named {
    (name, Dtype::F32, dims.to_vec(), encode(values, DType::F32))
}

/// A file in a folder that is deleted with it.
fn file(tensors: &[Named], metadata: &[(&str, &str)]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tensors.safetensors");
    let views =
        tensors.iter().map(|(name, dtype, dims, bytes)| (*name, TensorView::new(*dtype, dims.clone(), bytes).unwrap()));
    let metadata: HashMap<_, _> =
        metadata.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    safetensors::serialize_to_file(views, Some(metadata), &path).unwrap();
    (folder, path)
}

#[rstest]
fn a_language_model_s_tensors(
    #[values("layer00", "layer29")] layer: &str,
    #[values("auto", "reference")] engine: &str,
) {
    let report = attend(&real_file(layer), &["--engine", engine]).unwrap();
    let first = report.lines().next().unwrap();
    match engine {
        "auto" => assert_eq!(
            first,
            "NO GPU: computed on the host in float64, many times slower than a GPU. \
             Missing: the CUDA driver (libcuda.so.1 is not found). To get it: install the NVIDIA driver"
        ),
        _ => assert_eq!(first, "computed on the host in float64, as --engine reference asks"),
    }
    let problem =
        "bf16 BHSD, batch 1, heads 9/3, 256 rows x 256 keys, head size 64, causal from the top left, scale 0.125";
    assert!(report.contains(problem), "{report}");
    assert!(report.contains("o against o_ref, in float64: relative L2 "), "{report}");
}

#[rstest]
fn an_engine_that_is_asked_for_never_becomes_another(#[values("flash", "phase2a")] engine: &str) {
    let error = attend(&real_file("layer00"), &["--engine", engine]).unwrap_err().to_string();
    assert!(error.contains("never falls back") && error.contains("install the NVIDIA driver"), "{error}");
}

#[test]
fn the_result_is_written_and_can_be_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("result.safetensors");
    attend(&real_file("layer00"), &["--out", out.to_str().unwrap()]).unwrap();
    let bytes = std::fs::read(out).unwrap();
    let result = SafeTensors::deserialize(&bytes).unwrap();
    let (o, lse) = (result.tensor("o").unwrap(), result.tensor("lse").unwrap());
    assert_eq!((o.dtype(), o.shape()), (Dtype::BF16, &[1, 9, 256, 64][..]));
    assert_eq!((lse.dtype(), lse.shape()), (Dtype::F32, &[1, 9, 256][..]));
    assert!(o.data().iter().any(|&byte| byte != 0));
}

/// Two keys of score 0 beside two rows: each option changes the means that come out.
#[rstest]
#[case::plain(&[], [2.0, 2.0])]
#[case::top_left(&["--causal", "top-left"], [1.0, 2.0])]
#[case::off(&["--causal", "off"], [2.0, 2.0])]
#[case::window(&["--window", "0,-"], [2.0, 3.0])]
#[case::both_sides(&["--window", "0,0"], [1.0, 3.0])]
fn options_change_what_a_row_sees(#[case] options: &[&str], #[case] means: [f64; 2]) {
    let zeros = [0.0, 0.0];
    let dims = [1, 1, 2, 1];
    let tensors = [
        f32s("q", &dims, &zeros),
        f32s("k", &dims, &zeros),
        f32s("v", &dims, &[1.0, 3.0]),
        f32s("o_ref", &dims, &means),
    ];
    let (_folder, path) = file(&tensors, &[]);
    attend(&path, options).unwrap();
}

#[test]
fn scale_and_softcap_come_from_the_command_line_first() {
    let one = [1, 1, 1, 1];
    let lse = 5.0 * (2.0f64 / 5.0).tanh();
    let tensors = [
        f32s("q", &one, &[1.0]),
        f32s("k", &one, &[1.0]),
        f32s("v", &one, &[1.0]),
        f32s("lse_ref", &[1, 1, 1], &[lse]),
    ];
    let (_folder, path) = file(&tensors, &[("scale", "2")]);
    attend(&path, &["--softcap", "5"]).unwrap();
    let error = attend(&path, &["--softcap", "5", "--scale", "-2"]).unwrap_err().to_string();
    assert!(error.starts_with("the result is wrong: lse is off by"), "{error}");
}

#[test]
fn tensors_may_come_token_by_token() {
    // Two heads of two tokens: [batch, tokens, heads, dim].
    let dims = [1, 2, 2, 1];
    let (zeros, v) = ([0.0; 4], [1.0, 10.0, 3.0, 30.0]);
    let want = [1.0, 10.0, 2.0, 20.0];
    let tensors =
        [f32s("q", &dims, &zeros), f32s("k", &dims, &zeros), f32s("v", &dims, &v), f32s("o_ref", &dims, &want)];
    let (_folder, path) = file(&tensors, &[("layout", "BSHD"), ("causal", "true")]);
    assert!(attend(&path, &[]).unwrap().contains("f32 BSHD, batch 1, heads 2/2"));
    assert!(attend(&path, &["--layout", "bhsd"]).is_err(), "read in the other order the result is another");
}

#[test]
fn bias_lengths_and_sinks_are_used() {
    let dims = [1, 1, 1, 1];
    let keys = [1, 1, 4, 1];
    let tensors = [
        f32s("q", &dims, &[0.0]),
        f32s("k", &keys, &[0.0; 4]),
        f32s("v", &keys, &[2.0, 4.0, 100.0, f64::NAN]),
        ("bias", Dtype::BOOL, vec![4], vec![1, 1, 0, 1]),
        ("key_lengths", Dtype::I64, vec![1], 3i64.to_le_bytes().to_vec()),
        f32s("sinks", &[1], &[0.0]),
        f32s("o_ref", &dims, &[2.0]),
        f32s("lse_ref", &[1, 1, 1], &[3f64.ln()]),
        f32s("notes", &[1], &[0.0]),
    ];
    let (_folder, path) = file(&tensors, &[]);
    let report = attend(&path, &[]).unwrap();
    assert!(report.contains("boolean bias, key lengths, sinks"), "{report}");
    assert!(report.contains("ignored   tensor `notes`"), "{report}");
}

#[test]
fn a_wrong_result_is_an_error() {
    let one = [1, 1, 1, 1];
    let tensors =
        [f32s("q", &one, &[1.0]), f32s("k", &one, &[1.0]), f32s("v", &one, &[1.0]), f32s("o_ref", &one, &[1.1])];
    let (_folder, path) = file(&tensors, &[]);
    assert!(attend(&path, &[]).unwrap_err().to_string().starts_with("the result is wrong: o has a relative error of"));
}

#[test]
fn files_that_make_no_problem_say_why() {
    let (one, two) = ([1, 1, 1, 1], [1, 1, 2, 1]);
    let [q, k, v] = ["q", "k", "v"].map(|name| f32s(name, &one, &[1.0]));
    let why = |tensors: &[Named], metadata: &[(&str, &str)]| {
        let (_folder, path) = file(tensors, metadata);
        attend(&path, &[]).unwrap_err().root_cause().to_string()
    };
    insta::assert_snapshot!(
        why(&[q.clone(), k.clone()], &[]),
        @"tensor `v` not found"
    );
    insta::assert_snapshot!(
        why(&[q.clone(), k.clone(), f32s("v", &two, &[1.0, 1.0])], &[]),
        @"v is [1, 1, 2, 1], which does not go with k [1, 1, 1, 1]"
    );
    insta::assert_snapshot!(
        why(&[q.clone(), k.clone(), ("v", Dtype::F16, one.to_vec(), vec![0, 0])], &[]),
        @"v is F16 and q is F32: they must be alike"
    );
    insta::assert_snapshot!(
        why(&[q.clone(), k.clone(), v.clone()], &[("layout", "SBHD")]),
        @"the file's metadata says layout `SBHD`, which is neither BHSD nor BSHD: give --layout"
    );
    let longer = [f32s("k", &two, &[1.0, 1.0]), f32s("v", &two, &[1.0, 1.0])];
    insta::assert_snapshot!(
        why(&[q.clone(), longer[0].clone(), longer[1].clone()], &[("causal", "true")]),
        @"the file says that attention is causal but not how 1 rows stand beside 2 keys: give --causal top-left (ONNX) or --causal bottom-right (FlashAttention)"
    );
    let bias = f32s("bias", &[1, 3], &[0.0; 3]);
    insta::assert_snapshot!(why(&[q.clone(), longer[0].clone(), longer[1].clone(), bias], &[]), @r"
    refused:
      * the bias has 3 along its key dimension, where the problem has 2: a bias of [1, 1, 1, 3] does not broadcast to [batch, q_heads, q_len, kv_len]; make it that, or 1 to use one value for all keys
    ");
    let three = f32s("q", &[1, 1, 1], &[1.0]);
    insta::assert_snapshot!(
        why(&[three, k, v], &[]),
        @"q is [1, 1, 1]: it must have four dimensions"
    );
}

#[test]
fn a_file_that_is_none_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("not.safetensors");
    std::fs::write(&path, b"hello").unwrap();
    let error = format!("{:#}", attend(&path, &[]).unwrap_err());
    assert!(error.contains("this is no safetensors file"), "{error}");
    let error = format!("{:#}", attend(&folder.path().join("absent"), &[]).unwrap_err());
    assert!(error.starts_with("cannot read "), "{error}");
}
