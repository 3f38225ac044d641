"""vLLM 0.33.0, as far as its prefill calls reach us."""

from __future__ import annotations

import sys
import types
from typing import Any

import torch

from .recurrence import raw_gate, recurrence

RESOLVED = {"backend": "flashinfer"}  # what vLLM chooses for itself
OWN_CALLS: list[str] = []  # calls that reached vLLM's own functions


def _module(name: str) -> types.ModuleType:
    """A module and the packages it is in."""
    for end in [i for i, letter in enumerate(name) if letter == "."] + [len(name)]:
        part = name[:end]
        if part not in sys.modules:
            sys.modules[part] = types.ModuleType(part)
            sys.modules[part].__path__ = []  # type: ignore[attr-defined]
    return sys.modules[name]


class CustomOp(torch.nn.Module):
    """Operators that can be replaced by a class of another package, when they are made."""

    replaced: dict[str, type] = {}  # noqa: RUF012

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return super().__new__(CustomOp.replaced.get(cls.__name__, cls))

    def __init__(self) -> None:
        super().__init__()
        self._forward_method = self.forward_native

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._forward_method(*args, **kwargs)

    @classmethod
    def register_oot(cls, _decorated_op_cls: Any = None, name: str | None = None) -> Any:
        key = name if name is not None else cls.__name__
        assert key not in CustomOp.replaced
        _decorated_op_cls.name = key
        CustomOp.replaced[key] = _decorated_op_cls
        return _decorated_op_cls


class ChunkGatedDeltaRule(CustomOp):
    def __init__(self) -> None:
        super().__init__()
        self.gdn_prefill_backend = RESOLVED["backend"]

    def forward_native(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        g: torch.Tensor,
        beta: torch.Tensor,
        initial_state: torch.Tensor,
        output_final_state: bool,
        cu_seqlens: torch.Tensor | None = None,
        chunk_indices: torch.Tensor | None = None,
        chunk_offsets: torch.Tensor | None = None,
        use_qk_l2norm_in_kernel: bool = True,
        core_attn_out: torch.Tensor | None = None,
        aiter_prefill_metadata: object | None = None,
    ) -> Any:
        OWN_CALLS.append("gdn")
        o, final, _ = recurrence(q, k, v, g, beta, cu_seqlens, initial_state, l2norm=use_qk_l2norm_in_kernel)
        return o.to(q.dtype), final.to(initial_state.dtype)


def k3_chunk_kda_with_fused_gate(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    raw_g: torch.Tensor,
    raw_beta: torch.Tensor,
    A_log: torch.Tensor,
    g_bias: torch.Tensor | None,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    lower_bound: float | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    **kwargs: Any,
) -> Any:
    OWN_CALLS.append("k3")
    g = raw_gate(raw_g, A_log, g_bias, lower_bound)
    o, final, _ = recurrence(
        q, k, v, g, raw_beta.sigmoid(), cu_seqlens, initial_state, l2norm=use_qk_l2norm_in_kernel, scale=scale
    )
    return o.to(q.dtype), final


def glm_chunk_kda_with_fused_gate(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    raw_g: torch.Tensor,
    beta: torch.Tensor,
    A_log: torch.Tensor,
    g_bias: torch.Tensor | None,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    safe_gate: bool = False,
    lower_bound: float = -5.0,
    **kwargs: Any,
) -> Any:
    OWN_CALLS.append("glm")
    g = raw_gate(raw_g, A_log, g_bias, lower_bound if safe_gate else None)
    o, final, _ = recurrence(q, k, v, g, beta, cu_seqlens, initial_state, l2norm=use_qk_l2norm_in_kernel, scale=scale)
    return o.to(q.dtype), final


def _flashkda_prefill(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    lower_bound: float,
    initial_state: torch.Tensor,
    cu_seqlens: torch.Tensor,
    out: torch.Tensor,
    final_state: torch.Tensor,
    workspace: torch.Tensor,
    checkpoint_state: torch.Tensor | None = None,
    checkpoint_offsets: torch.Tensor | None = None,
) -> Any:
    OWN_CALLS.append("flashkda")
    log_decay = raw_gate(g, A_log, dt_bias, lower_bound)
    o, final, steps = recurrence(q, k, v, log_decay, beta.sigmoid(), cu_seqlens, initial_state, l2norm=True)
    out.copy_(o)
    final_state.copy_(final)
    if checkpoint_state is not None and checkpoint_offsets is not None:
        for n, position in enumerate(checkpoint_offsets.tolist()):
            if position > 0:
                checkpoint_state[n] = steps[n][position]
    return out, final_state


def fi_chunk_gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    initial_state: torch.Tensor,
    output_final_state: bool,
    cu_seqlens: torch.Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = True,
    state_checkpoints: torch.Tensor | None = None,
    checkpoint_cu_starts: torch.Tensor | None = None,
    checkpoint_every_n_tokens: int = 0,
    use_cp: Any = "auto",
) -> Any:
    OWN_CALLS.append("checkpointed gdn")
    o, final, steps = recurrence(q, k, v, g, beta, cu_seqlens, initial_state, l2norm=use_qk_l2norm_in_kernel)
    if state_checkpoints is not None and checkpoint_cu_starts is not None:
        for n, first in enumerate(checkpoint_cu_starts.tolist()[:-1]):
            for row, position in enumerate(range(checkpoint_every_n_tokens, len(steps[n]), checkpoint_every_n_tokens)):
                state_checkpoints[first + row] = steps[n][position]
    return o.to(q.dtype), final.float()


