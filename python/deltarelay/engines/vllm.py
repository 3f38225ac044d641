"""vLLM: prefill of GDN and KDA layers, on DELTARELAY_VLLM=1. Recorded from vLLM 0.33.0.

GDN uses `ChunkGatedDeltaRule.register_oot`, vLLM's way to replace an operator. KDA layers call functions of their
modules, which are replaced there. Around both, vLLM gathers states, clears those without history and scatters
them back. Decode steps are not changed.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from .. import forward
from ..errors import Invalid
from ._adapter import (
    Drift,
    check_signature,
    check_unknown,
    dtype_of,
    is_on,
    log,
    one_checkpoint,
    options,
    run_or_leave,
)

RECORDED = "0.33.0"
SWITCH = "DELTARELAY_VLLM"

# ---- GDN

GDN_MODULE = "vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn"
GDN_CLASS = "ChunkGatedDeltaRule"
GDN_PARAMETERS = (
    "q",
    "k",
    "v",
    "g",
    "beta",
    "initial_state",
    "output_final_state",
    "cu_seqlens=",
    "chunk_indices=",
    "chunk_offsets=",
    "use_qk_l2norm_in_kernel=",
    "core_attn_out=",
    "aiter_prefill_metadata=",
)
# Backends that vLLM may choose while the operator still serves prefills. Others are for devices of other vendors.
GDN_BACKENDS = ("triton", "flashinfer", "cutedsl")


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
    """(o, final states). Gates are logarithms, beta is past its sigmoid, states are [N, HV, V, K]. Chunk lists are not
    needed."""
    check_unknown(GDN_CLASS, {"aiter_prefill_metadata": aiter_prefill_metadata, **unknown})
    o = _head_of(core_attn_out, v)
    result = forward(
        "gdn",
        q,
        k,
        v,
        g,
        beta,
        gate="log",
        beta_form="value",
        l2norm=use_qk_l2norm_in_kernel,
        seq_offsets=cu_seqlens,
        initial=initial_state,
        final=bool(output_final_state),
        final_dtype=dtype_of(initial_state),
        state_layout="value_major",
        o=o,
        **options(),
    )
    if core_attn_out is not None and o is None:
        core_attn_out.reshape(-1)[: result.o.numel()].copy_(result.o.reshape(-1))
    return result.o, result.final


def _head_of(buffer: Any, v: Any) -> Any:
    """The first elements of vLLM's output buffer as o, if their layout can be written directly."""
    if buffer is None or not buffer.is_contiguous() or buffer.dtype != v.dtype or buffer.numel() < v.numel():
        return None
    return buffer.view(-1)[: v.numel()].view(v.shape)


