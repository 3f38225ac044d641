"""Tests scripts/compare_plans.py without a command: how fields of a plan of 0.1 map to a plan of 0.2."""

import copy
import json
import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
sys.dont_write_bytecode = True

import compare_plans  # noqa: E402

RULES = json.loads(compare_plans.MAP.read_text(encoding="utf-8"))

# One of each kind of field, as the commands print them.
OLD = {
    "backend": "cuda-sm90",
    "case": "kda bf16 seqs=100 isa=fused device=h200",
    "chunk": 32,
    "device": {
        "kind": "cuda",
        "measured": True,
        "kda": {"emit_ns": 1},
        "kda_fused": {"emit_ns": 2},
        "kda_portable": {"emit_ns": 3},
    },
    "isa": "fused",
    "options": {"isa": "fused", "threads": 4},
    "problem": {"op": "kda", "lengths": [100]},
    "rows1": [{"begin": 0, "chunks": 4}],
    "signature": "kda backend=cuda-sm90 isa=fused chunk=32",
}
NEW = {
    "backend": "cuda-sm90",
    "case": "kda bf16 seqs=100 variant=fused device=h200",
    "chunk": 32,
    "costs": [
        {
            "backend": "cuda-sm90",
            "variant": "fused",
            "rule": "kda",
            "op": "forward",
            "measured": True,
            "measured_on": "h200",
            "emit_ns": 2,
        },
        {
            "backend": "cuda-sm90",
            "variant": "prepared",
            "rule": "kda",
            "op": "forward",
            "measured": True,
            "measured_on": "h200",
            "emit_ns": 1,
        },
        {
            "backend": "cuda-sm80",
            "variant": "",
            "rule": "kda",
            "op": "forward",
            "measured": True,
            "measured_on": "h200",
            "emit_ns": 3,
        },
    ],
    "device": {"kind": "cuda", "model": "", "flops_per_ns": 0},
    "isa": "",
    "options": {"isa": "", "variant": "fused", "math": "default", "threads": 4},
    "problem": {"rule": "kda", "op": "forward", "lengths": [100]},
    "rows1": [{"begin": 0, "chunks": 4}],
    "signature": "kda backend=cuda-sm90 variant=fused chunk=32",
    "variant": "fused",
}


STEP_RULES = json.loads((compare_plans.MAP.parent / "json-steps.json").read_text(encoding="utf-8"))


def judge(old, new):
    return compare_plans.judge(old, new, RULES)


