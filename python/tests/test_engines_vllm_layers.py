"""The adapter for vLLM: prefill calls of layers on the backends that they choose, and what a user sees of them."""

# ruff: noqa: F811 (a test names a fixture that is imported)

from __future__ import annotations

import logging
import sys
import types
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from engines_recorded.recurrence import close, raw_gate, recurrence
from test_engines_vllm import LENGTHS, call_gdn, call_k3, case, engine, gdn_op  # noqa: F401

import deltarelay
from deltarelay.engines import _vllm_prefill, vllm


def checkpoint_plan(every: int) -> tuple[Any, Any]:
    """(starts, buffer), as vLLM plans states for FlashInfer."""
    starts = torch.tensor([0, *torch.tensor([length // every for length in LENGTHS]).cumsum(0)])
    return starts, torch.full((int(starts[-1]), 4, 16, 16), 7.0)


def test_gdn_steps_that_keep_states_for_the_prefix_cache(engine: Any) -> None:
    """With FlashInfer, vLLM's default, such steps do not pass the operator."""
    vllm.register()
    x, (starts, kept) = case("gdn"), checkpoint_plan(64)
    given = {
        "initial_state": x["initial"],
        "output_final_state": True,
        "cu_seqlens": x["offsets"],
        "use_qk_l2norm_in_kernel": False,
        "state_checkpoints": kept,
        "checkpoint_cu_starts": starts,
        "checkpoint_every_n_tokens": 64,
        "use_cp": False,
    }
    rows = {name: x[name] for name in ("q", "k", "v", "g", "beta")}
    o, final = sys.modules[engine.GDN].fi_chunk_gated_delta_rule(**rows, **given)
    expected = torch.full_like(kept, 7.0)
    expected_o, expected_final = engine.fi_chunk_gated_delta_rule(**rows, **(given | {"state_checkpoints": expected}))
    assert engine.OWN_CALLS == ["checkpointed gdn"] and len(kept) == 3
    close(o, expected_o)
    close(final, expected_final)
    close(kept, expected)


def test_a_plan_without_starts_is_left(engine: Any) -> None:
    vllm.register()
    x, (_, kept) = case("gdn"), checkpoint_plan(64)
    with pytest.raises(AttributeError):  # vLLM's own needs them too
        rows = {name: x[name] for name in ("q", "k", "v", "g", "beta")}
        sys.modules[engine.GDN].fi_chunk_gated_delta_rule(
            **rows, initial_state=x["initial"], output_final_state=True, state_checkpoints=kept
        )
    assert "checkpoint_cu_starts" in deltarelay.last_call().declined


@pytest.mark.parametrize("state", [torch.float32, torch.bfloat16])
def test_olmo(engine: Any, state: Any) -> None:
    vllm.register()
    x = case("gdn")
    x["initial"], x["beta"] = x["initial"].to(state), 2 * x["beta"]
    o, final = sys.modules[engine.OLMO].chunk_gated_delta_rule(
        q=x["q"],
        k=x["k"],
        v=x["v"],
        g=x["g"],
        beta=x["beta"],
        initial_state=x["initial"],
        output_final_state=True,
        cu_seqlens=x["offsets"],
        use_qk_l2norm_in_kernel=True,
    )
    expected = recurrence(x["q"], x["k"], x["v"], x["g"], x["beta"], x["offsets"], x["initial"], l2norm=True)
    close(o, expected[0])
    close(final, expected[1], 2e-5 if state == torch.float32 else 0.05)
    assert final.dtype == state and engine.OWN_CALLS == []


@pytest.mark.parametrize("safe_gate", [False, True])
def test_bailing(engine: Any, safe_gate: bool) -> None:
    """Gate and beta are past their activations; the bound says where the gate's logarithms end."""
    vllm.register()
    x = case("kda")
    g = raw_gate(x["g"], x["a_log"], x["bias"], -5.0 if safe_gate else None).float()
    beta = x["beta"].sigmoid()
    o, final = sys.modules[engine.BAILING].chunk_kda(
        q=x["q"],
        k=x["k"],
        v=x["v"],
        g=g,
        beta=beta,
        initial_state=x["initial"],
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
        safe_gate=safe_gate,
        lower_bound=-5.0,
        cu_seqlens=x["offsets"],
    )
    expected = recurrence(x["q"], x["k"], x["v"], g, beta, x["offsets"], x["initial"], l2norm=True)
    close(o, expected[0])
    close(final, expected[1])
    assert engine.OWN_CALLS == []


def test_kimi_k3_in_the_place_of_flashinfer(engine: Any) -> None:
    """The final states replace the initial ones, which the layer has gathered."""
    vllm.register()
    x, out = case("kda"), None
    out = torch.empty_like(x["v"])
    states = x["initial"].clone()
    found = sys.modules[engine.K3]._flashinfer_kda_prefill(
        q=x["q"],
        k=x["k"],
        v=x["v"],
        raw_g=x["g"],
        raw_beta=x["beta"],
        A_log=x["a_log"],
        dt_bias=x["bias"],
        lower_bound=-5.0,
        initial_state=states,
        cu_seqlens=x["offsets"].long(),
        out=out,
        seq_order=torch.tensor([3, 0, 1, 2], dtype=torch.int32),
    )
    g = raw_gate(x["g"], x["a_log"], x["bias"], -5.0)
    o, final, _ = recurrence(x["q"], x["k"], x["v"], g, x["beta"].sigmoid(), x["offsets"], x["initial"], l2norm=True)
    assert found[0] is out and found[1] is states and engine.OWN_CALLS == []
    close(out, o)
    close(states, final)


def glm_call(x: dict[str, Any], layer: Any, **changes: Any) -> Any:
    given = {"initial_state": x["initial"], "cu_seqlens": x["offsets"], "out": None} | changes
    return layer._flashkda_prefill(q=x["q"], k=x["k"], v=x["v"], g=x["g"], beta=x["beta"], **given)


@pytest.mark.parametrize("with_out", [False, True])
@pytest.mark.parametrize("with_checkpoint", [False, True])
def test_glm_on_its_default_backend(engine: Any, with_out: bool, with_checkpoint: bool) -> None:
    vllm.register()
    x = case("kda")
    layer = sys.modules[engine.GLM].Glm5NextLinearAttention(x["a_log"], x["bias"], -4.0)
    out = torch.empty_like(x["v"]) if with_out else None
    pool = torch.full((6, *x["initial"].shape[1:]), 7.0)
    given = {}
    if with_checkpoint:
        checkpoint = types.SimpleNamespace(
            checkpoint_offsets=torch.tensor([64, 0, 0, 112], dtype=torch.int32),
            state_indices=torch.tensor([5, 0, 0, 2]),
        )
        given = {"checkpoint": checkpoint, "raw_qkv": 0, "conv_state": 0, "recurrent_state": pool}
    o, final = glm_call(x, layer, out=out, **given)
    g = raw_gate(x["g"], x["a_log"], x["bias"], -4.0)
    expected_o, states, steps = recurrence(
        x["q"], x["k"], x["v"], g, x["beta"].sigmoid(), x["offsets"], x["initial"], l2norm=True
    )
    close(o, expected_o)
    close(final, states)
    assert engine.OWN_CALLS == [] and (out is None or o is out) and final.dtype == x["initial"].dtype
    if with_checkpoint:
        close(pool[5], steps[0][64])
        close(pool[2], steps[3][112])
    assert bool((pool[[0, 1, 3, 4]] == 7).all())


def test_glm_with_another_layer_is_left(engine: Any) -> None:
    vllm.register()
    x = case("kda")
    layer = sys.modules[engine.GLM].Glm5NextLinearAttention(x["a_log"], x["bias"], -4.0)
    del layer._checkpoint_exporter
    glm_call(x, layer)
    assert engine.OWN_CALLS == ["glm flashkda"]
    assert "found none named _checkpoint_exporter" in deltarelay.last_call().declined


def test_glm_with_a_safe_gate_and_no_bound_is_left(engine: Any) -> None:
    x = case("kda")
    with pytest.raises(deltarelay.Invalid, match="lower_bound: expected a number below 0 with safe_gate, found None"):
        _vllm_prefill.glm_prefill(
            x["q"], x["k"], x["v"], x["g"], x["beta"], x["a_log"], x["bias"], safe_gate=True, lower_bound=None
        )


def test_calls_are_counted(engine: Any) -> None:
    vllm.register()
    assert vllm.status().taken == {} and vllm.status().declined == {}
    op, x = gdn_op(), case("gdn")
    for _ in range(3):
        call_gdn(op, x)
    call_k3(case("kda"), something=3)
    status = vllm.status()
    assert status.taken == {vllm.GDN_OPERATOR: 3}
    ((reason, count),) = status.declined.items()
    assert reason.startswith(f"{engine.K3_OPS}.chunk_kda_with_fused_gate: something: expected None") and count == 1
    text = str(status)
    assert f"taken: {vllm.GDN_OPERATOR}, 3 calls" in text and "(1 calls)" in text and "taken over" in text


def test_success_is_logged_by_the_engines_logger(engine: Any, caplog: pytest.LogCaptureFixture) -> None:
    """vLLM shows INFO of its own logger and of those below it, and of no other."""
    caplog.set_level(logging.INFO, "vllm")
    vllm.register()
    op, x = gdn_op(), case("gdn")
    for _ in range(11):
        call_gdn(op, x)
    lines = [record.getMessage() for record in caplog.records if record.name == "vllm.deltarelay"]
    assert f"DeltaRelay in vLLM, {vllm.GDN_OPERATOR}: taken over" in lines
    place = f"DeltaRelay in vLLM, {vllm.GDN_OPERATOR}: "
    counts = [line.removeprefix(place) for line in lines if "calls taken" in line]
    assert counts == ["1 calls taken (all places: 0 declined)", "10 calls taken (all places: 0 declined)"]


def test_a_call_that_is_left_is_counted_once(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator's own way calls the function that is replaced as well."""
    vllm.register()
    x = case("gdn")

    def own(self: Any, q: Any, k: Any, v: Any, g: Any, beta: Any, initial_state: Any, final: bool, **rest: Any) -> Any:
        rows = sys.modules[engine.GDN].fi_chunk_gated_delta_rule
        return rows(q, k, v, g, beta, initial_state, final, rest["cu_seqlens"], False)

    op = gdn_op()
    monkeypatch.setattr(op, "_own_method", types.MethodType(own, op))
    op(x["q"], x["k"], x["v"], x["g"], x["beta"], x["initial"], True, cu_seqlens=x["offsets"], novelty=1)
    assert engine.OWN_CALLS == ["checkpointed gdn"]
    assert sum(vllm.status().declined.values()) == 1 and vllm.status().taken == {}


def test_another_platform_is_not_reached(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["vllm.platforms"].current_platform, "device_name", "rocm")
    report = vllm.register()
    assert len(report) == 9 and all("not reached: vLLM runs on rocm here" in words for words in report.values())
    assert engine.CustomOp.replaced == {}


def test_arguments_by_position_behind_a_new_parameter_are_left(engine: Any) -> None:
    def grown(q: Any, k: Any, v: Any, g: Any, beta: Any, fresh: Any = None, *, scale: Any = None, **rest: Any) -> str:
        return "vLLM"

    grown.__signature__ = _grown_signature()  # type: ignore[attr-defined]
    sys.modules[engine.BAILING].chunk_kda = grown
    assert vllm.register()[f"{engine.BAILING}.chunk_kda"] == "taken over"
    x = case("kda")
    rows = [x[name] for name in ("q", "k", "v", "g", "beta")]
    assert sys.modules[engine.BAILING].chunk_kda(*rows, "something new") == "vLLM"
    assert "expected at most 5 by position, found 6" in deltarelay.last_call().declined


def _grown_signature() -> Any:
    import inspect

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    names = [name.rstrip("=") for name in _vllm_prefill.BAILING_PARAMETERS]
    names.insert(5, "fresh")
    return inspect.Signature(
        [
            inspect.Parameter(name, kind, default=inspect.Parameter.empty if i < 5 else None)
            for i, name in enumerate(names)
        ]
    )
