"""Tests of the checkers in scripts/: each must find the one fault in a small tree."""

import copy
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

SCRIPTS = pathlib.Path(__file__).resolve().parent.parent.parent / "scripts"
sys.path.insert(0, str(SCRIPTS))
sys.dont_write_bytecode = True

import check_docs  # noqa: E402
import check_includes  # noqa: E402
import check_results  # noqa: E402
import read_races  # noqa: E402
import read_wavefronts  # noqa: E402
import results_table  # noqa: E402


class Tree(unittest.TestCase):
    """A temporary repository that the checkers use as theirs."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = pathlib.Path(self.folder.name).resolve()
        for module in (check_docs, check_includes, check_results, results_table):
            self.addCleanup(setattr, module, "ROOT", module.ROOT)
            module.ROOT = self.root
        self.addCleanup(self.folder.cleanup)

    def write(self, name: str, text: str) -> pathlib.Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path


class Includes(Tree):
    def judge(self, name: str, text: str) -> str:
        return "\n".join(check_includes.check_source(self.write(name, text)))

    def setUp(self):
        super().setUp()
        self.write("src/plan/plan.h", "#pragma once\n")
        self.write("src/kernels/stages.h", "#pragma once\n")
        self.write("include/deltarelay/deltarelay.h", "#ifndef A\n#endif\n")

    def test_allowed_directions_pass(self):
        self.assertEqual(self.judge("src/run/a.cpp", '#include "plan/plan.h"\n#include <vector>\n'), "")
        self.assertEqual(self.judge("src/plan/a.cpp", '#include "kernels/stages.h"\n'), "")
        self.assertEqual(self.judge("tests/plan/a.cpp", '#include <gtest/gtest.h>\n#include "plan/plan.h"\n'), "")
        self.assertEqual(self.judge("examples/a.c", "#include <deltarelay/deltarelay.h>\n"), "")

    def test_upward_include_is_named(self):
        self.assertIn("src/problem/a.cpp:2", self.judge("src/problem/a.cpp", '\n#include "plan/plan.h"\n'))
        self.assertIn("src/plan/plan.h", self.judge("src/kernels/cpu/a.cpp", '#include "plan/plan.h"\n'))
        self.assertIn("tests/forward/a.cpp:1", self.judge("tests/forward/a.cpp", '#include "plan/plan.h"\n'))

    def test_third_party_headers_stay_in_their_folders(self):
        self.assertIn("hwy", self.judge("src/plan/a.cpp", "#include <hwy/highway.h>\n"))
        self.assertIn("nlohmann", self.judge("src/plan/a.cpp", "#include <nlohmann/json.hpp>\n"))

    def test_unknown_folder_and_missing_file(self):
        self.assertIn("no place", self.judge("src/other/a.cpp", ""))
        self.assertIn("names no file", self.judge("src/run/a.cpp", '#include "run/missing.h"\n'))

    def test_header_without_guard(self):
        self.assertIn("#pragma once", self.judge("src/plan/a.h", "int x;\n"))

    def test_unused_using_declaration_is_named(self):
        text = "#include <string>\nnamespace a {\nusing std::string;  // string\nusing json = int;\n}\n"
        self.assertIn("src/plan/a.cpp:3: 'string'", self.judge("src/plan/a.cpp", text))
        self.assertEqual(self.judge("src/plan/a.cpp", text + "string f();\n"), "")
        self.assertIn("'string'", self.judge("src/plan/a.cpp", "using ::std::string;\n"))

    def test_ptx_has_one_place(self):
        text = '#pragma once\nasm volatile(\n    "bar.sync 0;");\nasm("" : "+r"(x));\n'
        self.assertIn("a.cuh:2: inline PTX", self.judge("src/kernels/cuda/tile/a.cuh", text))
        self.assertEqual(self.judge("src/kernels/cuda/ptx/a.cuh", text), "")
        self.assertEqual(self.judge("src/kernels/cuda/tile/b.cuh", '#pragma once\nasm volatile("" : "+r"(x));\n'), "")

    def test_rooms_do_not_see_each_other(self):
        self.write("src/kernels/cuda/sm90/fused/kda/state.cuh", "#pragma once\n")
        include = '#pragma once\n#include "kernels/cuda/sm90/fused/kda/state.cuh"\n'
        self.assertIn("may include", self.judge("src/kernels/cuda/sm90/fused/gdn/a.cuh", include))
        self.assertEqual(self.judge("src/kernels/cuda/sm90/a.cuh", include), "")

    def test_the_planner_names_no_backend(self):
        for text in ("if (&backend == &kCudaSm90Backend) {}\n", 'if (name == "cuda-sm80") {}\n', 'take("fused");\n'):
            self.assertIn("src/plan/ops/a.cpp:1", self.judge("src/plan/ops/a.cpp", text))
            self.assertEqual(self.judge("src/plan/backends.cpp", text), "")
            self.assertEqual(self.judge("src/kernels/cuda/sm90/a.cpp", text), "")
        self.assertEqual(self.judge("src/plan/ops/a.cpp", '// kCpuBackend, "fused"\nconst Backend* backend;\n'), "")

    def test_names_and_lengths(self):
        problems = check_includes.check_file(self.write("src/plan/plan_utils.cpp", "//\n" * 601))
        self.assertEqual(len(problems), 2, problems)
        self.assertEqual(check_includes.check_file(self.write("src/plan/fine.cpp", "//\n" * 600)), [])

    def test_long_lines(self):
        limit = check_includes.MAX_COLUMNS
        for name in (
            "src/plan/a.cpp",
            "src/plan/a.cuh",
            "scripts/a.py",
            "scripts/a.sh",
            "src/CMakeLists.txt",
            ".ci/run",
        ):
            long = self.write(name, "\n" + "x" * (limit + 1) + "\n")
            self.assertEqual(
                check_includes.check_file(long),
                [f"{name}:2: {limit + 1} columns, expected at most {limit}; break the line"],
            )
            # Columns count characters, not bytes.
            self.assertEqual(check_includes.check_file(self.write(name, "\u00e9" * limit + "\n")), [])
        self.assertEqual(check_includes.check_file(self.write("tests/cases/a.txt", "x" * (limit + 1))), [])


class Documents(Tree):
    def test_links(self):
        self.write("docs/a.md", "# One heading\n")
        self.write("README.md", "[a](docs/a.md#one-heading) [b](https://example.org/x)\n")
        self.assertEqual(check_docs.check_links(), [])
        self.write("README.md", "[a](docs/a.md#another) [b](docs/b.md)\n")
        self.assertEqual(len(check_docs.check_links()), 2)

    def test_links_of_opening_pages_beside_the_code(self):
        self.write("docs/a.md", "# One heading\n")
        self.write("src/kernels/cuda/README.md", "[a](../../../docs/a.md#one-heading)\n")
        self.assertEqual(check_docs.check_links(), [])
        self.write("src/kernels/cuda/README.md", "[a](../../docs/a.md)\n")
        (problem,) = check_docs.check_links()
        self.assertIn("src/kernels/cuda/README.md: link to '../../docs/a.md'", problem)

    def test_a_card_that_is_too_long(self):
        self.write("docs/kernels/a.md", "word " * (check_docs.MOST_CARD_WORDS - 1))
        self.write("docs/notebooks/a.md", "word " * check_docs.MOST_CARD_WORDS)
        self.assertEqual(check_docs.check_words(), [])
        self.write("docs/kernels/b.md", "word\n" * check_docs.MOST_CARD_WORDS)
        (problem,) = check_docs.check_words()
        self.assertIn("docs/kernels/b.md: expected fewer than 1500 words, found 1500", problem)

    def test_programs_are_found(self):
        self.write("README.md", "```cpp\nint main() { return 0; }\n```\n```c\nint x;\n```\n")
        self.assertEqual([(d, l) for d, l, _ in check_docs.programs()], [("README.md", "cpp")])

    def test_programs_with_cuda_are_never_called_run_without_a_gpu(self):
        text = "#include <cuda_runtime.h>\nint main() { return 1; }\n"
        self.write("README.md", f"```cpp\n{text}```\n")
        library = str(self.write("libdeltarelay.so", ""))
        for toolkit, verdict in ((None, "not compiled: no CUDA toolkit"), (self.root, "compiled, not run: no GPU")):
            with (
                mock.patch.object(check_docs, "cuda_toolkit", return_value=toolkit),
                mock.patch.object(check_docs, "finds_gpu", return_value=False),
                mock.patch.object(check_docs, "compile_program", return_value=""),
                mock.patch("builtins.print") as printed,
            ):
                self.assertEqual(check_docs.check_code("cc", "c++", library), [])
            printed.assert_called_once_with(f"1 programs {verdict} (README.md)")

    def test_what_a_command_draws(self):
        command = self.write("command", '#!/bin/sh\nfor last; do :; done\necho "$1 $2" >"$last"\n')
        command.chmod(0o755)
        self.write("README.md", "`deltarelay plan kda --svg a.svg` drew this\n")
        self.assertEqual(len(check_docs.check_pictures(str(command))), 1)
        picture = self.write("docs/pictures/a.svg", "another plan\n")
        (problem,) = check_docs.check_pictures(str(command))
        self.assertIn("docs/pictures/a.svg", problem)
        self.assertEqual(check_docs.check_pictures(str(command), update=True), [])
        self.assertEqual(picture.read_text(), "plan kda\n")
        self.write("docs/pictures/b.svg", "")
        self.assertEqual(len(check_docs.check_pictures(str(command))), 1)

    def test_what_a_command_prints(self):
        command = self.write("command", '#!/bin/sh\nprintf "| $1 | $2 |\\n|---|---|\\n| a | b |\\n| c | d |\\n"\n')
        command.chmod(0o755)
        document = self.write(
            "docs/tiling.md", "before\n<!-- tiling tables -->\n| a |\n<!-- end of tiling tables -->\nbehind\n"
        )
        (problem,) = check_docs.check_printed(str(command), "tiling")
        self.assertIn("docs/tiling.md", problem)
        check_docs.update_printed(str(command), "tiling")
        self.assertEqual(check_docs.check_printed(str(command), "tiling"), [])
        self.assertIn("before\n<!-- tiling tables -->\n| tiling | --markdown |\n", document.read_text())
        self.assertTrue(document.read_text().endswith("| c | d |\n<!-- end of tiling tables -->\nbehind\n"))


RESULTS = """{"device": "cpu", "cpu": "A-1", "date": "2026-01-02", "commit": "abc", "rows": [
  {"case": "a", "line": "gdn", "segments": 1, "threads": 2, "ms": 2.0, "ms_low": 1.9, "ms_high": 2.1,
   "token_heads_per_s": 1500000.0, "gflops": 50.0, "cut_sequences": 1, "unsplit_ms": 3.0, "fma_peak_gflops": 100.0,
   "error": 1e-6}]}"""
PEERS = """{"note": "n", "columns": [{"key": "x", "title": "X"}], "rows": [{"implementation": "other", "x": 1000}],
  "ours": [{"implementation": "DeltaRelay", "share": "of peak", "cases": {"x": "a"}}]}"""


class Results(Tree):
    def setUp(self):
        super().setUp()
        self.write("bench/results/a-1.json", RESULTS)
        self.write("bench/peers.json", PEERS)

    def test_tables_hold_the_figures(self):
        text = "<!-- table: results bench/results/a-1.json -->\nold\n<!-- end of table -->\n"
        made = results_table.regenerate(text)
        self.assertIn("| `a` | 2 | 1 | 2.00 | 1.90 to 2.10 | 1,500k | 50.0 | 0.50 | 1.50x | 1.0e-06 |", made)
        self.assertEqual(results_table.regenerate(made), made)
        text = "<!-- table: compare bench/results/a-1.json bench/peers.json -->\n<!-- end of table -->\n"
        self.assertIn("| DeltaRelay | **1,500k** |\n| of peak | 0.50 |\n| other | 1k |", results_table.regenerate(text))

    def test_an_edited_figure_is_seen(self):
        self.write("bench/results/a-1.md", results_table.results_table(results_table.load("bench/results/a-1.json")))
        self.assertEqual(check_docs.check_results(), [])
        edited = (self.root / "bench/results/a-1.md").read_text().replace("50.0", "90.0")
        self.write("bench/results/a-1.md", edited)
        self.assertEqual(len(check_docs.check_results()), 1)

    def test_no_figures_without_a_file(self):
        self.assertIn("Not measured yet", results_table.section("results", ["bench/results/b-2.json"]))

    def test_a_case_that_was_not_measured_is_refused(self):
        self.write("bench/peers.json", PEERS.replace('"x": "a"', '"x": "b"'))
        with self.assertRaises(SystemExit):
            results_table.section("compare", ["bench/results/a-1.json", "bench/peers.json"])


GPU_ROW = {
    "case": "kda-8k-h64", "line": "kda bf16 hqk=64 hv=64 seqs=8192 device=cuda:0", "rule": "kda",
    "backend": "cuda-sm90",
    "segments": 2, "cut_sequences": 1, "ms": 0.4, "ms_low": 0.39, "ms_high": 0.41, "host_us": 9.0, "plan_us": 5.0,
    "token_heads_per_s": 1e9, "gflops": 1e5, "gbytes_per_s": 1700.0, "error": 4e-3, "workspace_bytes": 1000,
    "workspace_bytes_per_token_head": 912.0, "plan": "words", "unsplit_ms": 0.5, "peers": {"fla": 1.7},
    "sweep": {"1": 0.5, "2": 0.4},
}  # fmt: skip
GPU_RESULTS = {
    "device": "NVIDIA H200", "date": "2026-11-15T05:23:41Z", "commit": "0123456789ab", "driver": "580.1",
    "cuda": "13.0", "cpu": "A-1", "rows": [GPU_ROW],
    "first_call": [{"rule": "kda", "first_call_ms": 90.0, "context_ms": 200.0}],
}  # fmt: skip
TARGETS = {
    "device": "NVIDIA H200",
    "cases": {"kda-8k-h64": {"floor_ms": 0.1, "required_ms": 0.45, "goal_ms": 0.2, "elsewhere": "1.2 m FlashKDA"}},
    "fixed": {"first_call_ms": {"required": 500}, "host_us": {"required": 25, "cases": ["kda-8k-h64"]}},
}


class ResultFiles(Tree):
    def setUp(self):
        super().setUp()
        self.results = copy.deepcopy(GPU_RESULTS)
        self.write("bench/targets.json", json.dumps(TARGETS))

    def test_peers_of_the_run_stand_before_those_that_were_not_timed_in_it(self):
        cell = results_table.elsewhere_cell(GPU_ROW, TARGETS["cases"]["kda-8k-h64"], {})
        self.assertEqual(cell, "fla 1.700; 1.2 m FlashKDA")
        self.assertEqual(results_table.elsewhere_cell({}, {}, {}), "-")

    def test_a_few_rows_beside_the_best_elsewhere(self):
        self.write("bench/targets.json", json.dumps(TARGETS))
        made = results_table.some_table(self.results)
        self.assertIn("| KDA, 8,192 tokens, 64 heads | **0.40** | - | 2 | 0.50 | 1.20 FlashKDA (measured) |", made)
        self.assertIn("1 of 1 Hopper targets are met (commit 0123456789ab).\n", made)
        self.assertEqual(
            results_table.elsewhere_words("3.5 m A; ~1.8 B; 2 p100 C"),
            (1.8, "1.80 B (extrapolated), 2.00 C (published, H100), 3.50 A (measured)"),
        )

    def test_a_row_under_the_gates_of_models_counts_when_it_is_measured(self):
        targets = copy.deepcopy(TARGETS)
        targets["cases"]["softplus-kda-8k-h64"] = {"required_ms": 1.0}
        targets["cases"]["init-kda-8k-h64"] = {"goal_ms": 0.2}
        self.write("bench/targets.json", json.dumps(targets))
        made = results_table.some_table(self.results)
        self.assertIn("1 of 1 Hopper targets are met (commit 0123456789ab). 1 more were not measured in", made)
        for name, ms in (("softplus", 1.3), ("init", 0.3)):
            self.results["rows"].append({**GPU_ROW, "case": f"{name}-kda-8k-h64", "ms": ms, "ms_high": ms})
        made = results_table.some_table(self.results)
        # 1.3 ms is slower than the best elsewhere, so the row is not in bold.
        self.assertIn("| KDA, 8,192 tokens, 64 heads | 0.40 | 0.30 as initialised, 1.30 unbounded | 2 |", made)
        self.assertIn("1 of 2 Hopper targets are met (commit 0123456789ab).\n", made)
        self.assertTrue(any("softplus-kda-8k-h64: 1.3000 ms, required 1.0 ms" in line for line in self.report()))

    def test_of_several_gates_the_table_shows_the_slower(self):
        line = "kda bf16 hqk=8 hv=8 seqs=100 gate="
        gates = {"bounded:-5": 0.2, "bounded:-5:init": 0.3, "init": 0.4, "init:2": 0.6, "mixed": 0.5}
        rows = [{"line": line + gate, "ms": ms, "peers": {"b": 9.0}} for gate, ms in gates.items()]
        run = {"device": "H200", "packages": {"b": "2.0"}, "rows": rows}
        with mock.patch.object(results_table, "PACKAGES", {"b": "B"}):
            made = results_table.peers_table(run)
        self.assertIn("| KDA, 1 x 100 tokens, 8 heads | as initialised | **0.300** | 9.00 |\n", made)
        words = "KDA, 1 x 100 tokens, 8 heads, unbounded gates"
        self.assertIn(f"| {words} | as initialised, N(0,2) | **0.600** | 9.00 |\n", made)
        self.assertEqual(made.count("| KDA"), 2)
        self.assertEqual(results_table.gates_of_case(line + "mixed"), "mixed")

    def test_a_column_for_each_package(self):
        rows = [
            {"line": "gdn bf16 hqk=2 hv=8 seqs=8192x4 gate=init", "ms": 0.2, "peers": {"a": 0.256}, "eager": ["a"]},
            {"line": "kda bf16 hqk=8 hv=8 seqs=100 gate=softplus:init", "ms": 2.5, "peers": {"b": 1.74}},
            {"line": "kda bf16 hqk=8 hv=8 seqs=7 gate=softplus:init", "ms": 2.5},
        ]
        run = {"device": "H200", "driver": "580.1", "date": "2026-11-18T01:02:03Z", "rows": rows}
        run["packages"] = {"a": "1.0", "b": "2.0"}
        with mock.patch.object(results_table, "PACKAGES", {"a": "A", "b": "B"}):
            made = results_table.peers_table(run)
        self.assertIn("| | gates | DeltaRelay | A 1.0 | B 2.0 |\n", made)
        shape = "4 x 8,192 tokens, 2/8 heads"
        self.assertIn(f"| GDN, {shape} | as initialised | **0.200** | 0.256 (1) | - |\n", made)
        shape = "1 x 100 tokens, 8 heads, unbounded gates"
        self.assertIn(f"| KDA, {shape} | as initialised | 2.50 | - | **1.74** |\n", made)
        self.assertNotIn("1 x 7 tokens", made)
        self.assertIn("H200, driver 580.1, 2026-11-18. (1): not captured, timed eagerly.", made)

    def check(self) -> list[str]:
        return check_results.check_file(self.write("bench/results/h200.json", json.dumps(self.results)))

    def report(self) -> list[str]:
        return check_results.report(self.write("bench/results/h200.json", json.dumps(self.results)))

    def test_a_whole_file_passes(self):
        self.assertEqual(self.check(), [])

    def test_a_file_that_does_not_parse(self):
        self.assertIn("does not parse", check_results.check_file(self.write("bench/results/a.json", "{"))[0])

    def test_every_missing_field_is_named(self):
        for field in check_results.FILE_FIELDS:
            self.results = copy.deepcopy(GPU_RESULTS)
            del self.results[field]
            self.assertIn(field, self.check()[0])
        for field in check_results.ROW_FIELDS:
            self.results = copy.deepcopy(GPU_RESULTS)
            del self.results["rows"][0][field]
            self.assertIn(field, self.check()[0])

    def test_values_that_cannot_be(self):
        for field, value in (
            ("plan", ""),
            ("ms", 0.5),
            ("error", -1.0),
            ("line", "gdn bf16"),
            ("segments", 1.5),
            ("ms", float("nan")),
        ):
            self.results = copy.deepcopy(GPU_RESULTS)
            self.results["rows"][0][field] = value
            self.assertEqual(len(self.check()), 1, (field, value))
        for field, value in (("commit", "unknown"), ("date", "today"), ("driver", ""), ("rows", [])):
            self.results = copy.deepcopy(GPU_RESULTS)
            self.results[field] = value
            self.assertEqual(len(self.check()), 1, (field, value))
        self.results = copy.deepcopy(GPU_RESULTS)
        self.results["rows"][0]["peers"] = {"fla": "fast"}
        self.assertEqual(len(self.check()), 1)

    def test_misses_are_reported(self):
        self.results["rows"][0].update(ms=0.6, ms_high=0.7, host_us=99.0)
        self.results["first_call"][0]["first_call_ms"] = 900
        text = "\n".join(self.report())
        for words in ("required 0.45", "slower than unsplit", "host_us 99.0", "first kda call", "not known here"):
            self.assertIn(words, text)
        self.results["rows"][0]["case"] = "other"
        self.assertIn("1 of 1 targets were not measured", "\n".join(self.report()))

    def test_kernels_that_changed_later_are_reported(self):
        def git(*words):
            options = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
            return subprocess.run(
                ["git", *options, *words], cwd=self.root, check=True, capture_output=True, text=True
            ).stdout

        git("init", "-q")
        self.write("src/kernels/cuda/a.cu", "int a;\n")
        git("add", ".")
        git("commit", "-q", "-m", "one")
        self.results["commit"] = git("rev-parse", "--short=12", "HEAD").strip()
        self.write("src/plan/b.cpp", "int b;\n")
        self.assertEqual(self.report(), [], "other files do not count")
        self.write("src/kernels/cuda/a.cu", "int c;\n")
        (line,) = self.report()
        self.assertIn("kernels changed after its commit", line)
        self.assertIn("src/kernels/cuda/a.cu", line)
        self.results["commit"] += "-dirty"
        self.assertEqual(len(self.report()), 2)

    def test_the_table_of_a_gpu(self):
        table = results_table.results_table(self.results)
        self.assertIn("NVIDIA H200, driver 580.1, CUDA 13.0, 2026-11-15T05:23:41Z, commit 0123456789ab.", table)
        self.assertIn(
            "| `kda-8k-h64` | 2 | **0.400** | 0.390 to 0.410 | 0.450 | 0.200 | 1700 | 0.500 | 9.0 | 5.0 | 912 |", table
        )
        self.assertIn("fla 1.700", table)
        self.assertIn("First KDA call of a cold process", table)
        self.assertIn("| `kda-8k-h64` | 0.500 | 0.400 | 0.400 (2) |", table)
        self.results["rows"][0].update(ms=0.19, ms_low=0.18)
        self.assertIn("**0.190** \\*", results_table.results_table(self.results))

    def test_what_falls_short_comes_first(self):
        lines = results_table.short_table(self.results).splitlines()
        self.assertEqual(lines, ["1 of 1 figures are as required; ms of those required", "kda-8k-h64 0.4000 of 0.450"])
        self.results["rows"].insert(0, {**self.results["rows"][0], "case": "other"})
        self.results["rows"][1]["ms"] = 0.46
        lines = results_table.short_table(self.results).splitlines()
        self.assertEqual(
            lines, ["0 of 1 figures are as required; ms of those required", "kda-8k-h64 0.4600 of 0.450", "-"]
        )

    def test_targets_of_another_device_are_not_shown(self):
        self.results["device"] = "NVIDIA A100"
        self.assertIn(
            "| `kda-8k-h64` | 2 | 0.400 | 0.390 to 0.410 | - | - |", results_table.results_table(self.results)
        )


class PortableRows(Tree):
    """Rows of the portable kernels: only some have a goal, and widths are compared with the row of D = 128."""

    def setUp(self):
        super().setUp()
        self.results = copy.deepcopy(GPU_RESULTS)
        self.row, self.wide, self.free = (copy.deepcopy(GPU_ROW) for _ in range(3))
        self.row.update(case="portable-a", backend="cuda-sm80", sweep={})
        self.wide.update(
            case="portable-a-d256", backend="cuda-sm80", ms=2.0, ms_high=2.1, unsplit_ms=2.0, gflops=8e4, sweep={}
        )
        self.free.update(case="portable-a-fp32", backend="cuda-sm80", ms=3.0, ms_high=3.1, unsplit_ms=3.0, sweep={})
        self.results["rows"] += [self.row, self.wide, self.free]
        targets = copy.deepcopy(TARGETS)
        targets["cases"]["portable-a"] = {"required_ms": 0.5}
        targets["cases"]["portable-a-d256"] = {"per_flop_of": "portable-a", "at_most": 1.5}
        self.write("bench/targets.json", json.dumps(targets))

    def report(self) -> list[str]:
        path = self.write("bench/results/h200.json", json.dumps(self.results))
        self.assertEqual(check_results.check_file(path), [])
        return [line for line in check_results.report(path) if "not known here" not in line]

    def test_nothing_to_report(self):
        self.assertEqual(self.report(), [])

    def test_misses(self):
        self.row.update(ms=0.6, ms_high=0.7, unsplit_ms=0.6)
        (line,) = self.report()
        self.assertIn("portable-a: 0.6000 ms, required 0.5 ms", line)
        self.row.update(ms=0.4)
        self.wide.update(gflops=5e4)
        (line,) = self.report()
        self.assertIn("portable-a-d256: 2.0000 ms, 2.00 times the time per flop of portable-a, required 1.5", line)

    def test_rows_that_were_not_measured(self):
        del self.results["rows"][1:]
        (line,) = self.report()
        self.assertIn("2 of 3 targets were not measured: portable-a, portable-a-d256", line)
        self.results["rows"].append(self.wide)
        _, line = self.report()
        self.assertIn("portable-a-d256: is held to the time per flop of portable-a, which was not measured", line)
        self.assertIn(
            "| `portable-a-d256` | 2 | 2.000 | 0.390 to 2.100 | - | - |", results_table.results_table(self.results)
        )

    def test_a_table_of_their_own(self):
        first, portable = results_table.results_table(self.results).split("The portable kernels (`cuda-sm80`)")
        self.assertIn("| `kda-8k-h64` |", first)
        self.assertNotIn("`portable-", first)
        self.assertIn("| `portable-a` | 2 | **0.400** | 0.390 to 0.410 | 0.500 | - |", portable)
        self.assertIn("| `portable-a-d256` | 2 | **2.000** | 0.390 to 2.100 | 2.400 | - |", portable)
        self.assertIn("| 1.25 of 1.5 |", portable)
        self.assertIn("| `portable-a-fp32` | 2 | 3.000 | 0.390 to 3.100 | - | - |", portable)
        self.assertIn("First KDA call", portable)

    def test_a_gpu_with_no_other_rows(self):
        del self.results["rows"][0]
        table = results_table.results_table(self.results)
        self.assertNotIn("elsewhere", table)
        self.assertIn("| `portable-a` |", table)


class Races(unittest.TestCase):
    SASS = """Function : walk
        /*0040*/                   STS [R4+0x5280], R7 ;   /* 0x1 */
        /*0050*/                   LDS.64 R12, [UR4+0x5290] ; /* 0x2 */
        /*0060*/                   LDS R9, [R6] ;
