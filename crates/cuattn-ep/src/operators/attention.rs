//! `ai.onnx::Attention`, versions 23 to 25.
//!
//! | input | | output | |
//! |---|---|---|---|
//! | `Q`, `K`, `V` | `[B, H, S, D]`, or `[B, S, H * D]` with the numbers of heads as attributes | `Y` | as `Q`, with `V`'s head size |
//! | `attn_mask` | broadcasts to `[B, H, S, keys]`; one shorter in its last dimension is padded with masked keys | `present_key`, `present_value` | `[B, H, keys, D]` |
//! | `past_key`, `past_value` | `[B, H, past, D]` | `qk_matmul_output` | `[B, H, S, keys]` |
//! | `nonpad_kv_seqlen` | int64 `[B]`, from 24 | | |
//!
//! Query row `i` stands at position `offset + i`. The offset is the number of past keys where there is a past,
//! `nonpad_kv_seqlen - S` where that is given, and 0 otherwise, even where there are more keys than queries.

use cuattn::{
    Alignment, Bias, BiasKind, BroadcastRule, DType, IndexType, KeyLengths, Mask, Problem, ScoreStage, ScoresOutput,
    Shape, Strides, Window,
};

use super::Operator;
use super::inputs::{Inputs, Layouts, Named, Rows};
use super::settings::{Attributes, value};
use crate::recipe::{Attend, DenseOperands, Fill, Gather, Place, Recipe};
use crate::tensor::{Layout, OutputSpec};
use crate::{AttributeKind, ElementType, InputInfo, Node, Reason};

const Q: usize = 0;
const K: usize = 1;
const V: usize = 2;
const MASK: usize = 3;
const PAST_KEY: usize = 4;
const PAST_VALUE: usize = 5;
const NONPAD: usize = 6;

const Y: usize = 0;
const PRESENT_KEY: usize = 1;
const PRESENT_VALUE: usize = 2;
const QK: usize = 3;

const INPUTS: &[&str] = &["Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen"];
const OUTPUTS: &[&str] = &["Y", "present_key", "present_value", "qk_matmul_output"];

const ATTRIBUTES: &[(&str, AttributeKind)] = &[
    ("is_causal", AttributeKind::Int),
    ("q_num_heads", AttributeKind::Int),
    ("kv_num_heads", AttributeKind::Int),
    ("scale", AttributeKind::Float),
    ("softcap", AttributeKind::Float),
    ("qk_matmul_output_mode", AttributeKind::Int),
    ("softmax_precision", AttributeKind::Int),
    ("left_window_size", AttributeKind::Int),
    ("right_window_size", AttributeKind::Int),
];

/// ONNX's own operator.
pub(super) struct Attention(Settings);

/// The same under a name that no other execution provider claims: what a model-rewrite command makes of nodes that
/// are to run here although another GPU provider comes first in the session. It has the meaning of version 25.
pub(super) struct RenamedAttention(Settings);

impl Operator for Attention {
    const DOMAIN: &'static str = "";
    const OP_TYPE: &'static str = "Attention";
    const VERSIONS: &'static [u32] = &[23, 24, 25];
    const INPUTS: &'static [&'static str] = INPUTS;
    const OUTPUTS: &'static [&'static str] = OUTPUTS;
    const ATTRIBUTES: &'static [(&'static str, AttributeKind)] = ATTRIBUTES;
    const STRIDED: &'static [usize] = &[Q, K, V, PAST_KEY, PAST_VALUE];

    fn new(node: &Node) -> Result<Self, Reason> {
        Settings::new(node, node.since_version).map(Self)
    }

    fn check(&self, inputs: &[Option<InputInfo>]) -> Result<(), Reason> {
        self.0.check(inputs)
    }

    fn lower(&self, inputs: &[Option<Layout>]) -> Result<Recipe, Reason> {
        self.0.lower(inputs)
    }
}

