"""Tests the stages `bench`, `stages` and `sanitize` of scripts/gpu_check.sh with stand-ins for `deltarelay` and others.

The stand-ins time and check nothing. The tests look at which cases the script asks for and what it does with the rows.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TIMED = ["kda-a", "gdn-b", "softplus2-kda-d", "init-gdn-e", "mixed-kda-f"]
CASES = {"targets.txt": [*TIMED, "mix-c"], "targets_portable.txt": ["portable-kda-a", "portable-gdn-b"]}
# Writes a row for every requested case. FAULTS lists backends whose call crashes before it writes anything; with the
# suffix "-all" every case of the backend fails.
COMMAND = """#!/usr/bin/env python3
import json, os, re, sys
words = sys.argv[1:]
value = lambda option: words[words.index(option) + 1]
backend = (re.search(r"backend=(\\S+)", value("--with")) or ["", "cuda-sm90"])[1]
faults = os.environ.get("FAULTS", "").split()
if backend in faults:
    sys.exit(139)
names = [line.split(":")[0] for line in open(words[1]) if line[0] not in "#\\n"]
names = [name for name in names if re.search(value("--only"), name)]
if not names:
    sys.exit(2)
row = {"segments": 1, "ms": 1.0, "ms_low": 1.0, "ms_high": 1.0, "gflops": 1.0, "gbytes_per_s": 1.0, "unsplit_ms": 1.0}
row.update(host_us=1.0, plan_us=1.0, workspace_bytes_per_token_head=1.0, error=1e-3, backend=backend, words=words[2:])
if "--beside" in words:
    row["beside"] = {"words": value("--beside"), "segments": 19, "ms": 2.0}
lines = {line.split(":")[0]: line.split(": ", 1)[1].strip() for line in open(words[1]) if line[0] not in "#\\n"}
row["peers"] = {}
rows = [] if backend + "-all" in faults else [{**row, "case": name, "line": lines[name]} for name in names]
head = {"device": "NVIDIA H200" if rows else "a CPU", "driver": "1", "cuda": "1", "date": "today", "commit": "abc"}
json.dump({**head, "rows": rows}, open(value("--json"), "w"))
sys.exit(0 if rows else 1)
"""
FIRST_CALL = """#!/bin/sh
echo '{"rule": "'"$2"'", "first_call_ms": 5, "context_ms": 100}'
"""
# Writes down which tool was given which cases. BAD is a regular expression over "tool name-of-case" that fails.
SANITIZER = """#!/usr/bin/env python3
import os, re, sys
words = sys.argv[1:]
tool, cases = words[words.index("--tool") + 1], words[words.index("verify") + 1]
names = [line.split(":")[0] for line in open(cases) if line[0] not in "#\\n"]
if "--only" in words:
    names = [name for name in names if re.search(words[-1], name)]
with open(os.environ["CALLS"], "a") as calls:
    calls.write("".join(f"{tool} {name}{' bare' if '--bare-workspace' in words else ''}\\n" for name in names))
bad = [name for name in names if re.search(os.environ.get("BAD", "^$"), f"{tool} {name}")]
print(f"{len(names)} passed, 0 failed")
shown = min(len(bad), 1)
if tool == "racecheck":
    for _ in range(shown):
        print("========= Error: Race reported between Write access at kda+0x40")
        print("=========     and Read access at gdn+0x40 [1 hazards]")
    print(f"========= RACECHECK SUMMARY: {shown} hazards displayed ({len(bad)} errors, 0 warnings)")
else:
    print(f"========= ERROR SUMMARY: {len(bad)} errors")
