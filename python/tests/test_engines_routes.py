"""Do the places that the adapters replace lie on the paths that engines take? By the record, and by an engine's sources
where they are at hand (DELTARELAY_VLLM_SOURCE, DELTARELAY_SGLANG_SOURCE)."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from engines_recorded import source
from engines_recorded import vllm_0_33_0_routes as routes
from engines_recorded.follow import Place, Route, Sources, modules_with_kernels

from deltarelay.engines import _vllm_prefill, sglang, vllm


def split(path: str, module: str) -> Place:
    return module, path[len(module) + 1 :]


REPLACED = {split(vllm.GDN_OPERATOR, vllm.GDN_MODULE), *((place.module, place.name) for place in vllm.PLACES)}
LAYERS = pytest.mark.parametrize("layer", routes.LAYERS, ids=lambda layer: layer.models)


@LAYERS
def test_every_backend_of_a_layer_is_replaced(layer: Any) -> None:
    for backend, places in layer.reached.items():
        assert set(places) <= REPLACED, f"{layer.models} with the backend {backend!r}"
    assert set(layer.default) <= set(layer.reached)


def test_nothing_is_replaced_where_no_layer_calls_it() -> None:
    called = {place for layer in routes.LAYERS for places in layer.reached.values() for place in places}
    assert called == REPLACED


@pytest.fixture
def vllm_sources() -> Sources:
    return Sources(source.folder("DELTARELAY_VLLM_SOURCE"))


@LAYERS
def test_vllm_calls_what_is_replaced(vllm_sources: Sources, layer: Any) -> None:
    """From the layer's forward, under each backend that it can choose, every prefill kernel is one of ours."""
    for backend, places in layer.reached.items():
        facts = {**routes.FACTS, **({layer.attribute: backend} if layer.attribute else {})}
        route = Route(vllm_sources, layer.module, facts)
        found = route.reached(layer.start, REPLACED)
        assert found == set(places), f"{layer.models} with the backend {backend!r}: {route.chain}"


@pytest.mark.parametrize("layer", [layer for layer in routes.LAYERS if layer.default[0]], ids=lambda x: x.models)
def test_vllm_chooses_as_recorded(vllm_sources: Sources, layer: Any) -> None:
    for capability, expected in zip(routes.CAPABILITIES, layer.default):
        assert routes.chosen(vllm_sources, layer, capability, "auto") == expected, capability
    key = layer.attribute or "gdn_prefill_backend"
    calls = [node for node in ast.walk(vllm_sources.module(layer.module)) if isinstance(node, ast.Call)]
    defaults = {ast.unparse(node) for node in calls if node.args and ast.unparse(node.args[0]) == repr(key)}
    assert defaults == {f"additional_config.get({key!r}, 'auto')"}


def test_vllm_offers_flashinfer_for_kimi_k3(vllm_sources: Sources) -> None:
    layer = next(layer for layer in routes.LAYERS if layer.models == "Kimi K3")
    assert routes.chosen(vllm_sources, layer, (10, 0), "flashinfer") == "flashinfer"


def test_no_layer_of_vllm_is_forgotten(vllm_sources: Sources) -> None:
    found = modules_with_kernels(vllm_sources.root, "vllm")
    known = {layer.module for layer in routes.LAYERS}
    passed = (*routes.NO_LAYERS, *vllm.NOT_REACHED)
    assert {name for name in found if not name.startswith(passed)} == known


def test_vllm_reads_these_attributes_of_glm(vllm_sources: Sources) -> None:
    method = vllm_sources.definition(routes.GLM, "Glm5NextLinearAttention._flashkda_prefill")
    reads = {ast.unparse(node)[5:] for node in ast.walk(method) if ast.unparse(node).startswith("self.")}
    assert set(_vllm_prefill.GLM_ATTRIBUTES) <= reads
    (call,) = [n for n in ast.walk(method) if isinstance(n, ast.Call) and ast.unparse(n.func).endswith(".export")]
    assert [keyword.arg for keyword in call.keywords] == [
        "raw_qkv",
        "conv_state",
        "recurrent_checkpoint",
        "recurrent_state",
        "cu_seqlens",
    ]


SGLANG = "sglang.srt.layers.attention.linear"


