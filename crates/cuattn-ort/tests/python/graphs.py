"""Graphs as models have them: attention among other operators, device tensors, decoders, threads, and what goes wrong."""

import threading

import numpy as np
import onnx
from onnx import TensorProto, helper

import onnxruntime as ort

import plugin
import rewrite

RNG = np.random.default_rng(2024)
TYPES = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.float16): TensorProto.FLOAT16,
         np.dtype(np.int32): TensorProto.INT32, np.dtype(np.int64): TensorProto.INT64,
         np.dtype(np.bool_): TensorProto.BOOL}


def info(name, shape, dtype=np.float32):
    return helper.make_tensor_value_info(name, TYPES[np.dtype(dtype)], shape)


def model(nodes, inputs, outputs, *, opset=24, contrib=False, initializers=()):
    imports = [helper.make_opsetid("", opset)] + ([helper.make_opsetid("com.microsoft", 1)] if contrib else [])
    graph = helper.make_graph(nodes, "graph", inputs, outputs, list(initializers))
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def random(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def close(got, want, dtype=np.float32):
    # Float16 rounds biased queries and keys before they meet, and probabilities before they meet values.
    tolerance = 2e-5 if dtype == np.float32 else 1e-2
    np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=tolerance, atol=tolerance)


def test_cpu_operators_before_and_after():
    """Copies between providers are made, by kernels of the plugin's own."""
    hidden = 16
    # Small enough for scores of about one: to round a score of hundreds in float32 moves its weight by more than is allowed.
    weight = helper.make_tensor("W", TensorProto.FLOAT, [hidden, hidden], (random(hidden, hidden) / hidden).ravel())
    nodes = [
        helper.make_node("Add", ["X", "X"], ["A"]),
        helper.make_node("MatMul", ["A", "W"], ["B"]),
        helper.make_node("Attention", ["B", "B", "B"], ["C"], q_num_heads=2, kv_num_heads=2),
        helper.make_node("Mul", ["C", "A"], ["Y"]),
    ]
    graph = model(nodes, [info("X", [1, 5, hidden])], [info("Y", [1, 5, hidden])], initializers=[weight])
    x = random(1, 5, hidden)
    sess = plugin.session(graph, fallback=True)
    assert plugin.assigned(sess)[plugin.PROVIDER] == ["Attention"]
    since = plugin.Since()
    (got,) = plugin.run(sess, {"X": x})
    assert since["executes"] == 1 and since["to_device"] == 1 and since["to_host"] == 1, plugin.counts()
    (want,) = plugin.run(plugin.cpu_session(graph), {"X": x})
    close(got, want)


def test_attention_nodes_in_a_row_copy_nothing():
    """Three nodes that follow each other: one copy in, one out, none between."""
    heads = dict(q_num_heads=2, kv_num_heads=2)
    nodes = [
        helper.make_node("Attention", ["X", "X", "X"], ["A"], **heads),
        helper.make_node("Attention", ["A", "X", "X"], ["B"], is_causal=1, **heads),
        helper.make_node("Attention", ["B", "A", "X"], ["Y"], **heads),
    ]
    graph = model(nodes, [info("X", [1, 5, 16])], [info("Y", [1, 5, 16])])
    x = random(1, 5, 16)
    sess = plugin.session(graph)
    since = plugin.Since()
    (got,) = plugin.run(sess, {"X": x})
    assert since["executes"] == 3, plugin.counts()
    assert (since["to_device"], since["to_host"], since["on_device"]) == (1, 1, 0), plugin.counts()
    (want,) = plugin.run(plugin.cpu_session(graph), {"X": x})
    close(got, want)


def attention(b=2, h=3, s=5, d=8, dtype=np.float32, **attributes):
    shape = [b, h, s, d]
    node = helper.make_node("Attention", ["Q", "K", "V"], ["Y"], **attributes)
    return model([node], [info(n, shape, dtype) for n in "QKV"], [info("Y", shape, dtype)])


