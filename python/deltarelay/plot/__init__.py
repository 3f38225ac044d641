"""Pictures of plans and of measurements.

`plan_svg` needs nothing but the standard library. `plan` and `bench` draw with matplotlib, which the optional extra
``deltarelay[plot]`` brings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ._bench import bench
from ._schedule import read_plan
from ._svg import draw

if TYPE_CHECKING:
    from .._plans import Plan


def plan_svg(plan: Plan | Mapping[str, Any]) -> str:
    """The modelled schedule of a plan as an SVG document, beside the same call with nothing cut.

    A schedule of more than 20,000 work items is drawn as one bar a stage. A plan whose lengths come at execution has
    no schedule yet: the picture then says so, and lists its steps.

    Args:
        plan: a `Plan`, or what its `to_dict()` gives.

    Returns:
        The text of the document. `Plan.describe("svg")` is the same, and notebooks show it for a plan.
    """
    return draw(read_plan(plan))


def plan(plan: Plan | Mapping[str, Any], ax: Any = None) -> Any:
    """Draws the modelled schedule of a plan with matplotlib: time to the right, multiprocessors or threads downwards.

    The chosen schedule is above, the same call with nothing cut below it.

    Args:
        plan: a `Plan`, or what its `to_dict()` gives.
        ax: the matplotlib Axes to draw on; a new figure's if None.

    Returns:
        The Axes.
    """
    from ._axes import draw_plan

    return draw_plan(read_plan(plan), ax)


__all__ = ["bench", "plan", "plan_svg"]
