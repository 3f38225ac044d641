"""The plain call: every feature against the recurrence as it is defined, both bindings, NumPy and torch."""

from __future__ import annotations

import numpy
import pytest
from conftest import Case, back, close, has, to

import deltarelay

pytestmark = pytest.mark.usefixtures("binding")
KEY = {"state_layout": "key_major"}


def sigmoid(x: numpy.ndarray) -> numpy.ndarray:
    return 1 / (1 + numpy.exp(-x))


@pytest.mark.parametrize("rule", ["kda", "gdn"])
@pytest.mark.parametrize("lengths", [[1], [37, 0, 100, 1], [64, 200]])
def test_packed(framework: str, rule: str, lengths: list[int]) -> None:
    case = Case(rule, lengths)
    rows = [to(framework, x) for x in case.rows]
    found = deltarelay.forward(
        rule, *rows, seq_offsets=to(framework, case.offsets), initial=to(framework, case.initial), final=True, **KEY
    )
    o, final = case.expected()
    close(found.o, o)
    close(found.final, final)
    assert found.checkpoint is None


@pytest.mark.parametrize("axes", [3, 4])
def test_batched_and_single(framework: str, axes: int) -> None:
    case = Case("kda", [50, 50] if axes == 4 else [50])
    rows = [x.reshape(2, 50, *x.shape[1:]) if axes == 4 else x for x in case.rows]
    found = deltarelay.forward("kda", *(to(framework, x) for x in rows), final=True, **KEY)
    o, final = case.expected(initial=False)
    close(found.o, o.reshape(rows[2].shape))
    close(found.final, final)


@pytest.mark.parametrize("index", ["int32", "int64"])
def test_offsets_of_both_types_and_on_the_host(framework: str, index: str) -> None:
    case = Case("gdn", [30, 41])
    offsets = to(framework, case.offsets.astype(index))
    first = deltarelay.forward("gdn", *(to(framework, x) for x in case.rows), seq_offsets=offsets)
    second = deltarelay.forward(
        "gdn", *(to(framework, x) for x in case.rows), seq_offsets=offsets, host_offsets=case.offsets
    )
    close(first.o, case.expected(initial=False)[0])
    assert (back(first.o) == back(second.o)).all()


def test_value_major_is_the_transpose(framework: str) -> None:
    case = Case("kda", [40])
    rows = [to(framework, x) for x in case.rows]
    turned = numpy.ascontiguousarray(case.initial.swapaxes(2, 3))
    found = deltarelay.forward("kda", *rows, initial=to(framework, turned), final=True)
    close(found.final, case.expected()[1].swapaxes(2, 3))


def test_raw_gates_and_beta_logits(framework: str) -> None:
    case = Case("kda", [33])
    draw = numpy.random.default_rng(1)
    raw, logits = (draw.standard_normal(x.shape).astype(numpy.float32) for x in (case.g, case.beta))
    a_log, dt_bias = draw.standard_normal(2).astype("f4") / 4, draw.standard_normal((2, 16)).astype("f4")
    rows = [to(framework, x) for x in (*case.rows[:3], raw, logits)]
    parameters = {"a_log": to(framework, a_log.reshape(1, 1, 2, 1)), "dt_bias": to(framework, dt_bias.reshape(-1))}
    x = raw + dt_bias
    a = numpy.exp(a_log)[:, None]

    case.beta = sigmoid(logits)
    case.g = -a * numpy.log1p(numpy.exp(x))
    found = deltarelay.forward("kda", *rows, gate="softplus", beta_form="logit", **parameters)
    close(found.o, case.expected(initial=False)[0])

    case.beta = 2 * sigmoid(logits)
    case.g = -5 * sigmoid(a * x)
    found = deltarelay.forward("kda", *rows, gate="bounded", lower_bound=-5.0, beta_form="twice_logit", **parameters)
    close(found.o, case.expected(initial=False)[0])


def test_linear_gate_scale_and_norm(framework: str) -> None:
    case = Case("gdn", [45])
    q, k, v, g, beta = case.rows
    rows = [to(framework, x) for x in (3 * q, 5 * k, v, numpy.exp(g), beta)]
    found = deltarelay.forward("gdn", *rows, gate="linear", l2norm=True, scale=0.5)
    close(found.o, case.expected(initial=False)[0] * 0.5 * 4)


def test_pool_in_place_with_slots_and_mask(framework: str) -> None:
    case = Case("gdn", [20, 35, 10, 7])
    pool = numpy.random.default_rng(2).standard_normal((9, *case.initial.shape[1:])).astype(numpy.float32)
    slots, mask = numpy.array([4, 1, -1, 8], numpy.int32), numpy.array([True, False, True, True])
    case.initial = pool[slots] * (mask & (slots >= 0) & (slots != 8))[:, None, None, None]
    o, final = case.expected()
    wanted = pool.copy()
    wanted[[4, 1]] = final[:2]
    shared = to(framework, pool.copy())
    found = deltarelay.forward(
        "gdn",
        *(to(framework, x) for x in case.rows),
        seq_offsets=to(framework, case.offsets),
        initial=shared,
        initial_index=to(framework, slots),
        has_initial=to(framework, mask),
        final=shared,
        final_index=to(framework, slots),
        null_index=8,
        **KEY,
    )
    close(found.o, o)
    close(shared, wanted)
    assert found.final is shared


