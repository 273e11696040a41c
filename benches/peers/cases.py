"""The tables of the comparison: which problems are run, how much work each is, and which come first."""

import random
from dataclasses import dataclass
from typing import Optional, Tuple

# Rows of priority 0 are what `--quick` runs, and what a time budget reaches first.
QUICK, TABLE, EXTRA = 0, 1, 2


@dataclass(frozen=True)
class Case:
    """One problem. `lengths` makes it a packed one: one query and key length a sequence."""

    suite: str
    batch: int
    q_heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    head_dim: int
    dtype: str = "bf16"
    causal: bool = False  # bottom-right aligned
    window: Optional[int] = None  # keys a row sees, itself included; causal
    softcap: Optional[float] = None
    bias: Optional[str] = None  # "additive" [1,1,S,S], "additive_batch" [B,1,S,S], "boolean" [1,1,S,S]
    lengths: Optional[Tuple[int, ...]] = None
    label: Optional[str] = None
    engine: str = "auto"
    priority: int = TABLE

    @property
    def name(self):
        heads = f"{self.q_heads}/{self.kv_heads}"
        if self.lengths:
            base = f"{self.label} h{heads} d{self.head_dim}"
        else:
            extent = f"{self.q_len}" if self.q_len == self.kv_len else f"{self.q_len}x{self.kv_len}"
            base = f"b{self.batch} h{heads} {extent} d{self.head_dim}"
        parts = [base, self.dtype]
        if self.window:
            parts.append(f"window {self.window}")
        elif self.causal and self.q_len > 1:
            parts.append("causal")
        if self.softcap:
            parts.append(f"softcap {self.softcap:g}")
        if self.bias:
            parts.append(self.bias)
        return " ".join(parts)

    @property
    def sequences(self):
        """(q_len, kv_len) of each sequence."""
        return [(n, n) for n in self.lengths] if self.lengths else [(self.q_len, self.kv_len)] * self.batch

    def visible_pairs(self):
        """Query-key pairs that masks leave, over the batch, for one head. A bias counts as if it hid nothing."""
        counts = {}
        for sequence in self.sequences:
            counts[sequence] = counts.get(sequence, 0) + 1
        return sum(times * self._pairs(*sequence) for sequence, times in counts.items())

    def _pairs(self, q_len, kv_len):
        if not self.causal:
            return q_len * kv_len
        seen = (min(kv_len, max(0, row + 1 + kv_len - q_len)) for row in range(q_len))
        return sum(min(keys, self.window) if self.window else keys for keys in seen)

    def flops(self):
        """Multiply-adds of both products over visible pairs, two operations each."""
        return 4 * self.q_heads * self.visible_pairs() * self.head_dim

    def bytes(self):
        """Inputs read once and the output written once."""
        q_rows = sum(q for q, _ in self.sequences)
        kv_rows = sum(k for _, k in self.sequences)
        return self.element_size() * self.head_dim * 2 * (q_rows * self.q_heads + kv_rows * self.kv_heads)

    def element_size(self):
        return 4 if self.dtype == "f32" else 2

    @property
    def unit(self):
        return "GB/s" if self.suite == "decode" else "TFLOP/s"

    def rate(self, ms):
        """In `unit`."""
        return self.bytes() / ms / 1e6 if self.suite == "decode" else self.flops() / ms / 1e9


def square(suite, batch, heads, length, head_dim, **options):
    q_heads, kv_heads = heads
    return Case(suite, batch, q_heads, kv_heads, length, length, head_dim, **options)


