"""torch.compile(fullgraph=True) of code that calls deltarelay.forward."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch._dynamo.testing import CompileCounterWithBackend

import deltarelay

pytestmark = pytest.mark.skipif(
    not torch._dynamo.is_dynamo_supported(), reason="this torch cannot compile on this Python"
)


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()


def rows(tokens: int, batch: int = 1, rule: str = "gdn", heads: int = 2, width: int = 16) -> tuple[Any, ...]:
    torch.manual_seed(tokens)
    q, k, v = (torch.randn(batch, tokens, heads, width) for _ in range(3))
    g = -torch.rand(batch, tokens, heads, width) if rule == "kda" else -torch.rand(batch, tokens, heads)
    return q, k, v, g, torch.rand(batch, tokens, heads)


def compiled(function: Callable[..., Any], backend: str = "aot_eager", **options: Any) -> tuple[Any, Any]:
    counter = CompileCounterWithBackend(backend)
    return torch.compile(function, fullgraph=True, backend=counter, **options), counter


def equal(found: Any, expected: Any) -> None:
    for mine, eager in zip(found, expected):
        assert mine is eager is None or torch.equal(mine, eager)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_layer(backend: str) -> None:
    """The call between other operations, with parameters as a model has them."""

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.projection = torch.nn.Linear(32, 3 * 32)
            self.a_log, self.dt_bias = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.ones(2))

        def forward(self, x: Any, gates: Any) -> Any:
            q, k, v = (part.unflatten(-1, (2, 16)) for part in self.projection(x).chunk(3, dim=-1))
            o, final, _ = deltarelay.forward(
                "gdn",
                q,
                k,
                v,
                gates[..., :2],
                gates[..., 2:],
                gate="softplus",
                a_log=self.a_log,
                dt_bias=self.dt_bias,
                beta_form="logit",
                l2norm=True,
                final=True,
            )
            return torch.nn.functional.silu(o.flatten(-2)) + x, final

    layer, x, gates = Layer(), torch.randn(2, 37, 32), torch.randn(2, 37, 4)
    fast, _ = compiled(layer, backend)
    with torch.no_grad():
        for mine, eager in zip(fast(x, gates), layer(x, gates)):
            torch.testing.assert_close(mine, eager)
    layer.requires_grad_(False)  # a frozen model under grad mode
    equal(fast(x, gates), layer(x, gates))


# torch has a graph of its own for an axis with one index: a single chunk would be one.
@pytest.mark.parametrize(("checkpoints", "lengths"), [(None, (70, 5, 64, 200, 131, 6)), ("chunks", (70, 65, 200, 131))])
def test_dynamic_shapes_compile_once(checkpoints: str | None, lengths: tuple[int, ...]) -> None:
    def call(*tensors: Any) -> Any:
        return deltarelay.forward("gdn", *tensors, final=True, checkpoints=checkpoints)

    fast, counter = compiled(call, dynamic=True)
    for tokens in lengths:
        equal(fast(*rows(tokens)), call(*rows(tokens)))
    assert counter.frame_count == 1


def test_shapes_that_turn_out_to_be_dynamic_compile_twice() -> None:
    def call(*tensors: Any) -> Any:
        return deltarelay.forward("kda", *tensors, final=True)

    fast, counter = compiled(call)
    for tokens in (70, 5, 64, 200, 131):
        equal(fast(*rows(tokens, rule="kda")), call(*rows(tokens, rule="kda")))
    assert counter.frame_count == 2


def test_lengths_change_without_compiling_again() -> None:
    """Offsets are data: the graph holds for every packing of the same number of sequences, and for other numbers
    too."""

    def call(offsets: Any, *tensors: Any) -> Any:
        return deltarelay.forward("gdn", *tensors, seq_offsets=offsets, final=True)

    fast, counter = compiled(call, dynamic=True)
    for offsets in ([0, 3, 70], [0, 70, 70], [0, 10, 20, 70], [0, 1, 2, 3, 70]):
        given = torch.tensor(offsets, dtype=torch.int32)
        equal(fast(given, *rows(70)), call(given, *rows(70)))
    assert counter.frame_count == 1


def test_calls_with_other_settings_do_not_compile_again() -> None:
    """What other code does with the library is not part of a graph's guards."""

    def call(*tensors: Any) -> Any:
        return deltarelay.forward("gdn", *tensors)

    fast, counter = compiled(call)
    equal(fast(*rows(20)), call(*rows(20)))
    for scale in (0.5, 0.25, 0.125):
        deltarelay.forward("gdn", *rows(20), scale=scale, final=True)
    equal(fast(*rows(20)), call(*rows(20)))
    assert counter.frame_count == 1