def test_checkpoints(framework: str) -> None:
    lengths = [130, 0, 64]
    case = Case("kda", lengths)
    rows, offsets = [to(framework, x) for x in case.rows], to(framework, case.offsets)

    def state_after(n: int, tokens: int) -> numpy.ndarray:
        part = Case("kda", lengths)
        part.offsets = part.offsets.copy()
        cut = slice(part.offsets[n], part.offsets[n] + tokens)
        part.q, part.k, part.v, part.g, part.beta = (x[cut] for x in part.rows)
        part.offsets, part.initial = numpy.array([0, tokens]), part.initial[n : n + 1]
        return part.expected(initial=False)[1][0]

    chunks = deltarelay.forward("kda", *rows, seq_offsets=offsets, checkpoints="chunks", **KEY).checkpoint
    close(chunks, numpy.stack([state_after(0, t) for t in (0, 64, 128)] + [state_after(2, 0)]))
    every = deltarelay.forward("kda", *rows, seq_offsets=offsets, checkpoints=32, **KEY).checkpoint
    close(every, numpy.stack([state_after(0, t) for t in (32, 64, 96, 128)] + [state_after(2, t) for t in (32, 64)]))
    listed = deltarelay.forward(
        "kda",
        *rows,
        seq_offsets=offsets,
        checkpoints="list",
        checkpoint_offsets=to(framework, numpy.array([0, 1, 1, 2], numpy.int32)),
        checkpoint_positions=to(framework, numpy.array([48, 16], numpy.int32)),
        **KEY,
    ).checkpoint
    close(listed, numpy.stack([state_after(0, 48), state_after(2, 16)]))


def test_given_outputs_are_written_and_returned(framework: str) -> None:
    case = Case("gdn", [25])
    o, final = to(framework, numpy.zeros_like(case.v)), to(framework, numpy.zeros_like(case.initial))
    found = deltarelay.forward("gdn", *(to(framework, x) for x in case.rows), o=o, final=final, **KEY)
    assert found.o is o and found.final is final
    close(o, case.expected(initial=False)[0])
    close(final, case.expected(initial=False)[1])


def test_views_of_one_projection_are_read_in_place(framework: str) -> None:
    case = Case("gdn", [31], hqk=2, hv=2, dk=16, dv=16)
    whole = to(framework, numpy.concatenate([x.reshape(31, -1) for x in case.rows[:3]], axis=1))
    q, k, v = (whole[:, 32 * i : 32 * i + 32].reshape(31, 2, 16) for i in range(3))
    found = deltarelay.forward("gdn", q, k, v, *(to(framework, x) for x in case.rows[3:]))
    close(found.o, case.expected(initial=False)[0])
    assert deltarelay.last_call().copies == ()


def test_what_does_not_lie_right_is_copied_and_counted(framework: str) -> None:
    case = Case("kda", [31])
    q, k, v, g, beta = (to(framework, x) for x in case.rows)
    turned = to(framework, numpy.ascontiguousarray(case.k.transpose(2, 1, 0)))
    turned = turned.transpose(2, 1, 0) if framework == "numpy" else turned.permute(2, 1, 0)
    found = deltarelay.forward("kda", q, turned, v, g, beta)
    close(found.o, case.expected(initial=False)[0])
    assert deltarelay.last_call().copies == ("k",)
    deltarelay.forward("kda", q, k, v, g, beta)
    assert deltarelay.last_call().copies == ()


def test_expanded_tensors_are_copied(framework: str) -> None:
    case = Case("gdn", [16])
    case.beta = numpy.broadcast_to(case.beta[:1], case.beta.shape)
    q, k, v, g, _ = (to(framework, x) for x in case.rows)
    beta = case.beta if framework == "numpy" else to(framework, case.beta[:1]).expand(16, 2)
    close(deltarelay.forward("gdn", q, k, v, g, beta).o, case.expected(initial=False)[0])
    assert deltarelay.last_call().copies == ("beta",)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bits(dtype: str) -> None:
    if not has("torch"):
        pytest.skip("torch is not installed")
    import torch

    case = Case("kda", [70])
    rows = [torch.from_numpy(x).to(getattr(torch, dtype)) for x in case.rows]
    case.q, case.k, case.v, case.g, case.beta = (x.float().numpy() for x in rows)
    found = deltarelay.forward("kda", *rows, final=True, **KEY)
    assert found.o.dtype == getattr(torch, dtype) and found.final.dtype == torch.float32
    close(found.o, case.expected(initial=False)[0], 3e-2)
    close(found.final, case.expected(initial=False)[1], 3e-2)


