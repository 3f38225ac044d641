"""SGLang 0.5.23, as far as its extend calls reach us: the hook registry, the two dispatchers, and its own kernels."""

from __future__ import annotations

import enum
import importlib
import sys
from typing import Any

import torch

from .recurrence import raw_gate, recurrence
from .vllm_0_33_0 import _module

OWN_CALLS: list[str] = []
CHUNK = 64


class HookType(enum.Enum):
    BEFORE = "before"
    AFTER = "after"
    AROUND = "around"
    REPLACE = "replace"


class HookRegistry:
    hooks: list[tuple[str, Any, HookType]] = []  # noqa: RUF012

    @classmethod
    def register(cls, target: str, hook: Any, hook_type: HookType = HookType.AFTER, *, source: Any = None) -> None:
        cls.hooks.append((target, hook, hook_type))

    @classmethod
    def apply_hooks(cls) -> None:
        """AFTER hooks of methods, which is all that is used here."""
        for target, hook, hook_type in cls.hooks:
            assert hook_type is HookType.AFTER
            module, owner_name, method = target.rsplit(".", 2)
            owner = getattr(importlib.import_module(module), owner_name)
            setattr(owner, method, _after(getattr(owner, method), hook))


def _after(original: Any, hook: Any) -> Any:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        changed = hook(result, *args, **kwargs)
        return result if changed is None else changed

    return wrapper


class LinearAttnKernelBase:
    uses_state_checkpoints: bool = False
    supports_track_state_snapshot: bool = False


def _run(rows: Any, g: Any, ssm_states: Any, cache_indices: Any, offsets: Any, in_place: bool) -> tuple[Any, list[Any]]:
    q, k, v, beta = rows
    index = cache_indices.long()
    initial = torch.where((index >= 0)[:, None, None, None], ssm_states[index.clamp(min=0)], 0.0)
    o, final, steps = recurrence(q, k, v, g, beta, offsets, initial, l2norm=True)
    for n, slot in enumerate(index.tolist()):
        if in_place and slot >= 0:
            ssm_states[slot] = final[n].to(ssm_states.dtype)
    return o.to(q.dtype), steps


class TritonGDNKernel(LinearAttnKernelBase):
    def extend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        g: torch.Tensor,
        beta: torch.Tensor,
        *,
        ssm_states: torch.Tensor,
        cache_indices: torch.Tensor,
        query_start_loc: torch.Tensor,
        inplace_update: bool = True,
        **kwargs: Any,
    ) -> tuple:
        OWN_CALLS.append("gdn")
        o, steps = _run((q, k, v, beta), g, ssm_states, cache_indices, query_start_loc, inplace_update)
        h = [states[t] for states in steps for t in range(0, len(states) - 1, CHUNK)]
        return o, None, torch.stack(h)[None].to(q.dtype)


class TritonKDAKernel(LinearAttnKernelBase):
    supports_track_state_snapshot: bool = True

    def extend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        g: torch.Tensor,
        beta: torch.Tensor,
        *,
        ssm_states: torch.Tensor,
        cache_indices: torch.Tensor,
        query_start_loc: torch.Tensor,
        A_log: torch.Tensor | None = None,
        dt_bias: torch.Tensor | None = None,
        lower_bound: float | None = None,
        beta_is_raw: bool = False,
        return_intermediate_states: bool = False,
        **kwargs: Any,
    ) -> Any:
        OWN_CALLS.append("kda")
        g = g if A_log is None else raw_gate(g, A_log, dt_bias, lower_bound)
        beta = beta.sigmoid() if beta_is_raw else beta
        o, steps = _run((q, k, v, beta), g, ssm_states, cache_indices, query_start_loc, True)
        h = [states[t] for states in steps for t in range(0, len(states) - 1, CHUNK)]
        return (o, torch.stack(h)[None]) if return_intermediate_states else o


class FlashInferGDNKernel(LinearAttnKernelBase):
    uses_state_checkpoints = True


class _Dispatcher:
    def extend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        g: torch.Tensor,
        beta: torch.Tensor,
        *,
        ssm_states: torch.Tensor,
        cache_indices: torch.Tensor,
        query_start_loc: torch.Tensor,
        **kwargs: Any,
    ) -> Any:
        pool = {"ssm_states": ssm_states, "cache_indices": cache_indices, "query_start_loc": query_start_loc}
        return self.extend_kernel.extend(q, k, v, g, beta, **pool, **kwargs)


class GDNKernelDispatcher(_Dispatcher):
    def __init__(self, decode_backend: Any, prefill_backend: Any, verify_backend: Any = None) -> None:
        self.tree_verify_kernel = TritonGDNKernel()
        self.extend_kernel: Any = FlashInferGDNKernel() if prefill_backend == "flashinfer" else self.tree_verify_kernel


class KDAKernelDispatcher(_Dispatcher):
    def __init__(self, decode_backend: Any, prefill_backend: Any, verify_backend: Any) -> None:
        self.triton_kernel = TritonKDAKernel()
        self.extend_kernel: Any = self.triton_kernel


GDN = "sglang.srt.layers.attention.linear.gdn_backend"
KDA = "sglang.srt.layers.attention.linear.kda_backend"
REGISTRY = "sglang.srt.plugins.hook_registry"


def install() -> None:
    OWN_CALLS.clear()
    HookRegistry.hooks.clear()
    gdn, kda, registry = _module(GDN), _module(KDA), _module(REGISTRY)
    gdn.GDNKernelDispatcher = type("GDNKernelDispatcher", (GDNKernelDispatcher,), {})  # type: ignore[attr-defined]
    kda.KDAKernelDispatcher = type("KDAKernelDispatcher", (KDAKernelDispatcher,), {})  # type: ignore[attr-defined]
    registry.HookRegistry, registry.HookType = HookRegistry, HookType  # type: ignore[attr-defined]


def remove() -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "sglang"]:
        del sys.modules[name]
