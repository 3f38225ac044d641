"""`deltarelay.stages` beside the chunk form in double precision (chunk_form.py) and beside `deltarelay.forward`."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import chunk_form
import numpy
import pytest
from chunk_form import close
from conftest import Case, back, has, to

import deltarelay
from deltarelay import _stage_call, stages

RULES = ("kda", "gdn")
LENGTHS = [0, 70, 1, 129, 16, 0]
NAMES = ("aqk", "inverse", "w", "u", "k_to_end", "q_from_start", "gate_sums")
LOG2E = float(1 / numpy.log(2))


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs hold NaN before they are written."""
    plain = _stage_call.empty

    def empty(framework: Any, shape: Any, dtype: Any, device: Any) -> Any:
        made = plain(framework, shape, dtype, device)
        made[...] = float("nan")
        return made

    monkeypatch.setattr(_stage_call, "empty", empty)


class Stages:
    """A case with what its stages should give."""

    def __init__(self, rule: str, lengths: list[int], chunk: int = 64, **sizes: int) -> None:
        self.case = Case(rule, lengths, **sizes)
        self.rule, self.chunk, self.scale = rule, chunk, self.case.q.shape[-1] ** -0.5
        self.offsets = self.case.offsets
        self.made = chunk_form.local(*self.case.rows, self.offsets, chunk, self.scale)
        self.passed = chunk_form.passed(self.made, self.offsets, chunk, self.case.initial)
        self.o = chunk_form.outputs(self.made, self.passed, self.offsets, chunk, self.scale)

    def rows(self, names: str, framework: str = "numpy") -> dict[str, Any]:
        return {name: to(framework, getattr(self.case, name)) for name in names.split()}

    def given(self, names: str, framework: str = "numpy") -> dict[str, Any]:
        everything = {**self.made, **self.passed}
        return {name: to(framework, everything[name].astype(numpy.float32)) for name in names.split()}

    def how(self, **options: Any) -> dict[str, Any]:
        return {"seq_offsets": self.offsets, "chunk": self.chunk, **options}


def states_of(found: Any, layout: str) -> Any:
    return back(found).swapaxes(-1, -2) if layout == "value_major" else back(found)


# ---- chunk_local


@pytest.mark.parametrize("chunk", [16, 32, 64])
@pytest.mark.parametrize("hqk", [1, 2])
@pytest.mark.parametrize("rule", RULES)
def test_chunk_local(rule: str, hqk: int, chunk: int) -> None:
    s = Stages(rule, LENGTHS, chunk, hqk=hqk, hv=2)
    found = stages.chunk_local(rule, **s.rows("q k v g beta"), **s.how(wanted=NAMES))
    for name in NAMES:
        close(getattr(found, name), s.made[name], what=name)
    assert found.o is None and found.states is None and found.final is None


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rule", RULES)
def test_one_result_needs_only_what_it_follows_from(rule: str, name: str) -> None:
    s = Stages(rule, LENGTHS)
    read = {"aqk": "q k", "inverse": "k beta", "w": "k beta", "u": "k v beta", "k_to_end": "k", "q_from_start": "q"}
    rows = s.rows(f"g {read.get(name, '')}")
    found = stages.chunk_local(rule, **rows, **s.how(wanted=name))
    close(getattr(found, name), s.made[name], what=name)
    assert [field for field in found._fields if getattr(found, field) is not None] == [name]