"""
    LOG = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at void a::walk<(int)2, (bool)1>(a::Args<int>, int)+0x40
=========     and Read access at void a::walk<(int)2, (bool)1>(a::Args<int>, int)+0x50 [16 hazards]
=========     and Read access at void a::walk<(int)2, (bool)1>(a::Args<int>, int)+0x60 [4 hazards]
=========
========= Warning: Race reported between Write access at void a::walk<(int)2, (bool)1>(a::Args<int>, int)+0x40
=========     and Read access at void a::walk<(int)2, (bool)1>(a::Args<int>, int)+0x60 [4 hazards]
========= Warning: Maximum number of hazards reached.
"""

    def setUp(self):
        name = "void a::walk<2, true>(a::Args<int>, int)"
        self.code = read_races.code_of(self.SASS, lambda names: [name for _ in names])

    def test_kinds(self):
        races = read_races.races_of(self.LOG, self.code)
        first, both = "write STS [R+20K], R", ("read LDS R, [R]", "read LDS.64 R, [R+20K]")
        self.assertEqual(races, {("walk<2,1>", first, both): 1, ("walk<2,1>", first, both[:1]): 1})

    def test_other_machine_code(self):
        with self.assertRaisesRegex(SystemExit, "no machine code of a::walk<2,1>"):
            read_races.races_of(self.LOG, {})

    def test_what_a_log_does_not_show(self):
        whole = "========= RACECHECK SUMMARY: 3 hazards displayed (1 error, 2 warnings)\n"
        self.assertEqual(read_races.missing_of(whole), "")
        self.assertEqual(read_races.missing_of(whole.replace("3", "2")), "2 displayed of 3")
        self.assertEqual(read_races.missing_of(self.LOG + whole), "the run counted no further")
        self.assertEqual(read_races.missing_of("ok  a\n"), "no summary: the run was ended")


