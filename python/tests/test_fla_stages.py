"""The pieces of FLA's forward: one by one by FLA's signatures, through FLA's dispatch, and inside FLA's own forward.

FLA's sums of gates and its norms are Triton kernels, which no CPU runs; where FLA's own functions run here, torch does
the sums in their place. Everything else of FLA's forward is FLA's code and our pieces.
"""

from __future__ import annotations

import itertools
from typing import Any

import chunk_form
import numpy
import pytest
from chunk_form import close
from conftest import back, has

pytest.importorskip("torch", reason="torch is not installed: FLA's functions take its tensors")

import torch

import deltarelay
from deltarelay.fla import _backend, _stages
from deltarelay.fla._signatures import HOOKS

LOG2E = float(1 / numpy.log(2))
needs_fla = pytest.mark.skipif(not has("fla"), reason="fla-core is not installed: its dispatch cannot be asked")
LISTS = {"packed": (0, 70, 71, 200), "batched": None}


class Pieces:
    """Tensors of one call as FLA has them, and what each piece should give."""

    def __init__(self, rule: str, offsets: tuple[int, ...] | None, chunk: int = 64, group: int = 2) -> None:
        draw = numpy.random.default_rng(7)
        batch, tokens, heads, dk, dv = (2, 100, 2, 16, 24) if offsets is None else (1, offsets[-1], 2, 16, 24)
        hv = heads * group

        def normal(*shape: int) -> numpy.ndarray:
            return draw.standard_normal((batch, tokens, *shape)).astype(numpy.float32)

        q, k = normal(heads, dk), normal(heads, dk)
        q, k = (x / numpy.sqrt((x * x).sum(-1, keepdims=True)) for x in (q, k))
        g = -numpy.abs(normal(hv, dk) if rule == "kda" else normal(hv)) / 4
        rows = (q, k, normal(hv, dv), g, 1 / (1 + numpy.exp(-normal(hv))))
        self.rule, self.chunk, self.scale, self.batch = rule, chunk, dk**-0.5, batch
        self.offsets = offsets or tuple(range(0, batch * tokens + 1, tokens))
        flat = [x.reshape(batch * tokens, *x.shape[2:]) for x in rows]
        self.initial = draw.standard_normal((len(self.offsets) - 1, hv, dk, dv)).astype(numpy.float32)
        self.made = chunk_form.local(*flat, self.offsets, chunk, self.scale)
        self.passed = chunk_form.passed(self.made, self.offsets, chunk, self.initial)
        self.made["o"] = chunk_form.outputs(self.made, self.passed, self.offsets, chunk, self.scale)
        self.q, self.k, self.v, self.g, self.beta = (torch.from_numpy(x) for x in rows)
        self.cu_seqlens = None if offsets is None else torch.tensor(offsets)
        self.lists = {"cu_seqlens": self.cu_seqlens}

    def wide(self, name: str) -> numpy.ndarray:
        """[B, T, ..] of something with a row for each token."""
        flat = {**self.made, **self.passed}[name]
        return flat.reshape(self.batch, -1, *flat.shape[1:])

    def tensor(self, name: str) -> torch.Tensor:
        return torch.from_numpy(self.wide(name).astype(numpy.float32) * (LOG2E if name == "gate_sums" else 1))

    @property
    def h(self) -> numpy.ndarray:
        states = self.passed["states"]
        return states.reshape(self.batch, -1, *states.shape[1:])

    def check(self, found: torch.Tensor | None, name: str) -> None:
        assert found is not None
        close(back(found).reshape(-1, *found.shape[2:]), {**self.made, **self.passed}[name], what=name)


def functions(through_fla: bool) -> dict[str, Any]:
    """Pieces by label; FLA's own, which ask us first, or ours."""
    from deltarelay.fla import _registry

    pieces = [hook for hook in HOOKS.values() if not hook.whole]
    return {hook.label: _registry.function_of(hook) if through_fla else _backend.OURS[hook.key] for hook in pieces}


