"""Tests scripts/compare_launches.py on short logs."""

import contextlib
import gzip
import io
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
sys.dont_write_bytecode = True

import compare_launches  # noqa: E402

LOG = """\
case kda bf16 seqs=100
 on h200 cuda-sm90 fused lengths=plan report=no
  plan kda backend=cuda-sm90 chunk=32 cuts=none workspace=4096
  launch sm90::walk<(Form)1,true> device=0 grid=4,1,1 shared=512 stream=given WalkArgs.o.data=o WalkArgs.phase=1
  launch finish device=0 grid=264,1,1 shared=0 stream=given FinishArgs.o.data=o
 on h200 cuda-sm80 lengths=plan report=no
  declined cuda-sm80: dk: expected 1 to 256, found 300
case gdn bf16 seqs=100
 on a100 cuda-sm80 lengths=plan report=no
  plan gdn backend=cuda-sm80 chunk=64 cuts=none workspace=0
  launch sm80::walk<64> device=1 grid=8,1,1 shared=256 stream=given WalkArgs.o.data=o WalkArgs.phase=1
case loading
 on h200
  loaded finish shared=0 carveout=-1
"""


def compare(old, new, most=20):
    """The status, and what is printed."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [pathlib.Path(folder) / "old.log", pathlib.Path(folder) / "new.log.gz"]
        paths[0].write_text(old, encoding="utf-8")
        with gzip.open(paths[1], "wt", encoding="utf-8") as log:
            log.write(new)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            status = compare_launches.compare(*paths, most)
    return status, printed.getvalue()


class Differences(unittest.TestCase):
    def differs(self, change, *expected):
        new = LOG.replace(*change, 1)
        self.assertNotEqual(new, LOG)
        status, printed = compare(LOG, new)
        self.assertEqual(status, 1)
        for text in expected:
            self.assertIn(text, printed)

    def test_equal_logs(self):
        status, printed = compare(LOG, LOG)
        self.assertEqual(status, 0)
        self.assertIn("3 cases with 3 launches compared, 0 differ", printed)

    def test_a_field_names_case_setting_launch_and_both_values(self):
        self.differs(
            ("grid=4,1,1", "grid=8,1,1"),
            "case kda bf16 seqs=100\n    on h200 cuda-sm90 fused lengths=plan report=no: "
            "2. launch sm90::walk<(Form)1,true>: grid: was 4,1,1, is 8,1,1",
            "1 times: launch sm90::walk<>: grid",
        )
        self.differs(("WalkArgs.o.data=o", "WalkArgs.o.data=o+2"), "WalkArgs.o.data: was o, is o+2")
        self.differs((" WalkArgs.phase=1", ""), "WalkArgs.phase: was 1, is nothing")
        self.differs((" stream=given", " stream=given WalkArgs.report=report"), "report: was nothing, is report")
        self.differs(("workspace=4096", "workspace=8192"), "1. plan: workspace: was 4096, is 8192")
        self.differs(("shared=0 carveout", "shared=16 carveout"), "on h200: 1. loaded finish: shared: was 0, is 16")
        self.differs(("found 300", "found 301"), "declined: words: was declined cuda-sm80: dk: expected 1 to 256")

    def test_launches_that_come_and_go(self):
        finish = next(line for line in LOG.splitlines(keepends=True) if "launch finish" in line)
        self.differs((finish, ""), "3. launch finish: is gone")
        self.differs((finish, finish + finish.replace("finish", "aliases", 1)), "4. launch aliases: is new")

    def test_settings_and_cases_that_come_and_go(self):
        self.differs((" on a100 ", " on rtx5090 "), "on a100 cuda-sm80 lengths=plan report=no: is gone", ": is new")
        self.differs(("case gdn bf16 seqs=100", "case gdn bf16 seqs=101"), "only in ", "2 in one log only")

    def test_the_order_of_cases_does_not_matter(self):
        kda, rest = LOG.split("case gdn")
        gdn, loading = ("case gdn" + rest).split("case loading")
        self.assertEqual(compare(LOG, gdn + kda + "case loading" + loading)[0], 0)

    def test_only_the_first_differences_are_printed(self):
        new = LOG.replace("shared=", "shared=1")
        self.assertEqual(compare(LOG, new, most=2)[1].count(": was "), 2)

    def test_logs_of_something_else(self):
        with self.assertRaises(SystemExit):
            compare("no log\n", LOG)
        self.assertEqual(compare("", "")[0], 1)


if __name__ == "__main__":
    unittest.main()
