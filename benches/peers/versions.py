"""Builds of ours beside one another, on the same tensors in the same process: what a change gains.

    python3 versions.py before.so after.so --suite prefill --rows "512 causal" --peers fa3-fwd

The first library is the one that the others are compared with: a ratio above 1 says that they are faster. Outputs of all must be
right, and it is said whether they are those of the first bit for bit.
"""

import argparse
import dataclasses
import gc
import statistics
import sys

import cases
import compare


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("libraries", nargs="+", metavar="LIBRARY", help="paths of libcuattn_bench.so, under other names")
    parser.add_argument("--suite", nargs="+", default=["prefill"], choices=list(cases.SUITES), metavar="SUITE")
    parser.add_argument("--rows", nargs="+", metavar="WORDS", help="only rows whose name holds all words of one of these")
    parser.add_argument("--engine", help="ours, instead of each row's own choice")
    parser.add_argument("--peers", nargs="*", default=[], help="these peers too")
    parser.add_argument("--rounds", type=int, default=3, help="turns that each takes")
    options = parser.parse_args()
    options.library, options.seed, options.dtype = options.libraries[0], 0, "bf16"
    return options


def main():
    options = arguments()
    comparison = compare.Comparison(options)
    torch = comparison.torch
    names = [path.rsplit("/", 1)[-1].removesuffix(".so") for path in options.libraries]
    libraries = [comparison.library] + [
        comparison.ours.Library(path, comparison.stream.cuda_stream) for path in options.libraries[1:]
    ]
    patterns = options.rows or [None]
    selected = {case.name: case for rows in patterns for case in cases.select(options.suite, "bf16", False, rows)}
    print(f"{'':44}" + "".join(f"{name:>20}" for name in [*names, *options.peers]), flush=True)
    ratios = {name: [] for name in [*names[1:], *options.peers]}
    failed = False
    for index, case in enumerate(selected.values()):
        if options.engine:
            case = dataclasses.replace(case, engine=options.engine)
        inputs = comparison.tensors.Inputs(case, index)
        expected = comparison.tensors.Expected(inputs)
        graphs, outputs, plans = {}, [], []
        for name, library in zip(names, libraries):
            plan = library.plan(comparison.ours.problem(case))
            plans.append(plan)
            output = comparison.ours.bind(plan, inputs)
            graphs[name] = comparison.timer.capture(plan.launch)
            outputs.append(output)
            error = expected.error(output)
            if not error <= comparison.tensors.TOLERANCE[case.dtype]:
                print(f"{name} is off by {error:.2e} in {case.name}")
                failed = True
        entries, runs = {}, {}
        comparison.run_peers(case, inputs, expected, entries, {}, runs)
        graphs |= {name: comparison.timer.capture(run) for name, run in runs.items()}
        times = comparison.timer.in_turn({name: graph.replay for name, graph in graphs.items()})
        line = f"{case.name:44}"
        base = times[names[0]][0]
        for name in [*names, *options.peers]:
            if name not in times:
                line += f"{'-':>20}"
                continue
            ms, spread = times[name]
            line += f"{case.rate(ms):9.1f}"
            line += f"{base / ms:7.3f}" if name != names[0] else f"{'':7}"
            line += f"{spread * 100:3.0f}%"
            if name in ratios:
                ratios[name].append(base / ms)
        same = "".join("=" if torch.equal(outputs[0], output) else "/" for output in outputs[1:])
        print(f"{line}  {same}", flush=True)
        for plan in plans:
            plan.close()
        graphs.clear()
        del inputs, expected, outputs, runs
        gc.collect()
        torch.cuda.empty_cache()
    for name, of in ratios.items():
        if of:
            print(f"{name}: {statistics.geometric_mean(of):.3f} x {names[0]} over {len(of)} rows")
    sys.exit(failed)


if __name__ == "__main__":
    main()