@pytest.fixture(params=[False, pytest.param(True, marks=needs_fla)], ids=["ours", "through FLA"])
def pieces(request: pytest.FixtureRequest) -> Any:
    if not request.param:
        return functions(False)
    assert deltarelay.fla.enable().enabled
    return functions(True)


@pytest.mark.parametrize("offsets", LISTS.values(), ids=LISTS)
@pytest.mark.parametrize("chunk", [32, 64])
def test_kda_pieces(pieces: Any, chunk: int, offsets: Any) -> None:
    s = Pieces("kda", offsets, chunk)
    sums = s.tensor("gate_sums")
    rows = (s.q, s.k, s.v, sums, s.beta, s.scale)
    intra, again = pieces["kda.chunk_kda_fwd_intra"], pieces["kda.recompute_w_u_fwd"]
    w, u, qg, kg, aqk, akk = intra(*rows, chunk_size=chunk, disable_recompute=True, **s.lists)
    for found, name in zip((w, u, qg, kg, aqk, akk), ("w", "u", "q_from_start", "k_to_end", "aqk", "inverse")):
        s.check(found, name)
    assert intra(*rows, chunk_size=chunk, **s.lists)[2] is None
    w, u, qg, kg = again(k=s.k, v=s.v, beta=s.beta, A=akk, gk=sums, q=s.q, **s.lists)
    for found, name in zip((w, u, qg, kg), ("w", "u", "q_from_start", "k_to_end")):
        s.check(found, name)
    assert again(k=s.k, v=s.v, beta=s.beta, A=akk, gk=sums, **s.lists)[2] is None
    _check_pass(pieces, s, {"k": kg, "gk": sums}, w, u)
    for v_first in (False, True):
        h = torch.from_numpy(s.h.astype(numpy.float32))
        h = h.transpose(-1, -2).contiguous() if v_first else h
        o = pieces["gla.chunk_gla_fwd_o_gk"](
            q=s.q, v=s.tensor("v_new"), g=sums, A=aqk, h=h, scale=s.scale, chunk_size=chunk, state_v_first=v_first,
            **s.lists,
        )  # fmt: skip
        s.check(o, "o")


@pytest.mark.parametrize("offsets", LISTS.values(), ids=LISTS)
@pytest.mark.parametrize("chunk", [16, 64])
def test_gdn_pieces(pieces: Any, chunk: int, offsets: Any) -> None:
    s = Pieces("gdn", offsets, chunk)
    sums = s.tensor("gate_sums")
    intra = pieces["gated_delta_rule.chunk_gated_delta_rule_fwd_intra"]
    w, u, inverse = intra(k=s.k, v=s.v, g=sums, beta=s.beta, chunk_size=chunk, **s.lists)
    for found, name in zip((w, u, inverse), ("w", "u", "inverse")):
        s.check(found, name)
    again = pieces["gated_delta_rule.recompute_w_u_fwd"]
    w, u = again(k=s.k, v=s.v, beta=s.beta, A=inverse, g=sums, **s.lists)
    for found, name in zip((w, u), ("w", "u")):
        s.check(found, name)
    _check_pass(pieces, s, {"k": s.k, "g": sums}, w, u)
    h = torch.from_numpy(s.h.astype(numpy.float32))
    o = pieces["common.chunk_fwd_o"](q=s.q, k=s.k, v=s.tensor("v_new"), h=h, g=sums, chunk_size=chunk, **s.lists)
    s.check(o, "o")


