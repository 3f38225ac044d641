"""Messages of errors: each names the argument, what was expected and found, in the words of Python's callers."""

from __future__ import annotations

import ctypes
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
from conftest import Case, has, to

import deltarelay
from deltarelay import TensorSpec, _library, _problem, _settings, stages
from deltarelay._wording import in_python_words

SOURCES = Path(__file__).parents[2] / "src"
C_NAMES = re.compile(
    r"\b(problem|options|tensors|intermediates|chunks)\.\w|DR_[A-Z]|\bNULL\b|a pointer|\w+_qk\b|num_\w+ ="
)
HOST = Case("gdn", [100], hqk=2, hv=2, dk=16, dv=16)


def rows(framework: str = "numpy", rule: str = "gdn") -> dict[str, Any]:
    case = HOST if rule == "gdn" else Case("kda", [100], hqk=2, hv=2, dk=16, dv=16)
    return {name: to(framework, x) for name, x in zip(("q", "k", "v", "g", "beta"), case.rows)}


def is_good(error: BaseException, names: set[str]) -> bool:
    """Of this package, and "argument: expected ..., found ...", where the argument is one of Python's."""
    text = str(error)
    if text.startswith("no backend serves this problem; "):
        return isinstance(error, deltarelay.Unsupported) and not C_NAMES.search(text)
    head = re.match(r"(\w+)(\[\d+\])?( \([^)]*\))?: ", text)
    known = head is not None and head.group(1) in names
    told = " expected " in text and "found " in text
    return isinstance(error, deltarelay.Error) and known and told and not C_NAMES.search(text)


# ---- each keyword with each kind of nonsense


class Strange:
    """Equal to nothing, and with an attribute for nothing."""


def nonsense() -> dict[str, Any]:
    values: dict[str, Any] = {
        "None": None,
        "empty text": "",
        "text": "nonsense",
        "NUL": "cpu\0nonsense",
        "surrogate": "\ud800",
        "long text": "x" * 300,
        "bytes": b"cpu",
        "list": [],
        "dict": {},
        "tuple": (),
        "set": {1},
        "object": Strange(),
        "class": Strange,
        "function": len,
        "True": True,
        "-1": -1,
        "0": 0,
        "0.5": 0.5,
        "2**40": 2**40,
        "2**63": 2**63,
        "2**64 + 3": 2**64 + 3,
        "2**70": 2**70,
        "10**5000": 10**5000,
        "1e300": 1e300,
        "-1e-300": -1e-300,
        "nan": float("nan"),
        "inf": float("inf"),
        "complex": 1j,
        "int64": numpy.int64(-3),
        "float32": numpy.float32(-0.5),
        "float16": numpy.float16("nan"),
        "bool_": numpy.bool_(True),
        "str_": numpy.str_("nonsense"),
        "array of no axes": numpy.array(0.125),
        "array of objects": numpy.array([None, object()]),
        "array of text": numpy.array(["a"]),
        "array of nine axes": numpy.zeros((1,) * 9, numpy.float32),
        "empty array": numpy.zeros(0, numpy.float32),
        "spec": TensorSpec((1,), "fp32"),
    }
    if has("torch"):
        import torch

        values |= {
            "torch number": torch.tensor(0.125),
            "torch list": torch.tensor([1, 2]),
            "torch 2-D": torch.zeros(2, 2, dtype=torch.int64),
            "torch dtype": torch.bfloat16,
            "torch nine axes": torch.zeros((1,) * 9),
            "torch empty": torch.zeros(0),
        }
    return values


FORWARD = [*inspect.signature(deltarelay.forward).parameters]
NONSENSE = nonsense()
# What some argument may be; everything else has to be refused by it.
MAY_BE = {
    "None": {name for name, p in inspect.signature(deltarelay.forward).parameters.items() if p.default is None},
    "True": {"l2norm", "final", "invariant", "threads", "segments", "null_index", "scale"},
    "bool_": {"l2norm", "invariant", "threads", "segments", "null_index", "scale"},
    "0": {"l2norm", "invariant", "late_lengths", "threads", "null_index", "scale"},
    "-1": {"scale", "null_index", "gate_floor"},
    "0.5": {"scale"},
    "int64": {"scale", "null_index", "gate_floor"},
    "float32": {"scale", "gate_floor"},
    "2**40": {"scale", "null_index", "segments"},
    "2**63": {"scale"},
    "2**64 + 3": {"scale"},
    "2**70": {"scale"},
    "empty text": {"backend", "variant", "isa", "policy"},
    "-1e-300": {"scale"},
}


