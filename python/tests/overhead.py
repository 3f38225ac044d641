"""Host time of a call over a kernel that does nothing: what the binding itself costs.

python tests/overhead.py        prints microseconds a call, best of many short runs
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any


def nothing() -> int:
    """The address of a function that takes any arguments and returns 0: an empty kernel for the extension."""
    return ctypes.cast(ctypes.CDLL(None).pthread_condattr_destroy, ctypes.c_void_p).value or 0


class EmptyKernel:
    """While it lasts, the extension calls nothing where it called dr_execute."""

    def __enter__(self) -> None:
        self._set(nothing())

    def __exit__(self, *_: object) -> None:
        from deltarelay import _library

        self._set(_library.address("dr_execute"))

    def _set(self, execute: int) -> None:
        from deltarelay import _call, _library, _plans, errors

        core = _call._core
        make = _plans.maker(core.Entry)
        core.set_library(execute, _library.address("dr_last_error"), _plans.PLANS, make, errors.fail)


def best_us(function: Callable[[], Any], calls: int = 300, runs: int = 60) -> float:
    for _ in range(calls):
        function()
    best = float("inf")
    for _ in range(runs):
        start = time.perf_counter()
        for _ in range(calls):
            function()
        best = min(best, time.perf_counter() - start)
    return best / calls * 1e6


def tensors(framework: str, tokens: int = 64, heads: int = 1, width: int = 16) -> tuple[Any, ...]:
    if framework == "torch":
        import torch

        rows = (torch.zeros(1, tokens, heads, width) for _ in range(4))
        return (*rows, torch.zeros(1, tokens, heads))
    import numpy

    rows = tuple(numpy.zeros((1, tokens, heads, width), "f4") for _ in range(4))
    return (*rows, numpy.zeros((1, tokens, heads), "f4"))


def measure(framework: str) -> dict[str, float]:
    import deltarelay

    rows = tensors(framework)
    calls: dict[str, Callable[[], Any]] = {
        "forward": lambda: deltarelay.forward("kda", *rows, final=True, l2norm=True),
        "forward, o and final given": lambda: deltarelay.forward(
            "kda", *rows, o=given.o, final=given.final, l2norm=True
        ),
    }
    given = deltarelay.forward("kda", *rows, final=True, l2norm=True)
    with EmptyKernel():
        return {name: best_us(function) for name, function in calls.items()}


if __name__ == "__main__":
    for framework in ("numpy", "torch"):
        try:
            for name, us in measure(framework).items():
                print(f"{framework:6} {name:30} {us:6.2f} us")
        except ImportError as error:
            print(f"{framework}: {error}")
