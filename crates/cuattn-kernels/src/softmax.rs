//! The kernels of phase2a: softmax over score rows, and the copies and repairs around the two matrix products.
//!
//! | root file | entry | does |
//! |---|---|---|
//! | `softmax/registers.cu` | `softmax_registers` | rows that fit in registers: scores read once, probabilities written once |
//! | `softmax/streaming.cu` | `softmax_streaming` | rows of any length: scores read twice |
//! | `softmax/copy_rows.cu` | `copy_rows` | layouts that a product cannot take; values made finite; zeros |
//! | `softmax/nonfinite_values.cu` | `nonfinite_values` | infinities and NaN of visible values, after the product |

use bytemuck::{Pod, Zeroable};

use crate::abi::{MaskParams, ScoreParams, Strides};
use crate::{Architecture, Source, Variant};
pub use crate::{BiasKind, Element};

/// Which scores are handed out, as `softmax/row.cuh` numbers them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Stage {
    /// None.
    #[default]
    None = 0,
    /// `scale * q.k`.
    Raw = 1,
    /// After softcap.
    Softcapped = 2,
    /// After softcap, the user's modification, bias and masks.
    Masked = 3,
    /// After softmax.
    Probabilities = 4,
}

/// How threads share rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowShape {
    /// `team` threads hold a row's scores, `values` each, and a block has `rows` teams.
    Registers {
        /// Threads of a row: 32, or a multiple of it where `rows` is 1.
        team: u32,
        /// Scores that a thread holds, a multiple of 4.
        values: u32,
        /// Rows of a block.
        rows: u32,
    },
    /// A block of `team` threads goes over a row twice.
    Streaming {
        /// Threads of a row.
        team: u32,
    },
}

/// Longest rows first come last: the first shape that holds a row is used. A warp a row while 32 scores fit a thread, because
/// shuffles need no barrier; then the smallest block that keeps 16 scores a thread in flight.
const ROW_SHAPES: &[RowShape] = &[
    RowShape::Registers { team: 32, values: 4, rows: 4 },
    RowShape::Registers { team: 32, values: 8, rows: 4 },
    RowShape::Registers { team: 32, values: 16, rows: 4 },
    RowShape::Registers { team: 32, values: 32, rows: 4 },
    RowShape::Registers { team: 128, values: 16, rows: 1 },
    RowShape::Registers { team: 256, values: 16, rows: 1 },
    RowShape::Registers { team: 512, values: 16, rows: 1 },
    RowShape::Registers { team: 1024, values: 16, rows: 1 },
    RowShape::Streaming { team: 512 },
];

impl RowShape {
    /// The shape for rows of `keys` scores.
    pub fn for_keys(keys: usize) -> Self {
        let fits = |shape: &&Self| match **shape {
            Self::Registers { team, values, .. } => keys <= (team * values) as usize,
            Self::Streaming { .. } => true,
        };
        *ROW_SHAPES.iter().find(fits).unwrap_or(&ROW_SHAPES[ROW_SHAPES.len() - 1])
    }

    /// Threads of a block.
    pub const fn block_threads(self) -> u32 {
        match self {
            Self::Registers { team, rows, .. } => team * rows,
            Self::Streaming { team } => team,
        }
    }

    /// Rows of a block.
    pub const fn block_rows(self) -> u32 {
        match self {
            Self::Registers { rows, .. } => rows,
            Self::Streaming { .. } => 1,
        }
    }
}

/// A variant of the softmax.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Softmax {
    /// Type of the probabilities, and of an [`BiasKind::Element`] bias.
    pub element: Element,
    /// How threads share rows.
    pub shape: RowShape,
    /// Whether every row sees every key. Then there is no bias and no score modification either.
    pub every_key: bool,
    /// What the bias is.
    pub bias: BiasKind,
    /// Whether there is a softcap.
    pub softcap: bool,
    /// The body of the user's score modification.
    pub score_mod: Option<String>,
    /// Which scores are handed out.
    pub stage: Stage,
    /// Whether they are handed out in float32 rather than in `element`.
    pub stage_f32: bool,
}

impl Softmax {
    /// Plain softmax over rows of `keys` scores, all of them seen.
    pub fn plain(element: Element, keys: usize) -> Self {
        Self {
            element,
            shape: RowShape::for_keys(keys),
            every_key: true,
            bias: BiasKind::None,
            softcap: false,
            score_mod: None,
            stage: Stage::None,
            stage_f32: false,
        }
    }

