"""Everything of a call that is not a tensor."""

from __future__ import annotations

import collections
import ctypes
import dataclasses
import itertools
import math
import numbers
import sys
from collections.abc import Sequence
from typing import Any

from . import _abi
from ._views import torch_if_imported
from .errors import Invalid, WrongType, shown

_count = itertools.count()
_LATE_LENGTHS, _BUCKETS = 1, 2  # as in binding/key.h
_LARGEST = 2**63 - 1  # int64
MOST_THREADS = 4096  # as the library has it
CHECKPOINT_STEP = 16  # tokens
_LEAST_CARRY_LOG_DECAY = -80.0
FLOATS = ("fp32", "bf16", "fp16")


def wrong(name: str, expected: str, found: Any) -> WrongType:
    """For a value of a kind that is not taken, such as a tensor in the place of a number."""
    hint = ""
    if getattr(found, "shape", None) == () and callable(getattr(found, "item", None)):
        hint = f" ({name}.item() is its number)"
    return WrongType(f"{name}: expected {expected}, found {shown(found)}{hint}")


def _number(value: Any) -> int | float | None:
    """Python's number of this value; None if it is no number. A tensor is none: to read one may wait for a GPU."""
    numpy, torch = sys.modules.get("numpy"), torch_if_imported()
    if numpy is not None and isinstance(value, numpy.generic):
        value = value.item()
    if torch is not None and isinstance(value, (torch.SymBool, torch.SymInt)):  # sizes while torch traces
        return int(value)
    if torch is not None and isinstance(value, torch.SymFloat):
        return float(value)
    if isinstance(value, numbers.Integral):
        return int(value)
    if not isinstance(value, numbers.Number):
        return None
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None


def word(name: str, value: Any, choices: Sequence[str | None]) -> Any:
    if value is None and None in choices:
        return None
    for choice in choices:
        if isinstance(value, str) and choice == value:
            return choice
    error = f"{name}: expected one of {', '.join(map(repr, choices))}, found {shown(value)}"
    raise Invalid(error) if isinstance(value, str) else WrongType(error)


def flag(name: str, value: Any) -> bool:
    number = _number(value)
    if number not in (0, 1):
        raise wrong(name, "True or False", value)
    return bool(number)


def whole(name: str, value: Any, least: int, most: int, expected: str) -> int:
    """An integer of a range. 2.0 is 2: both are the same key of a dictionary."""
    number = _number(value)
    if number is None:
        raise wrong(name, expected, value)
    if not least <= number <= most or number != int(number):
        raise Invalid(f"{name}: expected {expected}, found {shown(value)}")
    return int(number)


def _real(name: str, value: Any, expected: str, holds: Any) -> float | None:
    """A number that fp32 can hold, since the library has it so; 0.0 for -0.0, which would be found as the same."""
    if value is None:
        return None
    number = _number(value)
    if number is None:
        raise wrong(name, f"{expected} or None", value)
    try:
        number = float(number) + 0.0
    except OverflowError:
        number = math.inf
    stored = ctypes.c_float(number).value
    if not math.isfinite(stored) or not holds(stored):
        raise Invalid(f"{name}: expected {expected}, found {shown(value)}")
    return number


def _below_zero(number: float) -> bool:
    return number < 0


