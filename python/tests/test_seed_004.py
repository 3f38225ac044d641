"""Grouped value heads in the chunk-local stage: the 28 tests of seed 004 (its tests/test_kda_gva_intra_sm100.py) under
their names, in bf16, on the CPU or a GPU.

Seen from FLA's signatures: `recomp` saves w, u, kg, Aqk and Akk, `no_recomp` also qg.
"""

from __future__ import annotations

import itertools
from typing import Any

import chunk_form
import numpy
import pytest
from chunk_form import close

pytest.importorskip("torch", reason="torch is not installed: the seed's tests are in bf16")

import torch

import deltarelay
from deltarelay.fla import _stages

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WIDTH, CHUNK, TOLERANCE = 128, 64, 5e-3
UNIFORM = [(1, 256, 2, 2), (2, 512, 4, 2), (1, 1024, 2, 4), (2, 1024, 4, 4), (1, 500, 2, 2), (1, 1000, 4, 2)]
VARLEN = [(2, 2, 3), (4, 2, 4), (2, 4, 5), (4, 2, 10)]
MODES = pytest.mark.parametrize("disable_recompute", [False, True], ids=["recomp", "no_recomp"])
NAMES = ("w", "u", "q_from_start", "k_to_end", "aqk", "inverse")


def _offsets(sequences: int, tokens: int) -> list[int]:
    """Ragged lengths."""
    cuts = numpy.random.default_rng(sequences).choice(numpy.arange(1, tokens), sequences - 1, replace=False)
    return [0, *sorted(cuts.tolist()), tokens]


class Inputs:
    def __init__(self, batch: int, tokens: int, heads: int, group: int, offsets: list[int] | None = None) -> None:
        draw = torch.Generator().manual_seed(batch * tokens + heads)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(batch, tokens, *shape, generator=draw)

        unit = torch.nn.functional.normalize
        self.q, self.k = (unit(normal(heads, WIDTH), dim=-1).bfloat16() for _ in range(2))
        self.v = normal(heads * group, WIDTH).bfloat16()
        self.g = torch.nn.functional.logsigmoid(normal(heads * group, WIDTH)).clamp(min=-5)
        self.beta = normal(heads * group).sigmoid().bfloat16()
        self.group, self.scale = group, WIDTH**-0.5
        self.offsets = offsets or list(range(0, batch * tokens + 1, tokens))
        self.cu_seqlens = torch.tensor(offsets, device=DEVICE) if offsets else None
        sums = torch.zeros_like(self.g).flatten(0, 1)
        for a, b in itertools.pairwise(self.offsets):
            for start in range(a, b, CHUNK):
                end = min(start + CHUNK, b)
                sums[start:end] = self.g.flatten(0, 1)[start:end].cumsum(0)
        self.gk = (sums / numpy.log(2)).view_as(self.g)

    def run(self, disable_recompute: bool, wide: bool = False) -> tuple[Any, ...]:
        """`wide`: with keys repeated for every value head."""
        q, k = (x.repeat_interleave(self.group, dim=2) if wide else x for x in (self.q, self.k))
        rows = [x.to(DEVICE) for x in (q, k, self.v, self.gk, self.beta)]
        return _stages.chunk_kda_fwd_intra(
            *rows, self.scale, self.cu_seqlens, safe_gate=True, disable_recompute=disable_recompute
        )

    def expected(self, head: int) -> chunk_form.Arrays:
        """Of one value head, from the rounded inputs."""
        of_keys = head // self.group
        rows = [x[:, :, h : h + 1].flatten(0, 1).float().numpy() for x, h in
                ((self.q, of_keys), (self.k, of_keys), (self.v, head), (self.g, head), (self.beta, head))]  # fmt: skip
        return chunk_form.local(*rows, self.offsets, CHUNK, self.scale)


def _check(inputs: Inputs, disable_recompute: bool) -> None:
    found = inputs.run(disable_recompute)
    assert (found[2] is not None) == disable_recompute
    wide = inputs.run(disable_recompute, wide=True)
    for mine, theirs in zip(found, wide):
        assert mine is None or torch.equal(mine, theirs)
    for head in (0, inputs.group - 1, inputs.v.shape[2] - 1):
        expected = inputs.expected(head)
        for name, mine in zip(NAMES, found):
            if mine is not None:
                one = mine[:, :, head : head + 1].flatten(0, 1).float().cpu().numpy()
                close(one, expected[name], TOLERANCE, f"{name} of head {head}")


@MODES
@pytest.mark.parametrize(
    ("batch", "tokens", "heads", "group"), UNIFORM, ids=[f"B{b}-T{t}-HQK{h}-gs{n}-D128" for b, t, h, n in UNIFORM]
)
def test_gva_intra_uniform(batch: int, tokens: int, heads: int, group: int, disable_recompute: bool) -> None:
    _check(Inputs(batch, tokens, heads, group), disable_recompute)


@MODES
@pytest.mark.parametrize(
    ("heads", "group", "sequences"), VARLEN, ids=[f"HQK{h}-gs{n}-D128-ns{s}" for h, n, s in VARLEN]
)
def test_gva_intra_varlen(heads: int, group: int, sequences: int, disable_recompute: bool) -> None:
    _check(Inputs(1, 700, heads, group, _offsets(sequences, 700)), disable_recompute)


@MODES
@pytest.mark.parametrize(
    ("batch", "tokens", "heads"), [(1, 512, 4), (2, 1024, 4)], ids=["B1-T512-H4-D128", "B2-T1024-H4-D128"]
)
def test_gva_intra_degenerate_equals_non_gva(batch: int, tokens: int, heads: int, disable_recompute: bool) -> None:
    """A group of 1 has the bits of heads that are called one by one, which have no groups."""
    inputs = Inputs(batch, tokens, heads, 1)
    found = inputs.run(disable_recompute)
    for head in range(heads):
        one = Inputs(batch, tokens, heads, 1)
        for name in ("q", "k", "v", "gk", "beta"):
            setattr(one, name, getattr(inputs, name)[:, :, head : head + 1].contiguous())
        for mine, alone in zip(found, one.run(disable_recompute)):
            assert mine is None or torch.equal(mine[:, :, head : head + 1], alone)


@pytest.mark.parametrize("group", [1, 2, 4])
def test_gva_intra_output_shapes(group: int) -> None:
    heads = 2 * group
    w, u, qg, kg, aqk, akk = Inputs(1, 128, 2, group).run(True)
    assert w.shape == u.shape == qg.shape == kg.shape == (1, 128, heads, WIDTH)
    assert aqk.shape == akk.shape == (1, 128, heads, CHUNK)
    assert {x.dtype for x in (w, u, qg, kg, aqk, akk)} == {torch.bfloat16}


def test_gva_intra_rejects_non_multiple_ratio() -> None:
    inputs = Inputs(1, 128, 2, 2)
    inputs.q, inputs.k = (x[:, :, :1].repeat(1, 1, 3, 1) for x in (inputs.q, inputs.k))
    with pytest.raises(deltarelay.Invalid, match="number of heads that is a multiple of the 3 of q and k, found 4"):
        inputs.run(False)
