"""Tests scripts/check_tidy.py with clang-tidy 14 on small trees: sources that are checked together lose no finding."""

import contextlib
import io
import json
import os
import pathlib
import re
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
    # A warning of clang that GCC does not have: builds with clang have to pass, too.
    "clang-diagnostic-unused-private-field": "class Empty {\n  int unread_ = 0;\n};\n"
    "int empty() { return sizeof(Empty); }\n",
}
# As a source that includes Highway's foreach_target.h: the fault is in what is compiled for AVX2. Nothing is for SVE.
FOR_AVX2 = """// includes foreach_target.h
#define HWY_AVX2 512
#define HWY_SSE4 2048
#define HWY_SSSE3 4096
#define HWY_SVE 8192
#if (HWY_DISABLED_TARGETS & HWY_AVX2) == 0 || (HWY_DISABLED_TARGETS & HWY_SVE) == 0
int Twice(int x) { return 2 * x; }
#endif
"""
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

    def check(self, sources: dict, *words: str, options: str = "") -> tuple[int, str]:
        """Exit code and output over sources of src/plan, by name."""
        entries = []
        for name, text in sources.items():
            path = self.root / "src" / "plan" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            command = f"g++ -std=c++20 -Wall -Werror {options} -o {name}.o -c {path}"
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

    def test_small_folders_are_joined(self):
        sizes = {("src/a", "-O3"): 30, ("src/b", "-O3"): 9, ("src/c", "-O3"): 2}
        sizes |= {("src/d", "-O1"): 1, ("tools/e", "-O3"): 1}
        made = check_tidy.joined({key: [key[0]] * size for key, size in sizes.items()})
        expected = [["src/a"] * 30, ["src/c"] * 2 + ["src/b"] * 9, ["src/d"], ["tools/e"]]
        self.assertEqual(sorted(made), expected)

    def test_equal_names_of_different_things_are_no_finding(self):
        code, said = self.check({f"{x}.cpp": CLASH % (x, x, x) for x in ("one", "two")})
        self.assertEqual(code, 0, said)
        self.assertIn("2 files pass, but not together, which takes longer: ", said)
        self.assertIn("redefinition of 'Settings'", said)
        self.assertIn("2 files, 0 with findings", said)

    def test_only_alone_is_a_source_checked_for_every_instruction_set(self):
        sources = {"a.cpp": FOR_AVX2, "b.cpp": CLEAN % "b"}
        disabled = "-DHWY_DISABLED_TARGETS='(HWY_SVE)'"
        self.assertEqual(self.check(sources, options=disabled), (0, "2 files, 0 with findings\n"))
        code, said = self.check(sources, "--alone", options=disabled)
        self.assertEqual(code, 1)
        self.assertIn("src/plan/a.cpp:\n", said)
        self.assertIn("readability-identifier-naming", said)

    def test_headers_that_ninja_knows_count(self):
        """Ninja's list stands for the compiler's while the object is newer than all that it was made of."""
        header, made = self.root / "src" / "plan" / "a.h", self.root / "build" / "a.cpp.o"
        header.parent.mkdir(parents=True)
        header.write_text("int twice(int x);\n", encoding="utf-8")
        made.write_text("", encoding="utf-8")
        source = {"a.cpp": '#include "a.h"\nint twice(int x) { return 2 * x; }\n'}

        def judged(kept: dict) -> bool:
            with mock.patch.object(check_tidy.Judge, "findings", autospec=True, return_value="") as findings:
                with mock.patch.object(check_tidy, "kept_by_ninja", return_value=kept):
                    self.check(source)
            return findings.called

        source_path = self.root / "src" / "plan" / "a.cpp"
        kept = {"a.cpp.o": [str(source_path), str(header)]}
        later = made.stat().st_mtime + 100
        judged(kept)
        os.utime(made, (later, later))
        judged(kept)
        self.assertFalse(judged(kept), "nothing has changed")
        header.write_text("int twice(int y);\n", encoding="utf-8")
        self.assertTrue(judged(kept), "the header has changed")
        self.assertFalse(judged({}), "the compiler names the same files")
        with mock.patch.object(check_tidy.subprocess, "run", side_effect=AssertionError("the compiler was asked")):
            self.assertEqual(check_tidy_inputs(kept, self.root, source_path), sorted(kept["a.cpp.o"]))
            os.utime(header, (later + 100, later + 100))
            with self.assertRaisesRegex(AssertionError, "the compiler was asked"):
                check_tidy_inputs(kept, self.root, source_path)


