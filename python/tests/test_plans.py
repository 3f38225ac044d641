"""Plans as objects, and the cache that calls find them in: by value, bounded, shared by threads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy
import pytest
from conftest import Case, close, to

import deltarelay
from deltarelay import TensorSpec, _plans, functions


def specs(rule: str, tokens: int, hqk: int, hv: int, device: str = "h200", dtype: str = "bf16") -> list[TensorSpec]:
    gates = (tokens, hv, 128) if rule == "kda" else (tokens, hv)
    shapes = [(tokens, hqk, 128), (tokens, hqk, 128), (tokens, hv, 128), gates, (tokens, hv)]
    return [TensorSpec(shape, dtype, device) for shape in shapes]


def test_plan_for_a_device_that_is_not_here() -> None:
    plan = deltarelay.plan("gdn", *specs("gdn", 32768, 2, 8), l2norm=True, final=True)
    assert plan.backend == "cuda-sm90"
    assert plan.summary["cut_sequences"] == 1
    assert plan.workspace_bytes > 0
    assert json.loads(plan.describe("json")) == plan.to_dict()
    assert "cuda-sm90" in plan.describe() and "\n" not in plan.signature.strip()
    assert "cuda-sm90" in repr(plan)


def test_explain_says_why_backends_decline() -> None:
    answers = deltarelay.explain("gdn", *specs("gdn", 1024, 2, 8, dtype="fp32"))
    assert answers["cuda-sm80"] == "accepts"
    assert "fp32" in answers["cuda-sm90"] or "dtype" in answers["cuda-sm90"]
    assert answers["cpu"] != "accepts"


def test_plan_takes_what_forward_takes() -> None:
    case = Case("kda", [100, 20])
    options = {"seq_offsets": case.offsets, "initial": case.initial, "final": True, "state_layout": "key_major"}
    plan = deltarelay.plan("kda", *case.rows, **options)
    deltarelay.forward("kda", *case.rows, **options)
    assert plan.signature == deltarelay.last_call().plan.signature
    with pytest.raises(TypeError, match="unexpected keyword argument 'finale'"):
        deltarelay.plan("kda", *case.rows, finale=True)


@pytest.mark.usefixtures("binding")
def test_one_plan_for_calls_that_are_alike(framework: str) -> None:
    case = Case("kda", [48])
    rows = [to(framework, x) for x in case.rows]
    deltarelay.forward("kda", *rows)
    first = deltarelay.last_call().plan
    deltarelay.forward("kda", *(to(framework, x.copy()) for x in case.rows))
    assert deltarelay.last_call().plan is first
    deltarelay.forward("kda", *rows, scale=2.0)
    assert deltarelay.last_call().plan is not first


@pytest.mark.usefixtures("binding")
def test_settings_are_found_as_they_come(framework: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call looks them up by what it was given: to check the values again would cost two microseconds."""
    case = Case("kda", [48])
    rows = [to(framework, x) for x in case.rows]
    deltarelay.forward("kda", *rows, final=True)
    monkeypatch.setattr(functions, "settings", None)
    deltarelay.forward("kda", *rows, final=True)


@pytest.mark.usefixtures("binding")
def test_lengths_are_part_of_the_key(framework: str) -> None:
    case = Case("kda", [40, 24])
    for lengths in ([40, 24], [24, 40], [64, 0]):
        case.offsets = numpy.concatenate([[0], numpy.cumsum(lengths)]).astype(numpy.int32)
        found = deltarelay.forward(
            "kda", *(to(framework, x) for x in case.rows), seq_offsets=to(framework, case.offsets)
        )
        close(found.o, case.expected(initial=False)[0])


@pytest.mark.usefixtures("binding")
def test_plans_are_bounded_and_busy_ones_stay() -> None:
    kept = Case("gdn", [33])
    deltarelay.forward("gdn", *kept.rows)
    plan = deltarelay.last_call().plan
    for tokens in range(1, _plans.MOST_PLANS + 300):
        rows = [numpy.zeros((tokens, *x.shape[1:]), "f4") for x in kept.rows]
        deltarelay.forward("gdn", *rows, threads=1)
        if tokens % 50 == 0:
            deltarelay.forward("gdn", *kept.rows)
    assert len(_plans.PLANS) <= _plans.MOST_PLANS
    deltarelay.forward("gdn", *kept.rows)
    assert deltarelay.last_call().plan is plan