impl Operator for RenamedAttention {
    const DOMAIN: &'static str = "cuattn";
    const OP_TYPE: &'static str = "Attention";
    const VERSIONS: &'static [u32] = &[1];
    const INPUTS: &'static [&'static str] = INPUTS;
    const OUTPUTS: &'static [&'static str] = OUTPUTS;
    const ATTRIBUTES: &'static [(&'static str, AttributeKind)] = ATTRIBUTES;
    const STRIDED: &'static [usize] = Attention::STRIDED;

    fn new(node: &Node) -> Result<Self, Reason> {
        Settings::new(node, 25).map(Self)
    }

    fn check(&self, inputs: &[Option<InputInfo>]) -> Result<(), Reason> {
        self.0.check(inputs)
    }

    fn lower(&self, inputs: &[Option<Layout>]) -> Result<Recipe, Reason> {
        self.0.lower(inputs)
    }
}

/// The attributes.
struct Settings {
    version: u32,
    causal: bool,
    window: Window,
    q_heads: Option<usize>,
    kv_heads: Option<usize>,
    scale: Option<f32>,
    softcap: Option<f32>,
    /// Where the scores are handed out, at which stage.
    stage: Option<ScoreStage>,
    uses: Vec<bool>,
}

impl Settings {
    fn new(node: &Node, version: u32) -> Result<Self, Reason> {
        let mut attributes = Attributes::of(node);
        let causal = attributes.flag("is_causal")?;
        let q_heads = attributes.heads("q_num_heads")?;
        let kv_heads = attributes.heads("kv_num_heads")?;
        let scale = attributes.scale()?;
        let softcap = attributes.softcap()?;
        let stage = match attributes.int("qk_matmul_output_mode")?.unwrap_or(0) {
            0 => ScoreStage::Raw,
            1 => ScoreStage::Softcapped,
            2 => ScoreStage::Masked,
            3 => ScoreStage::Probabilities,
            other => return Err(value("qk_matmul_output_mode", other, "it must be 0, 1, 2 or 3")),
        };
        // Softmax is computed in float32 whatever is asked for: never less than float16 or bfloat16 would give, and
        // what a float64 softmax of float32 scores would give up to float32's rounding.
        match attributes.int("softmax_precision")? {
            None | Some(1 | 10 | 11 | 16) => {}
            Some(other) => {
                let want = "it must be 1, 10, 11 or 16: float32, float16, float64 or bfloat16";
                return Err(value("softmax_precision", other, want));
            }
        }
        let mut window = Window::default();
        if version >= 25 {
            window.left = reach(attributes.int("left_window_size")?, "left_window_size")?;
            window.right = reach(attributes.int("right_window_size")?, "right_window_size")?;
        }
        if node.domain == RenamedAttention::DOMAIN {
            // How many outputs the node has, for the inference of their types before there is a kernel.
            attributes.int("outputs")?;
        }
        attributes.finish()?;
        if let (Some(q_heads), Some(kv_heads)) = (q_heads, kv_heads)
            && !q_heads.is_multiple_of(kv_heads)
        {
            return Err(value("q_num_heads", q_heads, format!("it must be a multiple of kv_num_heads, {kv_heads}")));
        }
        if let Some(output) = (OUTPUTS.len()..node.outputs.len()).find(|&index| node.uses_output(index)) {
            return Err(Reason::UnsupportedOutput {
                output: format!("number {output}"),
                because: "in this version of the operator",
                instead: "remove it, or convert the model to a newer opset",
            });
        }
        let stage = node.uses_output(QK).then_some(stage);
        Ok(Self { version, causal, window, q_heads, kv_heads, scale, softcap, stage, uses: node.outputs.clone() })
    }

    fn uses(&self, output: usize) -> bool {
        self.uses.get(output).copied().unwrap_or(false)
    }

