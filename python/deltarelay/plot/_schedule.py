"""The schedule of a plan as both kinds of picture read it, and the words they share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import WrongType, shown

if TYPE_CHECKING:
    from .._plans import Plan

# Colours of a stage: neighbours on one unit alternate between the two, so that segments can be told apart.
COLOURS = {
    "prepare": ("#9aa4af", "#9aa4af"),
    "emit": ("#1f5fa8", "#4d8fd6"),
    "summarize": ("#d9771f", "#f0a356"),
    "carry": ("#30363d", "#30363d"),
}
STAGES = {
    "prepare": "prepare: what needs no state",
    "summarize": "summarize: what a segment does to any state",
    "carry": "carry: hands states on",
    "emit": "emit: outputs",
}
IDLE = "#eef1f4"


class Item(NamedTuple):
    """What one unit does without a pause."""

    unit: int
    begin: float  # ns
    end: float
    work: str
    sequence: int
    segment: int
    head: int
    tile: int
    phase: int


class Stage(NamedTuple):
    """A phase of a schedule: no unit leaves it before all are done."""

    work: tuple[str, ...]
    begin: float
    end: float


class Timeline(NamedTuple):
    title: str
    items: tuple[Item, ...]
    stages: tuple[Stage, ...]
    end: float  # ns
    busy: float  # share of the units' time


class Step(NamedTuple):
    stage: str
    items: int
    ns: float


class Picture(NamedTuple):
    """Everything that a picture of a plan shows."""

    headline: str
    facts: str
    asked: str
    unit: str  # "SM" or "thread"
    units: int
    timelines: tuple[Timeline, ...]  # the plan's, then the one it is compared with
    steps: tuple[Step, ...]
    predicted: float  # ns; 0: not known
    unsplit: float
    omitted: str  # why there are no timelines


def duration(ns: float) -> str:
    """Three significant digits and a unit."""
    scales = ((1.0, "ns"), (1e3, "us"), (1e6, "ms"), (1e9, "s"))
    scale, unit = next(((scale, unit) for scale, unit in scales if ns < 999.5 * scale), scales[-1])
    value = ns / scale
    digits = 0 if value >= 99.95 or value == int(value) else 1 if value >= 9.995 else 2
    return f"{value:.{digits}f} {unit}"


def counted(count: int, word: str) -> str:
    return f"{count:,} {word}" + ("" if count == 1 else "s")


def work_of(item: Item) -> str:
    return item.work if item.work in COLOURS else "emit"


def shade_of(item: Item) -> int:
    return (item.sequence + item.segment) % 2


def _items(entries: Iterable[Mapping[str, Any]]) -> tuple[Item, ...]:
    return tuple(
        Item(
            entry.get("unit", 0),
            entry.get("start_ns", 0),
            entry.get("end_ns", 0),
            entry.get("work", "emit"),
            entry.get("sequence", 0),
            entry.get("segment", 0),
            entry.get("head", 0),
            entry.get("tile", 0),
            entry.get("phase", 1),
        )
        for entry in entries
    )


def _stages(items: tuple[Item, ...], prepare: float) -> tuple[Stage, ...]:
    stages = [Stage(("prepare",), 0, prepare)] if prepare > 0 else []
    for phase in sorted({item.phase for item in items}):
        of_phase = [item for item in items if item.phase == phase]
        work = tuple(name for name in STAGES if any(work_of(item) == name for item in of_phase))
        stages.append(Stage(work, min(item.begin for item in of_phase), max(item.end for item in of_phase)))
    return tuple(stages)


def _timeline(schedule: Mapping[str, Any], name: str, title: str, units: int) -> Timeline:
    items = _items(schedule.get(name, ()))
    prepare = schedule.get("prepare_ns", 0) if items else 0
    end = max((item.end for item in items), default=0)
    worked = prepare * units + sum(item.end - item.begin for item in items if item.work != "carry")
    return Timeline(title, items, _stages(items, prepare), end, worked / (end * units) if end else 0)


def _asked(problem: Mapping[str, Any]) -> str:
    tokens = f"{problem.get('num_tokens', 0):,} tokens" + ("" if problem.get("lengths_known", True) else " at most")
    parts = (
        f"{problem.get('rule', '?')} {problem.get('dtype', '')}",
        counted(problem.get("num_seqs", 1), "sequence"),
        tokens,
        f"{counted(problem.get('heads_v', 0), 'value head')} on {counted(problem.get('heads_qk', 0), 'key head')}",
        f"DK {problem.get('dk', 0)}",
        f"DV {problem.get('dv', 0)}",
    )
    return " · ".join(parts)


def _compared(ours: float, other: float, other_name: str) -> str:
    gain = other / ours
    words = f"{gain:.3g}x faster" if gain >= 1 else f"{1 / gain:.3g}x slower"
    return f"{duration(ours)} predicted, {words} than {other_name}"


def _timelines(values: Mapping[str, Any], units: int, unit: str) -> tuple[tuple[Timeline, ...], str]:
    """The timelines, and the name of what the plan is compared with."""
    schedule = values.get("schedule") or {}
    ours = _timeline(schedule, "split", "", units)
    relayed = values.get("relay_shares", 0) > 0
    cut = not relayed and any(item.segment > 0 for item in ours.items)
    if not ours.items:
        return (), ""
    if not (cut or relayed):
        return (ours._replace(title="the plan: every sequence whole"),), ""
    segments = len({(item.sequence, item.segment) for item in ours.items if item.work != "carry"})
    title = f"rows handed on from {unit} to {unit}" if relayed else f"split into {counted(segments, 'segment')}"
    other_name = "in whole waves" if relayed else "unsplit"
    other = _timeline(schedule, "unsplit", f"{other_name}, for comparison", units)
    return (ours._replace(title=title), other), other_name if other.items else ""


def read_plan(plan: Plan | Mapping[str, Any]) -> Picture:
    if not isinstance(plan, Mapping) and not callable(getattr(plan, "to_dict", None)):
        raise WrongType(f"plan: expected a Plan or what its to_dict() gives, found {shown(plan)}")
    values: Mapping[str, Any] = plan if isinstance(plan, Mapping) else plan.to_dict()
    device = values.get("device") or {}
    schedule = values.get("schedule") or {}
    units = max(1, schedule.get("units") or device.get("units") or 1)
    unit = "SM" if device.get("kind") == "cuda" else "thread"
    timelines, other_name = _timelines(values, units, unit)
    predicted, unsplit = values.get("predicted_ns", 0), values.get("unsplit_ns", 0)
    omitted = "" if timelines else values.get("schedule_omitted") or "there is nothing to do"

    if other_name:
        headline = _compared(timelines[0].end, timelines[1].end, other_name)
    elif predicted > 0:
        headline = f"{duration(predicted)} predicted"
    else:
        headline = "no schedule yet" if values.get("schedule_omitted") else "nothing to do"
    name = "/".join(part for part in (values.get("backend"), values.get("variant") or values.get("isa")) if part)
    machine = f"{counted(units, unit)} of {device.get('name', '?')}"
    workspace = f"workspace {_bytes(values.get('workspace_bytes', 0))}"
    facts = " · ".join((f"backend {name}", machine, f"chunks of {values.get('chunk', '?')} tokens", workspace))
    steps = tuple(
        Step(step.get("stage", "?"), step.get("items", 0), step.get("predicted_ns", 0))
        for step in values.get("steps", ())
        if not step.get("condition")  # of every call
    )
    asked = _asked(values.get("problem") or {})
    return Picture(headline, facts, asked, unit, units, timelines, steps, predicted, unsplit, omitted)


def _bytes(count: int) -> str:
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def merged(items: tuple[Item, ...], thinnest: float) -> list[Item]:
    """Neighbours of one work on one unit are one item where they are shorter than `thinnest` nanoseconds."""
    result: list[Item] = []
    for item in sorted(items, key=lambda item: (item.unit, item.begin)):
        last = result[-1] if result else None
        if (
            last is not None
            and last.unit == item.unit
            and last.work == item.work
            and item.begin - last.end < thinnest
            and item.end - item.begin < 3 * thinnest
        ):
            result[-1] = last._replace(end=max(last.end, item.end))
        else:
            result.append(item)
    return result