    /// Its source. The kernel takes a [`SoftmaxParams`].
    pub fn source(&self) -> Source {
        let source = match self.shape {
            RowShape::Registers { team, values, rows } => Source::new("softmax/registers.cu", "softmax_registers")
                .define("TEAM", team)
                .define("VALUES", values)
                .define("ROWS", rows),
            RowShape::Streaming { team } => {
                Source::new("softmax/streaming.cu", "softmax_streaming").define("TEAM", team)
            }
        };
        source
            .define("ELEMENT", self.element as u32)
            .define("BIAS", self.bias as u32)
            .define("STAGE", self.stage as u32)
            .define_if(self.every_key, "EVERY_KEY")
            .define_if(self.stage_f32, "STAGE_F32")
            .define_if(self.softcap, "SOFTCAP")
            .score_mod(self.score_mod.as_deref())
    }
}

/// What [`copy_rows`] stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Copy {
    /// The source.
    Plain = 0,
    /// The source with infinities and NaN made 0, and where they were.
    Finite = 1,
    /// Zeros.
    Zero = 2,
}

/// Rows of a block of [`copy_rows`] and [`nonfinite_values`], and keys of a word of [`CopyParams::nonfinite`].
pub const TILE_ROWS: usize = 64;

/// Threads of a block of [`copy_rows`] and [`nonfinite_values`].
pub const TILE_THREADS: u32 = 256;

/// The source of a row copy. The kernel takes a [`CopyParams`]; a block does [`TILE_ROWS`] rows of one head.
pub fn copy_rows(element: Element, copy: Copy) -> Source {
    Source::new("softmax/copy_rows.cu", "copy_rows").define("ELEMENT", element as u32).define("COPY", copy as u32)
}

/// The source of the repair after the product with values made finite. The kernel takes a [`NonfiniteParams`]; a block does
/// [`TILE_ROWS`] rows of one slice.
pub fn nonfinite_values(element: Element) -> Source {
    Source::new("softmax/nonfinite_values.cu", "nonfinite_values").define("ELEMENT", element as u32)
}

/// A chunk of score rows: `softmax/rows.cuh` says what each field means.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub struct Chunk {
    /// Device address of `[slices, rows, leading]` float32 scores.
    pub scores: u64,
    /// Floats from row to row, a multiple of 8.
    pub leading: i64,
    /// `slices * rows`.
    pub total_rows: i32,
    /// Rows of a slice.
    pub rows: i32,
    /// The unit's row that is row 0 of each slice.
    pub first_row: i32,
    /// The unit of slice 0.
    pub first_unit: i32,
    /// Units from one slice to the next.
    pub unit_step: i32,
    /// Units of a sequence.
    pub units: i32,
    /// Query heads of a unit.
    pub heads_per_unit: i32,
    /// Query rows of a sequence.
    pub q_len: i32,
}

/// What the softmax kernels take.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub struct SoftmaxParams {
    /// From q.k to the score.
    pub score: ScoreParams,
    /// Which keys a row may see.
    pub mask: MaskParams,
    /// The rows.
    pub chunk: Chunk,
    /// Device address of a float32 a query head, or 0.
    pub sinks: u64,
    /// Device address of float32 `[batch, q_heads, q_len]`, or 0.
    pub log_sum_exp: u64,
    /// Device address of `[batch, q_heads, q_len, kv_len]`, where a stage is handed out.
    pub stage: u64,
    /// Query heads.
    pub q_heads: i32,
    /// A power of two on every probability that is stored for the product.
    pub probability_scale: f32,
}

/// What [`copy_rows`] takes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub struct CopyParams {
    /// Device address of the source.
    pub source: u64,
    /// Device address of the target.
    pub target: u64,
    /// Device address of `[batch, heads, ceil(rows / 64)]` 64-bit words, for [`Copy::Finite`].
    pub nonfinite: u64,
    /// Layout of the source.
    pub from: Strides,
    /// Layout of the target.
    pub to: Strides,
    /// Heads.
    pub heads: i32,
    /// Rows of a head.
    pub rows: i32,
    /// Elements of a row.
    pub dim: i32,
    /// 1 where every row, in both, can be taken in pieces of 16 bytes.
    pub wide: i32,
}