def test_bound_device_tensors_copy_nothing():
    graph = attention()
    inputs = {name: random(2, 3, 5, 8) for name in "QKV"}
    sess = plugin.session(graph)
    tensors = {name: plugin.on_device(x) for name, x in inputs.items()}
    out = plugin.empty_on_device((2, 3, 5, 8), np.float32)
    binding = sess.io_binding()
    for name, tensor in tensors.items():
        binding.bind_ortvalue_input(name, tensor)
    binding.bind_ortvalue_output("Y", out)
    sess.run_with_iobinding(binding)
    since = plugin.Since()
    sess.run_with_iobinding(binding)
    assert since["executes"] == 1, plugin.counts()
    assert (since["to_device"], since["to_host"], since["on_device"]) == (0, 0, 0), plugin.counts()
    (want,) = plugin.run(plugin.cpu_session(graph), inputs)
    close(out.numpy(), want)


def test_a_bound_pointer_copies_nothing():
    """What PyTorch or CuPy allocated: an address on the device."""
    needs_runtime(1, 30, "bind_input takes `cuda` for a device of no vendor")
    graph = attention()
    inputs = {name: random(2, 3, 5, 8) for name in "QKV"}
    sess = plugin.session(graph)
    tensors = {name: plugin.on_device(x) for name, x in inputs.items()}
    out = plugin.empty_on_device((2, 3, 5, 8), np.float32)
    binding = sess.io_binding()
    for name, tensor in tensors.items():
        binding.bind_input(name, "cuda", 0, np.float32, [2, 3, 5, 8], tensor.data_ptr())
    binding.bind_output("Y", "cuda", 0, np.float32, [2, 3, 5, 8], out.data_ptr())
    since = plugin.Since()
    sess.run_with_iobinding(binding)
    assert (since["to_device"], since["to_host"], since["on_device"]) == (0, 0, 0), plugin.counts()
    (want,) = plugin.run(plugin.cpu_session(graph), inputs)
    close(out.numpy(), want)


def decoder(layers, q_heads, kv_heads, d):
    """Causal attention over past and present, layer after layer, with free lengths."""
    nodes, inputs, outputs = [], [info("X0", [1, "s", q_heads * d])], []
    for layer in range(layers):
        names = [f"K{layer}", f"V{layer}", f"pk{layer}", f"pv{layer}"]
        inputs += [info(n, [1, "s", kv_heads * d]) for n in names[:2]]
        inputs += [info(n, [1, kv_heads, "p", d]) for n in names[2:]]
        outs = [f"X{layer + 1}", f"ok{layer}", f"ov{layer}"]
        nodes.append(helper.make_node("Attention", [f"X{layer}", *names[:2], "", *names[2:]], outs, is_causal=1,
                                      q_num_heads=q_heads, kv_num_heads=kv_heads))
        outputs += [info(n, [1, kv_heads, "t", d]) for n in outs[1:]]
    outputs.append(info(f"X{layers}", [1, "s", q_heads * d]))
    return model(nodes, inputs, outputs)


def test_decoder_of_64_steps():
    """A prompt of 7 tokens and 64 single ones, the cache on the device throughout, against ONNX Runtime's CPU."""
    needs_runtime(1, 30, "bind_output takes `cuda` for a device of no vendor")
    layers, q_heads, kv_heads, d = 2, 4, 2, 16
    graph = decoder(layers, q_heads, kv_heads, d)
    sess, cpu = plugin.session(graph), plugin.cpu_session(graph)
    caches = [np.zeros((1, kv_heads, 0, d), np.float32) for _ in range(2 * layers)]
    device_caches = None
    for step in range(65):
        rows = 7 if step == 0 else 1
        inputs = {"X0": random(1, rows, q_heads * d)}
        for layer in range(layers):
            inputs[f"K{layer}"] = random(1, rows, kv_heads * d)
            inputs[f"V{layer}"] = random(1, rows, kv_heads * d)
        past = {f"p{kind}{layer}": caches[2 * layer + i] for layer in range(layers) for i, kind in enumerate("kv")}
        want = cpu.run(None, {**inputs, **past})
        caches = want[:-1]

        binding = sess.io_binding()
        for name, x in inputs.items():
            binding.bind_cpu_input(name, x)
        for index, name in enumerate(past):
            if device_caches is None:
                binding.bind_cpu_input(name, past[name])
            else:
                binding.bind_ortvalue_input(name, device_caches[index])
        for output in sess.get_outputs()[:-1]:
            binding.bind_output(output.name, "cuda", 0)
        binding.bind_output(f"X{layers}", "cpu")
        since = plugin.Since()
        sess.run_with_iobinding(binding)
        assert since["on_device"] == 0 and since["to_host"] == 1, plugin.counts()
        got = binding.get_outputs()
        device_caches = got[:-1]
        close(got[-1].numpy(), want[-1])
    for got, want in zip(device_caches, caches):
        np.testing.assert_array_equal(got.numpy(), want)