@pytest.mark.parametrize(
    ("rule", "module", "start", "facts"),
    [
        ("GDN", f"{SGLANG}.gdn_backend", "GDNAttnBackend.forward_extend", {}),
        ("KDA", f"{SGLANG}.kda_backend", "KDAAttnBackend.forward_extend", {"prefill_graph_metadata": None}),
    ],
)
def test_sglang_calls_what_is_replaced(rule: str, module: str, start: str, facts: dict[str, Any]) -> None:
    """The backend's forward comes to the dispatcher, and the dispatcher only to kernels that the hook replaces."""
    sources = Sources(source.folder("DELTARELAY_SGLANG_SOURCE"))
    extend = (module, f"{rule}KernelDispatcher.extend")
    route = Route(sources, module, {"forward_batch.forward_mode.is_target_verify()": False, **facts})
    assert route.reached(start, {extend}) == {extend}
    names = ("extend", "effective_extend_kernel")
    methods = [sources.definition(module, f"{rule}KernelDispatcher.{name}") for name in names]
    texts = {ast.unparse(node) for method in methods if method is not None for node in ast.walk(method)}
    kernels = {text[5:] for text in texts if text.startswith("self.") and text.endswith("_kernel")}
    assert kernels - {"effective_extend_kernel"} == set(sglang.KERNELS[rule])


def test_sglang_extends_in_a_graph_through_the_dispatcher() -> None:
    """Prefill graphs of KDA are for Triton's kernel, which ours is; FlashInfer's own way needs an attribute of its
    kernel."""
    sources = Sources(source.folder("DELTARELAY_SGLANG_SOURCE"))
    forward_extend = Route(sources, f"{SGLANG}.kda_backend", {"prefill_graph_metadata": {}})
    forward_extend.reached("KDAAttnBackend.forward_extend", set())
    assert "kda_extend_in_graph" in forward_extend.called
    in_graph = Route(sources, f"{SGLANG}.kda_prefill_graph", {"meta.flashinfer": None})
    in_graph.reached("kda_extend_in_graph", set())
    assert "kernel_dispatcher.extend" in in_graph.called and "meta.flashinfer.run" not in in_graph.called
    kernel = sources.definition(f"{SGLANG}.kernels.kda_triton", "TritonKDAKernel")
    assert "prefill_graph_wrapper_cls" not in ast.unparse(kernel)


def test_sglang_has_these_backends() -> None:
    text = ast.unparse(Sources(source.folder("DELTARELAY_SGLANG_SOURCE")).module(_REGISTRY))
    for rule in sglang.KERNELS:
        assert f"linear_attn_backend = {rule}AttnBackend(runner)" in text


_REGISTRY = "sglang.srt.layers.attention.attention_registry"

# A layer as GLM-5-Next has it: the function that is replaced is there, and the default passes it by.
EXAMPLE = """
from kernels import chunk_kda

class Layer:
    def __init__(self):
        self.backend = "fast"
        self.operator = Operator()

    def forward(self, x):
        torch.ops.engine.attention(x)

    def _forward(self, x):
        if metadata is None:
            return
        if metadata.num_prefills > 0 and not self.idle:
            if self.backend == "fast":
                o = self._flashkda_prefill(x)
            elif self.backend == "operator":
                o = self.operator(x)
            else:
                from other import chunk_gated_delta_rule
                o = chunk_gated_delta_rule(x) if x else chunk_kda(x)
        else:
            o = chunk_kda(x)

    def _flashkda_prefill(self, x):
        return torch.ops.fast(x)

class Operator: ...

def attention(x):
    layer = context[x]
    layer._forward(x)

direct_register_custom_op(op_name="attention", op_func=attention)
"""


@pytest.mark.parametrize(
    ("backend", "expected"),
    [
        ("fast", {("example", "Layer._flashkda_prefill")}),
        ("operator", {("example", "Operator")}),
        ("slow", {("other", "chunk_gated_delta_rule"), ("example", "chunk_kda")}),
    ],
)
def test_following(tmp_path: Path, backend: str, expected: set[Place]) -> None:
    (tmp_path / "example.py").write_text(EXAMPLE)
    facts = {"num_prefills": 1, "idle": False, "backend": backend}
    route = Route(Sources(tmp_path), "example", facts)
    assert route.reached("Layer.forward", {("example", "Operator"), ("example", "chunk_kda")}) == expected


def test_what_no_fact_decides_is_followed_both_ways(tmp_path: Path) -> None:
    (tmp_path / "example.py").write_text(EXAMPLE)
    assert len(Route(Sources(tmp_path), "example", {}).reached("Layer.forward", {("example", "Operator")})) == 4
