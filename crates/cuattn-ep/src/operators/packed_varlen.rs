//! `pkg.nxrt::PackedVarlenAttention`, version 1: sequences of any lengths, one after another, without padding.
//!
//! `query` is `[tokens, heads, dim]` or `[tokens, heads * dim]`, `key` and `value` alike with the key heads; the value's
//! head size may differ. `cu_seqlens_q` and `cu_seqlens_kv`, int32 `[batch + 1]`, say where each sequence begins, and
//! stay on the device. With `is_causal`, key `j` is visible to query `i` where `j <= i + L_kv - L_q`.

use cuattn::{Alignment, TokenStrides, VarlenProblem, VarlenShape};

use super::Operator;
use super::inputs::{Inputs, Layouts, Named};
use super::settings::{Attributes, value};
use crate::recipe::{Attend, PackedOperands, Place, Recipe};
use crate::tensor::{Layout, OutputSpec};
use crate::{AttributeKind, ElementType, InputInfo, Node, Reason};

const QUERY: usize = 0;
const KEY: usize = 1;
const VALUE: usize = 2;
const CU_SEQLENS_Q: usize = 3;
const CU_SEQLENS_KV: usize = 4;

pub(super) struct PackedVarlenAttention {
    heads: usize,
    kv_heads: usize,
    scale: Option<f32>,
    causal: bool,
    softcap: Option<f32>,
}

/// An input as `[tokens, heads, dim]`.
struct Tokens {
    tokens: usize,
    dim: usize,
    strides: TokenStrides,
}