def _text(name: str, value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise wrong(name, "a name or None", value)
    text = "".join(value)  # of a subclass, the plain text
    if "\0" in text or not text.isprintable():
        raise Invalid(f"{name}: expected a name of printable characters, found {shown(value)}")
    return text or None


def _cuts(value: Any) -> int | str:
    expected = "'auto', 'off', a count or 'len:<tokens>'"
    if isinstance(value, str):
        text = "".join(value)
        digits = text.removeprefix("len:")
        is_length = text != digits and digits.isdecimal() and len(digits) < 20 and 0 < int(digits) <= _LARGEST
        if text not in ("auto", "off") and not is_length:
            raise Invalid(f"segments: expected {expected}, found {shown(value)}")
        return text
    return whole("segments", value, 1, _LARGEST, expected)


def _checkpoints(value: Any) -> int | str | None:
    expected = f"a number of tokens that is a multiple of {CHECKPOINT_STEP}, 'chunks', 'list' or None"
    if value is None:
        return None
    if isinstance(value, str):
        if value not in ("chunks", "list"):
            raise Invalid(f"checkpoints: expected {expected}, found {shown(value)}")
        return "".join(value)
    tokens = whole("checkpoints", value, 1, _LARGEST, expected)
    if tokens % CHECKPOINT_STEP:
        raise Invalid(f"checkpoints: expected {expected}, found {shown(value)}")
    return tokens


@dataclasses.dataclass(frozen=True, eq=False)
class Settings:
    """Problem and options of a call, checked as far as possible without tensors. The names are those of
    `deltarelay.forward`. The function `settings` makes them."""

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
        if isinstance(self.segments, str):
            return _abi.SEGMENTS_LENGTH, int(self.segments.removeprefix("len:"))
        return _abi.SEGMENTS_COUNT, self.segments


# The same fields, unchecked: torch.compile can trace neither the cache below nor the checks. The operators of torch_ops
# make settings of them.
_FIELDS = [field for field in dataclasses.fields(Settings) if field.init]
_DEFAULTS = [field.default for field in _FIELDS[1:]]
Values = collections.namedtuple("Values", [field.name for field in _FIELDS], defaults=_DEFAULTS)  # type: ignore[misc]


def _checked(given: Any) -> Any:
    """Values with every field as a plain Python object, so that equal ones have one meaning whatever their kind."""
    values = Values(
        rule=word("rule", given.rule, tuple(_abi.RULES)),
        scale=_real("scale", given.scale, "a finite number", math.isfinite),
        l2norm=flag("l2norm", given.l2norm),
        gate=word("gate", given.gate, tuple(_abi.GATES)),
        lower_bound=_real("lower_bound", given.lower_bound, "a number below 0", _below_zero),
        gate_floor=_real("gate_floor", given.gate_floor, "a number below 0", _below_zero),
        beta=word("beta_form", given.beta, tuple(_abi.BETAS)),
        state_layout=word("state_layout", given.state_layout, tuple(_abi.LAYOUTS)),
        final=flag("final", given.final),
        final_dtype=word("final_dtype", given.final_dtype, FLOATS),
        null_index=None
        if given.null_index is None
        else whole("null_index", given.null_index, -_LARGEST - 1, _LARGEST, "an integer of 64 bits or None"),
        checkpoints=_checkpoints(given.checkpoints),
        o_dtype=word("o_dtype", given.o_dtype, (None, *FLOATS)),
        segments=_cuts(given.segments),
        backend=_text("backend", given.backend),
        variant=_text("variant", given.variant),
        isa=_text("isa", given.isa),
        policy=_text("policy", given.policy),
        device=_text("device", given.device),
        threads=whole("threads", given.threads, 0, MOST_THREADS, f"an integer from 0 to {MOST_THREADS}"),
        invariant=flag("invariant", given.invariant),
        carry=word("carry", given.carry, tuple(_abi.CARRIES)),
        carry_log_decay=_real(
            "carry_log_decay",
            given.carry_log_decay,
            f"a number from {_LEAST_CARRY_LOG_DECAY:.0f} to below 0",
            lambda x: _LEAST_CARRY_LOG_DECAY <= x < 0,
        ),
        math=word("math", given.math, tuple(_abi.MATHS)),
        late_lengths=flag("late_lengths", given.late_lengths),
        checkpoint_dtype=word("checkpoint_dtype", given.checkpoint_dtype, (None, "q", *FLOATS)),
    )
    _check_together(values)
    return values


def _check_together(values: Any) -> None:
    if values.gate == "bounded" and values.lower_bound is None:
        raise Invalid("lower_bound: expected a number below 0 with gate='bounded', found None")
    if values.gate != "bounded" and values.lower_bound is not None:
        raise Invalid(f"lower_bound: expected None with gate={values.gate!r}, found {values.lower_bound!r}")
    if values.gate in ("softplus", "bounded") and values.gate_floor is not None:
        raise Invalid(f"gate_floor: expected None with gate={values.gate!r}, found {values.gate_floor!r}")
    if values.invariant and isinstance(values.segments, int) and values.segments > 1:
        raise Invalid(
            "segments: expected 'auto', 'off' or 'len:<tokens>' with invariant=True (a count cuts by the length of a "
            f"sequence), found {values.segments!r}"
        )
    if values.carry == "exact":
        if values.carry_log_decay is not None:
            raise Invalid(f"carry_log_decay: expected None with carry='exact', found {values.carry_log_decay!r}")
        return
    if not values.l2norm:
        raise Invalid("carry: expected 'exact' with l2norm=False (a long key makes a state grow), found 'truncated'")
    if values.beta == "value":
        raise Invalid(
            "carry: expected 'exact' with beta_form='value' (a strength above 2 makes a state grow), found 'truncated'"
        )


# Settings that were used, by their checked values, so that a call makes none. Only plain Python objects are keys: a
# tensor would be found by its identity after its number has changed. Emptied when full: new settings have new keys,
# and their plans too.
_MOST = 1024
_known: dict[tuple[Any, ...], Settings] = {}
known_settings = _known.get  # (values) -> Settings or None, for callers that have the values as a tuple


def settings(rule: str, *values: Any) -> Settings:
    """The settings with these values, in the order of the fields. Numbers count by their value, as keys of a dictionary
    do: True is 1 and 1.0, and -0.0 is 0.0."""
    try:
        found = _known.get((rule, *values))
    except TypeError:  # an unhashable value, which the checks name
        found = None
    if found is None:
        checked = _checked(Values(rule, *values))
        found = _known.get(checked)
        if found is None:
            found = Settings(*checked)
            if len(_known) >= _MOST:
                _known.clear()
            _known[checked] = found
    return found
