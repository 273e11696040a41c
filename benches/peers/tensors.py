"""Inputs of a row, and what its output must be."""

import torch

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}

# Relative L2 distance from float64 that an implementation may have.
TOLERANCE = {"f32": 2e-6, "f16": 1e-3, "bf16": 6e-3}
# Peers owe us nothing, but one that computes something coarser (TF32 for float32, say) is not compared.
PEER_SLACK = 5.0


class Inputs:
    """Random normal tensors of a case. Dense: `[batch, heads, len, dim]`; packed: `[tokens, heads, dim]`."""

    def __init__(self, case, seed):
        generator = torch.Generator(device="cuda").manual_seed(seed)
        dtype = DTYPES[case.dtype]

        def normal(*shape, dtype=dtype):
            return torch.randn(*shape, dtype=dtype, device="cuda", generator=generator)

        self.case, self.dtype = case, dtype
        self.bias = self.cu_seqlens = None
        if case.lengths:
            tokens = sum(case.lengths)
            self.q = normal(tokens, case.q_heads, case.head_dim)
            self.k = normal(tokens, case.kv_heads, case.head_dim)
            self.v = normal(tokens, case.kv_heads, case.head_dim)
            ends = torch.tensor((0,) + case.lengths, dtype=torch.int64).cumsum(0)
            self.cu_seqlens = ends.to(torch.int32).cuda()
        else:
            self.q = normal(case.batch, case.q_heads, case.q_len, case.head_dim)
            self.k = normal(case.batch, case.kv_heads, case.kv_len, case.head_dim)
            self.v = normal(case.batch, case.kv_heads, case.kv_len, case.head_dim)
        if case.bias == "boolean":
            plane = (1, 1, case.q_len, case.kv_len)
            self.bias = torch.rand(plane, device="cuda", generator=generator) > 0.2
        elif case.bias:
            planes = case.batch if case.bias == "additive_batch" else 1
            self.bias = normal(planes, 1, case.q_len, case.kv_len)
        self._bshd = None

    def bshd(self):
        """q, k and v as `[batch, len, heads, dim]`, for peers that want them so."""
        if self._bshd is None:
            self._bshd = tuple(x.transpose(1, 2).contiguous() for x in (self.q, self.k, self.v))
        return self._bshd


class Expected:
    """Rows of the output, computed in float64 from the stored inputs: a few heads, up to `ROWS` rows of each."""

    ROWS = 512

    def __init__(self, inputs):
        self.inputs, case = inputs, inputs.case
        self.samples = []
        if case.lengths:
            # The longest, the shortest, the first and the last sequence.
            order = sorted(range(case.batch), key=lambda index: case.lengths[index])
            picks = {(order[-1], 0), (order[0], case.q_heads - 1), (0, case.q_heads // 3), (case.batch - 1, 0)}
        else:
            last, head = case.batch - 1, case.q_heads - 1
            picks = {(0, 0), (last, head), (case.batch // 2, case.q_heads // 3), (last, 0)}
        for sequence, head in sorted(picks):
            rows = self._rows(self._slice(inputs.q, sequence, head).shape[0])
            self.samples.append((sequence, head, rows, self._attend(sequence, head, rows)))

    def error(self, output):
        """Relative L2 distance of `output`, laid out as q is, over the sampled rows; infinite where it is NaN."""
        difference = norm = 0.0
        for sequence, head, rows, expected in self.samples:
            got = self._slice(output, sequence, head)[rows].double()
            difference += (got - expected).square().sum().item()
            norm += expected.square().sum().item()
        error = (difference / max(norm, 1e-300)) ** 0.5
        return error if error == error else float("inf")

    def _slice(self, tensor, sequence, head):
        if not self.inputs.case.lengths:
            return tensor[sequence, head]
        lengths = self.inputs.case.lengths
        start = sum(lengths[:sequence])
        return tensor[start : start + lengths[sequence], head]

    def _rows(self, length):
        if length <= self.ROWS:
            return torch.arange(length, device="cuda")
        # Both ends, where tiles are ragged, and a random middle.
        edge = self.ROWS // 4
        middle = torch.randperm(length - 2 * edge, device="cuda")[: self.ROWS - 2 * edge] + edge
        ends = [torch.arange(edge, device="cuda"), torch.arange(length - edge, length, device="cuda")]
        return torch.cat([ends[0], middle, ends[1]])

    def _attend(self, sequence, head, rows):
        inputs, case = self.inputs, self.inputs.case
        kv_head = head // (case.q_heads // case.kv_heads)
        q = self._slice(inputs.q, sequence, head)
        k = self._slice(inputs.k, sequence, kv_head).double()
        v = self._slice(inputs.v, sequence, kv_head).double()
        scores = (q[rows].double() @ k.T) * case.head_dim**-0.5
        if case.softcap:
            scores = case.softcap * torch.tanh(scores / case.softcap)
        if inputs.bias is not None:
            plane = inputs.bias[sequence if inputs.bias.shape[0] > 1 else 0, 0][rows]
            scores = scores.masked_fill(~plane, float("-inf")) if plane.dtype == torch.bool else scores + plane.double()
        if case.causal:
            keys = torch.arange(k.shape[0], device="cuda")[None, :]
            position = rows[:, None] + (k.shape[0] - q.shape[0])
            hidden = keys > position
            if case.window:
                hidden |= keys <= position - case.window
            scores = scores.masked_fill(hidden, float("-inf"))
        return torch.softmax(scores, 1).nan_to_num_(0.0) @ v


def distance(output, other):
    """Relative L2 distance between two whole outputs; infinite where either is not finite."""
    difference = norm = 0.0
    # A part at a time: a float32 copy of a large output need not exist at once.
    for mine, theirs in zip(output.chunk(16), other.chunk(16)):
        theirs = theirs.float()
        difference += (mine.float() - theirs).square().sum(dtype=torch.float64).item()
        norm += theirs.square().sum(dtype=torch.float64).item()
    result = (difference / max(norm, 1e-300)) ** 0.5
    return result if result == result else float("inf")