sys.exit(9 if bad else 0)
"""
# Objects of two folders have the same name and different kernels.
CUOBJDUMP = """#!/bin/sh
echo "Function : $(basename "$(dirname "$2")")"
echo "        /*0040*/    STS [R4], R7 ;"
"""


class Sanitize(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        for folder in ("scripts", "tests/cases", "bin", "build/gpu-check/bin"):
            (self.root / folder).mkdir(parents=True)
        for name in ("gpu_check.sh", "read_races.py"):
            shutil.copy(ROOT / "scripts" / name, self.root / "scripts" / name)
        self.lists = [[f"a{i}" for i in range(9)] + ["relay-b"], [f"portable-{i}" for i in range(5)]]
        for file, names in zip(("gpu", "gpu_portable"), self.lists):
            text = "# comment\n\n" + "".join(f"{name}: kda bf16\n" for name in names)
            (self.root / "tests" / "cases" / f"{file}-sanitize.txt").write_text(text)
        for folder in ("kda", "gdn"):
            (self.root / "build/gpu-check/src" / folder).mkdir(parents=True)
            (self.root / "build/gpu-check/src" / folder / "walk.cu.o").touch()
        for name, text in {"compute-sanitizer": SANITIZER, "cuobjdump": CUOBJDUMP}.items():
            (self.root / "bin" / name).write_text(text)
            (self.root / "bin" / name).chmod(0o755)

    def run_stage(self, bad: str = "^$") -> tuple[int, list[str], str]:
        """Exit code, the calls in order of their names, and what was printed."""
        calls = self.root / "calls"
        calls.unlink(missing_ok=True)
        done = subprocess.run(
            ["bash", str(self.root / "scripts" / "gpu_check.sh"), str(self.root / "out"), "sanitize"],
            env={**os.environ, "PATH": f"{self.root}/bin:{os.environ['PATH']}", "CALLS": str(calls), "BAD": bad},
            capture_output=True,
            text=True,
        )
        return done.returncode, sorted(calls.read_text().split("\n")[:-1]), done.stdout + done.stderr

    def test_every_line_has_every_tool(self):
        code, calls, said = self.run_stage()
        self.assertEqual(code, 0, said)
        names = sum(self.lists, [])
        expected = [f"{tool} {name}" for tool in ("memcheck", "synccheck", "racecheck") for name in names]
        bare = [f"initcheck {name} bare" for name in names if not name.startswith("relay")]
        self.assertEqual(calls, sorted([*expected, *bare, "initcheck relay-b"]))
        self.assertIn("0 reports, 0 kinds", said)
        self.assertRegex(said, r"gpu-relay-00-racecheck +exit 0 .* 1 passed")

    def test_errors_fail(self):
        for bad in ("synccheck portable-2", "initcheck relay-b"):
            code, _, said = self.run_stage(bad)
            self.assertEqual(code, 1, said)

    def test_races_are_read(self):
        code, _, said = self.run_stage("racecheck a4")
        self.assertEqual(code, 0, said)
        self.assertIn("1  gdn: write STS [R], R, then read STS [R], R\n1 reports, 1 kinds", said)

    def test_reports_that_are_not_shown_fail(self):
        code, _, said = self.run_stage("racecheck a[03]")  # one part: lines are dealt in turn
        self.assertEqual(code, 1, said)
        self.assertIn("1 displayed of 2", said)


class Bench(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        for name in ("gpu_check.sh", "results_table.py", "stage_tables.py"):
            (self.root / "scripts").mkdir(exist_ok=True)
            shutil.copy(ROOT / "scripts" / name, self.root / "scripts" / name)
        for name, cases in CASES.items():
            self.write(f"tests/cases/{name}", "# comment: none\n" + "".join(f"{case}: kda bf16\n" for case in cases))
        self.write("build/gpu-check/bin/deltarelay", COMMAND).chmod(0o755)
        self.write("build/gpu-check/bin/deltarelay-first-call", FIRST_CALL).chmod(0o755)

    def write(self, name: str, text: str) -> pathlib.Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def bench(self, **environment: str) -> tuple[int, dict | None]:
        """Exit code and the results, if there are any."""
        out = self.root / "out"
        shutil.rmtree(out, ignore_errors=True)
        words = {name: value for name, value in os.environ.items() if not name.startswith("DELTARELAY_")}
        done = subprocess.run(
            ["bash", str(self.root / "scripts" / "gpu_check.sh"), str(out), "bench"],
            env={**words, **environment},
            capture_output=True,
            text=True,
        )
        self.assertEqual(
            sorted(path.name for path in out.glob("*.tmp")) if done.returncode == 0 else [], [], done.stdout
        )
        files = list(out.glob("*.json"))
        if not files:
            return done.returncode, None
        self.assertEqual([path.name for path in files], ["h200.json"], done.stdout + done.stderr)
        table = (out / "h200.md").read_text(encoding="utf-8")
        results = json.loads(files[0].read_text(encoding="utf-8"))
        for row in results["rows"]:
            self.assertIn(f"| `{row['case']}` |", table)
        return done.returncode, results

    def stages(self, **environment: str) -> tuple[int, dict | None, str]:
        """Exit code, results if there are any, and what was printed."""
        for name in ("bench/peers.py", "bench/targets.json", "tests/cases/stage_tables.txt"):
            self.write(name, (ROOT / name).read_text(encoding="utf-8"))
        shutil.copy(ROOT / "bench" / "stage_peers.py", self.root / "bench")
        words = [str(self.root / "scripts" / "gpu_check.sh"), str(self.root / "out"), "stages"]
        shutil.rmtree(self.root / "out", ignore_errors=True)
        done = subprocess.run(["bash", *words], env={**os.environ, **environment}, capture_output=True, text=True)
        path = self.root / "out" / "h200-stages.json"
        return done.returncode, json.loads(path.read_text()) if path.exists() else None, done.stdout + done.stderr

    def test_the_tables_of_the_stages(self):
        code, results, said = self.stages()
        self.assertEqual((code, len(results["rows"])), (0, 82), said)
        self.assertEqual([row.get("policy_segments") for row in results["rows"]], [19] * 36 + [None] * 46)
        self.assertEqual(list((self.root / "out").glob("*.tmp")), [])
        table = (self.root / "out" / "h200-stages.md").read_text(encoding="utf-8")
        self.assertIn("| `state-pass-4k-h4` | 4,096 | no | 1 | 1.0000 | 1.0000 | 1.00x | - | 2.0000 | 19 | - |", table)
        self.assertIn("FLA's kernels are not timed", said)
        self.assertIn("state-pass-128k-h4: 1.0000 ms, required 0.4000", said)

    def test_stages_by_name_and_stages_that_fail(self):
        code, results, said = self.stages(DELTARELAY_ONLY="^intra-2x512")
        self.assertEqual((code, self.cases(results)), (0, ["intra-2x512-hv64", "intra-2x512-hv128"]), said)
        code, results, said = self.stages(FAULTS="cuda-sm90")
        self.assertEqual((code, results), (1, None), said)

    def cases(self, results: dict) -> list[str]:
        return [row["case"] for row in results["rows"]]

    def test_rows_of_both_files(self):
        code, results = self.bench()
        self.assertEqual(code, 0)
        self.assertEqual(
            self.cases(results), [*TIMED, "portable-kda-a", "portable-gdn-b"], "mix- is for full runs"
        )
        self.assertEqual([row["backend"] for row in results["rows"]], ["cuda-sm90"] * 5 + ["cuda-sm80"] * 2)
        self.assertEqual([first["rule"] for first in results["first_call"]], ["gdn", "kda"])
        without_names = [
            re.sub(r"--only \S+|cuda-sm\d+|\S+\.tmp", "", " ".join(row["words"])) for row in results["rows"]
        ]
        self.assertEqual(len(set(without_names)), 1, "the same options")

    def test_names_are_looked_for_in_both_files(self):
        for only, expected in (
            ("^portable-gdn", ["portable-gdn-b"]),
            ("^kda-a$", ["kda-a"]),
            ("kda-a", ["kda-a", "portable-kda-a"]),
        ):
            code, results = self.bench(DELTARELAY_ONLY=only)
            self.assertEqual((code, self.cases(results)), (0, expected))
        self.assertEqual(self.bench(DELTARELAY_ONLY="nothing"), (1, None))

    def test_a_call_that_fails_leaves_the_rows_of_the_other(self):
        for fault in ("", "-all"):
            code, results = self.bench(FAULTS=f"cuda-sm90{fault}")
            self.assertEqual((code, self.cases(results)), (1, ["portable-kda-a", "portable-gdn-b"]))
            self.assertEqual(results["device"], "NVIDIA H200")
            code, results = self.bench(FAULTS=f"cuda-sm80{fault}")
            self.assertEqual((code, self.cases(results)), (1, TIMED))
        self.assertEqual(self.bench(FAULTS="cuda-sm80 cuda-sm90-all"), (1, None))


class Targets(unittest.TestCase):
    def test_every_target_is_a_case_that_is_timed(self):
        lines = [
            line
            for name in CASES
            for line in (ROOT / "tests" / "cases" / name).read_text(encoding="utf-8").splitlines()
        ]
        names = {line.split(":")[0] for line in lines if line and line[0] != "#"}
        targets = json.loads((ROOT / "bench" / "targets.json").read_text(encoding="utf-8"))
        for case, target in targets["cases"].items():
            self.assertIn(case, names)
            self.assertIn(target.get("per_flop_of", case), names)
            self.assertTrue({"required_ms", "goal_ms", "at_most"} & set(target), case)
        for target in targets["fixed"].values():
            self.assertLessEqual(set(target.get("cases", [])), names)


if __name__ == "__main__":
    unittest.main()
