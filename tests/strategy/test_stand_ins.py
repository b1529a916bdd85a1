"""Without public data a module is checked on random records that look like those of the training data."""

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader

from lightning_gep.errors import ConfigurationError
from lightning_gep.strategy.stand_ins import is_random, stand_in_batch, stand_in_records
from tests.toys import strategy, trainer

COUNT, FEATURES, CLASSES = 40, 6, 3
X = torch.randn(COUNT, FEATURES, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(COUNT) % CLASSES
WITH_IGNORED = torch.stack([LABELS, (LABELS + 1) % CLASSES, torch.full((COUNT,), 255)], dim=1)


class Picky(LightningModule):
    """A step that accepts only records like those it was written for."""

    def __init__(self, step):
        super().__init__()
        self.network, self.step = nn.Linear(FEATURES, CLASSES), step

    def training_step(self, batch, batch_idx):
        x, y = batch
        return self.step(self.network, x, y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def binary(network, x, y):
    return F.binary_cross_entropy(network(x).sigmoid(), y)


def segments(network, x, y):
    scores = network(x)[:, :, None].expand(-1, -1, y.shape[1])
    return F.cross_entropy(scores, y, ignore_index=255, reduction="none").mean()


PICKY = {
    "binary targets": (binary, X, (WITH_IGNORED > 1).float()),
    "targets between 0 and 1": (binary, X, torch.rand(COUNT, CLASSES)),
    "labels to ignore": (segments, X, WITH_IGNORED),
    "labels as floats": (lambda network, x, y: F.nll_loss(network(x), y.long()), X, LABELS.float()),
    "logarithms": (lambda network, x, y: F.cross_entropy(network(x.log() + x.sqrt()), y), X.exp(), LABELS),
    "counts": (lambda network, x, y: F.cross_entropy(network(x.log()), y), X.exp().ceil(), LABELS),
    "few numbers, mostly zero": (
        lambda network, x, y: (network(x) * y).sum(1).mean(),
        X,
        F.one_hot(LABELS, CLASSES) * 5.0,
    ),
    "plain numbers": (lambda network, x, y: F.cross_entropy(network(x), y), X, LABELS.tolist()),
    "two ids": (
        lambda network, x, y: F.cross_entropy(network(F.one_hot(x, FEATURES).float()), y),
        (LABELS + 3).tolist(),
        LABELS.tolist(),
    ),
    "arrays": (lambda network, x, y: F.cross_entropy(network(x), y), X.numpy(), LABELS.numpy()),
}


@pytest.mark.parametrize("name", PICKY)
def test_code_that_accepts_the_training_data_accepts_them(name, tmp_path):
    step, x, y = PICKY[name]
    used = strategy(mechanism="gp")
    data = DataLoader(list(zip(x, y, strict=True)), batch_size=10)
    trainer(tmp_path, used, max_steps=1).fit(Picky(step), data)
    assert used.privacy.steps == 1
    assert "public" not in used.prepared.gradients.backend.reason


def distributions(network, x, y):
    assert torch.allclose(x.sum(dim=1), torch.ones(len(x)))
    return F.cross_entropy(network(x), y)


def test_what_they_cannot_imitate_is_explained_with_the_way_out(tmp_path):
    data = list(zip(X.softmax(dim=1), LABELS, strict=True))
    message = r"failed with AssertionError.*random records.*aux_dataloader=DataLoader\(\.\.\.\)"
    with pytest.raises(ConfigurationError, match=message):
        trainer(tmp_path, strategy(mechanism="gp")).fit(Picky(distributions), DataLoader(data, batch_size=10))
    made = DataLoader(list(zip(torch.rand(8, FEATURES).softmax(dim=1), LABELS, strict=False)), batch_size=8)
    used = strategy(mechanism="gp", aux_dataloader=made)
    trainer(tmp_path, used, max_steps=1).fit(Picky(distributions), DataLoader(data, batch_size=10))
    assert used.privacy.steps == 1


def test_an_error_shows_no_text_of_a_record(tmp_path):
    data = [(f"secret {i}", int(label)) for i, label in enumerate(LABELS)]
    with pytest.raises(ConfigurationError, match="failed with KeyError") as caught:
        trainer(tmp_path, strategy(mechanism="gp")).fit(
            Picky(lambda network, x, y: {}[x[0]]), DataLoader(data, batch_size=10)
        )
    assert "secret" not in str(caught.value)


def test_no_number_of_a_training_record_is_left():
    numbers = {"a": X[0] * 1e6, "b": np.float32(0.123), "c": (7.25, 9.5), "d": 0.77, "e": torch.tensor([True])}
    data = DataLoader([numbers] * 20, batch_size=10)
    for record in stand_in_records(data):
        assert not torch.isin(record["a"], numbers["a"]).any()
        assert record["b"] != numbers["b"]
        assert record["d"] != numbers["d"]
        assert not set(record["c"]) & set(numbers["c"])
        assert record.keys() == numbers.keys()
        assert (record["b"].dtype, type(record["c"]), type(record["d"])) == (np.float32, tuple, float)
    assert is_random(stand_in_batch(data))
    assert not is_random(stand_in_batch(DataLoader([{**numbers, "text": "abc"}] * 20)))
