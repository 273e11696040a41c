//! Problems as JSON: how `peers/ours.py` says what it wants.

use cuattn_core::{
    Alignment, Bias, BiasKind, DType, EngineId, Mask, Problem, Shape, Strides, VarlenProblem, VarlenShape, Window,
};
use serde::Deserialize;

/// A problem, dense or packed, and who is to do it.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Description {
    /// Sequences of one shape.
    Dense(Dense),
    /// Packed sequences.
    Varlen(Varlen),
}

/// A dense problem.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dense {
    /// Extents.
    pub shape: DenseShape,
    /// Element type: `f32`, `f16`, `bf16`.
    pub dtype: ElementType,
    /// Who does it.
    #[serde(default)]
    pub engine: Engine,
    /// Strides of the tensors; contiguous `[batch, heads, len, dim]` without it.
    pub strides: Option<TensorStrides>,
    /// Factor on the scores; `1 / sqrt(head_dim)` without it.
    pub scale: Option<f32>,
    /// `c`: scores become `c * tanh(s / c)`.
    pub softcap: Option<f32>,
    /// Whether a row sees only keys up to its own position.
    #[serde(default)]
    pub causal: bool,
    /// Where rows stand among the keys.
    #[serde(default)]
    pub alignment: RowAlignment,
    /// Keys to the left of its position that a row sees.
    pub window_left: Option<u32>,
    /// Keys to the right of its position that a row sees.
    pub window_right: Option<u32>,
    /// What is added to the scores.
    pub bias: Option<BiasTensor>,
}

/// A packed problem, of contiguous tensors and `i32` offsets.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Varlen {
    /// Extents.
    pub shape: PackedShape,
    /// Element type.
    pub dtype: ElementType,
    /// Who does it.
    #[serde(default)]
    pub engine: Engine,
    /// Factor on the scores; `1 / sqrt(head_dim)` without it.
    pub scale: Option<f32>,
    /// `c`: scores become `c * tanh(s / c)`.
    pub softcap: Option<f32>,
    /// Whether a row sees only keys up to its own position, the last row beside the last key.
    #[serde(default)]
    pub causal: bool,
}

/// The fields of [`Shape`].
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "named as in cuattn_core::Shape")]
pub struct DenseShape {
    pub batch: usize,
    pub q_heads: usize,
    pub kv_heads: usize,
    pub q_len: usize,
    pub kv_len: usize,
    pub head_dim: usize,
    pub v_head_dim: usize,
}

/// The fields of [`VarlenShape`].
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "named as in cuattn_core::VarlenShape")]
pub struct PackedShape {
    pub batch: usize,
    pub total_q: usize,
    pub total_kv: usize,
    pub max_q_len: usize,
    pub max_kv_len: usize,
    pub q_heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub v_head_dim: usize,
}

/// Element strides `[batch, head, row]` of each tensor.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "a tensor each")]
pub struct TensorStrides {
    pub q: [i64; 3],
    pub k: [i64; 3],
    pub v: [i64; 3],
    pub o: [i64; 3],
}

/// The fields of [`Bias`].
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "named as in cuattn_core::Bias")]
pub struct BiasTensor {
    pub kind: BiasElement,
    pub batch: i64,
    pub head: i64,
    pub row: i64,
    pub key: i64,
    pub keys: usize,
}

/// Names of element types.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "named as in cuattn_core::DType")]
pub enum ElementType {
    F32,
    F16,
    Bf16,
}

/// Names of bias elements: a type that is added, or `boolean`.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "named as in cuattn_core::BiasKind")]
pub enum BiasElement {
    F32,
    F16,
    Bf16,
    Boolean,
}

/// Names of alignments.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "named as in cuattn_core::Alignment")]
pub enum RowAlignment {
    TopLeft,
    #[default]
    BottomRight,
}

/// Names of engines, `auto`, and `mma`: the flash engine held to the path that every device from sm_80 on has.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "named as in cuattn_core::EngineId")]
pub enum Engine {
    #[default]
    Auto,
    Phase2a,
    Flash,
    Varlen,
    Mma,
}

impl Engine {
    /// The one engine it names; `None` leaves the choice open.
    pub fn only(self) -> Option<EngineId> {
        match self {
            Self::Auto => None,
            Self::Phase2a => Some(EngineId::Phase2a),
            Self::Flash | Self::Mma => Some(EngineId::Flash),
            Self::Varlen => Some(EngineId::Varlen),
        }
    }
}

impl From<ElementType> for DType {
    fn from(name: ElementType) -> Self {
        match name {
            ElementType::F32 => Self::F32,
            ElementType::F16 => Self::F16,
            ElementType::Bf16 => Self::Bf16,
        }
    }
}

impl From<BiasElement> for BiasKind {
    fn from(name: BiasElement) -> Self {
        match name {
            BiasElement::F32 => Self::Additive(DType::F32),
            BiasElement::F16 => Self::Additive(DType::F16),
            BiasElement::Bf16 => Self::Additive(DType::Bf16),
            BiasElement::Boolean => Self::Boolean,
        }
    }
}

