"""The GPU build of deltarelay's library and of its command. deltarelay finds both at import."""

from __future__ import annotations

import os

__all__ = ["command_path", "library_path"]

_folder = os.path.dirname(os.path.abspath(__file__))


def library_path() -> str:
    """The shared library with the GPU backends."""
    return os.path.join(_folder, "libdeltarelay.so.0.2")


def command_path() -> str:
    """The command `deltarelay` that is linked to it."""
    return os.path.join(_folder, "bin", "deltarelay")
