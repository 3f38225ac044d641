"""On a GPU: graphs with changing lengths, devices and streams that are not current, and no waiting for the device
anywhere."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import deltarelay


def _why_not() -> str:
    if not torch.cuda.is_available():
        return "no GPU here"
    if not any(name.startswith("cuda:") for name in deltarelay.info()["devices"]):
        return "the library was built without CUDA"
    return ""


pytestmark = [
    pytest.mark.skipif(bool(_why_not()), reason=f"GPU tests: {_why_not()}"),
    pytest.mark.usefixtures("binding"),
]
TOKENS, HEADS, WIDTH = 1000, 4, 128


@pytest.fixture
def no_waiting() -> Iterator[None]:
    """Anything that torch waits for the device for is an error."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


def rows(tokens: int = TOKENS, device: str = "cuda", seed: int = 0) -> list[Any]:
    torch.manual_seed(seed)
    q, k, v = (torch.randn(1, tokens, HEADS, WIDTH, device=device, dtype=torch.bfloat16) for _ in range(3))
    return [q, k, v, -torch.rand(1, tokens, HEADS, device=device), torch.rand(1, tokens, HEADS, device=device)]


def offsets(lengths: list[int], device: str = "cuda") -> Any:
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32, device=device)


def same(found: Any, expected: Any) -> None:
    """As near as two plans for the same sequences are."""
    for mine, other in zip(found[:2], expected[:2]):
        torch.testing.assert_close(mine.float().cpu(), other.float().cpu(), rtol=2e-2, atol=2e-2)


def on_the_cpu(tensors: list[Any], lengths: Any) -> Any:
    return deltarelay.forward(
        "gdn", *(x.float().cpu() for x in tensors), l2norm=True, seq_offsets=lengths.cpu(), final=True
    )


def test_nothing_waits_for_the_device(no_waiting: None) -> None:
    """Also not when a plan is made: every call here has sizes that were not seen before."""
    from deltarelay import torch_ops  # noqa: F401  registers the operators

    torch.cuda.set_sync_debug_mode("default")
    inputs = [(rows(tokens), offsets([tokens - 9, 9])) for tokens in (77, 130, 1000)]
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    for tensors, lengths in inputs:
        deltarelay.forward("gdn", *tensors, l2norm=True, seq_offsets=lengths, final=True, checkpoints="chunks")
        torch.ops.deltarelay.forward_o("gdn", *tensors, l2norm=True, seq_offsets=lengths)


def stages_of(tensors: list[Any], lengths: Any, **how: Any) -> tuple[Any, Any, Any]:
    """(o, final, states) by the stages, with lengths on the device."""
    from deltarelay import stages

    q, k, v, g, beta = tensors
    form = {"l2norm": True, "seq_offsets": lengths}
    c = stages.chunk_local("gdn", k=k, v=v, g=g, beta=beta, wanted=("w", "u", "gate_sums"), **form)
    sums = {"gate_sums": c.gate_sums}
    p = stages.state_pass("gdn", w=c.w, u=c.u, k=k, **sums, final=True, **how, **form)
    o = stages.outputs("gdn", v_new=p.v_new, states=p.states, q=q, k=k, **sums, **form).o
    return o, p.final, p.states


def test_stages_do_not_wait_for_the_device(no_waiting: None) -> None:
    torch.cuda.set_sync_debug_mode("default")
    tensors, lengths = rows(), offsets([500, 0, 300, 99])
    expected = on_the_cpu(tensors, lengths)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    o, final, states = stages_of(tensors, lengths)
    assert deltarelay.last_call().copies == ()
    _, _, fewer = stages_of(tensors, lengths, num_chunks=8 + 0 + 5 + 2)
    torch.cuda.set_sync_debug_mode("default")
    same((o, final), expected)
    assert not o[:, 899:].any()
    assert states.shape[0] == TOKENS // 64 + 4 and fewer.shape[0] == 15
    assert torch.equal(states[:15], fewer)


