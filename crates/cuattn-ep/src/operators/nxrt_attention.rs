//! `pkg.nxrt::Attention`, version 1: four-dimensional tensors and an additive mask of 1, B or B * H planes.

use cuattn::{Alignment, Bias, BiasKind, DType, Mask, Problem, Shape, Strides};

use super::Operator;
use super::inputs::{Inputs, Layouts, Named};
use super::settings::{Attributes, value};
use crate::recipe::{Attend, DenseOperands, Place, Recipe};
use crate::tensor::{Layout, OutputSpec};
use crate::{AttributeKind, ElementType, InputInfo, Node, Reason};

const Q: usize = 0;
const K: usize = 1;
const V: usize = 2;
const MASK: usize = 3;

pub(super) struct Attention {
    heads: usize,
    kv_heads: usize,
    causal: bool,
    scale: Option<f32>,
}

impl Operator for Attention {
    const DOMAIN: &'static str = "pkg.nxrt";
    const OP_TYPE: &'static str = "Attention";
    const VERSIONS: &'static [u32] = &[1];
    const INPUTS: &'static [&'static str] = &["query", "key", "value", "mask"];
    const OUTPUTS: &'static [&'static str] = &["output"];
    const ATTRIBUTES: &'static [(&'static str, AttributeKind)] = &[
        ("num_heads", AttributeKind::Int),
        ("kv_num_heads", AttributeKind::Int),
        ("causal", AttributeKind::Int),
        ("scale", AttributeKind::Float),
    ];
    const STRIDED: &'static [usize] = &[Q, K, V];

    fn new(node: &Node) -> Result<Self, Reason> {
        let mut attributes = Attributes::of(node);
        let fix = "give the number of query heads";
        let heads = attributes.heads("num_heads")?.ok_or(Reason::MissingAttribute { attribute: "num_heads", fix })?;
        let kv_heads = attributes.heads("kv_num_heads")?.unwrap_or(heads);
        let causal = attributes.flag("causal")?;
        let scale = attributes.float("scale")?;
        attributes.finish()?;
        if !heads.is_multiple_of(kv_heads) {
            return Err(value("num_heads", heads, format!("it must be a multiple of kv_num_heads, {kv_heads}")));
        }
        if let Some(scale) = scale.filter(|scale| !scale.is_finite()) {
            return Err(value("scale", scale, "it must be a finite number"));
        }
        Ok(Self { heads, kv_heads, causal, scale })
    }

    fn check(&self, infos: &[Option<InputInfo>]) -> Result<(), Reason> {
        let inputs = Inputs { names: Self::INPUTS, infos };
        inputs.none_beyond()?;
        let dtype = inputs.float(Q)?;
        for tensor in [K, V] {
            inputs.need(tensor, "there is nothing to compute without it")?;
            inputs.same_type(tensor, Q)?;
        }
        for tensor in [Q, K, V] {
            inputs.rank(tensor, &[4], "4, [batch, heads, rows, dim]")?;
        }
        let types: &[ElementType] =
            if dtype == DType::F32 { &[ElementType::F32] } else { &[dtype.into(), ElementType::F32] };
        inputs.type_in(MASK, types, ": this operator's mask is added to the scores")?;
        inputs.rank(MASK, &[2, 3, 4], "2 to 4: [queries, keys], [planes, queries, keys] or [B, H, queries, keys]")
    }

    fn lower(&self, layouts: &[Option<Layout>]) -> Result<Recipe, Reason> {
        let inputs = Layouts { names: Self::INPUTS, layouts };
        let (q_input, k_input, v_input) = (inputs.need(Q)?, inputs.need(K)?, inputs.need(V)?);
        let (q, k, v) = (q_input.bhsd()?, k_input.bhsd()?, v_input.bhsd()?);
        let Some(dtype) = q_input.layout.element.dtype() else {
            return Err(Reason::InputType { input: "query", got: q_input.layout.element, want: "a float".into() });
        };
        q_input.must_be("heads", q.heads, self.heads, "as `num_heads` says")?;
        k_input.must_be("heads", k.heads, self.kv_heads, "as `kv_num_heads` says")?;
        k_input.must_be("batch", k.batch, q.batch, "as in `query`")?;
        k_input.must_be("the head size", k.dim, q.dim, "as in `query`")?;
        v_input.must_be("batch", v.batch, q.batch, "as in `query`")?;
        v_input.must_be("heads", v.heads, k.heads, "as in `key`")?;
        v_input.must_be("rows", v.rows, k.rows, "as in `key`")?;
        let shape = Shape {
            batch: q.batch,
            q_heads: q.heads,
            kv_heads: k.heads,
            q_len: q.rows,
            kv_len: k.rows,
            head_dim: q.dim,
            v_head_dim: v.dim,
        };
        let o = Strides::bhsd(q.heads, q.rows, v.dim);
        let mut problem = Problem::with_strides(shape, dtype, [q.strides, k.strides, v.strides, o]);
        if let Some(scale) = self.scale {
            problem.scale = scale;
        }
        if self.causal {
            problem.mask = Mask::causal(Alignment::BottomRight);
        }
        let mask = inputs.get(MASK);
        problem.mask.bias = mask.map(|mask| planes(mask, &shape)).transpose()?;
        problem.validate().map_err(Reason::Problem)?;
        let operands = DenseOperands {
            q: Place::input(Q),
            k: Place::input(K),
            v: Place::input(V),
            o: Place::output(0),
            bias: mask.map(|_| Place::input(MASK)),
            key_lengths: None,
            query_offsets: None,
            scores: None,
        };
        let output = OutputSpec { element: dtype.into(), shape: vec![q.batch, q.heads, q.rows, v.dim] };
        Ok(Recipe {
            outputs: vec![Some(output)],
            scratch: Vec::new(),
            fill: None,
            gathers: Vec::new(),
            pack_bias: None,
            attend: Attend::Dense(Box::new(problem), operands),
        })
    }
}

