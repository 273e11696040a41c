#!/usr/bin/env python3
"""Ours and PyTorch's attention kernels on the same tensors, on the same GPU, in one process.

    python3 compare.py --library libcuattn_bench.so --out report.json
    python3 compare.py --library libcuattn_bench.so --suite prefill masks --quick --seconds 200

Every implementation of a row is checked before it is timed: outputs against float64 on sampled rows, ours against the
best peer's on the whole tensor. What is wrong is reported and not timed. See timing.py for how times are taken. The
exit code is 1 where a row failed, launch overhead could not be measured, or nothing was compared.

Needs PyTorch with CUDA. FlashAttention-3 is compared where one of its wheels can be imported (`flash_attn_interface` or
`fa3_fwd_interface`). `cargo xtask bench` builds the library and calls this.
"""

import argparse
import dataclasses
import gc
import json
import os
import statistics
import subprocess
import sys
import time

import cases
import report

HERE = os.path.dirname(os.path.abspath(__file__))
LAUNCH = "launch"
# A second row needs about this long; one is not begun without it.
ROW_SECONDS = 4.0


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True, help="path of libcuattn_bench.so")
    parser.add_argument("--out", help="where the JSON goes (default: $OUT/peers.json, or ./peers.json)")
    suites = [*cases.SUITES, LAUNCH]
    parser.add_argument("--suite", nargs="+", default=suites, choices=suites, metavar="SUITE", help=", ".join(suites))
    parser.add_argument(
        "--rows", metavar="WORDS", help="only rows whose name holds all these words, e.g. 'causal d128'"
    )
    parser.add_argument("--quick", action="store_true", help="only the rows that matter most")
    parser.add_argument("--seconds", type=float, help="stop cleanly when this much time is spent")
    parser.add_argument("--dtype", default="bf16", choices=("bf16", "f16"), help="of the prefill table")
    parser.add_argument(
        "--engine", choices=("auto", "phase2a", "flash", "varlen", "mma"), help="ours, instead of each row's own choice"
    )
    parser.add_argument("--peers", nargs="*", help="only these peers")
    parser.add_argument("--rounds", type=int, default=3, help="turns that each implementation of a row takes")
    parser.add_argument("--commit", help="what was built (default: from git, or from commit.txt beside this file)")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


