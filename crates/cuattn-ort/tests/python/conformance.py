"""ONNX's own backend tests of Attention, by ONNX's own runner, on the plugin alone."""

import re
import unittest

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep
from onnx.backend.test import BackendTest
from onnx.defs import onnx_opset_version

import onnxruntime as ort

import plugin

CASE = r"test_attention_(?!.*_expanded).*"


class Rep(BackendRep):
    def __init__(self, model):
        self.operators = [node.op_type for node in model.graph.node]
        self.session = plugin.session(model)

    def run(self, inputs, **_):
        since = plugin.Since()
        names = [entry.name for entry in self.session.get_inputs()]
        outputs = plugin.run(self.session, dict(zip(names, inputs)))
        nodes = plugin.assigned(self.session)
        assert nodes == {plugin.PROVIDER: self.operators}, f"nodes are elsewhere: {nodes}"
        assert since["executes"] == len(self.operators), "a node did not run on the plugin"
        return outputs


class PluginBackend(Backend):
    @classmethod
    def supports_device(cls, device):
        # The runner compares the results of what it calls CUDA as those of the CPU; the plugin's device is a GPU.
        return device == "CUDA"

    @classmethod
    def prepare(cls, model, device="CUDA", **_):
        return Rep(model)


def features(model):
    """What a case is about, for the table."""
    node = model.graph.node[0]
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    shapes = {i.name: i for i in model.graph.input}
    given = {}
    for position, name in enumerate(node.input):
        if name:
            tensor = shapes[name].type.tensor_type
            dims = [d.dim_value for d in tensor.shape.dim]
            given[position] = (onnx.TensorProto.DataType.Name(tensor.elem_type), dims)
    found = [f"opset {model.opset_import[0].version}", given[0][0].lower(), f"{len(given[0][1])}-D"]
    if attributes.get("is_causal"):
        found.append("causal")
    if 3 in given:
        kind, dims = given[3]
        found.append(f"{'bool' if kind == 'BOOL' else 'float'} mask of rank {len(dims)}")
    if 4 in given:
        found.append("past and present")
    if 6 in given:
        found.append("nonpad_kv_seqlen")
    if len(node.output) > 3 and node.output[3]:
        found.append(f"qk_matmul_output mode {attributes.get('qk_matmul_output_mode', 0)}")
    for name in ("softcap", "scale", "softmax_precision"):
        if attributes.get(name):
            found.append(name)
    if attributes.get("left_window_size", -1) >= 0 or attributes.get("right_window_size", -1) >= 0:
        found.append("window")
    heads = [attributes.get("q_num_heads"), attributes.get("kv_num_heads")]
    if len(given[0][1]) == 4:
        heads = [given[0][1][1], given[1][1][1]]
    if heads[0] != heads[1]:
        found.append("grouped heads")
    sizes = [given[1][1][-1] // (1 if len(given[1][1]) == 4 else heads[1]),
             given[2][1][-1] // (1 if len(given[2][1]) == 4 else heads[1])]
    if sizes[0] != sizes[1]:
        found.append("value head size differs")
    return found


class Result(unittest.TestResult):
    def __init__(self):
        super().__init__()
        self.outcomes = {}

    def note(self, test, outcome, why=""):
        name = test.id().rsplit(".", 1)[-1].removesuffix("_cuda")
        self.outcomes[name] = (outcome, why)

    def addSuccess(self, test):
        self.note(test, "passed")

    def addFailure(self, test, error):
        self.note(test, "failed", last_line(error))

    def addError(self, test, error):
        self.note(test, "failed", last_line(error))

    def addSkip(self, test, reason):
        self.note(test, "skipped", reason)


def last_line(error):
    return " ".join(str(error[1]).split())[:400]


def known_to_runtime():
    """Whether this ONNX Runtime has the Attention of opset 25; older ones reject such models."""
    version = tuple(int(part) for part in ort.__version__.split(".")[:2])
    return 25 if version >= (1, 32) else 24


def run():
    """Every case: name, features, outcome."""
    with np.errstate(all="ignore"):
        tests = BackendTest(PluginBackend, __name__)
        tests.include(f"^{CASE}_cuda$")
        # The cases' models, for their features.
        from onnx.backend.test.case.node import collect_testcases

        models = {case.name: case.model for case in collect_testcases() if re.fullmatch(CASE, case.name)}
        suite = unittest.TestSuite()
        for cls in tests.test_cases.values():
            for test in unittest.defaultTestLoader.loadTestsFromTestCase(cls):
                if re.fullmatch(f"{CASE}_cuda", test.id().rsplit(".", 1)[-1]):
                    suite.addTest(test)
        result = Result()
        suite.run(result)
    cases = []
    for name, model in sorted(models.items()):
        outcome, why = result.outcomes.get(name, ("not run", "the runner has no such case"))
        opset = model.opset_import[0].version
        if outcome == "failed" and opset > known_to_runtime():
            outcome, why = "not loaded", f"ONNX Runtime {ort.__version__} does not know Attention of opset {opset}"
        cases.append({"name": name, "features": features(model), "outcome": outcome, "why": why})
    return {"onnx": onnx.__version__, "opset": onnx_opset_version(), "cases": cases}
