"""DELTARELAY_FLA=1: `enable()` when deltarelay is imported."""

from __future__ import annotations

import warnings

from ._backend import enable


def enable_by_environment() -> None:
    """A machine may set the variable for every program; a program without FLA gets a message and continues."""
    try:
        report = enable()
    except ModuleNotFoundError as error:
        if error.name != "fla":
            raise
        warnings.warn(
            "DELTARELAY_FLA=1 is set, but FLA is not installed: nothing was registered", RuntimeWarning, stacklevel=4
        )
        return
    for problem in report.problems:
        warnings.warn(f"DELTARELAY_FLA=1: {problem}", RuntimeWarning, stacklevel=4)
