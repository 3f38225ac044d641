"""The shared library: found, loaded once, its functions typed."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
from pathlib import Path

from . import _abi, errors

_FILE = "libdeltarelay.so.0.2"


def _candidates() -> list[tuple[str, Path]]:
    """(origin, path) of candidates; the first that exists is loaded."""
    found = []
    if os.environ.get("DELTARELAY_LIBRARY"):
        return [("DELTARELAY_LIBRARY", Path(os.environ["DELTARELAY_LIBRARY"]))]
    if importlib.util.find_spec("deltarelay_cuda") is not None:
        import deltarelay_cuda

        found.append(("deltarelay_cuda", Path(deltarelay_cuda.library_path())))
    found.append(("bundled", Path(__file__).parent / _FILE))
    return found


@functools.cache
def _loaded() -> tuple[ctypes.CDLL, str, Path]:
    candidates = _candidates()
    for origin, path in candidates:
        if not path.exists():
            continue
        library = ctypes.CDLL(str(path))
        for name, (result, arguments) in _abi.FUNCTIONS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        version = library.dr_version()
        if version // 100 != _abi.CONTRACT // 100:
            raise ImportError(
                f"deltarelay: expected a library of version 0.{_abi.CONTRACT // 100}, found {version // 10000}."
                f"{version // 100 % 100}.{version % 100} at {path}"
            )
        return library, origin, path
    tried = ", ".join(f"{path} ({origin})" for origin, path in candidates)
    raise ImportError(f"deltarelay: the library was not found; looked for {tried}")


def library() -> ctypes.CDLL:
    return _loaded()[0]


def origin() -> tuple[str, Path]:
    """Origin and path of the library."""
    return _loaded()[1:]


def last_error() -> str:
    return library().dr_last_error().decode()


def check(status: int) -> None:
    if status != 0:
        errors.fail(status, last_error())


def find_device(name: str) -> _abi.Device:
    device = _abi.Device()
    check(library().dr_device_find(name.encode(), ctypes.byref(device)))
    return device


def address(name: str) -> int:
    """Address of a function, for the extension."""
    return ctypes.cast(getattr(library(), name), ctypes.c_void_p).value or 0
