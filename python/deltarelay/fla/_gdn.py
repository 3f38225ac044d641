"""chunk_gated_delta_rule with FLA's signature."""

from __future__ import annotations

from typing import Any

from .._problem import CHUNK
from ..functions import _compiling
from ._arguments import (
    UNSET,
    Chosen,
    check_chunk_size,
    check_flags,
    choose,
    keep,
    refuse_context,
    renamed_layout,
    run,
)

_known: dict[tuple[Any, ...], Chosen] = {}


def _choose(key: tuple[Any, ...], compiling: bool) -> Chosen:
    """Everything about a call that does not depend on its tensors. Computed once per combination of values."""
    scale, final, l2norm, raw, sigmoid, twice, v_first, chunk_size = key
    check_flags(
        output_final_state=final,
        use_qk_l2norm_in_kernel=l2norm,
        use_gate_in_kernel=raw,
        use_beta_sigmoid_in_kernel=sigmoid,
        allow_neg_eigval=twice,
        state_v_first=v_first,
    )
    check_chunk_size(chunk_size, (16, 32, CHUNK))
    chosen = choose("gdn", scale, l2norm, raw, None, sigmoid, twice, v_first, final, compiling=compiling)
    return chosen if compiling else keep(_known, key, chosen)


def chunk_gated_delta_rule(
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    scale: float | None = None,
    initial_state: Any = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Any = None,
    cu_seqlens_cpu: Any = None,
    chunk_indices: Any = None,
    cp_context: Any = None,
    *,
    use_gate_in_kernel: bool = False,
    A_log: Any = None,
    dt_bias: Any = None,
    chunk_size: int = CHUNK,
    transpose_state_layout: bool = UNSET,
    head_first: bool = UNSET,
) -> tuple[Any, Any]:
    """Gated DeltaNet, with the arguments of `fla.ops.gated_delta_rule.chunk_gated_delta_rule` (0.6.0).

    Args:
        q, k: [B, T, H, K], fp32, bf16 or fp16, torch's (CPU or CUDA) or NumPy's.
        v: [B, T, HV, V]; HV is a multiple of H.
        g: [B, T, HV]: natural logarithm of the decay, or the raw gate with `use_gate_in_kernel`.
        beta: [B, T, HV], or its logits with `use_beta_sigmoid_in_kernel`.
        scale: of q; K ** -0.5 if None.
        initial_state: [N, HV, K, V] ([N, HV, V, K] with `state_v_first`), fp32, bf16 or fp16.
        output_final_state: return final states, fp32.
        use_qk_l2norm_in_kernel: scale q and k by rsqrt(sum of squares + 1e-6) first.
        use_beta_sigmoid_in_kernel, allow_neg_eigval: beta is sigmoid(beta), or 2 * sigmoid(beta) with both.
        state_v_first: states are [V, K].
        cu_seqlens: [N + 1], int32 or int64: sequences are packed into T, and B is 1. Stays on the device.
        cu_seqlens_cpu: the same on the host; plans can then fit the lengths.
        chunk_indices: accepted and ignored: they follow from cu_seqlens.
        cp_context: must be None.
        use_gate_in_kernel: the gate is -exp(A_log) * softplus(g + dt_bias).
        A_log, dt_bias: HV elements each, fp32, bf16 or fp16. Read with use_gate_in_kernel; dt_bias may be None.
        chunk_size: 16, 32 or 64. Results do not depend on it.
        transpose_state_layout: the deprecated name of state_v_first.
        head_first: must not be given: FLA removed it.

    Returns:
        (o, final_state). o: [B, T, HV, V] as q; final_state as initial_state in fp32, or None.
    """
    compiling = _compiling()
    if transpose_state_layout is not UNSET:
        state_v_first = renamed_layout(state_v_first, transpose_state_layout, compiling)
    if head_first is not UNSET:
        raise DeprecationWarning(
            f"head_first: expected not to be given (tensors are [B, T, H, ...]), found {head_first!r}"
        )
    key = (
        scale,
        output_final_state,
        use_qk_l2norm_in_kernel,
        use_gate_in_kernel,
        use_beta_sigmoid_in_kernel,
        allow_neg_eigval,
        state_v_first,
        chunk_size,
    )
    chosen = _choose(key, True) if compiling else _known.get(key) or _choose(key, False)
    if cp_context is not None:
        refuse_context(cp_context)
    host_offsets = None if cu_seqlens is None else cu_seqlens_cpu
    o, final, _ = run(chosen, compiling, q, k, v, g, beta, A_log, dt_bias, initial_state, cu_seqlens, host_offsets)
    return o, final


chunk_gdn = chunk_gated_delta_rule
