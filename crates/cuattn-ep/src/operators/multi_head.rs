//! `com.microsoft::MultiHeadAttention`, version 1.
//!
//! | form | `query` | `key` | `value` |
//! |---|---|---|---|
//! | apart | `[B, S, H * D]` | `[B, L, H * D]` | `[B, L, H * Dv]` |
//! | keys by head | `[B, S, H * D]` | `[B, H, L, D]` | `[B, H, L, Dv]` |
//! | packed keys | `[B, S, H * D]` | `[B, L, H, 2, D]` | |
//! | all packed | `[B, S, H, 3, D]` | | |
//!
//! A padded key is not selected away: `mask_filter_value` is added to its score, as the operator defines it, so that a
//! row whose keys are all padded attends to all of them.

use cuattn::{Alignment, Bias, BiasKind, DType, Mask, Problem, Shape, Strides};

use super::Operator;
use super::attention::{Builder, past_rows};
use super::inputs::{Inputs, Layouts, Named, Rows};
use super::settings::{Attributes, value};
use crate::recipe::{Attend, DenseOperands, KeyPadding, PackBias, Place, Recipe};
use crate::tensor::{Layout, OutputSpec};
use crate::{AttributeKind, ElementType, InputInfo, Node, Reason};

const QUERY: usize = 0;
const KEY: usize = 1;
const VALUE: usize = 2;
const BIAS: usize = 3;
const PADDING: usize = 4;
const ATTENTION_BIAS: usize = 5;
const PAST_KEY: usize = 6;
const PAST_VALUE: usize = 7;
const PAST_LENGTH: usize = 8;
const CACHE_INDIRECTION: usize = 9;

const PRESENT_KEY: usize = 1;
const PRESENT_VALUE: usize = 2;
const QK: usize = 3;

pub(super) struct MultiHeadAttention {
    heads: usize,
    causal: bool,
    scale: Option<f32>,
    filter: f32,
    uses: Vec<bool>,
}

/// Query, key and value as rows, each within an input.
struct Parts {
    q: (Place, Rows),
    k: (Place, Rows),
    v: (Place, Rows),
}