def multi_head(case, dtype):
    """A random MultiHeadAttention: the model, its inputs."""
    b, h, s, kv, d, dv = (int(RNG.integers(1, hi)) for hi in (4, 5, 7, 9, 17, 17))
    packed, past = case["packed"], case.get("past", 0)
    if packed == "qkv":
        kv, dv = s, d
    if packed in ("kv", "heads") or past:
        # ONNX Runtime's CPU kernel wants values as wide as keys then.
        dv = d
    inputs = {}
    if packed == "qkv":
        inputs["query"] = random(b, s, h, 3, d, dtype=dtype)
    else:
        inputs["query"] = random(b, s, h * d, dtype=dtype)
        if packed == "kv":
            inputs["key"] = random(b, kv, h, 2, d, dtype=dtype)
        elif packed == "heads":
            inputs["key"] = random(b, h, kv, d, dtype=dtype)
            inputs["value"] = random(b, h, kv, dv, dtype=dtype)
        else:
            inputs["key"] = random(b, kv, h * d, dtype=dtype)
            inputs["value"] = random(b, kv, h * dv, dtype=dtype)
    if case.get("bias"):
        inputs["bias"] = random(2 * h * d + h * dv, dtype=dtype)
    total = kv + past
    if case.get("padding") == "lengths":
        inputs["key_padding_mask"] = RNG.integers(1, total + 1, b).astype(np.int32)
    elif case.get("padding") == "keys":
        mask = RNG.integers(0, 2, (b, total)).astype(np.int32)
        mask[:, 0] = 1
        inputs["key_padding_mask"] = mask
    if case.get("attention_bias"):
        lead = [(1, 1), (b, 1), (1, h), (b, h)][int(RNG.integers(0, 4))]
        inputs["attention_bias"] = random(*lead, s, total, dtype=dtype)
    if past:
        inputs["past_key"] = random(b, h, past, d, dtype=dtype)
        inputs["past_value"] = random(b, h, past, dv, dtype=dtype)
    order = ["query", "key", "value", "bias", "key_padding_mask", "attention_bias", "past_key", "past_value"]
    names = [name if name in inputs else "" for name in order]
    while not names[-1]:
        names.pop()
    outputs = ["output"] + (["present_key", "present_value"] if case.get("present") else [])
    attributes = {"num_heads": h}
    if case.get("unidirectional"):
        attributes["unidirectional"] = 1
    if case.get("scale"):
        attributes["scale"] = 0.3
    node = helper.make_node("MultiHeadAttention", names, outputs, domain="com.microsoft", **attributes)
    shapes = {"output": [b, s, h * dv], "present_key": [b, h, total, d], "present_value": [b, h, total, dv]}
    graph = model([node], [info(n, x.shape, x.dtype) for n, x in inputs.items()],
                  [info(n, shapes[n], dtype) for n in outputs], opset=21, contrib=True)
    return graph, inputs


