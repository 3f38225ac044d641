"""SGLang: prefill ("extend") of GDN and KDA layers, on DELTARELAY_SGLANG=1. Recorded from SGLang 0.5.23.

Hooks after the constructors of its two dispatchers replace the chosen kernel by ours. States are read from and written
to SGLang's pool directly. Decode and verify steps are not changed.
"""

from __future__ import annotations

import importlib
import logging
from typing import Any

from .. import forward
from .._switches import switch
from ..errors import Invalid, Unsupported
from ._adapter import Drift, check_signature, check_unknown, one_checkpoint, options
from ._report import TAKEN_OVER, Engine, Status

engine = Engine("SGLang", "sglang.deltarelay")
RECORDED = "0.5.23"
SWITCH = "DELTARELAY_SGLANG"
CHUNK = 64  # tokens between the boundaries that track_chunk_idx counts

_LINEAR = "sglang.srt.layers.attention.linear"
GDN_TARGET = f"{_LINEAR}.gdn_backend.GDNKernelDispatcher"
KDA_TARGET = f"{_LINEAR}.kda_backend.KDAKernelDispatcher"
REGISTRY = "sglang.srt.plugins.hook_registry"

DISPATCHER_PARAMETERS = ("self", "q", "k", "v", "g", "beta", "ssm_states", "cache_indices", "query_start_loc")
GDN_PARAMETERS = (*DISPATCHER_PARAMETERS, "inplace_update=")
KDA_PARAMETERS = (
    *DISPATCHER_PARAMETERS,
    "A_log=",
    "dt_bias=",
    "lower_bound=",
    "beta_is_raw=",
    "return_intermediate_states=",
)


def _pool(ssm_states: Any, cache_indices: Any, in_place: bool) -> dict[str, Any]:
    """Rows that only pad a batch have -1 or slot 0, which belongs to nobody: they read zero and write nothing.

    If SGLang has gathered the states first, there are as many as sequences, and slot 0 is a real state.
    """
    is_gathered = ssm_states.shape[0] == cache_indices.shape[0]
    given = {
        "initial": ssm_states,
        "initial_index": cache_indices,
        "null_index": None if is_gathered else 0,
        "state_layout": "value_major",
    }
    if in_place:
        given |= {"final": ssm_states, "final_index": cache_indices}
    return given


def _tracked(track_state: Any, track_chunk_idx: Any, ssm_states: Any, cache_indices: Any) -> dict[str, Any]:
    """The state at a boundary inside a sequence, for the prefix cache; -1 means none. Boundary 0 is the state before
    the call."""
    import torch

    if (track_state is None) != (track_chunk_idx is None):
        raise Invalid("track_state: expected together with track_chunk_idx, found one of them")
    if track_state is None:
        return {}
    kept = one_checkpoint(track_chunk_idx * CHUNK, track_chunk_idx > 0, track_state)
    before = ssm_states.index_select(0, cache_indices.clamp(min=0))
    at_start, is_real = (mask[:, None, None, None] for mask in (track_chunk_idx == 0, cache_indices >= 0))
    torch.where(at_start, torch.where(is_real, before, 0).to(track_state.dtype), track_state, out=track_state)
    return kept


def _refuse_plans(cu_starts: Any, count: int | None, every: int | None) -> None:
    """Lists of checkpoints that SGLang makes for FlashInfer alone (uses_state_checkpoints)."""
    if cu_starts is not None or count or every:
        raise Unsupported("state_checkpoint_cu_starts: expected None, found a plan of FlashInfer's")


def gdn_extend(
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    *,
    ssm_states: Any,
    cache_indices: Any,
    query_start_loc: Any,
    inplace_update: bool = True,
    output: Any = None,
    track_state: Any = None,
    track_chunk_idx: Any = None,
    state_checkpoint_cu_starts: Any = None,
    num_state_checkpoints: int = 0,
    state_checkpoint_every_n_tokens: int = 0,
    layer_id: int | None = None,
    extend_prefix_lens: Any = None,
    **unknown: Any,
) -> tuple[Any, None, None]:
    """(o, None, None): states are in the pool, and states for the prefix cache in track_state. Gates are logarithms,
    beta is already a sigmoid, q and k are normalised here."""
    check_unknown(engine, "GDN extend", unknown)
    _refuse_plans(state_checkpoint_cu_starts, num_state_checkpoints, state_checkpoint_every_n_tokens)
    result = forward(
        "gdn",
        q,
        k,
        v,
        g,
        beta,
        gate="log",
        beta_form="value",
        l2norm=True,
        seq_offsets=query_start_loc,
        o=output,
        **_pool(ssm_states, cache_indices, inplace_update),
        **_tracked(track_state, track_chunk_idx, ssm_states, cache_indices),
        **options(),
    )
    return result.o, None, None


