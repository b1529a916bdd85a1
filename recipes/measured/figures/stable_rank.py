"""Stable rank of gradients and of residuals over training (Figures 2 and 5 of the paper).

‖G‖_F²/‖G‖₂² of the matrix of per-sample gradients of a batch, and of their residuals outside the subspace that the
paper's cold start finds with ImageNet, for each parameter group. The paper shows ResNet20 on CIFAR-10 over all training
images; here it is a batch, and the number of rows makes a difference.
"""

from pathlib import Path
from typing import Any

from recipes.measured import drawing
from recipes.writing import markdown_table

NAME = "stable_rank"
TITLE = "Stable rank of gradients and of residuals"
PUBLISHED = (
    "small for gradients throughout, an order of magnitude larger for residuals (first stage, all training images; "
    "ours are of a batch)"
)
SOURCE, WAY = "imagenet", "power"


def ranks(figures: dict[str, Any]) -> dict[str, dict[str, dict[int, float]]]:
    """Of gradients and of residuals: group → step → stable rank."""
    k = str(figures["settings"]["training"]["mechanism"]["k"])
    found: dict[str, dict[str, dict[int, float]]] = {"gradients": {}, "residuals": {}}
    for step, at_step in drawing.steps_of(figures).items():
        measurements = {"gradients": at_step["gradients"]["stable_rank"]}
        if SOURCE in at_step["bases"]:
            measurements["residuals"] = at_step["bases"][SOURCE][WAY][k]["stable_rank_of_residuals"]
        for kind, by_group in measurements.items():
            for group, rank in by_group.items():
                found[kind].setdefault(group, {})[step] = rank
    return found


def table(figures: dict[str, Any]) -> str:
    """Both ranks of each group at each step."""
    found, steps = ranks(figures), drawing.steps_of(figures)
    rows = [
        [drawing.short_name(group), kind, *(f"{at[step]:.1f}" if step in at else "not measured" for step in steps)]
        for group in found["gradients"]
        for kind, at in ((kind, by_group.get(group, {})) for kind, by_group in found.items())
    ]
    return "\n".join(markdown_table(["group", "of", *(f"step {step}" for step in steps)], rows))


def draw(figures: dict[str, Any], file: Path) -> None:
    """Gradients on the left, residuals on the right, a line for each group."""
    sizes, k = figures["settings"]["groups"], figures["settings"]["training"]["mechanism"]["k"]
    picture, grid = drawing.panels(1, 2)
    titles = {"gradients": "gradients", "residuals": f"residuals, k = {k}"}
    for axes, (kind, by_group) in zip(grid[0], ranks(figures).items(), strict=True):
        for colour, (group, rank_at) in enumerate(by_group.items()):
            parameters = sizes.get(group, sum(sizes.values()))
            drawing.line(axes, rank_at, f"{drawing.short_name(group)}, p = {parameters}", colour)
        drawing.label(axes, f"{drawing.data_title(figures)}: {titles[kind]}", "step", "stable rank")
    drawing.save(picture, file, grid[0][0], columns=3)
