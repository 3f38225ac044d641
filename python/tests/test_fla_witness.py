"""FLA's functions through `deltarelay.fla.enable()` on the CPU, over FLA's parameter lists, beside its references.

Every call must have been taken by us, exactly once: counted.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

pytest.importorskip("torch", reason="torch is not installed: FLA cannot be a witness")
pytest.importorskip("fla", reason="fla-core is not installed: FLA cannot be a witness")

import torch
from fla_witness.cases import CHUNK, GDN, KDA, Case
from fla_witness.running import Tensors, call, check, reference

import deltarelay

FUNCTION = {"kda": "chunk_kda", "gdn": "chunk_gated_delta_rule"}


@pytest.fixture(scope="module", autouse=True)
def registered() -> Iterator[None]:
    report = deltarelay.fla.enable()
    assert report.enabled and not report.problems, str(report)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the reference is many small steps
    yield
    torch.set_num_threads(threads)


def _counts(rule: str) -> tuple[int, int]:
    status = deltarelay.fla.status()
    return status.taken.get(FUNCTION[rule], 0), sum(status.declined.values())


@pytest.mark.parametrize("case", KDA + GDN, ids=str)
def test_case(case: Case) -> None:
    case = case.scaled()
    tensors = Tensors(case)
    taken, declined = _counts(case.rule)
    o, final = call(case, tensors)
    assert _counts(case.rule) == (taken + 1, declined), str(deltarelay.fla.status())
    assert o.dtype == tensors.q.dtype and final.dtype == torch.float32
    expected_o, expected_final = reference(case, tensors)
    check("o", expected_o, o, case.tolerance)
    check("final", expected_final, final, case.tolerance)


@pytest.mark.parametrize("offsets", [None, (0, 70, 70, 200)], ids=["batched", "packed"])
@pytest.mark.parametrize("v_first", [False, True])
def test_intermediate_states(offsets: tuple[int, ...] | None, v_first: bool) -> None:
    """h: as q, [B, NT, HV, K, V], the states at the starts of chunks."""
    from fla.ops.kda import chunk_kda

    case = Case("kda", "h", batch=2, tokens=200, offsets=offsets, hqk=2, hv=4, width=32, dtype="bfloat16")
    t = Tensors(case)
    options = {"cu_seqlens": torch.tensor(offsets)} if offsets else {}
    taken, declined = _counts("kda")
    with torch.inference_mode():
        rows = (t.q, t.k, t.v, t.g, t.beta)
        _, final, h = chunk_kda(*rows, return_intermediate_states=True, state_v_first=v_first, **options)
    assert _counts("kda") == (taken + 1, declined)
    assert final is None and h.dtype == torch.bfloat16
    h = h.transpose(-1, -2) if v_first else h
    t.initial = torch.zeros_like(t.initial)
    expected = []
    bounds = list(itertools.pairwise(offsets)) if offsets else [(0, 200)]
    for begin, end in bounds:
        for start in range(begin, end, CHUNK):
            cut = Tensors(case)
            for name in ("q", "k", "v", "g", "beta"):
                setattr(cut, name, getattr(t, name)[:, begin:start])
            cut.initial = t.initial[:1] if offsets else t.initial
            part = Case("kda", "h", batch=2, tokens=start - begin, hqk=2, hv=4, width=32)
            expected.append(reference(part, cut)[1] if start > begin else cut.initial)
    wanted = torch.cat([state[:, None] for state in expected], 1)
    assert h.shape == wanted.shape == ((1, 2 + 3, 4, 32, 32) if offsets else (2, 4, 4, 32, 32))
    check("h", wanted, h, 0.005)
