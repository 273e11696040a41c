"""The implementations that ours is compared with.

A peer's `build(inputs)` returns a callable that makes one call and returns its output, or raises `Unsupported` with the
reason. `layout` says how that output lies: as q does ("bhsd", packed), or "bshd".
"""

import importlib
from importlib import metadata

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel


class Unsupported(Exception):
    """This peer does not do this problem."""


class Sdpa:
    """One backend of PyTorch's `scaled_dot_product_attention`."""

    layout = "bhsd"

    def __init__(self, name, backend, biases, grouped, version):
        self.name, self.backend, self.biases, self.grouped, self.version = name, backend, biases, grouped, version

    def build(self, inputs):
        case = inputs.case
        if case.lengths:
            raise Unsupported("packed sequences: only through varlen_attn")
        if case.window or case.softcap:
            raise Unsupported("no window and no softcap in scaled_dot_product_attention")
        if case.bias and not self.biases:
            raise Unsupported("no bias")
        grouped = case.q_heads != case.kv_heads
        if grouped and not self.grouped:
            raise Unsupported("no grouped queries")
        # PyTorch aligns `is_causal` top-left; with one query row at the end of the keys there is nothing to mask.
        causal = case.causal and case.q_len > 1
        if causal and case.q_len != case.kv_len:
            raise Unsupported("causal is aligned top-left")
        q, k, v, bias = inputs.q, inputs.k, inputs.v, inputs.bias

        def run():
            with sdpa_kernel(self.backend):
                return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=causal, enable_gqa=grouped)

        return run


class Unfused:
    """Scores, softmax and product as three PyTorch calls: baddbmm, softmax, bmm."""

    name, layout = "unfused", "bhsd"

    def __init__(self, version):
        self.version = version

    def build(self, inputs):
        case = inputs.case
        if case.lengths or case.causal or case.bias or case.softcap or case.q_heads != case.kv_heads:
            raise Unsupported("only plain attention with as many key heads as query heads")
        heads = case.batch * case.q_heads
        q = inputs.q.view(heads, case.q_len, case.head_dim)
        k = inputs.k.view(heads, case.kv_len, case.head_dim).transpose(1, 2)
        v = inputs.v.view(heads, case.kv_len, case.head_dim)
        scores = torch.empty(heads, case.q_len, case.kv_len, dtype=inputs.dtype, device="cuda")
        scale, shape = case.head_dim**-0.5, inputs.q.shape

        def run():
            # beta 0: what the scores held before is not read.
            scores.baddbmm_(q, k, beta=0, alpha=scale)
            return torch.bmm(torch.softmax(scores, -1), v).view(shape)

        return run


class FlashAttention3:
    """A wheel of FlashAttention-3, through the interface module it brings."""

    layout = "bshd"

    def __init__(self, name, module, version):
        self.name, self.module, self.version = name, module, version

    def build(self, inputs):
        case, fa3 = inputs.case, self.module
        if case.dtype == "f32":
            raise Unsupported("no float32")
        if case.bias:
            raise Unsupported("no bias")
        options = {"causal": case.causal}
        if case.window:
            options["window_size"] = (case.window - 1, 0)
        if case.softcap:
            options["softcap"] = case.softcap
        if case.lengths:
            longest = max(case.lengths)
            q, k, v, cu = inputs.q, inputs.k, inputs.v, inputs.cu_seqlens
            return lambda: first(fa3.flash_attn_varlen_func(q, k, v, cu, cu, longest, longest, **options))
        q, k, v = inputs.bshd()
        if case.q_len == 1:
            lengths = torch.full((case.batch,), case.kv_len, dtype=torch.int32, device="cuda")
            return lambda: first(fa3.flash_attn_with_kvcache(q, k, v, cache_seqlens=lengths, num_splits=0, **options))
        return lambda: first(fa3.flash_attn_func(q, k, v, **options))


class TorchVarlen:
    """PyTorch's `varlen_attn`: FlashAttention-2 over packed sequences."""

    name, layout = "fa2-varlen", "packed"

    def __init__(self, version):
        self.version = version

    def build(self, inputs):
        case = inputs.case
        if not case.lengths:
            raise Unsupported("only packed sequences")
        try:
            from torch.nn.attention.varlen import varlen_attn
        except ImportError as missing:
            raise Unsupported(f"this PyTorch has no varlen_attn: {missing}") from missing
        q, k, v, cu, longest = inputs.q, inputs.k, inputs.v, inputs.cu_seqlens, max(case.lengths)
        if case.q_heads != case.kv_heads:
            # It takes no grouped queries; the copies are made once, outside the timing.
            group = case.q_heads // case.kv_heads
            k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        window = (-1, 0) if case.causal else (-1, -1)
        return lambda: varlen_attn(q, k, v, cu, cu, longest, longest, window_size=window)


def first(result):
    """Some versions return the log-sum-exp beside the output."""
    return result[0] if isinstance(result, (tuple, list)) else result


def as_q(peer, output):
    """The output laid out as q is."""
    return output.transpose(1, 2) if peer.layout == "bshd" and output.dim() == 4 else output


def available():
    """The peers of this machine, and `{name: why not}` of those it lacks."""
    pytorch = f"PyTorch {torch.__version__}"
    cudnn = torch.backends.cudnn.version()
    peers = [
        Sdpa("cudnn", SDPBackend.CUDNN_ATTENTION, biases=True, grouped=True, version=f"cuDNN {cudnn}, {pytorch}"),
        Sdpa("fa2", SDPBackend.FLASH_ATTENTION, biases=False, grouped=True, version=f"FlashAttention-2 of {pytorch}"),
        Sdpa("efficient", SDPBackend.EFFICIENT_ATTENTION, biases=True, grouped=False, version=pytorch),
        Sdpa("math", SDPBackend.MATH, biases=True, grouped=True, version=pytorch),
        Unfused(pytorch),
        TorchVarlen(pytorch),
    ]
    missing = {}
    wheels = (
        ("fa3", "flash_attn_interface", ("tokenspeed-fa3", "flash-attn-3")),
        ("fa3-fwd", "fa3_fwd_interface", ("fa3-fwd",)),
    )
    for name, module, distributions in wheels:
        try:
            peers.append(FlashAttention3(name, importlib.import_module(module), wheel_version(distributions)))
        except (
            Exception
        ) as failure:  # a wheel for another PyTorch or GPU fails in many ways, all of which mean: not here
            missing[name] = f"cannot import {module}: {failure}"
    return peers, missing


def wheel_version(distributions):
    for distribution in distributions:
        try:
            return f"{distribution} {metadata.version(distribution)}"
        except metadata.PackageNotFoundError:
            continue
    return "version unknown (imported from a folder, not from an installed wheel)"


# Which peers a suite is compared with. Those that only waste the machine's time there are left out.
PEERS_OF_SUITE = {
    "prefill": ("fa3", "fa3-fwd", "cudnn", "fa2", "efficient"),
    "small": ("fa3", "fa3-fwd", "cudnn", "fa2"),
    "masks": ("cudnn", "efficient", "math"),
    "window": ("fa3", "fa3-fwd"),
    "softcap": ("fa3", "fa3-fwd"),
    "f32": ("efficient", "math", "unfused"),
    "phase2a": ("unfused",),
    "decode": ("fa3", "fa3-fwd", "cudnn", "fa2"),
    "varlen": ("fa3", "fa3-fwd", "fa2-varlen"),
}
