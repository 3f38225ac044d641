"""Pictures of plans and results: every kind of plan gives one, and it says what the plan says."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree
from pathlib import Path
from typing import Any

import pytest

import deltarelay
from deltarelay import TensorSpec, plot
from deltarelay.plot._schedule import Item, duration, merged

ROOT = Path(__file__).resolve().parents[2]


def specs(rule: str, tokens: int, heads_qk: int, heads_v: int, batch: int = 1, device: str = "h200") -> tuple[Any, ...]:
    dtype = "fp32" if device == "cpu" else "bf16"
    rows = (batch, tokens)
    q = TensorSpec((*rows, heads_qk, 128), dtype, device)
    v = TensorSpec((*rows, heads_v, 128), dtype, device)
    g = TensorSpec((*rows, heads_v, 128) if rule == "kda" else (*rows, heads_v), dtype, device)
    return rule, q, q, v, g, TensorSpec((*rows, heads_v), dtype, device)


def split_plan(variant: str | None = None) -> deltarelay.Plan:
    return deltarelay.plan(*specs("kda", 131072, 4, 4), variant=variant)


def late_plan() -> deltarelay.Plan:
    return deltarelay.plan(*specs("gdn", 4096, 16, 64), seq_offsets=TensorSpec((9,), "int32", "h200"))


PLANS = {
    "split": split_plan,
    "whole": lambda: deltarelay.plan(*specs("gdn", 8192, 16, 64)),
    "relayed": lambda: deltarelay.plan(*specs("gdn", 8192, 16, 32, batch=5)),
    "late lengths": late_plan,
    "too long to list": lambda: deltarelay.plan(*specs("gdn", 8192, 16, 64, batch=400)),
    "no tokens": lambda: deltarelay.plan(*specs("gdn", 0, 1, 1, device="cpu")),
    "forced cuts on a CPU": lambda: deltarelay.plan(*specs("kda", 4096, 1, 2, device="cpu"), segments=3),
    "reference": lambda: deltarelay.plan(*specs("kda", 5, 1, 1, device="cpu"), backend="reference"),
}


def words(svg: str) -> list[str]:
    """The visible text of a document, which has to be well-formed."""
    root = xml.etree.ElementTree.fromstring(svg)
    return [element.text or "" for element in root.iter() if element.tag.endswith("}text")]


@pytest.mark.parametrize("name", PLANS)
def test_every_plan_has_a_picture(name: str) -> None:
    plan = PLANS[name]()
    svg = plot.plan_svg(plan)
    assert words(svg)[0].startswith("DeltaRelay plan: ")
    assert plan.backend in words(svg)[2]
    assert plan.describe("svg") == svg == plan._repr_svg_() == plot.plan_svg(plan.to_dict())


def test_split_beside_unsplit() -> None:
    plan = split_plan("prepared")
    text = words(plot.plan_svg(plan))
    segments, predicted, unsplit = (plan.summary[name] for name in ("num_segments", "predicted_ns", "unsplit_ns"))
    assert f"split into {segments} segments" in text and "unsplit, for comparison" in text
    assert duration(predicted) in text and duration(unsplit) in text
    assert f"{unsplit / predicted:.3g}x faster than unsplit" in text[0]
    for stage in ("prepare", "summarize + emit", "carry", "emit"):
        assert any(line.startswith(f"{stage} ") for line in text), stage


def test_bars_of_a_picture_are_the_items_of_the_schedule() -> None:
    plan = PLANS["forced cuts on a CPU"]()
    schedule = plan.to_dict()["schedule"]
    root = xml.etree.ElementTree.fromstring(plot.plan_svg(plan))
    titles = [element.text or "" for element in root.iter() if element.tag.endswith("}title")]
    bars = [title for title in titles if "sequence 0, segment" in title]
    items = [item for name in ("split", "unsplit") for item in schedule[name] if item["work"] != "carry"]
    assert len(bars) == len(items)


def test_what_cannot_be_drawn_is_said() -> None:
    late = words(plot.plan_svg(late_plan()))
    assert "There is no schedule to draw: lengths come at execution." in late
    assert any(line.startswith("summarize + emit: ") for line in late)
    long = words(plot.plan_svg(PLANS["too long to list"]()))
    assert any(line.startswith("Work items are not drawn: 51200 work items") for line in long)


def test_a_dict_with_less_in_it() -> None:
    """Files of other versions have other fields."""
    assert words(plot.plan_svg({}))
    assert words(plot.plan_svg({"backend": "x<y>&", "steps": [{}], "schedule": {"split": [{}], "unsplit": []}}))


def test_durations() -> None:
    found = [duration(ns) for ns in (0, 950, 999.6, 12_345, 706_867, 999_600, 3_696_504, 64_104_400, 2e9, 5e12)]
    assert found == ["0 ns", "950 ns", "1.00 us", "12.3 us", "707 us", "1.00 ms", "3.70 ms", "64.1 ms", "2 s", "5000 s"]


def test_thin_neighbours_are_drawn_as_one() -> None:
    thin = [Item(0, index, index + 1, "emit", 0, index, 0, 0, 1) for index in range(1000)]
    assert len(merged(tuple(thin), 1)) == 1
    assert len(merged(tuple(thin), 0.1)) == 1000
    other_unit = thin[5]._replace(unit=1)
    assert len(merged((*thin, other_unit), 1)) == 2


def test_matplotlib_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        plot.plan(split_plan())
    with pytest.raises(ImportError, match="pip install matplotlib"):
        plot.bench(ROOT / "bench/results/h200.json")
    assert plot.plan_svg(split_plan())


@pytest.fixture
def pyplot() -> Any:
    matplotlib = pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    yield pyplot
    pyplot.close("all")


@pytest.mark.parametrize("name", PLANS)
def test_plan_on_axes(pyplot: Any, name: str) -> None:
    _, given = pyplot.subplots()
    assert plot.plan(PLANS[name](), ax=given) is given
    given.figure.canvas.draw()


def test_times_of_the_axes(pyplot: Any) -> None:
    plan = split_plan()
    axes = plot.plan(plan)
    text = [annotation.get_text() for annotation in axes.texts]
    assert duration(plan.summary["predicted_ns"]) in text and duration(plan.summary["unsplit_ns"]) in text
    assert axes.get_xlabel() == "ms, by the cost model"


@pytest.mark.parametrize("path", sorted(ROOT.glob("bench/results/*.json")), ids=lambda path: path.stem)
@pytest.mark.parametrize("unit", ["ms", "token_heads_per_s"])
def test_bench(pyplot: Any, path: Path, unit: str) -> None:
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    axes = plot.bench(path, unit=unit)
    assert [label.get_text() for label in axes.get_yticklabels()] == [row["case"] for row in rows]
    ours = next(container for container in axes.containers if container.get_label() == "DeltaRelay")
    widths = [row["ms"] if unit == "ms" else row["token_heads_per_s"] / 1e6 for row in rows]
    assert [bar.get_width() for bar in ours.patches] == pytest.approx(widths)


def test_bench_chooses_cases_and_shows_others(pyplot: Any) -> None:
    results = json.loads((ROOT / "bench/results/h200.json").read_text(encoding="utf-8"))
    chosen = [row for row in results["rows"] if row["case"].startswith("gdn-8k")]
    chosen[0]["peers"] = {"FLA": 2 * chosen[0]["ms"]}
    axes = plot.bench(results, cases="gdn-8k-*")
    assert len(axes.get_yticks()) == len(chosen)
    assert axes.get_legend().get_texts()[0].get_text() == "DeltaRelay"
    assert "FLA" in [text.get_text() for text in axes.get_legend().get_texts()]
    with pytest.raises(deltarelay.Invalid, match="cases: expected names"):
        plot.bench(results, cases="none of these")
    with pytest.raises(deltarelay.Invalid, match="unit: expected"):
        plot.bench(results, unit="s")
    with pytest.raises(deltarelay.Invalid, match="results: expected"):
        plot.bench({})
