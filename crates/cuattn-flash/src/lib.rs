//! See the crate's description; its author is writing it.
