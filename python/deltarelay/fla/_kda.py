"""chunk_kda with FLA's signature."""

from __future__ import annotations

from typing import Any

from .._problem import CHUNK
from ..errors import Invalid, Unsupported
from ..functions import _compiling
from ._arguments import (
    UNSET,
    Chosen,
    check_chunk_size,
    check_flags,
    check_number,
    choose,
    keep,
    refuse_context,
    renamed_layout,
    run,
)

_known: dict[tuple[Any, ...], Chosen] = {}
_SAFE = -5.0  # the smallest lower_bound that FLA accepts together with safe_gate


def _choose(key: tuple[Any, ...], compiling: bool) -> Chosen:
    """Everything about a call that does not depend on its tensors. Computed once per combination of values."""
    scale, final, l2norm, raw, sigmoid, twice, safe, bound, states, v_first, chunk_size = key
    check_flags(
        output_final_state=final,
        use_qk_l2norm_in_kernel=l2norm,
        use_gate_in_kernel=raw,
        use_beta_sigmoid_in_kernel=sigmoid,
        allow_neg_eigval=twice,
        safe_gate=safe,
        return_intermediate_states=states,
        state_v_first=v_first,
    )
    check_number("lower_bound", bound)
    check_chunk_size(chunk_size, (32, CHUNK), bool(states))
    if safe and raw and (bound is None or not _SAFE <= bound < 0):
        raise Invalid(f"lower_bound: expected -5 to 0 with safe_gate=True and use_gate_in_kernel=True, found {bound!r}")
    chosen = choose("kda", scale, l2norm, raw, bound, sigmoid, twice, v_first, final, states, compiling=compiling)
    return chosen if compiling else keep(_known, key, chosen)


def _check_graph(cu_seqlens: Any, max_num_seqs: int | None) -> None:
    if max_num_seqs is not None and cu_seqlens is not None and cu_seqlens.shape[0] != max_num_seqs + 1:
        raise Invalid(
            f"cu_seqlens: expected {max_num_seqs + 1} entries with use_graph=True and max_num_seqs={max_num_seqs} "
            f"(padded with empty sequences), found {cu_seqlens.shape[0]}"
        )


def _check_states(q: Any, cu_seqlens: Any, cu_seqlens_cpu: Any, use_graph: bool) -> None:
    if len(q.shape) != 4:
        raise Invalid(f"q: expected [B, T, H, K] with return_intermediate_states=True, found {list(q.shape)}")
    if cu_seqlens is not None and cu_seqlens_cpu is None and not use_graph and getattr(cu_seqlens, "is_cuda", False):
        raise Unsupported(
            "cu_seqlens_cpu: expected the lengths on the host with return_intermediate_states=True, found None: the "
            "number of states follows from them, and nothing is read back from the device"
        )


def _shaped(h: Any, q: Any, cu_seqlens: Any, use_graph: bool) -> Any:
    """Rows of all sequences as FLA has them: [B, NT, HV, K, V]."""
    if cu_seqlens is None:
        return h.reshape(q.shape[0], -(-q.shape[1] // CHUNK), *h.shape[1:])
    if use_graph:
        h = h[: -(-q.shape[1] // CHUNK) + cu_seqlens.shape[0] - 2]
    return h[None]


def chunk_kda(
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    scale: float | None = None,
    initial_state: Any = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    safe_gate: bool = False,
    lower_bound: float | None = None,
    disable_recompute: bool = False,
    return_intermediate_states: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Any = None,
    cu_seqlens_cpu: Any = None,
    cp_context: Any = None,
    use_graph: bool = False,
    max_num_seqs: int | None = None,
    *,
    A_log: Any = None,
    dt_bias: Any = None,
    chunk_size: int = CHUNK,
    transpose_state_layout: bool = UNSET,
) -> tuple[Any, ...]:
    """Kimi Delta Attention, with the arguments of `fla.ops.kda.chunk_kda` (0.6.0).

    Args:
        q, k: [B, T, H, K], fp32, bf16 or fp16, torch's (CPU or CUDA) or NumPy's.
        v: [B, T, HV, V]; HV is a multiple of H.
        g: [B, T, HV, K]: natural logarithm of the decay, or the raw gate with `use_gate_in_kernel`.
        beta: [B, T, HV], or its logits with `use_beta_sigmoid_in_kernel`.
        scale: of q; K ** -0.5 if None.
        initial_state: [N, HV, K, V] ([N, HV, V, K] with `state_v_first`), fp32, bf16 or fp16.
        output_final_state: return final states, fp32.
        use_qk_l2norm_in_kernel: scale q and k by rsqrt(sum of squares + 1e-6) first.
        use_gate_in_kernel: the gate is -exp(A_log) * softplus(g + dt_bias), or with `lower_bound`
            lower_bound * sigmoid(exp(A_log) * (g + dt_bias)), where A_log may be None (then without the factor).
        use_beta_sigmoid_in_kernel, allow_neg_eigval: beta is sigmoid(beta), or 2 * sigmoid(beta) with both.
        safe_gate: checked as FLA does (lower_bound in [-5, 0)). Has no effect: gates of any size are exact here, and
            FLA does not clamp precomputed ones.
        lower_bound: see use_gate_in_kernel.
        disable_recompute: accepted without effect: there is no backward yet.
        return_intermediate_states: also return the states at the start of each 64 tokens.
        state_v_first: states are [V, K].
        cu_seqlens: [N + 1], int32 or int64: sequences are packed into T, and B is 1. Stays on the device.
        cu_seqlens_cpu: the same on the host; plans can then fit the lengths.
        cp_context: must be None.
        use_graph: lengths may change between replays of a captured graph: `cu_seqlens_cpu` is ignored.
        max_num_seqs: with use_graph, N.
        A_log: HV elements of any shape, fp32, bf16 or fp16. Read with use_gate_in_kernel.
        dt_bias: HV * K elements, likewise; may be None.
        chunk_size: 32 or 64. Results do not depend on it; only 64 with return_intermediate_states.
        transpose_state_layout: the deprecated name of state_v_first.

    Returns:
        (o, final_state), or (o, final_state, h) with return_intermediate_states. o: [B, T, HV, V] as q; final_state as
        initial_state in fp32, or None; h: [B, NT, HV, K, V] as q.
    """
    compiling = _compiling()
    if transpose_state_layout is not UNSET:
        state_v_first = renamed_layout(state_v_first, transpose_state_layout, compiling)
    key = (
        scale,
        output_final_state,
        use_qk_l2norm_in_kernel,
        use_gate_in_kernel,
        use_beta_sigmoid_in_kernel,
        allow_neg_eigval,
        safe_gate,
        lower_bound,
        return_intermediate_states,
        state_v_first,
        chunk_size,
    )
    chosen = _choose(key, True) if compiling else _known.get(key) or _choose(key, False)
    if cp_context is not None:
        refuse_context(cp_context)
    if use_graph:
        _check_graph(cu_seqlens, max_num_seqs)
    if return_intermediate_states:
        _check_states(q, cu_seqlens, cu_seqlens_cpu, use_graph)
    host_offsets = None if cu_seqlens is None or use_graph else cu_seqlens_cpu
    o, final, h = run(chosen, compiling, q, k, v, g, beta, A_log, dt_bias, initial_state, cu_seqlens, host_offsets)
    if return_intermediate_states:
        return o, final, _shaped(h, q, cu_seqlens, use_graph)
    return o, final
