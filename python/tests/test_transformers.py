"""A tiny random Qwen3-Next and a tiny Kimi layer: logits with DeltaRelay beside the model's own torch path."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

import torch

import deltarelay
from deltarelay import models

TOKENS = 150  # several chunks and a rest


def _own_functions(monkeypatch: pytest.MonkeyPatch, file: Any) -> None:
    """The torch loops of the modeling file, also where transformers took FLA's functions instead (which want a GPU)."""
    for name in [*models.FUNCTIONS, "torch_recurrent_gated_delta_rule", "recurrent_kimi_delta_attention"]:
        if hasattr(file, name) and hasattr(getattr(file, name), "__wrapped__"):
            monkeypatch.setattr(file, name, getattr(file, name).__wrapped__)


@pytest.fixture
def qwen(monkeypatch: pytest.MonkeyPatch) -> Any:
    qwen3_next = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    from transformers import Qwen3NextConfig

    _own_functions(monkeypatch, qwen3_next)
    torch.manual_seed(0)
    config = Qwen3NextConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=32,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        num_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=256,
    )
    return qwen3_next.Qwen3NextForCausalLM(config).eval()


def _ids(batch: int = 2) -> torch.Tensor:
    return torch.randint(0, 64, (batch, TOKENS), generator=torch.Generator().manual_seed(1))


def test_patched_logits(qwen: Any) -> None:
    with torch.no_grad():
        expected = qwen(_ids()).logits
        report = models.patch(qwen)
        assert len(report.layers) == 3 and "3 layers" in str(report)  # every fourth is full attention
        before = deltarelay.last_call()
        found = qwen(_ids()).logits
        after = deltarelay.last_call()
    assert after is not None and after.plan is not None and after.declined == "" and after != before
    assert (found - expected).abs().max() < 1e-4 * expected.abs().max()


def test_prefill_then_decode(qwen: Any) -> None:
    """The state that prefill leaves in the cache is the one decode goes on from."""
    with torch.no_grad():
        expected = qwen.generate(_ids(1), max_new_tokens=8, do_sample=False)
        models.patch(qwen)
        found = qwen.generate(_ids(1), max_new_tokens=8, do_sample=False)
    assert found.tolist() == expected.tolist()


def test_only_this_instance(qwen: Any) -> None:
    import copy

    other = copy.deepcopy(qwen)
    models.patch(qwen)
    models.patch(qwen)
    from deltarelay import _call

    _call.note_declined("nothing ran")
    with torch.no_grad():
        other(_ids())
    assert deltarelay.last_call().declined == "nothing ran"
    models.unpatch(qwen)
    with torch.no_grad():
        qwen(_ids())
    assert deltarelay.last_call().declined == "nothing ran"
    assert all("forward" not in vars(layer) for layer in qwen.modules())


def test_training_stays_with_the_model(qwen: Any) -> None:
    models.patch(qwen)
    loss = qwen(_ids(), labels=_ids()).loss
    loss.backward()
    assert qwen.model.layers[0].linear_attn.A_log.grad.abs().sum() > 0
    assert "require grad" in deltarelay.last_call().declined


def test_no_layer() -> None:
    with pytest.raises(ValueError, match=r"expected layers with one of .* found none in Linear"):
        models.patch(torch.nn.Linear(2, 2))


def test_attributes_of_instances() -> None:
    """As in transformers 4: the function is an attribute of the layer."""

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.chunk_gated_delta_rule = self.own

        def own(self, *args: Any, **kwargs: Any) -> Any:
            return "own"

        def forward(self, rows: Any) -> Any:
            return self.chunk_gated_delta_rule(*rows, use_qk_l2norm_in_kernel=True, something_new=3)

    layer = Layer()
    rows = [torch.randn(1, 5, 1, 16) for _ in range(3)] + [-torch.rand(1, 5, 1), torch.rand(1, 5, 1)]
    assert layer(rows) == "own"
    assert models.patch(layer).functions == ("chunk_gated_delta_rule",)
    o, final = layer(rows)
    assert o.shape == (1, 5, 1, 16) and final is None
    models.unpatch(layer)
    assert layer(rows) == "own"


def _calls_of_ours(model: Any) -> bool:
    from deltarelay import _call

    _call.note_declined("nothing ran")
    with torch.no_grad():
        model(_ids())
    return bool(deltarelay.last_call().declined != "nothing ran")


