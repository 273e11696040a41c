//! The suites, in the order in which they run: what an engine stands on comes before the engine.

use crate::Suite;

pub mod flash;

/// Every suite.
pub fn all() -> Vec<Suite> {
    vec![flash::suite()]
}