@pytest.mark.parametrize("base_2", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_given_sums_and_inverse(rule: str, base_2: bool) -> None:
    """In both bases; what lies above the diagonal of a given inverse is not read."""
    s = Stages(rule, LENGTHS, 32)
    sums = (s.made["gate_sums"] * (LOG2E if base_2 else 1)).astype(numpy.float32)
    inverse = s.made["inverse"].astype(numpy.float32)
    for _, a, b in chunk_form.per_chunk(s.offsets, 32):
        inverse[a:b][~numpy.tri(b - a, 32, dtype=bool)[:, None, :].repeat(2, axis=1)] = numpy.nan
    given = {"gate_sums": sums, "sums_base_2": base_2}
    wanted = ("aqk", "w", "u", "k_to_end", "q_from_start")
    found = stages.chunk_local(rule, **s.rows("q k v beta"), inverse=inverse, **given, **s.how(wanted=wanted))
    for name in wanted:
        close(getattr(found, name), s.made[name], what=name)
    found = stages.chunk_local(rule, **s.rows("k beta"), **given, **s.how(wanted="inverse"))
    close(found.inverse, s.made["inverse"])
    found = stages.chunk_local(rule, **s.rows("v beta"), inverse=inverse, **s.how(wanted="u"))
    close(found.u, s.made["u"])
    found = stages.chunk_local(rule, **s.rows("g"), sums_base_2=base_2, **s.how(wanted="gate_sums"))
    close(found.gate_sums, s.made["gate_sums"] * (LOG2E if base_2 else 1))


@pytest.mark.parametrize("rule", RULES)
def test_forms_apply_where_they_are_read(rule: str) -> None:
    """Raw gates, logits of beta and norms, beside the same numbers in plain form."""
    s = Stages(rule, [70, 33], hqk=2)
    draw = numpy.random.default_rng(3)
    raw, logits = draw.standard_normal(s.case.g.shape), draw.standard_normal(s.case.beta.shape)
    a_log, bias = draw.standard_normal(2), draw.standard_normal(s.case.g.shape[1:])
    raw, logits, a_log, bias = (x.astype(numpy.float32) for x in (raw, logits, a_log, bias))
    per_head = a_log[:, None] if rule == "kda" else a_log
    c = s.case
    c.g = (-numpy.exp(per_head) * numpy.log1p(numpy.exp(raw + bias))).astype(numpy.float32)
    c.beta = (2 / (1 + numpy.exp(-logits))).astype(numpy.float32)
    expected = chunk_form.local(*c.rows, s.offsets, 64, s.scale)
    found = stages.chunk_local(
        rule, q=c.q * 3, k=c.k * 5, v=c.v, g=raw, beta=logits, a_log=a_log, dt_bias=bias, gate="softplus",
        beta_form="twice_logit", l2norm=True, **s.how(wanted=NAMES),
    )  # fmt: skip
    for name in NAMES:
        close(getattr(found, name), expected[name], 5e-5, name)
    through = chunk_form.passed(expected, s.offsets, 64)
    form = {"a_log": a_log, "dt_bias": bias, "gate": "softplus", "l2norm": True}
    p = stages.state_pass(rule, w=found.w, u=found.u, k=c.k * 5, g=raw, final=True, **form, **s.how())
    close(states_of(p.states, "value_major"), through["states"], 5e-5)
    o = stages.outputs(rule, v_new=p.v_new, states=p.states, q=c.q * 3, k=c.k * 5, g=raw, **form, **s.how()).o
    close(o, chunk_form.outputs(expected, through, s.offsets, 64, s.scale), 5e-5)


@pytest.mark.parametrize("rule", RULES)
def test_hostile_gates(rule: str) -> None:
    """Most gates at -1000, some at -inf: exact forgetting, no NaN."""
    s = Stages(rule, [130])
    draw = numpy.random.default_rng(4)
    s.case.g[draw.uniform(size=s.case.g.shape) < 0.9] = -1000
    s.case.g[draw.uniform(size=s.case.g.shape) < 0.1] = -numpy.inf
    expected = chunk_form.local(*s.case.rows, s.offsets, 64, s.scale)
    found = stages.chunk_local(rule, **s.rows("q k v g beta"), **s.how(wanted=NAMES))
    sums, found_sums = expected.pop("gate_sums"), back(found.gate_sums)
    assert numpy.array_equal(numpy.isinf(found_sums), numpy.isinf(sums))
    finite = ~numpy.isinf(sums)
    assert numpy.allclose(found_sums[finite], sums[finite], rtol=1e-5)
    for name in expected:
        close(getattr(found, name), expected[name], what=name)
    p = stages.state_pass(rule, w=found.w, u=found.u, **s.rows("k g"), final=True, **s.how())
    o = stages.outputs(rule, v_new=p.v_new, states=p.states, **s.rows("q k g"), **s.how()).o
    close(o, s.case.expected(initial=False)[0])


# ---- state_pass and outputs


@pytest.mark.parametrize("layout", ["value_major", "key_major"])
@pytest.mark.parametrize("keys", ["k g", "k gate_sums", "k_to_end g", "k_to_end gate_sums"])
@pytest.mark.parametrize("rule", RULES)
def test_state_pass(rule: str, keys: str, layout: str) -> None:
    s = Stages(rule, LENGTHS, 32, hqk=1, hv=3)
    rows = " ".join(name for name in keys.split() if len(name) == 1)
    given = " ".join(["w u", *(name for name in keys.split() if len(name) > 1)])
    initial = s.case.initial.swapaxes(-1, -2).copy() if layout == "value_major" else s.case.initial
    form = {"state_layout": layout, "initial": initial, "final": True}
    found = stages.state_pass(rule, **s.rows(rows), **s.given(given), **form, **s.how())
    close(states_of(found.states, layout), s.passed["states"], what="states")
    close(found.v_new, s.passed["v_new"], what="v_new")
    close(states_of(found.final, layout), s.passed["final"], what="final")


def test_state_pass_writes_what_is_wanted() -> None:
    s = Stages("kda", LENGTHS)
    rows = {**s.rows("k g"), **s.given("w u")}
    found = stages.state_pass("kda", **rows, **s.how(wanted="v_new"))
    assert found.states is None and found.final is None and found.v_new is not None
    pool = numpy.zeros((9, 2, 24, 16), numpy.float32)
    slots = numpy.array([3, 1, 8, 0, -1, 5], numpy.int32)
    found = stages.state_pass("kda", **rows, final=pool, final_index=slots, **s.how(wanted=(), final_dtype="fp32"))
    assert found.final is pool and found.states is None and found.v_new is None
    expected = chunk_form.passed(s.made, s.offsets, 64)["final"]
    taken = slots >= 0
    close(pool[slots[taken]].swapaxes(-1, -2), expected[taken])
    assert not pool[[2, 4, 6, 7]].any()


@pytest.mark.parametrize("layout", ["value_major", "key_major"])
@pytest.mark.parametrize(
    "given", ["q k g", "q k gate_sums", "q g aqk", "q gate_sums aqk", "k g q q_from_start", "aqk q_from_start"]
)
@pytest.mark.parametrize("rule", RULES)
def test_outputs(rule: str, given: str, layout: str) -> None:
    s = Stages(rule, LENGTHS, 16, hqk=1, hv=2)
    rows = " ".join(name for name in given.split() if len(name) == 1)
    more = " ".join(["v_new", *(name for name in given.split() if len(name) > 1)])
    tensors = {**s.rows(rows), **s.given(more)}
    states = s.passed["states"].astype(numpy.float32)
    tensors["states"] = states.swapaxes(-1, -2).copy() if layout == "value_major" else states
    if "aqk" in tensors:  # above the diagonal it is not read
        for _, a, b in chunk_form.per_chunk(s.offsets, 16):
            tensors["aqk"][a:b][~numpy.tri(b - a, 16, dtype=bool)[:, None, :].repeat(2, axis=1)] = numpy.nan
    found = stages.outputs(rule, **tensors, **s.how(state_layout=layout))
    close(found.o, s.o)
    own = numpy.full(s.o.shape, numpy.nan, numpy.float32)
    assert stages.outputs(rule, **tensors, o=own, **s.how(state_layout=layout)).o is own
    assert numpy.array_equal(own, found.o)


# ---- together


@pytest.mark.parametrize("chunk", [16, 64])
@pytest.mark.parametrize("rule", RULES)
def test_stages_make_a_forward(rule: str, chunk: int, framework: str) -> None:
    s = Stages(rule, LENGTHS, chunk, hqk=1, hv=2)
    q, k, v, g, beta = (to(framework, x) for x in s.case.rows)
    initial, offsets = to(framework, s.case.initial), to(framework, s.offsets)
    how = {"seq_offsets": offsets, "chunk": chunk}
    c = stages.chunk_local(rule, q=q, k=k, v=v, g=g, beta=beta, **how)
    p = stages.state_pass(
        rule, w=c.w, u=c.u, k_to_end=c.k_to_end, gate_sums=c.gate_sums, initial=initial, final=True,
        state_layout="key_major", **how,
    )  # fmt: skip
    o = stages.outputs(
        rule, v_new=p.v_new, states=p.states, aqk=c.aqk, q_from_start=c.q_from_start, state_layout="key_major", **how
    ).o
    whole = deltarelay.forward(
        rule, q, k, v, g, beta, seq_offsets=offsets, initial=initial, final=True, state_layout="key_major"
    )
    close(back(o), back(whole.o).astype(float))
    close(back(p.final), back(whole.final).astype(float))
    assert type(o) is type(q)


@pytest.mark.parametrize("rule", RULES)
def test_batched(rule: str) -> None:
    s = Stages(rule, [100, 100, 100], 32)
    batched = {name: value.reshape(3, 100, *value.shape[1:]) for name, value in s.rows("q k v g beta").items()}
    c = stages.chunk_local(rule, **batched, chunk=32, wanted=NAMES)
    for name in NAMES:
        found = back(getattr(c, name))
        assert found.shape[:2] == (3, 100)
        close(found.reshape(300, *found.shape[2:]), s.made[name], what=name)
    form = {"initial": s.case.initial, "state_layout": "key_major", "chunk": 32}
    p = stages.state_pass(rule, w=c.w, u=c.u, k=batched["k"], g=batched["g"], final=True, **form)
    close(p.states, s.passed["states"])
    close(p.final, s.passed["final"])
    del form["initial"]
    o = stages.outputs(rule, v_new=p.v_new, states=p.states, q=batched["q"], k=batched["k"], g=batched["g"], **form).o
    close(o.reshape(s.o.shape), s.o)


@pytest.mark.parametrize("solved", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_summary(rule: str, solved: bool) -> None:
    s = Stages(rule, LENGTHS, 32, hqk=1, hv=2)
    expected = chunk_form.summaries(s.made, s.offsets, 32)
    tensors = {**s.rows("k g"), **(s.given("w u") if solved else s.rows("v beta"))}
    found = stages.summary(rule, **tensors, **s.how())
    close(found.summaries, expected)
    if solved:
        found = stages.summary(rule, **s.given("w u k_to_end gate_sums"), **s.how())
        close(found.summaries, expected)


@pytest.mark.parametrize("layout", ["value_major", "key_major"])
@pytest.mark.parametrize("rule", RULES)
def test_cut_sequences_give_the_whole(rule: str, layout: str) -> None:
    """Segments of their own, carried, are the whole sequences."""
    lengths, chunk = [200, 0, 64, 333], 32
    s = Stages(rule, lengths, chunk)
    cuts, chains = [0], [0]
    for begin, end in itertools.pairwise(s.offsets.tolist()):
        cuts += [*range(begin + 96, end, 96), end] if end > begin else []
        chains.append(len(cuts) - 1)
    cuts, chains = numpy.array(cuts), numpy.array(chains)
    initial = s.case.initial.swapaxes(-1, -2).copy() if layout == "value_major" else s.case.initial
    maps = stages.summary(rule, **s.rows("k v g beta"), seq_offsets=cuts, chunk=chunk).summaries
    entering = stages.carry(
        rule, summaries=maps, seq_offsets=chains, initial=initial, final=True, state_layout=layout,
        wanted=("states", "composed"),
    )  # fmt: skip
    close(states_of(entering.final, layout), s.passed["final"], what="final")
    close(entering.composed, chunk_form.summaries(s.made, s.offsets, chunk), what="composed")
    c = stages.chunk_local(rule, **s.rows("k v g beta"), seq_offsets=cuts, chunk=chunk, wanted=("w", "u"))
    p = stages.state_pass(
        rule, w=c.w, u=c.u, **s.rows("k g"), initial=entering.states, seq_offsets=cuts, chunk=chunk,
        state_layout=layout,
    )  # fmt: skip
    close(states_of(p.states, layout), s.passed["states"], what="states")
    close(p.v_new, s.passed["v_new"], what="v_new")


def test_carry_without_summaries_and_batched() -> None:
    s = Stages("gdn", [96, 96])
    none = numpy.zeros((0, 2, 40, 16), numpy.float32)
    found = stages.carry(
        "gdn", summaries=none, seq_offsets=numpy.array([0, 0, 0]), initial=s.case.initial, final=True,
        state_layout="key_major", wanted="composed",
    )  # fmt: skip
    assert numpy.array_equal(found.final, s.case.initial)
    assert not back(found.composed)[:, :, :24].any()
    assert numpy.array_equal(found.composed[:, :, 24:], numpy.broadcast_to(numpy.eye(16, dtype="f"), (2, 2, 16, 16)))
    cuts = numpy.array([0, 64, 96, 160, 192])
    maps = stages.summary("gdn", **s.rows("k v g beta"), seq_offsets=cuts, chunk=32).summaries
    packed = stages.carry("gdn", summaries=maps, seq_offsets=numpy.array([0, 2, 4]), final=True)
    batched = stages.carry("gdn", summaries=maps.reshape(2, 2, 2, 40, 16), final=True)
    assert numpy.array_equal(packed.final, batched.final)
    assert numpy.array_equal(packed.states, batched.states.reshape(packed.states.shape))


# ---- lengths that come with the call


@pytest.mark.parametrize("rule", RULES)
def test_late_lengths(rule: str) -> None:
    """One plan for several lists of lengths; rows of no sequence are zero."""
    tokens = 250
    plans = set()
    for lengths in ([0, 70, 1, 129, 16, 0], [100, 0, 0, 100, 0, 50], [1, 1, 1, 1, 1, 1]):
        s = Stages(rule, [*lengths, tokens - sum(lengths)], 32)  # rows of the last one belong to no sequence
        offsets, used = s.offsets[:-1].copy(), int(s.offsets[-2])
        rows = sum(-(-length // 32) for length in lengths)
        how = {"seq_offsets": offsets, "late_lengths": True, "chunk": 32}
        c = stages.chunk_local(rule, **s.rows("q k v g beta"), wanted=NAMES, **how)
        plans.add(deltarelay.last_call().plan.handle)
        for name in NAMES:
            found = back(getattr(c, name))
            close(found[:used], s.made[name][:used], what=name)
            assert not found[used:].any(), name
        form = {"state_layout": "key_major", **how}
        p = stages.state_pass(
            rule, w=c.w, u=c.u, **s.rows("k g"), initial=s.case.initial[:-1].copy(), final=True, num_chunks=rows, **form
        )
        expected = {name: s.passed[name] for name in ("states", "final")}
        close(p.states, expected["states"][:rows])
        close(p.final, expected["final"][:-1])
        assert not back(p.v_new)[used:].any()
        o = stages.outputs(rule, v_new=p.v_new, states=p.states, **s.rows("q k g"), **form).o
        close(o[:used], s.o[:used])
        assert not back(o)[used:].any()
    assert len(plans) == 1


def test_number_of_chunks() -> None:
    s = Stages("gdn", [70, 10])
    rows = {**s.rows("k g"), **s.given("w u")}
    with pytest.raises(
        deltarelay.Invalid, match="num_chunks: expected 3, the chunks of all sequences, of 64 tokens, f"
    ):
        stages.state_pass("gdn", **rows, num_chunks=2, **s.how())
    with pytest.raises(
        deltarelay.Invalid, match="num_chunks: expected 3, the chunks of all sequences, of 64 tokens, f"
    ):
        stages.state_pass("gdn", **rows, num_chunks=4, **s.how(late_lengths=True))
    states = numpy.zeros((4, 2, 24, 16), numpy.float32)
    given = {**s.rows("q k g"), **s.given("v_new")}
    with pytest.raises(deltarelay.Invalid, match="states: expected 3 rows, one for each chunk of 64 tokens, found 4"):
        stages.outputs("gdn", **given, states=states, **s.how())
    with pytest.raises(deltarelay.Invalid, match="states: expected 3 rows, one for each chunk of 64 tokens, found 2"):
        stages.outputs("gdn", **given, states=states[:2], **s.how(late_lengths=True))


# ---- types, copies, frameworks


@pytest.mark.skipif(not has("torch"), reason="torch is not installed")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("rule", RULES)
def test_sixteen_bits(rule: str, dtype: str) -> None:
    import torch

    s = Stages(rule, LENGTHS, hqk=1, hv=2)
    kind, tolerance = getattr(torch, dtype), 5e-3 if dtype == "bfloat16" else 2e-3
    q, k, v = (torch.from_numpy(x).to(kind) for x in (s.case.q, s.case.k, s.case.v))
    g, beta, offsets = torch.from_numpy(s.case.g), torch.from_numpy(s.case.beta), torch.from_numpy(s.offsets)
    s.case.q, s.case.k, s.case.v = (x.float().numpy() for x in (q, k, v))
    expected = chunk_form.local(*s.case.rows, s.offsets, 64, s.scale)
    c = stages.chunk_local(rule, q=q, k=k, v=v, g=g, beta=beta, wanted=NAMES, seq_offsets=offsets)
    for name in NAMES:
        found = getattr(c, name)
        assert found.dtype == (torch.float32 if name == "gate_sums" else kind)
        close(back(found), expected[name], tolerance, name)
    p = stages.state_pass(rule, w=c.w, u=c.u, k=k, g=g, final=True, seq_offsets=offsets)
    assert p.states.dtype == p.v_new.dtype == kind and p.final.dtype == torch.float32
    o = stages.outputs(rule, v_new=p.v_new, states=p.states, q=q, k=k, g=g, seq_offsets=offsets, o_dtype="fp32").o
    assert o.dtype == torch.float32
    p = stages.state_pass(rule, w=c.w, u=c.u, k=k, g=g, wanted="states", states_dtype="fp32", seq_offsets=offsets)
    assert p.states.dtype == torch.float32
    c = stages.chunk_local(rule, k=k, g=g, beta=beta, wanted="w", dtype="fp32", seq_offsets=offsets)
    close(back(c.w), expected["w"])


def test_strides_are_read_and_intermediates_are_copied() -> None:
    s = Stages("kda", [70])
    wide = numpy.full((70, 2, 60), numpy.nan, numpy.float32)
    wide[:, :1, 4:20], wide[:, :, 30:54] = s.case.k, s.case.v
    k, v = wide[:, :1, 4:20], wide[:, :, 30:54]
    c = stages.chunk_local("kda", k=k, v=v, **s.rows("g beta"), wanted=("w", "u", "inverse"))
    close(c.w, s.made["w"])
    assert deltarelay.last_call().copies == ()
    padded = numpy.full((70, 2, 20), numpy.nan, numpy.float32)
    padded[..., :16] = s.made["w"]
    p = stages.state_pass("kda", w=padded[..., :16], k=k, **s.rows("g"), **s.given("u"), state_layout="key_major")
    assert deltarelay.last_call().copies == ("w",)
    close(p.states, chunk_form.passed(s.made, s.offsets, 64)["states"])


# ---- what the call is


def test_last_call_and_plans() -> None:
    s = Stages("kda", LENGTHS)
    stages.chunk_local("kda", **s.rows("k v g beta"), **s.how(wanted=("w", "u"), backend="reference"))
    call = deltarelay.last_call()
    assert call.backend == "reference" and call.binding == "ctypes" and call.copies == () and call.declined == ""
    assert call.plan.to_dict() and call.plan.describe()
    stages.chunk_local("kda", **s.rows("k v g beta"), **s.how(wanted=("u", "w"), backend="reference"))
    assert deltarelay.last_call().plan is call.plan
    for change in ({"wanted": "w"}, {"chunk": 32}, {"sums_base_2": True}, {"dtype": "fp16"}, {"scale": 2.0}):
        rows = s.rows("k g beta") if "wanted" in change else s.rows("k v g beta")
        stages.chunk_local("kda", **rows, **s.how(**{"wanted": ("w", "u"), "backend": "reference", **change}))
        assert deltarelay.last_call().plan is not call.plan, change
    deltarelay.forward("kda", *s.case.rows, seq_offsets=s.offsets)
    assert deltarelay.last_call().binding == deltarelay._call.binding()[0]


def test_a_refusal_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """FLA asks for the same call in every step: no second plan is tried."""
    s = Stages("kda", [70])
    made = []
    plain = _stage_call.Plan
    monkeypatch.setattr(_stage_call, "Plan", lambda request: made.append(1) or plain(request))
    for _ in range(3):
        with pytest.raises(deltarelay.Unsupported, match="cuda-sm90"):
            stages.chunk_local("kda", **s.rows("k g beta"), **s.how(wanted="w", backend="cuda-sm90"))
    assert made == [1]


def test_threads_share_plans() -> None:
    s = Stages("kda", LENGTHS)
    first = stages.chunk_local("kda", **s.rows("q k v g beta"), **s.how())
    found: list[bool] = []

    def work() -> None:
        for _ in range(5):
            c = stages.chunk_local("kda", **s.rows("q k v g beta"), **s.how())
            found.append(all(numpy.array_equal(getattr(c, name), getattr(first, name)) for name in ("w", "u", "aqk")))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 20


def test_results_do_not_depend_on_threads() -> None:
    s = Stages("gdn", [500, 300], hqk=2, hv=4)
    rows = {**s.rows("k g"), **s.given("w u")}
    one = stages.state_pass("gdn", **rows, final=True, **s.how(threads=1, segments="off"))
    two = stages.state_pass("gdn", **rows, final=True, **s.how(threads=2, segments="off"))
    assert numpy.array_equal(one.states, two.states) and numpy.array_equal(one.final, two.final)


@pytest.mark.skipif(not has("torch"), reason="torch is not installed")
def test_under_torch_compile() -> None:
    """A stage breaks the graph, and the result is the same."""
    import torch

    s = Stages("kda", [70])
    _, k, v, g, beta = (torch.from_numpy(x) for x in s.case.rows)

    def plain(k: Any, v: Any, g: Any, beta: Any) -> Any:
        c = stages.chunk_local("kda", k=k, v=v * 2, g=g, beta=beta, wanted=("w", "u"))
        return c.w + 1, c.u

    with torch.no_grad():
        w, u = torch.compile(plain, backend="eager")(k, v, g, beta)
        w_plain, u_plain = plain(k, v, g, beta)
    assert torch.equal(w, w_plain) and torch.equal(u, u_plain)
