"""FLA's own tests on DeltaRelay: `pytest -p deltarelay.fla.pytest_plugin <FLA>/tests/ops/test_kda.py -k chunk`.

Registers us before tests are collected, puts FLA's tests on the CPU where there is no GPU, fills every output with NaN
before it is written, and counts. There is no backward yet: for tensors that require grad the forward is ours and the
gradients are those of FLA's naive reference, so o and final states test us and gradients test nothing.

A checkout of FLA puts its own package on the path; `-o pythonpath=` keeps the one that is installed.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from .. import _call, _stage_call
from .._plans import ARGUMENTS
from . import _backend
from ._reference import with_borrowed_gradients

_ARGUMENT = {name: index for index, name in enumerate(ARGUMENTS)}
_plain_call, _plain_empty = _call.call, _stage_call.empty


def _use_cpu() -> bool:
    if torch.cuda.is_available():
        return False
    import fla.utils

    fla.utils.device = "cpu"
    fla.utils.device_torch_lib = torch.cpu
    return True


def _poisoned_call(settings: Any, arguments: tuple[Any, ...]) -> tuple[Any, Any, Any]:
    """As `_call.call`; what it would allocate is given, and holds NaN."""
    given = list(arguments)
    q, v, initial, offsets = (given[_ARGUMENT[name]] for name in ("q", "v", "initial", "seq_offsets"))
    shapes_fit = len(q.shape) == 4 and len(v.shape) == 4
    if shapes_fit and given[_ARGUMENT["o"]] is None:
        given[_ARGUMENT["o"]] = torch.full(v.shape, float("nan"), dtype=q.dtype, device=v.device)
    if shapes_fit and settings.final and given[_ARGUMENT["final"]] is None:
        n = initial.shape[0] if initial is not None else q.shape[0] if offsets is None else offsets.shape[0] - 1
        matrix = (v.shape[3], q.shape[3]) if settings.state_layout == "value_major" else (q.shape[3], v.shape[3])
        given[_ARGUMENT["final"]] = torch.full((n, v.shape[2], *matrix), float("nan"), device=v.device)
    return _plain_call(settings, tuple(given))


def _poisoned(framework: Any, shape: Any, dtype: Any, device: Any) -> Any:
    """An output of a stage, full of NaN."""
    return _plain_empty(framework, shape, dtype, device).fill_(float("nan"))


# When the plug-in is loaded, ahead of every conftest: FLA's imports FLA.
_on_cpu = _use_cpu()
_report = _backend.enable()
_backend.state.train = with_borrowed_gradients
_call.call, _stage_call.empty = _poisoned_call, _poisoned


def pytest_unconfigure(config: pytest.Config) -> None:
    _call.call, _stage_call.empty = _plain_call, _plain_empty
    _backend.state.train = None


def pytest_report_header(config: pytest.Config) -> list[str]:
    where = "the CPU (no GPU here)" if _on_cpu else "the GPU"
    return [*str(_report).splitlines(), f"FLA's tests run on {where}; gradients are those of FLA's naive reference"]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    status = _backend.status()
    terminalreporter.section("DeltaRelay in FLA")
    for hook in _backend.HOOKS.values():
        terminalreporter.line(f"{hook.label}: {status.taken.get(hook.label, 0)} calls reached us")
    terminalreporter.line(f"declined: {sum(status.declined.values())} calls")
    for reason, count in sorted(status.declined.items()):
        terminalreporter.line(f"  {count} x {reason}")
