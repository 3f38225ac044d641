"""Odd arguments of the command: files that are no files, numbers that do not fit, options that contradict each other.

Each ends at once, with the exit code of the help and one line that names the argument, what was expected and what was
found. Usage: odd_arguments_test.py <path of deltarelay>.
"""

import fcntl
import itertools
import os
import pty
import select
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest

import run_test

COMMAND = ""
TINY = "gdn fp32 hv=2 dk=32 dv=32 seqs=200 init final"
BRIEF = ("--min-time", "0.01")


def run(*arguments, folder=None):
    done = subprocess.run(
        [COMMAND, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        cwd=folder,
        # AddressSanitizer would end a process that asks for too much, where malloc returns NULL.
        env={**os.environ, "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":allocator_may_return_null=1"},
        timeout=100,
        check=False,
    )
    return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")


class OddArguments(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        os.mkfifo(cls.path("pipe"))
        os.mkdir(cls.path("folder"))
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(cls.path("socket"))
        with open(cls.path("empty"), "w", encoding="utf-8"):
            pass
        run_test.Tensors().npz(cls.path("mine.npz"))

    @classmethod
    def path(cls, name):
        return os.path.join(cls.folder, name)

    def refused(self, argument, words, *arguments, code=2):
        """One line that begins with the argument and holds the words."""
        found, out, err = run(*arguments, folder=self.folder)
        self.assertEqual(found, code, f"{arguments}: exit {found}\n{out}\n{err}")
        self.assertTrue(err.startswith(f"deltarelay: {argument}: "), f"{arguments}: {err}")
        self.assertEqual(err.count("\n"), 1, err)
        self.assertIn("expected ", err)
        self.assertIn(", found ", err)
        self.assertIn(words, err)
        self.assertTrue(all(c == "\n" or " " <= c <= "~" for c in err), err)

    def test_outputs_that_are_no_files(self):
        for name, what in (("pipe", "a pipe"), ("folder", "a directory"), ("socket", "a socket")):
            words = f"expected a path that can be written, found '{name}': it is {what}"
            self.refused("--json", words, "bench", TINY, *BRIEF, "--json", name)
            self.refused("--svg", words, "plan", TINY, "--svg", name)
            self.refused("--output", words, "calibrate", "--seconds", "0.01", "-o", name)
        os.mkfifo(self.path("pipe.npz"))
        self.refused("--out", "it is a pipe", "run", "kda", "mine.npz", "--out", "pipe.npz")
        self.refused("--out", "No such file", "run", "kda", "mine.npz", "--out", "none/x.npz")

    def test_devices_may_be_written(self):
        self.assertEqual(run("bench", TINY, *BRIEF, "--json", "/dev/null")[0], 0)
        self.assertEqual(run("plan", TINY, "--svg", "/dev/null")[0], 0)

    def test_inputs_that_are_no_files(self):
        kinds = (("pipe", "a pipe"), ("folder", "a directory"), ("socket", "a socket"), ("/dev/zero", "a device"))
        for name, what in kinds:
            words = f"expected a file that can be read, found '{name}': it is {what}"
            self.refused("--device-file", words, "plan", TINY, "--device-file", name)
            self.refused("file", words, "run", "kda", name)
            for case in (name, "./" + name):
                self.refused("file", "expected a regular file of cases", "verify", case)
        self.refused("--device-file", "No such file", "plan", TINY, "--device-file", "none")
        self.refused("--device-file", "found ''", "plan", TINY, "--device-file", "")
        self.refused("file", "'\\xff.npz': No such file", "run", "kda", b"\xff.npz")

    def test_a_device_file_that_fails_while_it_is_read(self):
        self.refused("--device-file", "Input/output error", "plan", TINY, "--device-file", "/proc/self/mem")

    def test_files_without_a_case(self):
        for command in ("plan", "explain", "verify", "bench"):
            self.refused("case", "found files without any: 'empty'", command, "empty")

    def test_a_folder_may_have_the_name_of_a_rule(self):
        os.mkdir(self.path("kda"))
        self.assertEqual(run("plan", "kda", "seqs=10", folder=self.folder)[0], 0)
        os.rmdir(self.path("kda"))

    def test_whole_numbers(self):
        most = {"--jobs": 256, "--seed": 1 << 62, "--random-cases": (1 << 63) - 1, "--cost": (1 << 63) - 1}
        least = {"--seed": 0}
        for option, high in most.items():
            low = least.get(option, 1)
            for value in (low - 1, high + 1, "1.5", "1e3", "0x10", "+1", " 1", "1 ", "", "nan", "1,2", "2k", b"\xff"):
                shown = "\\xff" if value == b"\xff" else value
                argument = value if isinstance(value, bytes) else str(value)
                self.refused(
                    option,
                    f"expected a whole number from {low} to {high}, found '{shown}'",
                    "verify",
                    *(() if option == "--random-cases" else ("--random-cases", "1")),
                    option,
                    argument,
                )

    def test_leading_zeros_are_no_octal_number(self):
        words = ("verify", "--random-cases", "1", "--cost", "20000", "--hash", "--seed")
        code, out, err = run(*words, "010")
        self.assertEqual((code, err), (0, ""))
        self.assertRegex(out, r" seed=10\n")
        self.assertEqual(out, run(*words, "10")[1])

    def test_every_seed_is_one_of_a_line(self):
        code, out, _ = run("verify", "--random-cases", "2", "--cost", "20000", "--hash", "--seed", str(1 << 62))
        self.assertEqual(code, 0, out)
        for line in out.splitlines():
            self.assertEqual(run("plan", line.split("  ", 1)[1])[0], 0, line)

    def test_numbers(self):
        options = (
            ("--random", ("verify",)),
            ("--stop-after", ("verify", "--random-cases", "1")),
            ("--min-time", ("bench", TINY)),
            ("--seconds", ("run", "kda", "mine.npz")),
        )
        for option, words in options:
            for value in ("0", "-1", "nan", "", "1s", "1,2"):
                self.refused(option, f"expected a finite number above 0, found '{value}'", *words, option, value)
            for value in ("1e300", "inf"):
                self.refused(option, f"at most 1e+09, found '{value}'", *words, option, value)

    def test_calibrate_takes_what_its_help_says(self):
        help_text = run("calibrate", "--help")[1]
        self.assertIn("more than 0, at most 600", help_text)
        self.assertNotIn("[0 - 600]", help_text)
        for value in ("0", "-0", "600.001", "1e3"):
            words = f"expected a finite number above 0 and at most 600, found '{value}'"
            self.refused("--seconds", words, "calibrate", "--seconds", value)

    def test_arguments_that_are_not_there(self):
        for command, argument in (("plan", "case"), ("run", "rule"), ("completion", "shell")):
            self.refused(argument, f"found none; see `deltarelay help {command}`", command)
        self.refused("file", "found none", "run", "kda")
        self.refused("--svg", "found none", "plan", TINY, "--svg")
        self.refused("subcommand", "found none; see `deltarelay help`")

    def test_arguments_too_many(self):
        for words in (("info", "more"), ("plan", TINY, "--jobs", "3"), ("man", "x"), ("plan", TINY, "-\033[31m")):
            self.refused("argument", f"`deltarelay help {words[0]}`, found '", *words)
        self.refused("subcommand", "found '--speed'", "--speed")
        self.refused("--seed", "expected at most one value, found 2", "verify", "--seed", "3", "--seed=4")
        self.refused("--json", "expected no value, found 'x'", "info", "--json=x")

    def test_words_that_are_not_known(self):
        self.refused("rule", "expected kda or gdn, found 'mamba'", "run", "mamba", "mine.npz")
        self.refused("shell", "expected bash, zsh or fish, found 'tcsh'", "completion", "tcsh")
        self.refused("--on", "found 'abacus'", "verify", "--random-cases", "1", "--on", "cpu,abacus")

    def test_one_format_on_standard_output(self):
        for words in (
            ("support", "--json"),
            ("tensors", "--json"),
            ("tiling", "--json"),
            ("bench", TINY, "--json", "-"),
        ):
            self.refused("--markdown", "found JSON beside it", *words, "--markdown")

    def test_a_commit_that_json_cannot_hold(self):
        self.refused("--commit", "found '\\xff'", "bench", TINY, *BRIEF, "--json", "-", "--commit", b"\xff")

    def test_words_beside_are_read_before_the_run(self):
        self.refused("word", "found 'zzz'", "bench", TINY, "--beside", "zzz")

    def test_a_case_that_contradicts_itself_fails_alone(self):
        code, out, err = run("bench", "kda seqs=10x9 init=slots:pool=3", TINY, *BRIEF)
        self.assertEqual(code, 1)
        self.assertIn("pool: expected a slot for each of 9 entries, found '3'", err)
        self.assertEqual(len(out.splitlines()), 2, "header and the row of the good case")

    def test_alignments_that_are_no_powers_of_two(self):
        for types, where in itertools.product(
            ("fp32", "bf16"), ("align=3", "align=12", "align=v:3", "align=o:5,beta:7")
        ):
            code, out, err = run("verify", f"kda {types} dk=16 seqs=40 {where}")
            self.assertEqual(code, 1)
            self.assertRegex(out, r"expected 0 \(\d+ bytes\) or a power of two, found")
            self.assertEqual(err, "")

    def test_what_the_library_refuses_is_not_drawn_first(self):
        begin = time.monotonic()
        code, out, _ = run("verify", "kda seqs=1x16777216")
        self.assertEqual(code, 1)
        self.assertIn("problem.num_seqs: expected 1 to 65536", out)
        self.assertLess(time.monotonic() - begin, 30, "drawing so many sequences takes minutes")

    def test_memory(self):
        case = "kda seqs=10 init=slots:null=16777215"  # a pool of a terabyte
        code, out, err = run("verify", case)
        self.assertEqual(code, 1)
        self.assertNotIn("deltarelay: ", err)
        self.assertIn("memory: the tensors of this case do not fit", out)
        self.assertIn("memory: the tensors of this case do not fit", run("bench", case, *BRIEF)[2])

    def test_exit_codes_are_those_of_the_help(self):
        text = " ".join(run("--help")[1].split())
        self.assertIn("1 a check failed, the library refused a case, or output was not written to its end; 2 bad", text)
        self.assertIn("or a path that cannot be opened", text)
        for code, words in (
            (0, ("plan", TINY)),
            (1, ("verify", TINY + " o=fp16 scale=1e9")),
            (1, ("plan", "kda hqk=3 hv=4 seqs=10")),
            (1, ("plan", TINY, "--svg", "/dev/full")),
            (2, ("plan", TINY, "--svg", "/none/x.svg")),
            (2, ("plan", "mamba")),
            (2, ("plan", TINY, "--device-file", self.folder)),
            (2, ("run", "kda", "empty")),
        ):
            self.assertEqual(run(*words, folder=self.folder)[0], code, words)


class OnATerminal(unittest.TestCase):
    """Progress on standard error, if that is a terminal."""

    def shown(self, *arguments, columns=80):
        """What a terminal sees of standard error, on one core, where times are the same everywhere."""
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        core = min(os.sched_getaffinity(0))
        child = subprocess.Popen(
            [COMMAND, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=theirs,
            preexec_fn=lambda: os.sched_setaffinity(0, {core}),
        )
        os.close(theirs)
        seen = b""
        with child:
            while child.poll() is None or select.select([ours], [], [], 0)[0]:
                if not select.select([ours], [], [], 0.1)[0]:
                    continue
                try:
                    seen += os.read(ours, 1 << 16)
                except OSError:  # the other end is closed
                    break
            out = child.stdout.read().decode()
        os.close(ours)
        self.assertEqual(child.returncode, 0, out)
        return seen.decode(), out

    def test_one_long_case_shows_progress_in_one_line(self):
        columns = 60
        seen, out = self.shown("verify", "kda fp32 hv=8 seqs=20000 backend=reference", columns=columns)
        self.assertIn("1 passed", out)
        self.assertTrue(seen.endswith("\r\033[K"), "the bar is erased")
        lines = [line for line in seen.split("\r\033[K") if line]
        self.assertGreater(len(set(lines)), 2, "the seconds go on")
        for line in lines:
            self.assertRegex(line, " [01]/1  ")
            self.assertIn(" kda fp32", line)
            self.assertLess(len(line), columns)

    def test_short_work_shows_none(self):
        self.assertEqual(self.shown("plan", TINY)[0], "")


if __name__ == "__main__":
    COMMAND = sys.argv.pop(1)
    unittest.main()
