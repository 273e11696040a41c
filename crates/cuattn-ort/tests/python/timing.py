"""Times of nodes whose tensors are bound on the device.

Alone, as a script, it times ONNX Runtime's CUDA provider on the same nodes, in a build that has one:

    python timing.py --out cuda.json [--plugin libcuattn_ort.so]

With `--plugin` both are timed in one process, one after the other.
"""

import argparse
import json
import time

import numpy as np
from onnx import TensorProto, helper

import onnxruntime as ort

import plugin

# batch, query heads, key heads, length, head size, causal, float mask
NODES = [
    (1, 32, 32, 4096, 128, True, False),
    (4, 16, 16, 4096, 128, True, False),
    (8, 32, 8, 1024, 128, True, False),
    (4, 16, 16, 4096, 128, False, True),
    (8, 32, 8, 1024, 128, False, True),
]


def node(shape):
    b, h, kv, s, d, causal, mask = shape
    half = TensorProto.FLOAT16
    names = ["Q", "K", "V"] + (["M"] if mask else [])
    dims = {"Q": [b, h, s, d], "K": [b, kv, s, d], "V": [b, kv, s, d], "M": [s, s]}
    graph = helper.make_graph(
        [helper.make_node("Attention", names, ["Y"], is_causal=int(causal))], "node",
        [helper.make_tensor_value_info(n, half, dims[n]) for n in names],
        [helper.make_tensor_value_info("Y", half, dims["Q"])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=10), \
        {n: dims[n] for n in names}, dims["Q"]


def flops(shape):
    b, h, _, s, d, causal, _ = shape
    pairs = s * (s + 1) / 2 if causal else s * s
    return 4.0 * b * h * pairs * d


def measured(sess, dims, out_dims, make):
    """Median seconds of a run with everything bound on the device."""
    binding = sess.io_binding()
    held = [make(np.random.default_rng(1).standard_normal(d).astype(np.float16)) for d in dims.values()]
    for name, tensor in zip(dims, held):
        binding.bind_ortvalue_input(name, tensor)
    out = make(np.zeros(out_dims, np.float16))
    binding.bind_ortvalue_output("Y", out)
    for _ in range(5):
        sess.run_with_iobinding(binding)
    times = []
    for _ in range(30):
        started = time.perf_counter()
        sess.run_with_iobinding(binding)
        times.append(time.perf_counter() - started)
    return float(np.median(times)), out.numpy()


def name_of(shape):
    b, h, kv, s, d, causal, mask = shape
    return f"f16 b{b} h{h}/{kv} {s} d{d}{' causal' if causal else ''}{' float mask' if mask else ''}"


def overhead():
    """Microseconds that a claimed node costs the host: many tiny nodes in a row against one."""
    tiny = [1, 1, 1, 8]

    def chain(count):
        nodes = [helper.make_node("Attention", [f"X{i}", "X0", "X0"], [f"X{i + 1}"]) for i in range(count)]
        graph = helper.make_graph(nodes, "chain", [helper.make_tensor_value_info("X0", TensorProto.FLOAT16, tiny)],
                                  [helper.make_tensor_value_info(f"X{count}", TensorProto.FLOAT16, tiny)])
        sess = plugin.session(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=10),
                              record=False)
        binding = sess.io_binding()
        x = plugin.on_device(np.ones(tiny, np.float16))
        y = plugin.on_device(np.ones(tiny, np.float16))
        binding.bind_ortvalue_input("X0", x)
        binding.bind_ortvalue_output(f"X{count}", y)
        for _ in range(20):
            sess.run_with_iobinding(binding)
        times = []
        for _ in range(200):
            started = time.perf_counter()
            sess.run_with_iobinding(binding)
            times.append(time.perf_counter() - started)
        return float(np.median(times)) * 1e6

    few, many = 8, 136
    return (chain(many) - chain(few)) / (many - few)


def run():
    """Times of the plugin's nodes, and what one costs the host."""
    rows = [{"node": "one of many tiny nodes, its launch and ONNX Runtime's own time included",
             "microseconds": round(overhead(), 2)}]
    for shape in NODES:
        model, dims, out_dims = node(shape)
        seconds, _ = measured(plugin.session(model), dims, out_dims, plugin.on_device)
        rows.append({"node": name_of(shape), "microseconds": round(seconds * 1e6, 1),
                     "tflops": round(flops(shape) / seconds / 1e12, 1)})
    return rows


def cuda_provider():
    """Times of the same nodes on ONNX Runtime's CUDA provider."""
    rows = []
    for shape in NODES:
        model, dims, out_dims = node(shape)
        config = ort.SessionOptions()
        config.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        sess = ort.InferenceSession(model.SerializeToString(), sess_options=config,
                                    providers=["CUDAExecutionProvider"])
        seconds, _ = measured(sess, dims, out_dims, lambda x: ort.OrtValue.ortvalue_from_numpy(x, "cuda", 0))
        rows.append({"node": name_of(shape), "microseconds": round(seconds * 1e6, 1),
                     "tflops": round(flops(shape) / seconds / 1e12, 1)})
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plugin")
    parser.add_argument("--out", required=True)
    arguments = parser.parse_args()
    report = {"onnxruntime": ort.__version__}
    if "CUDAExecutionProvider" in ort.get_available_providers():
        report["cuda"] = cuda_provider()
    if arguments.plugin:
        plugin.register(arguments.plugin)
        report["cuattn"] = run()
    if {"cuda", "cuattn"} <= report.keys():
        ours = {row["node"]: row["microseconds"] for row in report["cuattn"]}
        report["times_faster"] = {row["node"]: round(row["microseconds"] / ours[row["node"]], 2)
                                  for row in report["cuda"]}
    text = json.dumps(report, indent=1)
    print(text)
    with open(arguments.out, "w", encoding="utf-8") as out:
        out.write(text + "\n")


if __name__ == "__main__":
    main()
