"""Tests bench/peers.py without a GPU, torch or any peer: how it reads case lines, and its binding of the library.

Usage: test_peers.py <libdeltarelay.so>
"""

import os
import pathlib
import re
import sys
import tempfile
import types
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "bench"))
sys.dont_write_bytecode = True
TORCH = types.SimpleNamespace(float32="fp32", bfloat16="bf16", float16="fp16")
sys.modules.setdefault("torch", TORCH)

import deltarelay_library  # noqa: E402
import peers  # noqa: E402

LIBRARY = ""


def tensor(dtype: str, *shape: int):
    return types.SimpleNamespace(dtype=dtype, shape=shape)


class Lines(unittest.TestCase):
    def test_every_target_is_a_case_for_peers(self):
        known = 0
        for line in (ROOT / "tests" / "cases" / "targets.txt").read_text(encoding="utf-8").splitlines():
            name, _, words = line.partition(": ")
            if not re.match("(kda|gdn)-", name):
                continue
            case = peers.parse(words + " backend=cuda-sm90 device=cuda:0")
            self.assertIsNotNone(case, line)
            self.assertEqual(case["lower_bound"], -5.0 if case["rule"] == "kda" else None)
            known += 1
        self.assertEqual(known, 31)

    def test_targets_under_the_gates_of_models(self):
        rows = peers.read_cases(ROOT / "tests" / "cases" / "targets.txt")
        expected = {
            "softplus-kda": ("softplus", "init", 1, 4),
            "softplus2-kda": ("softplus", "init", 2, 4),
            "init-kda": ("bounded", "init", 1, 3),
            "init-gdn": ("log", "init", 1, 6),
            "mixed-kda": ("log", "mixed", 1, 2),
            "mixed-gdn": ("log", "mixed", 1, 2),
        }
        for prefix, (form, profile, spread, count) in expected.items():
            cases = [peers.parse(row["line"]) for row in rows if row["case"].startswith(prefix + "-")]
            self.assertEqual(len(cases), count, prefix)
            for case in cases:
                self.assertEqual((case["form"], case["profile"], case["spread"]), (form, profile, spread))
                self.assertEqual(case["lower_bound"], -5.0 if form == "bounded" else None)

    def test_rows_differ_from_their_target_by_the_gates_alone(self):
        rows = {row["case"]: row["line"] for row in peers.read_cases(ROOT / "tests" / "cases" / "targets.txt")}
        for name, line in rows.items():
            prefix, _, base = name.partition("-")
            if prefix in ("softplus", "softplus2", "init", "mixed"):
                self.assertEqual(re.sub("gate=[^ ]+", "", line), re.sub("gate=[^ ]+", "", rows[base]), name)

    def test_lengths(self):
        line = "kda bf16 hqk=8 hv=8 seqs=100,7x3 init final gate=bounded:-5 beta=logit l2norm"
        self.assertEqual(peers.parse(line)["lengths"], [100, 7, 7, 7])

    def test_other_lines_are_left_out(self):
        for line in (
            "kda fp16 hv=8 seqs=100 init final gate=bounded:-5 l2norm",
            "kda bf16 hv=8 batch=2x9 init final l2norm",
            "gdn bf16 hv=8 seqs=100 init final gate=log:zero l2norm",
            "kda bf16 hv=8 seqs=100 init final gate=log:-5,0 l2norm",
            "kda bf16 hv=8 seqs=100 init final gate=bounded:-5:low l2norm",
            "gdn bf16 hv=8 seqs=100 gate=log:-5,0 l2norm",
        ):
            self.assertIsNone(peers.parse(line), line)


class Run(unittest.TestCase):
    def test_the_driver_is_named(self):
        with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, PATH=folder):
            self.assertEqual(peers.driver_here(), "")
            tool = pathlib.Path(folder) / "nvidia-smi"
            for status, driver in ((0, "580.159.04"), (9, "")):
                tool.write_text(f"#!/bin/sh\necho 580.159.04\necho 580.159.04\nexit {status}\n")
                tool.chmod(0o755)
                self.assertEqual(peers.driver_here(), driver)


class Binding(unittest.TestCase):
    """Plans for an H200 that is not here: a misplaced field would show in their text."""

    def plan(self, rule: str, form: str, lower_bound: float | None, gate: str) -> str:
        library = deltarelay_library.Library(LIBRARY, b"h200")
        self.assertEqual(library.device.units, 132)
        x = {"q": tensor("bf16", 9000, 2, 128), "v": tensor("bf16", 9000, 8, 128), "o": tensor("bf16", 9000, 8, 128)}
        x["g"], x["beta"] = tensor(gate, 9000, 8), tensor(gate, 9000, 8)
        plan, needed = library.plan(rule, x, [0, 8192, 9000], form, lower_bound)
        self.assertGreater(needed, 0)
        return library.describe(plan)

    def test_words_of_a_plan(self):
        for rule, form, lower_bound, gate in (
            ("kda", "bounded", -5.0, "bf16"),
            ("kda", "softplus", None, "bf16"),
            ("gdn", "log", None, "fp32"),
        ):
            text = self.plan(rule, form, lower_bound, gate)
            self.assertIn(f"{rule} bf16, 2 sequences, 9000 tokens, 8 value heads on 2 key heads, DK 128, DV 128", text)
            self.assertIn("h200", text)

    def test_errors_have_words(self):
        library = deltarelay_library.Library(LIBRARY, b"h200")
        x = {name: tensor("bf16", 10, 3, 128) for name in ("q", "v", "o", "g", "beta")}
        with self.assertRaisesRegex(RuntimeError, "offset"):
            library.plan("kda", x, [0, 11], "bounded", -5.0)


if __name__ == "__main__":
    LIBRARY = sys.argv.pop(1)
    unittest.main()
