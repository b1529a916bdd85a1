"""gep-plan --compare: which mechanism has the least noise for its signal, on public gradients before training."""

from collections.abc import Iterable

import torch
from hydra.utils import instantiate
from lightning.pytorch import seed_everything
from lightning.pytorch.plugins import Precision
from omegaconf import DictConfig
from rich.table import Table

from lightning_gep.algorithm.comparison import NoiseLevel, compare_mechanisms
from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.cli.plan.costs import Row
from lightning_gep.strategy.public_data import PublicStream, find_public_loader
from lightning_gep.strategy.public_gradients import PublicGradients
from lightning_gep.strategy.step import StepGradients

HELD_OUT, LARGEST_BASIS = 200, 1000
NOTE = (
    "Noise over signal: the length of a step's noise over that of the clipped mean gradient along the true one, for "
    "public gradients at the initial weights, at the best of five thresholds each. Below 1 a single step knows where "
    "to go. B-GEP's figure leaves out its bias."
)


def compare(config: DictConfig, row: Row) -> list[NoiseLevel]:
    """The mechanisms at this run's model, public data, batch size and noise, the least noisy first."""
    seed_everything(config.seed, verbose=False)
    data, model = instantiate(config.data), instantiate(config.model)
    data.prepare_data()
    data.setup("fit")
    model.configure_model()
    groups = ParameterGroups.from_module(model, config.mechanism.get("groups", "balanced"))
    k = config.mechanism.get("k", "auto")
    k = min(LARGEST_BASIS if k == "auto" else k, groups.num_parameters // 4)
    gradients = StepGradients(model, Precision(), groups, microbatch=None, expected_records=HELD_OUT, seed=None)
    stream = PublicStream(find_public_loader(None, data, model))
    gradients.choose_backend(next(stream.batches(HELD_OUT)), "auto")
    public = PublicGradients(gradients, stream, num_anchors=HELD_OUT)
    held_out, anchors = (torch.cat([*public(count, step)()]) for step, count in enumerate((HELD_OUT, max(k, HELD_OUT))))
    return compare_mechanisms(
        anchors,
        held_out,
        groups,
        k=k,
        noise_multiplier=row["noise_multiplier"],
        batch_size=row["batch_size"],
    )


def mechanism_table(levels: Iterable[NoiseLevel]) -> Table:
    """One line for each mechanism."""
    table = Table("mechanism", "noise over signal", "at thresholds")
    for level in levels:
        clips = ", ".join(f"{name}={value:.2g}" for name, value in level.clips.items())
        table.add_row(level.mechanism, f"{level.noise_over_signal:.3g}", clips)
    return table
