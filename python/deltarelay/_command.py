"""The command `deltarelay`, a program inside this package."""

from __future__ import annotations

import importlib.util
import os
import sys

from ._folders import folders


def command_path() -> str:
    """The program: DELTARELAY_COMMAND, else that of deltarelay-cuda (the only one with GPU backends), else our own."""
    named = os.environ.get("DELTARELAY_COMMAND")
    if named:
        if not os.access(named, os.X_OK):
            raise FileNotFoundError(f"DELTARELAY_COMMAND: expected a program, found none at {named}")
        return named
    if importlib.util.find_spec("deltarelay_cuda") is not None:
        import deltarelay_cuda

        return deltarelay_cuda.command_path()
    paths = [os.path.join(folder, "bin", "deltarelay") for folder in folders()]
    for path in paths:
        if os.access(path, os.X_OK):
            return path
    raise FileNotFoundError(f"deltarelay: expected the command in this package, found none at {' or '.join(paths)}")


def main() -> None:
    """Replaces this process by the program, with the same arguments. Does not return."""
    try:
        os.execv(command_path(), ["deltarelay", *sys.argv[1:]])
    except OSError as error:
        sys.exit(str(error))
