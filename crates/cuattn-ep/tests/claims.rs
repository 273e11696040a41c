//! What is not claimed, and what is said of it. Every text is written out: it is what a user sees.

use cuattn_ep::{Device, ElementType, InputInfo, Node, Registry};

use ElementType::{Bf16, Bool, F16, F32, F64, I32, I64};

type Inputs = Vec<Option<InputInfo>>;

fn tensor(element: ElementType, shape: &[usize]) -> Option<InputInfo> {
    Some(InputInfo::new(element, shape))
}

/// Q, K and V of a plain problem: 2 sequences, 4 heads, 3 queries, 5 keys, heads of 8.
fn qkv() -> Inputs {
    let kv = || tensor(F32, &[2, 4, 5, 8]);
    vec![tensor(F32, &[2, 4, 3, 8]), kv(), kv()]
}

/// The same in three dimensions.
fn qkv_3d() -> Inputs {
    let kv = || tensor(F32, &[2, 5, 32]);
    vec![tensor(F32, &[2, 3, 32]), kv(), kv()]
}

/// Inputs with one put at an index.
fn with(mut inputs: Inputs, index: usize, input: Option<InputInfo>) -> Inputs {
    if inputs.len() <= index {
        inputs.resize(index + 1, None);
    }
    inputs[index] = input;
    inputs
}

fn onnx() -> Node {
    Node::new("", "Attention", 24)
}

fn windowed() -> Node {
    Node::new("", "Attention", 25)
}

fn heads(node: Node) -> Node {
    node.attribute("q_num_heads", 4i64).attribute("kv_num_heads", 4i64)
}

fn nxrt() -> Node {
    Node::new("pkg.nxrt", "Attention", 1).attribute("num_heads", 4i64)
}

fn varlen() -> Node {
    Node::new("pkg.nxrt", "PackedVarlenAttention", 1).attribute("num_heads", 4i64)
}

/// Two packed sequences of 9 tokens together.
fn tokens() -> Inputs {
    let packed = || tensor(F32, &[9, 4, 8]);
    vec![packed(), packed(), packed(), tensor(I32, &[3]), tensor(I32, &[3])]
}

fn multi() -> Node {
    Node::new("com.microsoft", "MultiHeadAttention", 1).attribute("num_heads", 4i64)
}

