"""Host-side tests of the comparison: `python3 -m unittest` in this folder. They need neither a GPU nor PyTorch."""

import json
import os
import tempfile
import unittest

import cases
import report
import timing


class Tables(unittest.TestCase):
    def test_prefill_has_its_39_rows_of_16384_tokens(self):
        rows = cases.prefill()
        self.assertEqual(len(rows), 39)
        self.assertEqual({row.batch * row.q_len for row in rows}, {16384})
        self.assertEqual(sum(row.q_heads != row.kv_heads for row in rows), 3)

    def test_names_are_unique(self):
        rows = cases.select(list(cases.SUITES))
        names = [(row.suite, row.name) for row in rows]
        self.assertEqual(len(names), len(set(names)))

    def test_ragged_batches_are_those_of_the_public_tables(self):
        totals = {name: sum(lengths) for name, lengths in cases.drawn_lengths().items()}
        self.assertEqual(totals, {"uniform64": 62700, "skewed": 30763, "short256": 17811})

    def test_important_rows_come_first_and_quick_keeps_only_those(self):
        rows = cases.select(["prefill", "small", "masks"])
        self.assertEqual([row.priority for row in rows], sorted(row.priority for row in rows))
        quick = cases.select(["prefill", "small", "masks"], quick=True)
        self.assertEqual({row.priority for row in quick}, {cases.QUICK})
        self.assertTrue(0 < len(quick) < len(rows) / 2)

    def test_rows_are_chosen_by_whole_words(self):
        rows = cases.select(["prefill"], pattern="causal d128 1024")
        self.assertEqual(
            [row.name for row in rows], ["b16 h16/16 1024 d128 bf16 causal", "b16 h32/8 1024 d128 bf16 causal"]
        )

    def test_unknown_suite_is_named(self):
        with self.assertRaisesRegex(ValueError, "no suite named prefil"):
            cases.select(["prefil"])


class Work(unittest.TestCase):
    def brute_force(self, case):
        pairs = 0
        for q_len, kv_len in case.sequences:
            for row in range(q_len):
                position = row + kv_len - q_len
                for key in range(kv_len):
                    hidden = case.causal and key > position
                    hidden = hidden or (case.window is not None and key <= position - case.window)
                    pairs += not hidden
        return pairs

    def test_visible_pairs(self):
        shapes = [
            dict(q_len=7, kv_len=7, causal=False),
            dict(q_len=7, kv_len=7, causal=True),
            dict(q_len=3, kv_len=9, causal=True),
            dict(q_len=9, kv_len=3, causal=True),
            dict(q_len=40, kv_len=40, causal=True, window=5),
            dict(q_len=6, kv_len=6, causal=True, lengths=(1, 6, 3, 6)),
        ]
        for shape in shapes:
            case = cases.Case("prefill", 2, 4, 2, head_dim=8, **shape)
            self.assertEqual(case.visible_pairs(), self.brute_force(case), shape)

    def test_rates(self):
        case = cases.square("prefill", 4, (16, 16), 4096, 128)
        # 4 * 4 * 16 * 4096^2 * 128 operations in a millisecond.
        self.assertAlmostEqual(case.rate(1.0), 549.755813888)
        decode = cases.Case("decode", 32, 32, 8, 1, 4096, 128)
        self.assertAlmostEqual(decode.rate(0.136), 3951.9, delta=10)


class Turns(unittest.TestCase):
    def test_every_round_starts_elsewhere_and_misses_none(self):
        orders = [timing.rotated(["a", "b", "c", "d"], index, 3) for index in range(3)]
        self.assertEqual([order[0] for order in orders], ["a", "b", "c"])
        for order in orders:
            self.assertEqual(sorted(order), ["a", "b", "c", "d"])

    def test_repetitions_fill_the_budget_within_bounds(self):
        self.assertEqual(timing.repetitions(1.0, 14.0), 14)
        self.assertEqual(timing.repetitions(100.0, 14.0), 5)
        self.assertEqual(timing.repetitions(0.0, 14.0), 400)

    def test_summary_is_the_median_and_the_spread(self):
        median, spread = timing.summary([1.0, 1.1, 0.9])
        self.assertEqual(median, 1.0)
        self.assertAlmostEqual(spread, 0.2)


def made_up_rows():
    case = cases.square("prefill", 4, (16, 16), 4096, 128, causal=True)
    entries = {
        "ours": {"ms": 1.0, "engine": "flash", "path": "sm90"},
        "fa3": {"ms": 1.25},
        "cudnn": {"ms": 2.0},
        "fa2": {"error": "does not do this: no bias"},
    }
    good = report.row(case, entries)
    bad = report.row(
        cases.square("prefill", 16, (16, 16), 1024, 128), {"ours": {"rel_l2": 1.0}}, "ours is off by 1.0e+00"
    )
    return good, bad


class Reports(unittest.TestCase):
    def test_ratio_is_our_speed_over_the_best_peer(self):
        good, bad = made_up_rows()
        self.assertEqual(good["best_peer"], "fa3")
        self.assertAlmostEqual(good["ratio_to_best"], 1.25)
        self.assertAlmostEqual(good["ratios"]["cudnn"], 2.0)
        self.assertNotIn("fa2", good["ratios"])
        self.assertIsNone(bad["ratio_to_best"])

    def test_a_row_without_our_time_has_no_ratio(self):
        case = cases.square("prefill", 4, (16, 16), 4096, 128)
        row = report.row(case, {"ours": {"error": "refused"}, "fa3": {"ms": 1.0}}, "ours: refused")
        self.assertIsNone(row["ratio_to_best"])
        self.assertEqual(row["ratios"], {})

    def test_summary_counts_failures_and_means_only_what_was_compared(self):
        good, bad = made_up_rows()
        (summary,) = report.summaries([good, bad])
        self.assertEqual((summary["rows"], summary["compared"], len(summary["failed"])), (2, 1, 1))
        self.assertAlmostEqual(summary["geomean_to_best"], 1.25)
        self.assertAlmostEqual(report.geometric_mean([0.5, 2.0]), 1.0)

    def full(self, rows):
        return {
            "rows": rows,
            "summaries": report.summaries(rows),
            "not_run": [
                {"suite": "varlen", "why": "not available yet"},
                {"suite": "small", "case": "x", "why": "late"},
            ],
            "launch": {"launch_us": 3.5, "engine": "flash"},
        }

    def test_table_fits_and_keeps_failures_and_the_worst_rows(self):
        good, bad = made_up_rows()
        worst = dict(good, ratio_to_best=0.5, case="the worst row")
        text = report.table(self.full([good] * 300 + [bad, worst]))
        self.assertLess(len(text), 12_000)
        for part in (
            "the worst row",
            "FAILED",
            "only in the JSON",
            "not available yet",
            "1 rows not run",
            "launch_us 3.500",
        ):
            self.assertIn(part, text)

    def test_the_file_is_json_without_nan(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "report.json")
            unwritten = report.row(cases.prefill()[0], {"ours": {"rel_l2": float("inf")}}, "ours is off by inf")
            report.write(path, self.full([*made_up_rows(), unwritten]))
            with open(path) as file:
                rows = json.load(file, parse_constant=self.fail)["rows"]
            self.assertIsNone(rows[2]["implementations"][0]["rel_l2"])


if __name__ == "__main__":
    unittest.main()