    fn check(&self, infos: &[Option<InputInfo>]) -> Result<(), Reason> {
        let names = if self.version >= 24 { INPUTS } else { &INPUTS[..NONPAD] };
        let inputs = Inputs { names, infos };
        inputs.none_beyond()?;
        let dtype = inputs.float(Q)?;
        for needed in [K, V] {
            inputs.need(needed, "there is nothing to compute without it")?;
        }
        for tensor in [K, V, PAST_KEY, PAST_VALUE] {
            inputs.same_type(tensor, Q)?;
        }
        for tensor in [Q, K, V] {
            inputs.rank(tensor, &[3, 4], "3, [batch, rows, heads * dim], or 4, [batch, heads, rows, dim]")?;
        }
        let rank = |index| inputs.get(index).and_then(InputInfo::rank);
        for tensor in [K, V] {
            if let (Some(got), Some(of_q)) = (rank(tensor), rank(Q))
                && got != of_q
            {
                return Err(Reason::InputRank { input: INPUTS[tensor], got, want: "as many as `Q` has" });
            }
        }
        if rank(Q) == Some(3) {
            for (heads, attribute) in [(self.q_heads, "q_num_heads"), (self.kv_heads, "kv_num_heads")] {
                if heads.is_none() {
                    let fix = "inputs of 3 dimensions do not say how many heads there are; add it, or use 4 dimensions";
                    return Err(Reason::MissingAttribute { attribute, fix });
                }
            }
        }
        for past in [PAST_KEY, PAST_VALUE] {
            inputs.rank(past, &[4], "4, [batch, kv_heads, past, dim]")?;
        }
        if inputs.has(PAST_KEY) != inputs.has(PAST_VALUE) {
            let (there, missing) = if inputs.has(PAST_KEY) { (PAST_KEY, PAST_VALUE) } else { (PAST_VALUE, PAST_KEY) };
            let why = match there {
                PAST_KEY => "`past_key` is given, and keys go with values",
                _ => "`past_value` is given, and keys go with values",
            };
            return Err(Reason::MissingInput { input: INPUTS[missing], why });
        }
        let types = [dtype.into(), ElementType::F32, ElementType::Bool];
        let allowed = if dtype == DType::F32 { &types[1..] } else { &types[..] };
        inputs.type_in(MASK, allowed, ", as biases are of the type of `Q`, float32, or bool; cast it")?;
        inputs.rank(MASK, &[1, 2, 3, 4], "1 to 4, and broadcast to [batch, heads, queries, keys]")?;
        if names.len() > NONPAD && inputs.has(NONPAD) {
            inputs.type_in(NONPAD, &[ElementType::I64], "")?;
            inputs.rank(NONPAD, &[1], "1, [batch]")?;
            if inputs.has(PAST_KEY) {
                return Err(Reason::Conflict {
                    what: "`past_key` and `nonpad_kv_seqlen` are both given",
                    why: "one means that new keys are appended here, the other that they are in `K` already; use one",
                });
            }
        }
        Ok(())
    }

    fn rows(&self, tensor: Named<'_>, heads: Option<usize>, attribute: &'static str) -> Result<Rows, Reason> {
        if tensor.shape().len() == 3 {
            return tensor.bsh(heads.unwrap_or(1), attribute);
        }
        let rows = tensor.bhsd()?;
        if let Some(heads) = heads {
            tensor.must_be("heads", rows.heads, heads, &format!("as `{attribute}` says"))?
        }
        Ok(rows)
    }

