"""The plugin in one session with ONNX Runtime's CUDA provider, which comes first.

    python beside_cuda.py --plugin libcuattn_ort.so --out beside.json

Needs an ONNX Runtime that has the CUDA provider. The CUDA provider then owns stream and allocator, and claims whatever
it knows; attention nodes are moved to the plugin's own domain, which it does not know. What is looked at: that each
provider has its nodes, that nothing is copied between them, and that the result is the CPU's. Where it fails, the report
says at which step and with which message.
"""

import argparse
import json

import numpy as np
from onnx import TensorProto, helper

import onnxruntime as ort

import plugin
import rewrite


def block(layers=2, hidden=64, heads=4, rows=32):
    """Projections, attention and residuals: what a transformer does, layer by layer."""
    rng = np.random.default_rng(5)
    nodes, weights, x = [], [], "X"
    for layer in range(layers):
        for name in "qkvo":
            w = (rng.standard_normal((hidden, hidden)) / np.sqrt(hidden)).astype(np.float16)
            weights.append(helper.make_tensor(f"W{name}{layer}", TensorProto.FLOAT16, [hidden, hidden], w.tobytes(),
                                              raw=True))
        for name in "qkv":
            nodes.append(helper.make_node("MatMul", [x, f"W{name}{layer}"], [f"{name}{layer}"]))
        nodes.append(helper.make_node("Attention", [f"q{layer}", f"k{layer}", f"v{layer}"], [f"a{layer}"],
                                      name=f"layer.{layer}", is_causal=1, q_num_heads=heads, kv_num_heads=heads))
        nodes.append(helper.make_node("MatMul", [f"a{layer}", f"Wo{layer}"], [f"p{layer}"]))
        nodes.append(helper.make_node("Add", [x, f"p{layer}"], [f"x{layer}"]))
        x = f"x{layer}"
    shape = [1, rows, hidden]
    graph = helper.make_graph(nodes, "block", [helper.make_tensor_value_info("X", TensorProto.FLOAT16, shape)],
                              [helper.make_tensor_value_info(x, TensorProto.FLOAT16, shape)], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=10)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plugin", required=True)
    parser.add_argument("--out", required=True)
    arguments = parser.parse_args()
    report = {"onnxruntime": ort.__version__, "steps": []}

    def step(name, action):
        try:
            result = action()
        except Exception as error:  # noqa: BLE001: the message is what is wanted
            report["steps"].append({"step": name, "outcome": "failed", "why": f"{type(error).__name__}: {error}"})
            return None
        report["steps"].append({"step": name, "outcome": "passed"})
        return result

    def finish():
        text = json.dumps(report, indent=1)
        print(text)
        with open(arguments.out, "w", encoding="utf-8") as out:
            out.write(text + "\n")

    if "CUDAExecutionProvider" not in ort.get_available_providers():
        report["steps"].append({"step": "find the CUDA provider", "outcome": "not run",
                                "why": "this ONNX Runtime has no CUDA provider: install onnxruntime-gpu"})
        return finish()
    model = block()
    x = np.random.default_rng(6).standard_normal((1, 32, 64)).astype(np.float16)
    want = step("the CPU's result", lambda: plugin.cpu_session(model).run(None, {"X": x})[0])
    devices = step("register the plugin", lambda: plugin.register(arguments.plugin))
    if want is None or devices is None:
        return finish()
    moved, _ = rewrite.renamed(model)

    def session():
        config = ort.SessionOptions()
        config.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        cuda = [device for device in ort.get_ep_devices() if device.ep_name == "CUDAExecutionProvider"]
        if cuda:
            config.add_provider_for_devices(cuda[:1], {})
            config.add_provider_for_devices(devices[:1], {})
            return ort.InferenceSession(moved.SerializeToString(), sess_options=config)
        # A build whose CUDA provider is not a plugin knows it by name only.
        config.add_provider("CUDAExecutionProvider", {})
        config.add_provider_for_devices(devices[:1], {})
        return ort.InferenceSession(moved.SerializeToString(), sess_options=config)

    sess = step("a session of both, CUDA first", session)
    if sess is None:
        return finish()
    report["assigned"] = step("who has which nodes", lambda: plugin.assigned(sess))
    since = plugin.Since()
    got = step("run", lambda: sess.run(None, {"X": x})[0])
    report["counts"] = {name: since[name] for name in plugin.COUNTS}
    if got is not None:
        step("the result is the CPU's", lambda: np.testing.assert_allclose(
            got.astype(np.float32), want.astype(np.float32), rtol=2e-2, atol=2e-2))
        step("no copies by the plugin", lambda: np.testing.assert_array_equal(
            [since[n] for n in ("to_device", "to_host", "on_device")], 0))
        step("a hundred more runs", lambda: [np.testing.assert_array_equal(sess.run(None, {"X": x})[0], got)
                                             for _ in range(100)])
    finish()


if __name__ == "__main__":
    main()