class Comparison:
    """The machine, the peers and our library, ready to run rows."""

    def __init__(self, options):
        import torch

        import ours
        import peers
        import tensors
        import timing

        self.torch, self.ours, self.peers, self.tensors = torch, ours, peers, tensors
        self.options = options
        # Float32 means float32, for everyone.
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        self.stream = torch.cuda.Stream()
        torch.cuda.set_stream(self.stream)
        self.timer = timing.Timer(self.stream, rounds=options.rounds)
        self.library = ours.Library(options.library, self.stream.cuda_stream)
        self.described = self.library.describe()
        self.available, self.missing = peers.available()

    def kind(self, suite):
        return "varlen" if suite == "varlen" else "dense"

    def row(self, case, index):
        """Checks and times one row."""
        torch = self.torch
        inputs = self.tensors.Inputs(case, self.options.seed + index)
        expected = self.tensors.Expected(inputs)
        tolerance = self.tensors.TOLERANCE[case.dtype]
        entries, graphs, outputs, runs = {}, {}, {}, {}
        error, plan = None, None
        try:
            plan = self.library.plan(self.ours.problem(case))
            entries[report.OURS] = {key: plan.info[key] for key in ("engine", "path", "workspace_bytes", "plan_ms")}
            output = self.ours.bind(plan, inputs)
            plan.launch()
            torch.cuda.synchronize()
            entries[report.OURS]["rel_l2"] = expected.error(output)
            outputs[report.OURS] = output
            if not entries[report.OURS]["rel_l2"] <= tolerance:
                error = f"ours is off by {entries[report.OURS]['rel_l2']:.2e}, allowed {tolerance:.0e}"
        except self.ours.Refused as refused:
            entries.setdefault(report.OURS, {})["error"] = str(refused)
            error = f"ours: {refused}"
        if error is None:
            runs[report.OURS] = plan.launch
            self.run_peers(case, inputs, expected, entries, outputs, runs)
            error = self.disagreement(entries, outputs, tolerance)
        outputs.clear()
        if error is None:
            for name in list(runs):
                try:
                    graphs[name] = self.timer.capture(runs[name])
                except Exception as failure:
                    entries[name]["error"] = f"not captured: {failure}"[:300]
                    if name == report.OURS:
                        error = entries[name]["error"]
        if error is None:
            # A replay leaves the output as the eager call did, or capture is broken.
            output.fill_(float("nan"))
            graphs[report.OURS].replay()
            torch.cuda.synchronize()
            replayed = expected.error(output)
            if not replayed <= tolerance:
                error = f"ours under graph replay is off by {replayed:.2e}"
        if error is None:
            times = self.timer.in_turn({name: graph.replay for name, graph in graphs.items()})
            for name, (ms, spread) in times.items():
                entries[name] |= {"ms": ms, "spread": spread}
            for name in graphs:
                entries[name]["eager_ms"] = self.eager(name, plan, runs[name], entries[name]["ms"])
        graphs.clear()
        if plan:
            plan.close()
        return report.row(case, entries, error)

    def run_peers(self, case, inputs, expected, entries, outputs, runs):
        """One checked call of each peer of the suite. Those that are right are added to `runs`."""
        allowed = self.tensors.TOLERANCE[case.dtype] * self.tensors.PEER_SLACK
        for peer in self.available:
            if peer.name not in self.peers.PEERS_OF_SUITE[case.suite]:
                continue
            if self.options.peers is not None and peer.name not in self.options.peers:
                continue
            try:
                run = peer.build(inputs)
                output = self.peers.as_q(peer, run())
                self.torch.cuda.synchronize()
            except self.peers.Unsupported as reason:
                entries[peer.name] = {"error": f"does not do this: {reason}"}
                continue
            except Exception as failure:  # whatever a peer throws, it is that peer that is missing from the row
                entries[peer.name] = {"error": str(failure)[:300]}
                continue
            entries[peer.name] = {"rel_l2": expected.error(output)}
            if entries[peer.name]["rel_l2"] <= allowed:
                outputs[peer.name], runs[peer.name] = output, run
            else:
                entries[peer.name]["error"] = (
                    f"off by {entries[peer.name]['rel_l2']:.2e}, allowed {allowed:.0e}: not timed"
                )

    def disagreement(self, entries, outputs, tolerance):
        """Why ours and a peer differ by more than both may differ from the truth, over the whole output; or None."""
        mine = outputs[report.OURS]
        if not self.torch.isfinite(mine).all():
            return "ours holds NaN or infinity, or left elements unwritten"
        for name, theirs in outputs.items():
            if name == report.OURS:
                continue
            apart = self.tensors.distance(mine, theirs)
            entries[name]["distance_to_ours"] = apart
            if not apart <= tolerance + max(tolerance, entries[name]["rel_l2"] * 2):
                return f"ours and {name} differ by {apart:.2e} over the whole output"
        return None

    def eager(self, name, plan, run, ms):
        """Milliseconds of a call outside a graph: ours through the public API, by events around `launch`."""
        import timing

        if name == report.OURS:
            times = plan.time_eager(timing.repetitions(ms, self.timer.budget_ms, at_least=8), timing.FLUSH_BYTES)
            return statistics.median(times)
        return self.timer.median(run, ms)


def launch_overhead(options):
    """Host-side times of a tiny problem: what launch_overhead.py prints, or None and why there is nothing."""
    command = [sys.executable, os.path.join(HERE, "launch_overhead.py"), options.library]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        return None, (done.stderr or done.stdout).strip()[-400:]
    return json.loads(done.stdout.splitlines()[-1]), None


def commit(options):
    if options.commit:
        return options.commit
    note = os.path.join(HERE, "commit.txt")
    if os.path.exists(note):
        return open(note).read().strip()
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"], cwd=HERE, capture_output=True, text=True
        )
        return done.stdout.strip() or None
    except OSError:
        return None


