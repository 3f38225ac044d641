"""Prefill calls of vLLM's layers as calls of ours: vLLM's arguments, vLLM's results. Recorded from vLLM 0.33.0.

States are [N, HV, V, K] everywhere, and the layers gather them, clear those without history and scatter them back.
Every function declines before it has written anything.
"""

from __future__ import annotations

from typing import Any

from .. import forward
from ..errors import Invalid, Unsupported
from ._adapter import check_unknown, dtype_of, listed, one_checkpoint, options
from ._report import Engine

engine = Engine("vLLM", "vllm.deltarelay")

# ---- GDN. Gates are logarithms, beta is past its sigmoid.

GDN_PARAMETERS = listed(
    "q k v g beta initial_state output_final_state cu_seqlens= chunk_indices= chunk_offsets= "
    "use_qk_l2norm_in_kernel= core_attn_out= aiter_prefill_metadata="
)
CHECKPOINTED_PARAMETERS = listed(
    "q k v g beta initial_state output_final_state cu_seqlens= use_qk_l2norm_in_kernel= state_checkpoints= "
    "checkpoint_cu_starts= checkpoint_every_n_tokens= use_cp="
)
OLMO_PARAMETERS = listed(
    "q k v g beta scale= initial_state= output_final_state= cu_seqlens= chunk_indices= chunk_offsets= "
    "use_qk_l2norm_in_kernel= core_attn_out="
)


def _gdn(
    q: Any, k: Any, v: Any, g: Any, beta: Any, *, initial: Any, wants_final: bool, l2norm: bool, **given: Any
) -> Any:
    return forward(
        "gdn",
        q,
        k,
        v,
        g,
        beta,
        gate="log",
        beta_form="value",
        l2norm=bool(l2norm),
        initial=initial,
        final=bool(wants_final),
        final_dtype=dtype_of(initial),
        state_layout="value_major",
        **given,
        **options(),
    )


def gdn_prefill(
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    initial_state: Any,
    output_final_state: bool,
    cu_seqlens: Any = None,
    chunk_indices: Any = None,
    chunk_offsets: Any = None,
    use_qk_l2norm_in_kernel: bool = True,
    core_attn_out: Any = None,
    aiter_prefill_metadata: Any = None,
    **unknown: Any,
) -> tuple[Any, Any]:
    """The operator of Qwen3-Next and its relatives: (o, final states). Chunk lists are not needed."""
    _refuse("ChunkGatedDeltaRule", "aiter_prefill_metadata", aiter_prefill_metadata)
    check_unknown(engine, "ChunkGatedDeltaRule", unknown)
    o = _head_of(core_attn_out, v)
    result = _gdn(
        q,
        k,
        v,
        g,
        beta,
        initial=initial_state,
        wants_final=output_final_state,
        l2norm=use_qk_l2norm_in_kernel,
        seq_offsets=cu_seqlens,
        o=o,
    )
    if core_attn_out is not None and o is None:
        core_attn_out.reshape(-1)[: result.o.numel()].copy_(result.o.reshape(-1))
    return result.o, result.final


def _refuse(where: str, name: str, found: Any) -> None:
    """Of an argument that is known, and whose only value here is None."""
    if found is not None:
        raise Unsupported(f"{name}: expected None in a call of {where}, found {type(found).__name__}")


def _head_of(buffer: Any, v: Any) -> Any:
    """The first elements of vLLM's output buffer as o, if their layout can be written directly."""
    if buffer is None or not buffer.is_contiguous() or buffer.dtype != v.dtype or buffer.numel() < v.numel():
        return None
    return buffer.view(-1)[: v.numel()].view(v.shape)