@pytest.mark.usefixtures("binding")
@pytest.mark.parametrize("name", FORWARD)
def test_every_keyword_refuses_nonsense_by_name(framework: str, name: str) -> None:
    names = {*FORWARD, "cuda"}
    for kind, value in NONSENSE.items():
        arguments = {"rule": "gdn", **rows(framework), name: value}
        if name == "checkpoints" and kind == "2**40":  # is one: larger than the sequence
            continue
        try:
            deltarelay.forward(**arguments)
            assert name in MAY_BE.get(kind, ()), f"{name}={kind} was taken"
        except Exception as error:
            assert is_good(error, names), f"{name}={kind}: {type(error).__name__}: {error}"
            assert name not in ("q", "k", "v", "g", "beta") or str(error).split(":")[0] in FORWARD


@pytest.mark.parametrize("name", FORWARD)
def test_plan_and_explain_refuse_nonsense_by_name(name: str) -> None:
    for kind, value in NONSENSE.items():
        for function in (deltarelay.plan, deltarelay.explain):
            arguments = {"rule": "gdn", **rows(), name: value}
            try:
                function(**arguments)
            except Exception as error:
                assert is_good(error, set(FORWARD)), f"{name}={kind}: {type(error).__name__}: {error}"
            else:
                of_machine = name == "isa" and function is deltarelay.explain
                far = name == "checkpoints" and kind == "2**40"
                assert name in MAY_BE.get(kind, ()) or of_machine or far, f"{name}={kind} was taken"


def stage_calls() -> dict[str, dict[str, Any]]:
    x = rows()
    local = stages.chunk_local("gdn", **x)
    solved = {"w": local.w, "u": local.u, "k_to_end": local.k_to_end, "gate_sums": local.gate_sums}
    passed = stages.state_pass("gdn", **solved, final=True)
    return {
        "chunk_local": x,
        "state_pass": {**solved, "final": True},
        "outputs": {"v_new": passed.v_new, "states": passed.states, "q": x["q"], "k": x["k"], "g": x["g"]},
        "summary": {name: x[name] for name in ("k", "v", "g", "beta")},
        "carry": {"summaries": stages.summary("gdn", **{name: x[name] for name in ("k", "v", "g", "beta")}).summaries},
    }


@pytest.mark.parametrize("stage", ["chunk_local", "state_pass", "outputs", "summary", "carry"])
def test_every_keyword_of_a_stage_refuses_nonsense_by_name(stage: str) -> None:
    function = getattr(stages, stage)
    given = stage_calls()[stage]
    names = {*inspect.signature(function).parameters, "w", "u"}
    for name in inspect.signature(function).parameters:
        for kind, value in NONSENSE.items():
            try:
                function(**{"rule": "gdn", **given, name: value})
            except Exception as error:
                assert is_good(error, names), f"{stage}: {name}={kind}: {type(error).__name__}: {error}"
            else:  # parameters of a gate that is not read are ignored
                assert name in ("a_log", "dt_bias") or not kind.startswith(
                    ("torch", "array", "object", "10**", "nan")
                ), f"{name}={kind}"


# ---- numbers


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("threads", 2**40),
        ("threads", 2**32 + 1),
        ("segments", 2**64 + 3),
        ("checkpoints", 2**64 + 16),
        ("null_index", 2**64 + 3),
        ("scale", 1e39),
        ("lower_bound", -1e39),
        ("gate_floor", -1e-60),
    ],
)
def test_numbers_that_the_library_cannot_hold(name: str, value: Any) -> None:
    more = {"gate": "bounded"} if name == "lower_bound" else {}
    with pytest.raises(deltarelay.Invalid, match=rf"^{name}: expected .*, found {re.escape(str(value))}$"):
        deltarelay.forward("gdn", **rows(), **more, **{name: value})


