"""The shared library: found, loaded once, its functions typed."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import re
from pathlib import Path

from . import _abi, errors
from ._folders import folders

_FILE = "libdeltarelay.so.0.2"
_WANTED = f"the shared library of DeltaRelay 0.{_abi.CONTRACT // 100} ({_FILE})"


def _candidates() -> list[tuple[str, Path]]:
    """(origin, path) of candidates; the first that exists is loaded."""
    found = []
    if os.environ.get("DELTARELAY_LIBRARY"):
        return [("DELTARELAY_LIBRARY", Path(os.environ["DELTARELAY_LIBRARY"]))]
    if importlib.util.find_spec("deltarelay_cuda") is not None:
        import deltarelay_cuda

        found.append(("deltarelay_cuda", Path(deltarelay_cuda.library_path())))
    found += [("bundled", Path(folder) / _FILE) for folder in folders()]
    return found


@functools.cache
def _loaded() -> tuple[ctypes.CDLL, str, Path]:
    candidates = _candidates()
    for origin, path in candidates:
        if not path.exists():
            continue
        return _load(origin, path), origin, path
    tried = ", ".join(f"{path} ({origin})" for origin, path in candidates)
    raise ImportError(f"deltarelay: expected {_WANTED}, found none; looked for {tried}")


def _load(origin: str, path: Path) -> ctypes.CDLL:
    """The library of a file, with typed functions. The version is asked for first: another one lacks functions."""
    where = origin if origin.isupper() else f"the library ({origin})"
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise ImportError(f"{where}: expected {_WANTED}, found {path}, which cannot be loaded: {error}") from error
    if not hasattr(library, "dr_version"):
        raise ImportError(f"{where}: expected {_WANTED}, found {path}, another library (it has no dr_version)")
    version = library.dr_version()
    if version // 100 != _abi.CONTRACT // 100:
        found = f"{version // 10000}.{version // 100 % 100}.{version % 100}"
        raise ImportError(f"{where}: expected {_WANTED}, found version {found} at {path}")
    for name, (result, arguments) in _abi.FUNCTIONS.items():
        if not hasattr(library, name):
            raise ImportError(f"{where}: expected {_WANTED}, found {path}, which has no {name}")
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


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
    status = library().dr_device_find(name.encode(), ctypes.byref(device))
    if status != 0:
        errors.fail(status, re.sub("^name:", "device:", last_error()))
    return device


def address(name: str) -> int:
    """Address of a function, for the extension."""
    return ctypes.cast(getattr(library(), name), ctypes.c_void_p).value or 0