class Wavefronts(unittest.TestCase):
    HEAD = (
        '"Kernel Name","walk"\n"Address","Source","# Samples","Instructions Executed",'
        '"L1 Wavefronts Shared","L1 Wavefronts Shared Ideal"\n'
    )
    ROWS = (
        '"0x7f10","      @P0 LDS.64 R2, [R4]","5","10","40","20"\n"0x7f20","LDS.64 R6, [R4+0x20]","1","10","20","20"\n'
        '"0x7f30","FMUL R1, R2, R3","7","30","",""\n'
    )

    def test_sums_by_kind_of_instruction(self):
        kinds = read_wavefronts.by_kind(read_wavefronts.read((self.HEAD + self.ROWS).splitlines()))
        self.assertEqual([name for name, _ in kinds], ["LDS.64", "FMUL"])
        self.assertEqual(kinds[0][1], {"executed": 20.0, "wavefronts": 60.0, "ideal": 40.0, "samples": 6.0})
        self.assertEqual(kinds[1][1]["wavefronts"], 0.0)

    def test_another_table_is_refused_by_what_it_lacks(self):
        with self.assertRaisesRegex(ValueError, "L1 Wavefronts Shared"):
            list(read_wavefronts.read(['"Address","Source","# Samples"', '"0x0","NOP","1"']))


if __name__ == "__main__":
    unittest.main()