def test_no_tokens_and_no_sequences_with_tokens(framework: str) -> None:
    case = Case("kda", [0, 0])
    found = deltarelay.forward(
        "kda",
        *(to(framework, x) for x in case.rows),
        seq_offsets=to(framework, case.offsets),
        initial=to(framework, case.initial),
        final=True,
        **KEY,
    )
    assert back(found.o).shape == (0, 2, 24)
    assert (back(found.final) == case.initial).all()
    batched = [to(framework, x.reshape(2, 0, *x.shape[1:])) for x in case.rows]
    assert back(deltarelay.forward("kda", *batched, initial=to(framework, case.initial), final=True, **KEY).final).shape


def test_segments_change_nothing_but_the_plan(framework: str) -> None:
    case = Case("kda", [500])
    rows = [to(framework, x) for x in case.rows]
    found = deltarelay.forward("kda", *rows, segments=4, final=True, **KEY)
    assert deltarelay.last_call().plan.summary["num_segments"] == 4
    close(found.o, case.expected(initial=False)[0])
    close(found.final, case.expected(initial=False)[1])


ERRORS = {
    "rule": ({"rule": "dplr"}, "rule: expected one of 'kda', 'gdn', found 'dplr'"),
    "axes": ({"q": (5,)}, r"q: expected \[B, T, HQK, DK\] or \[T, HQK, DK\], found \[5\]"),
    "k": ({"k": (9, 1, 16)}, r"k: expected \[10, 1, 16\] \(as q\), found \[9, 1, 16\]"),
    "heads": (
        {"q": (10, 3, 16), "k": (10, 3, 16)},
        "v: expected a number of heads that is a multiple of q's 3, found 2",
    ),
    "g": ({"g": (10, 2)}, r"g: expected \[10, 2, 16\]"),
    "beta": ({"beta": (10, 3)}, r"beta: expected \[10, 2\]"),
    "gate": ({"gate": "exp"}, "gate: expected one of 'log', 'linear', 'softplus', 'bounded', found 'exp'"),
    "bound": ({"gate": "bounded"}, "lower_bound: expected a number below 0"),
    "a_log": ({"gate": "softplus"}, "a_log: expected a tensor with gate='softplus', found None"),
    "unused": ({"a_log": (2,)}, "a_log: expected None with gate='log'"),
    "initial": ({"initial": (1, 2, 16, 23)}, r"initial: expected \[\*, 2, 24, 16\]"),
    "rows": ({"initial": (3, 2, 24, 16)}, "initial: expected 1 states"),
    "mask": ({"has_initial": (1,)}, "has_initial: expected None without initial"),
    "segments": ({"segments": "some"}, "segments: expected 'auto', 'off', a count or 'len:<tokens>'"),
    "checkpoints": ({"checkpoints": "all"}, "checkpoints: expected a number of tokens"),
    "backend": ({"backend": "tpu"}, "backend"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_name_the_argument(framework: str, name: str) -> None:
    changes, message = ERRORS[name]
    arguments = {"q": (10, 1, 16), "k": (10, 1, 16), "v": (10, 2, 24), "g": (10, 2, 16), "beta": (10, 2)}
    arguments = {"rule": "kda", **arguments, **changes}
    arguments = {n: to(framework, numpy.zeros(x, "f4")) if isinstance(x, tuple) else x for n, x in arguments.items()}
    with pytest.raises(deltarelay.Invalid, match=message):
        deltarelay.forward(**arguments)


def test_errors_of_types(framework: str) -> None:
    case = Case("kda", [10])
    q, k, v, g, beta = (to(framework, x) for x in case.rows)
    with pytest.raises(deltarelay.WrongType, match="k: expected fp32, found float64"):
        deltarelay.forward("kda", q, to(framework, case.k.astype(float)), v, g, beta)
    with pytest.raises(
        deltarelay.WrongType, match="beta: expected a torch.Tensor or a numpy.ndarray, found builtins.list"
    ):
        deltarelay.forward("kda", q, k, v, g, [1.0])
    with pytest.raises(TypeError, match="unexpected keyword argument 'l2_norm'"):
        deltarelay.forward("kda", q, k, v, g, beta, l2_norm=True)


def test_bf16_arrays() -> None:
    """NumPy has no bf16 of its own."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    case = Case("kda", [40])
    rows = [x.astype(ml_dtypes.bfloat16) for x in case.rows]
    found = deltarelay.forward("kda", *rows, final=True, final_dtype="bf16", **KEY)
    assert found.o.dtype == found.final.dtype == ml_dtypes.bfloat16
    for name, x in zip(("q", "k", "v", "g", "beta"), rows):
        setattr(case, name, x.astype("f4"))
    o, final = case.expected(initial=False)
    close(found.o.astype("f4"), o, 0.05)
    close(found.final.astype("f4"), final, 0.05)