def kda_extend(
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    *,
    ssm_states: Any,
    cache_indices: Any,
    query_start_loc: Any,
    A_log: Any = None,
    dt_bias: Any = None,
    lower_bound: float | None = None,
    beta_is_raw: bool = False,
    return_intermediate_states: bool = False,
    is_spec_decode: bool = False,
    track_state: Any = None,
    track_chunk_idx: Any = None,
    track_ssm_h_src: Any = None,
    track_ssm_h_batch_src: Any = None,
    state_checkpoint_cu_starts: Any = None,
    num_state_checkpoints: int = 0,
    state_checkpoint_every_n_tokens: int = 0,
    state_checkpoint_indices: Any = None,
    extend_seq_lens_cpu: Any = None,
    extend_prefix_lens: Any = None,
    layer_id: int | None = None,
    chunk_indices: Any = None,
    chunk_offsets: Any = None,
    **unknown: Any,
) -> Any:
    """o, or (o, h) if intermediate states are asked for: h is None where track_state has what is needed of them. The
    gate is raw with A_log, a logarithm without; beta is a logit where beta_is_raw says so."""
    check_unknown(engine, "KDA extend", unknown)
    _refuse_plans(state_checkpoint_cu_starts, num_state_checkpoints, state_checkpoint_every_n_tokens)
    if is_spec_decode:
        raise Unsupported("is_spec_decode: expected False, found a step that must not be committed in place")
    kept = _tracked(track_state, track_chunk_idx, ssm_states, cache_indices)
    if return_intermediate_states and not kept and (track_ssm_h_src is None or track_ssm_h_src.numel() > 0):
        kept = {"checkpoints": "chunks"}
    if A_log is None:
        gate: dict[str, Any] = {"gate": "log"}
    else:
        gate = {"gate": "softplus", "a_log": A_log, "dt_bias": dt_bias}
        if lower_bound is not None:
            gate |= {"gate": "bounded", "lower_bound": float(lower_bound)}
    result = forward(
        "kda",
        q,
        k,
        v,
        g.unflatten(-1, (-1, q.shape[-1])) if g.ndim == q.ndim - 1 else g,
        beta,
        beta_form="logit" if beta_is_raw else "value",
        l2norm=True,
        seq_offsets=query_start_loc,
        **gate,
        **_pool(ssm_states, cache_indices, True),
        **kept,
        **options(),
    )
    if not return_intermediate_states:
        return result.o
    return result.o, result.checkpoint[None] if kept == {"checkpoints": "chunks"} else None


def _track_from_h(h: Any, query_start_loc: Any, track_state: Any, track_chunk_idx: Any) -> None:
    """States for the prefix cache from the states of all chunks, for a kernel without track_state."""
    import torch

    chunks = (query_start_loc.diff() + CHUNK - 1) // CHUNK
    rows = (chunks.cumsum(0) - chunks + track_chunk_idx).clamp(0, h.shape[1] - 1)
    wanted = (track_chunk_idx >= 0)[:, None, None, None]
    track_state.copy_(torch.where(wanted, h[0, rows].to(track_state.dtype), track_state))