def checkpointed_gdn_prefill(
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    initial_state: Any,
    output_final_state: bool,
    cu_seqlens: Any = None,
    use_qk_l2norm_in_kernel: bool = True,
    state_checkpoints: Any = None,
    checkpoint_cu_starts: Any = None,
    checkpoint_every_n_tokens: int = 0,
    use_cp: Any = "auto",
    **unknown: Any,
) -> tuple[Any, Any]:
    """FlashInfer's place in the layers of Qwen3-Next, for steps that keep states for the prefix cache: those after each
    `checkpoint_every_n_tokens` tokens of a sequence, in the rows from `checkpoint_cu_starts[n]` on. `use_cp` chooses
    among FlashInfer's kernels and asks for nothing here."""
    check_unknown(engine, "fi_chunk_gated_delta_rule", unknown)
    kept = {}
    if state_checkpoints is not None:
        if checkpoint_cu_starts is None or checkpoint_every_n_tokens <= 0:
            raise Invalid(
                "state_checkpoints: expected together with checkpoint_cu_starts and checkpoint_every_n_tokens above 0, "
                f"found {type(checkpoint_cu_starts).__name__} and {checkpoint_every_n_tokens}"
            )
        kept = _every(state_checkpoints, checkpoint_cu_starts, checkpoint_every_n_tokens)
    result = _gdn(
        q,
        k,
        v,
        g,
        beta,
        initial=initial_state,
        wants_final=output_final_state,
        l2norm=use_qk_l2norm_in_kernel,
        seq_offsets=cu_seqlens,
        **kept,
    )
    return result.o, result.final


def _every(states: Any, starts: Any, every: int) -> dict[str, Any]:
    """Lists of checkpoints from vLLM's plan, made on the device: row r is state `r - starts[n] + 1` of its sequence."""
    import torch

    rows = torch.arange(states.shape[0], dtype=torch.int32, device=starts.device)
    starts = starts.to(torch.int32)
    sequences = torch.searchsorted(starts, rows, right=True) - 1
    return {
        "checkpoints": "list",
        "checkpoint": states,
        "checkpoint_offsets": starts,
        "checkpoint_positions": (rows - starts[sequences] + 1) * every,
    }


def olmo_prefill(
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    scale: float | None = None,
    initial_state: Any = None,
    output_final_state: bool = False,
    cu_seqlens: Any = None,
    chunk_indices: Any = None,
    chunk_offsets: Any = None,
    use_qk_l2norm_in_kernel: bool = False,
    core_attn_out: Any = None,
    **unknown: Any,
) -> tuple[Any, Any]:
    """OLMo hybrid: FLA's function in the layer's module. beta is up to 2."""
    _refuse("chunk_gated_delta_rule", "core_attn_out", core_attn_out)
    check_unknown(engine, "chunk_gated_delta_rule", unknown)
    result = _gdn(
        q,
        k,
        v,
        g,
        beta,
        scale=scale,
        initial=initial_state,
        wants_final=output_final_state,
        l2norm=use_qk_l2norm_in_kernel,
        seq_offsets=cu_seqlens,
    )
    return result.o, result.final


# ---- KDA

K3_PARAMETERS = listed(
    "q k v raw_g raw_beta A_log g_bias scale= initial_state= output_final_state= lower_bound= "
    "use_qk_l2norm_in_kernel= cu_seqlens= out="
)
GLM_PARAMETERS = listed(
    "q k v raw_g beta A_log g_bias scale= initial_state= output_final_state= use_qk_l2norm_in_kernel= cu_seqlens= "
    "safe_gate= lower_bound="
)
FLASHKDA_PARAMETERS = listed(
    "q k v g beta A_log dt_bias lower_bound initial_state cu_seqlens out final_state workspace checkpoint_state= "
    "checkpoint_offsets="
)
FLASHINFER_PARAMETERS = listed(
    "q k v raw_g raw_beta A_log dt_bias lower_bound initial_state cu_seqlens out seq_order= prefill_workspace="
)
GLM_FLASHKDA_PARAMETERS = listed(
    "self q k v g beta initial_state cu_seqlens out checkpoint= raw_qkv= conv_state= recurrent_state="
)
BAILING_PARAMETERS = listed(
    "q k v g beta scale= initial_state= output_final_state= use_qk_l2norm_in_kernel= cu_seqlens="
)