impl Operator for PackedVarlenAttention {
    const DOMAIN: &'static str = "pkg.nxrt";
    const OP_TYPE: &'static str = "PackedVarlenAttention";
    const VERSIONS: &'static [u32] = &[1];
    const INPUTS: &'static [&'static str] = &["query", "key", "value", "cu_seqlens_q", "cu_seqlens_kv"];
    const OUTPUTS: &'static [&'static str] = &["output"];
    const ATTRIBUTES: &'static [(&'static str, AttributeKind)] = &[
        ("num_heads", AttributeKind::Int),
        ("kv_num_heads", AttributeKind::Int),
        ("scale", AttributeKind::Float),
        ("is_causal", AttributeKind::Int),
        ("softcap", AttributeKind::Float),
    ];
    const STRIDED: &'static [usize] = &[QUERY, KEY, VALUE];

    fn new(node: &Node) -> Result<Self, Reason> {
        let mut attributes = Attributes::of(node);
        let fix = "give the number of query heads";
        let heads = attributes.heads("num_heads")?.ok_or(Reason::MissingAttribute { attribute: "num_heads", fix })?;
        let kv_heads = attributes.heads("kv_num_heads")?.unwrap_or(heads);
        let scale = attributes.float("scale")?;
        let causal = attributes.flag("is_causal")?;
        let softcap = attributes.softcap()?;
        attributes.finish()?;
        if !heads.is_multiple_of(kv_heads) {
            return Err(value("num_heads", heads, format!("it must be a multiple of kv_num_heads, {kv_heads}")));
        }
        if let Some(scale) = scale.filter(|scale| !scale.is_finite()) {
            return Err(value("scale", scale, "it must be a finite number"));
        }
        Ok(Self { heads, kv_heads, scale, causal, softcap })
    }

    fn check(&self, infos: &[Option<InputInfo>]) -> Result<(), Reason> {
        let inputs = Inputs { names: Self::INPUTS, infos };
        inputs.none_beyond()?;
        inputs.float(QUERY)?;
        for tensor in [KEY, VALUE] {
            inputs.need(tensor, "there is nothing to compute without it")?;
            inputs.same_type(tensor, QUERY)?;
        }
        for tensor in [QUERY, KEY, VALUE] {
            inputs.rank(tensor, &[2, 3], "2, [tokens, heads * dim], or 3, [tokens, heads, dim]")?;
        }
        for offsets in [CU_SEQLENS_Q, CU_SEQLENS_KV] {
            inputs.need(offsets, "it says where each sequence begins")?;
            inputs.type_in(offsets, &[ElementType::I32], "")?;
            inputs.rank(offsets, &[1], "1, [batch + 1]")?;
        }
        Ok(())
    }

    fn lower(&self, layouts: &[Option<Layout>]) -> Result<Recipe, Reason> {
        let inputs = Layouts { names: Self::INPUTS, layouts };
        let (query, key, value) = (inputs.need(QUERY)?, inputs.need(KEY)?, inputs.need(VALUE)?);
        let Some(dtype) = query.layout.element.dtype() else {
            return Err(Reason::InputType { input: "query", got: query.layout.element, want: "a float".into() });
        };
        let q = tokens(query, self.heads, "num_heads")?;
        let k = tokens(key, self.kv_heads, "kv_num_heads")?;
        let v = tokens(value, self.kv_heads, "kv_num_heads")?;
        key.must_be("the head size", k.dim, q.dim, "as in `query`")?;
        value.must_be("tokens", v.tokens, k.tokens, "as in `key`")?;
        let (cu_q, cu_kv) = (inputs.need(CU_SEQLENS_Q)?, inputs.need(CU_SEQLENS_KV)?);
        let entries = cu_q.shape()[0];
        let Some(batch) = entries.checked_sub(1) else {
            return Err(cu_q.extent("length", entries, "at least 1: one more than there are sequences"));
        };
        cu_kv.must_be("length", cu_kv.shape()[0], entries, "as in `cu_seqlens_q`")?;
        let shape = VarlenShape {
            batch,
            total_q: q.tokens,
            total_kv: k.tokens,
            // How long sequences are is known to the device alone.
            max_q_len: q.tokens,
            max_kv_len: k.tokens,
            q_heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: q.dim,
            v_head_dim: v.dim,
        };
        let mut problem = VarlenProblem::packed(shape, dtype);
        (problem.q, problem.k, problem.v) = (q.strides, k.strides, v.strides);
        if let Some(scale) = self.scale {
            problem.scale = scale;
        }
        problem.softcap = self.softcap;
        problem.causal = self.causal;
        problem.alignment = Alignment::BottomRight;
        problem.validate().map_err(Reason::Problem)?;
        let output = match query.shape().len() {
            2 => vec![q.tokens, self.heads * v.dim],
            _ => vec![q.tokens, self.heads, v.dim],
        };
        let operands = PackedOperands {
            q: Place::input(QUERY),
            k: Place::input(KEY),
            v: Place::input(VALUE),
            o: Place::output(0),
            cu_seqlens_q: Place::input(CU_SEQLENS_Q),
            cu_seqlens_kv: Place::input(CU_SEQLENS_KV),
        };
        Ok(Recipe {
            outputs: vec![Some(OutputSpec { element: dtype.into(), shape: output })],
            scratch: Vec::new(),
            fill: None,
            gathers: Vec::new(),
            pack_bias: None,
            attend: Attend::Packed(Box::new(problem), operands),
        })
    }
}

fn tokens(input: Named<'_>, heads: usize, attribute: &'static str) -> Result<Tokens, Reason> {
    input.check_strides()?;
    match (input.shape(), &input.layout.strides[..]) {
        (&[tokens, hidden], &[token, _]) => {
            if !hidden.is_multiple_of(heads) {
                let want = format!("a multiple of `{attribute}`, {heads}");
                return Err(input.extent("the last dimension", hidden, want));
            }
            let dim = hidden / heads;
            Ok(Tokens { tokens, dim, strides: TokenStrides { token, head: dim as i64 } })
        }
        (&[tokens, got, dim], &[token, head, _]) => {
            input.must_be("heads", got, heads, &format!("as `{attribute}` says"))?;
            Ok(Tokens { tokens, dim, strides: TokenStrides { token, head } })
        }
        (shape, _) => Err(Reason::InputRank { input: input.name, got: shape.len(), want: "2 or 3" }),
    }
}
