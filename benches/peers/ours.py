"""Our side, through the C interface of `libcuattn_bench.so` (`benches/src/abi.rs`), on PyTorch's stream and tensors."""

import ctypes
import json
import os
import sysconfig

ABI_VERSION = 1

# In the order of `Operands` in benches/src/abi.rs.
OPERANDS = ("q", "k", "v", "o", "bias", "cu_seqlens_q", "cu_seqlens_kv", "workspace")


class Refused(Exception):
    """What the library said."""


class Span(ctypes.Structure):
    _fields_ = [("address", ctypes.c_uint64), ("bytes", ctypes.c_uint64)]


class Operands(ctypes.Structure):
    _fields_ = [(name, Span) for name in OPERANDS]


def span(tensor):
    """Address and extent of a tensor, from its first to its last element."""
    if tensor is None or tensor.numel() == 0:
        return Span(0, 0)
    reach = 1 + sum((extent - 1) * stride for extent, stride in zip(tensor.shape, tensor.stride()))
    return Span(tensor.data_ptr(), reach * tensor.element_size())


class Library:
    """The shared library, opened on one CUDA stream."""

    def __init__(self, path, stream):
        # PyTorch's own wheels hold NVRTC and cuBLASLt. This Python need not be an active environment for us to use them.
        os.environ.setdefault("CURT_WHEELS", sysconfig.get_paths()["purelib"])
        self.lib = ctypes.CDLL(path)
        void = ctypes.c_void_p
        signatures = {
            "cuattn_bench_abi_version": (ctypes.c_uint32, []),
            "cuattn_bench_error": (ctypes.c_char_p, []),
            "cuattn_bench_open": (ctypes.c_int32, [void, void, ctypes.POINTER(void)]),
            "cuattn_bench_close": (None, [void]),
            "cuattn_bench_describe": (ctypes.c_char_p, [void]),
            "cuattn_bench_plan": (ctypes.c_int32, [void, ctypes.c_char_p, ctypes.POINTER(void)]),
            "cuattn_bench_plan_describe": (ctypes.c_char_p, [void]),
            "cuattn_bench_plan_close": (None, [void]),
            "cuattn_bench_launch": (ctypes.c_int32, [void, ctypes.POINTER(Operands)]),
            "cuattn_bench_time_eager": (
                ctypes.c_int32,
                [void, ctypes.POINTER(Operands), ctypes.c_uint64, ctypes.c_uint64, ctypes.POINTER(ctypes.c_float)],
            ),
            "cuattn_bench_launch_overhead": (
                ctypes.c_int32,
                [void, ctypes.POINTER(Operands), ctypes.c_uint64, ctypes.POINTER(ctypes.c_double)],
            ),
        }
        for name, (result, arguments) in signatures.items():
            function = getattr(self.lib, name)
            function.restype, function.argtypes = result, arguments
        version = self.lib.cuattn_bench_abi_version()
        if version != ABI_VERSION:
            raise Refused(
                f"{path} speaks version {version} of the interface, this script version {ABI_VERSION}: rebuild it"
            )
        self.session = void()
        self.check(self.lib.cuattn_bench_open(None, stream, ctypes.byref(self.session)))

    def check(self, status):
        if status != 0:
            raise Refused(self.lib.cuattn_bench_error().decode())

    def describe(self):
        return json.loads(self.lib.cuattn_bench_describe(self.session))

    def plan(self, problem):
        return Plan(self, problem)

    def close(self):
        if self.session:
            self.lib.cuattn_bench_close(self.session)
            self.session = None


class Plan:
    """A plan, and the operands it was last bound to."""

    def __init__(self, library, problem):
        self.library, self.handle = library, ctypes.c_void_p()
        library.check(
            library.lib.cuattn_bench_plan(library.session, json.dumps(problem).encode(), ctypes.byref(self.handle))
        )
        self.info = json.loads(library.lib.cuattn_bench_plan_describe(self.handle))
        self.operands = None

    def bind(self, **tensors):
        """Takes the tensors by name. They are kept alive as long as the plan is bound to them."""
        self.tensors = tensors
        self.operands = Operands(**{name: span(tensor) for name, tensor in tensors.items()})

    def launch(self):
        self.library.check(self.library.lib.cuattn_bench_launch(self.handle, ctypes.byref(self.operands)))

    def time_eager(self, repetitions, flush_bytes):
        """Milliseconds of each of some launches, by CUDA events around the launch itself."""
        times = (ctypes.c_float * repetitions)()
        self.library.check(
            self.library.lib.cuattn_bench_time_eager(
                self.handle, ctypes.byref(self.operands), repetitions, flush_bytes, times
            )
        )
        return list(times)

    def launch_overhead_us(self, launches):
        """Host time of a launch, over many without waiting for the device."""
        result = ctypes.c_double()
        self.library.check(
            self.library.lib.cuattn_bench_launch_overhead(
                self.handle, ctypes.byref(self.operands), launches, ctypes.byref(result)
            )
        )
        return result.value

    def close(self):
        if self.handle:
            self.library.lib.cuattn_bench_plan_close(self.handle)
            self.handle = None


def problem(case):
    """A case as the library's JSON. All tensors are contiguous."""
    if case.lengths:
        return {
            "kind": "varlen",
            "engine": case.engine,
            "shape": {
                "batch": case.batch,
                "total_q": sum(case.lengths),
                "total_kv": sum(case.lengths),
                "max_q_len": max(case.lengths),
                "max_kv_len": max(case.lengths),
                "q_heads": case.q_heads,
                "kv_heads": case.kv_heads,
                "head_dim": case.head_dim,
                "v_head_dim": case.head_dim,
            },
            "dtype": case.dtype,
            "causal": case.causal,
        }
    described = {
        "kind": "dense",
        "shape": {
            "batch": case.batch,
            "q_heads": case.q_heads,
            "kv_heads": case.kv_heads,
            "q_len": case.q_len,
            "kv_len": case.kv_len,
            "head_dim": case.head_dim,
            "v_head_dim": case.head_dim,
        },
        "dtype": case.dtype,
        "engine": case.engine,
        "causal": case.causal,
        "alignment": "bottom_right",
    }
    if case.window:
        described["window_left"] = case.window - 1
    if case.softcap:
        described["softcap"] = case.softcap
    if case.bias:
        plane = case.q_len * case.kv_len
        described["bias"] = {
            "kind": "boolean" if case.bias == "boolean" else case.dtype,
            "batch": plane if case.bias == "additive_batch" else 0,
            "head": 0,
            "row": case.kv_len,
            "key": 1,
            "keys": case.kv_len,
        }
    return described


def bind(plan, inputs):
    """Binds a plan to the tensors of a row, with an output full of NaN and its workspace. Returns the output."""
    import torch

    output = torch.full_like(inputs.q, float("nan"))
    size = plan.info["workspace_bytes"]
    # PyTorch aligns to 512 bytes, more than any plan asks for.
    workspace = torch.empty(size, dtype=torch.uint8, device="cuda") if size else None
    tensors = {"q": inputs.q, "k": inputs.k, "v": inputs.v, "o": output, "bias": inputs.bias, "workspace": workspace}
    if inputs.cu_seqlens is not None:
        tensors |= {"cu_seqlens_q": inputs.cu_seqlens, "cu_seqlens_kv": inputs.cu_seqlens}
    plan.bind(**tensors)
    return output
