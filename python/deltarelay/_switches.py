"""Switches in the environment: which words turn one on or off."""

from __future__ import annotations

import os
import warnings

ON = ("1", "true", "yes", "on")
OFF = ("0", "false", "no", "off")
_warned: set[tuple[str, str]] = set()


def switch(variable: str) -> bool | None:
    """What the variable says, in any case of letters. None: it is unset or empty, or its word is not known.

    An unknown word is named in a warning, once. It switches nothing on: a spelling mistake must not change results.
    """
    found = os.environ.get(variable, "").strip()
    word = found.lower()
    if word in ON:
        return True
    if word in OFF:
        return False
    if found and (variable, found) not in _warned:
        _warned.add((variable, found))
        expected = f"one of {', '.join((*ON, *OFF))}, or nothing"
        warnings.warn(
            f"{variable}: expected {expected}, found {found!r}; the variable is ignored", RuntimeWarning, stacklevel=3
        )
    return None