def _kda(q: Any, k: Any, v: Any, g: Any, beta: Any, *, lower_bound: float | None, **given: Any) -> Any:
    """A raw gate: bounded where there is a bound, else softplus."""
    gate = {"gate": "softplus"} if lower_bound is None else {"gate": "bounded", "lower_bound": float(lower_bound)}
    return forward("kda", q, k, v, g, beta, **gate, state_layout="value_major", **given, **options())


def k3_prefill(
    q: Any,
    k: Any,
    v: Any,
    raw_g: Any,
    raw_beta: Any,
    A_log: Any,
    g_bias: Any,
    scale: float | None = None,
    initial_state: Any = None,
    output_final_state: bool = False,
    lower_bound: float | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Any = None,
    out: Any = None,
    **unknown: Any,
) -> tuple[Any, Any]:
    """Kimi Linear and Kimi K3: beta is a logit."""
    check_unknown(engine, "chunk_kda_with_fused_gate", unknown)
    result = _kda(
        q,
        k,
        v,
        raw_g,
        raw_beta,
        lower_bound=lower_bound,
        a_log=A_log,
        dt_bias=g_bias,
        beta_form="logit",
        scale=scale,
        l2norm=use_qk_l2norm_in_kernel,
        initial=initial_state,
        final=bool(output_final_state),
        final_dtype=dtype_of(initial_state),
        seq_offsets=cu_seqlens,
        o=out,
    )
    return result.o, result.final


def glm_prefill(
    q: Any,
    k: Any,
    v: Any,
    raw_g: Any,
    beta: Any,
    A_log: Any,
    g_bias: Any,
    scale: float | None = None,
    initial_state: Any = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Any = None,
    safe_gate: bool = False,
    lower_bound: float = -5.0,
    **unknown: Any,
) -> tuple[Any, Any]:
    """GLM-5-Next: beta is already a sigmoid; the bound counts only with safe_gate."""
    check_unknown(engine, "chunk_kda_with_fused_gate", unknown)
    if safe_gate and lower_bound is None:
        raise Invalid("lower_bound: expected a number below 0 with safe_gate, found None")
    result = _kda(
        q,
        k,
        v,
        raw_g,
        beta,
        lower_bound=lower_bound if safe_gate else None,
        a_log=A_log,
        dt_bias=g_bias,
        beta_form="value",
        scale=scale,
        l2norm=use_qk_l2norm_in_kernel,
        initial=initial_state,
        final=bool(output_final_state),
        final_dtype=dtype_of(initial_state),
        seq_offsets=cu_seqlens,
    )
    return result.o, result.final


def flashkda_prefill(
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    A_log: Any,
    dt_bias: Any,
    lower_bound: float,
    initial_state: Any,
    cu_seqlens: Any,
    out: Any,
    final_state: Any,
    workspace: Any,
    checkpoint_state: Any = None,
    checkpoint_offsets: Any = None,
    **unknown: Any,
) -> tuple[Any, Any]:
    """FlashKDA's place in Kimi K3: outputs and states are written where vLLM wants them; beta is a logit; q and k are
    normalised; one state inside a sequence, after checkpoint_offsets[n] tokens if that is above 0."""
    check_unknown(engine, "_flashkda_prefill", unknown)
    if (checkpoint_state is None) != (checkpoint_offsets is None):
        raise Invalid("checkpoint_state: expected together with checkpoint_offsets, found one of them")
    kept = {}
    if checkpoint_state is not None:
        kept = one_checkpoint(checkpoint_offsets, checkpoint_offsets > 0, checkpoint_state)
    _kda(
        q,
        k,
        v,
        g,
        beta,
        lower_bound=lower_bound,
        a_log=A_log,
        dt_bias=dt_bias,
        beta_form="logit",
        l2norm=True,
        initial=initial_state,
        final=final_state,
        seq_offsets=cu_seqlens,
        o=out,
        **kept,
    )
    return out, final_state


