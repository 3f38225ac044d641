"""Exceptions of a call. Messages name the argument, what was expected and what was found."""

from __future__ import annotations

import sys
from typing import Any

from ._wording import in_python_words


class Error(Exception):
    """Base class of all errors of DeltaRelay."""


class Invalid(Error, ValueError):
    """The arguments contradict each other or a rule of the API: no backend can serve them."""


class WrongType(Error, TypeError):
    """An argument is an object of an unsupported kind."""


class Unsupported(Error, NotImplementedError):
    """The call is valid, but the requested backend, or every backend, declines it."""


class DeviceError(Error, RuntimeError):
    """The device or the library reported an error."""


_OF_STATUS = {1: Invalid, 2: Unsupported, 3: MemoryError, 4: DeviceError, 5: DeviceError}


def fail(status: int, message: str) -> None:
    """Raises the exception of a dr_status, in the words of Python's callers."""
    raise _OF_STATUS.get(status, DeviceError)(in_python_words(message) or f"status {status}")


_LONGEST = 60  # of a value in a message
_LARGEST_BITS = 256  # Python refuses to print integers of thousands of digits


def class_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def shown(value: Any) -> str:
    """A value in a message: itself if it is short and cheap to print, else its class. Printing a tensor may wait for a
    GPU."""
    if isinstance(value, int) and value.bit_length() > _LARGEST_BITS:
        return f"an integer of {value.bit_length()} bits"
    numpy = sys.modules.get("numpy")
    is_short = type(value).__name__ == "dtype" or (numpy is not None and isinstance(value, numpy.generic))
    if not is_short and not isinstance(value, (str, bytes, bool, int, float, complex, type(None), type)):
        shape = getattr(value, "shape", None)
        return class_name(value) + (f" of shape {list(shape)}" if isinstance(shape, tuple) else "")
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 4]}...{text[-1]}"
