"""The adapter for vLLM, on modules with the recorded release's parameter lists."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from engines_recorded import source
from engines_recorded import vllm_0_33_0 as recorded
from engines_recorded.recurrence import close, raw_gate, recurrence

import deltarelay
from deltarelay.engines import _adapter, _vllm_prefill, vllm

LENGTHS = (70, 1, 0, 130)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A vLLM that was just imported, and an adapter that did nothing yet."""
    recorded.install()
    vllm.engine.reset()
    monkeypatch.setenv("DELTARELAY_VLLM", "1")
    yield recorded
    vllm.engine.reset()
    recorded.remove()


def case(rule: str, dtype: Any = torch.float32, heads: int = 2, width: int = 16) -> dict[str, Any]:
    torch.manual_seed(1)
    tokens = sum(LENGTHS)
    hv = 2 * heads if rule == "gdn" else heads
    q, k = (torch.randn(1, tokens, heads, width).to(dtype) for _ in range(2))
    q, k = (torch.nn.functional.normalize(x.float(), dim=-1).to(dtype) for x in (q, k))
    return {
        "q": q,
        "k": k,
        "v": torch.randn(1, tokens, hv, width).to(dtype),
        "g": -torch.rand(1, tokens, hv) if rule == "gdn" else torch.randn(1, tokens, hv, width).to(dtype),
        "beta": torch.rand(1, tokens, hv) if rule == "gdn" else torch.randn(1, tokens, hv).to(dtype),
        "initial": torch.randn(len(LENGTHS), hv, width, width),
        "offsets": torch.tensor([0, *torch.tensor(LENGTHS).cumsum(0)], dtype=torch.int32),
        "a_log": torch.rand(1, 1, hv, 1),
        "bias": torch.randn(hv * width),
    }


def call_gdn(op: Any, x: dict[str, Any], **changes: Any) -> Any:
    """As the layer calls it."""
    given = {
        "initial_state": x["initial"],
        "output_final_state": True,
        "cu_seqlens": x["offsets"],
        "chunk_indices": torch.zeros(5, 2, dtype=torch.int32),
        "chunk_offsets": torch.zeros(5, dtype=torch.int32),
        "use_qk_l2norm_in_kernel": False,
        "aiter_prefill_metadata": None,
    } | changes
    return op(q=x["q"], k=x["k"], v=x["v"], g=x["g"], beta=x["beta"], **given)


def gdn_op() -> Any:
    return sys.modules[recorded.GDN].ChunkGatedDeltaRule()


