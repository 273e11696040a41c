//! The Python side of the comparison, as far as it can be tested without PyTorch and without a GPU: its own tests, and
//! that both sides of the C interface mean the same.

use std::path::Path;
use std::process::{Command, Output};

use cuattn_bench::abi::{OperandSpans, Span};
use cuattn_bench::description::Description;

/// Runs Python in the folder of the scripts. `None`, and a line that says so, where the machine has no Python.
fn python(arguments: &[&str]) -> Option<Output> {
    let peers = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers");
    match Command::new("python3").current_dir(peers).env("PYTHONDONTWRITEBYTECODE", "1").args(arguments).output() {
        Ok(output) => Some(output),
        Err(missing) => {
            eprintln!("NOT RUN: the scripts of the comparison cannot be tested without python3 ({missing})");
            None
        }
    }
}

#[test]
fn scripts_pass_their_own_tests() {
    let Some(output) = python(&["-m", "unittest"]) else { return };
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("OK"), "{text}");
}

#[test]
fn every_row_of_the_tables_is_a_legal_problem() {
    let script =
        "import cases, json, ours\nfor case in cases.select(list(cases.SUITES)): print(json.dumps(ours.problem(case)))";
    let Some(output) = python(&["-c", script]) else { return };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.lines().count() > 100);
    for line in text.lines() {
        match serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")) {
            Description::Dense(dense) => {
                dense.problem().validate().unwrap_or_else(|refusal| panic!("{refusal}: {line}"))
            }
            Description::Varlen(varlen) => {
                varlen.problem().validate().unwrap_or_else(|refusal| panic!("{refusal}: {line}"))
            }
        }
    }
}

#[test]
fn both_sides_list_the_operands_in_one_order() {
    let shown = format!("{:?}", OperandSpans::default());
    let fields: Vec<&str> = shown.split(": Span").filter_map(|before| before.split([' ', ',']).next_back()).collect();
    let fields: Vec<String> = fields[..fields.len() - 1].iter().map(|field| format!("\"{field}\"")).collect();
    let expected = format!("OPERANDS = ({})", fields.join(", "));
    let script = include_str!("../peers/ours.py");
    assert!(script.contains(&expected), "ours.py must say {expected}");
    assert_eq!(size_of::<OperandSpans>(), fields.len() * size_of::<Span>());
    assert!(script.contains(&format!("ABI_VERSION = {}\n", cuattn_bench::abi::VERSION)));
}
