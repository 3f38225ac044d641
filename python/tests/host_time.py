"""Host and GPU time of a call on a GPU, beside the same case through the C interface.

python tests/host_time.py [--command deltarelay]

Host time is the median of single calls on an idle GPU, the plan cached, as `deltarelay bench` takes its own ("host
us"). All calls, the C path too, are timed in turns, and each counts by the median of its turns: the C path of one and
the same case swings by half from process to process.

The budget of the package: a direct call at most the C path + 10 us, a registered operator + 25, a call through FLA at
most FLA's own wrapper + 12 over the C path. GPU time is that of graph replays. Exit 1: over the budget.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch

import deltarelay

HOST_CASE = "gdn bf16 g=fp32 b=fp32 hqk=4 hv=8 seqs=64 final gate=log:-5,0 l2norm device=cuda"
GPU_CASE = "gdn bf16 g=fp32 b=fp32 hqk=16 hv=64 seqs=8192 final gate=log:-5,0 l2norm device=cuda"
BUDGET_US = {"forward": 10.0, "operator": 25.0, "chunk_gated_delta_rule": 10.0, "through FLA": 12.0}
CALLS, TURNS = 400, 6


def rows(tokens: int, keys: int, values: int) -> list[Any]:
    q, k = (torch.randn(1, tokens, keys, 128, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    v = torch.randn(1, tokens, values, 128, device="cuda", dtype=torch.bfloat16)
    return [q, k, v, -5 * torch.rand(1, tokens, values, device="cuda"), torch.rand(1, tokens, values, device="cuda")]


def median_us(function: Callable[[], Any]) -> float:
    times = []
    for _ in range(CALLS):
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
        torch.cuda.synchronize()
    return 1e6 * statistics.median(times)


def replay_ms(function: Callable[[], Any]) -> float:
    function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    times = []
    for _ in range(60):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def bench(command: str, case: str) -> dict[str, Any]:
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        subprocess.run([*command.split(), "bench", *case.split(), "--json", file.name], check=True, capture_output=True)
        return json.load(file)["rows"][0]


class Call(NamedTuple):
    function: Callable[[], Any]
    around: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext


def host_calls() -> dict[str, Call]:
    q, k, v, g, beta = tensors = rows(64, 4, 8)
    operator = torch.ops.deltarelay.forward_o_final
    words = {"output_final_state": True, "use_qk_l2norm_in_kernel": True}
    calls = {
        "torch.add": Call(lambda: q + q),
        "forward": Call(lambda: deltarelay.forward("gdn", *tensors, final=True, l2norm=True)),
        "operator": Call(lambda: operator("gdn", *tensors, "log", True)),
        "chunk_gated_delta_rule": Call(lambda: deltarelay.chunk_gated_delta_rule(q, k, v, g, beta, **words)),
    }
    try:
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    except ImportError as error:
        print(f"FLA: not timed: {error}")
        return calls
    from deltarelay.fla import _backend

    print(deltarelay.fla.enable())

    def through() -> Any:
        return chunk_gated_delta_rule(q, k, v, g, beta, **words)

    ready = through()

    @contextlib.contextmanager
    def wrapper_alone() -> Iterator[None]:
        """While it lasts, FLA's function reaches us and gets a result that is there already."""
        ours = dict(_backend.OURS)
        _backend.OURS.update({name: lambda *_, **__: ready for name in ours})
        yield
        _backend.OURS.update(ours)

    calls["FLA's wrapper"] = Call(through, wrapper_alone)
    calls["through FLA"] = Call(through)
    return calls


def measure_host(command: str) -> tuple[float, dict[str, float]]:
    """Microseconds of the C path, and of each call."""
    from deltarelay import torch_ops  # noqa: F401  registers the operators

    calls = host_calls()
    path: list[float] = []
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(TURNS):
        path.append(bench(command, HOST_CASE)["host_us"])
        for name, call in calls.items():
            with call.around():
                for _ in range(50):
                    call.function()
                torch.cuda.synchronize()
                found[name].append(median_us(call.function))
    print("C path, each turn:", " ".join(f"{us:.2f}" for us in path))
    return statistics.median(path), {name: statistics.median(times) for name, times in found.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--command", default=f"{sys.executable} -m deltarelay")
    arguments = parser.parse_args()
    with torch.no_grad():
        path, found = measure_host(arguments.command)
        tensors = rows(8192, 16, 64)
        mine = replay_ms(lambda: deltarelay.forward("gdn", *tensors, final=True, l2norm=True))
    print(f"C path {path:.2f} us")
    failed = False
    for name, us in found.items():
        base = path + (found["FLA's wrapper"] if name == "through FLA" else 0.0)
        over = f"  C path{' + wrapper' if name == 'through FLA' else ''} + {us - base:.2f}"
        verdict = "" if name not in BUDGET_US else " ok" if us - base <= BUDGET_US[name] else " OVER"
        failed |= verdict == " OVER"
        print(f"{name:24} {us:7.2f} us{over if name in BUDGET_US else ''}{verdict}")
    row = bench(arguments.command, GPU_CASE)
    print(f"GPU time: Python {mine:.4f} ms, C path {json.dumps({k: v for k, v in row.items() if 'ms' in k})[:300]}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
