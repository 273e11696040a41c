//! From a file to a problem and the bytes of its operands.

use std::collections::HashMap;

use anyhow::{Context, bail, ensure};
use clap::ValueEnum;
use cuattn::reference::{self, HostOperands};
use cuattn::{Alignment, Bias, BiasKind, BroadcastRule, DType, IndexType, KeyLengths, Mask, Problem, Shape};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};

use crate::arguments::{Arguments, Causal, FileLayout};

/// A problem and its operands, as they are in the file.
pub(crate) struct Input<'a> {
    pub(crate) problem: Problem,
    pub(crate) layout: FileLayout,
    pub(crate) operands: HostOperands<'a>,
    /// Results to compare with, in the order of `[batch, heads, tokens, dim]`.
    pub(crate) o_ref: Option<Vec<f64>>,
    /// `[batch, heads, tokens]`.
    pub(crate) lse_ref: Option<Vec<f64>>,
    /// Tensors that nothing was made of.
    pub(crate) ignored: Vec<String>,
}

const KNOWN: [&str; 8] = ["q", "k", "v", "bias", "key_lengths", "sinks", "o_ref", "lse_ref"];

impl<'a> Input<'a> {
    /// Reads `file`, the content of a safetensors file.
    pub(crate) fn parse(file: &'a [u8], arguments: &Arguments) -> anyhow::Result<Self> {
        let tensors = SafeTensors::deserialize(file).context("this is no safetensors file")?;
        let (_, header) = SafeTensors::read_metadata(file)?;
        let metadata = header.metadata().clone().unwrap_or_default();
        let optional = |name: &str| tensors.tensor(name).ok();
        let needed = |name: &str| tensors.tensor(name).with_context(|| format!("the file holds no tensor `{name}`"));

        let layout = layout(arguments, &metadata)?;
        let (q, k, v) = (needed("q")?, needed("k")?, needed("v")?);
        let dtype = dtype("q", &q)?;
        for (name, tensor) in [("k", &k), ("v", &v)] {
            ensure!(
                tensor.dtype() == q.dtype(),
                "{name} is {:?} and q is {:?}: they must be alike",
                tensor.dtype(),
                q.dtype()
            );
        }
        let (q_dims, k_dims, v_dims) = (dims("q", &q, layout)?, dims("k", &k, layout)?, dims("v", &v, layout)?);
        let [batch, q_heads, q_len, head_dim] = q_dims;
        let [_, kv_heads, kv_len, _] = k_dims;
        ensure!(k_dims == [batch, kv_heads, kv_len, head_dim], "k is {k_dims:?}, which does not go with q {q_dims:?}");
        ensure!(v_dims[..3] == k_dims[..3], "v is {v_dims:?}, which does not go with k {k_dims:?}");
        let shape = Shape { batch, q_heads, kv_heads, q_len, kv_len, head_dim, v_head_dim: v_dims[3] };
        let mut problem = match layout {
            FileLayout::Bhsd => Problem::bhsd(shape, dtype),
            FileLayout::Bshd => Problem::bshd(shape, dtype),
        };
        problem.mask = mask(arguments, &metadata, &shape)?;
        problem.softcap = arguments.softcap;
        if let Some(scale) = arguments.scale.map(Ok).or_else(|| metadata.get("scale").map(|text| text.parse::<f32>())) {
            problem.scale = scale.context("the file's metadata `scale` is no number")?;
        }
        problem.wants_log_sum_exp = true;

        let mut operands = HostOperands { q: q.data(), k: k.data(), v: v.data(), ..HostOperands::default() };
        if let Some(bias) = optional("bias") {
            problem.mask.bias = Some(self::bias(&bias, &shape, dtype)?);
            operands.bias = Some(bias.data());
        }
        if let Some(lengths) = optional("key_lengths") {
            ensure!(lengths.shape() == [batch], "key_lengths is {:?}, where [{batch}] belongs", lengths.shape());
            problem.mask.key_lengths = KeyLengths::PerBatch(match lengths.dtype() {
                Dtype::I32 => IndexType::I32,
                Dtype::I64 => IndexType::I64,
                other => bail!("key_lengths is {other:?}: it must be I32 or I64"),
            });
            operands.key_lengths = Some(lengths.data());
        }
        if let Some(sinks) = optional("sinks") {
            let fits = sinks.shape() == [q_heads] && sinks.dtype() == Dtype::F32;
            ensure!(fits, "sinks is {:?} {:?}, where F32 [{q_heads}] belongs", sinks.dtype(), sinks.shape());
            problem.has_sinks = true;
            operands.sinks = Some(sinks.data());
        }
        let o_ref =
            optional("o_ref").map(|o| by_head(&o, layout, [batch, q_heads, q_len, shape.v_head_dim])).transpose()?;
        let lse_ref = optional("lse_ref").map(|lse| flat("lse_ref", &lse, &[batch, q_heads, q_len])).transpose()?;
        let ignored = tensors.names().into_iter().filter(|name| !KNOWN.contains(name)).map(str::to_owned).collect();
        Ok(Self { problem, layout, operands, o_ref, lse_ref, ignored })
    }
}

