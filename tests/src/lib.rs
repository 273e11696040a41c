//! The GPU parity suites, and the tools they share.
//!
//! A parity test is only worth its name if it can fail, so the tools here make failing easy: inputs are fresh random numbers
//! of three distributions, outputs are NaN before the launch, every device tensor lies between guard bytes, keys that no row
//! may see hold NaN and infinity, and a result is compared by relative L2 *and* by its worst element against float64.
//!
//! * [`Suite`] and [`Context`]: what a suite is made of, and what a case is given.
//! * [`tensors`]: distributions, guarded device memory.
//! * [`inputs`]: the operands of a problem, with poison wherever nothing may be read.
//! * [`compare`]: errors and tolerances.
//! * [`space`]: random problems, with the sizes at tile edges drawn more often than others.
//! * [`samples`]: real tensors of a language model.
//! * [`parity`]: one problem through one engine, against the reference.
//! * [`packed`]: ragged batches, their operands and launches.
//! * [`suites`]: the suites themselves, one file an engine.
//! * [`runner`], [`report`], [`side_by_side`], [`sanitize`]: the `gpu-suites` binary, which runs on machines that have a GPU but no Rust.
//!
//! The suites do not use libtest: they need one device runtime for many cases, problem counts and errors in a report, and a
//! binary that fails when it ran nothing.

pub mod compare;
pub mod inputs;
pub mod packed;
pub mod parity;
pub mod report;
pub mod runner;
pub mod samples;
pub mod sanitize;
pub mod side_by_side;
pub mod space;
mod suite;
#[path = "../suites/mod.rs"]
pub mod suites;
pub mod tensors;

pub use suite::{Case, Context, Suite};

/// The examples in the README, as tests of the documentation.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
