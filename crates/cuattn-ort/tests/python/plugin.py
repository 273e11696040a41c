"""The plugin as tests use it: registered once, sessions that cannot fall back, counts of what it did."""

import ctypes
import os

import ml_dtypes
import numpy as np
import onnxruntime as ort

PROVIDER = "CuattnExecutionProvider"
NVIDIA = 0x10DE
COUNTS = ("executes", "to_device", "to_host", "on_device", "allocations", "streams")

_library = None
_devices = []


def register(path):
    """Registers the plugin and returns its devices."""
    global _library
    if _library is None:
        _library = ctypes.CDLL(path)
        ort.register_execution_provider_library("cuattn", path)
        _devices.extend(device for device in ort.get_ep_devices() if device.ep_name == PROVIDER)
        assert _devices, "the plugin was registered and has no device"
    return _devices


def on_host():
    return os.environ.get("CUATTN_ORT_HOST") == "1"


def counts():
    """What the plugin has done so far."""
    values = (ctypes.c_uint64 * len(COUNTS))()
    assert _library.CuattnStatistics(values, len(COUNTS)) == len(COUNTS)
    return dict(zip(COUNTS, values))


class Since:
    """The difference of counts since it was made."""

    def __init__(self):
        self.before = counts()

    def __getitem__(self, name):
        return counts()[name] - self.before[name]


def session(model, *, fallback=False, options=None, quiet=True, record=True):
    """A session of the plugin. Without `fallback` a node that nobody but the CPU takes is an error."""
    config = ort.SessionOptions()
    config.log_severity_level = 4 if quiet else 2
    if not fallback:
        config.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    if record:
        config.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    config.add_provider_for_devices(_devices[:1], options or {})
    data = model if isinstance(model, bytes) else model.SerializeToString()
    return ort.InferenceSession(data, sess_options=config)


def cpu_session(model):
    config = ort.SessionOptions()
    config.log_severity_level = 4
    return ort.InferenceSession(model.SerializeToString(), sess_options=config, providers=["CPUExecutionProvider"])


def assigned(sess):
    """Operators by the provider that runs them."""
    nodes = {}
    for part in sess.get_provider_graph_assignment_info():
        nodes.setdefault(part.ep_name, []).extend(node.op_type for node in part.get_nodes())
    return nodes


def value(array):
    """An array as a tensor of the host, bfloat16 too."""
    array = np.ascontiguousarray(array)
    if array.dtype == ml_dtypes.bfloat16:
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), 16)
    return ort.OrtValue.ortvalue_from_numpy(array)


def array(tensor):
    """A tensor of the host as an array, bfloat16 too."""
    if "bfloat16" not in tensor.data_type():
        return tensor.numpy()
    shape = tuple(tensor.shape())
    count = int(np.prod(shape))
    if count == 0:
        return np.zeros(shape, ml_dtypes.bfloat16)
    words = ctypes.cast(tensor.data_ptr(), ctypes.POINTER(ctypes.c_uint16 * count)).contents
    return np.frombuffer(words, np.uint16).copy().view(ml_dtypes.bfloat16).reshape(shape)


def run(sess, inputs):
    """Runs with arrays by name, and returns arrays."""
    return [array(out) for out in sess.run_with_ort_values(None, {name: value(x) for name, x in inputs.items()})]


def on_device(x):
    """A copy of an array in device memory."""
    return ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(x), "gpu", 0, NVIDIA)


def empty_on_device(shape, dtype):
    return ort.OrtValue.ortvalue_from_shape_and_type(list(shape), dtype, "gpu", 0, NVIDIA)


def device_name():
    """The GPU's name, as the driver's own tool knows it."""
    if on_host():
        return "host"
    import subprocess

    try:
        names = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True,
                               text=True, check=True).stdout.splitlines()
        return names[0].strip()
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "unknown GPU"