def clocks():
    """What the card reports of itself right now."""
    fields = ["clocks.sm", "clocks.mem", "power.draw", "temperature.gpu", "clocks_event_reasons.active"]
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"],
            capture_output=True, text=True, timeout=20,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as failure:
        return {"error": str(failure)}
    if done.returncode != 0:
        return {"error": (done.stderr or done.stdout).strip()}
    return dict(zip(fields, (value.strip() for value in done.stdout.splitlines()[0].split(","))))


def machine(torch):
    properties = torch.cuda.get_device_properties(0)
    try:
        driver = (
            subprocess.run(
                ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
                capture_output=True,
                text=True,
                timeout=20,
            )
            .stdout.splitlines()[0]
            .strip()
        )
    except (OSError, IndexError, subprocess.TimeoutExpired):
        driver = None
    return {
        "device": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "driver": driver,
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version(),
    }


def main():
    options = arguments()
    started = time.monotonic()
    try:
        import torch
    except ImportError as missing:
        sys.exit(f"the comparison needs PyTorch, which this Python lacks ({missing}): pip install torch")
    if not torch.cuda.is_available():
        sys.exit("the comparison needs a GPU, and PyTorch sees none here: nothing was compared")
    out = options.out or os.path.join(os.environ.get("OUT", "."), "peers.json")

    comparison = Comparison(options)
    rows, not_run, launch = [], [], None
    suites = [suite for suite in options.suite if suite != LAUNCH]
    for suite in list(suites):
        if comparison.kind(suite) not in comparison.described["kinds"]:
            not_run.append(
                {"suite": suite, "why": "not available yet: this library has no engine for packed sequences"}
            )
            suites.remove(suite)
    selected = cases.select(suites, options.dtype, options.quick, options.rows)
    if options.engine:
        selected = [dataclasses.replace(case, engine=options.engine) for case in selected]

    result = {
        "schema": report.SCHEMA,
        "date": report.today(),
        "commit": commit(options),
        "machine": machine(torch),
        "library": comparison.described,
        "peers": [{"name": peer.name, "version": peer.version} for peer in comparison.available],
        "missing_peers": comparison.missing,
        "method": (
            f"Medians of CUDA graph replays of one call, L2 overwritten before each; {options.rounds} rounds in which "
            "all implementations of a row take turns, order rotated. eager_ms: CUDA events around one call outside a "
            "graph, ours through the public launch. Random normal inputs. rel_l2: against float64 on sampled rows."
        ),
        "clocks": {"before": clocks()},
    }

    order = [(case.suite, case.name) for suite in suites for case in cases.table(suite, options.dtype)]

    def save():
        result["rows"] = sorted(rows, key=lambda r: order.index((r["suite"], r["case"])))
        result["summaries"] = report.summaries(result["rows"])
        result["not_run"], result["launch"] = not_run, launch
        result["seconds"] = round(time.monotonic() - started, 1)
        report.write(out, result)

    if LAUNCH in options.suite:
        launch, failure = launch_overhead(options)
        if failure:
            not_run.append({"suite": LAUNCH, "why": failure})
    for name, why in comparison.missing.items():
        print(f"no {name}: {why}", flush=True)
    last = ROW_SECONDS
    for index, case in enumerate(selected):
        left = None if options.seconds is None else options.seconds - (time.monotonic() - started)
        if left is not None and left < max(last, ROW_SECONDS):
            not_run += [
                {"suite": late.suite, "case": late.name, "why": "the time budget was spent"}
                for late in selected[index:]
            ]
            break
        begun = time.monotonic()
        try:
            done = comparison.row(case, index)
        except torch.cuda.OutOfMemoryError as failure:
            done = report.row(case, {}, f"out of memory: {failure}"[:300])
        rows.append(done)
        print(report.line(done), flush=True)
        gc.collect()
        torch.cuda.empty_cache()
        save()  # whatever happens to the machine next, the rows so far are on disk
        last = time.monotonic() - begun

    result["clocks"]["after"] = clocks()
    save()
    print("\n" + report.table(result), flush=True)
    print(f"{result['machine']['device']}, {result['seconds']} s, full figures in {out}", flush=True)
    failed = [r for r in rows if r["error"]]
    compared = [r for r in rows if r["ratio_to_best"]]
    unmeasured = LAUNCH in options.suite and launch is None
    sys.exit(1 if failed or unmeasured or (selected and not compared) else 0)


if __name__ == "__main__":
    main()
