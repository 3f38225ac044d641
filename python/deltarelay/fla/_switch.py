"""DELTARELAY_FLA=1: `enable()` when deltarelay is imported."""

from __future__ import annotations

import warnings

from ._backend import enable
from ._report import Drift


def enable_by_environment() -> None:
    """A machine may set the variable for every program: a program without FLA, or with one that cannot be used, gets a
    message and continues. `enable()` raises what is only said here."""
    try:
        problems = enable().problems
    except ModuleNotFoundError as error:
        missing = "is not installed" if error.name == "fla" else "cannot be imported"
        problems = (f"FLA {missing}: nothing was registered ({error})",)
    except Drift as drift:
        problems = (f"nothing was registered: {drift}",)
    except Exception as error:  # of FLA's own modules while they are imported
        problems = (f"FLA cannot be used: nothing was registered ({type(error).__name__}: {error})",)
    for problem in problems:
        warnings.warn(f"DELTARELAY_FLA is set: {problem}", RuntimeWarning, stacklevel=4)