impl Operator for MultiHeadAttention {
    const DOMAIN: &'static str = "com.microsoft";
    const OP_TYPE: &'static str = "MultiHeadAttention";
    const VERSIONS: &'static [u32] = &[1];
    const INPUTS: &'static [&'static str] = &[
        "query",
        "key",
        "value",
        "bias",
        "key_padding_mask",
        "attention_bias",
        "past_key",
        "past_value",
        "past_sequence_length",
        "cache_indirection",
    ];
    const OUTPUTS: &'static [&'static str] = &["output", "present_key", "present_value", "qk"];
    const ATTRIBUTES: &'static [(&'static str, AttributeKind)] = &[
        ("num_heads", AttributeKind::Int),
        ("unidirectional", AttributeKind::Int),
        ("scale", AttributeKind::Float),
        ("mask_filter_value", AttributeKind::Float),
    ];
    const STRIDED: &'static [usize] = &[PAST_KEY, PAST_VALUE];

    fn new(node: &Node) -> Result<Self, Reason> {
        let mut attributes = Attributes::of(node);
        let fix = "give the number of heads";
        let heads = attributes.heads("num_heads")?.ok_or(Reason::MissingAttribute { attribute: "num_heads", fix })?;
        let causal = attributes.flag("unidirectional")?;
        let scale = attributes.float("scale")?;
        let filter = attributes.float("mask_filter_value")?.unwrap_or(-10000.0);
        attributes.finish()?;
        if let Some(scale) = scale.filter(|scale| !scale.is_finite()) {
            return Err(value("scale", scale, "it must be a finite number"));
        }
        if filter.is_nan() {
            return Err(value("mask_filter_value", filter, "it must be a number"));
        }
        if node.uses_output(QK) {
            return Err(Reason::UnsupportedOutput {
                output: "qk".to_owned(),
                because: "for this operator",
                instead: "use ai.onnx::Attention, whose qk_matmul_output is",
            });
        }
        Ok(Self { heads, causal, scale, filter, uses: node.outputs.clone() })
    }

    fn check(&self, infos: &[Option<InputInfo>]) -> Result<(), Reason> {
        let inputs = Inputs { names: Self::INPUTS, infos };
        inputs.none_beyond()?;
        inputs.float(QUERY)?;
        for tensor in [KEY, VALUE, BIAS, ATTENTION_BIAS, PAST_KEY, PAST_VALUE] {
            inputs.same_type(tensor, QUERY)?;
        }
        let instead = "use past_key and past_value alone, or ai.onnx::Attention";
        inputs.refuse(PAST_LENGTH, "as it makes past and present one buffer", instead)?;
        inputs.refuse(CACHE_INDIRECTION, "as there is no beam search", instead)?;
        inputs.rank(QUERY, &[3, 5], "3, [batch, rows, heads * dim], or 5, [batch, rows, heads, 3, dim]")?;
        inputs.rank(KEY, &[3, 4, 5], "3, 4 ([batch, heads, rows, dim]) or 5 ([batch, rows, heads, 2, dim])")?;
        inputs.rank(VALUE, &[3, 4], "3 or 4, as `key` has")?;
        inputs.rank(BIAS, &[1], "1")?;
        inputs.rank(PADDING, &[1, 2, 3], "1, 2 or 3: [batch], [batch, keys] or [batch, queries, keys]")?;
        inputs.rank(ATTENTION_BIAS, &[4], "4, [batch or 1, heads or 1, queries, keys]")?;
        inputs.type_in(PADDING, &[ElementType::I32], "")?;
        for past in [PAST_KEY, PAST_VALUE] {
            inputs.rank(past, &[4], "4, [batch, heads, past, dim]")?;
        }
        if inputs.has(PAST_KEY) != inputs.has(PAST_VALUE) {
            let missing = if inputs.has(PAST_KEY) { PAST_VALUE } else { PAST_KEY };
            let why = "past keys go with past values";
            return Err(Reason::MissingInput { input: Self::INPUTS[missing], why });
        }
        let rank = |index| inputs.get(index).and_then(InputInfo::rank);
        match (rank(QUERY), rank(KEY)) {
            (Some(5), _) => {
                let because = "with packed queries, keys and values";
                inputs.refuse(KEY, because, "leave it away")?;
                inputs.refuse(VALUE, because, "leave it away")?;
            }
            (_, Some(5)) => inputs.refuse(VALUE, "with packed keys and values", "leave it away")?,
            (Some(_), Some(of_key)) => {
                let value = inputs.need(VALUE, "`key` is not packed")?;
                if let Some(got) = value.rank().filter(|&rank| rank != of_key) {
                    return Err(Reason::InputRank { input: "value", got, want: "as many as `key` has" });
                }
                if of_key == 4 {
                    let because = "with keys of [batch, heads, rows, dim]";
                    inputs.refuse(BIAS, because, "add it where the keys are made")?;
                    inputs.refuse(PAST_KEY, because, "they are past and new keys already")?;
                }
            }
            (Some(_), None) => {
                inputs.need(KEY, "`query` is not packed")?;
            }
            (None, _) => {}
        }
        Ok(())
    }

    fn lower(&self, layouts: &[Option<Layout>]) -> Result<Recipe, Reason> {
        let inputs = Layouts { names: Self::INPUTS, layouts };
        let query = inputs.need(QUERY)?;
        let Some(dtype) = query.layout.element.dtype() else {
            return Err(Reason::InputType { input: "query", got: query.layout.element, want: "a float".into() });
        };
        let Parts { q, k, v } = self.parts(&inputs, dtype)?;
        let past = match (inputs.get(PAST_KEY), inputs.get(PAST_VALUE)) {
            (Some(key), Some(value)) => {
                let rows = (past_rows(key, &k.1)?, past_rows(value, &v.1)?);
                value.must_be("rows", rows.1.rows, rows.0.rows, "as in `past_key`")?;
                Some(rows)
            }
            _ => None,
        };
        let (q_rows, k_rows, v_rows) = (q.1, k.1, v.1);
        let kv_len = k_rows.rows + past.map_or(0, |(key, _)| key.rows);
        let shape = Shape {
            batch: q_rows.batch,
            q_heads: self.heads,
            kv_heads: self.heads,
            q_len: q_rows.rows,
            kv_len,
            head_dim: q_rows.dim,
            v_head_dim: v_rows.dim,
        };
        let add = self.projection_bias(&inputs, &shape, dtype)?;

        let mut recipe = Builder { outputs: vec![None; Self::OUTPUTS.len()], scratch: Vec::new(), gathers: Vec::new() };
        let hidden = self.heads * v_rows.dim;
        let output = OutputSpec { element: dtype.into(), shape: vec![shape.batch, shape.q_len, hidden] };
        recipe.outputs[0] = Some(output);
        let (q_place, q_strides) = recipe.gathered(dtype, q, None, add.map(|add| add[0]), None);
        let (k_place, k_strides) = recipe.gathered(
            dtype,
            k,
            past.map(|(key, _)| (PAST_KEY, key)),
            add.map(|add| add[1]),
            self.present(PRESENT_KEY),
        );
        let (v_place, v_strides) = recipe.gathered(
            dtype,
            v,
            past.map(|(_, value)| (PAST_VALUE, value)),
            add.map(|add| add[2]),
            self.present(PRESENT_VALUE),
        );
        let o = Strides::bshd(self.heads, shape.q_len, v_rows.dim);
        let mut problem = Problem::with_strides(shape, dtype, [q_strides, k_strides, v_strides, o]);
        if let Some(scale) = self.scale {
            problem.scale = scale;
        }
        if self.causal {
            problem.mask = Mask::causal(Alignment::BottomRight);
        }
        let bias = inputs.get(ATTENTION_BIAS).map(|bias| attention_bias(bias, &shape, dtype)).transpose()?;
        let mut pack_bias = None;
        let mut bias_place = bias.map(|_| Place::input(ATTENTION_BIAS));
        problem.mask.bias = bias;
        if let Some(padding) = inputs.get(PADDING) {
            let pack = self.pack(&mut recipe, padding, bias, &shape)?;
            let [batch, heads, rows, keys] = pack.extents;
            let spread = |extent: usize, stride: usize| if extent == 1 { 0 } else { stride as i64 };
            problem.mask.bias = Some(Bias {
                kind: BiasKind::Additive(DType::F32),
                batch: spread(batch, heads * rows * keys),
                head: spread(heads, rows * keys),
                row: spread(rows, keys),
                key: 1,
                keys,
            });
            bias_place = Some(pack.to);
            pack_bias = Some(pack);
        }
        problem.validate().map_err(Reason::Problem)?;
        let operands = DenseOperands {
            q: q_place,
            k: k_place,
            v: v_place,
            o: Place::output(0),
            bias: bias_place,
            key_lengths: None,
            query_offsets: None,
            scores: None,
        };
        Ok(Recipe {
            outputs: recipe.outputs,
            scratch: recipe.scratch,
            fill: None,
            gathers: recipe.gathers,
            pack_bias,
            attend: Attend::Dense(Box::new(problem), operands),
        })
    }
}

