"""Everything of a call that is not a tensor."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
from typing import Any

from . import _abi
from .errors import Invalid

_count = itertools.count()
_LATE_LENGTHS, _BUCKETS = 1, 2  # as in binding/key.h


def _one_of(name: str, value: Any, choices: Any) -> None:
    if value not in choices:
        raise Invalid(f"{name}: expected one of {', '.join(map(repr, choices))}, found {value!r}")


def _number(name: str, value: float | None, rule: str, holds: Any) -> None:
    if value is not None and not (math.isfinite(value) and holds(value)):
        raise Invalid(f"{name}: expected {rule}, found {value!r}")


@dataclasses.dataclass(frozen=True, eq=False)
class Settings:
    """Problem and options of a call, checked as far as possible without tensors. The names are those of
    `deltarelay.forward`."""

    rule: str
    scale: float | None = None
    l2norm: bool = False
    gate: str = "log"
    lower_bound: float | None = None
    gate_floor: float | None = None
    beta: str = "value"
    state_layout: str = "value_major"
    final: bool = False  # return final states
    final_dtype: str = "fp32"  # of allocated final states
    null_index: int | None = None
    checkpoints: int | str | None = None
    o_dtype: str | None = None
    segments: int | str = "auto"
    backend: str | None = None
    variant: str | None = None
    isa: str | None = None
    policy: str | None = None
    device: str | None = None
    threads: int = 0
    invariant: bool = False
    carry: str = "exact"
    carry_log_decay: float | None = None
    math: str = "default"
    late_lengths: bool = False
    checkpoint_dtype: str | None = None  # of allocated checkpoints; None: final_dtype, "q": as q
    # Part of the key of plans. A counter instead of a list of the fields, because equal settings are one object (see
    # `settings`). The last byte is for binding/key.c.
    key: bytes = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        flags = _LATE_LENGTHS * bool(self.late_lengths) + _BUCKETS * self.buckets
        object.__setattr__(self, "key", next(_count).to_bytes(8, "little") + bytes([flags]))
        _one_of("rule", self.rule, _abi.RULES)
        _one_of("gate", self.gate, _abi.GATES)
        _one_of("beta_form", self.beta, _abi.BETAS)
        _one_of("state_layout", self.state_layout, _abi.LAYOUTS)
        _one_of("final_dtype", self.final_dtype, ("fp32", "bf16", "fp16"))
        _one_of("o_dtype", self.o_dtype, (None, "fp32", "bf16", "fp16"))
        _one_of("checkpoint_dtype", self.checkpoint_dtype, (None, "q", "fp32", "bf16", "fp16"))
        _one_of("carry", self.carry, _abi.CARRIES)
        _one_of("math", self.math, _abi.MATHS)
        _number("scale", self.scale, "a finite number", lambda _: True)
        _number("lower_bound", self.lower_bound, "a number below 0", lambda x: x < 0)
        _number("gate_floor", self.gate_floor, "a number below 0", lambda x: x < 0)
        _number("carry_log_decay", self.carry_log_decay, "a number below 0", lambda x: x < 0)
        if self.gate == "bounded" and self.lower_bound is None:
            raise Invalid("lower_bound: expected a number below 0 with gate='bounded', found None")
        if self.gate != "bounded" and self.lower_bound is not None:
            raise Invalid(f"lower_bound: expected None with gate={self.gate!r}, found {self.lower_bound!r}")
        if not (self.checkpoints in (None, "chunks", "list") or _is_count(self.checkpoints)):
            raise Invalid(
                f"checkpoints: expected a number of tokens, 'chunks', 'list' or None, found {self.checkpoints!r}"
            )
        self.cuts()

    @property
    def buckets(self) -> bool:
        """May a plan of late lengths have a bound above the token count? Checkpoints are allocated by that bound."""
        return self.checkpoints is None

    def cuts(self) -> tuple[int, int]:
        """dr_options.segments and segment_value."""
        if self.segments == "auto":
            return _abi.SEGMENTS_AUTO, 0
        if self.segments == "off":
            return _abi.SEGMENTS_OFF, 0
        if _is_count(self.segments):
            return _abi.SEGMENTS_COUNT, int(self.segments)
        if isinstance(self.segments, str) and self.segments.startswith("len:") and self.segments[4:].isdecimal():
            return _abi.SEGMENTS_LENGTH, int(self.segments[4:])
        raise Invalid(f"segments: expected 'auto', 'off', a count or 'len:<tokens>', found {self.segments!r}")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


# The same fields, unchecked: torch.compile can trace neither the cache below nor the checks. The operators of torch_ops
# make settings of them.
_FIELDS = [field for field in dataclasses.fields(Settings) if field.init]
_DEFAULTS = [field.default for field in _FIELDS[1:]]
Values = collections.namedtuple("Values", [field.name for field in _FIELDS], defaults=_DEFAULTS)  # type: ignore[misc]

# Settings that were used, by value, so that a call makes none. Emptied when full: new ones have new keys, and their
# plans too.
_MOST = 1024
_known: dict[tuple[Any, ...], Settings] = {}
known_settings = _known.get  # (values) -> Settings or None, for callers that have the values as a tuple


def settings(rule: str, *values: Any) -> Settings:
    """The settings with these values, in the order of the fields. -0.0 is 0.0, True is 1: none of them changes a
    call."""
    key = (rule, *values)
    found = _known.get(key)
    if found is None:
        found = Settings(rule, *values)
        if len(_known) >= _MOST:
            _known.clear()
        _known[key] = found
    return found