def _check_pass(pieces: Any, s: Pieces, keys: dict[str, Any], w: Any, u: Any) -> None:
    initial = torch.from_numpy(s.initial)
    how = {**keys, "w": w, "u": u, "chunk_size": s.chunk, "output_final_state": True, **s.lists}
    fwd_h = pieces["common.chunk_gated_delta_rule_fwd_h"]
    h, v_new, final = fwd_h(initial_state=initial, **how)
    assert h.shape == s.h.shape
    close(back(h).reshape(s.passed["states"].shape), s.passed["states"], what="h")
    s.check(v_new, "v_new")
    close(back(final), s.passed["final"], what="final")
    turned = initial.transpose(-1, -2).contiguous()
    h_turned, v_new, final_turned = fwd_h(initial_state=turned, state_v_first=True, save_new_value=False, **how)
    assert v_new is None
    close(back(h_turned.transpose(-1, -2)), back(h).astype(float))
    close(back(final_turned.transpose(-1, -2)), back(final).astype(float))
    how |= {"output_final_state": False}
    assert fwd_h(**how)[2] is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_types_are_those_of_fla(dtype: torch.dtype) -> None:
    s = Pieces("kda", None)
    q, k, v = (x.to(dtype) for x in (s.q, s.k, s.v))
    sums = s.tensor("gate_sums")
    results = _stages.chunk_kda_fwd_intra(q, k, v, sums, s.beta, s.scale, disable_recompute=True)
    assert {x.dtype for x in results} == {dtype}
    w, u, _, kg, aqk, _ = results
    h, v_new, final = _stages.chunk_gated_delta_rule_fwd_h(kg, w, u, gk=sums, output_final_state=True)
    assert h.dtype == v_new.dtype == dtype and final.dtype == torch.float32
    o = _stages.chunk_gla_fwd_o_gk(q, v_new, sums, aqk, h, s.scale)
    assert o.dtype == dtype and o.shape == v.shape
    expected = chunk_form.passed(s.made, s.offsets, 64)
    through = chunk_form.outputs(s.made, expected, s.offsets, 64, s.scale)
    close(back(o).reshape(through.shape), through, 2e-2)  # inputs are rounded here and not there


# ---- what is declined


def _declined(key: tuple[str, str], *args: Any, **kwargs: Any) -> str:
    """The reason that FLA gets."""
    _backend.state.found.setdefault(key, _backend.Found(tuple(HOOKS[key].recorded), 99, ()))
    taken, reason = _backend.verify(key, args, kwargs)
    assert not taken and reason is not None
    assert deltarelay.last_call().declined == f"{HOOKS[key].label}: {reason}"
    return reason


def test_declined_calls_say_why() -> None:
    s = Pieces("kda", (0, 70, 100))
    gdn = Pieces("gdn", (0, 70, 100))
    sums, w, u, h = s.tensor("gate_sums"), s.tensor("w"), s.tensor("u"), torch.zeros(1, 3, 4, 16, 24)
    intra, again, fwd_h = (
        ("kda", "chunk_kda_fwd_intra"), ("kda", "recompute_w_u_fwd"), ("common", "chunk_gated_delta_rule_fwd_h")
    )  # fmt: skip
    out, gla = ("common", "chunk_fwd_o"), ("gla", "chunk_gla_fwd_o_gk")
    rows = (s.q, s.k, s.v, sums, s.beta, s.scale)
    assert "use_graph: expected False, found True" in _declined(intra, *rows, use_graph=True)
    assert "gk: expected a tensor, found None" in _declined(intra, *rows[:3], beta=s.beta, scale=1.0)
    assert "chunk_size: expected 32 or 64, found 16" in _declined(intra, *rows, chunk_size=16)
    assert "scale: expected a number, found None" in _declined(intra, *rows[:5])
    assert "number of heads that is a multiple of the 3" in _declined(
        intra, s.q[:, :, :1].repeat(1, 1, 3, 1), s.k[:, :, :1].repeat(1, 1, 3, 1), *rows[2:]
    )
    assert "gk: expected fp32, found bf16" in _declined(intra, *rows[:3], sums.bfloat16(), *rows[4:])
    assert "k: expected fp32, found bf16" in _declined(intra, s.q, s.k.bfloat16(), *rows[2:])
    assert "cu_seqlens: expected at least 2 entries" in _declined(intra, *rows, cu_seqlens=torch.tensor([0]))
    a = s.tensor("inverse")
    assert "A: expected fp32 as k, found bf16" in _declined(again, s.k, s.v, s.beta, a.bfloat16(), sums)
    assert "chunk_size: expected 16, 32 or 64, found 48" in _declined(again, s.k, s.v, s.beta, a[..., :48], sums)
    assert "g, gk: expected one of them, found neither" in _declined(fwd_h, s.k, w, u)
    assert "g, gk: expected one of them, found both" in _declined(fwd_h, s.k, w, u, sums[..., 0], sums)
    assert "k: expected .* with HV" not in _declined(fwd_h, s.k, w, u, gk=sums)
    assert "k: expected [.., HV, DK] with HV = 4" in _declined(fwd_h, s.k, w, u, gk=sums)
    kg = s.tensor("k_to_end")
    assert "chunk_offsets: expected None" in _declined(fwd_h, kg, w, u, gk=sums, chunk_offsets=torch.zeros(3))
    assert "w: expected fp32 as k, found fp16" in _declined(fwd_h, kg, w.half(), u, gk=sums)
    lists = {"cu_seqlens": s.cu_seqlens, "chunk_indices": torch.zeros(9, 2, dtype=torch.int64)}
    assert "chunk_indices: expected 3, the chunks of all sequences," in _declined(fwd_h, kg, w, u, gk=sums, **lists)
    assert "initial_state: expected 2 states, one a sequence, found 1" in _declined(
        fwd_h, kg, w, u, gk=sums, initial_state=torch.zeros(1, 4, 16, 24), cu_seqlens=s.cu_seqlens
    )
    given = (gdn.q, gdn.k, gdn.tensor("v_new"), h)
    assert "g_gamma: expected None" in _declined(out, *given, gdn.tensor("gate_sums"), torch.zeros(4))
    assert "g: expected a tensor, found None" in _declined(out, *given)
    assert "h: expected [B, NT, HV, ..]" in _declined(out, *given[:3], h[0], gdn.tensor("gate_sums"))
    assert "h: expected 2 rows" in _declined(out, *given, gdn.tensor("gate_sums"))
    assert "use_graph" in _declined(gla, s.q, s.v, sums, s.tensor("aqk"), h, 1.0, use_graph=True)
    assert "A: expected .* with C = 64" not in _declined(gla, s.q, s.v, sums, s.tensor("aqk")[..., :32], h, 1.0)
    assert "cu_seqlens_cpu" in str(_num_chunks_on_a_gpu())
    wants = s.v.clone().requires_grad_()
    assert "does not require grad" in _declined(intra, s.q, s.k, wants, *rows[3:])