/// The refused combinations: node, inputs, and the reason.
#[rustfmt::skip]
fn refused() -> Vec<(Node, Inputs, &'static str)> {
    let past = |element, rows| tensor(element, &[2, 4, rows, 8]);
    let unknown_rank = |element| Some(InputInfo::of_type(element));
    vec![
        // What is not here at all.
        (
            Node::new("", "LayerNormalization", 17), qkv(),
            "there is no kernel for ai.onnx::LayerNormalization: leave the node to another execution provider",
        ),
        (
            Node::new("com.microsoft", "Attention", 1), qkv(),
            "there is no kernel for com.microsoft::Attention: leave the node to another execution provider",
        ),
        (
            Node::new("com.microsoft", "GroupQueryAttention", 1), qkv(),
            "there is no kernel for com.microsoft::GroupQueryAttention: leave the node to another execution provider",
        ),
        (
            Node::new("", "RotaryEmbedding", 23), qkv(),
            "there is no kernel for ai.onnx::RotaryEmbedding: leave the node to another execution provider",
        ),
        (
            Node::new("", "Attention", 22), qkv(),
            "ai.onnx::Attention is known in versions 23, 24, 25, and this is version 22: convert the model to one of those opsets",
        ),
        (
            Node::new("", "Attention", 26), qkv(),
            "ai.onnx::Attention is known in versions 23, 24, 25, and this is version 26: convert the model to one of those opsets",
        ),
        (
            Node::new("pkg.nxrt", "Attention", 2), qkv(),
            "pkg.nxrt::Attention is known in versions 1, and this is version 2: convert the model to one of those opsets",
        ),
        // Attributes.
        (
            onnx().attribute("sliding", 3i64), qkv(),
            "attribute `sliding` is not known for this operator and version, so what it asks for cannot be done: remove it, or leave the node to another execution provider",
        ),
        (
            onnx().attribute("left_window_size", 3i64), qkv(),
            "attribute `left_window_size` is not known for this operator and version, so what it asks for cannot be done: remove it, or leave the node to another execution provider",
        ),
        (onnx().attribute("is_causal", 2i64), qkv(), "attribute `is_causal` is 2: it must be 0 or 1"),
        (onnx().attribute("is_causal", 1.0f32), qkv(), "attribute `is_causal` is a number, and must be an integer"),
        (onnx().attribute("scale", 1i64), qkv(), "attribute `scale` is an integer, and must be a number"),
        (onnx().attribute("scale", "one"), qkv(), "attribute `scale` is text, and must be a number"),
        (
            onnx().attribute("scale", -0.5f32), qkv(),
            "attribute `scale` is -0.5: it must be a finite number that is not negative, as its square root goes to Q and K",
        ),
        (
            onnx().attribute("scale", f32::NAN), qkv(),
            "attribute `scale` is NaN: it must be a finite number that is not negative, as its square root goes to Q and K",
        ),
        (
            onnx().attribute("scale", f32::INFINITY), qkv(),
            "attribute `scale` is inf: it must be a finite number that is not negative, as its square root goes to Q and K",
        ),
        (
            onnx().attribute("softcap", -1.0f32), qkv(),
            "attribute `softcap` is -1: it must be a positive finite number, or 0 for no cap",
        ),
        (
            onnx().attribute("softcap", f32::NAN), qkv(),
            "attribute `softcap` is NaN: it must be a positive finite number, or 0 for no cap",
        ),
        (
            onnx().attribute("qk_matmul_output_mode", 4i64), qkv(),
            "attribute `qk_matmul_output_mode` is 4: it must be 0, 1, 2 or 3",
        ),
        (
            onnx().attribute("qk_matmul_output_mode", -1i64), qkv(),
            "attribute `qk_matmul_output_mode` is -1: it must be 0, 1, 2 or 3",
        ),
        (
            onnx().attribute("softmax_precision", 7i64), qkv(),
            "attribute `softmax_precision` is 7: it must be 1, 10, 11 or 16: float32, float16, float64 or bfloat16",
        ),
        (
            windowed().attribute("left_window_size", -2i64), qkv(),
            "attribute `left_window_size` is -2: it must be from 0 to 4294967295, or -1 for no limit",
        ),
        (
            windowed().attribute("right_window_size", 1i64 << 40), qkv(),
            "attribute `right_window_size` is 1099511627776: it must be from 0 to 4294967295, or -1 for no limit",
        ),
        (onnx().attribute("q_num_heads", 0i64), qkv(), "attribute `q_num_heads` is 0: there must be at least 1 head"),
        (
            onnx().attribute("kv_num_heads", -1i64), qkv(),
            "attribute `kv_num_heads` is -1: there must be at least 1 head",
        ),
        (
            onnx().attribute("q_num_heads", 6i64).attribute("kv_num_heads", 4i64), qkv_3d(),
            "attribute `q_num_heads` is 6: it must be a multiple of kv_num_heads, 4",
        ),
        (
            onnx(), qkv_3d(),
            "attribute `q_num_heads` is missing: inputs of 3 dimensions do not say how many heads there are; add it, or use 4 dimensions",
        ),
        (
            onnx().attribute("q_num_heads", 4i64), qkv_3d(),
            "attribute `kv_num_heads` is missing: inputs of 3 dimensions do not say how many heads there are; add it, or use 4 dimensions",
        ),
        (
            onnx().attribute("q_num_heads", 8i64), qkv(),
            "input `Q` has shape [2, 4, 3, 8]: heads is 4, and must be 8, as `q_num_heads` says",
        ),
        (
            heads(onnx()).attribute("kv_num_heads", 2i64), qkv(),
            "input `K` has shape [2, 4, 5, 8]: heads is 4, and must be 2, as `kv_num_heads` says",
        ),
        // Types.
        (
            onnx(), vec![tensor(F64, &[2, 4, 3, 8]), tensor(F64, &[2, 4, 5, 8]), tensor(F64, &[2, 4, 5, 8])],
            "input `Q` is float64, and must be float32, float16 or bfloat16: there are no float64 kernels; convert the model, or leave the node to the CPU",
        ),
        (
            onnx(), vec![tensor(I32, &[2, 4, 3, 8]), tensor(I32, &[2, 4, 5, 8]), tensor(I32, &[2, 4, 5, 8])],
            "input `Q` is int32, and must be float32, float16 or bfloat16",
        ),
        (
            onnx(), with(qkv(), 0, tensor(ElementType::Other(17), &[2, 4, 3, 8])),
            "input `Q` is float8e4m3fn, and must be float32, float16 or bfloat16",
        ),
        (
            onnx(), with(qkv(), 1, tensor(F16, &[2, 4, 5, 8])),
            "input `K` is float16, and must be float32, the type of `Q`: mixed types are not supported",
        ),
        (
            onnx(), with(qkv(), 2, tensor(F16, &[2, 4, 5, 8])),
            "input `V` is float16, and must be float32, the type of `Q`: mixed types are not supported",
        ),
        (
            onnx(), with(qkv(), 3, tensor(F16, &[3, 5])),
            "input `attn_mask` is float16, and must be float32 or bool, as biases are of the type of `Q`, float32, or bool; cast it",
        ),
        (
            onnx(), with(qkv(), 3, tensor(I64, &[3, 5])),
            "input `attn_mask` is int64, and must be float32 or bool, as biases are of the type of `Q`, float32, or bool; cast it",
        ),
        (
            onnx(), with(qkv(), 3, tensor(ElementType::Other(2), &[3, 5])),
            "input `attn_mask` is uint8, and must be float32 or bool, as biases are of the type of `Q`, float32, or bool; cast it",
        ),
        (
            onnx(), with(vec![tensor(F16, &[2, 4, 3, 8]), tensor(F16, &[2, 4, 5, 8]), tensor(F16, &[2, 4, 5, 8])], 3, tensor(Bf16, &[3, 5])),
            "input `attn_mask` is bfloat16, and must be float16 or float32 or bool, as biases are of the type of `Q`, float32, or bool; cast it",
        ),
        (
            onnx(), with(with(qkv(), 4, past(F16, 2)), 5, past(F32, 2)),
            "input `past_key` is float16, and must be float32, the type of `Q`: mixed types are not supported",
        ),
        (onnx(), with(qkv(), 6, tensor(I32, &[2])), "input `nonpad_kv_seqlen` is int32, and must be int64"),
        // Which inputs and outputs there are.
        (onnx(), vec![], "input `Q` is missing: there is nothing to compute without it"),
        (onnx(), vec![tensor(F32, &[2, 4, 3, 8])], "input `K` is missing: there is nothing to compute without it"),
        (
            onnx(), vec![tensor(F32, &[2, 4, 3, 8]), tensor(F32, &[2, 4, 5, 8])],
            "input `V` is missing: there is nothing to compute without it",
        ),
        (
            onnx(), with(qkv(), 4, past(F32, 2)),
            "input `past_value` is missing: `past_key` is given, and keys go with values",
        ),
        (
            onnx(), with(qkv(), 5, past(F32, 2)),
            "input `past_key` is missing: `past_value` is given, and keys go with values",
        ),
        (
            onnx(), with(with(with(qkv(), 4, past(F32, 2)), 5, past(F32, 2)), 6, tensor(I64, &[2])),
            "`past_key` and `nonpad_kv_seqlen` are both given: one means that new keys are appended here, the other that they are in `K` already; use one",
        ),
        (
            Node::new("", "Attention", 23), with(qkv(), 6, tensor(I64, &[2])),
            "input `number 6` is given, which is not supported in this version of the operator: remove it, or convert the model to a newer opset",
        ),
        (
            onnx(), with(qkv(), 7, tensor(F32, &[2])),
            "input `number 7` is given, which is not supported in this version of the operator: remove it, or convert the model to a newer opset",
        ),
        (
            onnx().outputs(&[true, false, false, false, true]), qkv(),
            "output `number 4` is used, which is not supported in this version of the operator: remove it, or convert the model to a newer opset",
        ),
        // Ranks and extents.
        (
            onnx(), with(qkv(), 0, tensor(F32, &[4, 3, 8, 2, 2])),
            "input `Q` has 5 dimensions, and must have 3, [batch, rows, heads * dim], or 4, [batch, heads, rows, dim]",
        ),
        (
            onnx(), with(qkv(), 1, tensor(F32, &[2, 5, 32])),
            "input `K` has 3 dimensions, and must have as many as `Q` has",
        ),
        (
            heads(onnx()), with(qkv_3d(), 2, tensor(F32, &[2, 4, 5, 8])),
            "input `V` has 4 dimensions, and must have as many as `Q` has",
        ),
        (
            onnx(), with(with(qkv(), 4, tensor(F32, &[2, 2, 8])), 5, past(F32, 2)),
            "input `past_key` has 3 dimensions, and must have 4, [batch, kv_heads, past, dim]",
        ),
        (
            onnx(), with(qkv(), 3, tensor(F32, &[1, 2, 4, 3, 5])),
            "input `attn_mask` has 5 dimensions, and must have 1 to 4, and broadcast to [batch, heads, queries, keys]",
        ),
        (
            onnx(), with(qkv(), 6, tensor(I64, &[2, 1])),
            "input `nonpad_kv_seqlen` has 2 dimensions, and must have 1, [batch]",
        ),
        (
            onnx(), with(qkv(), 1, tensor(F32, &[3, 4, 5, 8])),
            "input `K` has shape [3, 4, 5, 8]: batch is 3, and must be 2, as in `Q`",
        ),
        (
            onnx(), with(qkv(), 1, tensor(F32, &[2, 4, 5, 6])),
            "input `K` has shape [2, 4, 5, 6]: the head size is 6, and must be 8, as in `Q`",
        ),
        (
            onnx(), with(qkv(), 2, tensor(F32, &[2, 4, 6, 8])),
            "input `V` has shape [2, 4, 6, 8]: rows is 6, and must be 5, as in `K`",
        ),
        (
            onnx(), with(qkv(), 2, tensor(F32, &[2, 2, 5, 8])),
            "input `V` has shape [2, 2, 5, 8]: heads is 2, and must be 4, as in `K`",
        ),
        (
            onnx(), vec![tensor(F32, &[2, 4, 3, 8]), tensor(F32, &[2, 3, 5, 8]), tensor(F32, &[2, 3, 5, 8])],
            "the node is not a legal attention problem; refused:\n  * q_heads 4 is not a multiple of kv_heads 3: every key head must serve the same number of query heads; check that the two are not swapped, or repeat key heads until they divide",
        ),
        (
            onnx(), vec![tensor(F32, &[2, 4, 3, 0]), tensor(F32, &[2, 4, 5, 0]), tensor(F32, &[2, 4, 5, 8])],
            "the node is not a legal attention problem; refused:\n  * head_dim is 0: there is nothing to multiply; give the number of elements of one vector, at least 1",
        ),
        (
            heads(onnx()), with(qkv_3d(), 0, tensor(F32, &[2, 3, 30])),
            "input `Q` has shape [2, 3, 30]: the last dimension is 30, and must be a multiple of `q_num_heads`, 4",
        ),
        (
            onnx(), with(with(qkv(), 4, tensor(F32, &[1, 4, 2, 8])), 5, past(F32, 2)),
            "input `past_key` has shape [1, 4, 2, 8]: batch is 1, and must be 2, as in the new rows",
        ),
        (
            onnx(), with(with(qkv(), 4, tensor(F32, &[2, 2, 2, 8])), 5, past(F32, 2)),
            "input `past_key` has shape [2, 2, 2, 8]: heads is 2, and must be 4, as in the new rows",
        ),
        (
            onnx(), with(with(qkv(), 4, past(F32, 2)), 5, past(F32, 3)),
            "input `past_value` has shape [2, 4, 3, 8]: rows is 3, and must be 2, as in `past_key`",
        ),
        (
            onnx(), with(with(qkv(), 4, tensor(F32, &[2, 4, 2, 6])), 5, past(F32, 2)),
            "input `past_key` has shape [2, 4, 2, 6]: the head size is 6, and must be 8, as in the new rows",
        ),
        (
            onnx(), with(qkv(), 3, tensor(F32, &[3, 6])),
            "the node is not a legal attention problem; refused:\n  * the bias has 6 along its key dimension, where the problem has 5: a bias of [1, 1, 3, 6] does not broadcast to [batch, q_heads, q_len, kv_len]; make it at most that; what is missing is masked",
        ),
        (
            onnx(), with(qkv(), 3, tensor(Bool, &[2, 5])),
            "the node is not a legal attention problem; refused:\n  * the bias has 2 along its query dimension, where the problem has 3: a bias of [1, 1, 2, 5] does not broadcast to [batch, q_heads, q_len, kv_len]; make it that, or 1 to use one plane for all",
        ),
        (
            onnx(), with(qkv(), 3, tensor(F32, &[3, 3, 5])),
            "the node is not a legal attention problem; refused:\n  * the bias has 3 along its head dimension, where the problem has 4: a bias of [1, 3, 3, 5] does not broadcast to [batch, q_heads, q_len, kv_len]; make it that, or 1 to use one plane for all",
        ),
        (
            onnx(), with(qkv(), 3, tensor(F32, &[3, 1, 3, 5])),
            "the node is not a legal attention problem; refused:\n  * the bias has 3 along its batch dimension, where the problem has 2: a bias of [3, 1, 3, 5] does not broadcast to [batch, q_heads, q_len, kv_len]; make it that, or 1 to use one plane for all",
        ),
        (
            onnx(), with(qkv(), 6, tensor(I64, &[3])),
            "input `nonpad_kv_seqlen` has shape [3]: batch is 3, and must be 2, as in `Q`",
        ),
        // pkg.nxrt::Attention.
        (
            Node::new("pkg.nxrt", "Attention", 1), qkv(),
            "attribute `num_heads` is missing: give the number of query heads",
        ),
        (
            nxrt().attribute("kv_num_heads", 3i64), qkv(),
            "attribute `num_heads` is 4: it must be a multiple of kv_num_heads, 3",
        ),
        (nxrt().attribute("scale", f32::NAN), qkv(), "attribute `scale` is NaN: it must be a finite number"),
        (
            nxrt().attribute("is_causal", 1i64), qkv(),
            "attribute `is_causal` is not known for this operator and version, so what it asks for cannot be done: remove it, or leave the node to another execution provider",
        ),
        (nxrt(), qkv_3d(), "input `query` has 3 dimensions, and must have 4, [batch, heads, rows, dim]"),
        (
            nxrt(), with(qkv(), 0, tensor(F32, &[2, 2, 3, 8])),
            "input `query` has shape [2, 2, 3, 8]: heads is 2, and must be 4, as `num_heads` says",
        ),
        (
            nxrt().attribute("kv_num_heads", 2i64), qkv(),
            "input `key` has shape [2, 4, 5, 8]: heads is 4, and must be 2, as `kv_num_heads` says",
        ),
        (
            nxrt(), with(qkv(), 3, tensor(Bool, &[3, 5])),
            "input `mask` is bool, and must be float32: this operator's mask is added to the scores",
        ),
        (
            nxrt(), with(qkv(), 3, tensor(F32, &[5])),
            "input `mask` has 1 dimensions, and must have 2 to 4: [queries, keys], [planes, queries, keys] or [B, H, queries, keys]",
        ),
        (
            nxrt(), with(qkv(), 3, tensor(F32, &[3, 1])),
            "input `mask` has shape [3, 1]: keys is 1, and must be 5, as in `key`",
        ),
        (
            nxrt(), with(qkv(), 3, tensor(F32, &[3, 3, 5])),
            "input `mask` has shape [3, 3, 5]: planes is 3, and must be 1, 2 (one a sequence) or 8 (one a head)",
        ),
        (
            nxrt(), with(qkv(), 3, tensor(F32, &[2, 3, 3, 5])),
            "input `mask` has shape [2, 3, 3, 5]: heads is 3, and must be 1 or 4",
        ),
        // com.microsoft::MultiHeadAttention.
        (
            Node::new("com.microsoft", "MultiHeadAttention", 1), qkv_3d(),
            "attribute `num_heads` is missing: give the number of heads",
        ),
        (
            multi().attribute("mask_filter_value", f32::NAN), qkv_3d(),
            "attribute `mask_filter_value` is NaN: it must be a number",
        ),
        (multi().attribute("unidirectional", 3i64), qkv_3d(), "attribute `unidirectional` is 3: it must be 0 or 1"),
        (
            multi().outputs(&[true, false, false, true]), qkv_3d(),
            "output `qk` is used, which is not supported for this operator: use ai.onnx::Attention, whose qk_matmul_output is",
        ),
        (
            multi(), with(qkv_3d(), 0, tensor(F64, &[2, 3, 32])),
            "input `query` is float64, and must be float32, float16 or bfloat16: there are no float64 kernels; convert the model, or leave the node to the CPU",
        ),
        (multi(), vec![tensor(F32, &[2, 3, 32])], "input `key` is missing: `query` is not packed"),
        (
            multi(), vec![tensor(F32, &[2, 3, 32]), tensor(F32, &[2, 5, 32])],
            "input `value` is missing: `key` is not packed",
        ),
        (
            multi(), with(qkv_3d(), 2, tensor(F32, &[2, 4, 5, 8])),
            "input `value` has 4 dimensions, and must have as many as `key` has",
        ),
        (
            multi(), with(qkv_3d(), 0, tensor(F32, &[2, 3, 4, 3, 8])),
            "input `key` is given, which is not supported with packed queries, keys and values: leave it away",
        ),
        (
            multi(), vec![tensor(F32, &[2, 3, 4, 2, 8])],
            "input `query` has shape [2, 3, 4, 2, 8]: the dimension before the last is 2, and must be 3, one for each tensor that is packed",
        ),
        (
            multi(), vec![tensor(F32, &[2, 3, 2, 3, 8])],
            "input `query` has shape [2, 3, 2, 3, 8]: heads is 2, and must be 4, as `num_heads` says",
        ),
        (
            multi(), vec![tensor(F32, &[2, 3, 32]), tensor(F32, &[2, 5, 4, 2, 8]), tensor(F32, &[2, 5, 32])],
            "input `value` is given, which is not supported with packed keys and values: leave it away",
        ),
        (
            multi(), with(qkv_3d(), 3, tensor(F32, &[90])),
            "input `bias` has shape [90]: length is 90, and must be 96, the hidden sizes of query, key and value together",
        ),
        (
            multi(), with(qkv_3d(), 3, tensor(F16, &[96])),
            "input `bias` is float16, and must be float32, the type of `query`: mixed types are not supported",
        ),
        (multi(), with(qkv_3d(), 4, tensor(I64, &[2, 5])), "input `key_padding_mask` is int64, and must be int32"),
        (
            multi(), with(qkv_3d(), 4, tensor(I32, &[8])),
            "input `key_padding_mask` is given, which is not supported in the form [3 * batch + 2] of offsets: use [batch] lengths or a [batch, keys] mask",
        ),
        (
            multi(), with(qkv_3d(), 4, tensor(I32, &[2, 4])),
            "input `key_padding_mask` has shape [2, 4]: keys is 4, and must be 5, past and new keys together",
        ),
        (
            multi(), with(qkv_3d(), 4, tensor(I32, &[2, 2, 5])),
            "input `key_padding_mask` has shape [2, 2, 5]: queries is 2, and must be 3, as in `query`",
        ),
        (
            multi(), with(qkv_3d(), 5, tensor(F32, &[2, 3, 3, 5])),
            "the node is not a legal attention problem; refused:\n  * the bias has 3 along its head dimension, where the problem has 4: a bias of [2, 3, 3, 5] does not broadcast to [batch, q_heads, q_len, kv_len]; make it that, or 1 to use one plane for all",
        ),
        (
            multi(), with(qkv_3d(), 5, tensor(F32, &[3, 5])),
            "input `attention_bias` has 2 dimensions, and must have 4, [batch or 1, heads or 1, queries, keys]",
        ),
        (multi(), with(qkv_3d(), 6, past(F32, 2)), "input `past_value` is missing: past keys go with past values"),
        (
            multi(), with(qkv_3d(), 8, tensor(I32, &[1])),
            "input `past_sequence_length` is given, which is not supported as it makes past and present one buffer: use past_key and past_value alone, or ai.onnx::Attention",
        ),
        (
            multi(), with(qkv_3d(), 9, tensor(I32, &[2, 1, 4])),
            "input `cache_indirection` is given, which is not supported as there is no beam search: use past_key and past_value alone, or ai.onnx::Attention",
        ),
        (
            multi(), with(with(vec![tensor(F32, &[2, 3, 32]), past(F32, 5), past(F32, 5)], 6, past(F32, 2)), 7, past(F32, 2)),
            "input `past_key` is given, which is not supported with keys of [batch, heads, rows, dim]: they are past and new keys already",
        ),
        (
            multi(), with(vec![tensor(F32, &[2, 3, 32]), past(F32, 5), past(F32, 5)], 3, tensor(F32, &[96])),
            "input `bias` is given, which is not supported with keys of [batch, heads, rows, dim]: add it where the keys are made",
        ),
        // pkg.nxrt::PackedVarlenAttention.
        (
            Node::new("pkg.nxrt", "PackedVarlenAttention", 1), tokens(),
            "attribute `num_heads` is missing: give the number of query heads",
        ),
        (
            varlen().attribute("causal", 1i64), tokens(),
            "attribute `causal` is not known for this operator and version, so what it asks for cannot be done: remove it, or leave the node to another execution provider",
        ),
        (
            varlen().attribute("softcap", -2.0f32), tokens(),
            "attribute `softcap` is -2: it must be a positive finite number, or 0 for no cap",
        ),
        (
            varlen().attribute("kv_num_heads", 3i64), tokens(),
            "attribute `num_heads` is 4: it must be a multiple of kv_num_heads, 3",
        ),
        (
            varlen(), with(tokens(), 0, tensor(F32, &[1, 9, 4, 8])),
            "input `query` has 4 dimensions, and must have 2, [tokens, heads * dim], or 3, [tokens, heads, dim]",
        ),
        (
            varlen(), with(tokens(), 0, tensor(F32, &[9, 30])),
            "input `query` has shape [9, 30]: the last dimension is 30, and must be a multiple of `num_heads`, 4",
        ),
        (
            varlen(), with(tokens(), 0, tensor(F32, &[9, 2, 8])),
            "input `query` has shape [9, 2, 8]: heads is 2, and must be 4, as `num_heads` says",
        ),
        (
            varlen(), with(tokens(), 1, tensor(F32, &[9, 4, 6])),
            "input `key` has shape [9, 4, 6]: the head size is 6, and must be 8, as in `query`",
        ),
        (
            varlen(), with(tokens(), 2, tensor(F32, &[8, 4, 8])),
            "input `value` has shape [8, 4, 8]: tokens is 8, and must be 9, as in `key`",
        ),
        (varlen(), with(tokens(), 3, tensor(I64, &[3])), "input `cu_seqlens_q` is int64, and must be int32"),
        (
            varlen(), with(tokens(), 3, tensor(I32, &[0])),
            "input `cu_seqlens_q` has shape [0]: length is 0, and must be at least 1: one more than there are sequences",
        ),
        (
            varlen(), with(tokens(), 4, tensor(I32, &[4])),
            "input `cu_seqlens_kv` has shape [4]: length is 4, and must be 3, as in `cu_seqlens_q`",
        ),
        (varlen(), with(tokens(), 4, None), "input `cu_seqlens_kv` is missing: it says where each sequence begins"),
        (
            varlen(), with(with(tokens(), 3, tensor(I32, &[1])), 4, tensor(I32, &[1])),
            "the node is not a legal attention problem; refused:\n  * there are 9 query tokens but no sequence (batch is 0): no token would be written; set batch, or no tokens",
        ),
        // Types alone are enough, where no shape is known.
        (
            onnx(), vec![unknown_rank(F64), unknown_rank(F64), unknown_rank(F64)],
            "input `Q` is float64, and must be float32, float16 or bfloat16: there are no float64 kernels; convert the model, or leave the node to the CPU",
        ),
        (
            onnx(), vec![unknown_rank(F32), unknown_rank(F32), unknown_rank(F16)],
            "input `V` is float16, and must be float32, the type of `Q`: mixed types are not supported",
        ),
    ]
}