def test_a_number_counts_by_its_value_and_not_by_what_was_called_before() -> None:
    """Settings are found by equality, so 1, 1.0 and True have to mean the same whichever comes first."""
    kinds = [1, 1.0, True, numpy.int64(1), numpy.float32(1), numpy.bool_(True)]
    zeros = [0, 0.0, -0.0, False, numpy.int64(0), numpy.float16(0)]
    for name, values in {
        "threads": [*kinds, *zeros],
        "segments": kinds,
        "l2norm": [*kinds, *zeros],
        "null_index": [*kinds, *zeros],
        "scale": [*kinds, *zeros],
        "invariant": [*kinds, *zeros],
        "checkpoints": kinds,
    }.items():

        def outcome(value: Any, name: str = name) -> str:
            try:
                return repr(_settings.settings(*_settings.Values("gdn", **{name: value})))
            except deltarelay.Error as error:
                return type(error).__name__

        for first in values:
            alone = {}
            for value in values:
                _settings._known.clear()
                alone[id(value)] = outcome(value)
            _settings._known.clear()
            outcome(first)
            assert {id(value): outcome(value) for value in values} == alone, (name, first)
    assert all(type(x) in (str, int, float, bool, type(None)) for key in _settings._known for x in key)


def test_minus_zero_is_zero() -> None:
    _settings._known.clear()
    assert str(_settings.settings(*_settings.Values("gdn", scale=-0.0)).scale) == "0.0"


@pytest.mark.skipif(not has("torch"), reason="torch is not installed")
def test_a_tensor_is_no_scale() -> None:
    """Found by its identity, it would count with the number it had in the first call."""
    import torch

    scale = torch.tensor(0.125)
    with pytest.raises(deltarelay.WrongType, match=r"scale: expected .*, found torch.Tensor .*scale.item\(\)"):
        deltarelay.forward("gdn", **rows("torch"), scale=scale)
    for value in (numpy.float64(0.125), numpy.float16(0.125)):
        deltarelay.forward("gdn", **rows(), scale=value)


def test_bounds_are_those_of_the_library() -> None:
    def found(**changes: Any) -> str:
        problem = _problem._abi.Problem(rule=2, num_seqs=1, seq_len=64, heads_qk=1, heads_v=1, dk=16, dv=16)
        options = _problem._abi.Options()
        for name, value in changes.items():
            setattr(options if name == "threads" else problem, name, value)
        status = _library.library().dr_backend_check(0, ctypes.byref(problem), ctypes.byref(options))
        return _library.last_error() if status == 1 else ""

    for name, most in {
        "dk": _problem.MOST_DK,
        "dv": _problem.MOST_DV,
        "heads_v": _problem.MOST_HEADS,
        "num_seqs": _problem.MOST_SEQUENCES,
        "threads": _settings.MOST_THREADS,
    }.items():
        assert found(**{name: most}) == ""
        assert f"to {most}, found {most + 1}" in found(**{name: most + 1})


# ---- every rule that a caller can reach


def overlapping(shape: tuple[int, ...], strides: tuple[int, ...]) -> numpy.ndarray:
    memory = numpy.zeros(1 << 16, numpy.float32)
    return numpy.lib.stride_tricks.as_strided(memory, shape, [4 * stride for stride in strides])


def states(count: int) -> numpy.ndarray:
    return numpy.zeros((count, 2, 16, 16), numpy.float32)


def ints(*values: int) -> numpy.ndarray:
    return numpy.array(values, numpy.int32)


def shared_pools() -> dict[str, Any]:
    pool = states(4)
    indices = {"initial_index": ints(0, 2), "final_index": ints(1, 2)}
    return {"initial": pool[:3], "final": pool[1:], **indices, "seq_offsets": ints(0, 50, 100)}


def two_types() -> dict[str, Any]:
    pool = states(2)
    return {"initial": pool[:1], "final": pool.view(numpy.float16)[:1, :, :, :16]}