def _num_chunks_on_a_gpu() -> Exception:
    """With the lengths on a GPU and nothing that tells the number of chunks."""

    class OnGpu:
        is_cuda = True

    with pytest.raises(deltarelay.Unsupported) as caught:
        _stages._num_chunks(OnGpu(), None, None)
    assert _stages._num_chunks(OnGpu(), torch.zeros(2), None) is None
    assert _stages._num_chunks(OnGpu(), None, torch.zeros(5, 2)) == 5
    return caught.value


# ---- inside FLA's own forward


def _sums(
    g: torch.Tensor, chunk_size: int, scale: float | None = None, cu_seqlens: Any = None, **_: Any
) -> torch.Tensor:
    """In the place of fla.ops.utils.chunk_local_cumsum."""
    made = torch.zeros_like(g, dtype=torch.float32)
    offsets = [0, g.shape[1]] if cu_seqlens is None else cu_seqlens.tolist()
    for begin, end in itertools.pairwise(offsets):
        for a in range(begin, end, chunk_size):
            b = min(a + chunk_size, end)
            made[:, a:b] = g[:, a:b].float().cumsum(1)
    return made * (1.0 if scale is None else scale)


@pytest.fixture
def fla_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fla", reason="fla-core is not installed")
    import fla.ops.gated_delta_rule.chunk
    import fla.ops.kda.chunk_fwd

    assert deltarelay.fla.enable().enabled
    monkeypatch.setattr(fla.ops.kda.chunk_fwd, "chunk_local_cumsum", _sums)
    monkeypatch.setattr(fla.ops.gated_delta_rule.chunk, "chunk_local_cumsum", _sums)


PIPELINE = {
    "kda": ("kda.chunk_kda_fwd_intra", "common.chunk_gated_delta_rule_fwd_h", "gla.chunk_gla_fwd_o_gk"),
    "gdn": (
        "gated_delta_rule.chunk_gated_delta_rule_fwd_intra",
        "common.chunk_gated_delta_rule_fwd_h",
        "common.chunk_fwd_o",
    ),
}