MULTI_HEAD = [
    dict(packed="no"),
    dict(packed="no", scale=True),
    dict(packed="no", bias=True),
    dict(packed="no", padding="keys"),
    dict(packed="no", padding="lengths"),
    dict(packed="no", attention_bias=True),
    dict(packed="no", attention_bias=True, padding="keys"),
    dict(packed="no", past=3, present=True),
    dict(packed="no", past=3, present=True, bias=True, padding="keys", attention_bias=True),
    dict(packed="no", present=True),
    dict(packed="heads"),
    dict(packed="heads", attention_bias=True),
]
# Forms that ONNX Runtime's CPU kernel does not have: held to the same computation with tensors apart.
PACKED = [dict(packed="kv"), dict(packed="qkv"), dict(packed="qkv", bias=True), dict(packed="kv", padding="keys")]


def test_multi_head_attention_as_the_cpu_has_it():
    for case in MULTI_HEAD:
        for _ in range(4):
            graph, inputs = multi_head(case, np.float32)
            got = plugin.run(plugin.session(graph), inputs)
            want = plugin.run(plugin.cpu_session(graph), inputs)
            for g, w in zip(got, want, strict=True):
                try:
                    close(g, w)
                except AssertionError as error:
                    raise AssertionError(f"{case}: {error}") from error


def test_multi_head_attention_in_float16():
    """The CPU has no float16 kernel: its float32 result of the same numbers is what float16 is held to."""
    for case in MULTI_HEAD:
        graph, inputs = multi_head(case, np.float16)
        wide = onnx.ModelProto()
        wide.CopyFrom(graph)
        for entry in (*wide.graph.input, *wide.graph.output):
            if entry.type.tensor_type.elem_type == TensorProto.FLOAT16:
                entry.type.tensor_type.elem_type = TensorProto.FLOAT
        widened = {n: x.astype(np.float32) if x.dtype == np.float16 else x for n, x in inputs.items()}
        for g, w in zip(plugin.run(plugin.session(graph), inputs),
                        plugin.run(plugin.cpu_session(wide), widened), strict=True):
            assert g.dtype == np.float16
            close(g, w, np.float16)


def test_packed_multi_head_attention():
    for case in PACKED:
        graph, inputs = multi_head(case, np.float32)
        got = plugin.run(plugin.session(graph), inputs)
        apart = dict(inputs)
        if case["packed"] == "qkv":
            x = apart.pop("query")
            b, s, h, _, d = x.shape
            for index, name in enumerate(("query", "key", "value")):
                apart[name] = np.ascontiguousarray(x[:, :, :, index]).reshape(b, s, h * d)
        else:
            x = apart.pop("key")
            b, s, h, _, d = x.shape
            for index, name in enumerate(("key", "value")):
                apart[name] = np.ascontiguousarray(x[:, :, :, index]).reshape(b, s, h * d)
        order = ["query", "key", "value", "bias", "key_padding_mask"]
        names = [name if name in apart else "" for name in order]
        while not names[-1]:
            names.pop()
        node = helper.make_node("MultiHeadAttention", names, ["output"], domain="com.microsoft", num_heads=h)
        plain = model([node], [info(n, v.shape, v.dtype) for n, v in apart.items()],
                      [graph.graph.output[0]], opset=21, contrib=True)
        close(got[0], plugin.run(plugin.cpu_session(plain), apart)[0])


def test_renamed_operators():
    """Nodes moved to the plugin's own domain give what they gave before."""
    graph = attention(is_causal=1, softcap=2.0)
    inputs = {name: random(2, 3, 5, 8) for name in "QKV"}
    renamed, count = rewrite.renamed(graph)
    assert count == 1 and renamed.graph.node[0].domain == "cuattn"
    sess = plugin.session(renamed)
    assert plugin.assigned(sess) == {plugin.PROVIDER: ["Attention"]}
    close(plugin.run(sess, inputs)[0], plugin.run(plugin.session(graph), inputs)[0])
    back, count = rewrite.renamed(renamed, back=True)
    assert count == 1 and back.graph.node[0].domain == ""


