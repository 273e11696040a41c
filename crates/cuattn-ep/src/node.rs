//! A node of a graph, as far as a claim looks at it.

use std::collections::BTreeMap;
use std::fmt;

use crate::ElementType;

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Attribute {
    /// A number without fraction.
    Int(i64),
    /// A number.
    Float(f32),
    /// Text.
    Text(String),
    /// Something that no operator here takes: lists, tensors, graphs. The text says what, for refusals.
    Other(&'static str),
}

/// Of which kind an attribute is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AttributeKind {
    /// [`Attribute::Int`].
    Int,
    /// [`Attribute::Float`].
    Float,
}

impl Attribute {
    pub(crate) const fn kind(&self) -> &'static str {
        match self {
            Self::Int(_) => "an integer",
            Self::Float(_) => "a number",
            Self::Text(_) => "text",
            Self::Other(what) => what,
        }
    }
}

/// A node: which operator, with which attributes, and which of its outputs are used.
///
/// ```
/// use cuattn_ep::Node;
/// let node = Node::new("", "Attention", 24).named("layer.0").attribute("is_causal", 1i64).outputs(&[true]);
/// assert_eq!(node.to_string(), "layer.0 (ai.onnx::Attention 24)");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The node's name in its graph; may be empty.
    pub name: String,
    /// The operator's domain; empty for ONNX's own.
    pub domain: String,
    /// The operator's name.
    pub op_type: String,
    /// The version of the operator: the opset in which its present form appeared.
    pub since_version: u32,
    /// Every attribute that the model gives.
    pub attributes: BTreeMap<String, Attribute>,
    /// Whether each output is used.
    pub outputs: Vec<bool>,
}

impl Node {
    /// A node without a name, without attributes, with its first output used.
    pub fn new(domain: impl Into<String>, op_type: impl Into<String>, since_version: u32) -> Self {
        Self {
            name: String::new(),
            domain: domain.into(),
            op_type: op_type.into(),
            since_version,
            attributes: BTreeMap::new(),
            outputs: vec![true],
        }
    }

    /// Gives it a name.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Adds an attribute.
    #[must_use]
    pub fn attribute(mut self, name: impl Into<String>, value: impl Into<Attribute>) -> Self {
        self.attributes.insert(name.into(), value.into());
        self
    }

    /// Says which outputs are used.
    #[must_use]
    pub fn outputs(mut self, used: &[bool]) -> Self {
        self.outputs = used.to_vec();
        self
    }

    pub(crate) fn uses_output(&self, index: usize) -> bool {
        self.outputs.get(index).copied().unwrap_or(false)
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = if self.name.is_empty() { "a node without a name" } else { &self.name };
        write!(f, "{name} ({}::{} {})", domain_name(&self.domain), self.op_type, self.since_version)
    }
}

/// The domain as people write it.
pub(crate) fn domain_name(domain: &str) -> &str {
    if domain.is_empty() { "ai.onnx" } else { domain }
}

impl From<i64> for Attribute {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}

impl From<f32> for Attribute {
    fn from(value: f32) -> Self {
        Self::Float(value)
    }
}

impl From<&str> for Attribute {
    fn from(value: &str) -> Self {
        Self::Text(value.to_owned())
    }
}

/// What is known of an input before the graph runs: its type, and as much of its shape as the graph says.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InputInfo {
    /// The element type.
    pub element: ElementType,
    /// Extents, `None` for one that is not known; `None` as a whole where not even the rank is.
    pub shape: Option<Vec<Option<usize>>>,
}

impl InputInfo {
    /// An input of known shape.
    pub fn new(element: ElementType, shape: &[usize]) -> Self {
        Self { element, shape: Some(shape.iter().copied().map(Some).collect()) }
    }

    /// An input of which only the type is known.
    pub const fn of_type(element: ElementType) -> Self {
        Self { element, shape: None }
    }

    /// The shape, where every extent is known.
    pub fn known_shape(&self) -> Option<Vec<usize>> {
        self.shape.as_ref()?.iter().copied().collect()
    }

    /// The rank, where it is known.
    pub fn rank(&self) -> Option<usize> {
        self.shape.as_ref().map(Vec::len)
    }
}
