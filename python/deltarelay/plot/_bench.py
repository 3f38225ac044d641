"""Bars of measured results."""

from __future__ import annotations

import fnmatch
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from .._settings import word
from ..errors import Invalid, WrongType, shown


def _load(results: str | os.PathLike[str] | Mapping[str, Any]) -> Mapping[str, Any]:
    if isinstance(results, Mapping):
        values: Mapping[str, Any] = results
    elif isinstance(results, (str, os.PathLike)):
        try:
            values = json.loads(Path(results).read_text(encoding="utf-8"))
        except ValueError as error:
            raise Invalid(f"results: expected a JSON file, found {os.fspath(results)}: {error}") from None
    else:
        raise WrongType(f"results: expected the path of a JSON file or its contents, found {shown(results)}")
    if not isinstance(values, Mapping) or not isinstance(values.get("rows"), list):
        raise Invalid("results: expected what `deltarelay bench --json` writes, found no list 'rows'")
    return values


def _chosen(rows: list[Mapping[str, Any]], cases: str | Iterable[str] | None) -> list[Mapping[str, Any]]:
    if cases is None:
        return rows
    patterns = [cases] if isinstance(cases, str) else list(cases) if isinstance(cases, Iterable) else [cases]
    if not all(isinstance(pattern, str) for pattern in patterns):
        raise WrongType(f"cases: expected a name, names or None, found {shown(cases)}")
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
    unit: Literal["ms", "token_heads_per_s"] = "ms",
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
    word("unit", unit, ("ms", "token_heads_per_s"))
    values = _load(results)
    rows = _chosen(values["rows"], cases)
    from ._axes import draw_bench

    return draw_bench(values, rows, ax, unit)