def test_renamed_operators_among_others():
    """Shapes are inferred through nodes of the plugin's own domain, fixed and free ones, so that others can use them."""
    for rows in (5, "rows"):
        heads = dict(q_num_heads=4, kv_num_heads=2)
        nodes = [
            helper.make_node("Add", ["X", "X"], ["A"]),
            helper.make_node("Attention", ["A", "K", "V"], ["B"], **heads),
            helper.make_node("Mul", ["B", "A"], ["C"]),
            helper.make_node("Attention", ["C", "K", "V"], ["D"], **heads),
            helper.make_node("Add", ["D", "A"], ["Y"]),
        ]
        graph = model(nodes, [info("X", [1, rows, 16]), info("K", [1, 7, 8]), info("V", [1, 7, 8])],
                      [info("Y", [1, rows, 16])])
        renamed, count = rewrite.renamed(graph)
        assert count == 2
        inputs = {"X": random(1, 5, 16), "K": random(1, 7, 8), "V": random(1, 7, 8)}
        sess = plugin.session(renamed, fallback=True)
        assert plugin.assigned(sess)[plugin.PROVIDER] == ["Attention", "Attention"]
        close(plugin.run(sess, inputs)[0], plugin.run(plugin.cpu_session(graph), inputs)[0])


def test_a_renamed_decoder():
    graph = decoder(1, 4, 2, 8)
    renamed, _ = rewrite.renamed(graph)
    inputs = {"X0": random(1, 3, 32), "K0": random(1, 3, 16), "V0": random(1, 3, 16),
              "pk0": random(1, 2, 5, 8), "pv0": random(1, 2, 5, 8)}
    for got, want in zip(plugin.run(plugin.session(renamed), inputs), plugin.run(plugin.session(graph), inputs)):
        np.testing.assert_array_equal(got, want)


class NotPossible(Exception):
    """A test that this ONNX Runtime cannot run."""


def needs_runtime(major, minor, why):
    if tuple(int(part) for part in ort.__version__.split(".")[:2]) < (major, minor):
        raise NotPossible(f"ONNX Runtime {ort.__version__}: {why}")