impl MultiHeadAttention {
    fn present(&self, output: usize) -> Option<usize> {
        self.uses.get(output).copied().unwrap_or(false).then_some(output)
    }

    fn parts(&self, inputs: &Layouts<'_>, dtype: DType) -> Result<Parts, Reason> {
        let query = inputs.need(QUERY)?;
        if query.shape().len() == 5 {
            let [q, k, v] = self.packed(query, dtype)?;
            return Ok(Parts {
                q: (Place::input(QUERY).at(q.0), q.1),
                k: (Place::input(QUERY).at(k.0), k.1),
                v: (Place::input(QUERY).at(v.0), v.1),
            });
        }
        let q = query.bsh(self.heads, "num_heads")?;
        let key = inputs.need(KEY)?;
        let (k, v) = match key.shape().len() {
            5 => {
                let [k, v] = self.packed(key, dtype)?;
                ((Place::input(KEY).at(k.0), k.1), (Place::input(KEY).at(v.0), v.1))
            }
            4 => {
                let (k, value) = (key.bhsd()?, inputs.need(VALUE)?);
                key.must_be("heads", k.heads, self.heads, "as `num_heads` says")?;
                ((Place::input(KEY), k), (Place::input(VALUE), value.bhsd()?))
            }
            _ => {
                let value = inputs.need(VALUE)?;
                let rows = (key.bsh(self.heads, "num_heads")?, value.bsh(self.heads, "num_heads")?);
                ((Place::input(KEY), rows.0), (Place::input(VALUE), rows.1))
            }
        };
        key.must_be("batch", k.1.batch, q.batch, "as in `query`")?;
        key.must_be("the head size", k.1.dim, q.dim, "as in `query`")?;
        if let Some(value) = inputs.get(VALUE) {
            value.must_be("batch", v.1.batch, q.batch, "as in `query`")?;
            value.must_be("heads", v.1.heads, self.heads, "as `num_heads` says")?;
            value.must_be("rows", v.1.rows, k.1.rows, "as in `key`")?;
        }
        Ok(Parts { q: (Place::input(QUERY), q), k, v })
    }

