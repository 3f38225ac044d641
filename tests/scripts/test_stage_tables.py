"""Tests scripts/stage_tables.py: the tables of the stages alone, and what they are held to."""

import json
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
sys.path.insert(0, str(ROOT / "bench"))
sys.dont_write_bytecode = True

import check_results  # noqa: E402
import peers  # noqa: E402
import results_table  # noqa: E402
import stage_peers  # noqa: E402
import stage_tables  # noqa: E402

KNOWN = json.loads((ROOT / "bench" / "targets.json").read_text(encoding="utf-8"))["stages"]
CASES = {row["case"]: row["line"] for row in peers.read_cases(ROOT / "tests" / "cases" / "stage_tables.txt")}


def row(case: str, ms: float, unsplit_ms: float = 0, **others) -> dict:
    """A row of results of a case of the file."""
    unsplit_ms = unsplit_ms or ms
    return {
        "case": case, "line": CASES[case], "ms": ms, "unsplit_ms": unsplit_ms, "segments": 1 + (ms != unsplit_ms),
        "cut_sequences": int(ms != unsplit_ms), "gbytes_per_s": 2580.0, "peers": {}, **others,
    }  # fmt: skip


def results(*rows: dict) -> dict:
    facts = {"driver": "1", "cuda": "13.0", "date": "2026-11-19T00:00:00Z", "commit": "0123456"}
    return {"device": "NVIDIA H200", **facts, "rows": list(rows)}


class FakeTuner:
    """As much of Triton's Autotuner as stage_peers uses: `speeds` are milliseconds by configuration."""

    arg_names = ()

    def __init__(self, speeds: dict):
        self.speeds, self.cache, self.nargs, self.measured = speeds, {}, None, []

    def _bench(self, *args, config, **meta):
        assert self.nargs is not None
        self.config = config
        return self.do_bench(config, quantiles=(0.5, 0.2, 0.8))

    def run(self, *args, key):
        self.nargs = {}
        if key not in self.cache:
            self.configs_timings = {config: self._bench(*args, config=config, key=key) for config in self.speeds}
            self.cache[key] = min(self.configs_timings, key=self.configs_timings.get)
        self.best_config = self.cache[key]
        self.nargs = None
        return self.best_config


class Tuning(unittest.TestCase):
    def setUp(self):
        # Measured briefly, b and c seem faster than they are.
        self.brief = {"a": 1.02, "b": 1.0, "c": 1.01, "d": 1.5}
        self.true = {"a": 1.02, "b": 1.1, "c": 1.2, "d": 0.5}
        testing, autotuner = types.ModuleType("triton.testing"), types.ModuleType("triton.runtime.autotuner")
        self.asked = []

        def do_bench(config, warmup, rep, quantiles):
            self.asked.append((config, rep))
            ms = (self.brief if rep == stage_peers.TUNE_MS[1] else self.true)[config]
            return [ms, ms, ms]

        testing.do_bench = do_bench
        autotuner.Autotuner = self.tuner = type("Autotuner", (FakeTuner,), {})
        triton, runtime = types.ModuleType("triton"), types.ModuleType("triton.runtime")
        triton.testing = testing
        modules = {m.__name__: m for m in (triton, runtime, testing, autotuner)}
        patch = unittest.mock.patch.dict(sys.modules, modules)
        patch.start()
        self.addCleanup(patch.stop)

    def test_near_ones_are_measured_again_in_full_and_once_for_each_key(self):
        tuning = stage_peers.Tuning()
        tuner = self.tuner(self.brief)
        self.assertEqual(tuner.run(key=1), "b")  # the call that tunes has begun with the first choice
        full = [config for config, rep in self.asked if rep == stage_peers.FULL_MS[1]]
        self.assertEqual(full, ["a", "b", "c"])  # d was far off
        self.assertEqual(tuner.run(key=1), "a")
        self.assertEqual(len(self.asked), 4 + 3)
        tuner.run(key=2)
        self.assertEqual((tuner.cache, tuning.keys, tuning.configs), ({1: "a", 2: "a"}, 2, 14))

    def test_near_best(self):
        inf = [float("inf")] * 3
        self.assertEqual(stage_peers.near_best({"a": [1.0, 1, 1], "b": [1.04, 1, 1], "c": [1.06, 1, 1]}), ["a", "b"])
        self.assertEqual(stage_peers.near_best({"a": inf, "b": inf}), [])

    def test_rows_of_one_family_follow_each_other_from_the_usual_length(self):
        rows = [{"case": case, "line": line} for case, line in CASES.items()]
        ordered = stage_peers.in_order(rows)
        families = [stage_peers.family_of(row) for row in ordered]
        self.assertEqual(len([a for a, b in zip(families, families[1:]) if a != b]) + 1, len(set(families)))
        first = next(row for row in ordered if row["case"].startswith("intra-2x"))
        self.assertEqual(sum(stage_tables.lengths_of(first)), stage_peers.USUAL_TOKENS)
        self.assertEqual(sorted(map(str, rows)), sorted(map(str, ordered)))


