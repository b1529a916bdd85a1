"""How good a subspace is for what it costs: projection error on real images, early and late in training.

`python -m benchmarks.projection_error DIRECTORY` reads `cifar10_train.npz` and `imagenet32_aux.npz` (images uint8
N × 32 × 32 × 3, labels) from the directory, trains ResNet20 on CIFAR-10 with steps as long and as noisy as private
ones, and lets tracked subspaces with several refresh intervals follow the same weights, on ImageNet anchors with labels
drawn afresh: from the first step, and again later. In the end, just before the next refresh, when they are oldest, they
are compared with the paper's way, a cold start on 2000 anchors at the very weights, by the relative projection error of
2000 training gradients.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.machine import description
from lightning_gep.algorithm.basis import Basis
from lightning_gep.algorithm.groups import Grouping, ParameterGroups
from lightning_gep.algorithm.subspace import PowerSubspace
from lightning_gep.algorithm.tracked import TrackedSubspace
from lightning_gep.gradients.functional import FunctionalGradients
from recipes.models.resnet20 import ResNet20

SCHEDULES: list[tuple[int, int, float, Grouping]] = [
    (1, 25, 0.95, "tree"),
    (1, 50, 0.95, "tree"),
    (1, 50, 0.98, "tree"),
    (1, 100, 0.95, "tree"),
    (2, 100, 0.95, "tree"),
    (1, 50, 0.95, "balanced"),
    (1, 50, 0.9, "balanced"),
    (4, 200, 0.95, "balanced"),
]
"""Steps between refreshes, anchors of a refresh, decay a step, groups."""
COLD = "cold start, 2000 anchors"
BATCH, MEASURED, COLD_ANCHORS, CLASSES = 250, 2000, 2000, 10
MICROBATCH = 125
NOISE = 8e-4


class Trial:
    """A network in training, its gradients, and the subspaces that follow it."""

    def __init__(self, directory: Path, k: int) -> None:
        torch.manual_seed(0)
        train = np.load(directory / "cifar10_train.npz")
        self.images, self.labels = _images(train["images"]), torch.from_numpy(train["labels"])
        self.public = _images(np.load(directory / "imagenet32_aux.npz")["images"])
        self.network = ResNet20()
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
        self.groups = ParameterGroups.from_module(self.network)
        self.gradients = FunctionalGradients(self.network, self._loss, self.groups)
        self.k = k

    def shape(self, grouping: Grouping) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Sizes and quotas of the groups; every grouping has the parameters in the same order."""
        groups = ParameterGroups.from_module(self.network, grouping)
        assert list(groups.shapes) == list(self.groups.shapes)
        return groups.sizes, groups.quotas(self.k)

    def _loss(self, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(self.network(batch[0]), batch[1])

    def step(self) -> None:
        """One step of training, with a gradient clipped to 1 and the noise of GEP's residual at ε = 8 (S₂ = 0.4)."""
        rows = torch.randint(len(self.images), (BATCH,))
        self.optimizer.zero_grad()
        self._loss((self.images[rows], self.labels[rows])).backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        for p in self.network.parameters():
            assert p.grad is not None
            p.grad += NOISE * torch.randn_like(p)
        self.optimizer.step()

    def anchors(self, count: int) -> Callable[[], Iterator[Tensor]]:
        """Gradients of public images with random labels, the same ones at every sweep."""
        rows, labels = torch.randint(len(self.public), (count,)), torch.randint(CLASSES, (count,))

        def sweep() -> Iterator[Tensor]:
            for i in range(0, count, 2 * MICROBATCH):
                part = slice(i, i + 2 * MICROBATCH)
                yield self._rows(self.public[rows[part]], labels[part])

        return sweep

    def errors(self, bases: dict[str, Basis]) -> dict[str, dict[str, float]]:
        """Of the mean gradient, and of single gradients, what lies outside each basis, relative to the whole."""
        chosen = torch.randperm(len(self.images))[:MEASURED]
        mean = torch.zeros(self.groups.num_parameters, dtype=torch.float64)
        inside = {name: torch.zeros(basis.dimension, dtype=torch.float64) for name, basis in bases.items()}
        shares: dict[str, list[Tensor]] = {name: [] for name in bases}
        for rows in chosen.split(MICROBATCH):
            gradients = self._rows(self.images[rows], self.labels[rows])
            mean += gradients.double().sum(dim=0)
            squares = gradients.double().square().sum(dim=1)
            for name, basis in bases.items():
                embedding = basis.embed(gradients)
                inside[name] += embedding.sum(dim=0)
                shares[name].append((1 - embedding.square().sum(dim=1) / squares).clamp(min=0).sqrt())
        whole = float(mean.norm())
        return {
            name: {
                "of_the_mean": float((mean - basis.expand(inside[name])).norm()) / whole,
                "of_a_record": float(torch.cat(shares[name]).mean()),
            }
            for name, basis in bases.items()
        }

    def _rows(self, images: Tensor, labels: Tensor) -> Tensor:
        parts = zip(images.split(MICROBATCH), labels.split(MICROBATCH), strict=True)
        return torch.cat([self.gradients((x, y)) for x, y in parts])


def main() -> None:
    """Train, follow, compare, and write the figures after every comparison."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.projection_error", description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--k", type=int, default=1000)
    parser.add_argument("--begin", type=int, nargs="+", default=[24, 300], help="steps of training before following")
    parser.add_argument("--follow", type=int, default=15, help="steps to follow before comparing")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "projection_error.json")
    options = parser.parse_args()
    trial = Trial(options.directory, options.k)
    results: dict[str, Any] = {
        "k": options.k,
        "machine": description(),
        "threads": torch.get_num_threads(),
        "after": _measured_before(options.output, options.k),
    }
    step = 0
    for begin in options.begin:
        for _ in range(step, begin):
            trial.step()
        results["after"][str(begin + options.follow)] = followed(trial, begin, options.follow)
        step = begin + options.follow
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(results, indent=2) + "\n")
        print(json.dumps(results["after"], indent=2), flush=True)


def followed(trial: Trial, begin: int, steps: int) -> dict[str, dict[str, float]]:
    """The errors after `steps` of training that every schedule followed, with the CPU seconds of a step it took."""
    groupings = dict.fromkeys(grouping for *_, grouping in SCHEDULES)
    first = {grouping: TrackedSubspace(*trial.shape(grouping), num_anchors=trial.k) for grouping in groupings}
    for subspace in first.values():
        subspace.at_step(begin, trial.anchors(subspace.num_anchors))
    followers = {}
    for every, anchors, decay, grouping in SCHEDULES:
        subspace = TrackedSubspace(*trial.shape(grouping), num_anchors=anchors, decay=decay, refresh_every=every)
        subspace.load_state_dict(first[grouping].state_dict())
        followers[f"every {every}, {anchors} anchors, decay {decay}, groups {grouping}"] = subspace
    del first
    seconds = dict.fromkeys(followers, 0.0)
    for step in range(begin + 1, begin + steps + 1):
        trial.step()
        for name, subspace in followers.items():
            start = time.process_time()
            subspace.at_step(step, trial.anchors(subspace.num_anchors))
            seconds[name] += time.process_time() - start
    bases = {name: subspace.current for name, subspace in followers.items()}
    for grouping in groupings:
        cold = PowerSubspace(*trial.shape(grouping)).at_step(begin + steps, trial.anchors(COLD_ANCHORS))
        bases[f"{COLD}, groups {grouping}"] = cold
    errors = trial.errors(bases)
    return {name: {**error, "cpu_seconds_a_step": seconds.get(name, 0.0) / steps} for name, error in errors.items()}


def _measured_before(output: Path, k: int) -> dict[str, Any]:
    """What the file has of other steps: one `--begin` can be measured without the others."""
    before = json.loads(output.read_text()) if output.exists() else {}
    return dict(before["after"]) if before.get("k") == k else {}


def _images(pixels: Any) -> Tensor:
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 127.5 - 1


if __name__ == "__main__":
    main()