def check_tidy_inputs(kept: dict, root: pathlib.Path, source: pathlib.Path) -> list[str]:
    entry = {"directory": str(root / "build"), "command": f"g++ -o a.cpp.o -c {source}", "file": str(source)}
    with mock.patch.object(check_tidy, "kept_by_ninja", return_value=kept):
        return check_tidy.Inputs(root / "build").of(entry)


class Branches(unittest.TestCase):
    """What is compiled for a set that is left out is compiled for one of those that are checked, too."""

    SETS = {"HWY_AVX3": 1 << 8, "HWY_AVX2": 1 << 9, "HWY_SSE4": 1 << 11, "HWY_SSSE3": 1 << 12, "HWY_NEON": 1 << 28}
    SETS |= {"HWY_EMU128": 1 << 61, "HWY_SCALAR": 1 << 62}

    def branch(self, conditions: list, name: str, defined: bool) -> int:
        """The number of the branch that a set takes."""
        for number, condition in enumerate(conditions):
            text = re.sub(r"defined *\(\w+\)", str(defined), condition.split("//")[0])
            text = re.sub(r"!(?!=)", " not ", text.replace("&&", " and ").replace("||", " or "))
            if eval(text, {}, {**self.SETS, "HWY_TARGET": self.SETS[name]}):
                return number
        return len(conditions)

    def unchecked(self, text: str) -> list:
        """Conditions whose branch for a set that is left out is that of no checked one."""
        found, open_chains = [], []
        for line in text.splitlines():
            word, _, rest = line.removeprefix("#").strip().partition(" ")
            if not line.startswith("#"):
                continue
            if word in ("if", "ifdef", "ifndef"):
                open_chains.append([rest if word == "if" else "0"])
            elif word in ("elif", "else"):
                open_chains[-1].append(rest if word == "elif" else "1")
            elif word == "endif":
                chain = open_chains.pop()
                if not any(re.search(r"\bHWY_TARGET\b", condition) for condition in chain):
                    continue
                for defined in (False, True):
                    checked = {self.branch(chain, name, defined) for name in ("HWY_AVX3", "HWY_SCALAR")}
                    for name in check_tidy.LEFT_OUT_SETS:
                        if self.branch(chain, name, defined) not in checked:
                            found.append((name, chain))
        return found

    def test_of_the_sources(self):
        chains = 0
        for folder in check_tidy.JUDGED:
            for path in sorted((ROOT / folder).rglob("*.*")):
                if path.suffix in (".h", ".cpp"):
                    text = path.read_text(encoding="utf-8")
                    chains += len(re.findall(r"^#(?:el)?if.*\bHWY_TARGET\b", text, re.MULTILINE))
                    self.assertEqual(self.unchecked(text), [], path)
        self.assertGreater(chains, 5)

    def test_finds_a_branch_of_its_own(self):
        self.assertEqual(self.unchecked("#if HWY_TARGET == HWY_SCALAR\n#else\n#endif\n"), [])
        text = "#if HWY_TARGET <= HWY_AVX3\n#elif HWY_TARGET != HWY_SCALAR && !defined(X)\n#else\n#endif\n"
        found = self.unchecked(text)
        self.assertEqual({name for name, _ in found}, set(check_tidy.LEFT_OUT_SETS))
        found = self.unchecked("#if HWY_TARGET == HWY_AVX2\n#endif\n")
        self.assertEqual({name for name, _ in found}, {"HWY_AVX2"})


if __name__ == "__main__":
    if check_tidy.find_tool() is None:
        print("clang-tidy 14 is not installed: its check was not tested")
        sys.exit(77)
    unittest.main()
