"""What `deltarelay.stages` refuses, and how it says so. Nothing runs here."""

from __future__ import annotations

import inspect
import re
from typing import Any

import numpy
import pytest
from conftest import Case, has

import deltarelay
from deltarelay import _abi, _stage_request, stages

CASE = Case("kda", [70], hqk=1, hv=2)  # DK = 16, DV = 24
ROWS = dict(zip(("q", "k", "v", "g", "beta"), CASE.rows))
PASS = {
    "w": numpy.zeros((70, 2, 16), numpy.float32),
    "u": numpy.zeros((70, 2, 24), numpy.float32),
    "k": ROWS["k"],
    "g": ROWS["g"],
}
OUT = {
    "v_new": PASS["u"],
    "states": numpy.zeros((2, 2, 24, 16), numpy.float32),
    "q": ROWS["q"],
    "k": ROWS["k"],
    "g": ROWS["g"],
}
MAPS = numpy.zeros((3, 2, 40, 16), numpy.float32)


def other(shape: tuple[int, ...], dtype: str = "float32") -> numpy.ndarray:
    return numpy.zeros(shape, dtype)


@pytest.mark.parametrize(
    ("stage", "change", "message"),
    [
        (stages.chunk_local, {"wanted": "states"}, "wanted: expected names of aqk, inverse, w, .*, found 'states'"),
        (stages.chunk_local, {"wanted": ()}, "wanted: expected at least one of aqk, .*, found none"),
        (stages.chunk_local, {"chunk": 48}, "chunk: expected 16, 32 or 64, found 48"),
        (stages.chunk_local, {"dtype": "fp8"}, "dtype: expected one of None, 'fp32', 'bf16', 'fp16', found 'fp8'"),
        (stages.chunk_local, {"beta": None}, "beta: expected a tensor, found None"),
        (stages.chunk_local, {"g": None}, "g: expected a tensor, found None"),
        (stages.chunk_local, {"wanted": "w"}, "q: expected None .*, found a tensor"),
        (stages.chunk_local, {"gate_sums": ROWS["g"]}, "wanted: expected nothing that is given, found 'gate_sums'"),
        (stages.chunk_local, {"k": ROWS["k"][:60]}, r"k: expected \[70\] ahead of its heads, as q has, found \[60\]"),
        (stages.chunk_local, {"k": other((70, 2, 16))}, "k: expected .* with HQK = 1 as q has, found"),
        (stages.chunk_local, {"k": other((70, 1, 8))}, "k: expected .* with DK = 16 as q has, found"),
        (stages.chunk_local, {"g": other((70, 2))}, r"g: expected \[B, T, HV, DK\] or \[T, HV, DK\], found \[70, 2\]"),
        (stages.chunk_local, {"beta": other((70, 3))}, "beta: expected .* with HV = 2 as v has, found"),
        (stages.chunk_local, {"q": other((70, 1, 16), "float64")}, "q: expected fp32 or bf16 or fp16, found float64"),
        (stages.chunk_local, {"k": other((70, 1, 16), "float16")}, "k: expected fp32, found fp16"),
        (stages.chunk_local, {"a_log": other((2,))}, "a_log: expected None with gate='log'"),
        (stages.chunk_local, {"gate": "softplus"}, "a_log: expected a tensor with gate='softplus', found None"),
        (stages.chunk_local, {"seq_offsets": numpy.array([0])}, "seq_offsets: expected at least 2 entries, found 1"),
        (stages.chunk_local, {"seq_offsets": numpy.array([0, 99])}, "at most 70, the tokens of this call, found 99"),
        (stages.chunk_local, {"late_lengths": True}, "late_lengths: expected seq_offsets and no host_offsets"),
        (stages.chunk_local, {"report": other((2,), "int32")}, r"report: expected \[1\] \(one word\), found \[2\]"),
        (stages.chunk_local, {"segments": "some"}, "segments: expected 'auto', 'off', a count or 'len:<tokens>'"),
        (stages.state_pass, {"w": None}, "w: expected a tensor, found None"),
        (stages.state_pass, {"k_to_end": PASS["w"]}, "k: expected None .*, found a tensor"),
        (stages.state_pass, {"u": other((70, 3, 24))}, "u: expected .* with HV = 2 as g has, found"),
        (stages.state_pass, {"w": other((70, 2, 16), "float16")}, "u: expected fp16, found fp32"),
        (stages.state_pass, {"wanted": (), "final": None}, "wanted: expected at least one of states, v_new, or"),
        (stages.state_pass, {"initial": other((1, 2, 16, 24))}, r"initial: expected \[\*, 2, 24, 16\]"),
        (stages.state_pass, {"initial": other((2, 2, 24, 16))}, "initial: expected 1 states, one a sequence, found 2"),
        (stages.state_pass, {"final_index": other((1,), "int32")}, "final_index: expected None without a pool final"),
        (stages.outputs, {"states": None}, "states: expected a tensor, found None"),
        (stages.outputs, {"states": other((2, 2, 16, 24))}, "states: expected .* with DV = 24 as v_new has, found"),
        (stages.outputs, {"aqk": other((70, 2, 32))}, "k: expected None .*, found a tensor"),
        (stages.outputs, {"aqk": other((70, 2, 32)), "k": None}, "aqk: expected .* with C = 64 as chunk has, found"),
        (stages.outputs, {"o": other((70, 2, 16))}, "o: expected .* with DV = 24 as v_new has, found"),
        (stages.outputs, {"o": other((70, 2, 48))[..., ::2]}, "o: expected contiguous inner axes"),
        (stages.carry, {"summaries": other((3, 2, 16, 16))}, r"summaries: expected \[.., DV \+ DK, DK\], found"),
        (stages.carry, {"summaries": other((3, 2, 40, 16), "float16")}, "summaries: expected fp32, found fp16"),
        (stages.carry, {"wanted": "w"}, "wanted: expected names of states, composed, found 'w'"),
        (stages.summary, {"w": PASS["w"]}, "u: expected a tensor beside w, found None"),
        (stages.summary, {"gate_sums": ROWS["g"], "g": None}, "gate_sums: expected None without w and u"),
    ],
)
def test_message(stage: Any, change: dict[str, Any], message: str) -> None:
    given: dict[Any, dict[str, Any]] = {
        stages.chunk_local: ROWS,
        stages.state_pass: {**PASS, "final": True},
        stages.outputs: OUT,
        stages.summary: {name: ROWS[name] for name in ("k", "v", "g", "beta")},
        stages.carry: {"summaries": MAPS},
    }
    with pytest.raises((deltarelay.Invalid, deltarelay.WrongType), match=message):
        stage("kda", **{**given[stage], **change})


