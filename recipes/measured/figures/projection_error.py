"""Projection error against k over training (Figure 4 of the paper, and the appendix's figure on a random basis).

The relative error ‖mean residual‖/‖mean gradient‖ of private records, for bases found with ImageNet, with test images,
with CIFAR-100, and for random directions. The paper shows ResNet20's second stage on CIFAR-10.
"""

from pathlib import Path
from typing import Any

from recipes.measured import drawing
from recipes.measured.batch import WHOLE
from recipes.measured.gradients import RANDOM
from recipes.writing import markdown_table

NAME = "projection_error"
TITLE = "Projection error against k"
PUBLISHED = "curves that flatten as k grows, and above 95 % throughout for a random basis"
SHOWN_BY_THE_PAPER = {"network.stage2": "second stage", "network.second": "second convolution"}
WAYS = {"power": "-", "principal": ":", "random": "-"}


def errors(at_step: dict[str, Any], source: str, way: str, group: str) -> dict[int, float]:
    """k → the relative error of the mean gradient."""
    return {k: figures["error_of_mean"][group] for k, figures in _measured(at_step, source, way).items()}


def table(figures: dict[str, Any]) -> str:
    """The error of the whole mean gradient for the paper's bases, at each step."""
    sources = _sources(figures)
    rows = [
        [step, k, *(_cell(_measured(found, source, _ways(source)[0]).get(k), k) for source in sources)]
        for step, found in drawing.steps_of(figures).items()
        for k in figures["settings"]["k"]
    ]
    return "\n".join(markdown_table(["step", "k", *(drawing.SOURCES[source] for source in sources)], rows))


def draw(figures: dict[str, Any], file: Path) -> None:
    """A column for each source; all parameters above, the group that the paper shows below."""
    sources = _sources(figures)
    shown = [group for group in figures["settings"]["groups"] if group in SHOWN_BY_THE_PAPER]
    groups = {WHOLE: "all parameters", **{group: SHOWN_BY_THE_PAPER[group] for group in shown}}
    picture, grid = drawing.panels(len(groups), len(sources))
    for row, (group, words) in zip(grid, groups.items(), strict=True):
        for axes, source in zip(row, sources, strict=True):
            for colour, (step, found) in enumerate(drawing.steps_of(figures).items()):
                for way in _ways(source):
                    name = f"step {step}" + (", principal directions" if way == "principal" else "")
                    drawing.line(axes, errors(found, source, way, group), name, colour, WAYS[way])
            drawing.label(axes, f"{drawing.SOURCES[source]}:\n{words}", "basis vectors k", "relative projection error")
    drawing.save(picture, file, grid[0][0], columns=len(figures["steps"]))


def _sources(figures: dict[str, Any]) -> list[str]:
    return [s for s in drawing.SOURCES if any(s in found["bases"] for found in figures["steps"].values())]


def _ways(source: str) -> list[str]:
    return ["random"] if source == RANDOM else ["power", "principal"]


def _measured(at_step: dict[str, Any], source: str, way: str) -> dict[int, Any]:
    return {int(k): figures for k, figures in at_step["bases"].get(source, {}).get(way, {}).items()}


def _cell(figures: dict[str, Any] | None, k: int) -> str:
    """The error, with the number of vectors where the anchors had fewer than k directions to give."""
    if figures is None:
        return "not measured"
    short = "" if figures["vectors"] == k else f" ({figures['vectors']} vectors)"
    return f"{figures['error_of_mean'][WHOLE]:.3f}{short}"