@pytest.mark.usefixtures("binding")
def test_many_threads_share_plans(framework: str) -> None:
    """Threads with lengths of their own, some alike, while plans come and go."""
    cases = [Case("kda", [16 + n, 7]) for n in range(6)]
    expected = [case.expected()[0] for case in cases]
    start = threading.Barrier(8)

    def work(worker: int) -> None:
        start.wait()
        for turn in range(30):
            n = (worker + turn) % len(cases)
            case = cases[n]
            found = deltarelay.forward(
                "kda",
                *(to(framework, x) for x in case.rows),
                seq_offsets=to(framework, case.offsets),
                initial=to(framework, case.initial),
                state_layout="key_major",
            )
            close(found.o, expected[n])
            assert deltarelay.last_call().plan.summary["num_segments"] == 2

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


def test_last_call_is_the_threads_own() -> None:
    case = Case("kda", [20])
    deltarelay.forward("kda", *case.rows)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(deltarelay.last_call).result() is None


_GROWTH = """
import resource, numpy, deltarelay
def call(tokens, n):
    rows = [numpy.zeros((tokens, 1, 16), "f4") for _ in range(4)] + [numpy.zeros((tokens, 1), "f4")]
    offsets = numpy.linspace(0, tokens, n + 1).astype(numpy.int32)
    deltarelay.forward("kda", *rows, seq_offsets=offsets, final=True, threads=1)
def memory():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
for turn in range(2500): call(1 + turn % 977, 1 + turn % 7)
before = memory()
for turn in range(10000): call(1 + turn % 977, 1 + turn % 7)
print(memory() - before)
"""


def run_alone(code: str, **environment: str) -> str:
    path = str(Path(deltarelay.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": path + os.pathsep + os.environ.get("PYTHONPATH", ""), **environment}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_memory_does_not_grow() -> None:
    grown = int(run_alone(_GROWTH))
    assert grown < 4 << 20, f"10,000 calls with changing lengths took {grown} bytes"


@pytest.mark.parametrize("asked", ["extension", "ctypes"])
def test_binding_by_environment(asked: str) -> None:
    code = "import deltarelay; print(deltarelay.info()['binding'])"
    assert run_alone(code, DELTARELAY_BINDING=asked) == asked


def test_a_wrong_environment_is_named() -> None:
    code = "\ntry:\n import deltarelay\nexcept ImportError as error: print(error)"
    assert "DELTARELAY_BINDING: expected 'extension' or 'ctypes', found 'nanobind'" in run_alone(
        code, DELTARELAY_BINDING="nanobind"
    )
    assert "looked for /nowhere (DELTARELAY_LIBRARY)" in run_alone(code, DELTARELAY_LIBRARY="/nowhere")


def test_import_brings_nothing_along() -> None:
    code = "import sys, deltarelay; print([m for m in ('torch', 'numpy', 'fla', 'matplotlib') if m in sys.modules])"
    assert run_alone(code) == "[]"


@pytest.mark.usefixtures("binding")
def test_late_lengths_share_plans(framework: str) -> None:
    """Calls of about as many tokens, whatever their lengths, are one plan; results are those of known lengths."""
    plans = set()
    for lengths in ([200, 0, 30], [90, 100, 60], [1, 1, 1], [255, 1, 0]):
        case = Case("kda", lengths)
        found = deltarelay.forward(
            "kda",
            *(to(framework, x) for x in case.rows),
            seq_offsets=to(framework, case.offsets),
            initial=to(framework, case.initial),
            final=True,
            state_layout="key_major",
            late_lengths=True,
        )
        o, final = case.expected()
        close(found.o, o)
        close(found.final, final)
        plans.add(deltarelay.last_call().plan)
    assert len(plans) == 2  # up to 64 tokens, and up to 256


def test_buckets() -> None:
    from deltarelay._problem import bucket_end

    assert [bucket_end(t) for t in (1, 64, 65, 1000, 1024, 1025, 8192, 8193)] == [
        64,
        64,
        128,
        1024,
        1024,
        1152,
        8192,
        9216,
    ]
    assert all(t <= bucket_end(t) <= max(64, t * 9 // 8 + 64) for t in range(1, 5000, 7))
