"""The operators of torch.ops.deltarelay: schemas, shapes without memory, results, and what they cost over the plain
call."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from conftest import Case, back, close, to

import deltarelay
from deltarelay import _call, torch_ops
from deltarelay._settings import Settings, settings

OPS = torch.ops.deltarelay
CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


def tensors(rule: str = "gdn", lengths: tuple[int, ...] = (70, 5, 130), dtype: Any = torch.float32) -> dict[str, Any]:
    """A packed call: [1, T, ...] rows, offsets, states in slots of a larger pool."""
    case = Case(rule, list(lengths))
    rows = {name: to("torch", getattr(case, name))[None].to(dtype) for name in ("q", "k", "v", "g", "beta")}
    pool = torch.randn(len(lengths) + 3, *case.initial.transpose(0, 1, 3, 2).shape[1:])
    return {
        **rows,
        "seq_offsets": to("torch", case.offsets),
        "initial": to("torch", case.initial.transpose(0, 1, 3, 2)),
        "pool": pool,
        "index": torch.arange(len(lengths), dtype=torch.int32) + 2,
    }


def rows_of(x: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(x[name] for name in ("q", "k", "v", "g", "beta"))


def test_the_operators_are_these() -> None:
    """A schema that changes breaks graphs that were saved."""
    assert set(torch_ops.SCHEMAS) == {
        "forward_o",
        "forward_o_final",
        "forward_o_checkpoint",
        "forward_o_final_checkpoint",
        "forward_into",
    }
    for name in torch_ops.SCHEMAS:
        schema = getattr(OPS, name).default._schema
        assert len(schema.returns) == {"forward_o": 1, "forward_o_final_checkpoint": 3, "forward_into": 0}.get(name, 2)
        assert schema.is_mutable == (name == "forward_into")
        assert torch.Tag.pt2_compliant_tag in getattr(OPS, name).default.tags


def test_every_setting_is_an_argument() -> None:
    names = {argument.name for argument in OPS.forward_o.default._schema.arguments}
    elsewhere = {"beta": "beta_form", "final": "rule", "device": "rule"}  # by the operator; of plans alone
    fields = {elsewhere.get(field.name, field.name) for field in dataclasses.fields(Settings) if field.init}
    assert fields <= names
    assert names >= set(_call.ARGUMENTS) - {"o", "final", "final_index", "checkpoint", "checkpoint_index", "report"}


FUNCTIONAL = [
    ("forward_o", "kda", {}),
    ("forward_o_final", "gdn", {"seq_offsets": True, "initial": True, "l2norm": True, "state_layout": "value_major"}),
    ("forward_o_checkpoint", "gdn", {"checkpoints": "chunks"}),
    ("forward_o_final_checkpoint", "kda", {"checkpoint_every": 64, "final_dtype": "bf16", "o_dtype": "bf16"}),
]


@pytest.mark.parametrize(("name", "rule", "options"), FUNCTIONAL)
def test_opcheck(name: str, rule: str, options: dict[str, Any]) -> None:
    x = tensors(rule)
    given = {key: x[key] if value is True and key in x else value for key, value in options.items()}
    assert set(torch.library.opcheck(getattr(OPS, name).default, (rule, *rows_of(x)), given).values()) == {"SUCCESS"}


@pytest.mark.parametrize("in_place", [False, True])
def test_opcheck_of_the_operator_that_writes(in_place: bool) -> None:
    x = tensors()
    report, out = torch.zeros(1, dtype=torch.int32), torch.empty_like(x["v"])
    written = (out, x["pool"], None, report, x["index"], None, in_place)
    given = {"seq_offsets": x["seq_offsets"]}
    given |= {"initial_index": x["index"]} if in_place else {"initial": x["initial"]}
    found = torch.library.opcheck(OPS.forward_into.default, (*written, "gdn", *rows_of(x)), given)
    assert set(found.values()) == {"SUCCESS"}


def test_opcheck_of_checkpoints_in_a_pool() -> None:
    x = tensors()
    offsets, positions = torch.tensor([0, 1, 1, 3], dtype=torch.int32), torch.tensor([64, 16, 128], dtype=torch.int32)
    slots = torch.tensor([4, -1, 0], dtype=torch.int32)
    written = (torch.empty_like(x["v"]), None, x["pool"], None, None, slots, False)
    given = {"seq_offsets": x["seq_offsets"], "checkpoints": "list", "checkpoint_offsets": offsets}
    given["checkpoint_positions"] = positions
    found = torch.library.opcheck(OPS.forward_into.default, (*written, "gdn", *rows_of(x)), given)
    assert set(found.values()) == {"SUCCESS"}


SHAPES = [
    {"final": True},
    {"final": True, "checkpoints": "chunks"},
    {"checkpoints": 32, "final_dtype": "fp16"},
    {"final": True, "state_layout": "key_major", "o_dtype": "fp32"},
    {"checkpoints": 48, "final": True, "final_dtype": "bf16", "state_layout": "key_major"},
]


@pytest.mark.parametrize("kind", ["meta", "fake"])
@pytest.mark.parametrize("leading", [(3, 70), (1, 130), (70,), (2, 0)])
@pytest.mark.parametrize("options", SHAPES, ids=lambda options: "-".join(map(str, options.values())))
def test_shapes_without_memory_are_those_of_the_call(
    kind: str, leading: tuple[int, ...], options: dict[str, Any]
) -> None:
    rows = [torch.randn(*leading, heads, 16, dtype=torch.bfloat16) for heads in (1, 1, 2)]
    rows += [-torch.rand(*leading, 2), torch.rand(*leading, 2)]
    expected = deltarelay.forward("gdn", *rows, **options)
    found = deltarelay.forward("gdn", *without_memory(kind, rows), **options)
    same(found, expected)


def test_the_type_of_checkpoints() -> None:
    rows = rows_of(tensors(dtype=torch.bfloat16))
    given = {"checkpoint_every": 16, "checkpoint_dtype": "q"}
    expected = OPS.forward_o_checkpoint("gdn", *rows, **given)
    same(OPS.forward_o_checkpoint("gdn", *without_memory("meta", list(rows)), **given), expected)
    assert expected[1].dtype == torch.bfloat16


def without_memory(kind: str, values: list[Any]) -> list[Any]:
    if kind == "meta":
        return [value.to("meta") for value in values]
    mode = torch._subclasses.FakeTensorMode()
    return [mode.from_tensor(value) for value in values]


def same(found: Any, expected: Any) -> None:
    for mine, real in zip(found, expected):
        assert (mine is None) == (real is None)
        if real is not None:
            assert (mine.shape, mine.stride(), mine.dtype) == (real.shape, real.stride(), real.dtype)


@pytest.mark.parametrize("kind", ["meta", "fake"])
def test_shapes_of_packed_calls(kind: str) -> None:
    x = tensors()
    *rows, offsets, initial = without_memory(kind, [*rows_of(x), x["seq_offsets"], x["initial"]])
    expected = deltarelay.forward("gdn", *rows_of(x), seq_offsets=x["seq_offsets"], initial=x["initial"], final=True)
    same(deltarelay.forward("gdn", *rows, seq_offsets=offsets, initial=initial, final=True), expected)
    if kind == "fake":  # lengths that a tensor on the CPU would have
        with pytest.raises(deltarelay.Unsupported, match="checkpoints: with lengths on the host"):
            deltarelay.forward("gdn", *rows, seq_offsets=offsets, checkpoints="chunks")


def test_lengths_on_the_device_give_the_bound() -> None:
    x = tensors()
    late = {"seq_offsets": x["seq_offsets"], "checkpoints": "chunks", "late_lengths": True}
    *rows, late["seq_offsets"] = without_memory("fake", [*rows_of(x), x["seq_offsets"]])
    same(
        deltarelay.forward("gdn", *rows, **late),
        deltarelay.forward("gdn", *rows_of(x), **late | {"seq_offsets": x["seq_offsets"]}),
    )
    *rows, offsets = without_memory("meta", [*rows_of(x), x["seq_offsets"]])
    found = deltarelay.forward("gdn", *rows, seq_offsets=offsets, checkpoints="chunks")
    assert found.checkpoint.shape == (205 // 64 + 3, 2, 24, 16)


@pytest.mark.parametrize("rule", ["kda", "gdn"])
def test_results(rule: str) -> None:
    case = Case(rule, [70, 0, 5, 130])
    rows = [to("torch", row)[None] for row in case.rows]
    given = {
        "seq_offsets": to("torch", case.offsets),
        "initial": to("torch", case.initial),
        "state_layout": "key_major",
    }
    o, final = OPS.forward_o_final(rule, *rows, **given)
    expected = case.expected()
    close(o[0], expected[0])
    close(final, expected[1])


def test_the_operator_that_writes() -> None:
    x = tensors("kda")
    given = {
        "seq_offsets": x["seq_offsets"],
        "initial_index": x["index"],
        "final_index": x["index"],
        "checkpoints": "chunks",
    }
    pool, o, report = x["pool"].clone(), torch.empty_like(x["v"]), torch.ones(1, dtype=torch.int32)
    found = deltarelay.forward("kda", *rows_of(x), **given, initial=pool, final=pool, o=o, report=report)
    assert found.o is o and found.final is pool and int(report) == 0
    chosen = settings("kda", *(None, False, "log", None, None, "value", "value_major", False, "fp32", None, "chunks"))
    other, out = x["pool"].clone(), torch.empty_like(o)
    arguments = dict.fromkeys(_call.ARGUMENTS) | dict(zip(("q", "k", "v", "g", "beta"), rows_of(x)))
    arguments |= {name: value for name, value in given.items() if name != "checkpoints"}
    arguments |= {"initial": other, "final": other, "o": out}
    by_op = torch_ops.dispatch(chosen, tuple(arguments.values()))
    assert by_op[0] is out and by_op[1] is other
    assert torch.equal(out, o) and torch.equal(other, pool)
    exact = len(found.checkpoint)  # the operator's is allocated before the lengths are read
    assert torch.equal(by_op[2][:exact], found.checkpoint)


def test_errors_are_those_of_the_call() -> None:
    x = tensors()
    with pytest.raises(deltarelay.Invalid, match="gate: expected one of"):
        OPS.forward_o("gdn", *rows_of(x), gate="exponential")
    with pytest.raises(deltarelay.Invalid, match="k: expected"):
        OPS.forward_o("gdn", x["q"], x["k"][..., :8].contiguous(), *rows_of(x)[2:])
    with pytest.raises(deltarelay.Invalid, match="beta: expected"):
        rows = without_memory("meta", list(rows_of(x)))
        deltarelay.forward("gdn", *rows[:4], rows[4][:, :-1])
    with pytest.raises(deltarelay.Invalid, match="final_index: expected None without a pool"):
        meta = without_memory("meta", [*rows_of(x), x["index"]])
        deltarelay.forward("gdn", *meta[:5], final=True, final_index=meta[5])


def test_last_call_is_told() -> None:
    OPS.forward_o("gdn", *rows_of(tensors()))
    found = deltarelay.last_call()
    assert found is not None and found.backend == "cpu"


def microseconds(functions: dict[str, Any]) -> dict[str, float]:
    """Best of short interleaved runs."""
    best = dict.fromkeys(functions, float("inf"))
    for _ in range(30):
        for name, function in functions.items():
            begin = time.perf_counter()
            for _ in range(50):
                function()
            best[name] = min(best[name], (time.perf_counter() - begin) / 50 * 1e6)
    return best


def test_cost_over_the_plain_call() -> None:
    """Printed with -s. Judged on a GPU host; here only a mistake of another order fails."""
    q, k, v = (torch.randn(1, 1, 1, 16) for _ in range(3))
    g, beta = -torch.rand(1, 1, 1), torch.rand(1, 1, 1)
    pool, index, offsets, o = (
        torch.zeros(4, 1, 16, 16),
        torch.tensor([1]),
        torch.tensor([0, 1]),
        torch.empty(1, 1, 1, 16),
    )
    slots = {"seq_offsets": offsets, "initial_index": index}
    times = microseconds(
        {
            "torch.add": lambda: torch.add(q, k),
            "forward": lambda: deltarelay.forward("gdn", q, k, v, g, beta),
            "forward_o": lambda: OPS.forward_o.default("gdn", q, k, v, g, beta),
            "forward, pool in place": lambda: deltarelay.forward(
                "gdn", q, k, v, g, beta, o=o, initial=pool, final=pool, final_index=index, **slots
            ),
            "forward_into": lambda: OPS.forward_into.default(
                o, pool, None, None, index, None, True, "gdn", q, k, v, g, beta, **slots
            ),
        }
    )
    print("\nus a call, T = 1, H = 1, D = 16:", ", ".join(f"{name} {value:.1f}" for name, value in times.items()))
    over = times["forward_o"] - times["forward"]
    print(f"operator over the plain call: {over:.1f} us = {over / times['torch.add']:.1f} torch.add")
    assert over < 30 * times["torch.add"]


def test_the_type_of_o() -> None:
    x = tensors(dtype=torch.bfloat16)
    o = OPS.forward_o("gdn", *rows_of(x), o_dtype="fp32")
    assert o.dtype == torch.float32 and back(o).shape == tuple(x["v"].shape)
