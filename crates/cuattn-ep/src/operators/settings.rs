//! Attributes, read one by one, so that one which nobody asks for is seen.

use crate::node::Attribute;
use crate::{Node, Reason};

/// The attributes of a node, while they are being read.
pub(super) struct Attributes<'a> {
    node: &'a Node,
    known: Vec<&'static str>,
}

impl<'a> Attributes<'a> {
    pub(super) fn of(node: &'a Node) -> Self {
        Self { node, known: Vec::new() }
    }

    fn get(&mut self, name: &'static str) -> Option<&'a Attribute> {
        self.known.push(name);
        self.node.attributes.get(name)
    }

    pub(super) fn int(&mut self, name: &'static str) -> Result<Option<i64>, Reason> {
        match self.get(name) {
            None => Ok(None),
            Some(Attribute::Int(value)) => Ok(Some(*value)),
            Some(other) => {
                Err(Reason::AttributeKind { attribute: name, got: other.kind(), want: Attribute::Int(0).kind() })
            }
        }
    }

    pub(super) fn float(&mut self, name: &'static str) -> Result<Option<f32>, Reason> {
        match self.get(name) {
            None => Ok(None),
            Some(Attribute::Float(value)) => Ok(Some(*value)),
            Some(other) => {
                Err(Reason::AttributeKind { attribute: name, got: other.kind(), want: Attribute::Float(0.0).kind() })
            }
        }
    }

    /// 0 or 1.
    pub(super) fn flag(&mut self, name: &'static str) -> Result<bool, Reason> {
        match self.int(name)? {
            None | Some(0) => Ok(false),
            Some(1) => Ok(true),
            Some(other) => Err(value(name, other, "it must be 0 or 1")),
        }
    }

    /// A number of heads, at least 1.
    pub(super) fn heads(&mut self, name: &'static str) -> Result<Option<usize>, Reason> {
        let Some(heads) = self.int(name)? else { return Ok(None) };
        match usize::try_from(heads) {
            Ok(0) | Err(_) => Err(value(name, heads, "there must be at least 1 head")),
            Ok(heads) => Ok(Some(heads)),
        }
    }

    /// A factor whose square root the operator takes.
    pub(super) fn scale(&mut self) -> Result<Option<f32>, Reason> {
        let Some(scale) = self.float("scale")? else { return Ok(None) };
        if scale.is_finite() && scale >= 0.0 {
            return Ok(Some(scale));
        }
        Err(value(
            "scale",
            scale,
            "it must be a finite number that is not negative, as its square root goes to Q and K",
        ))
    }

    /// 0, or absent, is none.
    pub(super) fn softcap(&mut self) -> Result<Option<f32>, Reason> {
        let softcap = self.float("softcap")?.unwrap_or(0.0);
        if softcap.is_finite() && softcap >= 0.0 {
            return Ok((softcap > 0.0).then_some(softcap));
        }
        Err(value("softcap", softcap, "it must be a positive finite number, or 0 for no cap"))
    }

    /// The reading is over.
    pub(super) fn finish(self) -> Result<(), Reason> {
        match self.node.attributes.keys().find(|name| !self.known.contains(&name.as_str())) {
            Some(unknown) => Err(Reason::UnknownAttribute { attribute: unknown.clone() }),
            None => Ok(()),
        }
    }
}

pub(super) fn value(attribute: &'static str, got: impl ToString, want: impl Into<String>) -> Reason {
    Reason::AttributeValue { attribute, got: got.to_string(), want: want.into() }
}
