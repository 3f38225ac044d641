"""vLLM 0.33.0: which backend each layer chooses for its prefill, and the place where it then calls it."""

from __future__ import annotations

import types
from typing import Any, NamedTuple

from .follow import Place, Sources

GDN = "vllm.model_executor.layers.mamba.gdn"
K3 = "vllm.models.kimi_k3.nvidia"
GLM = "vllm.models.glm5next.common.kda"
BAILING = "vllm.model_executor.models.bailing_moe_v3"
QWEN_PLACES: tuple[Place, ...] = (
    (f"{GDN}.qwen_gdn_linear_attn", "ChunkGatedDeltaRule"),
    (f"{GDN}.qwen_gdn_linear_attn", "fi_chunk_gated_delta_rule"),
)
K3_TRITON: Place = (f"{K3}.ops.third_party.kda", "chunk_kda_with_fused_gate")

# Of a step with prefills on a CUDA device.
FACTS: dict[str, Any] = {
    "TYPE_CHECKING": False,
    "current_platform.is_rocm()": False,
    "num_prefills": 2,
    "attn_metadata": {},
    "attn_metadata_raw": {},
}
CAPABILITIES = ((8, 0), (9, 0), (10, 0), (12, 0))


class Layer(NamedTuple):
    models: str
    module: str
    start: str  # the method of the layer that is followed
    attribute: str  # that holds the chosen backend, or ""
    reached: dict[str, tuple[Place, ...]]  # places by backend
    default: tuple[str, ...]  # backend by capability, as in CAPABILITIES


LAYERS = (
    Layer(
        "Qwen3-Next, Qwen3.5, Qwen4-Exp, InternS2-Mobius",
        f"{GDN}.qwen_gdn_linear_attn",
        "QwenGatedDeltaNetAttention.forward_cuda",
        "",
        dict.fromkeys(("triton", "flashinfer", "cutedsl"), QWEN_PLACES),  # the operator chooses within itself
        ("triton", "flashinfer", "flashinfer", "flashinfer"),
    ),
    Layer(
        "OLMo hybrid",
        f"{GDN}.olmo_gdn_linear_attn",
        "OlmoHybridGatedDeltaNetAttention.forward",
        "",
        {"": ((f"{GDN}.olmo_gdn_linear_attn", "chunk_gated_delta_rule"),)},
        ("", "", "", ""),
    ),
    Layer(
        "Kimi Linear, Alice AI",
        f"{GDN}.kimi_gdn_linear_attn",
        "KimiGatedDeltaNetAttention.forward",
        "",
        {"": (K3_TRITON,)},
        ("", "", "", ""),
    ),
    Layer(
        "Kimi K3",
        f"{K3}.kda",
        "KimiK3DeltaAttention.forward",
        "kda_prefill_backend",
        {
            "flashkda": ((f"{K3}.kda", "_flashkda_prefill"),),
            "flashinfer": ((f"{K3}.kda", "_flashinfer_kda_prefill"),),
            "triton": (K3_TRITON,),
        },
        ("triton", "flashkda", "flashkda", "flashkda"),
    ),
    Layer(
        "GLM-5-Next",
        GLM,
        "Glm5NextLinearAttention.forward",
        "kda_prefill_backend",
        {
            "flashkda": ((GLM, "Glm5NextLinearAttention._flashkda_prefill"),),
            "triton": ((GLM, "chunk_kda_with_fused_gate"),),
        },
        ("triton", "flashkda", "flashkda", "flashkda"),
    ),
    Layer(
        "Bailing v3",
        BAILING,
        "BailingMoeV3KimiDeltaAttention.forward",
        "",
        {"": ((BAILING, "chunk_kda"),)},
        ("", "", "", ""),
    ),
)
# Modules that call functions named like prefill kernels and are no layers: kernels, their choice, their warm-up.
NO_LAYERS = (
    "vllm.third_party.",
    "vllm._aiter_ops",
    "vllm._custom_ops",
    "vllm.model_executor.warmup.",
    "vllm.models.kimi_k3.nvidia.ops.",
    "vllm.models.glm5next.nvidia.ops.",
    "vllm.v1.attention.backends.gdn_attn",
)


class Platform:
    """What the choice asks of vLLM's platform: a CUDA device."""

    device_name = "cuda"

    def __init__(self, capability: tuple[int, int]) -> None:
        self.capability = types.SimpleNamespace(major=capability[0], minor=capability[1])

    def get_device_capability(self) -> Any:
        return self.capability

    def is_cuda(self) -> bool:
        return True

    def is_rocm(self) -> bool:
        return False

    is_xpu = is_rocm

    def is_device_capability(self, wanted: int) -> bool:
        return self.capability.major * 10 + self.capability.minor == wanted

    def is_device_capability_family(self, wanted: int) -> bool:
        return self.capability.major * 10 == wanted

    def get_cuda_runtime_major(self) -> int:
        return 13


class _Logger:
    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


def chosen(sources: Sources, layer: Layer, capability: tuple[int, int], requested: str) -> str:
    """vLLM's own functions decide, on heads of 128 in bf16 with a bounded gate."""
    import torch

    given = {
        "current_platform": Platform(capability),
        "torch": torch,
        "logger": _Logger(),
        "has_flashinfer_recurrent_kda": lambda: True,
    }
    if layer.module.endswith("qwen_gdn_linear_attn"):
        widths = types.SimpleNamespace(linear_key_head_dim=128, linear_value_head_dim=128)
        asked = {} if requested == "auto" else {"gdn_prefill_backend": requested}
        config = types.SimpleNamespace(
            additional_config=asked, model_config=types.SimpleNamespace(hf_text_config=widths)
        )
        return sources.run(layer.module, ("_resolve_gdn_prefill_backend",), given)["_resolve_gdn_prefill_backend"](
            config
        )[1]
    if layer.module == GLM:
        resolve = sources.run(GLM, ("_resolve_kda_prefill_backend",), given)["_resolve_kda_prefill_backend"]
        return resolve(requested, 128, torch.bfloat16, -5.0)
    names = (
        "resolve_kda_prefill_backend",
        "is_flashkda_supported",
        "is_flashinfer_recurrent_kda_prefill_supported",
    )
    resolve = sources.run(layer.module, names, given)["resolve_kda_prefill_backend"]
    return resolve(requested, 128, torch.bfloat16, torch.bfloat16, -5.0)
