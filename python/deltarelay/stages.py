"""The stages of a forward as functions of their own, for callers that keep what lies between them.

    c = stages.chunk_local("kda", q=q, k=k, v=v, g=g, beta=beta)
    s = stages.state_pass("kda", w=c.w, u=c.u, k_to_end=c.k_to_end, gate_sums=c.gate_sums, final=True)
    o = stages.outputs("kda", v_new=s.v_new, states=s.states, aqk=c.aqk, q_from_start=c.q_from_start).o

are `deltarelay.forward("kda", q, k, v, g, beta, final=True)` in chunks of 64 tokens. `summary` and `carry` are for
sequences in segments: `summary` says what a segment does to any state, `carry` folds summaries in order.

Options have the names and meanings of `deltarelay.forward`. Symbols, for tokens i and j of one chunk: G is the sum of
the log-decays from the start of the chunk up to and including a token, G_last that of its last token,
E_ij = exp(G_i - G_j), S the state at its start. All results are contiguous and in value heads. A tensor that follows
from what is given is not read and must be None; the parameters of a raw gate are ignored where g is not read.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from . import _abi, _stage_call
from ._settings import FLOATS, Settings, Values, flag, settings, whole, word, wrong
from ._stage_request import CHUNK_RANGE, CHUNK_WORDS, Wish
from ._types import BetaForm, CarryResult, ChunkResult, FloatType, Gate, Math, PassResult, Rule, StateLayout
from ._views import torch_if_imported

_torch = torch_if_imported()  # if it was imported first, torch.compile breaks its graph here and does not look inside
_call = _torch.compiler.disable(_stage_call.call) if _torch is not None else _stage_call.call


class Intermediates(NamedTuple):
    """Results of a stage; None for what was not wanted. R is the number of chunks of all sequences, in order: a
    sequence of L tokens has ceil(L / C).

    Attributes:
        aqk: [.., T, HV, C]: scores of q and k; row i is scale * sum(q_i k_j E_ij) for j <= i, and 0 elsewhere.
        inverse: [.., T, HV, C]: rows of (I + Akk)^-1, where Akk_ij = beta_i * sum(k_i k_j E_ij) for j < i.
        w: [.., T, HV, DK]: inverse @ (beta exp(G) k).
        u: [.., T, HV, DV]: inverse @ (beta v).
        k_to_end: [.., T, HV, DK]: k_i exp(G_last - G_i).
        q_from_start: [.., T, HV, DK]: q_i exp(G_i), without scale.
        gate_sums: [.., T, HV, DK] (kda) or [.., T, HV] (gdn), fp32: G.
        v_new: [.., T, HV, DV]: u - w S, what the chunk writes into the state.
        states: [R, HV, DV, DK] or [R, HV, DK, DV]: S at the start of each chunk; of `carry` [.., T, HV, ..].
        summaries: [N, HV, DV + DK, DK], fp32: the columns of B, then the columns of M, each with DK numbers:
            S_out = M S_in + B.
        composed: [N, HV, DV + DK, DK], fp32: the summary of a whole chain.
        o: [.., T, HV, DV]: outputs.
        final: states after the last token of each sequence.
    """

    aqk: Any = None
    inverse: Any = None
    w: Any = None
    u: Any = None
    k_to_end: Any = None
    q_from_start: Any = None
    gate_sums: Any = None
    v_new: Any = None
    states: Any = None
    summaries: Any = None
    composed: Any = None
    o: Any = None
    final: Any = None


# Arguments that are settings, as in a forward.
_FIELDS = ("scale", "l2norm", "gate", "lower_bound", "gate_floor", "beta_form", "o_dtype", "final_dtype", "null_index")
_FIELDS += ("state_layout", "segments", "backend", "variant", "isa", "threads", "invariant", "math", "late_lengths")
_KNOWN = set(_abi.INTERMEDIATES)
_RENAMED = {"beta_form": "beta"}
_ABOUT = {"rule", "wanted", "chunk", "dtype", "states_dtype", "sums_base_2", "num_chunks", *_FIELDS}


def _settings(given: dict[str, Any]) -> Settings:
    fields = {_RENAMED.get(name, name): given[name] for name in _FIELDS if name in given}
    return settings(*Values(given["rule"], final=given.get("final") is True, **fields))


# Wishes that were used, by the values they were made of: see `_settings._known`.
_MOST = 256
_wishes: dict[tuple[Any, ...], Wish] = {}


def _in_order(given: Any) -> tuple[str, ...]:
    listed = isinstance(given, (tuple, list, set, frozenset, dict))
    if not listed and not isinstance(given, str):
        raise wrong("wanted", "names of results", given)
    names = set() if listed else {given}
    for name in given if listed else ():
        if not isinstance(name, str):
            raise wrong("wanted", "names of results", name)
        names.add(name)
    return (*sorted(names - _KNOWN), *(name for name in _abi.INTERMEDIATES if name in names))


def _wish(operation: str, wanted: Any, chunk: Any, dtype: Any, states_dtype: Any, sums_base_2: Any) -> Wish:
    key = (operation, wanted, chunk, dtype, states_dtype, sums_base_2)
    try:
        found = _wishes.get(key)
    except TypeError:  # a list of names, or an unhashable value, which the checks name
        found = None
    if found is None:
        tokens = chunk if operation == "carry" else whole("chunk", chunk, *CHUNK_RANGE, CHUNK_WORDS)
        types = (word(*pair, (None, *FLOATS)) for pair in (("dtype", dtype), ("states_dtype", states_dtype)))
        found = Wish(operation, _in_order(wanted), tokens, *types, flag("sums_base_2", sums_base_2))
        if len(_wishes) >= _MOST:
            _wishes.clear()
        _wishes[(operation, wanted if isinstance(wanted, str) else tuple(wanted), *found[2:])] = found
    return found


def _run(operation: str, given: dict[str, Any]) -> Intermediates:
    """`given` are the arguments of the function by name."""
    wish = _wish(
        operation,
        given.get("wanted", ()),
        given.get("chunk", 0),
        given.get("dtype"),
        given.get("states_dtype"),
        given.get("sums_base_2", False),
    )
    num_chunks = given.get("num_chunks")
    if num_chunks is not None:
        num_chunks = whole("num_chunks", num_chunks, 0, 2**63 - 1, "the number of chunks of all sequences or None")
    tensors = {name: value for name, value in given.items() if name not in _ABOUT}
    if isinstance(tensors.get("final"), bool):
        del tensors["final"]
    return Intermediates(*_call(wish, _settings(given), tensors, num_chunks))


def chunk_local(
    rule: Rule,
    *,
    q: Any = None,
    k: Any = None,
    v: Any = None,
    g: Any = None,
    beta: Any = None,
    inverse: Any = None,
    gate_sums: Any = None,
    wanted: ChunkResult | Collection[ChunkResult] = ("aqk", "w", "u", "k_to_end", "q_from_start", "gate_sums"),
    chunk: int = 64,
    dtype: FloatType | None = None,
    sums_base_2: bool = False,
    scale: float | None = None,
    l2norm: bool = False,
    gate: Gate = "log",
    a_log: Any = None,
    dt_bias: Any = None,
    lower_bound: float | None = None,
    gate_floor: float | None = None,
    beta_form: BetaForm = "value",
    seq_offsets: Any = None,
    host_offsets: Any = None,
    report: Any = None,
    segments: int | str = "auto",
    backend: str | None = None,
    variant: str | None = None,
    isa: str | None = None,
    threads: int = 0,
    invariant: bool = False,
    math: Math = "default",
    late_lengths: bool = False,
) -> Intermediates:
    """Everything of a chunk that needs no state.

    Args:
        rule: "kda" or "gdn".
        q, k: [B, T, HQK, DK] or [T, HQK, DK]. q is read for aqk and q_from_start.
        v: [.., T, HV, DV]. Read for u.
        g: [.., T, HV, DK] (kda) or [.., T, HV] (gdn), read as `gate` says. None with gate_sums, and for u of a given
            inverse.
        beta: [.., T, HV]. Read for inverse, w and u.
        inverse: [.., T, HV, C], if it is there already (FLA's A or Akk).
        gate_sums: as in Intermediates, if they are there already (FLA's cumulated g). They are finite: where a gate is
            -inf, give g.
        wanted: names of results: aqk, inverse, w, u, k_to_end, q_from_start, gate_sums.
        chunk: C, tokens of a chunk: 16, 32 or 64.
        dtype: "fp32", "bf16" or "fp16" of the results but gate_sums; None: as `inverse`, else as q, k and v.
        sums_base_2: gate_sums are logarithms of base 2, as FLA's are; else natural ones.
        scale, l2norm, gate, a_log, dt_bias, lower_bound, gate_floor, beta_form: as in `deltarelay.forward`.
        seq_offsets, host_offsets, report: as in `deltarelay.forward`.
        segments, backend, variant, isa, threads, invariant, math, late_lengths: as in `deltarelay.forward`.

    Returns:
        Intermediates, with the results named in `wanted`.

    Raises:
        Invalid, WrongType, Unsupported: as `deltarelay.forward`.
    """
    return _run("chunk_local", locals())


def state_pass(
    rule: Rule,
    *,
    w: Any,
    u: Any,
    k: Any = None,
    g: Any = None,
    k_to_end: Any = None,
    gate_sums: Any = None,
    initial: Any = None,
    initial_index: Any = None,
    has_initial: Any = None,
    final: Any = None,
    final_index: Any = None,
    final_dtype: FloatType = "fp32",
    state_layout: StateLayout = "value_major",
    null_index: int | None = None,
    wanted: PassResult | Collection[PassResult] = ("states", "v_new"),
    num_chunks: int | None = None,
    chunk: int = 64,
    states_dtype: FloatType | None = None,
    sums_base_2: bool = False,
    l2norm: bool = False,
    gate: Gate = "log",
    a_log: Any = None,
    dt_bias: Any = None,
    lower_bound: float | None = None,
    gate_floor: float | None = None,
    seq_offsets: Any = None,
    host_offsets: Any = None,
    report: Any = None,
    segments: int | str = "auto",
    backend: str | None = None,
    variant: str | None = None,
    isa: str | None = None,
    threads: int = 0,
    invariant: bool = False,
    math: Math = "default",
    late_lengths: bool = False,
) -> Intermediates:
    """The state at the start of every chunk, what each chunk writes, and the final states.

    Args:
        rule: "kda" or "gdn".
        w, u: [.., T, HV, DK] and [.., T, HV, DV], of `chunk_local`.
        k: [.., T, HQK, DK], or `k_to_end` in its place.
        g: as in `chunk_local`, or `gate_sums` in its place.
        k_to_end: [.., T, HV, DK].
        gate_sums: as in `chunk_local`.
        initial, initial_index, has_initial, final, final_index: as in `deltarelay.forward`.
        final_dtype, state_layout, null_index: as in `deltarelay.forward`. state_layout is also that of `states`.
        wanted: names of results beside `final`: states, v_new.
        num_chunks: R, if the caller knows it and the lengths are on the device. `states` then has as many rows; without
            it, as many as there could be, of which the first R are written.
        chunk: C, as `chunk_local` had it.
        states_dtype: "fp32", "bf16" or "fp16" of states; as w if None.
        sums_base_2, l2norm, gate, a_log, dt_bias, lower_bound, gate_floor: as in `chunk_local`.
        seq_offsets, host_offsets, report: as in `deltarelay.forward`.
        segments, backend, variant, isa, threads, invariant, math, late_lengths: as in `deltarelay.forward`.

    Returns:
        Intermediates(states=, v_new=, final=).

    Raises:
        Invalid, WrongType, Unsupported: as `deltarelay.forward`.
    """
    return _run("state_pass", locals())


def outputs(
    rule: Rule,
    *,
    v_new: Any,
    states: Any,
    q: Any = None,
    k: Any = None,
    g: Any = None,
    aqk: Any = None,
    q_from_start: Any = None,
    gate_sums: Any = None,
    o: Any = None,
    o_dtype: FloatType | None = None,
    state_layout: StateLayout = "value_major",
    chunk: int = 64,
    sums_base_2: bool = False,
    scale: float | None = None,
    l2norm: bool = False,
    gate: Gate = "log",
    a_log: Any = None,
    dt_bias: Any = None,
    lower_bound: float | None = None,
    gate_floor: float | None = None,
    seq_offsets: Any = None,
    host_offsets: Any = None,
    report: Any = None,
    segments: int | str = "auto",
    backend: str | None = None,
    variant: str | None = None,
    isa: str | None = None,
    threads: int = 0,
    invariant: bool = False,
    math: Math = "default",
    late_lengths: bool = False,
) -> Intermediates:
    """o = scale * q_from_start S + aqk v_new.

    Args:
        rule: "kda" or "gdn".
        v_new: [.., T, HV, DV], of `state_pass`.
        states: [R, HV, DV, DK] or [R, HV, DK, DV], of `state_pass`.
        q: [.., T, HQK, DK]. None with both aqk and q_from_start.
        k: [.., T, HQK, DK], or `aqk` in its place.
        g: as in `chunk_local`, or `gate_sums` in its place. None with both aqk and q_from_start.
        aqk: [.., T, HV, C], of `chunk_local` with the same scale. What lies above the diagonal is not read.
        q_from_start: [.., T, HV, DK].
        gate_sums: as in `chunk_local`.
        o: where outputs go, [.., T, HV, DV]; allocated if None.
        o_dtype: "fp32", "bf16" or "fp16" of an allocated o; if None as q and k, or as v_new where neither is read.
        state_layout: "value_major" or "key_major", of states.
        chunk: C, as `chunk_local` had it.
        sums_base_2, scale, l2norm, gate, a_log, dt_bias, lower_bound, gate_floor: as in `chunk_local`.
        seq_offsets, host_offsets, report: as in `deltarelay.forward`.
        segments, backend, variant, isa, threads, invariant, math, late_lengths: as in `deltarelay.forward`.

    Returns:
        Intermediates(o=).

    Raises:
        Invalid, WrongType, Unsupported: as `deltarelay.forward`.
    """
    return _run("outputs", locals())


def summary(
    rule: Rule,
    *,
    k: Any = None,
    v: Any = None,
    g: Any = None,
    beta: Any = None,
    w: Any = None,
    u: Any = None,
    k_to_end: Any = None,
    gate_sums: Any = None,
    chunk: int = 64,
    sums_base_2: bool = False,
    l2norm: bool = False,
    gate: Gate = "log",
    a_log: Any = None,
    dt_bias: Any = None,
    lower_bound: float | None = None,
    gate_floor: float | None = None,
    beta_form: BetaForm = "value",
    seq_offsets: Any = None,
    host_offsets: Any = None,
    report: Any = None,
    segments: int | str = "auto",
    backend: str | None = None,
    variant: str | None = None,
    isa: str | None = None,
    threads: int = 0,
    invariant: bool = False,
    math: Math = "default",
    late_lengths: bool = False,
) -> Intermediates:
    """What each sequence does to any state: S_out = M S_in + B.

    Every sequence counts as one segment, so the caller cuts by seq_offsets, at multiples of the chunk.

    Args:
        rule: "kda" or "gdn".
        k: [.., T, HQK, DK]. None with k_to_end.
        v, beta: as in `chunk_local`. None with w and u.
        g: as in `chunk_local`. None with gate_sums.
        w, u: [.., T, HV, DK] and [.., T, HV, DV], of `chunk_local`, both or neither.
        k_to_end, gate_sums: as in `chunk_local`; only beside w and u.
        chunk: C, as `chunk_local` had it.
        sums_base_2, l2norm, gate, a_log, dt_bias, lower_bound, gate_floor, beta_form: as in `chunk_local`.
        seq_offsets, host_offsets, report: as in `deltarelay.forward`.
        segments, backend, variant, isa, threads, invariant, math, late_lengths: as in `deltarelay.forward`.

    Returns:
        Intermediates(summaries=).

    Raises:
        Invalid, WrongType, Unsupported: as `deltarelay.forward`.
    """
    return _run("summary", {**locals(), "wanted": ("summaries",)})


def carry(
    rule: Rule,
    *,
    summaries: Any,
    initial: Any = None,
    initial_index: Any = None,
    has_initial: Any = None,
    final: Any = None,
    final_index: Any = None,
    final_dtype: FloatType = "fp32",
    state_layout: StateLayout = "value_major",
    null_index: int | None = None,
    wanted: CarryResult | Collection[CarryResult] = ("states",),
    states_dtype: FloatType | None = None,
    seq_offsets: Any = None,
    host_offsets: Any = None,
    report: Any = None,
    segments: int | str = "auto",
    backend: str | None = None,
    variant: str | None = None,
    isa: str | None = None,
    threads: int = 0,
    invariant: bool = False,
    math: Math = "default",
    late_lengths: bool = False,
) -> Intermediates:
    """The ordered fold of summaries: the state that enters each segment, and those after the last ones.

    A "token" is one summary here, and a sequence a chain of them in order.

    Args:
        rule: "kda" or "gdn". The fold is the same.
        summaries: [T, HV, DV + DK, DK], of `summary` and fp32; several chains with seq_offsets, or with one axis more
            in front.
        initial, initial_index, has_initial, final, final_index: as in `deltarelay.forward`, for each chain.
        final_dtype, state_layout, null_index: as in `deltarelay.forward`. state_layout is also that of `states`.
        wanted: names of results beside `final`: states (the state that enters each segment), composed.
        states_dtype: "fp32", "bf16" or "fp16" of states; "fp32" if None.
        seq_offsets, host_offsets: [N + 1]: chain n has the summaries from seq_offsets[n] to seq_offsets[n + 1].
        report: as in `deltarelay.forward`.
        segments, backend, variant, isa, threads, invariant, math, late_lengths: as in `deltarelay.forward`.

    Returns:
        Intermediates(states=, composed=, final=).

    Raises:
        Invalid, WrongType, Unsupported: as `deltarelay.forward`.
    """
    return _run("carry", locals())


__all__ = ["Intermediates", "carry", "chunk_local", "outputs", "state_pass", "summary"]