def test_nothing_happens_unless_it_is_switched_on(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (None, "", "0", "off"):
        monkeypatch.delenv("DELTARELAY_VLLM", raising=False)
        if value is not None:
            monkeypatch.setenv("DELTARELAY_VLLM", value)
        assert vllm.register() == {}
    assert engine.CustomOp.replaced == {}
    assert sys.modules[engine.GLM].chunk_kda_with_fused_gate is engine.glm_chunk_kda_with_fused_gate
    call_gdn(gdn_op(), case("gdn"))
    assert engine.OWN_CALLS == ["gdn"]


def test_everything_is_taken_over_once(engine: Any) -> None:
    report = vllm.register()
    assert set(report.values()) == {"taken over"} and len(report) == 9 and vllm.outcome == report
    ours = sys.modules[engine.K3]._flashkda_prefill
    assert vllm.register() == report and sys.modules[engine.K3]._flashkda_prefill is ours


@pytest.mark.parametrize("backend", ["triton", "flashinfer", "cutedsl"])
@pytest.mark.parametrize("state", [torch.float32, torch.bfloat16])
def test_gdn_prefill(engine: Any, backend: str, state: Any) -> None:
    vllm.register()
    engine.RESOLVED["backend"] = backend
    op, x = gdn_op(), case("gdn")
    x["initial"] = x["initial"].to(state)
    assert op.gdn_prefill_backend == backend, "the layer and its metadata go by this"
    o, final = call_gdn(op, x)
    expected = recurrence(x["q"], x["k"], x["v"], x["g"], x["beta"], x["offsets"], x["initial"], l2norm=False)
    close(o, expected[0])
    close(final, expected[1], 2e-5 if state == torch.float32 else 0.05)
    assert final.dtype == state and engine.OWN_CALLS == []
    assert deltarelay.last_call().backend == "cpu" and deltarelay.last_call().declined == ""
    direct = deltarelay.forward(
        "gdn",
        *(x[name] for name in ("q", "k", "v", "g", "beta")),
        seq_offsets=x["offsets"],
        initial=x["initial"],
        final=True,
    )
    assert torch.equal(o, direct.o)


def test_gdn_output_buffers(engine: Any) -> None:
    vllm.register()
    op, x = gdn_op(), case("gdn")
    expected, _ = call_gdn(op, x)
    buffer = torch.full((1, x["v"].shape[1] + 9, *x["v"].shape[2:]), 7.0)
    o, _ = call_gdn(op, x, core_attn_out=buffer)
    assert o.data_ptr() == buffer.data_ptr() and torch.equal(o, expected) and bool((buffer[:, -9:] == 7).all())
    other = torch.full(buffer.shape, 7.0, dtype=torch.bfloat16)
    call_gdn(op, x, core_attn_out=other)
    assert torch.equal(other[:, :-9], expected.bfloat16())


def test_gdn_of_other_vendors_is_left(engine: Any, caplog: pytest.LogCaptureFixture) -> None:
    vllm.register()
    engine.RESOLVED["backend"] = "aiter_flydsl"
    call_gdn(gdn_op(), case("gdn"))
    assert engine.OWN_CALLS == ["gdn"]
    assert vllm.outcome[vllm.GDN_OPERATOR] == "not reached: vLLM chose aiter_flydsl for its GDN prefill"
    assert vllm.outcome[vllm.GDN_OPERATOR] in caplog.text


def call_k3(x: dict[str, Any], **changes: Any) -> Any:
    given = {
        "A_log": x["a_log"],
        "g_bias": x["bias"],
        "lower_bound": None,
        "initial_state": x["initial"],
        "output_final_state": True,
        "use_qk_l2norm_in_kernel": True,
        "cu_seqlens": x["offsets"],
    } | changes
    function = sys.modules[recorded.K3_OPS].chunk_kda_with_fused_gate
    return function(q=x["q"], k=x["k"], v=x["v"], raw_g=x["g"], raw_beta=x["beta"], **given)


@pytest.mark.parametrize("bound", [None, -5.0])
@pytest.mark.parametrize("with_out", [False, True])
def test_kda_of_kimi(engine: Any, bound: float | None, with_out: bool) -> None:
    vllm.register()
    x = case("kda")
    out = torch.empty_like(x["v"]) if with_out else None
    o, final = call_k3(x, lower_bound=bound, out=out)
    g = raw_gate(x["g"], x["a_log"], x["bias"], bound)
    expected = recurrence(x["q"], x["k"], x["v"], g, x["beta"].sigmoid(), x["offsets"], x["initial"], l2norm=True)
    close(o, expected[0])
    close(final, expected[1])
    assert engine.OWN_CALLS == [] and (out is None or o is out)


@pytest.mark.parametrize("safe_gate", [False, True])
def test_kda_of_glm(engine: Any, safe_gate: bool) -> None:
    """beta is past its sigmoid here, a logit in Kimi's function of the same name."""
    vllm.register()
    x = case("kda")
    beta = x["beta"].float().sigmoid()
    o, final = sys.modules[recorded.GLM].chunk_kda_with_fused_gate(
        q=x["q"],
        k=x["k"],
        v=x["v"],
        raw_g=x["g"],
        beta=beta,
        A_log=x["a_log"],
        g_bias=x["bias"],
        initial_state=x["initial"],
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
        cu_seqlens=x["offsets"],
        safe_gate=safe_gate,
        lower_bound=-4.0,
    )
    g = raw_gate(x["g"], x["a_log"], x["bias"], -4.0 if safe_gate else None)
    expected = recurrence(x["q"], x["k"], x["v"], g, beta, x["offsets"], x["initial"], l2norm=True)
    close(o, expected[0])
    close(final, expected[1])
    assert engine.OWN_CALLS == []


@pytest.mark.parametrize("with_checkpoints", [False, True])
def test_kda_in_the_place_of_flashkda(engine: Any, with_checkpoints: bool) -> None:
    vllm.register()
    x = case("kda", torch.bfloat16)
    x["beta"] = torch.stack([x["beta"], x["beta"]], dim=-1)[..., 0]  # rows with gaps
    out, final = torch.empty_like(x["v"]), torch.empty_like(x["initial"])
    kept, positions = torch.full_like(x["initial"], 7.0), torch.tensor([64, 0, -1, 112], dtype=torch.int32)
    given = {"checkpoint_state": kept, "checkpoint_offsets": positions} if with_checkpoints else {}
    function = sys.modules[recorded.K3]._flashkda_prefill
    found = function(
        q=x["q"],
        k=x["k"],
        v=x["v"],
        g=x["g"],
        beta=x["beta"],
        A_log=x["a_log"],
        dt_bias=x["bias"],
        lower_bound=-5.0,
        initial_state=x["initial"],
        cu_seqlens=x["offsets"],
        out=out,
        final_state=final,
        workspace=torch.empty(0, dtype=torch.uint8),
        **given,
    )
    assert found[0] is out and found[1] is final and engine.OWN_CALLS == []
    g = raw_gate(x["g"], x["a_log"], x["bias"], -5.0)
    o, states, steps = recurrence(
        x["q"], x["k"], x["v"], g, x["beta"].double().sigmoid(), x["offsets"], x["initial"], l2norm=True
    )
    close(out, o, 0.1)
    close(final, states, 0.1)
    if with_checkpoints:
        close(kept[0], steps[0][64], 0.1)
        close(kept[3], steps[3][112], 0.1)
        assert bool((kept[1:3] == 7).all())


def test_calls_that_are_declined_go_to_vllm(engine: Any, caplog: pytest.LogCaptureFixture) -> None:
    vllm.register()
    x = case("kda")
    call_k3(x, chunk_indices=None, something=False)
    assert engine.OWN_CALLS == []
    call_k3(x, something=3)
    assert engine.OWN_CALLS == ["k3"]
    assert "something: expected None or False in a call of chunk_kda_with_fused_gate, found int" in caplog.text
    assert "something: expected" in deltarelay.last_call().declined
    before = len(caplog.records)
    call_k3(x, something=3)
    assert len(caplog.records) == before, "said once"
    call_k3(x)
    assert deltarelay.last_call().declined == ""


def test_unknown_keywords_that_ask_for_nothing_are_said_once(engine: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    vllm.register()
    for _ in range(3):
        call_k3(case("kda"), chunk_indices=None)
    assert caplog.text.count("keyword 'chunk_indices' is not known") == 1


def test_drift_is_reported_and_leaves_vllm_alone(engine: Any, caplog: pytest.LogCaptureFixture) -> None:
    def renamed(q: Any, k: Any, v: Any, gate: Any, beta: Any, **others: Any) -> None: ...

    class NewRule(engine.ChunkGatedDeltaRule):
        def forward_native(self, q: Any, k: Any, v: Any, g: Any, beta: Any, states: Any) -> None: ...

    sys.modules[engine.GLM].chunk_kda_with_fused_gate = renamed
    sys.modules[engine.GDN].ChunkGatedDeltaRule = NewRule
    del sys.modules[engine.K3]._flashkda_prefill
    report = vllm.register()
    gdn = report[vllm.GDN_OPERATOR]
    assert gdn.startswith("declined: vLLM is not 0.33.0 here: ChunkGatedDeltaRule.forward_native")
    assert "expected a parameter 'raw_g'" in report[f"{engine.GLM}.chunk_kda_with_fused_gate"]
    assert "expected a function _flashkda_prefill" in report[f"{engine.K3}._flashkda_prefill"]
    assert report[f"{engine.K3_OPS}.chunk_kda_with_fused_gate"] == "taken over"
    assert sys.modules[engine.GLM].chunk_kda_with_fused_gate is renamed and engine.CustomOp.replaced == {}
    assert sum(record.levelno == logging.WARNING for record in caplog.records) == 3


def test_a_vllm_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    if "vllm" in sys.modules or _installed("vllm"):
        pytest.skip("vLLM is installed")
    vllm.engine.reset()
    monkeypatch.setenv("DELTARELAY_VLLM", "1")
    report = vllm.register()
    assert report and all(words.startswith("declined: not in this vLLM") for words in report.values())
    vllm.engine.reset()


def _installed(name: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(name) is not None


def test_batch_invariance_is_passed_on(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    vllm.register()
    asked: list[bool] = []
    monkeypatch.setattr(
        _vllm_prefill, "forward", lambda *args, **given: asked.append(given.get("invariant")) or deltarelay.Outputs(0)
    )
    call_k3(case("kda"))
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    call_k3(case("kda"))
    assert asked == [None, True]


def test_new_parameters_that_can_be_left_out_are_no_drift() -> None:
    def grown(q: Any, k: Any, fresh: Any = None, flag: bool = False) -> None: ...

    def changed(q: Any, k: Any, mode: str = "fast") -> None: ...

    _adapter.check_signature(grown, ("q", "k"), "grown")
    with pytest.raises(_adapter.Drift, match="changed: expected no parameter 'mode'"):
        _adapter.check_signature(changed, ("q", "k"), "changed")
    with pytest.raises(_adapter.Drift, match="order"):
        _adapter.check_signature(changed, ("k", "q"), "changed")


QWEN_OPS = "vllm.third_party.flash_linear_attention.ops"
SOURCES = [
    (vllm.GDN_MODULE, "ChunkGatedDeltaRule.forward_native", ("self", *_vllm_prefill.GDN_PARAMETERS)),
    (vllm.GDN_MODULE, "fi_chunk_gated_delta_rule", _vllm_prefill.CHECKPOINTED_PARAMETERS),
    (f"{QWEN_OPS}.chunk", "chunk_gated_delta_rule", _vllm_prefill.OLMO_PARAMETERS),
    (f"{QWEN_OPS}.kda", "chunk_kda", _vllm_prefill.BAILING_PARAMETERS),
    (f"{recorded.K3_OPS}.chunk", "chunk_kda_with_fused_gate", _vllm_prefill.K3_PARAMETERS),
    (recorded.K3, "_flashkda_prefill", _vllm_prefill.FLASHKDA_PARAMETERS),
    (recorded.K3, "_flashinfer_kda_prefill", _vllm_prefill.FLASHINFER_PARAMETERS),
    (
        "vllm.models.glm5next.nvidia.ops.third_party.kda.kernels",
        "chunk_kda_with_fused_gate",
        _vllm_prefill.GLM_PARAMETERS,
    ),
    (recorded.GLM, "Glm5NextLinearAttention._flashkda_prefill", _vllm_prefill.GLM_FLASHKDA_PARAMETERS),
]


@pytest.mark.parametrize(("module", "name", "expected"), SOURCES)
def test_the_record_is_true(module: str, name: str, expected: tuple[str, ...]) -> None:
    assert source.parameters(source.folder("DELTARELAY_VLLM_SOURCE"), module, name) == list(expected)
