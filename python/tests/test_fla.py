"""FLA's functions under FLA's names: arguments, errors, results. No FLA needed."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import numpy
import pytest
from conftest import FRAMEWORKS, Case, back, close, to

import deltarelay
from deltarelay.fla import chunk_gated_delta_rule, chunk_gdn, chunk_kda
from deltarelay.fla._backend import OURS
from deltarelay.fla._signatures import HOOKS

FUNCTIONS = {"kda": chunk_kda, "gdn": chunk_gated_delta_rule}


def rows_of(case: Case, framework: str = "numpy") -> list[Any]:
    return [to(framework, x[None]) for x in case.rows]


@pytest.fixture
def rows() -> list[Any]:
    return rows_of(Case("kda", [70]))


def gdn_rows() -> list[Any]:
    return rows_of(Case("gdn", [70]))


@pytest.mark.parametrize("key", HOOKS, ids=".".join)
def test_signature_is_the_recorded_one(key: tuple[str, str]) -> None:
    function = OURS[key]
    parameters = inspect.signature(function).parameters.values()
    positional = {p.name: p.default for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD}
    assert list(positional.items()) == list(HOOKS[key].recorded.items())
    keyword_only = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    assert HOOKS[key].keywords.items() <= keyword_only.items()
    assert not any(p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in parameters)


def test_names() -> None:
    assert chunk_gdn is chunk_gated_delta_rule
    assert deltarelay.chunk_kda is chunk_kda and deltarelay.chunk_gdn is chunk_gdn


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("rule", ["kda", "gdn"])
@pytest.mark.parametrize("v_first", [False, True])
def test_packed(rule: str, framework: str, v_first: bool) -> None:
    case = Case(rule, [70, 0, 33])
    initial = numpy.ascontiguousarray(case.initial.swapaxes(-1, -2)) if v_first else case.initial
    o, final = FUNCTIONS[rule](
        *rows_of(case, framework),
        initial_state=to(framework, initial),
        output_final_state=True,
        state_v_first=v_first,
        cu_seqlens=to(framework, case.offsets),
        cu_seqlens_cpu=to(framework, case.offsets.astype("int64")),
    )
    expected_o, expected_final = case.expected()
    close(o, expected_o[None])
    close(final, expected_final.swapaxes(-1, -2) if v_first else expected_final)


def test_positional() -> None:
    """Each argument where FLA has it."""
    case = Case("kda", [70])
    q, k, v, g, beta = rows_of(case)
    flags = (
        0.5,
        case.initial,
        True,
        True,
        False,
        True,
        True,
        False,
        None,
        False,
        True,
        False,
        case.offsets,
        None,
        None,
        True,
        1,
    )
    names = list(HOOKS["kda", "chunk_kda"].recorded)[5:]
    assert len(flags) == len(names)
    a = chunk_kda(q, k, v, g, beta, *flags)
    b = chunk_kda(q, k, v, g, beta, **dict(zip(names, flags)))
    assert len(a) == len(b) == 3
    assert all(numpy.array_equal(x, y) for x, y in zip(a, b))
    q, k, v, g, beta = gdn_rows()
    flags = (0.5, case.initial, True, True, True, True, False, case.offsets, None, object(), None)
    names = list(HOOKS["gated_delta_rule", "chunk_gated_delta_rule"].recorded)[5:]
    assert len(flags) == len(names)
    a = chunk_gdn(q, k, v, g, beta, *flags)
    b = chunk_gdn(q, k, v, g, beta, **dict(zip(names, flags)))
    assert all(numpy.array_equal(x, y) for x, y in zip(a, b))


def test_forms_are_those_of_forward(rows: list[Any]) -> None:
    draw = numpy.random.default_rng(1)
    a_log, bias = draw.uniform(0, 1, (1, 1, 2, 1)).astype("f4"), draw.standard_normal(2 * 16).astype("f4")
    raw = {"use_gate_in_kernel": True, "A_log": a_log, "dt_bias": bias}
    pairs = [
        ({**raw}, {"gate": "softplus", "a_log": a_log, "dt_bias": bias}),
        ({**raw, "lower_bound": -4}, {"gate": "bounded", "lower_bound": -4.0, "a_log": a_log, "dt_bias": bias}),
        ({**raw, "lower_bound": -4, "A_log": None}, {"gate": "bounded", "lower_bound": -4.0, "dt_bias": bias}),
        ({"use_beta_sigmoid_in_kernel": True}, {"beta_form": "logit"}),
        ({"use_beta_sigmoid_in_kernel": True, "allow_neg_eigval": True}, {"beta_form": "twice_logit"}),
        ({"use_qk_l2norm_in_kernel": True, "scale": 2}, {"l2norm": True, "scale": 2.0}),
        ({"A_log": a_log, "dt_bias": bias}, {}),  # not read without use_gate_in_kernel
        ({"safe_gate": True, "lower_bound": -3}, {}),  # nor is the bound
        ({"disable_recompute": True, "chunk_size": 32, "max_num_seqs": 7, "use_graph": True}, {}),
    ]
    for fla, ours in pairs:
        o, final = chunk_kda(*rows, **fla)
        assert final is None
        assert numpy.array_equal(o, deltarelay.forward("kda", *rows, **ours).o), fla


def test_gates_below_minus_five_are_not_raised_by_safe_gate(rows: list[Any]) -> None:
    """FLA does not clamp precomputed gates, so neither do we."""
    rows[3] = rows[3] - 9
    assert numpy.array_equal(chunk_kda(*rows, safe_gate=True)[0], chunk_kda(*rows)[0])


@pytest.mark.skipif("not __import__('conftest').has('torch')", reason="torch is not installed")
def test_types() -> None:
    import torch

    case = Case("gdn", [70])
    rows = [x.bfloat16() for x in rows_of(case, "torch")]
    a_log = torch.zeros(2, dtype=torch.bfloat16)
    initial = torch.from_numpy(case.initial).half()
    o, final = chunk_gdn(*rows, initial_state=initial, output_final_state=True, use_gate_in_kernel=True, A_log=a_log)
    assert o.dtype == torch.bfloat16 and final.dtype == torch.float32
    with torch.no_grad():  # parameters of a model that is not frozen
        again, _ = chunk_gdn(*rows, initial_state=initial, use_gate_in_kernel=True, A_log=torch.nn.Parameter(a_log))
    assert torch.equal(o, again)
    with pytest.raises(deltarelay.Unsupported, match=r"^A_log: expected a tensor that does not require grad"):
        chunk_gdn(*rows, use_gate_in_kernel=True, A_log=torch.nn.Parameter(a_log))
    frozen = torch.nn.Parameter(a_log, requires_grad=False)
    assert torch.equal(chunk_gdn(*rows, initial_state=initial, use_gate_in_kernel=True, A_log=frozen)[0], o)


@pytest.mark.parametrize("offsets", [None, [0, 70, 70, 200]])
@pytest.mark.parametrize("graph", [False, True])
def test_states(offsets: list[int] | None, graph: bool) -> None:
    case = Case("kda", [200])
    packed = {"cu_seqlens": numpy.array(offsets)} if offsets else {}
    o, final, h = chunk_kda(*rows_of(case), return_intermediate_states=True, use_graph=graph, **packed)
    rows = 4 if not offsets else 5
    bound = -(-200 // 64) + 3 - 1  # FLA's, where lengths may change
    assert h.shape[2:] == (2, 16, 24) and h.shape[0] == 1 and o.shape == (1, 200, 2, 24) and final is None
    assert h.shape[1] == rows or (offsets and graph and h.shape[1] <= bound)
    assert not back(h)[0, 0].any()


REFUSED = [
    ("kda", {"cp_context": object()}, deltarelay.Unsupported, "^cp_context: expected None, found object"),
    ("gdn", {"cp_context": object()}, deltarelay.Unsupported, "^cp_context: expected None, found object"),
    ("kda", {"chunk_size": 16}, ValueError, "^chunk_size: expected 32 or 64, found 16"),
    ("gdn", {"chunk_size": 48}, ValueError, "^chunk_size: expected 16, 32 or 64, found 48"),
    (
        "kda",
        {"chunk_size": 32, "return_intermediate_states": True},
        deltarelay.Unsupported,
        "^chunk_size: expected 64 with",
    ),
    (
        "kda",
        {"allow_neg_eigval": True},
        ValueError,
        "^allow_neg_eigval: expected False without use_beta_sigmoid_in_kernel",
    ),
    (
        "gdn",
        {"allow_neg_eigval": True},
        ValueError,
        "^allow_neg_eigval: expected False without use_beta_sigmoid_in_kernel",
    ),
    (
        "kda",
        {"safe_gate": True, "use_gate_in_kernel": True, "lower_bound": -6},
        ValueError,
        "^lower_bound: expected -5 to 0",
    ),
    (
        "kda",
        {"safe_gate": True, "use_gate_in_kernel": True},
        ValueError,
        "^lower_bound: expected -5 to 0 .* found None",
    ),
    ("kda", {"use_gate_in_kernel": True}, ValueError, "^A_log: expected a tensor with use_gate_in_kernel=True"),
    ("gdn", {"use_gate_in_kernel": True}, ValueError, "^A_log: expected a tensor with use_gate_in_kernel=True"),
    (
        "kda",
        {"use_gate_in_kernel": True, "lower_bound": 1.0},
        ValueError,
        "^lower_bound: expected a number below 0, found 1.0",
    ),
    (
        "kda",
        {"use_gate_in_kernel": True, "A_log": numpy.zeros(3, "f4")},
        ValueError,
        r"^A_log: expected 2 elements \(HV\)",
    ),
    ("kda", {"initial_state": numpy.zeros((2, 2, 16, 24), "f4")}, ValueError, "^initial_state: expected 1 states"),
    ("kda", {"cu_seqlens": numpy.array([0])}, ValueError, "^cu_seqlens: expected at least 2 entries"),
    (
        "kda",
        {"cu_seqlens": numpy.array([0.0, 70.0])},
        (TypeError, ValueError),
        "^cu_seqlens: expected .*int32 or int64",
    ),
    (
        "kda",
        {"use_graph": True, "max_num_seqs": 2, "cu_seqlens": numpy.array([0, 70])},
        ValueError,
        "^cu_seqlens: expected 3 entries",
    ),
    ("kda", {"scale": "1"}, TypeError, "^scale: expected a number or None, found str"),
    ("kda", {"output_final_state": "yes"}, TypeError, "^output_final_state: expected True or False, found str"),
    ("kda", {"head_first": False}, TypeError, "unexpected keyword argument 'head_first'"),
    ("gdn", {"head_first": False}, DeprecationWarning, "^head_first: expected not to be given"),
    ("kda", {"chunk_indices": None}, TypeError, "unexpected keyword argument 'chunk_indices'"),
    ("gdn", {"lower_bound": -5.0}, TypeError, "unexpected keyword argument 'lower_bound'"),
    (
        "kda",
        {"state_v_first": True, "transpose_state_layout": True},
        ValueError,
        "^transpose_state_layout: expected not to be",
    ),
]


@pytest.mark.parametrize(("rule", "arguments", "error", "message"), REFUSED)
def test_refused(rule: str, arguments: dict[str, Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        FUNCTIONS[rule](*rows_of(Case(rule, [70])), **arguments)


def test_batch_with_offsets() -> None:
    rows = [numpy.concatenate([x, x]) for x in rows_of(Case("kda", [70]))]
    with pytest.raises(ValueError, match=r"^q: expected a batch of 1 with cu_seqlens, found 2"):
        chunk_kda(*rows, cu_seqlens=numpy.array([0, 70]))


def test_old_name_of_the_layout(rows: list[Any]) -> None:
    with pytest.warns(DeprecationWarning, match="renamed to state_v_first") as caught:
        _, final = chunk_kda(*rows, output_final_state=True, transpose_state_layout=True)
    assert final.shape == (1, 2, 24, 16)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert chunk_gdn(*gdn_rows(), None, None, True, transpose_state_layout=False)[1].shape == (1, 2, 16, 24)


def test_memory_does_not_grow(rows: list[Any]) -> None:
    from deltarelay.fla import _arguments, _kda

    for n in range(_arguments.MOST + 10):
        _kda._choose((float(n), False, False, False, False, False, False, None, False, False, 64), False)
    assert len(_kda._known) <= _arguments.MOST


@pytest.mark.skipif("not __import__('conftest').has('torch')", reason="torch is not installed")
def test_cost(capsys: pytest.CaptureFixture[str]) -> None:
    """Python above the plain binding, over an empty kernel. Printed; judged with a wide margin."""
    import time

    import overhead
    import torch

    from deltarelay import _call
    from deltarelay.fla import _kda

    if _call._core is None:
        pytest.skip("no extension here")
    rows = [torch.zeros(1, 1, 1, 16) for _ in range(4)] + [torch.zeros(1, 1, 1)]
    chunk_kda(*rows, None, None, True, True)
    key = (None, True, True, False, False, False, False, None, False, False, 64)
    settings, arguments = _kda._known[key].settings, (*rows, *(None,) * 15)
    calls = {
        "call": lambda: _call.call(settings, arguments),
        "chunk_kda": lambda: chunk_kda(*rows, None, None, True, True),
    }
    best = dict.fromkeys(calls, float("inf"))
    with overhead.EmptyKernel():
        for _ in range(200):
            for name, function in calls.items():
                start = time.perf_counter()
                for _ in range(30):
                    function()
                best[name] = min(best[name], (time.perf_counter() - start) / 30 * 1e6)
    with capsys.disabled():
        print(f"\n  torch, empty kernel, binding {best['call']:.1f} us, chunk_kda {best['chunk_kda']:.1f} us")
    assert best["chunk_kda"] - best["call"] < 20