impl Dense {
    /// The problem. Whether it is a legal one is for the plan to say.
    pub fn problem(&self) -> Problem {
        let DenseShape { batch, q_heads, kv_heads, q_len, kv_len, head_dim, v_head_dim } = self.shape;
        let shape = Shape { batch, q_heads, kv_heads, q_len, kv_len, head_dim, v_head_dim };
        let mut problem = match self.strides {
            None => Problem::bhsd(shape, self.dtype.into()),
            Some(TensorStrides { q, k, v, o }) => {
                let strides = [q, k, v, o].map(|[batch, head, row]| Strides { batch, head, row });
                Problem::with_strides(shape, self.dtype.into(), strides)
            }
        };
        problem.scale = self.scale.unwrap_or(problem.scale);
        problem.softcap = self.softcap;
        problem.mask = Mask {
            causal: self.causal,
            alignment: match self.alignment {
                RowAlignment::TopLeft => Alignment::TopLeft,
                RowAlignment::BottomRight => Alignment::BottomRight,
            },
            window: Window { left: self.window_left, right: self.window_right },
            bias: self.bias.map(|BiasTensor { kind, batch, head, row, key, keys }| Bias {
                kind: kind.into(),
                batch,
                head,
                row,
                key,
                keys,
            }),
            ..Mask::none()
        };
        problem
    }
}

impl Varlen {
    /// The problem. Whether it is a legal one is for the plan to say.
    pub fn problem(&self) -> VarlenProblem {
        let PackedShape { batch, total_q, total_kv, max_q_len, max_kv_len, q_heads, kv_heads, head_dim, v_head_dim } =
            self.shape;
        let shape =
            VarlenShape { batch, total_q, total_kv, max_q_len, max_kv_len, q_heads, kv_heads, head_dim, v_head_dim };
        let mut problem = VarlenProblem::packed(shape, self.dtype.into());
        problem.scale = self.scale.unwrap_or(problem.scale);
        problem.softcap = self.softcap;
        problem.causal = self.causal;
        problem
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: &str = r#""shape": {"batch": 2, "q_heads": 8, "kv_heads": 2, "q_len": 16, "kv_len": 32, "head_dim": 64,
        "v_head_dim": 64}"#;

    fn dense(rest: &str) -> serde_json::Result<Description> {
        serde_json::from_str(&format!(r#"{{"kind": "dense", {SHAPE}, "dtype": "bf16"{rest}}}"#))
    }

    #[test]
    fn what_is_left_out_is_plain_attention() {
        let Ok(Description::Dense(dense)) = dense("") else { panic!("not read") };
        let shape = Shape { batch: 2, q_heads: 8, kv_heads: 2, q_len: 16, kv_len: 32, head_dim: 64, v_head_dim: 64 };
        let mut plain = Problem::bhsd(shape, DType::Bf16);
        plain.mask.alignment = Alignment::BottomRight;
        assert_eq!(dense.problem(), plain);
        assert_eq!(dense.engine.only(), None);
    }

    #[test]
    fn every_part_of_the_mask_arrives() {
        let text = r#", "engine": "flash", "causal": true, "alignment": "top_left", "window_left": 7,
            "softcap": 30.0, "scale": 0.5,
            "bias": {"kind": "boolean", "batch": 0, "head": 512, "row": 32, "key": 1, "keys": 32},
            "strides": {"q": [1, 2, 3], "k": [4, 5, 6], "v": [7, 8, 9], "o": [10, 11, 12]}"#;
        let Ok(Description::Dense(dense)) = dense(text) else { panic!("not read") };
        let problem = dense.problem();
        assert_eq!(dense.engine.only(), Some(EngineId::Flash));
        assert_eq!(problem.scale, 0.5);
        assert_eq!(problem.softcap, Some(30.0));
        assert!(problem.mask.causal);
        assert_eq!(problem.mask.alignment, Alignment::TopLeft);
        assert_eq!(problem.mask.window, Window { left: Some(7), right: None });
        let bias = Bias { kind: BiasKind::Boolean, batch: 0, head: 512, row: 32, key: 1, keys: 32 };
        assert_eq!(problem.mask.bias, Some(bias));
        assert_eq!(problem.v, Strides { batch: 7, head: 8, row: 9 });
    }

    #[test]
    fn a_misspelt_field_is_refused_by_name() {
        let refused = dense(r#", "casual": true"#).unwrap_err().to_string();
        assert!(refused.contains("casual"), "{refused}");
        let refused = dense(r#", "engine": "flsh""#).unwrap_err().to_string();
        assert!(refused.contains("flsh") && refused.contains("phase2a"), "{refused}");
    }

    #[test]
    fn packed_problems_are_read() {
        let text = r#"{"kind": "varlen", "dtype": "f16", "causal": true, "shape": {
            "batch": 3, "total_q": 10, "total_kv": 10,
            "max_q_len": 5, "max_kv_len": 5, "q_heads": 4, "kv_heads": 4, "head_dim": 8, "v_head_dim": 8}}"#;
        let Ok(Description::Varlen(varlen)) = serde_json::from_str(text) else { panic!("not read") };
        let problem = varlen.problem();
        assert!(problem.causal);
        assert_eq!((problem.shape.batch, problem.shape.total_q, problem.dtype), (3, 10, DType::F16));
    }
}