def test_a_graph_of_stages_follows_the_lengths() -> None:
    tensors, lengths = rows(), offsets([500, 0, 300, 99])
    stages_of(tensors, lengths)  # makes the plans
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o, final, _ = stages_of(tensors, lengths)
    for new in ([500, 0, 300, 99], [1, 998, 0, 1], [64, 64, 64, 64]):
        lengths.copy_(offsets(new))
        graph.replay()
        same((o, final), on_the_cpu(tensors, lengths))
        assert not o[:, sum(new) :].any()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_stages_make_the_forward(dtype: str) -> None:
    """KDA piece by piece, and the same state over segments that summaries join."""
    from deltarelay import stages

    torch.manual_seed(1)
    tokens = 320
    q, k, v = (torch.randn(tokens, HEADS, 64, device="cuda", dtype=getattr(torch, dtype)) for _ in range(3))
    k = torch.nn.functional.normalize(k.float(), dim=-1).to(q.dtype)
    g, beta = -torch.rand(tokens, HEADS, 64, device="cuda"), torch.rand(tokens, HEADS, device="cuda")
    whole = deltarelay.forward("kda", q, k, v, g, beta, final=True)
    c = stages.chunk_local("kda", q=q, k=k, v=v, g=g, beta=beta)
    s = stages.state_pass("kda", w=c.w, u=c.u, k_to_end=c.k_to_end, gate_sums=c.gate_sums, final=True)
    o = stages.outputs("kda", v_new=s.v_new, states=s.states, aqk=c.aqk, q_from_start=c.q_from_start).o
    assert o.is_cuda
    same((o, s.final), (whole.o, whole.final))

    cuts = torch.tensor([0, 64, 192, 320], device="cuda")
    maps = stages.summary("kda", k=k, v=v, g=g, beta=beta, seq_offsets=cuts).summaries
    entering = stages.carry("kda", summaries=maps, final=True)
    torch.testing.assert_close(entering.final, s.final, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(entering.states[1], s.states[1].float(), rtol=2e-2, atol=2e-2)


def test_engines_do_not_wait_either() -> None:
    from deltarelay.engines import sglang

    tensors, lengths = rows(), offsets([500, 300, 200])
    pool = torch.randn(6, HEADS, WIDTH, WIDTH, device="cuda")
    index = torch.tensor([5, -1, 2], dtype=torch.int32, device="cuda")
    kept = torch.zeros(3, HEADS, WIDTH, WIDTH, device="cuda")
    chunks = torch.tensor([3, -1, 0], dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        sglang.gdn_extend(
            *tensors,
            ssm_states=pool,
            cache_indices=index,
            query_start_loc=lengths,
            track_state=kept,
            track_chunk_idx=chunks,
        )
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert bool(kept[0].abs().max() > 0) and bool((kept[1] == 0).all())


def test_graphs_hold_for_other_lengths() -> None:
    tensors, lengths = rows(), offsets([600, 300, 100])
    pool = torch.zeros(5, HEADS, WIDTH, WIDTH, device="cuda")
    index = torch.tensor([4, 1, 2], device="cuda")

    def step() -> Any:
        return deltarelay.forward(
            "gdn",
            *tensors,
            l2norm=True,
            seq_offsets=lengths,
            initial=pool,
            initial_index=index,
            has_initial=torch.zeros(3, dtype=torch.bool, device="cuda"),
            final=pool,
            final_index=index,
        )

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step()
    for seed, chosen in enumerate(([600, 300, 100], [1, 0, 999], [10, 10, 10], [0, 0, 1000])):
        for mine, new in zip(tensors, rows(seed=seed)):
            mine.copy_(new)
        lengths.copy_(offsets(chosen))
        graph.replay()
        expected = on_the_cpu(tensors, lengths)
        same((result.o, pool[index]), expected)
        assert bool((result.o[:, sum(chosen) :] == 0).all())


def test_compiled_with_graphs() -> None:
    """torch.compile's own graphs (mode="reduce-overhead") take the operator in."""

    def call(lengths: Any, *tensors: Any) -> Any:
        return deltarelay.forward("gdn", *tensors, l2norm=True, seq_offsets=lengths, final=True)[:2]

    fast = torch.compile(call, fullgraph=True, mode="reduce-overhead")
    for chosen in ([600, 400], [1, 999], [500, 500], [1000, 0]):
        lengths, tensors = offsets(chosen), rows()
        same([x.clone() for x in fast(lengths, *tensors)], on_the_cpu(tensors, lengths))


def test_streams() -> None:
    """Work goes to the stream that is current, behind what is there and ahead of what follows."""
    expected = on_the_cpu(rows(), offsets([700, 300]))
    streams = [torch.cuda.Stream() for _ in range(4)]
    results = []
    for stream in streams:
        with torch.cuda.stream(stream):
            tensors, lengths = rows(), offsets([700, 300])
            torch.cuda._sleep(20_000_000)
            for x in tensors:
                x.mul_(1)  # behind the wait
            results.append(deltarelay.forward("gdn", *tensors, l2norm=True, seq_offsets=lengths, final=True))
    for stream, result in zip(streams, results):
        stream.synchronize()
        same(result, expected)


def test_threads_with_streams_of_their_own() -> None:
    tensors, lengths = rows(), offsets([700, 300])
    expected = on_the_cpu(tensors, lengths)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(20):
                    result = deltarelay.forward("gdn", *tensors, l2norm=True, seq_offsets=lengths, final=True)
                torch.cuda.current_stream().synchronize()
                same(result, expected)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.skipif(
    torch.cuda.device_count() < 2, reason=f"GPU tests: {torch.cuda.device_count()} GPUs here, two are needed"
)
def test_a_device_that_is_not_current() -> None:
    tensors, lengths = rows(device="cuda:1"), offsets([700, 300], "cuda:1")
    with torch.cuda.device(0):
        result = deltarelay.forward("gdn", *tensors, l2norm=True, seq_offsets=lengths, final=True)
        assert result.o.device == torch.device("cuda:1") and torch.cuda.current_device() == 0
    same(result, on_the_cpu(tensors, lengths))


def test_one_tensor_elsewhere_is_refused() -> None:
    tensors = rows()
    with pytest.raises(deltarelay.Invalid, match="^k: expected device cuda:0 as q, found cpu"):
        deltarelay.forward("gdn", tensors[0], tensors[1].cpu(), *tensors[2:])


@pytest.mark.parametrize("name", ["k", "v", "g", "beta", "o"])
def test_another_token_count_is_refused(name: str) -> None:
    """Lengths are on the device, so one plan serves all token counts of a bucket."""
    given = dict(zip(("q", "k", "v", "g", "beta"), rows()), o=torch.empty_like(rows()[2]))
    lengths = offsets([400, 600])
    deltarelay.forward("gdn", **given, l2norm=True, seq_offsets=lengths)
    given[name] = given[name][:, :970]  # with the strides of the others
    with pytest.raises(deltarelay.Invalid, match=rf"^{name}: expected \[1, 1000.*found \[1, 970"):
        deltarelay.forward("gdn", **given, l2norm=True, seq_offsets=lengths)


def test_what_is_written_has_a_new_version() -> None:
    tensors = rows()
    o = torch.empty_like(tensors[2])
    deltarelay.forward("gdn", *tensors, o=o)
    assert o._version > 0


def test_memory_does_not_grow() -> None:
    tensors, lengths = rows(), offsets([700, 300])
    for _ in range(5):
        deltarelay.forward("gdn", *tensors, seq_offsets=lengths, final=True)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for tokens in range(100, 1000):
        deltarelay.forward("gdn", *(x[:, :tokens] for x in tensors), seq_offsets=lengths.clamp(max=tokens), final=True)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before
