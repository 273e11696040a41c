//! What running a node means, as data: tensors that are moved or packed first, then one attention problem.
//!
//! An operator turns attributes and layouts into a [`Recipe`]; a device follows it. So what an operator means is said
//! once, and the host, which CI has, runs the same recipe as a GPU.

use cuattn::{DType, Problem, Strides, VarlenProblem, Work};

use crate::OutputSpec;

/// Whose memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    Input(usize),
    Output(usize),
    Scratch(usize),
}

/// A tensor within somebody's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) memory: Memory,
    /// Bytes from its beginning.
    pub(crate) offset: usize,
}

impl Place {
    pub(crate) const fn input(index: usize) -> Self {
        Self { memory: Memory::Input(index), offset: 0 }
    }

    pub(crate) const fn output(index: usize) -> Self {
        Self { memory: Memory::Output(index), offset: 0 }
    }

    pub(crate) const fn scratch(index: usize) -> Self {
        Self { memory: Memory::Scratch(index), offset: 0 }
    }

    pub(crate) const fn at(self, offset: usize) -> Self {
        Self { memory: self.memory, offset: self.offset + offset }
    }
}

/// Rows gathered into one `[batch, heads, rows, dim]` tensor: first those of the past, then the new ones, with a vector
/// added to each new one where there is one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Gather {
    pub(crate) dtype: DType,
    pub(crate) batch: usize,
    pub(crate) heads: usize,
    pub(crate) dim: usize,
    pub(crate) past_rows: usize,
    pub(crate) new_rows: usize,
    pub(crate) past: Option<(Place, Strides)>,
    pub(crate) new: (Place, Strides),
    /// `[heads, dim]`.
    pub(crate) add: Option<Place>,
    pub(crate) to: (Place, Strides),
}

impl Gather {
    pub(crate) const fn rows(&self) -> usize {
        self.past_rows + self.new_rows
    }
}

/// How a padding mask of int32 says which keys are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyPadding {
    /// `[batch]`: how many.
    Lengths,
    /// `[batch, keys]`: 0 where a key is not there.
    Keys,
    /// `[batch, queries, keys]`: likewise, for each query.
    QueryKeys,
}

/// A padding mask and an additive bias made into one float32 bias `[batch, heads, queries, keys]`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PackBias {
    pub(crate) padding: (Place, KeyPadding),
    /// What is added to the score of a key that is not there.
    pub(crate) filter: f32,
    /// The additive bias: its type, and element strides `[batch, head, query]`, 0 to broadcast.
    pub(crate) bias: Option<(Place, DType, [i64; 3])>,
    pub(crate) to: Place,
    /// Extents of what is packed: each full, or 1 where the result is the same for all.
    pub(crate) extents: [usize; 4],
}

/// One integer of 64 bits, for each sequence the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fill {
    pub(crate) to: Place,
    pub(crate) count: usize,
    pub(crate) value: i64,
}

/// The operands of a dense problem.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DenseOperands {
    pub(crate) q: Place,
    pub(crate) k: Place,
    pub(crate) v: Place,
    pub(crate) o: Place,
    pub(crate) bias: Option<Place>,
    pub(crate) key_lengths: Option<Place>,
    pub(crate) query_offsets: Option<Place>,
    pub(crate) scores: Option<Place>,
}

/// The operands of a packed problem.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PackedOperands {
    pub(crate) q: Place,
    pub(crate) k: Place,
    pub(crate) v: Place,
    pub(crate) o: Place,
    pub(crate) cu_seqlens_q: Place,
    pub(crate) cu_seqlens_kv: Place,
}

/// What is computed after everything has been moved.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Attend {
    Dense(Box<Problem>, DenseOperands),
    Packed(Box<VarlenProblem>, PackedOperands),
}

/// What running a node with certain layouts means.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Recipe {
    /// Each output, `None` where the node does not use it.
    pub(crate) outputs: Vec<Option<OutputSpec>>,
    /// Bytes of each scratch tensor.
    pub(crate) scratch: Vec<usize>,
    pub(crate) fill: Option<Fill>,
    pub(crate) gathers: Vec<Gather>,
    pub(crate) pack_bias: Option<PackBias>,
    pub(crate) attend: Attend,
}

impl Attend {
    /// What it computes and moves.
    pub(crate) fn work(&self) -> Work {
        match self {
            Self::Dense(problem, _) => problem.work(),
            // Lengths are on the device: counted as if all were equal.
            Self::Packed(problem, _) => problem.work(None),
        }
    }
}
