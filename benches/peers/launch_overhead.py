"""What the host pays for a tiny problem: making a plan, and launching it. Prints one JSON object.

Run with the library's path. It starts itself twice, with one empty kernel cache for both: the first plan compiles, the
second process finds the compiled kernels on disk, and its second plan finds everything in memory.
"""

import json
import os
import subprocess
import sys
import tempfile

LAUNCHES = 2_000


def measure(path):
    import torch

    import cases
    import ours
    import tensors

    stream = torch.cuda.Stream()
    torch.cuda.set_stream(stream)
    library = ours.Library(path, stream.cuda_stream)
    case = cases.square("launch", 1, (1, 1), 64, 64)
    first = library.plan(ours.problem(case))
    second = library.plan(ours.problem(case))
    output = ours.bind(second, tensors.Inputs(case, 0))
    second.launch()
    torch.cuda.synchronize()
    if not torch.isfinite(output).all():
        raise SystemExit("the output of the tiny problem is not finite")
    # The least of several loops: the host's other work only ever adds.
    launches = [second.launch_overhead_us(LAUNCHES) for _ in range(7)]
    return {
        "first_plan_ms": first.info["plan_ms"],
        "second_plan_ms": second.info["plan_ms"],
        "launch_us": min(launches),
        "engine": second.info["engine"],
        "path": second.info["path"],
    }


def main():
    path = os.path.abspath(sys.argv[1])
    if sys.argv[2:] == ["--measure"]:
        print(json.dumps(measure(path)))
        return
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {"CURT_CACHE_DIR": cache}
        environment.pop("CURT_CACHE", None)
        runs = []
        for _ in ("cold", "warm"):
            command = [sys.executable, os.path.abspath(__file__), path, "--measure"]
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            if done.returncode != 0:
                sys.exit((done.stderr or done.stdout).strip()[-400:])
            runs.append(json.loads(done.stdout.splitlines()[-1]))
    cold, warm = runs
    print(
        json.dumps(
            {
                "launch_us": min(run["launch_us"] for run in runs),
                "plan_cold_ms": cold["first_plan_ms"],
                "plan_warm_disk_ms": warm["first_plan_ms"],
                "plan_in_memory_ms": warm["second_plan_ms"],
                "engine": warm["engine"],
                "path": warm["path"],
            }
        )
    )


if __name__ == "__main__":
    main()
