//! Benches, and the comparison with the attention kernels that other people use.
//!
//! The comparison runs where they live, in a Python process with PyTorch: `peers/compare.py` makes the tensors, runs
//! everyone on them in turn, and writes a report. Our side enters that process as the shared library built from this
//! crate, through the C interface in [`abi`]: it wraps the stream that PyTorch works on, so ours runs on the same
//! tensors, in the same order of work, and inside the same CUDA graphs. Nothing is copied and nothing is timed by a
//! second clock.
//!
//! [`description`] is the JSON in which a problem crosses that border, [`session`] what stands behind it. [`report`]
//! and [`page`] read the report back and draw it, without a GPU.
//!
//! [`tuning`] measures the tiles that kernels could take, for the tables that choose among them: `cargo xtask tune`.
//!
//! `cargo xtask bench` is the one command for all of it; `cargo bench -p cuattn-benches` runs the criterion benches, of
//! which `host` needs no GPU.

pub mod abi;
pub mod description;
pub mod page;
pub mod report;
pub mod session;
pub mod tuning;