    /// `[batch, rows, heads, parts, dim]`: the byte offset and the rows of each part.
    fn packed<const PARTS: usize>(&self, input: Named<'_>, dtype: DType) -> Result<[(usize, Rows); PARTS], Reason> {
        if !input.layout.is_contiguous() {
            input.check_strides()?;
            let (shape, strides) = (input.shape().to_vec(), input.layout.strides.clone());
            let want = "packed tensors must be contiguous";
            return Err(Reason::InputStrides { input: input.name, shape, strides, want });
        }
        let &[batch, rows, heads, got, dim] = input.shape() else {
            return Err(Reason::InputRank { input: input.name, got: input.shape().len(), want: "5" });
        };
        input.must_be("heads", heads, self.heads, "as `num_heads` says")?;
        input.must_be("the dimension before the last", got, PARTS, "one for each tensor that is packed")?;
        let row = heads * PARTS * dim;
        let strides = Strides { batch: (rows * row) as i64, head: (PARTS * dim) as i64, row: row as i64 };
        let part = |part: usize| (part * dim * dtype.size(), Rows { batch, heads, rows, dim, strides });
        Ok(std::array::from_fn(part))
    }

    /// Where the vectors that are added to queries, keys and values are.
    fn projection_bias(&self, inputs: &Layouts<'_>, shape: &Shape, dtype: DType) -> Result<Option<[Place; 3]>, Reason> {
        let Some(bias) = inputs.get(BIAS) else { return Ok(None) };
        bias.check_strides()?;
        let hidden = self.heads * shape.head_dim;
        let need = 2 * hidden + self.heads * shape.v_head_dim;
        bias.must_be("length", bias.shape()[0], need, "the hidden sizes of query, key and value together")?;
        let at = |part: usize| Place::input(BIAS).at(part * hidden * dtype.size());
        Ok(Some([at(0), at(1), at(2)]))
    }

    fn pack(
        &self,
        recipe: &mut Builder,
        padding: Named<'_>,
        bias: Option<Bias>,
        shape: &Shape,
    ) -> Result<PackBias, Reason> {
        padding.check_strides()?;
        let extents = padding.shape();
        if extents.len() == 1 && extents[0] == 3 * shape.batch + 2 && extents[0] != shape.batch {
            return Err(Reason::UnsupportedInput {
                input: "key_padding_mask".to_owned(),
                because: "in the form [3 * batch + 2] of offsets",
                instead: "use [batch] lengths or a [batch, keys] mask",
            });
        }
        padding.must_be("batch", extents[0], shape.batch, "as in `query`")?;
        let form = match extents {
            [_] => KeyPadding::Lengths,
            [_, keys] => {
                padding.must_be("keys", *keys, shape.kv_len, "past and new keys together")?;
                KeyPadding::Keys
            }
            [_, rows, keys, ..] => {
                padding.must_be("queries", *rows, shape.q_len, "as in `query`")?;
                padding.must_be("keys", *keys, shape.kv_len, "past and new keys together")?;
                KeyPadding::QueryKeys
            }
            [] => KeyPadding::Lengths,
        };
        let heads = match bias {
            Some(bias) if bias.head != 0 => shape.q_heads,
            _ => 1,
        };
        let rows = if bias.is_some() || form == KeyPadding::QueryKeys { shape.q_len } else { 1 };
        let extents = [shape.batch, heads, rows, shape.kv_len];
        let to = recipe.scratch(extents.iter().product::<usize>() * DType::F32.size());
        let bias = bias.map(|bias| {
            let dtype = match bias.kind {
                BiasKind::Additive(dtype) => dtype,
                BiasKind::Boolean => DType::F32,
            };
            (Place::input(ATTENTION_BIAS), dtype, [bias.batch, bias.head, bias.row])
        });
        Ok(PackBias { padding: (Place::input(PADDING), form), filter: self.filter, bias, to, extents })
    }
}

/// `[batch or 1, heads or 1, queries, keys]`.
fn attention_bias(bias: Named<'_>, shape: &Shape, dtype: DType) -> Result<Bias, Reason> {
    bias.check_strides()?;
    let &[batch, heads, rows, keys] = bias.shape() else {
        return Err(Reason::InputRank { input: bias.name, got: bias.shape().len(), want: "4" });
    };
    bias.must_be("queries", rows, shape.q_len, "as in `query`")?;
    bias.must_be("keys", keys, shape.kv_len, "past and new keys together")?;
    Bias::broadcast(BiasKind::Additive(dtype), [batch, heads, rows, keys], shape, cuattn::BroadcastRule::Numpy)
        .map_err(Reason::Problem)
}
