"""Tests scripts/check_tidy.py with clang-tidy 14 on small trees: sources that are checked together lose no finding."""

import contextlib
import io
import json
import pathlib
import shutil
import sys
import tempfile
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
sys.dont_write_bytecode = True

import check_tidy  # noqa: E402

CLEAN = "namespace %s {\nint twice(int x) { return 2 * x; }\n}\n"
# Found by a check of names, by one of statements, and by the analyzer, which follows paths through functions. Not found
# together: misc-unused-using-decls, which looks at the main file alone; scripts/check_includes.py does its work.
FAULTS = {
    "readability-identifier-naming": "int Twice(int x) { return 2 * x; }\n",
    "bugprone-suspicious-semicolon": "int first(int x) {\n  if (x > 0);\n  return 1;\n}\n",
    "clang-analyzer-core.NullDereference": "namespace {\nint at(const int* p) { return *p; }\n}\n"
    "int nothing() { return at(nullptr); }\n",
}
CLASH = "namespace {\nstruct Settings {\n  int %s;\n};\n}\nint use_%s() { return Settings{1}.%s; }\n"


class Tidy(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name).resolve()
        (self.root / "build").mkdir()
        shutil.copy(ROOT / ".clang-tidy", self.root)
        patch = mock.patch.object(check_tidy, "ROOT", self.root)
        patch.start()
        self.addCleanup(patch.stop)

    def check(self, sources: dict, *words: str) -> tuple[int, str]:
        """Exit code and output over sources of src/plan, by name."""
        entries = []
        for name, text in sources.items():
            path = self.root / "src" / "plan" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            command = f"g++ -std=c++20 -Wall -Werror -o {name}.o -c {path}"
            entries.append({"directory": str(self.root / "build"), "command": command, "file": str(path)})
        (self.root / "build" / "compile_commands.json").write_text(json.dumps(entries), encoding="utf-8")
        said = io.StringIO()
        with mock.patch.object(sys, "argv", ["check_tidy.py", str(self.root / "build"), *words]):
            with contextlib.redirect_stdout(said):
                code = check_tidy.main()
        return code, said.getvalue()

    def test_a_fault_is_found_in_its_file(self):
        for check, text in FAULTS.items():
            sources = {"a.cpp": CLEAN % "a", "b.cpp": text, "c.cpp": CLEAN % "c"}
            code, said = self.check(sources)
            self.assertEqual(code, 1, check)
            self.assertIn("src/plan/b.cpp:\n", said)
            self.assertIn(check, said)
            self.assertIn("3 files, 1 with findings", said)
            self.assertNotIn("src/plan/a.cpp:\n", said)
            self.assertEqual(self.check({**sources, "b.cpp": CLEAN % "b"})[0], 0, "once it is mended")

    def test_files_that_pass_are_checked_in_one_call(self):
        with mock.patch.object(check_tidy.Judge, "findings", autospec=True, return_value="") as findings:
            sources = {f"{name}.cpp": CLEAN % name for name in "abc"}
            self.assertEqual(self.check(sources), (0, "3 files, 0 with findings\n"))
            self.assertEqual(findings.call_count, 1)
            self.check(sources)
            self.assertEqual(findings.call_count, 1, "nothing has changed")
            self.check({**sources, "b.cpp": CLEAN % "d"})
            self.assertEqual(findings.call_count, 2, "a file has changed")
            self.check(sources, "--alone")
            self.assertEqual(findings.call_count, 5)

    def test_equal_names_of_different_things_are_no_finding(self):
        code, said = self.check({f"{x}.cpp": CLASH % (x, x, x) for x in ("one", "two")})
        self.assertEqual(code, 0, said)
        self.assertIn("2 files pass, but not together, which takes longer: ", said)
        self.assertIn("redefinition of 'Settings'", said)
        self.assertIn("2 files, 0 with findings", said)


if __name__ == "__main__":
    if check_tidy.find_tool() is None:
        print("clang-tidy 14 is not installed: its check was not tested")
        sys.exit(77)
    unittest.main()