    fn lower(&self, layouts: &[Option<Layout>]) -> Result<Recipe, Reason> {
        let inputs = Layouts { names: INPUTS, layouts };
        let q_input = inputs.need(Q)?;
        let (k_input, v_input) = (inputs.need(K)?, inputs.need(V)?);
        let q = self.rows(q_input, self.q_heads, "q_num_heads")?;
        let k = self.rows(k_input, self.kv_heads, "kv_num_heads")?;
        let v = self.rows(v_input, self.kv_heads, "kv_num_heads")?;
        let Some(dtype) = q_input.layout.element.dtype() else {
            return Err(Reason::InputType { input: INPUTS[Q], got: q_input.layout.element, want: "a float".into() });
        };
        k_input.must_be("batch", k.batch, q.batch, "as in `Q`")?;
        k_input.must_be("the head size", k.dim, q.dim, "as in `Q`")?;
        v_input.must_be("batch", v.batch, q.batch, "as in `Q`")?;
        v_input.must_be("heads", v.heads, k.heads, "as in `K`")?;
        v_input.must_be("rows", v.rows, k.rows, "as in `K`")?;
        let past = match (inputs.get(PAST_KEY), inputs.get(PAST_VALUE)) {
            (Some(key), Some(value)) => Some((past_rows(key, &k)?, past_rows(value, &v)?)),
            _ => None,
        };
        let past_len = past.map_or(0, |(key, _)| key.rows);
        if let (Some((key, value)), Some(named)) = (past, inputs.get(PAST_VALUE)) {
            named.must_be("rows", value.rows, key.rows, "as in `past_key`")?;
        }

        let shape = Shape {
            batch: q.batch,
            q_heads: q.heads,
            kv_heads: k.heads,
            q_len: q.rows,
            kv_len: past_len + k.rows,
            head_dim: q.dim,
            v_head_dim: v.dim,
        };
        let mut recipe = Builder { outputs: vec![None; OUTPUTS.len()], scratch: Vec::new(), gathers: Vec::new() };
        let (o_shape, o) = if q_input.shape().len() == 3 {
            (vec![q.batch, q.rows, q.heads * v.dim], Strides::bshd(q.heads, q.rows, v.dim))
        } else {
            (vec![q.batch, q.heads, q.rows, v.dim], Strides::bhsd(q.heads, q.rows, v.dim))
        };
        recipe.outputs[Y] = Some(OutputSpec { element: dtype.into(), shape: o_shape });
        let (k_place, k_strides) =
            recipe.keys(dtype, (K, k), past.map(|(key, _)| (PAST_KEY, key)), self.present(PRESENT_KEY));
        let (v_place, v_strides) =
            recipe.keys(dtype, (V, v), past.map(|(_, value)| (PAST_VALUE, value)), self.present(PRESENT_VALUE));

        let mut problem = Problem::with_strides(shape, dtype, [q.strides, k_strides, v_strides, o]);
        if let Some(scale) = self.scale {
            problem.scale = scale;
        }
        problem.softcap = self.softcap;
        let has_nonpad = self.nonpad(&inputs, &shape)?;
        problem.mask = Mask { causal: self.causal, window: self.window, ..Mask::none() };
        if has_nonpad {
            problem.mask.key_lengths = KeyLengths::PerBatch(IndexType::I64);
        }
        let mut fill = None;
        problem.mask.alignment = if has_nonpad {
            Alignment::BottomRight
        } else if past_len == 0 {
            Alignment::TopLeft
        } else if k.rows == q.rows || !(self.causal || self.window != Window::default()) {
            Alignment::BottomRight
        } else {
            let to = recipe.scratch(shape.batch * IndexType::I64.size());
            fill = Some(Fill { to, count: shape.batch, value: past_len as i64 });
            Alignment::PerBatch(IndexType::I64)
        };
        problem.mask.bias = match inputs.get(MASK) {
            Some(mask) => Some(bias(mask, &shape)?),
            None => None,
        };
        problem.scores = self.stage.map(|stage| ScoresOutput { stage, dtype });
        if self.stage.is_some() {
            let shape = vec![shape.batch, shape.q_heads, shape.q_len, shape.kv_len];
            recipe.outputs[QK] = Some(OutputSpec { element: dtype.into(), shape });
        }
        problem.validate().map_err(Reason::Problem)?;
        let operands = DenseOperands {
            q: Place::input(Q),
            k: k_place,
            v: v_place,
            o: Place::output(Y),
            bias: problem.mask.bias.map(|_| Place::input(MASK)),
            key_lengths: has_nonpad.then_some(Place::input(NONPAD)),
            query_offsets: fill.map(|fill| fill.to),
            scores: problem.scores.map(|_| Place::output(QK)),
        };
        Ok(Recipe {
            outputs: recipe.outputs,
            scratch: recipe.scratch,
            fill,
            gathers: recipe.gathers,
            pack_bias: None,
            attend: Attend::Dense(Box::new(problem), operands),
        })
    }

    fn present(&self, output: usize) -> Option<usize> {
        self.uses(output).then_some(output)
    }

