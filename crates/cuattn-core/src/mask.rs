//! Which keys a query row may see, and what is added to their scores.

use crate::{DType, IndexType};

/// Where query row 0 stands among the keys. Row `i` has position `p = offset + i`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Alignment {
    /// `offset = 0`: the first row beside the first key (ONNX without a past).
    #[default]
    TopLeft,
    /// `offset = length - q_len`, with the sequence's own key length: the last row beside the last key (FlashAttention,
    /// cuDNN). May be negative: then the leading rows see nothing under a causal mask.
    BottomRight,
    /// `offset` read from a device array `[batch]`.
    PerBatch(IndexType),
}

impl Alignment {
    /// Element type of the array of offsets, where there is one.
    pub const fn index_type(self) -> Option<IndexType> {
        match self {
            Self::PerBatch(index) => Some(index),
            Self::TopLeft | Self::BottomRight => None,
        }
    }
}

/// How many keys to the left and to the right of its own position a row may see; `None` is without limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Window {
    /// Keys `j >= p - left`.
    pub left: Option<u32>,
    /// Keys `j <= p + right`.
    pub right: Option<u32>,
}

/// How many keys of each sequence are valid. Keys beyond are never seen, whatever they hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KeyLengths {
    /// All `kv_len`.
    #[default]
    Full,
    /// Read from a device array `[batch]`, clamped to `0..=kv_len`.
    PerBatch(IndexType),
    /// A device array `[batch]` holds the keys before this call's; the length is that plus `q_len`, clamped likewise.
    PastPlusQuery(IndexType),
}

impl KeyLengths {
    /// Element type of the array of lengths, where there is one.
    pub const fn index_type(self) -> Option<IndexType> {
        match self {
            Self::PerBatch(index) | Self::PastPlusQuery(index) => Some(index),
            Self::Full => None,
        }
    }
}

/// What a bias element means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BiasKind {
    /// Added to the score, in natural units; -inf masks. The problem's element type, or `F32`.
    Additive(DType),
    /// One byte: 0 masks the key, anything else leaves it.
    Boolean,
}

impl BiasKind {
    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            Self::Additive(dtype) => dtype.size(),
            Self::Boolean => 1,
        }
    }
}

/// A bias tensor `[batch, q_heads, q_len, keys]`; stride 0 broadcasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bias {
    /// What an element means.
    pub kind: BiasKind,
    /// Element stride from one sequence to the next.
    pub batch: i64,
    /// Element stride from one query head to the next.
    pub head: i64,
    /// Element stride from one query row to the next.
    pub row: i64,
    /// Element stride from one key to the next: 1 for the fast path, 0 to broadcast.
    pub key: i64,
    /// Keys it covers: those from here on are masked (ONNX pads a short mask so). Usually `kv_len`.
    pub keys: usize,
}

/// Everything that limits what a row sees, and the bias. Applied together: a key must pass all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Mask {
    /// Whether row at position `p` sees only keys `j <= p`.
    pub causal: bool,
    /// Where rows stand, for `causal` and `window`.
    pub alignment: Alignment,
    /// A band around each row's position. Applies without `causal` too.
    pub window: Window,
    /// Additive or boolean bias.
    pub bias: Option<Bias>,
    /// Valid keys of each sequence.
    pub key_lengths: KeyLengths,
}

impl Mask {
    /// Every row sees every key.
    pub const fn none() -> Self {
        Self {
            causal: false,
            alignment: Alignment::TopLeft,
            window: Window { left: None, right: None },
            bias: None,
            key_lengths: KeyLengths::Full,
        }
    }

    /// A causal mask.
    pub const fn causal(alignment: Alignment) -> Self {
        let mut mask = Self::none();
        mask.causal = true;
        mask.alignment = alignment;
        mask
    }
}
