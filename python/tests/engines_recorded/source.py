"""Parameter lists out of an engine's source, without importing it: where a folder of its sources is at hand."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest


def folder(variable: str) -> Path:
    """The folder that holds the package, named by the environment."""
    given = os.environ.get(variable)
    if not given:
        pytest.skip(f"{variable} names no folder with the engine's sources")
    return Path(given)


def parameters(root: Path, module: str, name: str) -> list[str]:
    """As check_signature's lists: "name=" has a default. `name` is a function, or Class.method."""
    file = root / (module.replace(".", "/") + ".py")
    if not file.exists():
        file = root / module.replace(".", "/") / "__init__.py"
    body = ast.parse(file.read_text()).body
    *owners, wanted = name.split(".")
    for owner in owners:
        body = next(node.body for node in body if isinstance(node, ast.ClassDef) and node.name == owner)
    function = next(node for node in body if isinstance(node, ast.FunctionDef) and node.name == wanted)
    given = function.args
    required = len(given.args) - len(given.defaults)
    found = [argument.arg + ("=" if i >= required else "") for i, argument in enumerate(given.args)]
    return found + [
        argument.arg + ("" if default is None else "=")
        for argument, default in zip(given.kwonlyargs, given.kw_defaults)
    ]
