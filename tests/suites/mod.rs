//! The suites, in the order in which they run: what an engine stands on comes before the engine.

use crate::Suite;

pub mod blaslt;
pub mod flash;
pub mod phase2a;
pub mod runtime;
pub mod varlen;

/// Every suite.
pub fn all() -> Vec<Suite> {
    vec![runtime::suite(), blaslt::suite(), phase2a::suite(), flash::suite(), varlen::suite()]
}