def test_other_rules() -> None:
    with pytest.raises(deltarelay.Invalid, match="rule: expected one of 'kda', 'gdn', found 'gla'"):
        stages.carry("gla", summaries=MAPS)
    with pytest.raises(deltarelay.Invalid, match=r"g: expected \[B, T, HV\] or \[T, HV\], found \[70, 2, 16, 1\]"):
        stages.chunk_local("gdn", **{**ROWS, "g": ROWS["g"][..., None]})
    q = numpy.repeat(ROWS["q"], 3, axis=1)
    with pytest.raises(deltarelay.Invalid, match="number of heads that is a multiple of the 3 of q and k, found 2"):
        stages.chunk_local("kda", **{**ROWS, "q": q, "k": q})
    with pytest.raises(deltarelay.Invalid, match="expected a batch of 1 with seq_offsets, found 2"):
        stages.carry("kda", summaries=MAPS[None].repeat(2, axis=0), seq_offsets=numpy.array([0, 3]))
    with pytest.raises(TypeError, match="unexpected keyword argument 'checkpoints'"):
        stages.outputs("kda", **OUT, checkpoints=64)


def test_no_tensors_at_all() -> None:
    with pytest.raises(deltarelay.Invalid, match="q: expected a tensor, found None"):
        stages.chunk_local("kda")
    with pytest.raises(deltarelay.Invalid, match="summaries: expected a tensor, found None"):
        stages.carry("kda", summaries=None)


def test_kinds_of_tensors() -> None:
    with pytest.raises(
        deltarelay.WrongType, match="k: expected a torch.Tensor or a numpy.ndarray, found builtins.list"
    ):
        stages.chunk_local("kda", **{**ROWS, "k": [1, 2]})
    with pytest.raises(deltarelay.WrongType, match="k: expected a plain array, found a masked array"):
        stages.chunk_local("kda", **{**ROWS, "k": numpy.ma.masked_array(ROWS["k"])})
    o = other((70, 2, 24))
    o.flags.writeable = False
    with pytest.raises(deltarelay.WrongType, match="o: expected an array that can be written, found a read-only one"):
        stages.outputs("kda", **OUT, o=o)


