"""Shared by the adapters: the switch, recorded signatures, and the way back to the engine's own path."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable
from typing import Any

from .. import _call
from ..errors import Invalid, Unsupported, WrongType

log = logging.getLogger("deltarelay.engines")
_said: set[str] = set()
_OFF = ("", "0", "false", "off", "no")


class Drift(Exception):
    """The engine differs from the recorded version."""


def is_on(variable: str) -> bool:
    return os.environ.get(variable, "").strip().lower() not in _OFF


def say_once(message: str, level: int = logging.WARNING) -> None:
    """Logs a line once, however often a layer is called."""
    if message not in _said:
        _said.add(message)
        log.log(level, "%s", message)


def check_signature(function: Callable[..., Any], recorded: tuple[str, ...], where: str) -> None:
    """Parameters are the recorded ones, in their order; "name=" has a default.

    New parameters are accepted if a call can omit them or pass None or False; adapters check the values they get.
    """
    found = inspect.signature(function).parameters
    wanted = {name.rstrip("="): name.endswith("=") for name in recorded}
    missing = [name for name in wanted if name not in found]
    if missing:
        raise Drift(f"{where}: expected a parameter {missing[0]!r}, found {', '.join(found)}")
    known = [name for name in found if name in wanted]
    if known != list(wanted):
        raise Drift(f"{where}: expected parameters in the order {', '.join(wanted)}, found {', '.join(known)}")
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_ONLY)
    for name, parameter in found.items():
        if parameter.kind not in named:
            continue
        required = parameter.default is inspect.Parameter.empty
        if name not in wanted and (required or not is_nothing(parameter.default)):
            raise Drift(f"{where}: expected no parameter {name!r} that has to be understood, found {parameter}")
        if name in wanted and wanted[name] and required:
            raise Drift(f"{where}: expected a default for {name!r}, found none")


def is_nothing(value: Any) -> bool:
    return value is None or value is False


def check_unknown(where: str, keywords: dict[str, Any]) -> None:
    """Engines add keywords with every release. None and False request nothing; any other value is refused by name."""
    for name, value in keywords.items():
        if not is_nothing(value):
            raise Unsupported(f"{name}: expected None or False in a call of {where}, found {type(value).__name__}")
        say_once(
            f"{where}: keyword {name!r} is not known to this adapter; it was {value} and is left out", logging.INFO
        )


def run_or_leave(where: str, ours: Callable[[], Any], theirs: Callable[[], Any]) -> Any:
    """Our call. If it declines, before it has written anything, the engine's own call and a line in the log."""
    try:
        result = ours()
    except (Invalid, Unsupported, WrongType) as error:
        say_once(f"{where}: left to the engine: {error}")
        _call.note_declined(f"{where}: {error}")
        return theirs()
    _call.note_declined("")
    return result


def options() -> dict[str, Any]:
    """Options that the environment sets for every call."""
    wanted = is_on("DELTARELAY_INVARIANT") or is_on("VLLM_BATCH_INVARIANT")
    return {"invariant": True} if wanted else {}


def dtype_of(state: Any) -> str:
    """New states have the type of the engine's states."""
    import torch

    names = {torch.bfloat16: "bf16", torch.float16: "fp16"}
    return "fp32" if state is None else names.get(state.dtype, "fp32")


def one_checkpoint(positions: Any, wanted: Any, states: Any) -> dict[str, Any]:
    """Arguments for a state inside each sequence that wants one: `states[n]` after `positions[n]` tokens, which is
    above 0.

    Lists have a row for each sequence that wants one, and then rows that nobody reads: no length depends on what is
    wanted, so that nothing is asked of the device.
    """
    import torch

    count, device = positions.shape[0], positions.device
    if states.shape[0] != count:
        raise Invalid(f"states to keep: expected {count}, one a sequence, found {states.shape[0]}")
    offsets = torch.nn.functional.pad(wanted.cumsum(0, dtype=torch.int32), (1, 0))
    rows = torch.where(wanted, offsets[:-1], count).long()  # of those that want none: behind the end
    index = torch.full((count + 1,), -1, dtype=torch.int32, device=device)
    index.scatter_(0, rows, torch.arange(count, dtype=torch.int32, device=device))
    return {
        "checkpoints": "list",
        "checkpoint": states,
        "checkpoint_index": index[:count],
        "checkpoint_offsets": offsets,
        "checkpoint_positions": torch.zeros_like(index).scatter_(0, rows, positions.to(torch.int32))[:count],
    }


__all__ = [
    "Drift",
    "check_signature",
    "check_unknown",
    "dtype_of",
    "is_nothing",
    "is_on",
    "log",
    "one_checkpoint",
    "options",
    "run_or_leave",
    "say_once",
]
