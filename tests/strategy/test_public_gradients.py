import pytest
import torch
from lightning.pytorch.plugins import Precision
from torch.utils.data import DataLoader, Dataset

from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.strategy import public_gradients
from lightning_gep.strategy.public_data import PublicStream
from lightning_gep.strategy.public_gradients import CHOOSING, FILLING, PublicGradients
from lightning_gep.strategy.step import StepGradients
from tests.toys import CLASSES, FEATURES, Classifier, loader, strategy, trainer


class Fresh(Dataset):
    """Records that are new at every look, as with random labels."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return torch.randn(FEATURES), torch.randint(CLASSES, ())


def anchors(stream, seed=None, sweeps=1):
    module = Classifier()
    groups = ParameterGroups.from_module(module)
    gradients = StepGradients(module, Precision(), groups, microbatch=5, expected_records=5, seed=seed)
    gradients.choose_backend((torch.randn(6, FEATURES), torch.randint(CLASSES, (6,))), "functional")
    return PublicGradients(gradients, stream, lambda batch: batch, num_anchors=5, sweeps=sweeps)


def public():
    return PublicStream(DataLoader(Fresh(), batch_size=5))


@pytest.mark.parametrize(("seed", "sweeps"), [(None, 2), (0, 1)])
def test_anchors_that_are_seen_again_are_the_same(seed, sweeps):
    made = anchors(public(), seed, sweeps)
    for sweep in (made(40, 0), made.announced(40, 0, FILLING)):
        first, second = (torch.cat(list(sweep())) for _ in range(2))
        assert torch.equal(first, second)


def test_what_takes_long_says_what_it_is_and_how_long(monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(public_gradients, "SECONDS_UNNOTICED", 0.0)
    with caplog.at_level("INFO", logger="lightning.pytorch"):
        trainer(tmp_path, strategy(k="auto"), max_steps=3).fit(Classifier(), loader())
    said = [record.message for record in caplog.records if "public records, about" in record.message]
    assert [words.split(" on ")[0] for words in said] == [CHOOSING, FILLING]


def test_a_refresh_with_one_sweep_after_another_sees_other_records():
    made = anchors(public())
    first, second = (torch.cat(list(made(40, step)())) for step in range(2))
    assert not torch.equal(first, second)
