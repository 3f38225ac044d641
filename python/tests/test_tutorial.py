"""docs/python-tutorial.md, block by block."""

from __future__ import annotations

import pytest
from documents import Block, Session, blocks_of

DOCUMENT = "docs/python-tutorial.md"
BLOCKS = blocks_of(DOCUMENT)


@pytest.fixture(scope="module")
def session() -> Session:
    return Session(DOCUMENT)


@pytest.mark.parametrize("index", range(len(BLOCKS)), ids=[f"line-{block.line}" for block in BLOCKS])
def test_block(session: Session, index: int) -> None:
    session.run_through(index)


def test_blocks_that_print_show_it() -> None:
    silent: list[Block] = [block for block in BLOCKS if "print(" in block.code and block.output is None]
    assert [f"{block.document}:{block.line}" for block in silent] == []


def test_the_main_flow_needs_numpy_alone() -> None:
    assert sum(not block.requires for block in BLOCKS) >= 10