def test_packed_sequences():
    """Sequences of 3, 0 and 5 tokens, as each gives alone; and two of equal length, as the padded tensor gives."""
    h, kv_heads, d = 4, 2, 8

    def packed(total_q, total_kv, batch, flat):
        shape = (lambda t, heads: [t, heads * d]) if flat else (lambda t, heads: [t, heads, d])
        node = helper.make_node("PackedVarlenAttention", ["q", "k", "v", "cq", "ck"], ["y"], domain="pkg.nxrt",
                                num_heads=h, kv_num_heads=kv_heads, is_causal=1)
        graph = helper.make_graph(
            [node], "g", [info("q", shape(total_q, h)), info("k", shape(total_kv, kv_heads)),
                          info("v", shape(total_kv, kv_heads)), info("cq", [batch + 1], np.int32),
                          info("ck", [batch + 1], np.int32)], [info("y", shape(total_q, h))])
        imports = [helper.make_opsetid("", 21), helper.make_opsetid("pkg.nxrt", 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=10)

    lengths = [(3, 4), (0, 2), (5, 5)]
    cq = np.cumsum([0] + [q for q, _ in lengths]).astype(np.int32)
    ck = np.cumsum([0] + [k for _, k in lengths]).astype(np.int32)
    q, k, v = random(8, h, d), random(11, kv_heads, d), random(11, kv_heads, d)
    (got,) = plugin.run(plugin.session(packed(8, 11, 3, False)), dict(q=q, k=k, v=v, cq=cq, ck=ck))
    flat = {"q": q.reshape(8, -1), "k": k.reshape(11, -1), "v": v.reshape(11, -1), "cq": cq, "ck": ck}
    (flat_got,) = plugin.run(plugin.session(packed(8, 11, 3, True)), flat)
    np.testing.assert_array_equal(flat_got.reshape(got.shape), got)
    for index, (rows, keys) in enumerate(lengths):
        part = got[cq[index]:cq[index + 1]]
        one = {"q": q[cq[index]:cq[index + 1]], "k": k[ck[index]:ck[index + 1]], "v": v[ck[index]:ck[index + 1]]}
        scores = np.einsum("qhd,khd->hqk", one["q"], np.repeat(one["k"], h // kv_heads, 1)) / np.sqrt(d)
        scores[:, np.arange(keys)[None] > np.arange(rows)[:, None] + keys - rows] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        close(part, np.einsum("hqk,khd->qhd", weights, np.repeat(one["v"], h // kv_heads, 1)))

    b, s = 2, 6
    node = helper.make_node("Attention", ["Q", "K", "V"], ["Y"], domain="pkg.nxrt", num_heads=h,
                            kv_num_heads=kv_heads, causal=1)
    padded = helper.make_model(
        helper.make_graph([node], "g", [info("Q", [b, h, s, d]), info("K", [b, kv_heads, s, d]),
                                        info("V", [b, kv_heads, s, d])], [info("Y", [b, h, s, d])]),
        opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("pkg.nxrt", 1)], ir_version=10)
    x = {"Q": random(b, h, s, d), "K": random(b, kv_heads, s, d), "V": random(b, kv_heads, s, d)}
    (want,) = plugin.run(plugin.session(padded), x)
    tokens = {n.lower(): np.ascontiguousarray(a.transpose(0, 2, 1, 3)).reshape(b * s, -1, d) for n, a in x.items()}
    starts = np.array([0, s, 2 * s], np.int32)
    (got,) = plugin.run(plugin.session(packed(b * s, b * s, b, False)), {**tokens, "cq": starts, "ck": starts})
    np.testing.assert_array_equal(got.reshape(b, s, h, d).transpose(0, 2, 1, 3), want)


def test_nxrt_attention():
    """Grouped heads, causal from the bottom right, a mask plane a sequence."""
    b, h, kv_heads, s, t, d = 2, 4, 2, 3, 5, 8
    node = helper.make_node("Attention", ["Q", "K", "V", "M"], ["Y"], domain="pkg.nxrt", num_heads=h,
                            kv_num_heads=kv_heads, causal=1)
    graph = helper.make_graph([node], "g", [info("Q", [b, h, s, d]), info("K", [b, kv_heads, t, d]),
                                            info("V", [b, kv_heads, t, d]), info("M", [b, s, t])],
                              [info("Y", [b, h, s, d])])
    graph = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("pkg.nxrt", 1)],
                              ir_version=10)
    x = {"Q": random(b, h, s, d), "K": random(b, kv_heads, t, d), "V": random(b, kv_heads, t, d), "M": random(b, s, t)}
    (got,) = plugin.run(plugin.session(graph), x)
    k, v = (np.repeat(x[n], h // kv_heads, axis=1).astype(np.float64) for n in "KV")
    scores = x["Q"].astype(np.float64) @ k.transpose(0, 1, 3, 2) / np.sqrt(d) + x["M"][:, None]
    scores[..., np.arange(t)[None] > np.arange(s)[:, None] + t - s] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    close(got, weights / weights.sum(-1, keepdims=True) @ v)


def test_two_sessions_and_eight_threads():
    graphs = [attention(), attention(is_causal=1)]
    sessions = [plugin.session(graph) for graph in graphs]
    cpu = [plugin.cpu_session(graph) for graph in graphs]
    jobs = []
    for index in range(8):
        inputs = {name: random(2, 3, 5, 8) for name in "QKV"}
        jobs.append((index % 2, inputs, plugin.run(cpu[index % 2], inputs)[0]))
    faults = []

    def work(which, inputs, want):
        try:
            for _ in range(50):
                close(plugin.run(sessions[which], inputs)[0], want)
        except Exception as error:  # noqa: BLE001: whatever it is, it fails the test
            faults.append(error)

    threads = [threading.Thread(target=work, args=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults, faults[0]


def test_a_session_that_goes_away_while_others_run():
    graph = attention(b=1, h=8, s=64, d=32)
    inputs = {name: random(1, 8, 64, 32) for name in "QKV"}
    (want,) = plugin.run(plugin.cpu_session(graph), inputs)
    kept = plugin.session(graph)
    stop = threading.Event()
    faults = []

    def work():
        while not stop.is_set():
            try:
                close(plugin.run(kept, inputs)[0], want)
            except Exception as error:  # noqa: BLE001
                faults.append(error)
                return

    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(10):
        gone = plugin.session(graph)
        out = gone.run_with_ort_values(None, {n: plugin.value(x) for n, x in inputs.items()})
        del gone
        close(out[0].numpy(), want)
    stop.set()
    thread.join()
    assert not faults, faults[0]


def refused(expected, action):
    try:
        action()
    except Exception as error:  # noqa: BLE001: the kinds differ by version; the text is what counts
        assert expected in str(error), f"`{expected}` is not in: {error}"
    else:
        raise AssertionError(f"nothing was refused with `{expected}`")


def test_options_are_checked():
    needs_runtime(1, 32, "a provider that cannot be made is replaced by the CPU, and its error is lost")
    refused("there is no option `speed`", lambda: plugin.session(attention(), options={"speed": "high"}))
    refused("option `engine` is `fast`", lambda: plugin.session(attention(), options={"engine": "fast"}))
    refused("option `device_id` is 7", lambda: plugin.session(attention(), options={"device_id": "7"}))


def test_what_is_wrong_is_said():
    refused("cannot open shared object file",
            lambda: ort.register_execution_provider_library("nothing", "/nowhere/libcuattn_ort.so"))

    # Shapes that are known only when the node runs.
    shape = ["b", "h", "s", "d"]
    node = helper.make_node("Attention", ["Q", "K", "V"], ["Y"], name="layer.7")
    free = model([node], [info(n, shape) for n in "QKV"], [info("Y", shape)])
    sess = plugin.session(free)
    wrong = {"Q": random(1, 3, 4, 8), "K": random(1, 2, 4, 8), "V": random(1, 2, 4, 8)}
    refused("q_heads 3 is not a multiple of kv_heads 2", lambda: plugin.run(sess, wrong))
    wrong = {"Q": random(1, 2, 4, 8), "K": random(1, 2, 4, 6), "V": random(1, 2, 4, 8)}
    refused("layer.7 (ai.onnx::Attention 24): input `K` has shape [1, 2, 4, 6]: the head size is 6, and must be 8",
            lambda: plugin.run(sess, wrong))
    # The session works on.
    right = {name: random(1, 2, 4, 8) for name in "QKV"}
    close(plugin.run(sess, right)[0], plugin.run(plugin.cpu_session(free), right)[0])


def test_float64_is_left_to_the_cpu():
    shape = [1, 2, 4, 8]
    node = helper.make_node("Attention", ["Q", "K", "V"], ["Y"])
    double = helper.make_tensor_value_info
    graph = model([node], [double(n, TensorProto.DOUBLE, shape) for n in "QKV"],
                  [double("Y", TensorProto.DOUBLE, shape)])
    try:
        sess = plugin.session(graph, fallback=True)
    except Exception as error:  # noqa: BLE001: an ONNX Runtime whose CPU has no float64 kernel says so
        assert "Attention" in str(error)
    else:
        assert plugin.PROVIDER not in plugin.assigned(sess)


def test_empty_tensors():
    shape = ["b", 2, "s", 4]
    node = helper.make_node("Attention", ["Q", "K", "V"], ["Y"])
    graph = model([node], [info("Q", shape), info("K", ["b", 2, "t", 4]), info("V", ["b", 2, "t", 4])],
                  [info("Y", shape)])
    sess = plugin.session(graph)
    for b, s, t in [(0, 3, 3), (2, 0, 3), (2, 3, 0)]:
        inputs = {"Q": random(b, 2, s, 4), "K": random(b, 2, t, 4), "V": random(b, 2, t, 4)}
        (got,) = plugin.run(sess, inputs)
        assert got.shape == (b, 2, s, 4) and not got.any()


def tests():
    return {name.removeprefix("test_"): test for name, test in globals().items() if name.startswith("test_")}
