import pytest
import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.audit.canaries import Canaries, NumberedLoader, WithCanaries, canaries_in
from lightning_gep.audit.mechanism import releases
from lightning_gep.errors import ConfigurationError
from lightning_gep.gradients import choose_backend
from tests.audit.toys import subject
from tests.toys import Classifier, loader, records, trainer, weights


def test_canaries_come_after_the_records_and_are_numbered():
    data = WithCanaries(records(count=5), 3)
    assert [number for _, number in data] == [0] * 5 + [1, 2, 3]
    assert torch.equal(data[5][0][0], data[0][0][0])


def test_a_loader_keeps_the_users_collate_function():
    def as_dict(items):
        return {"x": torch.stack([x for x, _ in items]), "y": torch.stack([y for _, y in items])}

    batch, numbers = next(iter(NumberedLoader(loader(collate_fn=as_dict, shuffle=False), canaries=2, steps=7)))
    assert batch["x"].shape == (12, 6)
    assert numbers.tolist() == [0] * 12
    assert len(NumberedLoader(loader(), steps=7)) == 7
    assert len(NumberedLoader(loader(), canaries=60)) == 10


@pytest.mark.parametrize("how", ["functional", "loop"])
def test_the_gradient_of_a_canary_is_the_one_chosen_and_zero_if_left_out(how):
    module, canaries = Classifier(), Canaries(3)
    groups = ParameterGroups.from_module(module)
    chosen = torch.randn(2, groups.num_parameters)
    canaries.use(chosen, groups)
    canaries.included = torch.tensor([1.0, 0.0, 1.0])
    batch = next(iter(NumberedLoader(loader(shuffle=False), batch_size=63, canaries=3)))
    with canaries_in(module, canaries):
        module.log = lambda *_, **__: None
        public = (batch[0], torch.zeros_like(batch[1]))
        rows = choose_backend(module, lambda b: module.training_step(b, 0), groups, public, how)(batch)
    torch.testing.assert_close(rows[60], chosen[0])
    assert float(rows[61:].abs().max()) == 0
    assert float(rows[:60].norm(dim=1).min()) > 0


class Dicts(LightningModule):
    """A training step without batch index that returns a dict, and a hook that changes batches."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.seen = None

    def training_step(self, batch):
        return {"loss": nn.functional.cross_entropy(self.layer(batch["x"]), batch["y"])}

    def on_after_batch_transfer(self, batch, dataloader_idx):
        return {"x": 2 * batch["x"], "y": batch["y"]}

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


class Doubling(LightningDataModule):
    def on_before_batch_transfer(self, batch, dataloader_idx):
        return 2 * batch


def test_hooks_get_the_users_batch_and_the_class_comes_back():
    module = Dicts()
    x, y = torch.ones(4, 6), torch.zeros(4, dtype=torch.long)
    with canaries_in(module, Canaries(2)):
        batch, numbers = module.on_after_batch_transfer(({"x": x, "y": y}, torch.arange(4)), 0)
        assert float(batch["x"].mean()) == 2
        assert numbers.tolist() == [0, 1, 2, 3]
        assert isinstance(module.configure_optimizers(), torch.optim.Adam)
    assert type(module) is Dicts
    with canaries_in(module, Canaries(2), Doubling(), frozen=True):
        assert float(module.on_before_batch_transfer((x, torch.arange(4)), 0)[0].mean()) == 2
        assert module.configure_optimizers().param_groups[0]["lr"] == 0


def test_any_module_can_be_audited():
    def as_dict(items):
        return {"x": torch.stack([x for x, _ in items]), "y": torch.stack([y for _, y in items])}

    seen = releases(subject(module=Dicts(), train_loader=loader(collate_fn=as_dict)), 0.5, accuracy=0.5)
    assert seen.scores.shape[1] == 21, "as many canaries as parameters"
    assert float(seen.sides[1].std()) == pytest.approx(1.0, abs=0.1)
    assert seen.scale(0.5) == pytest.approx(1.0, abs=0.12)


def test_the_module_can_be_trained_after_an_audit(tmp_path):
    module = Classifier()
    before = weights(module).clone()
    releases(subject(module=module), 2.0, accuracy=0.5, canaries=100)
    assert torch.equal(weights(module), before)
    assert type(module) is Classifier
    audited = subject(module=module, noise_multiplier=1.0, epsilon=None)
    fit = trainer(tmp_path, audited.strategy(), max_epochs=1)
    assert isinstance(fit, Trainer)
    fit.fit(module, loader())


def test_opacus_hooks_cannot_see_canaries():
    with pytest.raises(ConfigurationError, match="gradients='hooks'"):
        subject(gradients="hooks")


def test_data_that_cannot_be_sampled_is_refused():
    weighted = torch.utils.data.WeightedRandomSampler(torch.ones(60), 60)
    with pytest.raises(ConfigurationError, match="WeightedRandomSampler"):
        subject(train_loader=DataLoader(TensorDataset(torch.randn(60, 6)), sampler=weighted))