class Judgement(unittest.TestCase):
    def test_renames_are_no_difference(self):
        self.assertEqual(judge(OLD, NEW), ([], []))

    def test_every_value_is_looked_at(self):
        def changed(change):
            new = copy.deepcopy(NEW)
            change(new)
            return judge(OLD, new)[0]

        self.assertEqual(changed(lambda n: n.update(chunk=64)), ["chunk: expected 32, found 64"])
        self.assertEqual(changed(lambda n: n.pop("chunk")), ["chunk: expected 32, found nothing"])
        self.assertEqual(changed(lambda n: n.update(surprise=1)), ["surprise: expected nothing, found 1"])
        self.assertEqual(
            changed(lambda n: n["problem"].update(rule="gdn")), ['problem.rule: expected "kda", found "gdn"']
        )
        self.assertEqual(changed(lambda n: n["rows1"][0].update(chunks=5)), ["rows1[0].chunks: expected 4, found 5"])
        self.assertEqual(
            changed(lambda n: n["rows1"].append({})),
            ['rows1: expected [{"begin": 0, "chunks": 4}], found [{"begin": 0, "chunks": 4}, {}]'],
        )
        self.assertEqual(changed(lambda n: n["costs"][2].update(emit_ns=9)), ["costs[].emit_ns: expected 3, found 9"])
        self.assertEqual(
            changed(lambda n: n["costs"][0].update(measured=False)), ["costs[].measured: expected true, found false"]
        )
        self.assertEqual(
            changed(lambda n: n["costs"][0].update(surprise=1)), ["costs[].surprise: expected nothing, found 1"]
        )
        self.assertEqual(
            changed(lambda n: n.update(variant="prepared")), ['variant: expected "fused", found "prepared"']
        )
        self.assertEqual(len(changed(lambda n: n["costs"].pop(1))), 1)
        self.assertEqual(len(changed(lambda n: n.update(signature=OLD["signature"]))), 1)

    def test_a_mode_of_the_portable_kernels_is_math(self):
        old = {
            "backend": "cuda-sm80",
            "isa": "tf32",
            "options": {"isa": "tf32"},
            "signature": "kda backend=cuda-sm80 isa=tf32 chunk=32",
        }
        new = {
            "backend": "cuda-sm80",
            "isa": "",
            "variant": "",
            "options": {"isa": "", "variant": "", "math": "tf32"},
            "signature": "kda backend=cuda-sm80 math=tf32 chunk=32",
        }
        self.assertEqual(judge(old, new), ([], []))
        new["options"]["math"] = "default"
        self.assertEqual(len(judge(old, new)[0]), 1)

    def test_a_cpu_keeps_its_instruction_set(self):
        old = {
            "backend": "cpu",
            "isa": "NEON",
            "device": {"kind": "cpu", "measured": True, "kda": {"emit_ns": 7}},
            "options": {"isa": ""},
        }
        new = {
            "backend": "cpu",
            "isa": "NEON",
            "variant": "",
            "device": {"kind": "cpu", "model": "x", "flops_per_ns": 0},
            "costs": [
                {
                    "backend": "cpu",
                    "variant": "",
                    "rule": "kda",
                    "op": "forward",
                    "measured": False,
                    "measured_on": "y",
                    "emit_ns": 7,
                }
            ],
            "options": {"isa": "", "variant": "", "math": "default"},
        }
        unlisted, listed = judge(old, new)
        self.assertEqual(unlisted, [])
        self.assertEqual([reason[:7] for reason in listed], ["item 5:"])
        new["isa"] = "SVE"
        self.assertEqual(len(judge(old, new)[0]), 1)

    def test_a_list_may_be_left_out_only_where_that_is_said(self):
        old = {"segments": [], "rows1": [1], "rows3": [], "folds": []}
        unlisted, listed = judge(old, {"table_omitted": "30000 rows"})
        self.assertEqual(unlisted, [])
        self.assertEqual(len(listed), 5)
        self.assertEqual(len(judge(old, {})[0]), 4)

    def test_reasons_differ_only_as_listed(self):
        def reasons(was, now, tf32=False):
            old = {"declined": [{"backend": "x", "reason": was}], "options": {"isa": "tf32"} if tf32 else {}}
            new = {"declined": [{"backend": "x", "reason": now}], "options": {"math": "tf32"} if tf32 else {}}
            return [len(part) for part in judge(old, new)]

        self.assertEqual(
            reasons("dv: expected 128, found 64", "dv: expected a multiple of 128 up to 512, found 64"), [0, 1]
        )
        self.assertEqual(reasons("isa: expected none, found fused", "variant: expected none, found fused"), [0, 1])
        self.assertEqual(reasons("isa: expected none, found fused", "math: expected none, found fused"), [1, 0])
        self.assertEqual(reasons("dk: expected 128, found 60", "math: expected default, found tf32", tf32=True), [0, 1])
        self.assertEqual(reasons("dk: expected 128, found 60", "math: expected default, found tf32"), [1, 0])
        self.assertEqual(reasons("dk: expected 128, found 60", "dk: expected 128, found 61"), [1, 0])

    def test_times_that_overflowed(self):
        def times(was, now):
            return [
                len(part)
                for part in judge(
                    {"schedule": {"split": [{"end_ns": was}]}}, {"schedule": {"split": [{"end_ns": now}]}}
                )
            ]

        self.assertEqual(times(-5, 7), [0, 1])
        self.assertEqual(times(5, 7), [1, 0])

    def test_a_plan_that_is_another_one_keeps_what_was_asked(self):
        old = {"backend": "cuda-sm80", "chunk": 32, "problem": {"dk": 128, "dv": 256, "hv": 4}}
        new = {"backend": "cuda-sm90", "chunk": 64, "problem": {"dk": 128, "dv": 256, "hv": 4}}
        self.assertEqual(judge(old, new)[0], [])
        new["problem"]["hv"] = 5
        self.assertEqual(judge(old, new)[0], ["problem.hv: expected 4, found 5"])
        old["problem"]["dv"] = new["problem"]["dv"] = 128
        self.assertEqual(len(judge(old, new)[0]), 3)


class Lines(unittest.TestCase):
    def test_words_are_translated_both_ways(self):
        old = "kda bf16 seqs=5 isa=fused"
        new = "kda bf16 seqs=5 variant=fused"
        self.assertEqual(compare_plans.translate_line(old, RULES), new)
        self.assertEqual(compare_plans.old_words(new, RULES), old)
        self.assertEqual(compare_plans.translate_line("kda seqs=5 isa=NEON", RULES), "kda seqs=5 isa=NEON")
        self.assertEqual(compare_plans.translate_line("gdn isa=tf32", RULES), "gdn math=tf32")

    def test_words_that_the_old_grammar_lacks(self):
        for line in (
            "kda seqs=1 gate=init:2",
            "gdn seqs=1 gate=linear:mixed",
            "kda seqs=1 bound=5x2",
            "gdn align=beta:2 seqs=1",
        ):
            self.assertTrue(compare_plans.has_new_words(line, RULES), line)
        for line in ("kda seqs=1 init gate=log:inf", "gdn seqs=1 align=2 init=slots"):
            self.assertFalse(compare_plans.has_new_words(line, RULES), line)


class Steps(unittest.TestCase):
    """Plans before and after their steps were what an execution walks."""

    OLD = {"steps": [{"stage": "prepare", "items": 8}, {"stage": "emit", "items": 4}]}

    def judge(self, *new_steps):
        return compare_plans.judge(self.OLD, {"steps": list(new_steps)}, STEP_RULES)[0]

    def test_more_steps_and_fields(self):
        self.assertEqual(
            self.judge(
                {"stage": "segment table", "items": 1},
                {"stage": "prepare", "items": 8, "ctas": 3},
                {"stage": "emit", "items": 4, "form": "pair"},
                {"stage": "finish", "items": 1},
            ),
            [],
        )

    def test_what_changed_is_reported(self):
        prepare, emit = self.OLD["steps"]
        self.assertEqual(len(self.judge(prepare, {**emit, "items": 5})), 1)
        self.assertEqual(len(self.judge(prepare)), 1, "a step is missing")
        self.assertEqual(len(self.judge(prepare, emit, {"stage": "carry"})), 1, "a step that the map does not list")
        self.assertEqual(len(self.judge(prepare, {**emit, "else": 1})), 1, "a field that the map does not list")


if __name__ == "__main__":
    unittest.main()