/// The mask's planes, spread over batch and heads.
fn planes(mask: Named<'_>, shape: &Shape) -> Result<Bias, Reason> {
    let Shape { batch, q_heads, q_len, kv_len, .. } = *shape;
    let (rows, keys) = (mask.shape()[mask.shape().len() - 2], mask.shape()[mask.shape().len() - 1]);
    mask.must_be("queries", rows, q_len, "as in `query`")?;
    mask.must_be("keys", keys, kv_len, "as in `key`")?;
    let plane = (q_len * kv_len) as i64;
    let of_planes = |planes: usize| match planes {
        1 => Ok((0, 0)),
        planes if planes == batch => Ok((plane, 0)),
        planes if planes == batch * q_heads => Ok((q_heads as i64 * plane, plane)),
        planes => {
            let want = format!("1, {batch} (one a sequence) or {} (one a head)", batch * q_heads);
            Err(mask.extent("planes", planes, want))
        }
    };
    let (to_batch, to_head) = match mask.shape() {
        [_, _] => (0, 0),
        [planes, _, _] => of_planes(*planes)?,
        [b, h, ..] => {
            if *b != 1 && *b != batch {
                return Err(mask.extent("batch", *b, format!("1 or {batch}")));
            }
            if *h != 1 && *h != q_heads {
                return Err(mask.extent("heads", *h, format!("1 or {q_heads}")));
            }
            let spread = |extent: usize, stride: i64| if extent == 1 { 0 } else { stride };
            (spread(*b, *h as i64 * plane), spread(*h, plane))
        }
        _ => (0, 0),
    };
    let kind = BiasKind::Additive(mask.layout.element.dtype().unwrap_or(DType::F32));
    Ok(Bias { kind, batch: to_batch, head: to_head, row: kv_len as i64, key: 1, keys: kv_len })
}
