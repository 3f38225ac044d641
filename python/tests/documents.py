"""Python blocks of documents, run in order in one namespace, with the output that the text shows below them."""

from __future__ import annotations

import contextlib
import doctest
import importlib.util
import io
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
# A block, what it requires, and the text block that follows it with nothing but space between.
BLOCK = re.compile(r"^```python(?: requires=(\w+))?\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    document: str
    line: int
    requires: str
    code: str
    output: str | None


def blocks_of(document: str) -> list[Block]:
    text = (ROOT / document).read_text(encoding="utf-8")
    found = [
        Block(document, text.count("\n", 0, match.start()) + 1, match[1] or "", match[2], match[3])
        for match in BLOCK.finditer(text)
    ]
    # A fence that the expression does not take would be a block that nobody runs.
    assert len(found) == len(re.findall(r"^```python", text, re.MULTILINE)), f"{document}: a block is not read"
    return found


def missing(requires: str) -> str:
    """Why a block cannot run here; "" if it can."""
    needed = {"": (), "torch": ("torch",), "fla": ("torch", "fla", "deltarelay.fla"), "matplotlib": ("matplotlib",)}
    for module in needed[requires]:
        if importlib.util.find_spec(module) is None:
            return f"{module} is not here"
    return ""


def run(block: Block, namespace: dict[str, Any]) -> None:
    """Runs a block and compares what it prints. "..." in the text stands for anything."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        # Lines of a traceback are those of the document.
        exec(compile("\n" * block.line + block.code, block.document, "exec"), namespace)
    wanted = block.output if block.output is not None else ""
    if not doctest.OutputChecker().check_output(wanted, printed.getvalue(), doctest.ELLIPSIS):
        pytest.fail(
            f"{block.document}:{block.line}: the text shows\n{wanted}\nand the block prints\n{printed.getvalue()}"
        )


class Session:
    """A document as it is read: a block runs after all blocks above it, each once."""

    def __init__(self, document: str) -> None:
        self.blocks = blocks_of(document)
        self.namespace: dict[str, Any] = {"__name__": "document"}
        self.done = 0

    def run_through(self, index: int) -> None:
        reason = missing(self.blocks[index].requires)
        while self.done <= index:
            block = self.blocks[self.done]
            self.done += 1
            if not missing(block.requires):
                run(block, self.namespace)
        if reason:
            pytest.skip(reason)
