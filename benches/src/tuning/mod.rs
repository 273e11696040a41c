//! Which tile is the fastest: every candidate of the flash engine's paths, on the problems that the tables are made for.
//!
//! [`cases`] are the problems, [`Bench`] measures them, and a [`Report`] keeps what came out and sums it up. `cargo xtask tune
//! --write` writes the table of tiles from it.

mod bench;
mod cases;
mod report;

pub use bench::Bench;
pub use cases::{Case, cases};
pub use report::{CaseReport, Measured, Report, SCHEMA};