class Cases(unittest.TestCase):
    def test_the_tables_of_the_other_projects(self):
        by_start = {}
        for case, line in CASES.items():
            start = next(start for _, start, _ in stage_tables.TABLES if case.startswith(start))
            by_start.setdefault(start, []).append(case)
            self.assertTrue(stage_tables.is_stage({"line": line}), line)
            self.assertEqual(stage_peers.kind_of({"line": line}), start.removeprefix("init-").strip("-"))
        self.assertEqual([len(by_start[start]) for _, start, _ in stage_tables.TABLES], [36, 6, 20, 20])
        tokens = {case: sum(stage_tables.lengths_of({"line": line})) for case, line in CASES.items()}
        self.assertEqual(tokens["state-pass-64k+512+256+128-h4"], 66432)
        self.assertEqual(tokens["state-pass-128k+10x1k-h8"], 141312)
        self.assertEqual(tokens["intra-2x512-hv128"], 1024)
        self.assertEqual(tokens["recompute-packed-64k-hv64"], 65536)
        self.assertEqual(len(stage_tables.lengths_of({"line": CASES["intra-packed-8k-hv64"]})), 8)

    def test_requirements_follow_the_tokens_of_the_longest_sequence(self):
        def required(case):
            return stage_tables.required_ms({"line": CASES[case]}, KNOWN)

        self.assertEqual(required("state-pass-128k-h4"), 0.40)
        self.assertAlmostEqual(required("state-pass-128k+1k-h8"), 0.75 * 129 / 128)
        self.assertAlmostEqual(required("init-state-pass-64k-h4"), 0.21 * 1.25)
        self.assertIsNone(required("state-pass-8x4k-h4"))
        self.assertIsNone(required("intra-2x32768-hv64"))


class Tables(unittest.TestCase):
    def test_state_pass(self):
        made = results_table.results_table(
            results(
                row("state-pass-128k-h4", 0.3, 1.2, policy_ms=0.6, policy_segments=19, peers={"fla": 2.0}),
                row("state-pass-64k-h4", 0.22, 0.44),
                row("state-pass-4k-h4", 0.04, 0.04),
            )
        )
        cells = "yes | 2 | 1.2000 | **0.3000** | 4.00x | 0.4000 | 0.6000 | 19 | 2.0000"
        self.assertIn(f"| `state-pass-128k-h4` | 131,072 | {cells} |", made)
        short = "| `state-pass-64k-h4` | 65,536 | yes | 2 | 0.4400 | 0.2200 | 2.00x | 0.2100 | - | - | - |"
        self.assertIn(short, made)
        self.assertIn("Cut: 2 cases, speed-up 2.83x (geometric mean), 4.00x at best, 2.00x at worst.", made)
        self.assertIn("Not cut: 1 cases, 1.000 of the time with CP off, 1.000 at worst.", made)

    def test_chunk_local(self):
        made = results_table.results_table(results(row("intra-2x4096-hv64", 0.5, peers={"fla": 0.75})))
        self.assertIn("## chunk_intra\n", made)
        self.assertIn("| `intra-2x4096-hv64` | 8,192 | 64 | 0.5000 | 2580 | 0.60 | 0.7500 | 1.50x |", made)

    def test_what_is_missed_is_reported(self):
        self.assertEqual(
            results_table.short_table(results(row("state-pass-128k-h4", 0.3, 1.2))), "all stages are as required\n"
        )
        for expected, bad in (
            ("0.5000 ms, required 0.4000", row("state-pass-128k-h4", 0.5, 1.2)),
            ("0.900x of the pass that is not cut", row("state-pass-4k-h4", 0.05, 0.045)),
            ("0.98 us a chunk when not cut", row("state-pass-128k-h4", 0.3, 2.0)),
            ("0.47 of a copy's bandwidth", row("recompute-2x4096-hv64", 1.0, gbytes_per_s=2000.0)),
            ("slower than FLA's 0.9000", row("recompute-2x4096-hv64", 1.0, peers={"fla": 0.9})),
        ):
            self.assertIn(expected, results_table.short_table(results(bad)))
            reports = check_results.report_targets("h200-stages.json", results(bad))
            self.assertEqual(len(reports), 1)
            self.assertIn(expected, reports[0])
        short_calls = row("recompute-2x512-hv64", 1.0, gbytes_per_s=500.0, peers={"fla": 0.9})
        self.assertEqual(stage_tables.misses(results(short_calls), KNOWN), [])

    def test_files_are_joined(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            other_way = {"words": "policy=cula-sm100", "segments": 19, "ms": 0.3}
            passes = results(row("state-pass-64k-h4", 0.2, 0.4, beside=other_way))
            others = results(row("intra-2x512-hv64", 0.1))
            files = (passes, others, "", results())
            for file, content in zip(("1.tmp", "2.tmp", "3.tmp", "4.tmp"), files, strict=True):
                content = json.dumps(content) if content else ""
                (folder / file).write_text(content, encoding="utf-8")

            def join(*files):
                words = [str(ROOT / "scripts" / "stage_tables.py"), *(str(folder / file) for file in files), name]
                return subprocess.run([sys.executable, *words], capture_output=True, text=True)

            self.assertEqual(join("1.tmp", "2.tmp").stdout, "h200-stages\n")
            rows = json.loads((folder / "h200-stages.json").read_text(encoding="utf-8"))["rows"]
            self.assertEqual((rows[0]["policy_ms"], rows[0]["policy_segments"]), (0.3, 19))
            self.assertNotIn("beside", rows[0])
            self.assertEqual([found["case"] for found in rows], ["state-pass-64k-h4", "intra-2x512-hv64"])
            self.assertNotIn("policy_ms", rows[1])
            self.assertEqual(join("1.tmp", "3.tmp").returncode, 0)
            self.assertEqual(join("3.tmp", "4.tmp", "2.tmp").returncode, 0)
            self.assertEqual(join("3.tmp", "4.tmp").returncode, 1)


if __name__ == "__main__":
    unittest.main()
