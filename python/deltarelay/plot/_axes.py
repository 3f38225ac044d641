"""What is drawn with matplotlib."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..errors import WrongType, shown
from ._bench import name_of
from ._schedule import COLOURS, IDLE, STAGES, Picture, Timeline, counted, duration, merged, shade_of, work_of

_THINNEST = 1 / 900  # of the axis, below which neighbours are drawn as one


def _matplotlib(ax: Any) -> Any:
    try:
        import matplotlib.pyplot as pyplot
    except ImportError as error:
        raise ImportError(
            "deltarelay.plot: plan() and bench() need matplotlib, which cannot be imported "
            f"({error}); `pip install matplotlib` brings it. plan_svg() and Plan.describe('svg') need nothing"
        ) from error
    if ax is not None and not hasattr(ax, "add_patch"):
        raise WrongType(f"ax: expected an Axes of matplotlib or None, found {shown(ax)}")
    return pyplot


def _time_unit(ns: float) -> tuple[float, str]:
    return next(
        (scale, unit)
        for scale, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "us"), (1.0, "ns"))
        if ns >= scale or scale == 1
    )


def _message(ax: Any, picture: Picture) -> Any:
    lines = [f"No schedule to draw: {picture.omitted}", ""]
    for step in picture.steps:
        most = "at most " if picture.predicted == 0 else ""
        time = f", {duration(step.ns)}" if step.ns else ""
        lines.append(f"{step.stage}: {most}{counted(step.items, 'item')}{time}")
    ax.set_axis_off()
    ax.text(0.02, 0.95, "\n".join(lines), transform=ax.transAxes, va="top", fontsize=10)
    ax.set_title(f"{picture.headline}\n{picture.asked}", loc="left", fontsize=10)
    return ax


def _timeline(ax: Any, picture: Picture, timeline: Timeline, top: float, end: float, scale: float) -> None:
    """Units from `top` downwards: the axis is inverted."""
    from matplotlib.collections import PolyCollection

    units = picture.units
    ax.broken_barh([(0, end / scale)], (top, units), facecolors=IDLE, zorder=0)
    for stage in timeline.stages:
        if stage.work in (("prepare",), ("carry",)):
            width = max(stage.end - stage.begin, end * _THINNEST)
            ax.broken_barh([(stage.begin / scale, width / scale)], (top, units), facecolors=COLOURS[stage.work[0]][0])
    gap = 0.06 if units <= 32 else 0
    bars: dict[str, list[list[tuple[float, float]]]] = {}  # corners, by colour: one collection each is drawn at once
    for item in merged(timeline.items, end * _THINNEST):
        if item.work != "carry":
            begin, stop = item.begin / scale, item.end / scale
            upper, lower = top + item.unit + gap, top + item.unit + 1 - gap
            corners = [(begin, upper), (begin, lower), (stop, lower), (stop, upper)]
            bars.setdefault(COLOURS[work_of(item)][shade_of(item)], []).append(corners)
    for colour, corners_of in bars.items():
        ax.add_collection(PolyCollection(corners_of, facecolors=colour, linewidth=0))
    ax.plot([timeline.end / scale] * 2, [top, top + units], color="#24292f", linewidth=1.3)
    ax.annotate(
        duration(timeline.end),
        (timeline.end / scale, top + units / 2),
        xytext=(6, 0),
        textcoords="offset points",
        va="center",
        fontweight="bold",
        fontsize=9,
        annotation_clip=False,
    )
    stages = ", ".join(f"{' + '.join(stage.work)} {duration(stage.end - stage.begin)}" for stage in timeline.stages)
    words = f"{timeline.title}  ({stages}; {round(100 * timeline.busy)} % busy)"
    ax.annotate(words, (0, top), xytext=(0, 4), textcoords="offset points", fontsize=9, annotation_clip=False)


def draw_plan(picture: Picture, ax: Any) -> Any:
    pyplot = _matplotlib(ax)
    timelines = picture.timelines
    if ax is None:
        rows = max(1.6, min(2.8, 0.5 * picture.units))
        height = 1.9 + rows * len(timelines) if timelines else 2.6
        _, ax = pyplot.subplots(figsize=(10, height), layout="constrained")
    if not timelines:
        return _message(ax, picture)
    from matplotlib.patches import Patch
    from matplotlib.transforms import ScaledTranslation

    end = max(timeline.end for timeline in timelines)
    scale, time_unit = _time_unit(end)
    space = max(0.6, 0.22 * picture.units)
    step = next(step for step in (1, 2, 4, 8, 16, 32, 64, 128, 1 << 30) if picture.units / step <= 9)
    ticks, labels = [], []
    for index, timeline in enumerate(timelines):
        top = index * (picture.units + space)
        _timeline(ax, picture, timeline, top, end, scale)
        for unit in range(0, picture.units, step):
            ticks.append(top + unit + 0.5)
            labels.append(f"{picture.unit} {unit}")
    ax.set_yticks(ticks, labels, fontsize=8)
    ax.set_ylim(len(timelines) * picture.units + (len(timelines) - 1) * space, -space)
    ax.set_xlim(0, end / scale * 1.08)
    ax.set_xlabel(f"{time_unit}, by the cost model")
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    ax.tick_params(axis="y", length=0)
    present = {name for timeline in timelines for stage in timeline.stages for name in stage.work}
    handles = [Patch(color=COLOURS[name][0], label=name) for name in STAGES if name in present]
    handles.append(Patch(facecolor=IDLE, edgecolor="#d8dee4", label="idle"))
    below = ax.transAxes + ScaledTranslation(0, -34 / 72, ax.figure.dpi_scale_trans)  # the names of the axis
    place = {"loc": "upper left", "bbox_to_anchor": (0, 0), "bbox_transform": below, "borderaxespad": 0}
    ax.legend(handles=handles, ncols=len(handles), frameon=False, fontsize=9, **place)
    ax.set_title(f"{picture.headline}\n{picture.asked}", loc="left", fontsize=10)
    return ax


class _Bar(NamedTuple):
    y: float
    name: str  # who was timed
    ms: float
    length: float  # in the unit of the axis, as are the ends of its line
    low: float
    high: float


def _times_of(row: Mapping[str, Any]) -> list[tuple[str, float, float, float]]:
    """(who, ms, 10th and 90th percentile), in the order in which they are drawn."""
    ms = row["ms"]
    times = [("DeltaRelay", ms, row.get("ms_low", ms), row.get("ms_high", ms))]
    if row.get("cut_sequences") and row.get("unsplit_ms"):
        ms = row["unsplit_ms"]
        times.append(("unsplit", ms, row.get("unsplit_ms_low", ms), row.get("unsplit_ms_high", ms)))
    return times + [(name, float(ms), float(ms), float(ms)) for name, ms in row.get("peers", {}).items()]


def _bar(row: Mapping[str, Any], y: float, time: tuple[str, float, float, float], unit: str) -> _Bar:
    name, ms, low, high = time
    if unit == "ms":
        return _Bar(y, name, ms, ms, low, high)
    work = row["token_heads_per_s"] * row["ms"] / 1e6  # the longer a call takes, the lower its speed
    return _Bar(y, name, ms, work / ms, work / high, work / low)


def _bars(rows: list[Mapping[str, Any]], unit: str) -> tuple[list[_Bar], list[float], float]:
    """All bars, the middle of each row of them, and where the last row ends."""
    bars, middles, y = [], [], 0.0
    for row in rows:
        times = _times_of(row)
        bars += [_bar(row, y + index, time, unit) for index, time in enumerate(times)]
        middles.append(y + (len(times) - 1) / 2)
        y += len(times) + 0.6
    return bars, middles, y - 0.6


def _colours(names: list[str]) -> dict[str, str]:
    colours = {"DeltaRelay": "#1f5fa8", "unsplit": "#a9c6e8"}
    others = ("#d9771f", "#3d8f5f", "#8b5fb0", "#9aa4af")
    return colours | {n: others[i % 4] for i, n in enumerate(n for n in names if n not in colours)}


def draw_bench(results: Mapping[str, Any], rows: list[Mapping[str, Any]], ax: Any, unit: str) -> Any:
    pyplot = _matplotlib(ax)
    from matplotlib.ticker import LogLocator, NullFormatter

    bars, ticks, end = _bars(rows, unit)
    names = list(dict.fromkeys(bar.name for bar in bars))
    if ax is None:
        _, ax = pyplot.subplots(figsize=(9, max(2.2, 0.21 * end + 1.3)), layout="constrained")
    for name, colour in _colours(names).items():
        chosen = [bar for bar in bars if bar.name == name]
        if chosen:
            ends = [[bar.length - bar.low for bar in chosen], [bar.high - bar.length for bar in chosen]]
            style = {"height": 0.92, "color": colour, "error_kw": {"ecolor": "#24292f", "elinewidth": 0.9}}
            ax.barh([bar.y for bar in chosen], [bar.length for bar in chosen], xerr=ends, label=name, **style)
    for bar in bars:
        words = f"{bar.ms:.3f} ms" if bar.ms < 10 else f"{bar.ms:.1f} ms"
        ax.annotate(words, (bar.high, bar.y), xytext=(4, 0), textcoords="offset points", va="center", fontsize=7.5)

    ax.set_yticks(ticks, [name_of(row) for row in rows], fontsize=8)
    ax.set_ylim(end, -0.8)
    if unit == "ms":
        ax.set_xscale("log")
        ax.set_xlim(min(bar.low for bar in bars) / 2, max(bar.high for bar in bars) * 2)
        ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.set_xlabel("ms per call (logarithmic; shorter is faster)")
    else:
        ax.set_xlim(0, ax.get_xlim()[1] * 1.08)
        ax.set_xlabel("million token-heads per second (longer is faster)")
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="x", color="#d8dee4", linewidth=0.7)
    ax.set_axisbelow(True)
    if len(names) > 1:
        ax.legend(frameon=False, fontsize=9, loc="lower right" if unit == "ms" else "best")
    facts = [
        str(results.get("device", "?")),
        str(results.get("date", ""))[:10],
        f"commit {results.get('commit', '?')[:10]}",
    ]
    ax.set_title(" · ".join(fact for fact in facts if fact), loc="left", fontsize=10)
    return ax