RULES: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "one slot twice": (
        lambda: {"final": states(3), "final_index": ints(1, 1), "seq_offsets": ints(0, 50, 100)},
        r"^final_index\[1\]: expected a slot that no other row writes, found 1 a second time",
    ),
    "slot": (
        lambda: {"initial": states(2), "initial_index": ints(5)},
        r"^initial_index\[0\]: expected a slot below 2, the states of the pool, or a null slot, found 5",
    ),
    "aliasing": (
        lambda: (lambda x: {"v": x, "o": x})(HOST.v),
        "^o: expected memory of its own, found memory shared with v",
    ),
    "pools": (shared_pools, r"^initial_index\[1\]: expected .*, found 2, which shares memory with final"),
    "types of one pool": (two_types, "^final: expected .*"),
    "late offsets": (
        lambda: {"seq_offsets": ints(0, 101), "late_lengths": True},
        r"^seq_offsets\[1\]: expected at most 100, the tokens of this call, found 101",
    ),
    "offsets": (lambda: {"seq_offsets": ints(0, 60, 50)}, r"^seq_offsets\[2\]: expected at least 60, .* found 50"),
    "host offsets": (lambda: {"host_offsets": ints(0, 101)}, r"^host_offsets\[1\]: expected at most 100, .* found 101"),
    "both offsets": (
        lambda: {"host_offsets": ints(1, 50), "seq_offsets": ints(0, 100)},
        r"^host_offsets\[0\]: expected 0, found 1",
    ),
    "few checkpoints": (
        lambda: {"checkpoints": 16, "checkpoint": states(1)},
        "^checkpoint: expected at least 6 rows, found 1",
    ),
    "few late checkpoints": (
        lambda: {"checkpoints": 16, "checkpoint": states(1), "seq_offsets": ints(0, 100), "late_lengths": True},
        "^checkpoint: expected at least 6 .*, found 1",
    ),
    "positions": (
        lambda: {"checkpoints": "list", "checkpoint_offsets": ints(0, 1), "checkpoint_positions": ints(7)},
        r"^checkpoint_positions\[0\]: expected a multiple of 16 above 0 and .*, found 7",
    ),
    "list": (
        lambda: {"checkpoints": "list", "checkpoint_offsets": ints(1, 1), "checkpoint_positions": ints(16)},
        r"^checkpoint_offsets\[0\]: expected 0, found 1",
    ),
    "segments": (
        lambda: {"segments": "len:7"},
        "^segments: expected a length that is a multiple of .*, found 'len:7'$",
    ),
    "count, invariant": (lambda: {"segments": 3, "invariant": True}, "^segments: .* with invariant=True .*, found 3$"),
    "policy": (lambda: {"policy": "x"}, "^policy: expected one of deltarelay, fla, .*, found 'x'$"),
    "policy, segments": (lambda: {"policy": "fla", "segments": 2}, "^policy: expected .*, found 'fla'$"),
    "policy, late": (
        lambda: {"policy": "flashkda-pr9", "late_lengths": True, "seq_offsets": ints(0, 100)},
        "^policy: ",
    ),
    "backend": (lambda: {"backend": "cuda"}, "^backend: expected one of .*cpu.*, found 'cuda'$"),
    "isa": (lambda: {"isa": "avx9"}, "^isa: expected one that this machine has .*, found 'avx9'$"),
    "variant": (lambda: {"variant": "x"}, "^variant: expected one of .*fused.*, found 'x'$"),
    "a variant elsewhere": (lambda: {"variant": "fused"}, "cpu: variant: has none, found fused"),
    "math": (lambda: {"math": "tf32"}, "cpu: math: takes default, found tf32"),
    "carry, l2norm": (
        lambda: {"carry": "truncated"},
        "^carry: expected 'exact' with l2norm=False .*found 'truncated'$",
    ),
    "carry, beta": (
        lambda: {"carry": "truncated", "l2norm": True},
        "^carry: expected 'exact' with beta_form='value' .*, found 'truncated'$",
    ),
    "log decay": (lambda: {"carry_log_decay": -5}, "^carry_log_decay: expected None with carry='exact', found -5.0$"),
    "far log decay": (
        lambda: {"carry": "truncated", "l2norm": True, "beta_form": "logit", "carry_log_decay": -90},
        "^carry_log_decay: expected a number from -80 to below 0, found -90$",
    ),
    "floor": (
        lambda: {"gate": "softplus", "a_log": numpy.zeros(2, "f4"), "gate_floor": -5},
        "^gate_floor: expected None with gate='softplus', found -5.0$",
    ),
    "checkpoints": (lambda: {"checkpoints": 10}, "^checkpoints: expected a .*multiple of 16, .*, found 10$"),
    "key channels": (
        lambda: {"q": numpy.zeros((100, 2, 257), "f4"), "k": numpy.zeros((100, 2, 257), "f4")},
        r"^q: expected 1 to 256 key channels \(DK\), found 257$",
    ),
    "value channels": (
        lambda: {"v": numpy.zeros((100, 2, 513), "f4")},
        r"^v: expected 1 to 512 value channels \(DV\), found 513$",
    ),
    "stride": (
        lambda: {"q": overlapping((100, 2, 16), (8, 16, 1))},
        r"^q \(stride of its \w+\): expected at least \d+, the elements inside one step, found \d+$",
    ),
    "states' stride": (
        lambda: {"seq_offsets": ints(0, 50, 100), "initial": overlapping((2, 2, 16, 16), (64, 256, 16, 1))},
        r"^initial \(stride of its \w+\): expected at least \d+, .*found \d+$",
    ),
}


