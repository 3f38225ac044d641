"""What is installed and what it can do here."""

from __future__ import annotations

import ctypes
import platform
from typing import Any

from . import _abi, _call, _library
from ._version import __version__
from ._views import torch_if_imported


def info() -> dict[str, Any]:
    """Versions, the loaded library and its origin, how tensors reach it, backends and devices."""
    library = _library.library()
    origin, path = _library.origin()
    name, why = _call.binding()
    torch = torch_if_imported()
    return {
        "version": __version__,
        "python": platform.python_version(),
        "library": str(path),
        "library_from": origin,
        "build": library.dr_build_info().decode(),
        "binding": name,
        "binding_why": why,
        "torch": torch.__version__ if torch else None,
        "backends": [library.dr_backend_name(i).decode() for i in range(library.dr_backend_count())],
        "isas": [library.dr_isa_name(i).decode() for i in range(library.dr_isa_count())],
        "devices": _devices(library),
    }


def _devices(library: ctypes.CDLL) -> list[str]:
    """The devices of this machine, by name and model."""
    found = []
    for index in range(library.dr_device_count()):
        device = _abi.Device()
        _library.check(library.dr_device_get(index, ctypes.byref(device)))
        name = device.name.decode()
        if name == "cpu" or ":" in name:
            found.append(f"{name} ({device.model.decode() or 'unknown model'}, {device.units} units)")
    return found
