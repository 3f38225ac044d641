"""Where the files of this package lie: modules, and what was compiled."""

from __future__ import annotations

import importlib.util
import os
import sys


def folders() -> list[str]:
    """The folder of the modules first. An editable installation has compiled files in another one."""
    package = sys.modules[__package__]
    found = [os.path.dirname(os.path.abspath(__file__)), *(os.path.abspath(path) for path in package.__path__)]
    core = importlib.util.find_spec(f"{__package__}._core")
    if core is not None and core.origin:
        found.append(os.path.dirname(os.path.abspath(core.origin)))
    return list(dict.fromkeys(found))
