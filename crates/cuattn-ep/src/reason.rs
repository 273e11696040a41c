//! Why a node is not claimed.

use cuattn::Refusal;

use crate::ElementType;

/// Why a node is not claimed, or cannot be run with the shapes it was given. Its text says what, why, and how to fix
/// it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// An operator that is not here.
    #[error("there is no kernel for {domain}::{op_type}: leave the node to another execution provider")]
    NoSuchOperator {
        /// The domain.
        domain: String,
        /// The operator.
        op_type: String,
    },

    /// An operator that is here in other versions.
    #[error(
        "{domain}::{op_type} is known in versions {known}, and this is version {version}: convert the model to one of \
         those opsets"
    )]
    NoSuchVersion {
        /// The domain.
        domain: &'static str,
        /// The operator.
        op_type: &'static str,
        /// The version of the node.
        version: u32,
        /// The versions that are here.
        known: String,
    },

    /// An attribute that this version of the operator does not have, as far as is known here.
    #[error(
        "attribute `{attribute}` is not known for this operator and version, so what it asks for cannot be done: \
         remove it, or leave the node to another execution provider"
    )]
    UnknownAttribute {
        /// The attribute.
        attribute: String,
    },

    /// An attribute that must be there.
    #[error("attribute `{attribute}` is missing: {fix}")]
    MissingAttribute {
        /// The attribute.
        attribute: &'static str,
        /// What to give.
        fix: &'static str,
    },

    /// An attribute of the wrong kind.
    #[error("attribute `{attribute}` is {got}, and must be {want}")]
    AttributeKind {
        /// The attribute.
        attribute: &'static str,
        /// What it is.
        got: &'static str,
        /// What it must be.
        want: &'static str,
    },

    /// An attribute whose value is not possible.
    #[error("attribute `{attribute}` is {got}: {want}")]
    AttributeValue {
        /// The attribute.
        attribute: &'static str,
        /// Its value.
        got: String,
        /// What it must be, and why.
        want: String,
    },

    /// An input that must be there.
    #[error("input `{input}` is missing: {why}")]
    MissingInput {
        /// The input.
        input: &'static str,
        /// Why it is needed.
        why: &'static str,
    },

    /// An input that is not taken.
    #[error("input `{input}` is given, which is not supported {because}: {instead}")]
    UnsupportedInput {
        /// The input.
        input: String,
        /// Where or why not.
        because: &'static str,
        /// What to do instead.
        instead: &'static str,
    },

    /// An output that is not produced.
    #[error("output `{output}` is used, which is not supported {because}: {instead}")]
    UnsupportedOutput {
        /// The output.
        output: String,
        /// Where or why not.
        because: &'static str,
        /// What to do instead.
        instead: &'static str,
    },

    /// An input of the wrong type.
    #[error("input `{input}` is {got}, and must be {want}")]
    InputType {
        /// The input.
        input: &'static str,
        /// Its type.
        got: ElementType,
        /// What is taken, and where it helps, why.
        want: String,
    },

    /// An input of the wrong rank.
    #[error("input `{input}` has {got} dimensions, and must have {want}")]
    InputRank {
        /// The input.
        input: &'static str,
        /// Its rank.
        got: usize,
        /// What is taken.
        want: &'static str,
    },

    /// An input whose shape does not fit the others.
    #[error("input `{input}` has shape {shape:?}: {dimension} is {got}, and must be {want}")]
    InputExtent {
        /// The input.
        input: &'static str,
        /// Its shape.
        shape: Vec<usize>,
        /// Which dimension.
        dimension: &'static str,
        /// Its extent.
        got: usize,
        /// What it must be, and why.
        want: String,
    },

    /// An input that does not lie in memory as the operator needs it.
    #[error("input `{input}` has strides {strides:?} for shape {shape:?}: {want}; make it contiguous")]
    InputStrides {
        /// The input.
        input: &'static str,
        /// Its shape.
        shape: Vec<usize>,
        /// Its strides.
        strides: Vec<i64>,
        /// What is taken.
        want: &'static str,
    },

    /// Things that exclude each other.
    #[error("{what}: {why}")]
    Conflict {
        /// What is there together.
        what: &'static str,
        /// Why that is not possible, and what to do.
        why: &'static str,
    },

    /// An attention problem that is not legal.
    #[error("the node is not a legal attention problem; {0}")]
    Problem(Refusal),

    /// A problem that no engine does.
    #[error("{0}")]
    Engine(String),
}
