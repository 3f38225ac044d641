"""The adapter for SGLang, on modules with the recorded release's parameter lists."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from engines_recorded import sglang_0_5_23 as recorded
from engines_recorded import source
from engines_recorded.recurrence import close, raw_gate, recurrence

import deltarelay
from deltarelay.engines import sglang

LENGTHS = (70, 0, 130, 3, 0)
SLOTS = (5, -1, 2, 3, 0)  # a row that fills the batch carries -1 or the reserved slot 0


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    recorded.install()
    sglang.engine.reset()
    monkeypatch.setenv("DELTARELAY_SGLANG", "1")
    yield recorded
    sglang.engine.reset()
    recorded.remove()


def dispatcher(rule: str, prefill: str = "triton") -> Any:
    """As SGLang makes one: plug-ins first, hooks applied, then the object."""
    sglang.register()
    recorded.HookRegistry.apply_hooks()
    if rule == "gdn":
        return sys.modules[recorded.GDN].GDNKernelDispatcher("triton", prefill)
    return sys.modules[recorded.KDA].KDAKernelDispatcher("triton", prefill, "triton")


def case(rule: str, pool_type: Any = torch.float32, padding: int = 5) -> dict[str, Any]:
    torch.manual_seed(2)
    tokens, heads, width = sum(LENGTHS) + padding, 2, 16
    hv = 2 * heads if rule == "gdn" else heads
    wide = torch.randn(7, 3, hv, width, width)  # slots of several layers lie together
    return {
        "q": torch.randn(1, tokens, heads, width),
        "k": torch.randn(1, tokens, heads, width),
        "v": torch.randn(1, tokens, hv, width),
        "g": -torch.rand(1, tokens, hv) if rule == "gdn" else torch.randn(1, tokens, hv, width),
        "beta": torch.rand(1, tokens, hv) if rule == "gdn" else torch.randn(1, tokens, hv),
        "ssm_states": wide.to(pool_type)[:, 1],
        "cache_indices": torch.tensor(SLOTS, dtype=torch.int32),
        "query_start_loc": torch.tensor([0, *torch.tensor(LENGTHS).cumsum(0)], dtype=torch.int32),
    }


def extras(x: dict[str, Any], rule: str) -> dict[str, Any]:
    """What SGLang passes beside the common arguments."""
    common = {
        "layer_id": 3,
        "extend_prefix_lens": torch.zeros(len(LENGTHS), dtype=torch.int32),
        "track_state": None,
        "track_chunk_idx": None,
        "state_checkpoint_cu_starts": None,
        "num_state_checkpoints": 0,
        "state_checkpoint_every_n_tokens": 0,
    }
    if rule == "gdn":
        return {**common, "output": None}
    hv, width = x["g"].shape[-2:]
    torch.manual_seed(3)
    return {
        **common,
        "A_log": torch.rand(1, 1, hv, 1),
        "dt_bias": torch.randn(hv * width),
        "lower_bound": None,
        "beta_is_raw": True,
        "extend_seq_lens_cpu": list(LENGTHS),
        "is_spec_decode": False,
        "return_intermediate_states": False,
        "track_ssm_h_src": None,
        "state_checkpoint_indices": None,
        "track_ssm_h_batch_src": None,
    }


def expected(x: dict[str, Any], more: dict[str, Any]) -> tuple[Any, Any, Any]:
    """(o, final states of sequences, states inside them), where padded rows start from zero."""
    g, beta = x["g"], x["beta"]
    if more.get("A_log") is not None:
        g = raw_gate(g, more["A_log"], more["dt_bias"], more["lower_bound"])
    if more.get("beta_is_raw"):
        beta = beta.double().sigmoid()
    index = x["cache_indices"].long()
    initial = torch.where((index > 0)[:, None, None, None], x["ssm_states"][index.clamp(min=0)].float(), 0.0)
    return recurrence(x["q"], x["k"], x["v"], g, beta, x["query_start_loc"], initial, l2norm=True)


def check_pool(pool: Any, before: Any, final: Any, tolerance: float = 2e-5) -> None:
    for n, slot in enumerate(SLOTS):
        if slot > 0:
            close(pool[slot], final[n], tolerance)
    untouched = [slot for slot in range(7) if slot not in SLOTS or slot == 0]
    assert torch.equal(pool[untouched], before[untouched])


def test_nothing_happens_unless_it_is_switched_on(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELTARELAY_SGLANG", "0")
    assert sglang.register() == {} and engine.HookRegistry.hooks == []
    assert type(dispatcher("gdn").extend_kernel) is engine.TritonGDNKernel


def test_hooks_are_set_once(engine: Any) -> None:
    assert set(sglang.register().values()) == {"not reached: SGLang has made no dispatcher yet"}
    sglang.register()
    assert len(engine.HookRegistry.hooks) == 2


@pytest.mark.parametrize("pool_type", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("prefill", ["triton", "flashinfer"])
def test_gdn(engine: Any, pool_type: Any, prefill: str) -> None:
    place, x = dispatcher("gdn", prefill), case("gdn", pool_type)
    assert sglang.outcome["GDN"] == "taken over" and sglang.outcome["KDA"].startswith("not reached")
    kernel = place.extend_kernel
    assert kernel.supports_track_state_snapshot and not kernel.uses_state_checkpoints
    assert isinstance(kernel, engine.TritonGDNKernel)
    before, more = x["ssm_states"].clone(), extras(x, "gdn")
    o, final, _ = expected(x, more)
    found = place.extend(**x, **more)
    assert found[1:] == (None, None) and engine.OWN_CALLS == []
    close(found[0], o)
    assert bool((found[0][:, -5:] == 0).all()), "rows behind the last sequence"
    check_pool(x["ssm_states"], before, final, 2e-5 if pool_type == torch.float32 else 0.05)
    assert deltarelay.last_call().copies == (), "the pool is read where it lies"


def test_gdn_writes_to_the_output_that_is_given(engine: Any) -> None:
    place, x = dispatcher("gdn"), case("gdn")
    out = torch.empty_like(x["v"])
    o, _, _ = expected(x, {})
    found, _, _ = place.extend(**x, **(extras(x, "gdn") | {"output": out}))
    assert found is out
    close(out, o)


def test_gdn_without_an_update_in_place(engine: Any) -> None:
    """Multi-item scoring: several sequences start from one slot, and none of them is kept."""
    place, x = dispatcher("gdn"), case("gdn")
    x["cache_indices"] = torch.tensor([5, 5, 5, 2, 2], dtype=torch.int32)
    before = x["ssm_states"].clone()
    o, _, _ = expected(x, {})
    found, _, _ = place.extend(**x, inplace_update=False)
    close(found, o)
    assert torch.equal(x["ssm_states"], before) and engine.OWN_CALLS == []


@pytest.mark.parametrize("rule", ["gdn", "kda"])
def test_states_for_the_prefix_cache(engine: Any, rule: str) -> None:
    place, x = dispatcher(rule), case(rule)
    more = extras(x, rule)
    _, _, steps = expected(x, more)
    kept = torch.full((len(LENGTHS), *x["ssm_states"].shape[1:]), 7.0)
    more |= {"track_state": kept, "track_chunk_idx": torch.tensor([1, -1, 2, 0, -1], dtype=torch.int32)}
    if rule == "kda":
        more |= {"return_intermediate_states": True, "track_ssm_h_src": torch.tensor([1, 4, 5])}
    found = place.extend(**x, **more)
    close(kept[0], steps[0][64])
    close(kept[2], steps[2][128])
    close(kept[3], steps[3][0])
    assert bool((kept[1] == 7).all()) and bool((kept[4] == 7).all()) and engine.OWN_CALLS == []
    assert rule == "gdn" or (len(found) == 2 and found[1] is None)


@pytest.mark.parametrize("bound", [None, -5.0])
@pytest.mark.parametrize("is_flat", [False, True])
def test_kda(engine: Any, bound: float | None, is_flat: bool) -> None:
    place, x = dispatcher("kda"), case("kda")
    assert isinstance(place.extend_kernel, engine.TritonKDAKernel), "prefill graphs are for that kind"
    before, more = x["ssm_states"].clone(), extras(x, "kda") | {"lower_bound": bound}
    o, final, _ = expected(x, more)
    if is_flat:
        x["g"] = x["g"].flatten(-2)
    close(place.extend(**x, **more), o)
    check_pool(x["ssm_states"], before, final)
    assert engine.OWN_CALLS == []


def test_kda_batches_of_single_tokens(engine: Any) -> None:
    """SGLang sends them to triton_kernel where it has chosen FlashInfer, and to extend_kernel else."""
    place = dispatcher("kda", "flashinfer")
    assert [getattr(place, name) for name in sglang.KERNELS["KDA"]] == [place.extend_kernel] * 2
    x = case("kda", padding=0)
    place.triton_kernel.extend(**x, **extras(x, "kda"))
    assert engine.OWN_CALLS == [] and sglang.status().taken == {"KDA": 1}


def test_calls_are_counted(engine: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "sglang")
    place, x = dispatcher("kda"), case("kda")
    more = extras(x, "kda")
    for _ in range(2):
        place.extend(**x, **more)
    place.extend(**x, **(more | {"is_spec_decode": True}))
    status = sglang.status()
    assert status.taken == {"KDA": 2} and list(status.declined.values()) == [1]
    assert status.outcome["KDA"] == "taken over" and "taken: KDA, 2 calls" in str(status)
    lines = [record.getMessage() for record in caplog.records if record.name == "sglang.deltarelay"]
    assert "DeltaRelay in SGLang, KDA: taken over" in lines
    assert "DeltaRelay in SGLang, KDA: 1 calls taken (all places: 0 declined)" in lines


def test_kda_with_an_activated_gate(engine: Any) -> None:
    place, x = dispatcher("kda"), case("kda")
    x["g"], x["beta"] = -x["g"].abs(), x["beta"].sigmoid()
    more = extras(x, "kda") | {"A_log": None, "dt_bias": None, "beta_is_raw": False}
    o, _, _ = expected(x, more)
    close(place.extend(**x, **more), o)


def test_kda_states_of_all_chunks(engine: Any) -> None:
    """Where nothing is tracked by a buffer, h has a row for the start of each 64 tokens of each sequence."""
    place, x = dispatcher("kda"), case("kda", padding=0)
    more = extras(x, "kda") | {"return_intermediate_states": True, "track_ssm_h_src": torch.tensor([1])}
    _, _, steps = expected(x, more)
    _, h = place.extend(**x, **more)
    wanted = [states[t] for states in steps for t in range(0, len(states) - 1, 64)]
    close(h[0, : len(wanted)], torch.stack(wanted))


def test_steps_that_must_not_be_committed_are_left(engine: Any, caplog: pytest.LogCaptureFixture) -> None:
    place, x = dispatcher("kda"), case("kda")
    place.extend(**x, **(extras(x, "kda") | {"is_spec_decode": True}))
    assert engine.OWN_CALLS == ["kda"] and "is_spec_decode: expected False" in caplog.text
    assert "is_spec_decode" in deltarelay.last_call().declined if deltarelay.last_call() else True


def test_a_gdn_call_that_is_left_still_fills_the_prefix_cache(engine: Any) -> None:
    """SGLang's own kernel does not know of track_state, which SGLang hands over because ours does."""
    place, x = dispatcher("gdn"), case("gdn", padding=0)
    x["cache_indices"] = torch.tensor([5, -1, 2, 3, -1], dtype=torch.int32)
    _, _, steps = expected(x, {})
    kept = torch.full((len(LENGTHS), *x["ssm_states"].shape[1:]), 7.0)
    more = {"track_state": kept, "track_chunk_idx": torch.tensor([1, -1, 2, 0, -1], dtype=torch.int32)}
    place.extend(**x, **(extras(x, "gdn") | more), novelty=1)
    assert engine.OWN_CALLS == ["gdn"]
    close(kept[0], steps[0][64])
    close(kept[2], steps[2][128])
    close(kept[3], steps[3][0])
    assert bool((kept[1] == 7).all())


