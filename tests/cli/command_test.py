"""Tests the command from outside: exit codes, messages, JSON, SVG.

Usage: command_test.py <path of deltarelay> <part>.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree

COMMAND = ""
SMOKE = os.path.join("tests", "cases", "smoke.txt")
TINY = "gdn fp32 hv=2 dk=32 dv=32 seqs=200 init final"
SPLIT = TINY + " segments=2 threads=2"
LONG = "kda bf16 hv=8 seqs=131072,1024x10 init final gate=bounded:-5 beta=logit l2norm device=h200"


def run(*arguments):
    """Runs the command; returns exit code, standard output and standard error."""
    done = subprocess.run([COMMAND, *arguments], capture_output=True, text=True, timeout=500)
    return done.returncode, done.stdout, done.stderr


class Base(unittest.TestCase):
    def succeed(self, *arguments):
        code, out, err = run(*arguments)
        self.assertEqual(code, 0, f"{arguments}: exit {code}\n{out}\n{err}")
        self.assertNotIn("\033", out, "colours in a pipe")
        self.assertEqual(err, "", "standard error is for errors and for progress on a terminal")
        return out

    def fail_with(self, expected_code, words, *arguments):
        code, out, err = run(*arguments)
        self.assertEqual(code, expected_code, f"{arguments}: exit {code}\n{out}\n{err}")
        self.assertIn(words, out + err)
        return out, err


class Info(Base):
    def test_words(self):
        out = self.succeed("info")
        for word in ("processor", "instruction sets", "reference", "cpu", "h200", "132"):
            self.assertIn(word, out)

    def test_json(self):
        out = json.loads(self.succeed("info", "--json"))
        self.assertEqual(out["backends"][-1], "reference")
        self.assertEqual(out["devices"][0]["kind"], "cpu")
        units = {device["name"]: device["units"] for device in out["devices"]}
        self.assertEqual((units["h200"], units["b200"], units["gb200"]), (132, 148, 152))

    def test_tensors(self):
        tensors = {entry["name"]: entry for entry in json.loads(self.succeed("tensors", "--json"))}
        self.assertEqual(tensors["q"]["axes"], "[T, HQK, DK]")
        self.assertEqual((tensors["o"]["direction"], tensors["v"]["direction"]), ("out", "in"))
        self.assertEqual(tensors["beta"]["aligned_to"], "an element")
        self.assertIn("seq_offsets", self.succeed("tensors"))

    def test_help(self):
        out = self.succeed("--help")
        for part in (
            "info",
            "support",
            "tensors",
            "tiling",
            "explain",
            "plan",
            "verify",
            "bench",
            "calibrate",
            "Examples",
            "<prefix>/share/doc/deltarelay",
        ):
            self.assertIn(part, out)
        for part in ("info", "support", "tensors", "tiling", "explain", "plan", "verify", "bench", "calibrate"):
            self.assertIn("Usage", self.succeed(part, "--help"))
        self.assertIn("deltarelay", self.succeed("--version"))

    def test_version_in_short(self):
        self.assertEqual(self.succeed("-V"), self.succeed("--version"))

    def test_output_that_cannot_be_written_is_a_failure(self):
        for words in (
            ["info"],
            ["--help"],
            ["--version"],
            ["plan", TINY],
            ["verify", TINY],
            ["verify", TINY, "--hash"],
            ["help", "cases"],
            ["man"],
            ["completion", "bash"],
            ["bench", TINY, "--min-time", "0.01"],
        ):
            with open("/dev/full", "w", encoding="utf-8") as full:
                done = subprocess.run([COMMAND, *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=100)
            self.assertEqual(done.returncode, 1, words)
            self.assertIn("standard output was not written to its end", done.stderr, words)

    def test_bad_usage(self):
        self.fail_with(2, "subcommand", "")
        self.assertEqual(run()[0], 2)
        self.fail_with(2, "subcommand: expected one of info, support, ", "nothing")
        self.fail_with(2, "found 'nothing'", "nothing")
        self.fail_with(2, "found '\\x1b[31m'", "\033[31m")
        self.assertEqual(run("info", "--speed")[0], 2)


class Texts(Base):
    """Help, manual page and completion list every subcommand, option and word that the parser accepts."""

    COMMANDS = ("info", "support", "tensors", "tiling", "explain", "plan", "verify", "bench")

    def options(self):
        names = set()
        for command in self.COMMANDS:
            text = self.succeed(command, "--help")
            names |= {(command, name) for name in re.findall(r"^  (?:-\w,)?(--[a-z-]+)", text, re.M)}
        self.assertGreater(len(names), 25)
        return names

    def words(self):
        return re.findall(r"^  (\S+)  ", self.succeed("help", "cases"), re.M)

    def test_help_on_cases_has_every_word(self):
        words = self.words()
        with open(os.path.join("docs", "cases.md"), encoding="utf-8") as file:
            document = file.read()
        for word in words:
            for part in word.split("|") if "=" not in word else [word.split("=")[0] + "="]:
                self.assertRegex(document, rf"[` ]{part}", "docs/cases.md")
        keys = {word.split("=")[0] for word in words}
        for word in set(re.findall(r"(?<= )([a-z0-9-]+)=", open(SMOKE, encoding="utf-8").read())):
            self.assertIn(word, keys)

    def test_help_on_a_subcommand(self):
        self.assertEqual(self.succeed("help", "verify"), self.succeed("verify", "--help"))
        self.assertEqual(self.succeed("help"), self.succeed("--help"))
        self.fail_with(2, "topic: expected cases or a subcommand, found 'all'", "help", "all")

    def test_manual_page(self):
        page = self.succeed("man")
        self.assertTrue(page.startswith(".TH DELTARELAY 1 "))
        plain = page.replace("\\-", "-")
        for command, option in self.options():
            self.assertIn(".SS deltarelay " + command, plain)
            if option != "--help":
                self.assertIn(option, plain.split(".SS deltarelay " + command)[1].split(".SS ")[0])
        for word in self.words():
            self.assertIn(".B " + word, plain)
        for line in page.splitlines():
            self.assertRegex(line, r"^(?!['.])|^\.(TH|SH|SS|PP|TP|B|I|nf|fi)( |$)", "a line that troff would misread")

    def complete(self, *words):
        script = self.succeed("completion", "bash")
        ask = (
            'eval "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _deltarelay; printf "%s\\n" "${COMPREPLY[@]}"'
        )
        done = subprocess.run(
            ["bash", "-c", ask, "bash", script, "deltarelay", *words], capture_output=True, text=True, timeout=60
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout.split()

    def test_bash_completion(self):
        self.assertEqual(self.complete("ver"), ["verify"])
        self.assertEqual(self.complete("verify", "--random-"), ["--random-cases"])
        self.assertEqual(self.complete("plan", "kda", "seq"), ["seqs="])
        self.assertEqual(self.complete("verify", "tests/cases/smo"), [SMOKE])
        self.assertEqual(self.complete("completion", "z"), ["zsh"])
        for command, option in self.options():
            self.assertIn(option, self.complete(command, "--"))

    def test_zsh_and_fish_completion(self):
        zsh, fish = self.succeed("completion", "zsh"), self.succeed("completion", "fish")
        for command, option in self.options():
            self.assertIn(f"'{option}[", zsh.split(f"    {command})\n")[1].split(";;")[0])
            self.assertRegex(fish, f"seen_subcommand_from {command}' .*-l {option[2:]} ")
        for script, shell in ((zsh, "zsh"), (fish, "fish")):
            for word in ("seqs=", "l2norm", "gdn"):
                self.assertRegex(script, rf"[ ']{word}[ '\n]")
            checker = shutil.which(shell)
            if checker:
                self.assertEqual(subprocess.run([checker, "-n"], input=script, text=True, timeout=60).returncode, 0)
        self.fail_with(2, "shell", "completion", "tcsh")


class Support(Base):
    def test_reference_takes_everything_it_is_asked(self):
        rows = json.loads(self.succeed("support", "--json"))
        self.assertGreater(len(rows), 100)
        for row in rows:
            # The reference computes token by token in double: it has no segments to cut and no shorter products.
            declined = any(word in row["words"] for word in ("segments=", "math="))
            if row["backend"] == "reference":
                self.assertEqual(row["accepted"], not declined, row)
            self.assertEqual(row["accepted"], row["reason"] == "", row)

    def test_table(self):
        out = self.succeed("support")
        self.assertRegex(out.splitlines()[0], r"^feature +KDA .*GDN reference$")
        self.assertIn("raw bounded gate", out)
        markdown = self.succeed("support", "--markdown").splitlines()
        self.assertTrue(all(line.startswith("|") and line.endswith("|") for line in markdown))
        self.assertEqual(len({line.count("|") for line in markdown}), 1)


class TilingCommand(Base):
    def test_json(self):
        devices = json.loads(self.succeed("tiling", "--json"))
        names = [device["name"] for device in devices]
        for name in ("a100", "h200", "b200", "rtx3090", "rtx4090", "rtx5090"):
            self.assertIn(name, names)
        for device in devices:
            shapes = {(row["rule"], row["dtype"], row["width"]) for row in device["tilings"]}
            self.assertEqual(len(shapes), 2 * 3 * 5, device["name"])
            costs = [c for c in device["costs"] if c["backend"] == "cuda-sm80" and c["rule"] == "kda"][0]
            self.assertEqual(costs["measured"], device["name"] == "h200")
            for row in device["tilings"]:
                self.assertEqual(row["chunk"], costs["chunk"])
                self.assertLessEqual(row["together"] * (row["shared_bytes"] + 1024), device["l1_bytes"], row)
                self.assertLessEqual(row["together"] * row["threads"] * row["registers"], 65536, row)
                self.assertEqual(row["together"], min(row["by_registers"], row["by_shared_memory"]), row)

    def test_tables(self):
        out = self.succeed("tiling", "--device", "rtx4090,a100")
        self.assertRegex(out, r"kda +16 bit +128 +128 +32 +128 .* KiB +255 +2 +1 +2\n")
        self.assertRegex(out, r"rtx4090 +estimated +kda")
        self.assertNotIn("h200", out)
        self.assertRegex(self.succeed("tiling"), r"h200 +measured +gdn")
        markdown = [line for line in self.succeed("tiling", "--markdown").splitlines() if line]
        self.assertTrue(all(line.startswith("|") and line.endswith("|") for line in markdown))

    def test_bad_usage(self):
        self.fail_with(2, "--device: name: expected one of cpu", "tiling", "--device", "abacus")
        self.fail_with(2, "--device: expected a GPU, found 'cpu'", "tiling", "--device", "cpu")


class Explain(Base):
    def test_says_what_every_backend_answers(self):
        out = self.succeed("explain", *TINY.split())
        self.assertRegex(out, r"reference +accepts")
        self.assertIn("plan", out)

    def test_invalid_and_unreadable_differ(self):
        self.fail_with(1, "head", "explain", "kda hqk=3 hv=4 seqs=10")
        self.fail_with(2, "rule: expected kda or gdn", "explain", "mamba seqs=10")
        self.fail_with(2, "file", "explain", "tests/cases/none.txt")
        self.fail_with(2, "device", "explain", "kda seqs=10 device=abacus")


class PlanCommand(Base):
    def test_words(self):
        out = self.succeed("plan", LONG)
        self.assertIn("131072", out)
        self.assertIn("segments", out)

    def test_json_has_a_schedule_that_fits_its_units(self):
        plan = json.loads(self.succeed("plan", LONG, "--json"))
        self.assertIn("case", plan)
        schedule = plan["schedule"]
        self.assertEqual(schedule["units"], 132)
        for name in ("split", "unsplit"):
            self.assertTrue(schedule[name])
            busy = {}
            for item in schedule[name]:
                if item["work"] == "carry":
                    continue
                self.assertLess(item["unit"], 132)
                self.assertLessEqual(item["start_ns"], item["end_ns"])
                busy.setdefault(item["unit"], []).append((item["start_ns"], item["end_ns"]))
            for spans in busy.values():
                spans.sort()
                for (_, end), (start, _) in zip(spans, spans[1:]):
                    self.assertLessEqual(end, start, "two items on one unit at once")
        ends = {name: max(item["end_ns"] for item in schedule[name]) for name in ("split", "unsplit")}
        self.assertLess(ends["split"], ends["unsplit"], "a 128K sequence on 8 heads is worth cutting")

    def test_json_of_several_cases_is_a_list(self):
        plans = json.loads(self.succeed("plan", TINY, SPLIT, "--json"))
        self.assertEqual(len(plans), 2)

    def test_device_and_policy(self):
        plan = json.loads(
            self.succeed("plan", "kda bf16 hv=4 seqs=131072", "--device", "gb200", "--policy", "cula-sm100", "--json")
        )
        self.assertIn("policy=cula-sm100", plan["case"])
        self.assertEqual(plan["device"]["units"], 152)
        self.assertEqual(
            plan["schedule"]["units"], 152 * plan["cta"]["together"], "a unit of the schedule runs one item"
        )
        self.fail_with(1, "policy", "plan", TINY, "--policy", "astrology")
        self.fail_with(2, "device", "plan", TINY, "--device", "abacus")

    def check_svg(self, *arguments):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "timeline.svg")
            self.succeed("plan", *arguments, "--svg", path)
            with open(path, encoding="utf-8") as file:
                text = file.read()
        root = xml.etree.ElementTree.fromstring(text)
        self.assertEqual(root.tag, "{http://www.w3.org/2000/svg}svg")
        self.assertEqual(root.get("width"), "1200")
        height = float(root.get("height"))
        for rect in root.iter("{http://www.w3.org/2000/svg}rect"):
            for name, limit in (("x", 1200), ("y", height)):
                self.assertGreaterEqual(float(rect.get(name, 0)), 0)
                size = float(rect.get("width" if name == "x" else "height"))
                self.assertLessEqual(float(rect.get(name, 0)) + size, limit + 0.02)
        return text

    def test_svg(self):
        for case in (LONG, SPLIT, TINY + " segments=off"):
            text = self.check_svg(case)
            self.assertIn("predicted", text)
        self.assertIn("url(#hatch)", self.check_svg(LONG))
        self.assertIn("unsplit, for comparison", self.check_svg(LONG))
        self.check_svg("kda seqs=0")

    def test_svg_of_a_large_plan_has_its_stages(self):
        text = self.check_svg("kda bf16 hv=64 seqs=300x2000 variant=prepared device=h200")
        self.assertIn("work items, more than", text)
        for stage in ("prepare", "emit", "nothing cut"):
            self.assertIn(stage, text)

    def test_svg_of_lengths_at_execution_is_refused_in_words(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "timeline.svg")
            self.fail_with(
                1,
                "--svg: expected lengths that are known when the plan is made",
                "plan",
                TINY + " lengths=execute",
                "--svg",
                path,
            )
            self.assertFalse(os.path.exists(path))

    def test_svg_takes_one_case_and_a_path_that_can_be_written(self):
        self.fail_with(1, "'/dev/full' was not written to its end", "plan", TINY, "--svg", "/dev/full")
        self.fail_with(2, "--svg: expected a text, found ''", "plan", TINY, "--svg", "")
        self.fail_with(2, "--svg: expected one case", "plan", TINY, TINY, "--svg", "x.svg")
        self.fail_with(2, "/nowhere/x.svg", "plan", TINY, "--svg", "/nowhere/x.svg")

    def test_a_sequence_with_fewer_chunks_than_segments_stays_whole(self):
        self.assertIn("no sequence is cut", self.succeed("plan", "kda seqs=10 segments=1000"))


class Verify(Base):
    def test_smoke_file(self):
        out = self.succeed("verify", SMOKE)
        count = sum(1 for line in open(SMOKE, encoding="utf-8") if line.split("#")[0].strip())
        self.assertEqual(out.splitlines()[-1], f"{count} passed, 0 failed")
        self.assertEqual(len(re.findall(r"^ok ", out, re.M)), count)

    def test_one_line_a_case(self):
        out = self.succeed("verify", SPLIT, "--with", "backend=cpu")
        self.assertRegex(out, r"^ok +gdn fp32 .*backend=cpu.*\[cpu/[^,]+, 2 segments; o \S+ of \S+, final \S+ of \S+\]")

    def test_every_instruction_set(self):
        sets = json.loads(self.succeed("info", "--json"))["instruction_sets"]
        out = self.succeed("verify", TINY, "--every-isa")
        for isa in sets:
            self.assertIn("isa=" + isa, out)
        self.assertIn(f"{len(sets)} passed", out)

    def test_random(self):
        first = self.succeed("verify", "--random", "2", "--seed", "5", "--cost", "2000000")
        self.assertRegex(first, r"\d+ passed, 0 failed")
        self.assertIn("seed=5", first)

    def test_random_cases_several_at_a_time(self):
        words = ["--random-cases", "12", "--cost", "500000", "--jobs", "3"]
        out = self.succeed("verify", *words, "--on", "cpu,reference", "--skip-declined")
        self.assertGreaterEqual(int(re.search(r"^(\d+) passed, 0 failed", out, re.M)[1]), 12)
        self.assertIn("backend=cpu", out)
        self.assertIn("backend=reference", out)
        out, _ = self.fail_with(
            1, "most were declined", "verify", *words, "--with", "backend=reference math=tf32", "--skip-declined"
        )
        self.assertRegex(out, r"declined \d+: .*math")
        self.assertRegex(out, r"random cases: 0 ran, \d+ were declined")
        self.fail_with(2, "expected a word", "verify", *words, "--with", "backend")

    def test_random_cases_with_words(self):
        words = ["--random-cases", "10", "--cost", "300000", "--with", "kda bf16 gate=init:2 backend=cpu"]
        out = self.succeed("verify", *words)
        ran = re.findall(r"^ok +(.*)  \[", out, re.M)
        self.assertGreaterEqual(len(ran), 10)
        for line in ran:
            self.assertRegex(line, r"^kda (\S+ )?bf16 .*\bgate=init:2\b.*\bbackend=cpu\b")
        self.assertIn(f"random cases: {len(ran)} ran, 0 were declined\n", out)
        again = self.succeed("verify", *words, "--hash")
        self.assertEqual(re.findall("^[0-9a-f]{16}  (.*)$", again, re.M), ran)

    def test_random_cases_stop_in_time(self):
        out = self.succeed("verify", "--random-cases", "1000000", "--cost", "20000", "--stop-after", "0.5", "-q")
        self.assertRegex(out, r"random cases: \d+ ran, \d+ were declined\n[1-9]\d* passed, 0 failed")

    def test_quiet(self):
        self.assertEqual(self.succeed("verify", TINY, "--quiet"), "1 passed, 0 failed\n")

    def test_failure_prints_the_line_that_repeats_it(self):
        out, _ = self.fail_with(1, "0 passed, 1 failed", "verify", "kda hqk=3 hv=4 seqs=10 seed=9")
        self.assertRegex(out, r'repeat: deltarelay verify "kda .*seed=9"')
        self.fail_with(1, "FAIL", "verify", TINY + " backend=cpu isa=ABACUS")

    def test_declined_cases_can_be_skipped(self):
        declined = TINY + " backend=reference math=tf32"
        self.fail_with(1, "0 passed, 1 failed", "verify", declined)
        self.assertIn("1 skipped", self.succeed("verify", declined, "--skip-declined"))

    def test_only_some_cases(self):
        out = self.succeed("verify", "a-1: " + TINY, "b-1: " + SPLIT, "--only", "^b-")
        self.assertIn("1 passed", out)
        self.assertIn("b-1:", out)
        self.fail_with(2, "--only: expected a case that matches", "verify", TINY, "--only", "nothing")
        self.fail_with(2, "--only: expected a regular expression", "verify", TINY, "--only", "(")

    def test_full_columns_of_a_large_case(self):
        large = "gdn fp32 hv=2 dk=16 dv=16 seqs=33000"
        self.assertIn("sampled columns", self.succeed("verify", large))
        self.assertNotIn("sampled columns", self.succeed("verify", large, "--full-columns"))

    def test_a_gpu_that_is_not_here_is_said_to_be_absent(self):
        if "GPU" not in run("verify", "kda bf16 seqs=10 device=cuda")[1]:
            self.skipTest("there is a GPU here")
        for words in ("device=cuda", "device=cuda:0", "backend=cuda-sm90"):
            out, _ = self.fail_with(1, "0 passed, 1 failed", "verify", "kda bf16 seqs=10 " + words)
            self.assertIn("expected a GPU to run on, found none", out)
            self.assertIn("1 skipped", self.succeed("verify", "kda bf16 seqs=10 " + words, "--skip-declined"))
            self.fail_with(1, "found none", "bench", "kda bf16 seqs=10 " + words)

    def hashes(self, *arguments):
        lines = self.succeed("verify", *arguments, "--hash").splitlines()
        for line in lines:
            self.assertRegex(line, r"^[0-9a-f]{16}  \S+ \S+ ")
        return [line.split()[0] for line in lines]

    def test_hash_of_outputs(self):
        bare = TINY.replace(" final", "")
        same = [TINY, TINY + " threads=1", TINY + " strides=padded", bare + " final=rows:pad=32"]
        first = self.hashes(*same)
        self.assertEqual(len(set(first)), 1, "the same bits, whatever lies between them")
        self.assertEqual(self.hashes(*same), first)
        other = [TINY + " seed=2", TINY + " backend=reference", TINY + " o=bf16", bare]
        self.assertEqual(len(set(self.hashes(*other) + first)), 5, "other bits, another hash")

    def test_hashes_come_in_the_order_of_the_cases(self):
        one = self.succeed("verify", SMOKE, "--hash")
        self.assertEqual(self.succeed("verify", SMOKE, "--hash", "--jobs", "4"), one)
        words = [line.split("  ", 1)[1] for line in one.splitlines()]
        checked = self.succeed("verify", SMOKE, "--jobs", "4")
        self.assertEqual(re.findall(r"^ok    (.*)  \[", checked, re.M), words)

    def test_hash_compares_on_request_only(self):
        self.assertEqual(self.hashes(TINY, "--compare"), self.hashes(TINY))
        wrong = TINY + " o=fp16 scale=1e9"  # overflows fp16
        self.assertEqual(len(self.hashes(wrong)), 1)
        self.fail_with(1, "failed            gdn", "verify", wrong, "--hash", "--compare")
        self.fail_with(1, "declined          gdn", "verify", TINY + " backend=reference math=tf32", "--hash")

    def test_bad_usage(self):
        self.fail_with(2, "found 'nothing'", "verify")
        self.fail_with(2, "word: expected", "verify", "kda seqs=10 speed=1")
        for option in ("--random", "--random-cases", "--cost", "--stop-after"):
            for value in ("nan", "inf", "0", "-1"):
                self.assertEqual(run("verify", "--random-cases", "1", option, value)[0], 2, (option, value))
        self.fail_with(2, "--random: expected a finite number above 0, found 'nan'", "verify", "--random", "nan")

    def test_bytes_of_a_binary_file_are_not_echoed(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "binary.txt")
            with open(path, "wb") as file:
                file.write(bytes(range(1, 9)) + b"\x1b[2J" + bytes(range(128, 256)) + b"x" * 1000)
            _, err = self.fail_with(2, "rule: expected kda or gdn, found '\\x01\\x02", "verify", path)
        self.assertTrue(all(c == "\n" or " " <= c <= "~" for c in err), err)
        self.assertLess(len(err), 500)
        self.assertIn("...' (1140 bytes)", err)


class Bench(Base):
    def test_table(self):
        lines = self.succeed("bench", "tiny: " + TINY, SPLIT, "--min-time", "0.05").splitlines()
        self.assertEqual(len(lines), 3)
        self.assertIn("GFLOP/s", lines[0])
        self.assertTrue(lines[1].startswith("tiny "))
        self.assertRegex(lines[2], r"\dx ")

    def test_json_format(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "results.json")
            self.succeed("bench", "tiny: " + SPLIT, "--min-time", "0.05", "--json", path, "--commit", "abc")
            with open(path, encoding="utf-8") as file:
                results = json.load(file)
        self.assertEqual(results["commit"], "abc")
        self.assertRegex(results["date"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
        for field in ("device", "driver", "cuda", "cpu"):
            self.assertIn(field, results)
        (row,) = results["rows"]
        self.assertEqual(row["case"], "tiny")
        self.assertEqual(row["segments"], 2)
        self.assertEqual(row["threads"], 2)
        self.assertTrue(row["line"].startswith("gdn fp32 "))
        self.assertLessEqual(row["ms_low"], row["ms"])
        self.assertLessEqual(row["ms"], row["ms_high"])
        for field in (
            "ms",
            "host_us",
            "plan_us",
            "token_heads_per_s",
            "gflops",
            "gbytes_per_s",
            "fma_peak_gflops",
            "unsplit_ms",
            "workspace_bytes",
            "workspace_bytes_per_token_head",
        ):
            self.assertGreater(row[field], 0, field)
        self.assertAlmostEqual(row["gflops"], row["token_heads_per_s"] * 7 * 32 * 32 * 1e-9, places=6)
        self.assertGreater(row["error"], 0)
        self.assertLess(row["error"], 2e-5)
        self.assertEqual(row["peers"], {})
        self.assertTrue(row["plan"])

    def test_markdown_and_json_on_standard_output(self):
        markdown = self.succeed("bench", TINY, "--min-time", "0.02", "--markdown").splitlines()
        self.assertEqual(len(markdown), 3)
        self.assertTrue(all(line.startswith("|") for line in markdown))
        self.assertEqual(len(json.loads(self.succeed("bench", TINY, "--min-time", "0.02", "--json", "-"))["rows"]), 1)

    def test_sweep(self):
        lines = self.succeed("bench", "tiny: " + TINY, "--min-time", "0.02", "--sweep").splitlines()
        self.assertEqual(len(lines), 3)
        self.assertRegex(lines[2], r"^  segments 1: \S+ ms, 2: .*; auto \(1\): ")
        (row,) = json.loads(self.succeed("bench", TINY, "--min-time", "0.02", "--sweep", "--json", "-"))["rows"]
        self.assertGreater(row["sweep"]["2"], 0)
        self.assertNotIn("64", row["sweep"], "200 tokens have no 64 chunks")

    def test_a_case_that_fails_has_no_time(self):
        out, err = self.fail_with(1, "no time is given", "bench", "kda hqk=3 hv=4 seqs=10", TINY, "--min-time", "0.02")
        self.assertEqual(len(out.splitlines()), 2, "header and the row of the good case")
        self.assertIn("FAIL", err)

    def test_bad_usage(self):
        self.assertEqual(run("bench")[0], 2)
        for value in ("-1", "0", "nan", "inf"):
            self.assertEqual(run("bench", TINY, "--min-time", value)[0], 2)

    def test_a_run_that_is_cut_off_keeps_its_rows(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "rows.json")
            arguments = ["bench", "tiny: " + TINY, TINY, "--min-time", "2", "--json", path]
            bench = subprocess.Popen([COMMAND, *arguments], stdout=subprocess.PIPE, text=True)
            for _ in range(2):
                bench.stdout.readline()  # titles and the first row, which is saved while the second is timed
            time.sleep(1)
            self.assertIsNone(bench.poll(), "the second case takes 2 s")
            bench.kill()
            bench.communicate()
            with open(path, encoding="utf-8") as file:
                self.assertEqual([row["case"] for row in json.load(file)["rows"]], ["tiny"])

    def test_a_path_that_cannot_be_written_is_found_before_the_run(self):
        out, _ = self.fail_with(2, "/nowhere/x.json", "bench", TINY, "--min-time", "0.01", "--json", "/nowhere/x.json")
        self.assertEqual(out, "", "nothing was timed")
        self.fail_with(1, "'/dev/full' was not written", "bench", TINY, "--min-time", "0.01", "--json", "/dev/full")
        self.fail_with(2, "--json", "bench", TINY, "--json", "")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "x.json")
            self.fail_with(1, "FAIL", "bench", "kda hqk=3 hv=4 seqs=10", "--json", path)
            with open(path, encoding="utf-8") as file:
                self.assertEqual(json.load(file)["rows"], [])

    def test_bad_lines(self):
        self.fail_with(2, "seqs: expected", "bench", "kda")


PARTS = {
    "info": Info,
    "support": Support,
    "tiling": TilingCommand,
    "explain": Explain,
    "plan": PlanCommand,
    "verify": Verify,
}
PARTS["bench"] = Bench
PARTS["texts"] = Texts

if __name__ == "__main__":
    COMMAND = sys.argv[1]
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(PARTS[sys.argv[2]])
    result = unittest.TextTestRunner(verbosity=1).run(suite)
    sys.exit(0 if result.wasSuccessful() and result.testsRun > 0 else 1)