def flashinfer_kda_prefill(
    q: Any,
    k: Any,
    v: Any,
    raw_g: Any,
    raw_beta: Any,
    A_log: Any,
    dt_bias: Any,
    lower_bound: float,
    initial_state: Any,
    cu_seqlens: Any,
    out: Any,
    seq_order: Any = None,
    prefill_workspace: Any = None,
    **unknown: Any,
) -> tuple[Any, Any]:
    """FlashInfer's place in Kimi K3: final states replace the initial ones. `seq_order` sorts sequences for
    FlashInfer's grid, and `prefill_workspace` is its memory: neither changes a result."""
    check_unknown(engine, "_flashinfer_kda_prefill", unknown)
    _kda(
        q,
        k,
        v,
        raw_g,
        raw_beta,
        lower_bound=lower_bound,
        a_log=A_log,
        dt_bias=dt_bias,
        beta_form="logit",
        l2norm=True,
        initial=initial_state,
        final=initial_state,
        seq_offsets=cu_seqlens,
        o=out,
    )
    return out, initial_state


GLM_ATTRIBUTES = ("A_log", "dt_bias", "kda_lower_bound", "_checkpoint_exporter")  # of the layer, read below


def glm_flashkda_prefill(
    layer: Any,
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    initial_state: Any,
    cu_seqlens: Any,
    out: Any,
    checkpoint: Any = None,
    raw_qkv: Any = None,
    conv_state: Any = None,
    recurrent_state: Any = None,
    **unknown: Any,
) -> tuple[Any, Any]:
    """FlashKDA's place in GLM-5-Next, a method of the layer: the gate and beta are raw, and the layer has the gate's
    parameters. States inside sequences are handed to the layer's exporter, as vLLM's method does."""
    check_unknown(engine, "Glm5NextLinearAttention._flashkda_prefill", unknown)
    absent = [name for name in GLM_ATTRIBUTES if not hasattr(layer, name)]
    if absent:
        raise Unsupported(f"layer: expected attributes {', '.join(GLM_ATTRIBUTES)}, found none named {absent[0]}")
    if layer.kda_lower_bound is None:
        raise Invalid("kda_lower_bound: expected a number below 0, found None")
    kept, states = {}, None
    if checkpoint is not None:
        if raw_qkv is None or conv_state is None or recurrent_state is None or layer._checkpoint_exporter is None:
            raise Invalid("checkpoint: expected together with raw_qkv, conv_state, recurrent_state and an exporter")
        positions, states = checkpoint.checkpoint_offsets, initial_state.new_empty(initial_state.shape)
        kept = one_checkpoint(positions, positions > 0, states)
    result = _kda(
        q,
        k,
        v,
        g,
        beta,
        lower_bound=layer.kda_lower_bound,
        a_log=layer.A_log,
        dt_bias=layer.dt_bias,
        beta_form="logit",
        l2norm=True,
        initial=initial_state,
        final=True,
        final_dtype=dtype_of(initial_state),
        seq_offsets=cu_seqlens,
        o=out,
        **kept,
    )
    if checkpoint is not None:
        layer._checkpoint_exporter.export(
            checkpoint,
            raw_qkv=raw_qkv,
            conv_state=conv_state,
            recurrent_checkpoint=states,
            recurrent_state=recurrent_state,
            cu_seqlens=cu_seqlens,
        )
    return result.o, result.final


def bailing_prefill(
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    scale: float | None = None,
    initial_state: Any = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Any = None,
    safe_gate: bool = False,
    lower_bound: float | None = None,
    **unknown: Any,
) -> tuple[Any, Any]:
    """Bailing v3: the layer has activated gate and beta. `safe_gate` and `lower_bound` say with which bound: a promise
    about the logarithms in g."""
    check_unknown(engine, "chunk_kda", unknown)
    floor: dict[str, Any] = {"gate_floor": float(lower_bound)} if safe_gate and lower_bound is not None else {}
    result = forward(
        "kda",
        q,
        k,
        v,
        g,
        beta,
        gate="log",
        beta_form="value",
        scale=scale,
        l2norm=bool(use_qk_l2norm_in_kernel),
        initial=initial_state,
        final=bool(output_final_state),
        final_dtype=dtype_of(initial_state),
        state_layout="value_major",
        seq_offsets=cu_seqlens,
        **floor,
        **options(),
    )
    return result.o, result.final
