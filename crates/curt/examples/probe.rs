//! Prints what this machine has for CUDA, and what to do about what it lacks.
//!
//! ```text
//! cargo run -p curt --example probe
//! ```

fn main() {
    let report = curt::probe();
    print!("{report}");
    println!("{}", if report.has_gpu() { "a GPU can be used" } else { "no GPU can be used" });
}