fn layout(arguments: &Arguments, metadata: &HashMap<String, String>) -> anyhow::Result<FileLayout> {
    match (arguments.layout, metadata.get("layout")) {
        (Some(layout), _) => Ok(layout),
        (None, None) => Ok(FileLayout::Bhsd),
        (None, Some(text)) => FileLayout::from_str(text, true).map_err(|_| {
            anyhow::anyhow!("the file's metadata says layout `{text}`, which is neither BHSD nor BSHD: give --layout")
        }),
    }
}

fn mask(arguments: &Arguments, metadata: &HashMap<String, String>, shape: &Shape) -> anyhow::Result<Mask> {
    let causal = match (arguments.causal, metadata.get("causal").map(String::as_str)) {
        (Some(causal), _) => causal,
        (None, None | Some("false")) => Causal::Off,
        (None, Some("top-left")) => Causal::TopLeft,
        (None, Some("bottom-right")) => Causal::BottomRight,
        // The two alignments are one where there are as many rows as keys.
        (None, Some("true")) if shape.q_len == shape.kv_len => Causal::TopLeft,
        (None, Some("true")) => bail!(
            "the file says that attention is causal but not how {} rows stand beside {} keys: \
             give --causal top-left (ONNX) or --causal bottom-right (FlashAttention)",
            shape.q_len,
            shape.kv_len
        ),
        (None, Some(text)) => {
            bail!("the file's metadata says causal `{text}`, which means nothing here: give --causal")
        }
    };
    let mut mask = match causal {
        Causal::Off => Mask::none(),
        Causal::TopLeft => Mask::causal(Alignment::TopLeft),
        Causal::BottomRight => Mask::causal(Alignment::BottomRight),
    };
    mask.window = arguments.window.unwrap_or_default();
    Ok(mask)
}

fn dtype(name: &str, tensor: &TensorView<'_>) -> anyhow::Result<DType> {
    match tensor.dtype() {
        Dtype::F32 => Ok(DType::F32),
        Dtype::F16 => Ok(DType::F16),
        Dtype::BF16 => Ok(DType::Bf16),
        other => bail!("{name} is {other:?}: it must be F32, F16 or BF16"),
    }
}

/// Extents as `[batch, heads, tokens, dim]`.
fn dims(name: &str, tensor: &TensorView<'_>, layout: FileLayout) -> anyhow::Result<[usize; 4]> {
    let [batch, second, third, dim] = *tensor.shape() else {
        bail!("{name} is {:?}: it must have four dimensions", tensor.shape());
    };
    Ok(match layout {
        FileLayout::Bhsd => [batch, second, third, dim],
        FileLayout::Bshd => [batch, third, second, dim],
    })
}

fn bias(tensor: &TensorView<'_>, shape: &Shape, q: DType) -> anyhow::Result<Bias> {
    let kind = match tensor.dtype() {
        Dtype::BOOL | Dtype::U8 => BiasKind::Boolean,
        _ => BiasKind::Additive(dtype("bias", tensor)?),
    };
    if let BiasKind::Additive(dtype) = kind {
        ensure!(dtype == q || dtype == DType::F32, "bias is {dtype}: it must be {q}, as q is, or f32");
    }
    let given = tensor.shape();
    ensure!(given.len() <= 4, "bias is {given:?}: it has more than four dimensions");
    // As numpy does, dimensions are lined up from the last one.
    let mut dims = [1; 4];
    dims[4 - given.len()..].copy_from_slice(given);
    Ok(Bias::broadcast(kind, dims, shape, BroadcastRule::Numpy)?)
}

fn flat(name: &str, tensor: &TensorView<'_>, want: &[usize]) -> anyhow::Result<Vec<f64>> {
    ensure!(tensor.shape() == want, "{name} is {:?}, where {want:?} belongs", tensor.shape());
    Ok(reference::decode(tensor.data(), dtype(name, tensor)?))
}

/// The values of `o_ref` in the order of `[batch, heads, tokens, dim]`.
fn by_head(tensor: &TensorView<'_>, layout: FileLayout, want: [usize; 4]) -> anyhow::Result<Vec<f64>> {
    let dtype = dtype("o_ref", tensor)?;
    let [batch, heads, tokens, dim] = want;
    let dims = dims("o_ref", tensor, layout)?;
    ensure!(dims == want, "o_ref is {dims:?}, where {want:?} belongs");
    let shape =
        Shape { batch, q_heads: heads, kv_heads: heads, q_len: tokens, kv_len: 0, head_dim: dim, v_head_dim: dim };
    let stored = match layout {
        FileLayout::Bhsd => Problem::bhsd(shape, dtype),
        FileLayout::Bshd => Problem::bshd(shape, dtype),
    };
    Ok(reference::HostOutput::read_o(&stored, tensor.data())?)
}
