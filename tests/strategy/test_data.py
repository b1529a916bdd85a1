"""Batches on their way to training_step: empty ones, and those of a list of loaders."""

import pytest
import torch
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader, Subset, SubsetRandomSampler

from lightning_gep.errors import ConfigurationError
from tests.strategy.test_strategy import plain_training
from tests.toys import RECORDS, Classifier, loader, public_loader, records, strategy, trainer, weights


class Doubles(Classifier):
    def on_before_batch_transfer(self, batch, dataloader_idx):
        x, y = batch
        return 2 * x, y

    def on_after_batch_transfer(self, batch, dataloader_idx):
        x, y = batch
        return x / 2, y


class DoublesInADataModule(LightningDataModule):
    on_before_batch_transfer = Doubles.on_before_batch_transfer
    on_after_batch_transfer = Doubles.on_after_batch_transfer

    def train_dataloader(self):
        return loader(batch_size=1)


EXACT = {"noise_multiplier": 0.0, "clip_norm": float("inf"), "mechanism": "gp"}


@pytest.mark.parametrize(
    ("module", "data"), [(Doubles, lambda: loader(batch_size=1)), (Classifier, DoublesInADataModule)]
)
def test_transfer_hooks_get_no_empty_batch(tmp_path, module, data):
    """Of batches of one expected record a third are empty."""
    trained = module()
    fit = trainer(tmp_path, strategy(**EXACT), max_steps=30)
    fit.fit(trained, data())
    assert fit.strategy.privacy.steps == 30
    expected = plain_training(Classifier(), 30, batch_size=1, dtype=torch.float32)
    torch.testing.assert_close(weights(trained), weights(expected), rtol=0, atol=1e-5)


class InAList(Classifier):
    def training_step(self, batch, batch_idx):
        ((x, y),) = batch
        return super().training_step((x, y), batch_idx)


def test_a_list_of_one_loader_trains_as_in_lightning(tmp_path):
    """Empty batches, too: of batches of one expected record a third are empty."""
    module = InAList()
    trainer(tmp_path, strategy(**EXACT), max_steps=10).fit(module, [loader(batch_size=1)])
    expected = plain_training(Classifier(), 10, batch_size=1, dtype=torch.float32)
    torch.testing.assert_close(weights(module), weights(expected), rtol=0, atol=1e-5)


PART = torch.arange(0, RECORDS, 3).tolist()


def test_a_subset_sampler_is_a_subset(tmp_path):
    """Poisson sampling of the records it is limited to, which are as many as ε is computed for."""
    made = []
    for data in (
        DataLoader(records(), batch_size=5, sampler=SubsetRandomSampler(PART)),
        DataLoader(Subset(records(), PART), batch_size=5, shuffle=True),
    ):
        used, module = strategy(aux_dataloader=public_loader), Classifier()
        torch.manual_seed(0)
        trainer(tmp_path / str(len(made)), used, max_epochs=1).fit(module, data)
        made.append((weights(module), used.privacy.plan.num_records, used.privacy.plan.sample_rate, used.privacy.steps))
    torch.testing.assert_close(made[0][0], made[1][0], rtol=0, atol=0)
    assert made[0][1:] == made[1][1:] == (20, 0.25, 4)


def test_subset_samplers_hold_out_records(tmp_path):
    data, others = records(), sorted({*range(RECORDS)} - {*PART})
    train = DataLoader(data, batch_size=5, sampler=SubsetRandomSampler(PART))
    held_out = DataLoader(data, batch_size=5, sampler=SubsetRandomSampler(others))
    trainer(tmp_path, strategy(mechanism="gp"), max_epochs=1).fit(Classifier(), train, held_out)
    overlapping = DataLoader(data, batch_size=5, sampler=SubsetRandomSampler([PART[0], *others]))
    with pytest.raises(ConfigurationError, match="contains training records"):
        trainer(tmp_path, strategy(mechanism="gp"), max_epochs=1).fit(Classifier(), train, overlapping)
