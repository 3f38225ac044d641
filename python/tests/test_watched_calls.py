"""Calls that torch must see: version counters, dispatch modes, traces, tangents of forward-mode gradients."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from conftest import Case, to
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import deltarelay
from deltarelay import stages, torch_ops  # noqa: F401  registers the operators

pytestmark = pytest.mark.usefixtures("binding")


def rows(tokens: int = 100, seed: int = 0) -> tuple[Any, ...]:
    return tuple(to("torch", x) for x in Case("gdn", [tokens], seed=seed).rows)


# ---- version counters


def written_by(name: str, how: dict[str, Any], call: Any = deltarelay.forward) -> tuple[int, int]:
    """Versions of an argument before and after a call that writes it."""
    before = how[name]._version
    call("gdn", *rows(), **how)
    return before, how[name]._version


@pytest.mark.parametrize("name", ["o", "final", "checkpoint", "report"])
def test_what_is_written_has_a_new_version(name: str) -> None:
    states = torch.zeros(6, 2, 24, 16)
    how = {
        "o": {"o": torch.zeros(100, 2, 24)},
        "final": {"final": states[:1]},
        "checkpoint": {"checkpoint": states, "checkpoints": 16},
        "report": {"report": torch.zeros(1, dtype=torch.int32)},
    }[name]
    for _ in range(2):  # the second call finds the plan
        before, after = written_by(name, how)
        assert after > before


def test_what_is_read_keeps_its_version() -> None:
    tensors = rows()
    initial = torch.zeros(1, 2, 24, 16)
    deltarelay.forward("gdn", *tensors, initial=initial)
    assert [x._version for x in (*tensors, initial)] == [0] * 6


def test_gradients_through_overwritten_memory_are_an_error() -> None:
    x = torch.ones(100, 2, 24, requires_grad=True)
    saved = torch.ones(100, 2, 24)
    y = (x * saved).sum()
    with torch.no_grad():
        deltarelay.forward("gdn", *rows(), o=saved)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_the_operator_raises_versions() -> None:
    o = torch.zeros(100, 2, 24)
    torch.ops.deltarelay.forward_into(o, None, None, None, None, None, False, "gdn", *rows())
    assert o._version > 0


def test_tensors_of_inference_mode_are_written() -> None:
    with torch.inference_mode():
        o = torch.zeros(100, 2, 24)
    deltarelay.forward("gdn", *rows(), o=o)
    assert o.any()


def test_a_stage_raises_versions() -> None:
    q, k, v, g, beta = rows()
    made = stages.chunk_local("gdn", q=q, k=k, v=v, g=g, beta=beta)
    passed = stages.state_pass("gdn", k=k, w=made.w, u=made.u, gate_sums=made.gate_sums)
    o = torch.zeros(100, 2, 24)
    given = {"v_new": passed.v_new, "states": passed.states, "gate_sums": made.gate_sums}
    stages.outputs("gdn", q=q, k=k, **given, o=o)
    assert o._version > 0


# ---- modes and traces


def plain(q: Any, *others: Any) -> Any:
    return deltarelay.forward("gdn", q, *others, l2norm=True).o


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_make_fx_records_the_operator(mode: str) -> None:
    plain(*rows())  # its plan is in the cache
    graph = make_fx(plain, tracing_mode=mode)(*rows())
    assert "deltarelay.forward_o.default" in [str(node.target) for node in graph.graph.nodes]
    others = rows(seed=1)
    assert torch.equal(graph(*others), plain(*others))


@pytest.mark.filterwarnings("ignore")
def test_a_jit_trace_records_the_operator() -> None:
    plain(*rows())
    traced = torch.jit.trace(plain, rows(), check_trace=False)
    others = rows(seed=1)
    assert torch.equal(traced(*others), plain(*others))


def test_real_tensors_among_fake_ones() -> None:
    tensors = rows()
    plain(*tensors)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        found = deltarelay.forward("gdn", *tensors, l2norm=True, final=True)
    assert found.o.fake_mode is mode
    assert (found.o.shape, found.final.shape) == ((100, 2, 24), (1, 2, 24, 16))


def test_a_mode_sees_the_operator() -> None:
    seen = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    expected = plain(*rows())
    with Mode():
        found = plain(*rows())
    assert "deltarelay.forward_o.default" in seen
    assert torch.equal(found, expected)
    with Mode(), torch._C._DisableTorchDispatch():
        assert torch.equal(plain(*rows()), expected)


@pytest.mark.parametrize("mode", ["fake", "fx", "trace"])
@pytest.mark.filterwarnings("ignore")
def test_stages_are_no_operators(mode: str) -> None:
    q, k, v, g, beta = rows()

    def local(q: Any) -> Any:
        return stages.chunk_local("gdn", q=q, k=k, v=v, g=g, beta=beta).w

    local(q)
    with pytest.raises(deltarelay.Unsupported, match="stages are no operators of torch"):
        if mode == "fake":
            with FakeTensorMode(allow_non_fake_inputs=True):
                local(q)
        elif mode == "fx":
            make_fx(local)(q)
        else:
            torch.jit.trace(local, (q,), check_trace=False)


# ---- forward-mode gradients


def test_tangents_are_refused() -> None:
    q, *others = rows()
    plain(q, *others)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(q, torch.ones_like(q))
        with pytest.raises(deltarelay.Unsupported, match="q: expected a tensor without a tangent, found a dual"):
            plain(dual, *others)
        with pytest.raises(deltarelay.Unsupported, match="k: expected a tensor without a tangent, found a dual"):
            k, v, g, beta = others
            stages.chunk_local("gdn", q=q, k=forward_ad.make_dual(k, k), v=v, g=g, beta=beta)
        with pytest.raises(deltarelay.Unsupported, match="tangent"):
            torch.ops.deltarelay.forward_o("gdn", dual, *others)
        assert torch.equal(plain(q, *others), plain(forward_ad.unpack_dual(dual).primal, *others))


def test_a_level_of_forward_gradients_changes_nothing_else() -> None:
    q, *others = rows()
    expected = plain(q, *others)
    turned = torch.randn(100, 16, 1).transpose(1, 2)[:, :, ::1]
    with forward_ad.dual_level():
        assert torch.equal(plain(q, *others), expected)
        with torch.no_grad():
            assert torch.equal(plain(torch.nn.Parameter(q), *others), expected)
        plain(turned, *others)