@pytest.mark.usefixtures("binding")
@pytest.mark.parametrize("name", RULES)
def test_every_rule_in_the_callers_words(name: str) -> None:
    change, message = RULES[name]
    with pytest.raises(deltarelay.Error, match=message) as caught:
        deltarelay.forward("gdn", **{**rows(), **change()})
    assert not C_NAMES.search(str(caught.value))


@pytest.mark.parametrize("rule", ["kda", "gdn"])
@pytest.mark.parametrize(
    "change", [{}, {"dtype": "fp32"}, {"dk": 64}, {"dv": 640}, {"dv": 64}, {"alignment": 4}, {"padding": 4}]
)
def test_reasons_of_backends(rule: str, change: dict[str, Any]) -> None:
    dk, dv, dtype = change.get("dk", 128), change.get("dv", 128), change.get("dtype", "bf16")
    shapes = {"q": (64, 2, dk), "k": (64, 2, dk), "v": (64, 2, dv), "beta": (64, 2)}
    shapes["g"] = (64, 2, dk) if rule == "kda" else (64, 2)

    def spec(shape: tuple[int, ...]) -> TensorSpec:
        padding = change.get("padding", 0)
        strides = (shape[1] * shape[2] + padding, shape[2], 1) if len(shape) == 3 else None
        return TensorSpec(shape, dtype, "h200", strides=strides, alignment=change.get("alignment", 16))

    arguments = {name: spec(shape) for name, shape in shapes.items()}
    try:
        answers = deltarelay.explain(rule, **arguments, o_dtype="fp32")
    except deltarelay.Invalid as error:
        assert is_good(error, set(FORWARD))
        return
    for name, reason in answers.items():
        assert not C_NAMES.search(reason), (name, reason)
        assert not re.search(r"\b(dk|dv|dtype_o|heads_v|layout_\w+|as dtype)\b", reason), (name, reason)


def test_no_field_of_the_header_is_left() -> None:
    """Every argument that the library's sources name, with its constants, as a message."""
    names, constants = set(), set()
    for file in [*SOURCES.glob("problem/*.cpp"), *SOURCES.glob("plan/*.cpp"), *SOURCES.glob("kernels/cuda/**/*.cpp")]:
        text = file.read_text(encoding="utf-8")
        names |= set(re.findall(r'"((?:problem|options|tensors|chunks|intermediates)\.[\w.]+)', text))
        constants |= set(re.findall(r"\bDR_[A-Z0-9_]+\b", " ".join(re.findall(r'"[^"\n]*"', text))))
    assert len(names) > 50 and len(constants) > 20
    pools = [
        f"problem.{pool}.{part}"
        for pool in ("initial", "final", "checkpoint")
        for part in ("use", "num_slots", "dtype")
    ]
    strides = [f"problem.layout_{name}.{axis}" for name in "qkvog" for axis in ("token", "head", "alignment_bytes")]
    for name in [*names, *pools, *strides]:
        for constant in constants:
            message = in_python_words(f"{name}: expected {constant} (1) or a pointer, found NULL")
            assert not C_NAMES.search(message), message
            assert re.match(r"[\w ]+( \([\w ]+\))?: expected ", message), message


