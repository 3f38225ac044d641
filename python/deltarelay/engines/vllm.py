"""vLLM: prefill of GDN and KDA layers, on DELTARELAY_VLLM=1. Recorded from vLLM 0.33.0.

GDN uses `ChunkGatedDeltaRule.register_oot`, vLLM's way to replace an operator. Other layers call functions of their
modules or methods of their own, which are replaced there: each backend that a layer may choose has a row in PLACES. The
calls themselves are in `_vllm_prefill`. Decode steps are not changed.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

from .._switches import switch
from ..errors import Unsupported
from . import _vllm_prefill as calls
from ._adapter import Drift, check_signature
from ._report import TAKEN_OVER, Status
from ._vllm_prefill import engine

RECORDED = "0.33.0"
SWITCH = "DELTARELAY_VLLM"
GDN_MODULE = "vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn"
GDN_CLASS = "ChunkGatedDeltaRule"
GDN_OPERATOR = f"{GDN_MODULE}.{GDN_CLASS}"
# Backends that vLLM may choose while the operator still serves prefills. Others are for devices of other vendors.
GDN_BACKENDS = ("triton", "flashinfer", "cutedsl")


class Place(NamedTuple):
    """A function that a layer calls for its prefill. A module that imported it by name is listed, not its source."""

    models: str
    module: str
    name: str  # "Class.method" for a method
    parameters: tuple[str, ...]
    ours: Callable[..., Any]

    @property
    def path(self) -> str:
        return f"{self.module}.{self.name}"


_K3 = "vllm.models.kimi_k3.nvidia"
_GLM = "vllm.models.glm5next.common.kda"
PLACES = (
    Place(
        "Qwen3-Next and relatives, steps that keep states for the prefix cache",
        GDN_MODULE,
        "fi_chunk_gated_delta_rule",
        calls.CHECKPOINTED_PARAMETERS,
        calls.checkpointed_gdn_prefill,
    ),
    Place(
        "OLMo hybrid",
        "vllm.model_executor.layers.mamba.gdn.olmo_gdn_linear_attn",
        "chunk_gated_delta_rule",
        calls.OLMO_PARAMETERS,
        calls.olmo_prefill,
    ),
    Place(
        "Kimi Linear, and Kimi K3 with the backend triton",
        f"{_K3}.ops.third_party.kda",
        "chunk_kda_with_fused_gate",
        calls.K3_PARAMETERS,
        calls.k3_prefill,
    ),
    Place("Kimi K3", f"{_K3}.kda", "_flashkda_prefill", calls.FLASHKDA_PARAMETERS, calls.flashkda_prefill),
    Place(
        "Kimi K3 with the backend flashinfer",
        f"{_K3}.kda",
        "_flashinfer_kda_prefill",
        calls.FLASHINFER_PARAMETERS,
        calls.flashinfer_kda_prefill,
    ),
    Place(
        "GLM-5-Next",
        _GLM,
        "Glm5NextLinearAttention._flashkda_prefill",
        calls.GLM_FLASHKDA_PARAMETERS,
        calls.glm_flashkda_prefill,
    ),
    Place(
        "GLM-5-Next with the backend triton",
        _GLM,
        "chunk_kda_with_fused_gate",
        calls.GLM_PARAMETERS,
        calls.glm_prefill,
    ),
    Place(
        "Bailing v3",
        "vllm.model_executor.models.bailing_moe_v3",
        "chunk_kda",
        calls.BAILING_PARAMETERS,
        calls.bailing_prefill,
    ),
)
# Prefill calls of vLLM that go elsewhere, by their module: why they are not replaced.
NOT_REACHED = {
    "vllm.models.kimi_k3.amd": "ROCm has kernels of its own",
    "vllm.models.glm5next.amd": "ROCm has kernels of its own",
    "vllm.model_executor.layers.mamba.ops.cpu": "the CPU has a kernel of its own",
}
outcome = engine.outcome  # by place: "taken over", "not reached: why" or "declined: why"


def _gdn_class(base: Any) -> Any:
    class DeltaRelayChunkGatedDeltaRule(base):
        """vLLM's operator, with our forward. `gdn_prefill_backend` stays what vLLM chose: its metadata is made for
        that."""

        _forward_method: Callable[..., Any]

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._own_method = self._forward_method
            if self.gdn_prefill_backend in GDN_BACKENDS:
                self._forward_method = self.forward_deltarelay
                engine.say_once(f"GDN prefill: deltarelay (vLLM had chosen {self.gdn_prefill_backend})", 20)
            else:
                engine.note(GDN_OPERATOR, f"not reached: vLLM chose {self.gdn_prefill_backend} for its GDN prefill")

        def forward_deltarelay(self, *args: Any, **kwargs: Any) -> Any:
            return engine.run_or_leave(
                GDN_OPERATOR, lambda: calls.gdn_prefill(*args, **kwargs), lambda: self._own_method(*args, **kwargs)
            )

    return DeltaRelayChunkGatedDeltaRule


def _register_gdn() -> None:
    base = getattr(importlib.import_module(GDN_MODULE), GDN_CLASS, None)
    if base is None or not hasattr(base, "register_oot"):
        raise Drift(f"{GDN_MODULE}: expected a class {GDN_CLASS} with register_oot")
    check_signature(base.__init__, ("self",), f"{GDN_CLASS}.__init__")
    check_signature(base.forward_native, ("self", *calls.GDN_PARAMETERS), f"{GDN_CLASS}.forward_native")
    base.register_oot(_gdn_class(base))


def _replace(place: Place) -> None:
    owner: Any = importlib.import_module(place.module)
    *classes, name = place.name.split(".")
    for part in classes:
        owner = getattr(owner, part, None)
    theirs = getattr(owner, name, None)
    if not callable(theirs):
        raise Drift(f"{place.module}: expected a function {place.name}")
    positional = check_signature(theirs, place.parameters, place.path)
    ours, path = place.ours, place.path

    def checked(*args: Any, **kwargs: Any) -> Any:
        if len(args) > positional:
            raise Unsupported(f"arguments: expected at most {positional} by position, found {len(args)}")
        return ours(*args, **kwargs)

    @functools.wraps(theirs)
    def prefill(*args: Any, **kwargs: Any) -> Any:
        return engine.run_or_leave(path, lambda: checked(*args, **kwargs), lambda: theirs(*args, **kwargs))

    setattr(owner, name, prefill)


# ---- the entry point


def _other_platform() -> str:
    """Where vLLM does not run on CUDA, its layers call kernels of that platform, and no place of ours is reached."""
    try:
        platform = importlib.import_module("vllm.platforms").current_platform
        return "" if platform.is_cuda() else str(getattr(platform, "device_name", type(platform).__name__))
    except (ImportError, AttributeError):
        return ""


def register() -> dict[str, str]:
    """vLLM's entry point (group vllm.general_plugins): called in each of its processes. What was taken over, and what
    was not, by place.

    Nothing here raises: where vLLM is not as recorded, a warning says so and its own path stays.
    """
    if not switch(SWITCH):
        return {}
    if outcome:
        return dict(outcome)
    steps: dict[str, Callable[[], None]] = {GDN_OPERATOR: _register_gdn}
    steps |= {place.path: functools.partial(_replace, place) for place in PLACES}
    other = _other_platform()
    for path, step in steps.items():
        if other:
            engine.note(path, f"not reached: vLLM runs on {other} here, with kernels of that platform")
            continue
        try:
            step()
        except Drift as drift:
            words = f"declined: vLLM is not {RECORDED} here: {drift}"
        except ImportError as error:
            words = f"declined: not in this vLLM: {error}"
        except Exception as error:
            words = f"declined: {type(error).__name__}: {error}"
        else:
            words = TAKEN_OVER
        engine.note(path, words)
    return dict(outcome)


def status() -> Status:
    """What was taken over in this process, and the calls that were taken and declined so far, and why."""
    return engine.status()


__all__ = ["NOT_REACHED", "PLACES", "RECORDED", "SWITCH", "outcome", "register", "status"]
