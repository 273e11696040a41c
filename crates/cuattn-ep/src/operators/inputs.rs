//! Inputs as `[batch, heads, rows, dim]`, and the checks that all operators share.

use cuattn::{DType, Strides};

use crate::tensor::Layout;
use crate::{ElementType, InputInfo, Reason};

const FLOATS: &str = "float32, float16 or bfloat16";

/// The inputs of a node, with their names.
#[derive(Clone, Copy)]
pub(super) struct Inputs<'a> {
    pub(super) names: &'static [&'static str],
    pub(super) infos: &'a [Option<InputInfo>],
}

impl<'a> Inputs<'a> {
    pub(super) fn get(&self, index: usize) -> Option<&'a InputInfo> {
        self.infos.get(index)?.as_ref()
    }

    pub(super) fn has(&self, index: usize) -> bool {
        self.get(index).is_some()
    }

    /// No input beyond those that are known.
    pub(super) fn none_beyond(&self) -> Result<(), Reason> {
        match self.infos.iter().skip(self.names.len()).position(Option::is_some) {
            None => Ok(()),
            Some(beyond) => Err(Reason::UnsupportedInput {
                input: format!("number {}", self.names.len() + beyond),
                because: "in this version of the operator",
                instead: "remove it, or convert the model to a newer opset",
            }),
        }
    }

    pub(super) fn need(&self, index: usize, why: &'static str) -> Result<&'a InputInfo, Reason> {
        self.get(index).ok_or(Reason::MissingInput { input: self.names[index], why })
    }

    /// An input that is not taken, whatever it holds.
    pub(super) fn refuse(&self, index: usize, because: &'static str, instead: &'static str) -> Result<(), Reason> {
        if self.has(index) {
            return Err(Reason::UnsupportedInput { input: self.names[index].to_owned(), because, instead });
        }
        Ok(())
    }

    /// The type of the first input, which attention must know.
    pub(super) fn float(&self, index: usize) -> Result<DType, Reason> {
        let got = self.need(index, "there is nothing to compute without it")?.element;
        got.dtype().ok_or_else(|| {
            let want = if got == ElementType::F64 {
                format!("{FLOATS}: there are no float64 kernels; convert the model, or leave the node to the CPU")
            } else {
                FLOATS.to_owned()
            };
            Reason::InputType { input: self.names[index], got, want }
        })
    }

    /// Of the same type as another input, where it is there.
    pub(super) fn same_type(&self, index: usize, as_input: usize) -> Result<(), Reason> {
        let (Some(info), Some(other)) = (self.get(index), self.get(as_input)) else { return Ok(()) };
        if info.element == other.element {
            return Ok(());
        }
        let want = format!("{}, the type of `{}`: mixed types are not supported", other.element, self.names[as_input]);
        Err(Reason::InputType { input: self.names[index], got: info.element, want })
    }

    pub(super) fn type_in(&self, index: usize, allowed: &[ElementType], why: &str) -> Result<(), Reason> {
        let Some(info) = self.get(index) else { return Ok(()) };
        if allowed.contains(&info.element) {
            return Ok(());
        }
        let names = allowed.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or ");
        Err(Reason::InputType { input: self.names[index], got: info.element, want: format!("{names}{why}") })
    }

    pub(super) fn rank(&self, index: usize, allowed: &[usize], want: &'static str) -> Result<(), Reason> {
        match self.get(index).and_then(InputInfo::rank) {
            Some(got) if !allowed.contains(&got) => Err(Reason::InputRank { input: self.names[index], got, want }),
            _ => Ok(()),
        }
    }
}

/// An input as `[batch, heads, rows, dim]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows {
    pub(super) batch: usize,
    pub(super) heads: usize,
    pub(super) rows: usize,
    pub(super) dim: usize,
    pub(super) strides: Strides,
}

/// A named layout.
#[derive(Clone, Copy)]
pub(super) struct Named<'a> {
    pub(super) name: &'static str,
    pub(super) layout: &'a Layout,
}

impl Named<'_> {
    pub(super) fn shape(&self) -> &[usize] {
        &self.layout.shape
    }

    pub(super) fn extent(&self, dimension: &'static str, got: usize, want: impl Into<String>) -> Reason {
        Reason::InputExtent { input: self.name, shape: self.shape().to_vec(), dimension, got, want: want.into() }
    }

    fn strides(&self, want: &'static str) -> Reason {
        let (shape, strides) = (self.shape().to_vec(), self.layout.strides.clone());
        Reason::InputStrides { input: self.name, shape, strides, want }
    }

    /// The last dimension is contiguous, and nothing runs backwards.
    pub(super) fn check_strides(&self) -> Result<(), Reason> {
        let (strides, shape) = (&self.layout.strides, self.shape());
        if strides.len() != shape.len() {
            return Err(self.strides("there must be one stride for each dimension"));
        }
        if strides.iter().any(|&stride| stride < 0) {
            return Err(self.strides("strides must not be negative"));
        }
        match (strides.last(), shape.last()) {
            (Some(&stride), Some(&extent)) if stride != 1 && extent > 1 => {
                Err(self.strides("the elements of a vector must be next to each other"))
            }
            _ => Ok(()),
        }
    }

    /// `[batch, heads, rows, dim]`.
    pub(super) fn bhsd(&self) -> Result<Rows, Reason> {
        self.check_strides()?;
        let (&[batch, heads, rows, dim], &[to_batch, to_head, to_row, _]) = (self.shape(), &self.layout.strides[..])
        else {
            return Err(Reason::InputRank { input: self.name, got: self.shape().len(), want: "4" });
        };
        Ok(Rows { batch, heads, rows, dim, strides: Strides { batch: to_batch, head: to_head, row: to_row } })
    }

    /// `[batch, rows, heads * dim]`, whose heads lie side by side.
    pub(super) fn bsh(&self, heads: usize, attribute: &'static str) -> Result<Rows, Reason> {
        self.check_strides()?;
        let (&[batch, rows, hidden], &[to_batch, to_row, _]) = (self.shape(), &self.layout.strides[..]) else {
            return Err(Reason::InputRank { input: self.name, got: self.shape().len(), want: "3" });
        };
        if !hidden.is_multiple_of(heads) {
            return Err(self.extent("the last dimension", hidden, format!("a multiple of `{attribute}`, {heads}")));
        }
        let dim = hidden / heads;
        let head = dim as i64;
        Ok(Rows { batch, heads, rows, dim, strides: Strides { batch: to_batch, head, row: to_row } })
    }

    /// As another input has it.
    pub(super) fn must_be(&self, dimension: &'static str, got: usize, want: usize, why: &str) -> Result<(), Reason> {
        if got == want { Ok(()) } else { Err(self.extent(dimension, got, format!("{want}, {why}"))) }
    }
}

/// Layouts by index and name.
pub(super) struct Layouts<'a> {
    pub(super) names: &'static [&'static str],
    pub(super) layouts: &'a [Option<Layout>],
}

impl<'a> Layouts<'a> {
    pub(super) fn get(&self, index: usize) -> Option<Named<'a>> {
        let layout = self.layouts.get(index)?.as_ref()?;
        Some(Named { name: self.names[index], layout })
    }

    pub(super) fn need(&self, index: usize) -> Result<Named<'a>, Reason> {
        self.get(index)
            .ok_or(Reason::MissingInput { input: self.names[index], why: "there is nothing to compute without it" })
    }
}
