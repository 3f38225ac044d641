"""Facts measured by `calibrate`, and plans made with them.

Usage: calibrate_test.py <path of deltarelay> <seconds to measure>.
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest

COMMAND = ""
SECONDS = ""
CASE = "kda fp32 hv=1 seqs=4096"
TINY = "gdn fp32 hv=2 dk=32 dv=32 seqs=200 init final"


def run(*arguments):
    return subprocess.run([COMMAND, *arguments], capture_output=True, text=True, timeout=500)


class Calibrate(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.path = os.path.join(cls.folder.name, "cpu.json")
        cls.done = run("calibrate", "--seconds", SECONDS, "--output", cls.path)
        if cls.done.returncode != 0:
            raise AssertionError(cls.done.stderr)
        with open(cls.path, encoding="utf-8") as file:
            cls.facts = json.load(file)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def succeed(self, *arguments):
        done = run(*arguments)
        self.assertEqual(done.returncode, 0, f"{arguments}\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def changed(self, change):
        """A file of the same facts with one change."""
        facts = json.loads(json.dumps(self.facts))
        change(facts)
        path = os.path.join(self.folder.name, "changed.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(facts, file)
        return path, facts

    def plan(self, path, *arguments):
        out = json.loads(self.succeed("plan", CASE, "--device-file", path, "--json", *arguments))
        here = out["device"].pop("here")
        return out, here

    def test_measures(self):
        self.assertIn("GFLOP/s", self.done.stdout)
        self.assertEqual(self.facts["kind"], "cpu")
        self.assertGreater(self.facts["flops_per_ns"], 0)
        self.assertEqual([row["rule"] for row in self.facts["costs"]], ["kda", "gdn"])
        for row in self.facts["costs"]:
            # On a busy machine the times may be useless; then calibrate says so and keeps the library's costs.
            unsteady = f"{row['rule']}: times are too unsteady" in self.done.stderr
            self.assertEqual(row["measured_on"] == self.facts["model"][:39], not unsteady)
            self.assertLessEqual(row["local_ns"], row["emit_ns"])
            self.assertGreater(row["summarize_ns"], row["emit_ns"] / 2)
            self.assertLess(row["summarize_ns"], row["emit_ns"] * 4)
            self.assertGreater(row["carry_ns"], 0)
            self.assertLess(row["carry_ns"], row["emit_ns"] * 20)

    def test_standard_output(self):
        facts = json.loads(self.succeed("calibrate", "--seconds", "0.01"))
        self.assertEqual(set(facts), set(self.facts))

    def test_round_trip(self):
        out, here = self.plan(self.path)
        self.assertTrue(here)
        self.assertEqual({**out["device"], "costs": out["costs"]}, self.facts)

    def test_plans_follow_the_facts(self):
        def change(facts):
            facts["units"] = 7
            facts["name"] = "next door"
            for row in facts["costs"]:
                row["emit_ns"] = min(row["emit_ns"] * 1000, 2**31 - 1)  # large under a sanitizer

        path, facts = self.changed(change)
        out, here = self.plan(path)
        self.assertTrue(here, "any CPU is here")
        self.assertEqual({**out["device"], "costs": out["costs"]}, facts)
        self.assertEqual(out["options"]["threads"], 7)
        slow, _ = self.plan(path, "--with", "segments=off threads=1")
        fast, _ = self.plan(self.path, "--with", "segments=off threads=1")
        self.assertGreater(slow["predicted_ns"], 100 * fast["predicted_ns"])

    def test_runs_with_the_facts(self):
        path, _ = self.changed(lambda facts: facts.update(units=3))
        self.assertIn("1 passed", self.succeed("verify", TINY, "--device-file", path))
        self.assertIn("accepts", self.succeed("explain", TINY, "--device-file", path))
        self.succeed("bench", TINY, "--device-file", path, "--min-time", "0.02")
        # The device of a case takes precedence over the file.
        named = json.loads(self.succeed("plan", CASE + " device=h200", "--device-file", path, "--json"))
        self.assertEqual(named["device"]["name"], "h200")

    def refused(self, words, *arguments):
        done = run(*arguments)
        self.assertEqual(done.returncode, 2, f"{arguments}\n{done.stdout}\n{done.stderr}")
        self.assertIn(words, done.stderr)

    def test_bad_files(self):
        self.refused("--device-file: expected a file that can be read", "plan", CASE, "--device-file", "/no/such/file")
        text = os.path.join(self.folder.name, "text")
        with open(text, "w", encoding="utf-8") as file:
            file.write("units: 3")
        self.refused("--device-file: expected JSON", "plan", CASE, "--device-file", text)
        for words, change in (
            ('units: expected a whole number of 32 bits, found "three"', lambda f: f.update(units="three")),
            ("units: expected a whole number of 32 bits, found 4294967296", lambda f: f.update(units=1 << 32)),
            ('kind: expected cpu or cuda, found "gpu"', lambda f: f.update(kind="gpu")),
            ("name: expected a text of at most 31 bytes", lambda f: f.update(name="x" * 32)),
            ("costs: expected a list, found {}", lambda f: f.update(costs={})),
            ('costs[1].emit_ns: expected a value, found "nothing"', lambda f: f["costs"][1].pop("emit_ns")),
            ("costs[0].measured: expected true or false, found 1", lambda f: f["costs"][0].update(measured=1)),
        ):
            path, _ = self.changed(change)
            self.refused("--device-file: " + words, "plan", CASE, "--device-file", path)
        self.refused("found random ones", "verify", "--random-cases", "1", "--device-file", self.path)

    def test_the_library_judges_values(self):
        path, _ = self.changed(lambda facts: facts.update(units=0))
        done = run("plan", CASE, "--device-file", path)
        self.assertEqual(done.returncode, 1)
        self.assertIn("options.device.units: expected 1 to 4096, found 0", done.stderr)

    def test_bad_usage(self):
        for seconds in ("0", "-1", "nan", "601"):
            self.refused("--seconds", "calibrate", "--seconds", seconds)
        self.refused("--output", "calibrate", "--output", "")
        self.refused("/no/such/folder/cpu.json", "calibrate", "--output", "/no/such/folder/cpu.json")


if __name__ == "__main__":
    COMMAND = sys.argv.pop(1)
    SECONDS = sys.argv.pop(1)
    unittest.main()