def test_numbers_may_be_arguments() -> None:
    def call(scale: float, every: int, *tensors: Any) -> Any:
        return deltarelay.forward("gdn", *tensors, scale=scale, checkpoints=every)[::2]

    fast, _ = compiled(call, dynamic=True)
    for scale, every in ((0.5, 16), (0.7, 32), (0.9, 32)):
        equal(fast(scale, every, *rows(70)), call(scale, every, *rows(70)))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_pools_in_place(backend: str) -> None:
    """The pool is written where it lies, and what reads it later in the graph sees it."""

    def step(pool: Any, index: Any, offsets: Any, *tensors: Any) -> Any:
        slots = {"initial": pool, "initial_index": index, "final": pool, "final_index": index}
        o, final, _ = deltarelay.forward("gdn", *tensors, seq_offsets=offsets, **slots)
        o2, _, _ = deltarelay.forward("gdn", *tensors, seq_offsets=offsets, **slots)
        return o, o2, final[1] * 2

    index, offsets = torch.tensor([4, 1]), torch.tensor([0, 30, 70])
    pool = torch.randn(6, 2, 16, 16)
    mine, eager = pool.clone(), pool.clone()
    fast, _ = compiled(step, backend)
    equal(fast(mine, index, offsets, *rows(70)), step(eager, index, offsets, *rows(70)))
    assert torch.equal(mine, eager) and not torch.equal(mine, pool)
    assert torch.equal(mine[[0, 2, 3, 5]], pool[[0, 2, 3, 5]])


def test_outputs_that_are_given() -> None:
    def call(out: Any, report: Any, *tensors: Any) -> Any:
        result = deltarelay.forward("gdn", *tensors, o=out[:, : tensors[0].shape[1]], report=report, final=True)
        return result.final, out.sum()

    fast, _ = compiled(call)
    out, other, report = torch.zeros(1, 100, 2, 16), torch.zeros(1, 100, 2, 16), torch.zeros(1, dtype=torch.int32)
    equal(fast(out, report, *rows(70)), call(other, report, *rows(70)))
    assert torch.equal(out, other) and out[:, 70:].abs().max() == 0


def test_lengths_on_the_host() -> None:
    """The number of checkpoints is then the exact one, unknown while compiling."""

    def call(offsets: Any, *tensors: Any) -> Any:
        return deltarelay.forward(
            "gdn", *tensors, host_offsets=offsets, seq_offsets=offsets, checkpoints=32, final=True
        )

    fast, counter = compiled(call)
    for offsets, count in (([0, 3, 70], 2), ([0, 64, 70], 2), ([0, 20, 70], 1)):
        given = torch.tensor(offsets)
        found = fast(given, *rows(70))
        equal(found, call(given, *rows(70)))
        assert len(found.checkpoint) == count
    assert counter.frame_count == 1


def test_gradients_are_refused_while_compiling() -> None:
    fast, _ = compiled(lambda *tensors: deltarelay.forward("gdn", *tensors).o)
    q, *others = rows(20)
    with pytest.raises(Exception, match="q: expected a tensor that does not require grad"):
        fast(q.requires_grad_(), *others)


def test_mistakes_are_told_while_compiling() -> None:
    fast, _ = compiled(lambda *tensors: deltarelay.forward("gdn", *tensors).o)
    q, k, v, g, beta = rows(20)
    with pytest.raises(Exception, match="beta: expected"):
        fast(q, k, v, g, beta[:, :-1])
    with pytest.raises(Exception, match="gate: expected one of"):
        compiled(lambda *tensors: deltarelay.forward("gdn", *tensors, gate="exp").o)[0](q, k, v, g, beta)


FIRST = """
import deltarelay, torch, sys
assert "deltarelay.torch_ops" not in sys.modules
def call(*tensors):
    return deltarelay.forward("gdn", *tensors, l2norm=True, final=True)
q, k, v = (torch.randn(1, 9, 2, 16) for _ in range(3))
rows = (q, k, v, -torch.rand(1, 9, 2), torch.rand(1, 9, 2))
found = torch.compile(call, fullgraph=True, backend="aot_eager")(*rows)
assert all(torch.equal(a, b) for a, b in zip(found[:2], call(*rows)[:2]))
print("as it should be", deltarelay.info()["binding"])
"""


@pytest.mark.parametrize("binding", ["extension", "ctypes"])
def test_the_first_call_of_a_process(binding: str) -> None:
    environment = {**os.environ, "DELTARELAY_BINDING": binding}
    done = subprocess.run(
        [sys.executable, "-c", FIRST], check=False, env=environment, capture_output=True, text=True, timeout=300
    )
    if "cannot import name '_core'" in done.stderr:
        pytest.skip("no extension here")
    assert done.stdout.strip() == f"as it should be {binding}", done.stderr[-3000:]


@pytest.mark.parametrize("rule", ["kda", "gdn"])
def test_fla_functions_are_traced(rule: str) -> None:
    """FLA's own functions always break a graph; ours under the same names do not."""
    q, k, v = (torch.randn(1, 50, 2, 16) for _ in range(3))
    g = -torch.rand(1, 50, 2, 16) if rule == "kda" else -torch.rand(1, 50, 2)
    beta = torch.rand(1, 50, 2)
    function = deltarelay.chunk_kda if rule == "kda" else deltarelay.chunk_gated_delta_rule

    def layer(*tensors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return function(*tensors, use_qk_l2norm_in_kernel=True, output_final_state=True, state_v_first=True)

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for mine, expected in zip(compiled(q, k, v, g, beta), layer(q, k, v, g, beta), strict=True):
        assert torch.equal(mine, expected)