def prefill(dtype="bf16"):
    """16,384 tokens a batch, 2048 features over all heads, and grouped queries as Llama 3 8B has them."""
    rows = []
    quick = {(128, 1024), (128, 4096)}
    for head_dim in (64, 128, 256):
        heads = (2048 // head_dim, 2048 // head_dim)
        for length in (512, 1024, 2048, 4096, 8192, 16384):
            for causal in (False, True):
                first = (head_dim, length) in quick or (causal and length == 4096)
                rows.append(
                    square(
                        "prefill",
                        16384 // length,
                        heads,
                        length,
                        head_dim,
                        dtype=dtype,
                        causal=causal,
                        priority=QUICK if first else TABLE,
                    )
                )
    for length in (1024, 4096, 8192):
        rows.append(
            square(
                "prefill",
                16384 // length,
                (32, 8),
                length,
                128,
                dtype=dtype,
                causal=True,
                priority=QUICK if length == 4096 else TABLE,
            )
        )
    return rows


def small():
    """Grids too small to fill the device."""
    return [
        square("small", 1, (8, 8), length, head_dim, causal=causal, priority=EXTRA)
        for head_dim in (64, 128)
        for length in (512, 1024, 2048)
        for causal in (False, True)
    ]


def masks():
    shapes = ((4, (16, 16), 4096, 128), (16, (16, 16), 1024, 128), (4, (32, 32), 4096, 64))
    return [
        square("masks", *shape, bias=bias, priority=QUICK if index == 0 and bias != "additive_batch" else TABLE)
        for index, shape in enumerate(shapes)
        for bias in ("additive", "additive_batch", "boolean")
    ]


def window():
    """A sliding window of 1024 keys."""
    return [
        square("window", 4, (16, 16), 4096, 128, causal=True, window=1024, priority=QUICK),
        square("window", 4, (32, 32), 4096, 64, causal=True, window=1024),
        square("window", 1, (16, 16), 16384, 128, causal=True, window=1024),
    ]


def softcap():
    return [
        square("softcap", 4, (16, 16), 4096, 128, causal=True, softcap=30.0, priority=EXTRA),
        square("softcap", 16, (16, 16), 1024, 128, causal=True, softcap=30.0, priority=EXTRA),
        square("softcap", 4, (32, 32), 4096, 64, causal=True, softcap=30.0, priority=EXTRA),
    ]


def f32():
    return [
        square("f32", 4, (16, 16), 1024, 64, dtype="f32"),
        square("f32", 2, (16, 16), 2048, 128, dtype="f32", causal=True),
        square("f32", 1, (16, 16), 4096, 128, dtype="f32", causal=True, priority=QUICK),
        square("f32", 4, (16, 16), 4096, 128, dtype="f32"),
        square("f32", 32, (16, 16), 512, 128, dtype="f32"),
    ]


def decode():
    """One query token a sequence."""
    rows = []
    for q_heads, kv_heads, head_dim in ((32, 8, 128), (32, 32, 128), (64, 8, 128), (16, 1, 256), (32, 8, 64)):
        for batch, keys in ((1, 4096), (1, 65536), (8, 8192), (32, 4096), (128, 2048)):
            first = (q_heads, head_dim, batch) == (32, 128, 32) or (q_heads, head_dim, keys) == (32, 128, 4096)
            rows.append(
                Case(
                    "decode",
                    batch,
                    q_heads,
                    kv_heads,
                    1,
                    keys,
                    head_dim,
                    causal=True,
                    priority=QUICK if first and kv_heads == 8 else TABLE,
                )
            )
    return rows


def drawn_lengths():
    """The three ragged batches, drawn from one stream of the 32-bit Mersenne twister with seed 7.

    The stream is that of `torch.Generator().manual_seed(7)`, so these are the lengths that PyTorch's
    `randint` would give; drawing them here keeps the tables free of PyTorch.
    """
    state = [7]
    for index in range(1, 624):
        previous = state[-1]
        state.append((1812433253 * (previous ^ (previous >> 30)) + index) & 0xFFFFFFFF)
    stream = random.Random()
    stream.setstate((3, tuple(state) + (624,), None))

    def draw(low, high, count):
        return tuple(low + stream.getrandbits(32) % (high - low) for _ in range(count))

    return {
        "uniform64": draw(16, 2048, 64),
        "skewed": (8192, 4096) + draw(32, 512, 62),
        "short256": draw(8, 128, 256),
    }


def varlen():
    """Packed sequences."""
    lengths = drawn_lengths()
    stream = random.Random(4096)
    lengths["tiny4096"] = tuple(stream.randint(1, 64) for _ in range(4096))
    lengths["equal8"] = (2048,) * 8
    rows = []
    for label, drawn in lengths.items():
        for q_heads, kv_heads, head_dim, causal in ((16, 16, 128, True), (32, 8, 128, True), (16, 16, 64, False)):
            first = (q_heads, head_dim) == (16, 128) and label in ("uniform64", "short256")
            rows.append(
                Case(
                    "varlen",
                    len(drawn),
                    q_heads,
                    kv_heads,
                    max(drawn),
                    max(drawn),
                    head_dim,
                    causal=causal,
                    lengths=drawn,
                    label=label,
                    priority=QUICK if first else TABLE,
                )
            )
    return rows


def phase2a():
    """The unfused engine against its three PyTorch calls."""
    return [
        square("phase2a", *shape, 128, dtype=dtype, engine="phase2a", priority=QUICK)
        for shape in ((32, (16, 16), 512), (4, (16, 16), 4096))
        for dtype in ("f16", "f32")
    ]


SUITES = {
    "prefill": prefill,
    "masks": masks,
    "window": window,
    "f32": f32,
    "phase2a": phase2a,
    "decode": decode,
    "varlen": varlen,
    "softcap": softcap,
    "small": small,
}


def table(suite, dtype="bf16"):
    """All rows of a suite, in the order that people read them. `dtype` is that of the prefill table."""
    return SUITES[suite](dtype) if suite == "prefill" else SUITES[suite]()


def select(suites, dtype="bf16", quick=False, pattern=None):
    """The rows to run, most important first: by priority, then by table order.

    `pattern` keeps rows whose name contains every one of its words.
    """
    unknown = [suite for suite in suites if suite not in SUITES]
    if unknown:
        raise ValueError(f"no suite named {', '.join(unknown)}; there are {', '.join(SUITES)}")
    rows = [row for suite in suites for row in table(suite, dtype)]
    if quick:
        rows = [row for row in rows if row.priority == QUICK]
    if pattern:
        rows = [row for row in rows if all(word in row.name.split() for word in pattern.split())]
    return sorted(rows, key=lambda row: row.priority)