    fn nonpad(&self, inputs: &Layouts<'_>, shape: &Shape) -> Result<bool, Reason> {
        let Some(nonpad) = inputs.get(NONPAD) else { return Ok(false) };
        nonpad.must_be("batch", nonpad.shape()[0], shape.batch, "as in `Q`")?;
        Ok(true)
    }
}

/// What a recipe is made of so far.
pub(super) struct Builder {
    pub(super) outputs: Vec<Option<OutputSpec>>,
    pub(super) scratch: Vec<usize>,
    pub(super) gathers: Vec<Gather>,
}

impl Builder {
    pub(super) fn scratch(&mut self, bytes: usize) -> Place {
        self.scratch.push(bytes);
        Place::scratch(self.scratch.len() - 1)
    }

    /// Where all keys (or values) are: the input itself, or past and new rows gathered into the present output, or into
    /// scratch memory where the node does not use it.
    pub(super) fn keys(
        &mut self,
        dtype: DType,
        (input, new): (usize, Rows),
        past: Option<(usize, Rows)>,
        present: Option<usize>,
    ) -> (Place, Strides) {
        self.gathered(dtype, (Place::input(input), new), past, None, present)
    }

    /// [`Builder::keys`] of rows that may be part of an input, with the vector at `add` added to each new one.
    pub(super) fn gathered(
        &mut self,
        dtype: DType,
        (place, new): (Place, Rows),
        past: Option<(usize, Rows)>,
        add: Option<Place>,
        present: Option<usize>,
    ) -> (Place, Strides) {
        let rows = new.rows + past.map_or(0, |(_, past)| past.rows);
        let strides = Strides::bhsd(new.heads, rows, new.dim);
        let in_place = past.is_none() && add.is_none();
        let to = match present {
            Some(output) => {
                let shape = vec![new.batch, new.heads, rows, new.dim];
                self.outputs[output] = Some(OutputSpec { element: dtype.into(), shape });
                Place::output(output)
            }
            None if in_place => return (place, new.strides),
            None => self.scratch(new.batch * new.heads * rows * new.dim * dtype.size()),
        };
        self.gathers.push(Gather {
            dtype,
            batch: new.batch,
            heads: new.heads,
            dim: new.dim,
            past_rows: past.map_or(0, |(_, past)| past.rows),
            new_rows: new.rows,
            past: past.map(|(input, past)| (Place::input(input), past.strides)),
            new: (place, new.strides),
            add,
            to: (to, strides),
        });
        // Where the copy is only the present output, the input is as good, and need not be waited for.
        if in_place { (place, new.strides) } else { (to, strides) }
    }
}

/// `-1`, or absent, is without limit.
fn reach(size: Option<i64>, attribute: &'static str) -> Result<Option<u32>, Reason> {
    match size {
        None | Some(-1) => Ok(None),
        Some(size) => u32::try_from(size)
            .map(Some)
            .map_err(|_| value(attribute, size, "it must be from 0 to 4294967295, or -1 for no limit")),
    }
}

pub(super) fn past_rows(past: Named<'_>, new: &Rows) -> Result<Rows, Reason> {
    let rows = past.bhsd()?;
    past.must_be("batch", rows.batch, new.batch, "as in the new rows")?;
    past.must_be("heads", rows.heads, new.heads, "as in the new rows")?;
    past.must_be("the head size", rows.dim, new.dim, "as in the new rows")?;
    Ok(rows)
}

/// A mask of any rank, right-aligned to `[batch, heads, queries, keys]`.
fn bias(mask: Named<'_>, shape: &Shape) -> Result<Bias, Reason> {
    let mut dims = [1; 4];
    let extents = mask.shape();
    dims[4 - extents.len()..].copy_from_slice(extents);
    let kind = match mask.layout.element.dtype() {
        Some(dtype) => BiasKind::Additive(dtype),
        None => BiasKind::Boolean,
    };
    Bias::broadcast(kind, dims, shape, BroadcastRule::Onnx).map_err(Reason::Problem)
}
