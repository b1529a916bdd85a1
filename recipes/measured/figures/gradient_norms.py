"""Norm of the noise against norm of the gradient (Figure 1 of the paper), for GP and for both parts of GEP.

At each measured step: the norm of the mean gradient, of the mean clipped gradient, which GP releases, and of the mean
clipped embedding and residual, which GEP releases, beside the expected norm of the noise that each gets at the same ε.
The basis is the paper's, a cold start on ImageNet. The paper shows GP on ResNet20 at initialisation, with the noise of
ε = 5 after 90 epochs; ε = 2 and 8 are those of its table.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning_gep.privacy.calibration import noise_multiplier_for
from lightning_gep.privacy.release import Part, make_mechanism
from lightning_gep.reporting.text import NOTHING
from recipes.measured import drawing
from recipes.measured.batch import WHOLE
from recipes.writing import markdown_table

NAME = "gradient_norms"
TITLE = "Noise norm against gradient norm"
PUBLISHED = "a picture of GP on ResNet20 at initialisation, with the noise of ε = 5 after 90 epochs"
SOURCE, WAY = "imagenet", "power"
FIGURE_1 = (5, 90)
"""ε and epochs of the paper's figure."""
UNCLIPPED = "gradient, before clipping"
PARTS = {"gradient": "GP: clipped gradient", "embedding": "GEP: clipped embedding", "residual": "GEP: clipped residual"}


def noise_norms(settings: dict[str, Any], spent_in: Sequence[tuple[float, int]]) -> dict[str, dict[str, float]]:
    """The noise on the mean of a batch of the expected size, at each ε: S·σ·√dimension/n̄ for each part."""
    training, p = settings["training"], sum(settings["groups"].values())
    mechanism, privacy, batch = training["mechanism"], training["privacy"], training["batch_size"]
    k, clips = mechanism["k"], {name: mechanism[name] for name in ("clip_embedding", "clip_residual")}
    gep = make_mechanism("gep", clipping=mechanism["clipping"], split=mechanism["split"], **clips)
    gp = make_mechanism("gp", clip_norm=settings["gp_clip_norm"])
    found = {}
    for epsilon, epochs in spent_in:
        steps, rate = epochs * -(-settings["training_records"] // batch), batch / settings["training_records"]
        sigma, _ = noise_multiplier_for(epsilon, privacy["delta"], rate, steps, privacy["accountant"])
        both = gep.release(sigma, k=k, num_parameters=p)
        found[f"{epsilon:g}"] = {
            "epochs": epochs,
            "noise_multiplier": sigma,
            "gradient": _expected_norm(gp.release(sigma).residual, p, batch),
            "embedding": _expected_norm(both.embedding, k, batch),
            "residual": _expected_norm(both.residual, p, batch),
        }
    return found


def _expected_norm(part: Part | None, dimension: int, batch: int) -> float:
    assert part is not None, "both parts of GEP and the one of GP are released"
    return float(part.noise_std * dimension**0.5 / batch)


def signals(figures: dict[str, Any]) -> dict[str, dict[int, float]]:
    """Part → step → length of the mean, before any noise."""
    k = str(figures["settings"]["training"]["mechanism"]["k"])
    found: dict[str, dict[int, float]] = {part: {} for part in PARTS}
    for step, at_step in drawing.steps_of(figures).items():
        found["gradient"][step] = at_step["gradients"]["norm_of_clipped_mean"]
        if SOURCE in at_step["bases"]:
            projected = at_step["bases"][SOURCE][WAY][k]
            for part in ("embedding", "residual"):
                found[part][step] = projected[f"norm_of_clipped_{part}"]
    return found


def unclipped(figures: dict[str, Any]) -> dict[int, float]:
    """Step → length of the mean of gradients as they are."""
    return {step: at["gradients"]["norm_of_mean"][WHOLE] for step, at in drawing.steps_of(figures).items()}


def table(figures: dict[str, Any]) -> str:
    """The lengths at each step, and those of the noise at each ε."""
    steps, noise = drawing.steps_of(figures), figures["noise"]
    heads = [
        "",
        *(f"step {step}" for step in steps),
        *(f"noise, ε = {e} in {noise[e]['epochs']} epochs" for e in noise),
    ]
    before = [UNCLIPPED, *(f"{length:.3g}" for length in unclipped(figures).values()), *(NOTHING for _ in noise)]
    rows = [before] + [
        [PARTS[part]]
        + [f"{at[step]:.3g}" if step in at else "not measured" for step in steps]
        + [f"{budget[part]:.3g}" for budget in noise.values()]
        for part, at in signals(figures).items()
    ]
    return "\n".join(markdown_table(heads, rows))


def draw(figures: dict[str, Any], file: Path) -> None:
    """A panel for each ε: lengths as lines, those of their noise as dotted lines of the same colour."""
    picture, grid = drawing.panels(1, len(figures["noise"]))
    for axes, (epsilon, budget) in zip(grid[0], figures["noise"].items(), strict=True):
        drawing.line(axes, unclipped(figures), UNCLIPPED, len(PARTS))
        for colour, (part, at) in enumerate(signals(figures).items()):
            drawing.line(axes, at, PARTS[part], colour)
            drawing.line(axes, dict.fromkeys(at, budget[part]), f"{PARTS[part]}, its noise", colour, ":")
        title = f"{drawing.data_title(figures)}: ε = {epsilon} in {budget['epochs']} epochs"
        drawing.label(axes, title, "step", "length of the mean")
    drawing.save(picture, file, grid[0][0], columns=len(PARTS))
