//! One problem through one engine, against the reference.
