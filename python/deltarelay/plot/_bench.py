"""Bars of measured results."""

from __future__ import annotations

import fnmatch
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..errors import Invalid


def _load(results: str | os.PathLike[str] | Mapping[str, Any]) -> Mapping[str, Any]:
    if isinstance(results, Mapping):
        values: Mapping[str, Any] = results
    else:
        values = json.loads(Path(results).read_text(encoding="utf-8"))
    if not isinstance(values, Mapping) or not isinstance(values.get("rows"), list):
        raise Invalid("results: expected what `deltarelay bench --json` writes, found no list 'rows'")
    return values


def _chosen(rows: list[Mapping[str, Any]], cases: str | Iterable[str] | None) -> list[Mapping[str, Any]]:
    if cases is None:
        return rows
    patterns = [cases] if isinstance(cases, str) else list(cases)
    found = [row for row in rows if any(fnmatch.fnmatchcase(name_of(row), pattern) for pattern in patterns)]
    if not found:
        some = ", ".join(map(name_of, rows[:6]))
        raise Invalid(f"cases: expected names or patterns of rows ({some}, ...), found {cases!r}")
    return found


def name_of(row: Mapping[str, Any]) -> str:
    return str(row.get("case") or row.get("line") or "?")


def bench(
    results: str | os.PathLike[str] | Mapping[str, Any],
    ax: Any = None,
    *,
    cases: str | Iterable[str] | None = None,
    unit: str = "ms",
) -> Any:
    """Draws measured times with matplotlib: a bar for each case, the unsplit call and other packages beside it.

    Thin lines on the bars reach from the 10th to the 90th percentile. Milliseconds have a logarithmic axis, since cases
    differ by a factor of a thousand; speeds start at 0.

    Args:
        results: a file of bench/results, or its contents.
        ax: the matplotlib Axes to draw on; a new figure's if None.
        cases: names of the rows to draw, or patterns such as "kda-*"; all if None.
        unit: "ms" (of a call) or "token_heads_per_s" (tokens x value heads a second, in which shapes compare).

    Returns:
        The Axes.
    """
    if unit not in ("ms", "token_heads_per_s"):
        raise Invalid(f"unit: expected 'ms' or 'token_heads_per_s', found {unit!r}")
    values = _load(results)
    rows = _chosen(values["rows"], cases)
    from ._axes import draw_bench

    return draw_bench(values, rows, ax, unit)
