//! The suites, in the order in which they run: what an engine stands on comes before the engine.

use crate::Suite;

/// Every suite.
pub fn all() -> Vec<Suite> {
    vec![]
}