@pytest.mark.skipif(not has("torch"), reason="torch is not installed")
def test_kinds_of_torch_tensors() -> None:
    import torch

    rows = {name: torch.from_numpy(value) for name, value in ROWS.items()}

    def refused(message: str, kind: type[Exception] = deltarelay.WrongType, **change: Any) -> None:
        with pytest.raises(kind, match=message):
            stages.chunk_local("kda", **{**rows, **change})

    refused("k: expected a tensor of the same library as q, found numpy.ndarray", k=ROWS["k"])
    refused("k: expected a dense tensor, found layout torch.sparse_coo", k=rows["k"].to_sparse())
    refused("k: expected a plain tensor in memory, found a meta one", k=rows["k"].to("meta"))
    refused("k: expected fp32, found complex64", k=rows["k"].to(torch.complex64))
    wants = rows["k"].clone().requires_grad_()
    refused("k: expected a tensor that does not require grad, found one that does", deltarelay.Unsupported, k=wants)
    refused("q: expected a plain tensor in memory", q=type("Mine", (torch.Tensor,), {})(rows["q"]))
    with pytest.raises(Exception, match="expected a tensor outside of torch.func's transforms"):
        torch.func.vmap(lambda k: stages.chunk_local("kda", **{**rows, "k": k}).w)(rows["k"][None])


def test_given_and_wanted_as_in_the_library() -> None:
    """What may be given and wanted, and must be, is what the library says: all combinations, asked of its checks."""
    import ctypes
    import itertools

    from deltarelay import _library

    library = _library.library()
    reference = library.dr_backend_count() - 1

    def library_says(operation: str, given: set[str], wanted: tuple[str, ...]) -> bool:
        bits = {name: 1 << index for index, name in enumerate(_abi.INTERMEDIATES)}
        chunks = _abi.Chunks(given=sum(bits[n] for n in given), wanted=sum(bits[n] for n in wanted))
        if "states" in given or "states" in wanted:
            chunks.states_layout = 1
        problem = _abi.Problem(rule=1, op=_abi.OPERATIONS[operation], num_seqs=1, num_tokens=64, seq_len=64)
        problem.heads_qk = problem.heads_v = problem.dk = problem.dv = 1
        problem.chunks = ctypes.addressof(chunks)
        if operation in ("state_pass", "carry"):
            problem.final = _abi.State(use=1, layout=1)
        return library.dr_backend_check(reference, ctypes.byref(problem), None) != 1  # 1: invalid

    for operation in _abi.OPERATIONS:
        everything = _abi.INTERMEDIATES
        for given in (set(c) for n in range(4) for c in itertools.combinations(everything, n)):
            for wanted in [(), *((name,) for name in everything)]:
                views: dict[str, Any] = dict.fromkeys(given)
                try:
                    wish = _stage_request.Wish(operation, wanted, 0 if operation == "carry" else 64)
                    _stage_request._check_wish(wish)
                    _stage_request._check_presence(wish, {**views, **_read(operation, given, wanted)}, True)
                    here = given <= set(inspect.signature(getattr(stages, operation)).parameters)
                    here = here and not (operation == "summary" and not wanted)  # always wanted there
                except deltarelay.Invalid:
                    here = False
                assert here == library_says(operation, given, wanted), (operation, given, wanted)


def _read(operation: str, given: set[str], wanted: tuple[str, ...]) -> dict[str, Any]:
    return {name: None for name, is_read in _stage_request.reads(operation, given, wanted).items() if is_read}


@pytest.mark.parametrize("name", stages.__all__[1:])
def test_docstrings_name_every_parameter_in_order(name: str) -> None:
    function = getattr(stages, name)
    arguments = inspect.getdoc(function).partition("Args:")[2].partition("Returns:")[0]
    entries = re.findall(r"^    ([a-z_0-9, ]+):", arguments, re.MULTILINE)
    documented = [entry.strip() for names in entries for entry in names.split(",")]
    assert sorted(documented) == sorted(inspect.signature(function).parameters)
    assert documented[0] == "rule"


def test_results_are_the_tensors_of_the_header() -> None:
    assert stages.Intermediates._fields == (*_abi.INTERMEDIATES, "o", "final")
