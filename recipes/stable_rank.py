"""Stable rank of gradients and of residuals over training (Figures 2 and 5 of the paper).

‖G‖_F²/‖G‖₂² of the matrix of gradients of a private batch, and of their residuals outside the subspace that the paper's
cold start finds with ImageNet, in each group of parameters. The paper shows ResNet20 on CIFAR-10: a small rank of the
gradients throughout, and a rank of the residuals that is an order of magnitude higher (first stage, k = 1000, over all
training images; here over a batch, and how many rows there are makes a difference).

    python -m recipes.stable_rank --data-directory data

Writes measured_<data>.json, which the other recipes draw from too, and stable_rank_<data>.svg. The figures look at
private records without noise: they are diagnostic, and no ε covers them.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recipes.measured import drawing
from recipes.measured.batch import WHOLE
from recipes.measured.measuring import measure
from recipes.measured.options import options_from
from recipes.running.page_table import markdown_table
from recipes.running.refusals import exit_code

NAME = "stable_rank"
SOURCE, WAY = "imagenet", "power"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, draw and print."""
    options = options_from(arguments, NAME, __doc__, [SOURCE])
    figures = measure(options)
    draw(figures, options.picture(NAME))
    print(table(figures))


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


def summary(figures: dict[str, Any]) -> str:
    """Both ranks at the last step that has both, and how many times that of gradients is in that of residuals."""
    found = ranks(figures)
    last = max(found["residuals"].get(WHOLE, {}), default=None)
    if last is None:
        return "residuals were not measured"
    both = {
        group: (at[last], found["residuals"][group][last])
        for group, at in found["gradients"].items()
        if last in found["residuals"].get(group, {})
    }
    times = {group: residuals / gradients for group, (gradients, residuals) in both.items() if group != WHOLE}
    words = [f"{drawing.short_name(group)} {ratio:.1f}" for group, ratio in times.items()]
    whole = both[WHOLE]
    return (
        f"at step {last}, {whole[0]:.1f} for gradients and {whole[1]:.1f} for residuals, all parameters together; by "
        f"group, times as large for residuals: {', '.join(words)}"
    )


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


if __name__ == "__main__":
    raise SystemExit(exit_code(f"python -m recipes.{NAME}", main))