def test_what_the_caller_wrote_stays() -> None:
    for text in ("options.backend", "DR_KDA", "a pointer"):
        with pytest.raises(deltarelay.Invalid, match=re.escape(f"found '{text}'")):
            deltarelay.forward("gdn", **rows(), backend=text)


# ---- beside the calls


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((-1, 2),), "shape: expected integers of at least 0, found -1"),
        (((2**63,),), "shape: expected integers of at most"),
        (((2**40, 2**40),), "shape: expected a tensor of at most"),
        ((5,), "shape: expected integers, found 5"),
        (("12",), "shape: expected integers, found '12'"),
        (((1.5,),), "shape: expected integers"),
        (((1, 2), "fp8"), "dtype: expected one of 'fp32', .*, found 'fp8'"),
        (((1, 2), None), "dtype: expected one of 'fp32', .*, found None"),
        (((1, 2), []), "dtype: expected one of 'fp32'"),
        (((1, 2), "fp32", 0), "device: expected a name .*, found 0"),
    ],
)
def test_specs(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises((deltarelay.Invalid, deltarelay.WrongType), match=message):
        TensorSpec(*arguments)


def test_more_of_specs() -> None:
    with pytest.raises(deltarelay.Invalid, match="strides: expected one for each of the 2 axes of shape, found 1"):
        TensorSpec((1, 2), strides=(1,))
    for alignment in (0, 3, 2**40):
        with pytest.raises(deltarelay.Invalid, match="alignment: expected"):
            TensorSpec((1, 2), alignment=alignment)
    assert TensorSpec((), strides=()).view.strides == ()
    assert TensorSpec((numpy.int64(2), 3), "bf16").view.shape == (2, 3)
    with pytest.raises(deltarelay.Invalid, match="device: expected one of cpu, .*, found 'h20'"):
        deltarelay.plan("gdn", *[TensorSpec((4, 1, 64), "bf16", "h20")] * 3, *[TensorSpec((4, 1), "bf16", "h20")] * 2)


def test_forms_and_pictures() -> None:
    plan = deltarelay.plan("gdn", **rows())
    for form in ("x", None, [], 0):
        with pytest.raises(deltarelay.Error, match="form: expected one of 'text', 'json', 'signature', 'svg', found"):
            plan.describe(form)
    for value in ("x", None, 5, []):
        with pytest.raises(deltarelay.WrongType, match="plan: expected a Plan or what its to_dict"):
            deltarelay.plot.plan_svg(value)
        with pytest.raises(deltarelay.WrongType, match="plan: expected a Plan or what its to_dict"):
            deltarelay.plot.plan(value)
    with pytest.raises(deltarelay.Error, match="results: expected"):
        deltarelay.plot.bench(5)
    with pytest.raises(deltarelay.Error, match="results: expected a JSON file, found"):
        deltarelay.plot.bench(__file__)
    with pytest.raises(deltarelay.Error, match="unit: expected one of 'ms', 'token_heads_per_s', found"):
        deltarelay.plot.bench({"rows": []}, unit=[])
    with pytest.raises(deltarelay.Error, match="cases: expected a name"):
        deltarelay.plot.bench({"rows": []}, cases=5)


def test_wishes_of_a_stage_are_known_by_value() -> None:
    x = rows()
    for wanted in (["w", "u"], ("u", "w"), {"w", "u"}, {"w": 1, "u": 2}):
        found = stages.chunk_local(
            "gdn", k=x["k"], v=x["v"], g=x["g"], beta=x["beta"], wanted=wanted, chunk=numpy.int64(64)
        )
        assert found.w is not None and found.u is not None and found.aqk is None