def olmo_chunk_gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    chunk_indices: torch.Tensor | None = None,
    chunk_offsets: torch.Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    core_attn_out: torch.Tensor | None = None,
) -> Any:
    OWN_CALLS.append("olmo")
    o, final, _ = recurrence(q, k, v, g, beta, cu_seqlens, initial_state, l2norm=use_qk_l2norm_in_kernel, scale=scale)
    return o.to(q.dtype), final


def bailing_chunk_kda(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    **kwargs: Any,
) -> Any:
    OWN_CALLS.append("bailing")
    o, final, _ = recurrence(q, k, v, g, beta, cu_seqlens, initial_state, l2norm=use_qk_l2norm_in_kernel, scale=scale)
    return o.to(q.dtype), final


def _flashinfer_kda_prefill(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    raw_g: torch.Tensor,
    raw_beta: torch.Tensor,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    lower_bound: float,
    initial_state: torch.Tensor,
    cu_seqlens: torch.Tensor,
    out: torch.Tensor,
    seq_order: torch.Tensor | None = None,
    prefill_workspace: object | None = None,
) -> Any:
    OWN_CALLS.append("flashinfer kda")
    log_decay = raw_gate(raw_g, A_log, dt_bias, lower_bound)
    o, final, _ = recurrence(q, k, v, log_decay, raw_beta.sigmoid(), cu_seqlens, initial_state, l2norm=True)
    out.copy_(o)
    initial_state.copy_(final)
    return out, initial_state


class Exporter:
    """Of states inside sequences, to the pool."""

    def export(
        self,
        checkpoint: Any,
        *,
        raw_qkv: Any,
        conv_state: Any,
        recurrent_checkpoint: Any,
        recurrent_state: Any,
        cu_seqlens: Any,
    ) -> None:
        assert raw_qkv is not None and conv_state is not None and cu_seqlens is not None
        for n, position in enumerate(checkpoint.checkpoint_offsets.tolist()):
            if position > 0:
                recurrent_state[checkpoint.state_indices[n]] = recurrent_checkpoint[n]


class Glm5NextLinearAttention:
    """The layer of GLM-5-Next, as far as its prefill on FlashKDA goes."""

    def __init__(self, A_log: torch.Tensor, dt_bias: torch.Tensor, lower_bound: float | None) -> None:
        self.A_log, self.dt_bias, self.kda_lower_bound = A_log, dt_bias, lower_bound
        self._checkpoint_exporter: Exporter | None = Exporter()

    def _flashkda_prefill(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        g: torch.Tensor,
        beta: torch.Tensor,
        initial_state: torch.Tensor,
        cu_seqlens: torch.Tensor,
        out: torch.Tensor | None,
        checkpoint: Any = None,
        raw_qkv: torch.Tensor | None = None,
        conv_state: torch.Tensor | None = None,
        recurrent_state: torch.Tensor | None = None,
    ) -> Any:
        OWN_CALLS.append("glm flashkda")
        log_decay = raw_gate(g, self.A_log, self.dt_bias, self.kda_lower_bound)
        o, final, _ = recurrence(q, k, v, log_decay, beta.sigmoid(), cu_seqlens, initial_state, l2norm=True)
        return o.to(q.dtype), final


class Platform:
    device_name = "cuda"

    def is_cuda(self) -> bool:
        return self.device_name == "cuda"


GDN = "vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn"
OLMO = "vllm.model_executor.layers.mamba.gdn.olmo_gdn_linear_attn"
BAILING = "vllm.model_executor.models.bailing_moe_v3"
K3_OPS = "vllm.models.kimi_k3.nvidia.ops.third_party.kda"
K3 = "vllm.models.kimi_k3.nvidia.kda"
GLM = "vllm.models.glm5next.common.kda"


def install() -> None:
    """Puts the modules where the adapter looks for them."""
    CustomOp.replaced.clear()
    OWN_CALLS.clear()
    RESOLVED["backend"] = "flashinfer"
    layer = type("Glm5NextLinearAttention", (Glm5NextLinearAttention,), {})
    for name, members in {
        GDN: {"ChunkGatedDeltaRule": ChunkGatedDeltaRule, "fi_chunk_gated_delta_rule": fi_chunk_gated_delta_rule},
        OLMO: {"chunk_gated_delta_rule": olmo_chunk_gated_delta_rule},
        BAILING: {"chunk_kda": bailing_chunk_kda},
        K3_OPS: {"chunk_kda_with_fused_gate": k3_chunk_kda_with_fused_gate},
        K3: {"_flashkda_prefill": _flashkda_prefill, "_flashinfer_kda_prefill": _flashinfer_kda_prefill},
        GLM: {"chunk_kda_with_fused_gate": glm_chunk_kda_with_fused_gate, "Glm5NextLinearAttention": layer},
        "vllm.platforms": {"current_platform": Platform()},
    }.items():
        vars(_module(name)).update(members)


def remove() -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "vllm"]:
        del sys.modules[name]
