//! `gpu-suites` as a process, on a machine without a GPU or made to look like one.

use std::path::Path;
use std::process::{Command, Output};

fn gpu_suites(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gpu-suites"))
        .args(args)
        // Hides the devices of a machine that has some.
        .env("CUDA_VISIBLE_DEVICES", "-1")
        .output()
        .expect("gpu-suites starts")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn without_a_gpu_it_fails_and_says_what_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report.json");
    let output = gpu_suites(&["--report", report.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    assert!(text(&output).contains("no GPU was found, so nothing was run"), "{}", text(&output));
    // The probe says what was looked for, and how to get it.
    assert!(text(&output).to_lowercase().contains("driver"), "{}", text(&output));
    assert!(!Path::new(&report).exists(), "a run of nothing left a report");
}

#[test]
fn the_list_needs_no_gpu() {
    let output = gpu_suites(&["--list"]);
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).lines().all(|line| line.contains("::")), "{}", text(&output));
}

#[test]
fn a_suite_that_does_not_exist_is_named() {
    let output = gpu_suites(&["--suite", "flush"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output).contains("there is no suite `flush`"), "{}", text(&output));
}

#[test]
fn the_sanitizer_wants_a_report_first() {
    let output = gpu_suites(&["sanitize", "--report", "no/such/report.json"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output).contains("run the suites with `--report` first"), "{}", text(&output));
}