#[test]
fn every_refusal_says_why() {
    let registry = Registry::standard();
    let cases = refused();
    assert!(cases.len() >= 60);
    let mut wrong = Vec::new();
    for (index, (node, inputs, want)) in cases.iter().enumerate() {
        let got = match registry.claim(&Device::host(), node, inputs) {
            Ok(()) => "claimed".to_owned(),
            Err(reason) => reason.to_string(),
        };
        if got != *want {
            wrong.push(format!("{index}\t{node}\t{got:?}"));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn no_reason_covers_for_another() {
    let mut texts: Vec<_> = refused().into_iter().map(|(.., text)| text).collect();
    let all = texts.len();
    texts.sort_unstable();
    texts.dedup();
    // Some texts come twice, as the same fault shows in two ways; most are of one case.
    assert!(texts.len() * 10 >= all * 8, "{} different texts of {all}", texts.len());
}

#[test]
fn what_is_legal_is_claimed() {
    let registry = Registry::standard();
    let past = |rows| tensor(F32, &[2, 4, rows, 8]);
    let halves =
        |element| vec![tensor(element, &[2, 4, 3, 8]), tensor(element, &[2, 2, 5, 8]), tensor(element, &[2, 2, 5, 6])];
    let claimed: Vec<(Node, Inputs)> = vec![
        (Node::new("", "Attention", 23), qkv()),
        (Node::new("ai.onnx", "Attention", 24), qkv()),
        (windowed().attribute("left_window_size", -1i64).attribute("right_window_size", 0i64), qkv()),
        (onnx(), halves(F16)),
        (onnx(), halves(Bf16)),
        (onnx(), with(halves(F16), 3, tensor(F16, &[5]))),
        (onnx(), with(halves(F16), 3, tensor(F32, &[2, 1, 1, 4]))),
        (onnx(), with(qkv(), 3, tensor(Bool, &[4, 1, 1]))),
        (onnx().attribute("softcap", 0.0f32).attribute("scale", 0.0f32), qkv()),
        (onnx().attribute("softmax_precision", 11i64), qkv()),
        (onnx().outputs(&[true, true, true, true]).attribute("qk_matmul_output_mode", 3i64), qkv()),
        (onnx(), with(with(qkv(), 4, past(0)), 5, past(0))),
        (onnx(), with(qkv(), 6, tensor(I64, &[2]))),
        (heads(onnx()), qkv_3d()),
        (heads(onnx()), qkv()),
        (nxrt(), with(qkv(), 3, tensor(F32, &[8, 3, 5]))),
        (nxrt(), with(qkv(), 3, tensor(F32, &[2, 1, 3, 5]))),
        (varlen(), tokens()),
        (varlen(), with(tokens(), 2, tensor(F32, &[9, 4 * 6]))),
        (multi(), qkv_3d()),
        (multi(), vec![tensor(F16, &[2, 3, 4, 3, 8])]),
        (multi(), vec![tensor(F32, &[2, 3, 32]), tensor(F32, &[2, 5, 4, 2, 8])]),
        (multi(), with(qkv_3d(), 4, tensor(I32, &[2]))),
        (Node::new("cuattn", "Attention", 1).attribute("left_window_size", 2i64), qkv()),
        (onnx(), vec![Some(InputInfo::of_type(F32)), Some(InputInfo::of_type(F32)), Some(InputInfo::of_type(F32))]),
    ];
    for (node, inputs) in claimed {
        if let Err(reason) = registry.claim(&Device::host(), &node, &inputs) {
            panic!("{node} with {inputs:?}: {reason}");
        }
    }
}