def _kernel_class(base: Any, name: str, ours: Any) -> Any:
    """SGLang's own Triton kernel with our extend. Everything that SGLang does for that kernel, prefill graphs included,
    still works, and a call that we decline runs on it."""
    knows_tracking = base.supports_track_state_snapshot

    class DeltaRelayKernel(base):
        supports_track_state_snapshot = True
        uses_state_checkpoints = False

        def extend(self, *args: Any, **kwargs: Any) -> Any:
            return engine.run_or_leave(
                name, lambda: ours(*args, **kwargs), lambda: self.extend_of_sglang(*args, **kwargs)
            )

        def extend_of_sglang(self, *args: Any, **kwargs: Any) -> Any:
            result = super().extend(*args, **kwargs)
            if not knows_tracking and kwargs.get("track_state") is not None:
                _track_from_h(
                    result[2], *(kwargs[key] for key in ("query_start_loc", "track_state", "track_chunk_idx"))
                )
            return result

    DeltaRelayKernel.__name__ = DeltaRelayKernel.__qualname__ = f"DeltaRelay{name}Kernel"
    return DeltaRelayKernel


_KINDS = {
    "GDN": ("tree_verify_kernel", GDN_PARAMETERS, gdn_extend),
    "KDA": ("triton_kernel", KDA_PARAMETERS, kda_extend),
}
# Attributes of the dispatchers that hold the kernel of an extend. KDA's sends batches of single tokens to triton_kernel
# if it has chosen FlashInfer.
KERNELS = {"GDN": ("extend_kernel",), "KDA": ("extend_kernel", "triton_kernel")}
outcome = engine.outcome  # by rule: "taken over", "not reached: why" or "declined: why"


def take_over(dispatcher: Any, name: str) -> None:
    """Puts our kernel into a dispatcher. If SGLang differs from the recorded version, a warning says so and its own
    kernel stays."""
    attribute, parameters, ours = _KINDS[name]
    try:
        triton, previous = getattr(dispatcher, attribute, None), getattr(dispatcher, "extend_kernel", None)
        if triton is None or previous is None:
            raise Drift(f"{name}KernelDispatcher: expected {attribute} and extend_kernel")
        check_signature(type(dispatcher).extend, DISPATCHER_PARAMETERS, f"{name}KernelDispatcher.extend")
        check_signature(type(triton).extend, parameters, f"{type(triton).__name__}.extend")
        for flag in ("uses_state_checkpoints", "supports_track_state_snapshot"):
            if not isinstance(getattr(triton, flag, None), bool):
                raise Drift(f"{type(triton).__name__}: expected {flag}, which is True or False")
        kernel = _kernel_class(type(triton), name, ours)()
        engine.say_once(f"{name} extend: {type(kernel).__name__} instead of {type(previous).__name__}", logging.INFO)
        for holder in KERNELS[name]:
            setattr(dispatcher, holder, kernel)
        words = TAKEN_OVER
    except Drift as drift:
        words = f"declined: SGLang is not {RECORDED} here: {drift}"
    except Exception as error:
        words = f"declined: {type(error).__name__}: {error}"
    engine.note(name, words)


def _after_gdn(result: Any, dispatcher: Any, *args: Any, **kwargs: Any) -> None:
    take_over(dispatcher, "GDN")


def _after_kda(result: Any, dispatcher: Any, *args: Any, **kwargs: Any) -> None:
    take_over(dispatcher, "KDA")


_HOOKS = {"GDN": (GDN_TARGET, _after_gdn), "KDA": (KDA_TARGET, _after_kda)}


def register() -> dict[str, str]:
    """SGLang's entry point (group sglang.srt.plugins). Sets the hooks; the outcome is known when they have run."""
    if not switch(SWITCH):
        return {}
    if outcome:
        return dict(outcome)
    for name, (target, hook) in _HOOKS.items():
        try:
            registry = importlib.import_module(REGISTRY)
            check_signature(registry.HookRegistry.register, ("target", "hook", "hook_type="), "HookRegistry.register")
            registry.HookRegistry.register(f"{target}.__init__", hook, registry.HookType.AFTER)
            outcome[name] = "not reached: SGLang has made no dispatcher yet"
        except (Drift, AttributeError) as drift:
            engine.note(name, f"declined: SGLang is not {RECORDED} here: {drift}")
        except Exception as error:
            engine.note(name, f"declined: {type(error).__name__}: {error}")
    return dict(outcome)


def status() -> Status:
    """What was taken over in this process, and the calls that were taken and declined so far, and why."""
    return engine.status()


__all__ = ["KERNELS", "RECORDED", "SWITCH", "gdn_extend", "kda_extend", "outcome", "register", "status", "take_over"]