@pytest.mark.parametrize("offsets", LISTS.values(), ids=LISTS)
@pytest.mark.parametrize("rule", ["kda", "gdn"])
def test_forward_of_fla_is_made_of_our_pieces(fla_forward: None, rule: str, offsets: Any) -> None:
    """FLA's chunk_kda_fwd and chunk_gated_delta_rule_fwd, which nobody takes over as a whole."""
    from fla.ops.gated_delta_rule.chunk import chunk_gated_delta_rule_fwd
    from fla.ops.kda.chunk_fwd import chunk_kda_fwd

    s = Pieces(rule, offsets)
    before = deltarelay.fla.status()
    common = {"scale": s.scale, "initial_state": torch.from_numpy(s.initial), "output_final_state": True}
    rows = (s.q, s.k, s.v, s.g, s.beta)
    if rule == "kda":
        o, final, *_ = chunk_kda_fwd(*rows, **common, cu_seqlens=s.cu_seqlens)
    else:
        _, o, _, final, *_ = chunk_gated_delta_rule_fwd(*rows, **common, cu_seqlens=s.cu_seqlens)
    s.check(o, "o")
    close(back(final), s.passed["final"])
    after = deltarelay.fla.status()
    for label in PIPELINE[rule]:
        assert after.taken.get(label, 0) == before.taken.get(label, 0) + 1, str(after)
    assert sum(after.taken.values()) == sum(before.taken.values()) + 3
    assert after.declined == before.declined


@pytest.mark.parametrize("rule", ["kda", "gdn"])
def test_training_forward_of_fla(fla_forward: None, rule: str) -> None:
    """chunk_kda with tensors that require grad is declined as a whole; FLA's autograd function then calls our pieces.
    FLA's naive reference is the witness."""
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    from fla.ops.kda import chunk_kda
    from fla_witness.running import naive_recurrent_gated_delta_rule, naive_recurrent_kda

    s = Pieces(rule, None)
    rows = [x.clone().requires_grad_() for x in (s.q, s.k, s.v, s.g, s.beta)]
    before = deltarelay.fla.status()
    function = chunk_kda if rule == "kda" else chunk_gated_delta_rule
    initial = torch.from_numpy(s.initial)
    o, final = function(*rows, initial_state=initial, output_final_state=True)
    assert o.requires_grad  # FLA's backward stays FLA's
    after = deltarelay.fla.status()
    for label in PIPELINE[rule]:
        assert after.taken.get(label, 0) == before.taken.get(label, 0) + 1, str(after)
    new = {reason for reason, count in after.declined.items() if count != before.declined.get(reason, 0)}
    assert len(new) == 1 and new.pop().startswith(
        f"{function.__name__}: q: expected a tensor that does not require grad"
    )
    q, k, v, g, beta = s.q, s.k, s.v, s.g, s.beta
    if rule == "kda":
        o_naive, final_naive = naive_recurrent_kda(q, k, v, g, beta, s.scale, initial, True)
    else:
        q, k = (x.repeat_interleave(2, dim=2) for x in (q, k))
        o_naive, final_naive = naive_recurrent_gated_delta_rule(q, k, v, beta, g, s.scale, initial, True)
    for found, expected in ((o.detach(), o_naive), (final.detach(), final_naive)):
        close(back(found), back(expected).astype(float))


@needs_fla
@pytest.mark.skipif(torch.cuda.is_available(), reason="FLA's own kernels run here")
def test_switched_off(fla_forward: None) -> None:
    """After disable() nothing of ours is asked: FLA runs its Triton kernels, which fail without a GPU."""
    s = Pieces("kda", None)
    from fla.ops.kda.chunk_fwd import chunk_kda_fwd

    before = deltarelay.fla.status().taken
    deltarelay.fla.disable()
    failed = False
    try:
        chunk_kda_fwd(s.q, s.k, s.v, s.g, s.beta, s.scale, None, False)
    except Exception:
        failed = True
    finally:
        deltarelay.fla.enable()
    assert failed and deltarelay.fla.status().taken == before
