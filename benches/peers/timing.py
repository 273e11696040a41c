"""Timing that treats every implementation of a row alike.

Each implementation is one call captured in a CUDA graph, so what is compared is the device's work and not how fast
Python reaches it. The L2 cache is overwritten before every repetition. The card heats as it works, and whatever runs
later runs slower by several per cent; so the implementations of a row take turns, over several rounds, in an order that
rotates, and each gets the median of its rounds' medians.
"""

import statistics
import time

# Several times the largest L2 there is: what an earlier repetition left there is gone.
FLUSH_BYTES = 256 << 20


def rotated(items, round_index, rounds):
    """`items` starting from another place each round."""
    start = round_index * len(items) // rounds
    return items[start:] + items[:start]


def repetitions(estimate_ms, budget_ms, at_least=5, at_most=400):
    """How often to repeat something that takes `estimate_ms` so that it fills `budget_ms`."""
    return max(at_least, min(at_most, int(budget_ms / max(estimate_ms, 1e-4))))


def summary(rounds):
    """Median of the rounds' medians, and how far the rounds lie apart relative to it."""
    median = statistics.median(rounds)
    return median, (max(rounds) - min(rounds)) / median


class Timer:
    """Times on one stream, which must be the current one."""

    def __init__(self, stream, rounds=3, warmup_ms=4.0, budget_ms=14.0):
        import torch

        self.torch = torch
        self.stream = stream
        self.rounds, self.warmup_ms, self.budget_ms = rounds, warmup_ms, budget_ms
        self.flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")

    def capture(self, run):
        """A graph of one call. Everything lazy (compilation, heuristics, workspaces) happens in the calls before."""
        for _ in range(2):
            run()
        self.torch.cuda.synchronize()
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph, stream=self.stream):
            run()
        graph.replay()
        self.torch.cuda.synchronize()
        return graph

    def once(self, run):
        """Milliseconds of one call without overwriting the cache: an estimate."""
        start, end = self._events(), self._events()
        run()
        start.record()
        for _ in range(3):
            run()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 3

    def median(self, run, estimate_ms):
        """Median milliseconds of a call, the cache overwritten before each."""
        for _ in range(repetitions(estimate_ms, self.warmup_ms, at_least=2)):
            run()
        pairs = [(self._events(), self._events()) for _ in range(repetitions(estimate_ms, self.budget_ms))]
        for start, end in pairs:
            self.flush.zero_()
            start.record()
            run()
            end.record()
        self.torch.cuda.synchronize()
        return statistics.median(start.elapsed_time(end) for start, end in pairs)

    def in_turn(self, runs):
        """`{name: (milliseconds, spread)}` of `{name: callable}`."""
        estimates = {name: self.once(run) for name, run in runs.items()}
        medians = {name: [] for name in runs}
        for index in range(self.rounds):
            for name in rotated(list(runs), index, self.rounds):
                # A breath between implementations: none starts on the heat of the one before.
                time.sleep(0.008)
                medians[name].append(self.median(runs[name], estimates[name]))
        return {name: summary(rounds) for name, rounds in medians.items()}

    def _events(self):
        return self.torch.cuda.Event(enable_timing=True)