/// What [`nonfinite_values`] takes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub struct NonfiniteParams {
    /// The rows; their scores are probabilities by now.
    pub chunk: Chunk,
    /// Device address of the values as the caller gave them.
    pub v: u64,
    /// Device address of the output.
    pub o: u64,
    /// Device address of `[batch, kv_heads, words]` 64-bit words.
    pub nonfinite: u64,
    /// Layout of the values.
    pub v_strides: Strides,
    /// Layout of the output.
    pub o_strides: Strides,
    /// Key heads.
    pub kv_heads: i32,
    /// Query heads of a key head.
    pub group: i32,
    /// `ceil(kv_len / 64)`.
    pub words: i32,
    /// Elements of a value.
    pub v_dim: i32,
}

/// The variants of the compile suite: every element type in every row shape, every other option once for each type, and the
/// copies and repairs. bfloat16 is compiled for all architectures, the others for a sample: they load and store in other
/// instructions, and are alike otherwise.
pub fn variants() -> Vec<Variant> {
    let mut list = Vec::new();
    for element in Element::ALL {
        let of = element.name();
        let architectures = if element == Element::Bf16 { Architecture::FROM_AMPERE } else { Architecture::SAMPLE };
        let mut push = |name: String, source: Source| {
            list.push(Variant { name, source, architectures, tuned: true });
        };
        for &shape in ROW_SHAPES {
            let name = match shape {
                RowShape::Registers { team, values, .. } => format!("softmax/registers {of} {team}x{values}"),
                RowShape::Streaming { team } => format!("softmax/streaming {of} {team}"),
            };
            let plain = Softmax { shape, ..Softmax::plain(element, 1) };
            push(format!("{name} masked"), Softmax { every_key: false, ..plain.clone() }.source());
            push(name, plain.source());
        }
        for (keys, shape) in [(4096, "registers"), (1 << 20, "streaming")] {
            let plain = Softmax { every_key: false, ..Softmax::plain(element, keys) };
            for (bias, name) in
                [(BiasKind::Element, "bias"), (BiasKind::F32, "f32 bias"), (BiasKind::Boolean, "boolean bias")]
            {
                push(format!("softmax/{shape} {of} {name}"), Softmax { bias, ..plain.clone() }.source());
            }
            let everything = Softmax {
                bias: BiasKind::Element,
                softcap: true,
                score_mod: Some("return score - 0.5f * (float)(k - q);".to_owned()),
                ..plain.clone()
            };
            push(format!("softmax/{shape} {of} softcap, score mod and bias"), everything.source());
            for (stage, name) in [
                (Stage::Raw, "raw"),
                (Stage::Softcapped, "softcapped"),
                (Stage::Masked, "masked"),
                (Stage::Probabilities, "probabilities"),
            ] {
                let handed_out = Softmax { softcap: true, stage, ..plain.clone() };
                push(format!("softmax/{shape} {of} hands out {name}"), handed_out.source());
            }
            let in_f32 = Softmax { stage: Stage::Probabilities, stage_f32: true, ..plain };
            push(format!("softmax/{shape} {of} hands out probabilities in f32"), in_f32.source());
        }
        for (copy, name) in [(Copy::Plain, "plain"), (Copy::Finite, "finite"), (Copy::Zero, "zero")] {
            push(format!("softmax/copy_rows {of} {name}"), copy_rows(element, copy));
        }
        push(format!("softmax/nonfinite_values {of}"), nonfinite_values(element));
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_length_has_a_shape_that_holds_it() {
        for keys in [1, 127, 128, 129, 512, 1024, 1025, 4096, 16384] {
            match RowShape::for_keys(keys) {
                RowShape::Registers { team, values, rows } => {
                    assert!(keys <= (team * values) as usize, "{keys}");
                    assert!(values % 4 == 0 && (team == 32 || rows == 1), "{keys}");
                }
                RowShape::Streaming { .. } => panic!("{keys} keys fit in registers"),
            }
        }
        assert_eq!(RowShape::for_keys(16385), RowShape::Streaming { team: 512 });
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = variants().into_iter().map(|variant| variant.name).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn structs_have_the_size_that_the_device_sees() {
        assert_eq!(size_of::<Chunk>(), 48);
        assert_eq!(size_of::<CopyParams>(), 24 + 48 + 16);
        assert_eq!(size_of::<NonfiniteParams>(), 48 + 24 + 48 + 16);
        assert_eq!(size_of::<SoftmaxParams>(), size_of::<ScoreParams>() + size_of::<MaskParams>() + 48 + 24 + 8);
    }
}
