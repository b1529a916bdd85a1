"""What is measured: networks at the sizes of the paper's experiments, and smaller ones for a quick look."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_gep.algorithm.groups import Grouping, ParameterGroups
from recipes.models.linear_probe import LinearProbe
from recipes.models.mnist_cnn import MnistCNN
from recipes.models.resnet20 import ResNet20

CLASSES = 10
PROBES = (1024, 4096, 16384, 65536)
"""Lengths of the feature vectors of linear probes, which have ten times as many parameters."""


@dataclass(frozen=True)
class Setting:
    """A network, a batch of n records, m anchors of the paper's way, k basis vectors.

    Records are random numbers of the right shape: what a step costs does not depend on them.
    """

    name: str
    network: Callable[[], nn.Module]
    inputs: Callable[[int], Tensor]
    n: int
    m: int
    k: int
    microbatch: int
    grouping: Grouping = "balanced"

    def records(self, count: int) -> TensorDataset:
        """Random records with random labels."""
        return TensorDataset(self.inputs(count), torch.randint(CLASSES, (count,)))

    def batch(self) -> DataLoader[tuple[Tensor, ...]]:
        """A loader whose every batch is all n records: each step is equally long, for everyone."""
        return DataLoader(self.records(self.n), batch_size=self.n, shuffle=True)

    def anchors(self, batch_size: int) -> DataLoader[tuple[Tensor, ...]]:
        """A loader of public records."""
        return DataLoader(self.records(self.m), batch_size=batch_size, shuffle=True)

    def groups(self) -> ParameterGroups:
        """The parameter groups."""
        return ParameterGroups.from_module(self.network(), self.grouping)

    @property
    def basis_entries(self) -> int:
        """Σkᵢpᵢ: numbers in the basis."""
        groups = self.groups()
        return sum(k * p for k, p in zip(groups.quotas(self.k), groups.sizes, strict=True))


def images(channels: int, size: int) -> Callable[[int], Tensor]:
    """Random images."""
    return lambda count: torch.randn(count, channels, size, size)


def vectors(length: int) -> Callable[[int], Tensor]:
    """Random feature vectors."""
    return lambda count: torch.randn(count, length)


class TextEncoder(nn.Module):
    """A small transformer without dropout that classifies texts: 166 666 parameters."""

    def __init__(self, vocabulary: int = 1000, length: int = 32, width: int = 64) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(0.02 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.output = nn.Linear(width, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (n × classes) for tokens (n × length)."""
        logits: Tensor = self.output(self.layers(self.tokens(tokens) + self.positions).mean(dim=1))
        return logits


FULL = (
    Setting("resnet20", ResNet20, images(3, 32), n=1000, m=2000, k=1000, microbatch=250),
    Setting("mnist_cnn", MnistCNN, images(1, 28), n=1000, m=2000, k=500, microbatch=250),
    Setting("linear_probe", LinearProbe, vectors(4096), n=1000, m=2000, k=200, microbatch=250),
    Setting(
        "text_encoder",
        TextEncoder,
        lambda count: torch.randint(1000, (count, 32)),
        n=500,
        m=1000,
        k=300,
        microbatch=125,
    ),
)
QUICK = (Setting("linear_probe, small", lambda: LinearProbe(512), vectors(512), n=200, m=200, k=50, microbatch=100),)
SCALED = (
    Setting("resnet20, scaled", ResNet20, images(3, 32), n=250, m=500, k=250, microbatch=125),
    *(
        Setting(
            f"probe of {length}", partial(LinearProbe, length), vectors(length), n=250, m=500, k=200, microbatch=125
        )
        for length in PROBES
    ),
)
SETTINGS = {setting.name: setting for setting in (*FULL, *QUICK, *SCALED)}