def _gdn_class(base: Any) -> Any:
    class DeltaRelayChunkGatedDeltaRule(base):
        """vLLM's operator, with our forward. `gdn_prefill_backend` stays what vLLM chose: its metadata is made for
        that."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._own_method = self._forward_method
            if self.gdn_prefill_backend in GDN_BACKENDS:
                self._forward_method = self.forward_deltarelay
                log.info("GDN prefill: deltarelay (vLLM had chosen %s)", self.gdn_prefill_backend)
            else:
                log.warning("GDN prefill: left to vLLM, which chose %s", self.gdn_prefill_backend)

        def forward_deltarelay(self, *args: Any, **kwargs: Any) -> Any:
            return run_or_leave(
                "GDN prefill", lambda: gdn_prefill(*args, **kwargs), lambda: self._own_method(*args, **kwargs)
            )

    return DeltaRelayChunkGatedDeltaRule


def _register_gdn() -> None:
    base = getattr(importlib.import_module(GDN_MODULE), GDN_CLASS, None)
    if base is None or not hasattr(base, "register_oot"):
        raise Drift(f"{GDN_MODULE}: expected a class {GDN_CLASS} with register_oot")
    check_signature(base.__init__, ("self",), f"{GDN_CLASS}.__init__")
    check_signature(base.forward_native, ("self", *GDN_PARAMETERS), f"{GDN_CLASS}.forward_native")
    base.register_oot(_gdn_class(base))


# ---- KDA

K3_PARAMETERS = (
    "q",
    "k",
    "v",
    "raw_g",
    "raw_beta",
    "A_log",
    "g_bias",
    "scale=",
    "initial_state=",
    "output_final_state=",
    "lower_bound=",
    "use_qk_l2norm_in_kernel=",
    "cu_seqlens=",
    "out=",
)
GLM_PARAMETERS = (
    "q",
    "k",
    "v",
    "raw_g",
    "beta",
    "A_log",
    "g_bias",
    "scale=",
    "initial_state=",
    "output_final_state=",
    "use_qk_l2norm_in_kernel=",
    "cu_seqlens=",
    "safe_gate=",
    "lower_bound=",
)
FLASHKDA_PARAMETERS = (
    "q",
    "k",
    "v",
    "g",
    "beta",
    "A_log",
    "dt_bias",
    "lower_bound",
    "initial_state",
    "cu_seqlens",
    "out",
    "final_state",
    "workspace",
    "checkpoint_state=",
    "checkpoint_offsets=",
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
    check_unknown("chunk_kda_with_fused_gate", unknown)
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
    check_unknown("chunk_kda_with_fused_gate", unknown)
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
    check_unknown("_flashkda_prefill", unknown)
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


# module, function, its parameters, ours. A module that imported the function by name is listed instead of its source.
KDA_FUNCTIONS: tuple[tuple[str, str, tuple[str, ...], Callable[..., Any]], ...] = (
    (
        "vllm.models.kimi_k3.nvidia.ops.third_party.kda",
        "chunk_kda_with_fused_gate",
        K3_PARAMETERS,
        k3_prefill,
    ),
    ("vllm.models.kimi_k3.nvidia.kda", "_flashkda_prefill", FLASHKDA_PARAMETERS, flashkda_prefill),
    ("vllm.models.glm5next.common.kda", "chunk_kda_with_fused_gate", GLM_PARAMETERS, glm_prefill),
)


def _replace(module_name: str, name: str, parameters: tuple[str, ...], ours: Callable[..., Any]) -> None:
    module = importlib.import_module(module_name)
    theirs = getattr(module, name, None)
    if not callable(theirs):
        raise Drift(f"{module_name}: expected a function {name}")
    check_signature(theirs, parameters, f"{module_name}.{name}")

    @functools.wraps(theirs)
    def prefill(*args: Any, **kwargs: Any) -> Any:
        return run_or_leave(f"KDA prefill ({name})", lambda: ours(*args, **kwargs), lambda: theirs(*args, **kwargs))

    setattr(module, name, prefill)


# ---- the entry point

_done: dict[str, str] = {}


def register() -> dict[str, str]:
    """vLLM's entry point (group vllm.general_plugins): called in each of its processes. What was taken over, and what
    was not.

    Nothing here raises: where vLLM is not as recorded, a warning says so and its own path stays.
    """
    if not is_on(SWITCH):
        return {}
    if _done:
        return dict(_done)
    steps: dict[str, Callable[[], None]] = {"GDN prefill": _register_gdn}
    for module, name, parameters, ours in KDA_FUNCTIONS:
        steps[f"{module}.{name}"] = functools.partial(_replace, module, name, parameters, ours)
    for what, step in steps.items():
        try:
            step()
        except Drift as drift:
            _done[what] = f"declined: vLLM is not {RECORDED} here: {drift}"
        except ImportError as error:
            _done[what] = f"declined: not in this vLLM: {error}"
        except Exception as error:
            _done[what] = f"declined: {type(error).__name__}: {error}"
        else:
            _done[what] = "taken over"
        log.log(30 if _done[what].startswith("declined") else 20, "vLLM, %s: %s", what, _done[what])
    return dict(_done)


__all__ = [
    "RECORDED",
    "SWITCH",
    "flashkda_prefill",
    "gdn_prefill",
    "glm_prefill",
    "k3_prefill",
    "register",
]
