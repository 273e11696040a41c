"""Runs everything on the plugin and writes a report.

    python run.py --plugin libcuattn_ort.so --out report.json [--seed N] [--commit TEXT] [--no-times]

With CUATTN_ORT_HOST=1 the host computes. Without it a GPU is needed, and times are measured too.
"""

import argparse
import json
import platform
import secrets
import sys
import time
import traceback
import warnings

import numpy as np
import onnx
import onnxruntime as ort

import plugin


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plugin", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--no-times", action="store_true", help="measure nothing")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")

    devices = plugin.register(arguments.plugin)
    seed = secrets.randbelow(1 << 31) if arguments.seed is None else arguments.seed
    print(f"onnxruntime {ort.__version__}, onnx {onnx.__version__}, seed {seed}, "
          f"{len(devices)} device(s), {'HOST' if plugin.on_host() else 'GPU'}", flush=True)

    import conformance
    import graphs
    import timing

    conformed = conformance.run()
    graphs.RNG = np.random.default_rng(seed)
    tests = []
    for name, test in graphs.tests().items():
        started = time.perf_counter()
        why, outcome = "", "passed"
        try:
            test()
        except graphs.NotPossible as reason:
            why, outcome = str(reason), "not possible"
        except Exception as error:  # noqa: BLE001: a test that fails is a result
            why, outcome = f"{type(error).__name__}: {error}", "failed"
            traceback.print_exc()
        tests.append({"name": name, "outcome": outcome, "why": why[:2000],
                      "seconds": round(time.perf_counter() - started, 3)})
    report = {
        "commit": arguments.commit,
        "computed_on": "host" if plugin.on_host() else "gpu",
        "device": plugin.device_name(),
        "onnxruntime": ort.__version__,
        "python": platform.python_version(),
        "seed": seed,
        **conformed,
        "graphs": tests,
        "times": [] if plugin.on_host() or arguments.no_times else timing.run(),
    }
    with open(arguments.out, "w", encoding="utf-8") as out:
        json.dump(report, out, indent=1)
        out.write("\n")
    failed = [entry["name"] for entry in conformed["cases"] + tests if entry["outcome"] not in ("passed", "not loaded", "not possible")]
    for entry in conformed["cases"] + tests:
        if entry["outcome"] != "passed":
            print(f"{entry['outcome']}: {entry['name']}: {entry['why'][:600]}")
    for entry in report["times"]:
        print(entry)
    passed = sum(entry["outcome"] == "passed" for entry in conformed["cases"])
    print(f"attention cases: {passed} of {len(conformed['cases'])}; "
          f"graphs: {sum(entry['outcome'] == 'passed' for entry in tests)} of {len(tests)}")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
