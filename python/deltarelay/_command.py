"""The command `deltarelay`: a program that lies in this package."""

from __future__ import annotations

import importlib.util
import os
import sys


def command_path() -> str:
    """The program: that of deltarelay-cuda where it is installed, since only that one can use a GPU, else our own."""
    wanted = os.environ.get("DELTARELAY_COMMAND")
    if wanted:
        return wanted
    if importlib.util.find_spec("deltarelay_cuda") is not None:
        import deltarelay_cuda

        return deltarelay_cuda.command_path()
    # Compiled files lie together; of an editable installation they are not where the modules are.
    folders = [os.path.dirname(os.path.abspath(__file__))]
    core = importlib.util.find_spec("deltarelay._core")
    if core is not None and core.origin:
        folders.append(os.path.dirname(os.path.abspath(core.origin)))
    paths = [os.path.join(folder, "bin", "deltarelay") for folder in folders]
    for path in paths:
        if os.access(path, os.X_OK):
            return path
    raise FileNotFoundError(f"deltarelay: expected the command in this package, found no program at {' or '.join(paths)}")


def main() -> None:
    """Become the program, with the arguments of this process; does not return."""
    try:
        path = command_path()
        os.execv(path, ["deltarelay", *sys.argv[1:]])
    except OSError as error:
        sys.exit(str(error))
