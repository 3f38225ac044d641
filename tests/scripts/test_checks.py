"""The checkers of scripts/ must see what they are there to see: each is given a small tree with one fault in it."""

import pathlib
import sys
import tempfile
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parent.parent.parent / "scripts"
sys.path.insert(0, str(SCRIPTS))
sys.dont_write_bytecode = True

import check_docs  # noqa: E402
import check_includes  # noqa: E402
import results_table  # noqa: E402


class Tree(unittest.TestCase):
    """A temporary repository that the checkers take for theirs."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = pathlib.Path(self.folder.name).resolve()
        for module in (check_docs, check_includes, results_table):
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

    def test_names_and_lengths(self):
        problems = check_includes.check_file(self.write("src/plan/plan_utils.cpp", "//\n" * 601))
        self.assertEqual(len(problems), 2, problems)
        self.assertEqual(check_includes.check_file(self.write("src/plan/fine.cpp", "//\n" * 600)), [])


class Documents(Tree):
    def test_links(self):
        self.write("docs/a.md", "# One heading\n")
        self.write("README.md", "[a](docs/a.md#one-heading) [b](https://example.org/x)\n")
        self.assertEqual(check_docs.check_links(), [])
        self.write("README.md", "[a](docs/a.md#another) [b](docs/b.md)\n")
        self.assertEqual(len(check_docs.check_links()), 2)

    def test_programs_are_found(self):
        self.write("README.md", "```cpp\nint main() { return 0; }\n```\n```c\nint x;\n```\n")
        self.assertEqual([(d, l) for d, l, _ in check_docs.programs()], [("README.md", "cpp")])


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


if __name__ == "__main__":
    unittest.main()
