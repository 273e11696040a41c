//! What is legal, what is refused and how that reads, and what a workspace is.

mod offsets;
mod operands;
mod problems;
mod reasons;
mod work;
mod workspace;
