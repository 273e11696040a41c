"""From measurements to a report: ratios, means, the JSON file and the table that people read.

A ratio is our speed over a peer's: above 1 we are faster.
"""

import json
import math
from datetime import datetime, timezone

SCHEMA = 1
OURS = "ours"
# What the tool that runs a remote command hands back is cut there; the table must fit with room for a last line.
TABLE_LIMIT = 11_500


def row(case, implementations, error=None):
    """`implementations`: `{name: {ms, ...} or {error}}`, ours under its own name."""
    rates = {name: case.rate(entry["ms"]) for name, entry in implementations.items() if entry.get("ms")}
    for name, rate in rates.items():
        implementations[name]["rate"] = rate
    peers = {name: rate for name, rate in rates.items() if name != OURS}
    best = max(peers, key=peers.get) if peers else None
    ours = rates.get(OURS)
    return {
        "suite": case.suite,
        "case": case.name,
        "batch": case.batch,
        "q_heads": case.q_heads,
        "kv_heads": case.kv_heads,
        "q_len": case.q_len,
        "kv_len": case.kv_len,
        "head_dim": case.head_dim,
        "dtype": case.dtype,
        "causal": case.causal,
        "window": case.window,
        "softcap": case.softcap,
        "bias": case.bias,
        "tokens": sum(case.lengths) if case.lengths else None,
        "flops": case.flops(),
        "bytes": case.bytes(),
        "unit": case.unit,
        "implementations": [{"name": name, **entry} for name, entry in implementations.items()],
        "best_peer": best,
        "ratio_to_best": ours / peers[best] if ours and best else None,
        "ratios": {name: ours / rate for name, rate in peers.items()} if ours else {},
        "error": error,
    }


def geometric_mean(values):
    values = list(values)
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def summaries(rows):
    """A line a suite: how many rows, the mean ratios, the worst row."""
    result = []
    for suite in dict.fromkeys(r["suite"] for r in rows):
        mine = [r for r in rows if r["suite"] == suite]
        compared = [r for r in mine if r["ratio_to_best"]]
        peers = dict.fromkeys(name for r in mine for name in r["ratios"])
        worst = min(compared, key=lambda r: r["ratio_to_best"], default=None)
        result.append(
            {
                "suite": suite,
                "rows": len(mine),
                "compared": len(compared),
                "failed": [r["case"] for r in mine if r["error"]],
                "geomean_to_best": geometric_mean(r["ratio_to_best"] for r in compared),
                "geomean_to": {
                    name: geometric_mean(r["ratios"][name] for r in mine if name in r["ratios"]) for name in peers
                },
                "worst": {"case": worst["case"], "ratio_to_best": worst["ratio_to_best"]} if worst else None,
            }
        )
    return result


def today():
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def finite(value):
    """JSON knows no NaN and no infinity: such an error becomes null, and the row's text says what it was."""
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write(path, report):
    with open(path, "w") as file:
        json.dump(finite(report), file, indent=1, allow_nan=False)
        file.write("\n")


def figure(value, digits=3):
    return "-" if value is None else f"{value:.{digits}f}"


def line(r):
    """A row of the table."""
    ours = next((entry for entry in r["implementations"] if entry["name"] == OURS), {})
    head = f"{r['suite']:<8} {r['case']:<40.40}"
    if r["error"]:
        return f"{head} FAILED {r['error']:.60}"
    others = " ".join(f"{name} {figure(ratio, 2)}" for name, ratio in r["ratios"].items() if name != r["best_peer"])
    path = f"{ours.get('engine', '?')}/{ours.get('path', '?')}"
    best = f"{figure(r['ratio_to_best'], 2):>5} x {r['best_peer'] or 'no peer':<9}"
    return f"{head} {ours.get('rate', 0):>7.1f} {path:<12.12} {best} {others}"


def table(report, limit=TABLE_LIMIT):
    """The short table. Where it would not fit, the rows where we stand best are the ones left out."""
    tail = []
    for summary in report["summaries"]:
        means = ", ".join(f"{name} {figure(mean)}" for name, mean in summary["geomean_to"].items())
        worst = summary["worst"]
        tail.append(
            f"{summary['suite']:<8} {summary['compared']}/{summary['rows']} rows compared, geometric mean of ratios:"
            f" best peer {figure(summary['geomean_to_best'])}, {means or 'no peer'}"
            + (f"; worst {figure(worst['ratio_to_best'])} ({worst['case']})" if worst else "")
            + (f"; FAILED {len(summary['failed'])}" if summary["failed"] else "")
        )
    launch = report.get("launch")
    if launch:
        tail.append(
            "launch   " + ", ".join(f"{name} {value:.3f}" for name, value in launch.items() if isinstance(value, float))
        )
    for skipped in report["not_run"]:
        if "suite" in skipped and "case" not in skipped:
            tail.append(f"{skipped['suite']:<8} not run: {skipped['why']}")
    late = sum(1 for skipped in report["not_run"] if "case" in skipped)
    if late:
        tail.append(f"{late} rows not run: the time budget was spent")
    head = f"{'suite':<8} {'case':<40} {'rate':>7} {'engine/path':<12} ratio to the best peer, then to the others"
    rows = list(report["rows"])
    room = limit - len(head) - sum(len(text) + 1 for text in tail) - 100
    kept = {id(r) for r in rows}
    size = sum(len(line(r)) + 1 for r in rows)
    for r in sorted(rows, key=lambda r: -1 if r["error"] else (r["ratio_to_best"] or 0), reverse=True):
        if size <= room:
            break
        kept.discard(id(r))
        size -= len(line(r)) + 1
    body = [line(r) for r in rows if id(r) in kept]
    if len(body) < len(rows):
        body.append(f"({len(rows) - len(body)} rows with the highest ratios are only in the JSON)")
    return "\n".join([head, *body, *tail])
