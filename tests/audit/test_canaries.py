import pytest
import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_gep.audit.canaries import Canaries, CanaryLoader
from lightning_gep.audit.mechanism import releases
from lightning_gep.errors import ConfigurationError
from tests.audit.toys import subject
from tests.toys import Classifier, loader, trainer, weights


def as_dict(items):
    return {"x": torch.stack([x for x, _ in items]), "y": torch.stack([y for _, y in items])}


def test_canaries_come_after_the_records_which_they_look_like():
    own = loader(collate_fn=as_dict)
    with_canaries = CanaryLoader(own, 3, own.dataset, 12, steps=7)
    data = with_canaries.dataset
    assert len(data) == len(own.dataset) + 3
    assert torch.equal(data[len(own.dataset)][0], data[0][0])
    assert next(iter(with_canaries))["x"].shape == (12, 6)
    assert len(with_canaries) == 7


def test_the_gradient_of_a_canary_is_the_one_chosen_and_zero_if_left_out():
    canaries, chosen, rows = Canaries(3), torch.randn(2, 5), torch.randn(6, 5)
    before = rows.clone()
    canaries.use(chosen)
    canaries.included = torch.tensor([1.0, 0.0, 1.0])
    canaries.replace(rows, torch.tensor([-1, 0, 2, -5, 1, 0]))
    assert torch.equal(rows[[0, 3]], before[[0, 3]])
    assert torch.equal(rows[[1, 5]], chosen[[0, 0]])
    assert not rows[[2, 4]].any()


class Dicts(LightningModule):
    """A training step without batch index that returns a dict."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.largest = 0.0

    def training_step(self, batch):
        assert float(batch["x"].abs().max()) == 2.0, "the hook of the datamodule was not called"
        return {"loss": nn.functional.cross_entropy(self.layer(batch["x"]), batch["y"])}

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


class Doubling(LightningDataModule):
    def on_after_batch_transfer(self, batch, dataloader_idx):
        return {"x": 2 * batch["x"], "y": batch["y"]}


@pytest.mark.parametrize("gradients", ["loop", "hooks"])
def test_any_module_can_be_audited(gradients):
    ones = TensorDataset(torch.ones(60, 6), torch.arange(60) % 3)
    data = {"train_loader": DataLoader(ones, batch_size=12, collate_fn=as_dict), "datamodule": Doubling()}
    seen = releases(subject(module=Dicts(), gradients=gradients, **data), 0.5, accuracy=0.5)
    assert seen.scores.shape[1] == 21, "as many canaries as parameters"
    assert float(seen.sides[1].std()) == pytest.approx(1.0, abs=0.1)
    assert seen.scale(0.5) == pytest.approx(1.0, abs=0.12)


def test_the_module_can_be_trained_after_an_audit(tmp_path):
    module = Classifier()
    before = weights(module).clone()
    releases(subject(module=module), 2.0, accuracy=0.5, canaries=100)
    assert torch.equal(weights(module), before)
    audited = subject(module=module, noise_multiplier=1.0, epsilon=None)
    fit = trainer(tmp_path, audited.strategy(), max_epochs=1)
    assert isinstance(fit, Trainer)
    fit.fit(module, loader())


def test_ghost_clipping_forms_no_gradient_that_a_canary_could_replace():
    with pytest.raises(ConfigurationError, match="gradients='ghost'"):
        subject(gradients="ghost")


def test_data_that_cannot_be_sampled_is_refused():
    weighted = torch.utils.data.WeightedRandomSampler(torch.ones(60), 60)
    with pytest.raises(ConfigurationError, match="WeightedRandomSampler"):
        subject(train_loader=DataLoader(TensorDataset(torch.randn(60, 6)), sampler=weighted))
