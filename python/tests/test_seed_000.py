"""The state pass of long sequences in segments: the 29 tests of seed 000 (its tests/test_intracard_cp.py) under their
names, with D = 128. On a GPU in bf16 at full length; on the CPU in fp32 with a 64th of the tokens, and segments a 16th
as long.

`split` is what the seed's kernels do: a summary of every segment, their fold, and the state pass of all segments at
once. `auto` is the state pass as the planner cuts it. Both must be the uncut pass.
"""

from __future__ import annotations

import itertools
from typing import Any

import chunk_form
import numpy
import pytest
from chunk_form import close, error
from conftest import has

from deltarelay import stages


def _gpu() -> bool:
    if not has("torch"):
        return False
    import torch

    return torch.cuda.is_available()


GPU = _gpu()
WIDTH, CHUNK = 128, 64
SHORTER = 1 if GPU else 64
SEGMENT = 8192 if GPU else 512
TOLERANCE = 5e-3 if GPU else 2e-5
K = 1024
MIXES = [
    (64 * K,),
    (128 * K,),
    (64 * K, 4 * K),
    (64 * K, 512, 256, 128),
    (40 * K, 1 * K, 8 * K),
    (64 * K, 64 * K),
    (128 * K, *[1 * K] * 5),
    (28 * K, 100 * K + 96, 4 * K),
]