def test_gathered_states(engine: Any) -> None:
    """As many states as sequences: then slot 0 is somebody's."""
    place, x = dispatcher("gdn"), case("gdn")
    x["ssm_states"] = torch.randn(len(LENGTHS), *x["ssm_states"].shape[1:])
    x["cache_indices"] = torch.arange(len(LENGTHS), dtype=torch.int32)
    o, final, _ = recurrence(
        x["q"], x["k"], x["v"], x["g"], x["beta"], x["query_start_loc"], x["ssm_states"].clone(), l2norm=True
    )
    found, _, _ = place.extend(**x, **extras(x, "gdn"))
    close(found, o)
    close(x["ssm_states"], final)


def test_drift_is_reported_and_leaves_sglang_alone(engine: Any, caplog: pytest.LogCaptureFixture) -> None:
    class Renamed(engine.KDAKernelDispatcher):
        def extend(self, q: Any, k: Any, v: Any, g: Any, beta: Any, *, pool: Any, **kwargs: Any) -> None: ...

    class Moved(engine.GDNKernelDispatcher):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            del self.tree_verify_kernel

    sys.modules[engine.KDA].KDAKernelDispatcher = Renamed
    sys.modules[engine.GDN].GDNKernelDispatcher = Moved
    kda, gdn = dispatcher("kda"), None
    gdn = sys.modules[engine.GDN].GDNKernelDispatcher("triton", "triton")
    assert "declined: SGLang is not 0.5.23 here: KDAKernelDispatcher.extend" in sglang.outcome["KDA"]
    assert "expected tree_verify_kernel and extend_kernel" in sglang.outcome["GDN"]
    assert type(kda.extend_kernel) is engine.TritonKDAKernel and type(gdn.extend_kernel) is engine.TritonGDNKernel
    assert sum("declined" in record.getMessage() for record in caplog.records) == 2


def test_a_registry_that_has_changed(engine: Any) -> None:
    del sys.modules[engine.REGISTRY].HookRegistry
    assert all(words.startswith("declined") for words in sglang.register().values())


SOURCES = [
    (f"{recorded.GDN}", "GDNKernelDispatcher.extend", sglang.DISPATCHER_PARAMETERS),
    (f"{recorded.KDA}", "KDAKernelDispatcher.extend", sglang.DISPATCHER_PARAMETERS),
    ("sglang.srt.layers.attention.linear.kernels.gdn_triton", "TritonGDNKernel.extend", sglang.GDN_PARAMETERS),
    ("sglang.srt.layers.attention.linear.kernels.kda_triton", "TritonKDAKernel.extend", sglang.KDA_PARAMETERS),
    (recorded.REGISTRY, "HookRegistry.register", ("cls", "target", "hook", "hook_type=", "source=")),
]


@pytest.mark.parametrize(("module", "name", "parameters"), SOURCES)
def test_the_record_is_true(module: str, name: str, parameters: tuple[str, ...]) -> None:
    assert source.parameters(source.folder("DELTARELAY_SGLANG_SOURCE"), module, name) == list(parameters)
