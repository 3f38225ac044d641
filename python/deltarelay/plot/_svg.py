"""A plan as an SVG document, written by hand: no package is needed."""

from __future__ import annotations

import math
from html import escape

from ._schedule import (
    COLOURS,
    IDLE,
    STAGES,
    Item,
    Picture,
    Stage,
    Timeline,
    counted,
    duration,
    merged,
    shade_of,
    work_of,
)

# Pixels.
_WIDTH = 1120
_LEFT = 96  # where time 0 is
_SPAN = _WIDTH - _LEFT - 108  # of the longest timeline
_PANEL = 250  # height of a machine with many units
_TALLEST_ROW = 40
_TITLED_ITEMS = 3000  # bars that say what they are under the pointer

_STYLE = """<style>
text { font-family: 'DejaVu Sans', 'Helvetica Neue', Helvetica, Arial, sans-serif; fill: #24292f; font-size: 12px; }
.headline { font-size: 20px; font-weight: bold; }
.title { font-size: 14px; font-weight: bold; }
.note { fill: #57606a; }
.end { font-size: 13px; font-weight: bold; }
.inside { font-size: 11px; fill: #ffffff; }
</style>
"""


def _px(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _text(x: float, y: float, words: str, css: str = "note", anchor: str = "start") -> str:
    return f'<text x="{_px(x)}" y="{_px(y)}" class="{css}" text-anchor="{anchor}">{escape(words)}</text>\n'


def _rect(x: float, y: float, width: float, height: float, fill: str, title: str = "", more: str = "") -> str:
    shape = f'<rect x="{_px(x)}" y="{_px(y)}" width="{_px(width)}" height="{_px(height)}" fill="{fill}"{more}'
    return f"{shape}><title>{escape(title)}</title></rect>\n" if title else f"{shape}/>\n"


def _width_of(words: str, size: float = 11) -> float:
    """About what a proportional font takes."""
    return 0.6 * size * len(words)


def tick_step(span: float) -> float:
    """1, 2, 2.5 or 5 times a power of ten: about eight ticks."""
    raw = span / 8
    power = 10 ** math.floor(math.log10(raw))
    return next((factor * power for factor in (1, 2, 2.5, 5) if raw <= factor * power), 10 * power)


def _tick_label(ns: float) -> str:
    if ns == 0:
        return "0"
    divisor, unit = (1e9, "s") if ns >= 1e9 else (1e6, "ms") if ns >= 1e6 else (1e3, "us") if ns >= 1e3 else (1, "ns")
    return f"{ns / divisor:.4g} {unit}"


class _Page:
    def __init__(self, picture: Picture) -> None:
        self.picture = picture
        ends = [timeline.end for timeline in picture.timelines]
        self.end = max([*ends, picture.predicted, picture.unsplit, 1.0] if not ends else [*ends, 1.0])
        self.row = min(_TALLEST_ROW, _PANEL / picture.units)
        self.body: list[str] = []

    def x(self, ns: float) -> float:
        return _LEFT + ns / self.end * _SPAN

    def ticks(self) -> list[float]:
        step = tick_step(self.end)
        return [index * step for index in range(int(self.end / step * 1.0001) + 1)]

    def document(self) -> str:
        picture = self.picture
        self.body.append(_text(24, 38, f"DeltaRelay plan: {picture.headline}", "headline"))
        self.body.append(_text(24, 62, picture.asked) + _text(24, 82, picture.facts))
        y = 100.0
        if picture.timelines:
            for timeline in picture.timelines:
                y = self.panel(y, timeline) + 18
            y = self.legend(self.axis(y - 18) + 4)
        elif picture.predicted > 0:
            y = self.axis(self.stages_alone(y))
        else:
            y = self.message(y)
        height = y + 16
        size = f'width="{_WIDTH}" height="{_px(height)}" viewBox="0 0 {_WIDTH} {_px(height)}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>'
        title = f"<title>{escape(f'{picture.asked}: {picture.headline}')}</title>"
        background = _rect(0, 0, _WIDTH, height, "#ffffff")
        return "\n".join([head, title, _STYLE + background + "".join(self.body) + "</svg>\n"])

    def panel(self, y: float, timeline: Timeline) -> float:
        height = self.row * self.picture.units
        self.body.append(_text(_LEFT, y + 18, timeline.title, "title"))
        busy = f"{self.picture.unit}s busy {round(100 * timeline.busy)} % of the time"
        self.body.append(_text(_LEFT + _SPAN, y + 18, busy, anchor="end"))
        y = self.ruler(y + 26, timeline.stages)
        self.body.append(_rect(_LEFT, y, _SPAN, height, IDLE))
        for ns in self.ticks():
            self.body.append(_rect(self.x(ns) - 0.5, y, 1, height, "#d8dee4"))
        self.unit_names(y)
        for stage in timeline.stages:
            if stage.work in (("prepare",), ("carry",)):
                title = f"{stage.work[0]}: {duration(stage.begin)} to {duration(stage.end)}"
                width = max(1.5, self.x(stage.end) - self.x(stage.begin))
                self.body.append(_rect(self.x(stage.begin), y, width, height, COLOURS[stage.work[0]][0], title))
        items = merged(timeline.items, self.end / _SPAN)
        for item in items:
            if item.work != "carry":
                self.bar(y, item, titled=len(items) <= _TITLED_ITEMS)
        at = self.x(timeline.end)
        self.body.append(_rect(at - 0.75, y - 4, 1.5, height + 8, "#24292f"))
        self.body.append(_text(at + 8, y + height / 2 + 4, duration(timeline.end), "end"))
        return y + height

    def ruler(self, y: float, stages: tuple[Stage, ...]) -> float:
        """The stages with their times, and where each is, above the units that do it."""
        x = float(_LEFT)
        for stage in stages:
            label = f"{' + '.join(stage.work)} {duration(stage.end - stage.begin)}"
            self.swatch(x, y + 3, 10, stage.work)
            self.body.append(_text(x + 15, y + 12, label))
            x += 15 + _width_of(label, 12) + 16
            self.swatch(self.x(stage.begin), y + 20, max(1.5, self.x(stage.end) - self.x(stage.begin)), stage.work, 4)
        return y + 28

    def swatch(self, x: float, y: float, width: float, work: tuple[str, ...], height: float = 10) -> None:
        part = width / len(work)
        for index, name in enumerate(work):
            self.body.append(_rect(x + index * part, y, part, height, COLOURS[name][0]))

    def unit_names(self, top: float) -> None:
        units, word = self.picture.units, self.picture.unit
        step = next((step for step in (1, 2, 4, 8, 16, 32, 64) if step * self.row >= 14), 128)
        for unit in range(0, units, step):
            self.body.append(_text(_LEFT - 8, top + (unit + 0.5) * self.row + 4, f"{word} {unit}", anchor="end"))

    def bar(self, top: float, item: Item, titled: bool) -> None:
        gap = 1 if self.row >= 8 else 0.4 if self.row >= 4 else 0.1
        x, width = self.x(item.begin), max(0.5, self.x(item.end) - self.x(item.begin))
        y, height = top + item.unit * self.row + gap, self.row - 2 * gap
        times = f"{duration(item.begin)} to {duration(item.end)}"
        place = f"sequence {item.sequence}, segment {item.segment}, head {item.head}, value tile {item.tile}"
        title = f"{item.work}: {place}, {times}" if titled else ""
        seam = ' stroke="#ffffff" stroke-width="0.6"' if self.row >= 8 and width > 3 else ""
        self.body.append(_rect(x, y, width, height, COLOURS[work_of(item)][shade_of(item)], title, seam))
        if height < 14:
            return
        names = (
            f"{item.work}: sequence {item.sequence}, segment {item.segment}, head {item.head}",
            f"{item.work}: seq {item.sequence} seg {item.segment} head {item.head}",
            f"seq {item.sequence} seg {item.segment} head {item.head}",
            f"seq {item.sequence} seg {item.segment}",
            f"{item.sequence}.{item.segment}",
        )
        label = next((name for name in names if _width_of(name) + 8 <= width), "")
        if label:
            self.body.append(_text(x + width / 2, y + height / 2 + 4, label, "inside", "middle"))

    def axis(self, y: float) -> float:
        for ns in self.ticks():
            self.body.append(_rect(self.x(ns) - 0.5, y, 1, 5, "#8c959f"))
            self.body.append(_text(self.x(ns), y + 19, _tick_label(ns), anchor="middle"))
        return y + 32

    def legend(self, y: float) -> float:
        present = {name for timeline in self.picture.timelines for stage in timeline.stages for name in stage.work}
        x = float(_LEFT)
        for name, words in STAGES.items():
            if name not in present:
                continue
            first, second = COLOURS[name]
            self.body.append(_rect(x, y, 9, 12, first) + _rect(x + 9, y, 9, 12, second) + _text(x + 24, y + 10, words))
            x += 44 + 6.5 * len(words)
        self.body.append(_rect(x, y, 18, 12, IDLE, more=' stroke="#d8dee4"') + _text(x + 24, y + 10, "idle"))
        return y + 16

    def stages_alone(self, y: float) -> float:
        """One bar a step, for schedules too long to list."""
        picture = self.picture
        self.body.append(_text(24, y + 12, f"Work items are not drawn: {picture.omitted}."))
        y += 28
        begin = 0.0
        rows = [(step.stage, step.ns, counted(step.items, "item")) for step in picture.steps if step.ns > 0]
        for name, ns, note in rows:
            first = next((work for work in COLOURS if work in name), "emit")
            self.stage_bar(y, name, begin, ns, note, COLOURS[first][0])
            begin, y = begin + ns, y + 34
        if picture.unsplit > 0 and picture.unsplit != picture.predicted:
            self.stage_bar(y, "unsplit", 0, picture.unsplit, "for comparison", "#c4cad1")
            y += 34
        return y

    def stage_bar(self, y: float, name: str, begin: float, ns: float, note: str, fill: str) -> None:
        x, width = self.x(begin), max(1.0, self.x(begin + ns) - self.x(begin))
        label = f"{duration(ns)}, {note}"
        self.body.append(_rect(_LEFT, y, _SPAN, 24, IDLE) + _rect(x, y, width, 24, fill))
        self.body.append(_text(_LEFT - 8, y + 16, name if len(name) < 14 else name[:12] + "…", anchor="end"))
        inside = _width_of(label) + 16 <= width
        css, at, anchor = ("inside", x + 8, "start") if inside else ("note", x + width + 8, "start")
        if not inside and at + _width_of(label) > _WIDTH - 8:
            at, anchor = x - 8, "end"
        self.body.append(_text(at, y + 16, label, css, anchor))

    def message(self, y: float) -> float:
        picture = self.picture
        self.body.append(_text(24, y + 16, f"There is no schedule to draw: {picture.omitted}.", "title"))
        y += 28
        if picture.steps:
            self.body.append(_text(24, y + 12, "Steps of every call, with the most work items that they can have:"))
            y += 20
        for step in picture.steps:
            work = tuple(name for name in STAGES if name in step.stage)
            if work:
                self.swatch(36, y + 3, 12, work, 12)
            self.body.append(_text(56, y + 13, f"{step.stage}: {counted(step.items, 'item')}"))
            y += 20
        return y


def draw(picture: Picture) -> str:
    return _Page(picture).document()