class Pass:
    """Inputs of a state pass: w, u and keys as the chunk-local stage makes them."""

    def __init__(self, lengths: tuple[int, ...], heads: int, gates: bool, initial: bool) -> None:
        draw = numpy.random.default_rng(len(lengths) + heads)
        lengths = tuple(max(1, n // SHORTER) for n in lengths)
        tokens = sum(lengths)
        self.offsets = numpy.concatenate([[0], numpy.cumsum(lengths)])

        def normal(*shape: int) -> numpy.ndarray:
            return draw.standard_normal((tokens, heads, *shape), dtype=numpy.float32)

        self.k = normal(WIDTH)
        self.k /= numpy.sqrt((self.k * self.k).sum(-1, keepdims=True))
        self.v, self.beta = normal(WIDTH), draw.uniform(0, 1, (tokens, heads)).astype(numpy.float32)
        self.g = -numpy.abs(normal(WIDTH)) / 8 if gates else numpy.zeros((tokens, heads, WIDTH), numpy.float32)
        states = draw.standard_normal((len(lengths), heads, WIDTH, WIDTH), dtype=numpy.float32)
        self.initial = self.on_device(states) if initial else None
        rows = {"k": self.rounded(self.k), "v": self.rounded(self.v), "g": self.on_device(self.g)}
        self.rows = {**rows, "beta": self.on_device(self.beta)}
        wanted = ("w", "u", "k_to_end", "gate_sums")
        made = stages.chunk_local("kda", **self.rows, wanted=wanted, host_offsets=self.offsets)
        self.made = {name: getattr(made, name) for name in wanted}

    def on_device(self, array: numpy.ndarray) -> Any:
        if not GPU:
            return array
        import torch

        return torch.from_numpy(array).cuda()

    def rounded(self, array: numpy.ndarray) -> Any:
        return self.on_device(array).bfloat16() if GPU else array

    def run(self, offsets: Any = None, initial: Any = None, **how: Any) -> stages.Intermediates:
        offsets = self.offsets if offsets is None else offsets
        return stages.state_pass(
            "kda", **self.made, initial=initial, final=True, state_layout="key_major", host_offsets=offsets, **how
        )

    def baseline(self) -> stages.Intermediates:
        return self.run(initial=self.initial, segments="off")

    def auto(self) -> stages.Intermediates:
        return self.run(initial=self.initial)

    def split(self) -> stages.Intermediates:
        cuts, chains, last = [0], [0], []
        for begin, end in itertools.pairwise(self.offsets.tolist()):
            cuts += [*range(begin + SEGMENT, end, SEGMENT), end]
            chains.append(len(cuts) - 1)
            last.append(len(cuts) - 2)
        cuts, chains = numpy.array(cuts), numpy.array(chains)
        maps = stages.summary("kda", **self.made, host_offsets=cuts).summaries
        entering = stages.carry(
            "kda", summaries=maps, host_offsets=chains, initial=self.initial, state_layout="key_major"
        ).states
        assert len(cuts) > len(self.offsets), "no sequence was cut"
        found = self.run(cuts, entering)
        return found._replace(final=found.final[last])

    def expected(self) -> chunk_form.Arrays:
        made = {name: _array(value).astype(float) for name, value in self.made.items()}
        initial = None if self.initial is None else _array(self.initial)
        return chunk_form.passed(made, self.offsets, CHUNK, initial)


def _array(value: Any) -> numpy.ndarray:
    return value if isinstance(value, numpy.ndarray) else value.float().cpu().numpy()


def _same(found: stages.Intermediates, expected: stages.Intermediates, tolerance: float = TOLERANCE) -> None:
    for name in ("states", "v_new", "final"):
        close(_array(getattr(found, name)), _array(getattr(expected, name)).astype(float), tolerance, name)


def _right(found: stages.Intermediates, expected: chunk_form.Arrays) -> None:
    for name in ("states", "v_new", "final"):
        close(_array(getattr(found, name)), expected[name], TOLERANCE, name)


def _listed(rows: list[tuple[Any, ...]]) -> dict[str, Any]:
    return {"argvalues": rows, "ids": ["-".join([f"seq_lens{i}", *map(str, row[1:])]) for i, row in enumerate(rows)]}


AUTODISPATCH = list(zip(MIXES, (4, 4, 4, 8, 4, 4, 4, 8), (False, True, True, True, True, False, True, True)))


@pytest.mark.parametrize(("seq_lens", "heads", "gates"), **_listed(AUTODISPATCH))
def test_cp_autodispatch_matches_baseline(seq_lens: tuple[int, ...], heads: int, gates: bool) -> None:
    p = Pass(seq_lens, heads, gates, initial=False)
    baseline = p.baseline()
    _same(p.auto(), baseline)
    _same(p.split(), baseline)


@pytest.mark.parametrize(("seq_lens", "heads"), **_listed([(MIXES[0], 4), (MIXES[2], 4)]))
def test_cp_autodispatch_with_h0(seq_lens: tuple[int, ...], heads: int) -> None:
    p = Pass(seq_lens, heads, gates=True, initial=True)
    baseline = p.baseline()
    _same(p.auto(), baseline)
    _same(p.split(), baseline)


@pytest.mark.parametrize(("tokens", "heads"), [(32768, 4), (65536, 4), (32768, 8)])
def test_cp_autodispatch_vs_fla(tokens: int, heads: int) -> None:
    """Beside the definition always; beside FLA where it is installed: its kernel on a GPU, else its naive reference."""
    p = Pass((tokens * 2 if not GPU else tokens,), heads, gates=True, initial=True)
    found = p.split()
    _right(found, p.expected())
    if not (has("fla") and has("torch")):
        return
    import torch

    if GPU:
        import inspect

        from fla.ops.common.chunk_delta_h import chunk_gated_delta_rule_fwd_h

        sums = p.made["gate_sums"] / numpy.log(2)
        rows = [p.made[name][None] for name in ("k_to_end", "w", "u")]
        own = inspect.unwrap(chunk_gated_delta_rule_fwd_h)
        h, v_new, final = own(*rows, gk=sums[None], initial_state=p.initial, output_final_state=True)
        _same(found, stages.Intermediates(states=h[0], v_new=v_new[0], final=final), 1e-2)
        return
    from fla.ops.kda.naive import naive_recurrent_kda

    k, v, g, beta = (torch.from_numpy(x)[None] for x in (p.k, p.v, p.g, p.beta))
    _, final = naive_recurrent_kda(k, k, v, g, beta, initial_state=torch.from_numpy(p.initial), output_final_state=True)
    assert error(found.final, final.numpy().astype(float)) < TOLERANCE


REFERENCE = list(
    zip(
        MIXES,
        (4, 4, 4, 4, 4, 4, 4, 8),
        (False, True, True, True, False, True, True, True),
        (False, True, True, False, True, True, False, True),
    )
)


@pytest.mark.parametrize(("seq_lens", "heads", "gates", "initial"), **_listed(REFERENCE))
def test_intracard_cp_vs_pytorch_ref(seq_lens: tuple[int, ...], heads: int, gates: bool, initial: bool) -> None:
    p = Pass(seq_lens, heads, gates, initial)
    expected = p.expected()
    _right(p.auto(), expected)
    _right(p.split(), expected)


FINAL = list(
    zip(
        (MIXES[2], MIXES[3], MIXES[4], MIXES[5], MIXES[6]),
        (4, 4, 8, 4, 4),
        (False, True, True, True, True),
        (False, True, True, True, False),
    )
)


@pytest.mark.parametrize(("seq_lens", "heads", "gates", "initial"), **_listed(FINAL))
def test_intracard_cp_final_state_per_seq(seq_lens: tuple[int, ...], heads: int, gates: bool, initial: bool) -> None:
    """Each sequence's final state, from its last segment, is that of the sequence alone."""
    p = Pass(seq_lens, heads, gates, initial)
    final = _array(p.split().final)
    expected = p.expected()["final"]
    for n in range(len(seq_lens)):
        close(final[n : n + 1], expected[n : n + 1], TOLERANCE, f"sequence {n}")


@pytest.mark.parametrize("seq_lens", [(64 * K,), (64 * K, 4 * K)], ids=["single-64K-H4-gk-h0", "multi-64K+4K-H4-gk-h0"])
def test_intracard_cp_stress_repeat(seq_lens: tuple[int, ...]) -> None:
    """Repeats have the same bits."""
    p = Pass(seq_lens, 4, gates=True, initial=True)
    first = [p.split(), p.auto()]
    for _ in range(10):
        for again, before in zip((p.split(), p.auto()), first):
            for name in ("states", "v_new", "final"):
                assert numpy.array_equal(_array(getattr(again, name)), _array(getattr(before, name)))


def test_intracard_cp_h0_none_equiv_h0_zeros() -> None:
    p = Pass((64 * K, 4 * K), 4, gates=True, initial=False)
    none = p.split(), p.auto()
    p.initial = p.on_device(numpy.zeros((2, 4, WIDTH, WIDTH), numpy.float32))
    for mine, zeros in zip(none, (p.split(), p.auto())):
        for name in ("states", "v_new", "final"):
            assert numpy.array_equal(_array(getattr(mine, name)), _array(getattr(zeros, name)))
