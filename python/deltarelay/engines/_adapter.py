"""Shared by the adapters: recorded signatures, options of the environment, checkpoints."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable
from typing import Any

from .._switches import OFF, switch
from ..errors import Invalid, Unsupported
from ._report import Engine


class Drift(Exception):
    """The engine differs from the recorded version."""


def listed(words: str) -> tuple[str, ...]:
    """A recorded parameter list, written as one line."""
    return tuple(words.split())


def check_signature(function: Callable[..., Any], recorded: tuple[str, ...], where: str) -> int:
    """Parameters are the recorded ones, in their order; "name=" has a default. Returns how many of them a call can pass
    by position: those in front of the first new one.

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
    new = [index for index, name in enumerate(found) if name not in wanted]
    return min(new, default=len(found))


def is_nothing(value: Any) -> bool:
    return value is None or value is False


def check_unknown(engine: Engine, where: str, keywords: dict[str, Any]) -> None:
    """Engines add keywords with every release. None and False request nothing; any other value is refused by name."""
    for name, value in keywords.items():
        if not is_nothing(value):
            raise Unsupported(f"{name}: expected None or False in a call of {where}, found {type(value).__name__}")
        engine.say_once(
            f"{where}: keyword {name!r} is not known to this adapter; it was {value} and is left out", logging.INFO
        )


def options() -> dict[str, Any]:
    """Options that the environment sets for every call. The second variable is vLLM's own, which is a number."""
    wanted = switch("DELTARELAY_INVARIANT") or os.environ.get("VLLM_BATCH_INVARIANT", "").strip() not in ("", *OFF)
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
