"""The pieces of FLA's forward with FLA's signatures (0.6.0), by the stages of `deltarelay.stages`.

FLA's own functions call them where `chunk_kda` or `chunk_gated_delta_rule` was not ours as a whole, as in training.
FLA's cumulated gates are logarithms of base 2. What a piece cannot take it declines with the reason, and FLA's own
function runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from .. import stages
from .._stage_request import CHUNKS
from .._views import view_of
from ..errors import Error, Invalid, Unsupported
from ._arguments import check_chunk_size, check_flags, check_number

_LENGTHS = {"seq_offsets": "cu_seqlens", "host_offsets": "cu_seqlens_cpu", "num_chunks": "chunk_indices"}


def _run(stage: Callable[..., Any], rule: str, names: dict[str, str], **arguments: Any) -> stages.Intermediates:
    """Runs a stage. `names`: our arguments that have another name at FLA, for messages."""
    try:
        return stage(rule, sums_base_2=True, **arguments)
    except Error as error:
        names = {**_LENGTHS, **names}
        words = re.compile(rf"\b({'|'.join(names)})\b")
        raise type(error)(words.sub(lambda found: names[found.group(0)], str(error))) from None


def _check_rows(**tensors: Any) -> None:
    """Tensors that FLA has as [B, T, heads, width]."""
    for name, value in tensors.items():
        shape = view_of(name, value).shape
        if len(shape) != 4:
            raise Invalid(f"{name}: expected [B, T, heads, width], found {list(shape)}")


def _check_given(reason: str, **tensors: Any) -> None:
    for name, value in tensors.items():
        if value is None:
            raise Unsupported(f"{name}: expected a tensor, found None: {reason}")


def _check_graph(use_graph: Any) -> None:
    check_flags(use_graph=use_graph)
    if use_graph:
        raise Unsupported("use_graph: expected False, found True: a chunk list on the device is FLA's own")


def _check_types(name: str, value: Any, like_name: str, like: Any) -> None:
    found, expected = view_of(name, value).dtype, view_of(like_name, like).dtype
    if found != expected:
        raise Unsupported(f"{name}: expected {expected} as {like_name}, found {found}")


_NO_GATE = "the recurrence without a gate is FLA's own"


def chunk_kda_fwd_intra(
    q: Any,
    k: Any,
    v: Any,
    gk: Any = None,
    beta: Any = None,
    scale: float | None = None,
    cu_seqlens: Any = None,
    chunk_size: int = 64,
    chunk_indices: Any = None,
    safe_gate: bool = False,
    lower_bound: float | None = None,
    disable_recompute: bool = False,
    use_graph: bool = False,
) -> tuple[Any, ...]:
    """(w, u, qg or None, kg, Aqk, Akk) of `fla.ops.kda.chunk_intra`; Akk is the inverse."""
    _check_graph(use_graph)
    check_flags(safe_gate=safe_gate, disable_recompute=disable_recompute)
    check_number("scale", scale)
    if scale is None:
        raise Unsupported("scale: expected a number, found None")
    check_chunk_size(chunk_size, (32, 64))
    _check_given(_NO_GATE, gk=gk, beta=beta)
    _check_rows(q=q, k=k, v=v, gk=gk)
    names = ("aqk", "inverse", "w", "u", "k_to_end", *(["q_from_start"] if disable_recompute else []))
    r = _run(
        stages.chunk_local, "kda", {"gate_sums": "gk"}, q=q, k=k, v=v, beta=beta, gate_sums=gk, wanted=names,
        chunk=chunk_size, scale=float(scale), seq_offsets=cu_seqlens,
    )  # fmt: skip
    return r.w, r.u, r.q_from_start, r.k_to_end, r.aqk, r.inverse


def recompute_w_u_fwd_kda(
    k: Any,
    v: Any,
    beta: Any,
    A: Any,
    gk: Any,
    q: Any = None,
    cu_seqlens: Any = None,
    chunk_indices: Any = None,
    use_graph: bool = False,
) -> tuple[Any, ...]:
    """(w, u, qg or None, kg) of `fla.ops.kda.wy_fast`."""
    _check_graph(use_graph)
    _check_given(_NO_GATE, gk=gk)
    _check_rows(k=k, v=v, A=A, gk=gk)
    _check_types("A", A, "k", k)
    check_chunk_size(A.shape[-1], CHUNKS)
    names = ("w", "u", "k_to_end", *(["q_from_start"] if q is not None else []))
    r = _run(
        stages.chunk_local, "kda", {"gate_sums": "gk", "inverse": "A"}, q=q, k=k, v=v, beta=beta, gate_sums=gk,
        inverse=A, wanted=names, chunk=A.shape[-1], seq_offsets=cu_seqlens,
    )  # fmt: skip
    return r.w, r.u, r.q_from_start, r.k_to_end


def chunk_gated_delta_rule_fwd_intra(
    k: Any,
    v: Any,
    g: Any = None,
    beta: Any = None,
    cu_seqlens: Any = None,
    chunk_size: int = 64,
    chunk_indices: Any = None,
) -> tuple[Any, Any, Any]:
    """(w, u, A) of `fla.ops.gated_delta_rule.chunk_fwd`; A is the inverse."""
    check_chunk_size(chunk_size, CHUNKS)
    _check_given(_NO_GATE, g=g, beta=beta)
    _check_rows(k=k, v=v)
    r = _run(
        stages.chunk_local, "gdn", {"gate_sums": "g"}, k=k, v=v, beta=beta, gate_sums=g, wanted=("inverse", "w", "u"),
        chunk=chunk_size, seq_offsets=cu_seqlens,
    )  # fmt: skip
    return r.w, r.u, r.inverse


def recompute_w_u_fwd_gdn(
    k: Any,
    v: Any,
    beta: Any,
    A: Any,
    g: Any = None,
    cu_seqlens: Any = None,
    chunk_indices: Any = None,
) -> tuple[Any, Any]:
    """(w, u) of `fla.ops.gated_delta_rule.wy_fast`."""
    _check_given(_NO_GATE, g=g)
    _check_rows(k=k, v=v, A=A)
    _check_types("A", A, "k", k)
    check_chunk_size(A.shape[-1], CHUNKS)
    r = _run(
        stages.chunk_local, "gdn", {"gate_sums": "g", "inverse": "A"}, k=k, v=v, beta=beta, gate_sums=g, inverse=A,
        wanted=("w", "u"), chunk=A.shape[-1], seq_offsets=cu_seqlens,
    )  # fmt: skip
    return r.w, r.u


def chunk_gated_delta_rule_fwd_h(
    k: Any,
    w: Any,
    u: Any,
    g: Any = None,
    gk: Any = None,
    initial_state: Any = None,
    output_final_state: bool = False,
    chunk_size: int = 64,
    save_new_value: bool = True,
    state_v_first: bool = False,
    cu_seqlens: Any = None,
    cu_seqlens_cpu: Any = None,
    chunk_indices: Any = None,
    chunk_offsets: Any = None,
) -> tuple[Any, Any, Any]:
    """(h, v_new or None, final_state or None) of `fla.ops.common.chunk_delta_h`, for both rules: with g (GDN) k are the
    keys, with gk (KDA) keys that are decayed to the end of their chunk."""
    check_flags(output_final_state=output_final_state, save_new_value=save_new_value, state_v_first=state_v_first)
    check_chunk_size(chunk_size, CHUNKS)
    if chunk_offsets is not None:
        raise Unsupported("chunk_offsets: expected None, found a tensor: a chunk list on the device is FLA's own")
    if (g is None) == (gk is None):
        found = "neither" if g is None else "both"
        raise Unsupported(f"g, gk: expected one of them, found {found}: other recurrences are FLA's own")
    _check_rows(k=k, w=w, u=u)
    _check_types("w", w, "k", k)
    num_chunks = _num_chunks(cu_seqlens, cu_seqlens_cpu, chunk_indices)
    rule, names, keys = ("gdn", {"gate_sums": "g"}, {"k": k, "gate_sums": g})
    if gk is not None:
        rule, names, keys = ("kda", {"gate_sums": "gk", "k_to_end": "k"}, {"k_to_end": k, "gate_sums": gk})
    r = _run(
        stages.state_pass, rule, {**names, "initial": "initial_state"}, **keys, w=w, u=u, initial=initial_state,
        final=bool(output_final_state), wanted=("states", "v_new") if save_new_value else ("states",),
        num_chunks=num_chunks, chunk=chunk_size, state_layout="value_major" if state_v_first else "key_major",
        seq_offsets=cu_seqlens, host_offsets=None if cu_seqlens is None else cu_seqlens_cpu,
    )  # fmt: skip
    batch = 1 if cu_seqlens is not None else k.shape[0]
    return r.states.reshape(batch, r.states.shape[0] // max(1, batch), *r.states.shape[1:]), r.v_new, r.final


def _num_chunks(cu_seqlens: Any, cu_seqlens_cpu: Any, chunk_indices: Any) -> int | None:
    """Rows of h where only the device knows the lengths."""
    if cu_seqlens is None:
        return None
    if chunk_indices is not None:
        return chunk_indices.shape[0]
    if cu_seqlens_cpu is None and getattr(cu_seqlens, "is_cuda", False):
        raise Unsupported(
            "chunk_indices: expected a tensor, or cu_seqlens_cpu, found None: the number of states follows from the "
            "lengths, and nothing is read back from the device"
        )
    return None


def chunk_fwd_o(
    q: Any,
    k: Any,
    v: Any,
    h: Any,
    g: Any = None,
    g_gamma: Any = None,
    scale: float | None = None,
    state_v_first: bool = False,
    cu_seqlens: Any = None,
    chunk_size: int = 64,
    chunk_indices: Any = None,
) -> Any:
    """o of `fla.ops.common.chunk_o`; v is v_new."""
    if g_gamma is not None:
        raise Unsupported("g_gamma: expected None, found a tensor: a fixed decay for each head is FLA's own")
    _check_given(_NO_GATE, g=g)
    _check_rows(q=q, k=k, v=v)
    return _outputs(
        "gdn", {"v_new": "v", "gate_sums": "g"}, q, v, h, g, scale, state_v_first, cu_seqlens, chunk_size, k=k
    )


def chunk_gla_fwd_o_gk(
    q: Any,
    v: Any,
    g: Any,
    A: Any,
    h: Any,
    scale: float,
    state_v_first: bool = False,
    cu_seqlens: Any = None,
    chunk_size: int = 64,
    chunk_indices: Any = None,
    use_graph: bool = False,
) -> Any:
    """o of `fla.ops.gla.chunk`; v is v_new and A has the scores with scale."""
    _check_graph(use_graph)
    _check_given(_NO_GATE, g=g)
    _check_rows(q=q, v=v, g=g, A=A)
    if scale is None:
        raise Unsupported("scale: expected a number, found None")
    names = {"v_new": "v", "gate_sums": "g", "aqk": "A"}
    return _outputs("kda", names, q, v, h, g, scale, state_v_first, cu_seqlens, chunk_size, aqk=A)


def _outputs(
    rule: str,
    names: dict[str, str],
    q: Any,
    v: Any,
    h: Any,
    g: Any,
    scale: float | None,
    state_v_first: bool,
    cu_seqlens: Any,
    chunk_size: int,
    **more: Any,
) -> Any:
    check_flags(state_v_first=state_v_first)
    check_number("scale", scale)
    check_chunk_size(chunk_size, CHUNKS)
    if len(view_of("h", h).shape) != 5:
        raise Invalid(f"h: expected [B, NT, HV, ..], found {list(h.shape)}")
    r = _run(
        stages.outputs, rule, {**names, "states": "h"}, q=q, v_new=v, states=h.reshape(-1, *h.shape[2:]), gate_sums=g,
        scale=None if scale is None else float(scale), o_dtype=view_of("v", v).dtype, chunk=chunk_size,
        state_layout="value_major" if state_v_first else "key_major", seq_offsets=cu_seqlens, **more,
    )  # fmt: skip
    return r.o
