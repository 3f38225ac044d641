"""What a call can fail with. Messages name the argument, what was expected and what was found."""

from __future__ import annotations


class Error(Exception):
    """Anything that DeltaRelay reports."""


class Invalid(Error, ValueError):
    """The arguments contradict each other or the contract: no backend could serve them."""


class WrongType(Error, TypeError):
    """An argument is an object of a kind that is not taken."""


class Unsupported(Error, NotImplementedError):
    """The call is valid, but the backend that was asked for, or every one, declines it."""


class DeviceError(Error, RuntimeError):
    """The device or the library reported an error."""


_OF_STATUS = {1: Invalid, 2: Unsupported, 3: MemoryError, 4: DeviceError, 5: DeviceError}


def fail(status: int, message: str) -> None:
    """Raises what a dr_status stands for."""
    raise _OF_STATUS.get(status, DeviceError)(message or f"status {status}")
