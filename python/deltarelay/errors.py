"""Exceptions of a call. Messages name the argument, what was expected and what was found."""

from __future__ import annotations


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
    """Raises the exception of a dr_status."""
    raise _OF_STATUS.get(status, DeviceError)(message or f"status {status}")
