"""Teachers and student: the networks of Table 1, trained without noise."""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from recipes.models.mnist_cnn import MnistCNN
from recipes.models.resnet20 import ResNet20

NETWORKS = {"mnist": lambda: MnistCNN(normalise=True, group_norm=True), "svhn": ResNet20, "cifar10": ResNet20}
MOST_SHIFT = 2
CERTAIN = 0.95
"""The probability from which a student uses its own label for an unlabelled image."""


def fit(network: nn.Module, images: Tensor, labels: Tensor, *, steps: int, batch_size: int, shift: bool) -> nn.Module:
    """The network, trained with Adam down a cosine; `shift` moves each batch by up to two pixels."""
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    network.train()
    for chosen in _batches(len(images), batch_size, steps):
        batch = shifted(images[chosen]) if shift else images[chosen]
        loss = nn.functional.cross_entropy(network(batch), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return network.eval()


def fit_student(
    network: nn.Module, images: Tensor, labels: Tensor, unlabelled: Tensor, *, steps: int, rounds: int
) -> nn.Module:
    """Trained on the teachers' answers, then also on its own labels for images that it is certain of."""
    known, said = images, labels
    for _ in range(rounds):
        fit(network, known, said, steps=steps, batch_size=min(128, len(known)), shift=True)
        probabilities = logits_of(network, unlabelled).softmax(dim=1)
        certainty, guess = probabilities.max(dim=1)
        certain = certainty >= CERTAIN
        known, said = torch.cat([images, unlabelled[certain]]), torch.cat([labels, guess[certain]])
    return network


def votes_of(teachers: Iterator[nn.Module], images: Tensor, classes: int) -> list[NDArray[np.int64]]:
    """The number of votes for each class, for each image."""
    counts = torch.zeros(len(images), classes, dtype=torch.int64)
    for teacher in teachers:
        counts += nn.functional.one_hot(logits_of(teacher, images).argmax(dim=1), classes)
    return list(counts.numpy())


def logits_of(network: nn.Module, images: Tensor) -> Tensor:
    """Logits, in batches."""
    with torch.no_grad():
        return torch.cat([network(part) for part in images.split(500)])


def accuracy(network: nn.Module, images: Tensor, labels: Tensor) -> float:
    """The fraction of images classified correctly."""
    return float((logits_of(network, images).argmax(dim=1) == labels).double().mean())


def shifted(images: Tensor) -> Tensor:
    """The images moved by up to two pixels in each direction, edges repeated."""
    size = images.shape[-1]
    wide = nn.functional.pad(images, (MOST_SHIFT,) * 4, mode="replicate")
    down, right = (int(torch.randint(2 * MOST_SHIFT + 1, ())) for _ in range(2))
    return wide[..., down : down + size, right : right + size]


def _batches(records: int, batch_size: int, steps: int) -> Iterator[Tensor]:
    order = torch.randperm(records)
    for _ in range(steps):
        if len(order) < batch_size:
            order = torch.cat([order, torch.randperm(records)])
        yield order[:batch_size]
        order = order[batch_size:]