def test_a_copy_of_a_patched_model(qwen: Any) -> None:
    """It is patched, and has its own weights and its own patch."""
    import copy

    models.patch(qwen)
    with torch.no_grad():
        expected = qwen(_ids()).logits
        copied = copy.deepcopy(qwen)
        assert torch.equal(copied(_ids()).logits, expected)
        for parameter in copied.parameters():
            parameter.zero_()
        assert bool((copied(_ids()).logits == 0).all()), "the copy computes with its own weights"
        assert torch.equal(qwen(_ids()).logits, expected)
    models.unpatch(qwen)
    assert not _calls_of_ours(qwen) and _calls_of_ours(copied), "the copy stays patched"
    models.unpatch(copied)
    assert not _calls_of_ours(copied) and not _calls_of_ours(qwen)


def test_a_patched_model_that_was_pickled(qwen: Any, tmp_path: Any) -> None:
    import pickle

    models.patch(qwen)
    with torch.no_grad():
        expected = qwen(_ids()).logits
    data = pickle.dumps(qwen)
    torch.save(qwen, tmp_path / "model.pt")
    models.unpatch(qwen)
    for loaded in (pickle.loads(data), torch.load(tmp_path / "model.pt", weights_only=False)):
        assert _calls_of_ours(loaded)
        with torch.no_grad():
            assert torch.equal(loaded(_ids()).logits, expected)
        models.unpatch(loaded)
        assert not _calls_of_ours(loaded) and not _calls_of_ours(qwen)


def test_a_forward_of_the_instance_stays(qwen: Any) -> None:
    """Packages that hook a layer put a forward into it; a copy of the layer keeps it."""
    import copy
    import types

    layer = qwen.model.layers[0].linear_attn
    seen = []

    def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(self)
        return type(self).forward(self, *args, **kwargs)

    layer.forward = types.MethodType(hooked, layer)
    models.patch(qwen)
    copied = copy.deepcopy(qwen)
    assert _calls_of_ours(copied) and seen == [copied.model.layers[0].linear_attn]
    models.unpatch(qwen)
    assert layer.forward.__func__ is hooked


def _own(query: Any, key: Any, value: Any, g: Any, beta: Any, chunk_size: int = 64, mask: Any = None) -> str:
    return "own"


def test_arguments_that_only_the_layer_knows() -> None:
    """By position behind the rows, by the layer's names for rows, and one that asks for what ours does not have."""
    function = models._Function(_own, "chunk_gated_delta_rule")
    rows = [torch.randn(1, 5, 1, 16) for _ in range(3)] + [-torch.rand(1, 5, 1), torch.rand(1, 5, 1)]
    o, _ = function(*rows)
    for found in (function(*rows, 32), function(*rows[:2], value=rows[2], g=rows[3], beta=rows[4], mask=None)):
        assert torch.equal(found[0], o)
    assert function(*rows, 48) == "own" and "chunk_size: expected" in deltarelay.last_call().declined
    assert function(*rows, mask=torch.ones(1)) == "own"
    assert deltarelay.last_call().declined == "chunk_gated_delta_rule: mask: expected None or False, found Tensor"


def test_through_fla(qwen: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers with FLA installed: its functions are FLA's, and `enable()` reaches them."""
    pytest.importorskip("fla", reason="fla-core is not installed")
    import importlib

    from transformers.integrations.hub_kernels import use_kernel_func_from_hub_with_fallback

    file = importlib.import_module("transformers.models.qwen3_next.modeling_qwen3_next")
    with torch.no_grad():
        expected = qwen(_ids()).logits
    wrapped = use_kernel_func_from_hub_with_fallback("chunk_gated_delta_rule", "fla")(file.torch_chunk_gated_delta_rule)
    monkeypatch.setattr(file, "torch_chunk_gated_delta_rule", wrapped)
    deltarelay.fla.enable()
    before = deltarelay.fla.status().taken.get("chunk_gated_delta_rule", 0)
    with torch.no_grad():
        found = qwen(_ids()).logits
    assert deltarelay.fla.status().taken["chunk_gated_delta_rule"] == before + 3
    assert (found - expected).abs().max() < 1e-4 * expected.abs().max()


def test_kimi(monkeypatch: pytest.MonkeyPatch) -> None:
    kimi = pytest.importorskip("transformers.models.kimi_linear.modeling_kimi_linear")
    _own_functions(monkeypatch, kimi)
    name = "chunk_kimi_delta_attention"
    draw = torch.Generator().manual_seed(2)
    q, k, v, g = (torch.randn(1, TOKENS, 2, 16, generator=draw) for _ in range(4))
    options = {"g": -g.abs(), "beta": torch.rand(1, TOKENS, 2, generator=draw), "output_final_state": True}
    options |= {"use_qk_l2norm_in_kernel": True, "not_of_ours": 1}
    expected_o, expected_state = getattr(kimi, name)(q, k, v, **options)
    o, state = models._Function(getattr(kimi, name), name)(q, k, v, **options)
    assert deltarelay.last_call().declined == ""
    assert (o - expected_o).abs().max() < 1e-4 and (state - expected_state).abs().max() < 1e-4
