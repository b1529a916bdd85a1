"""Several processes: forked, so that nothing is imported again; what each has seen is in files of its own."""

from dataclasses import replace

import pytest
import torch
from lightning.pytorch import Callback
from torch import nn
from torch.utils.data import DataLoader, SubsetRandomSampler
from torchmetrics.classification import MulticlassAccuracy

from lightning_gep.algorithm.exchange import Exchange
from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.algorithm.spectral import TrackedSpectrum
from lightning_gep.strategy.settings import STEPS_BETWEEN_SUMS
from recipes.models.resnet20 import ResNet20
from tests.toys import CLASSES, Classifier, loader, public_loader, records, strategy, trainer, weights

STEPS = 50
P = 6 * 5 + 5 + 5 * 3 + 3


class UnlikeTheFirst(Classifier):
    """As where nothing is seeded: the first process has the weights that count."""

    def setup(self, stage):
        for parameter in self.parameters() if self.trainer.global_rank else ():
            nn.init.ones_(parameter)


class Witness(Callback):
    """Saves what a process has at the end of training."""

    def __init__(self, directory):
        self.directory = directory

    def on_train_end(self, trainer, pl_module):
        fit = trainer.strategy.prepared
        seen = {"weights": weights(pl_module), "sent": dict(getattr(fit.exchange, "sent", {}))}
        seen["basis"] = list(fit.basis_source.current.blocks)
        torch.save(seen, self.directory / f"rank{trainer.global_rank}.pt")


def trained(directory, devices, module=None, steps=STEPS, **settings):
    module, used = module or UnlikeTheFirst(), strategy(start_method="fork", **settings)
    fit = trainer(directory, used, max_steps=steps, max_epochs=-1, devices=devices, callbacks=[Witness(directory)])
    fit.fit(module, loader(batch_size=12 // devices))
    return module, used, [torch.load(directory / f"rank{rank}.pt", weights_only=True) for rank in range(devices)]


@pytest.mark.distributed
@pytest.mark.parametrize(
    "settings",
    [
        {"mechanism": "gp"},
        {"mechanism": "gep", "refresh_every": 2, "num_anchors": 21, "residual_memory": 0.8},
        {"mechanism": "gep", "subspace": "power", "power_iterations": 2, "refresh_every": 10, "k": 4},
        {"mechanism": "spectral", "refresh_every": 2, "num_anchors": 21},
    ],
    ids=["gp", "gep", "power", "spectral"],
)
def test_one_two_and_four_processes_reach_the_same_weights_at_the_same_epsilon(tmp_path, settings):
    found = []
    for devices in (1, 2, 4):
        directory = tmp_path / str(devices)
        directory.mkdir()
        module, used, ranks = trained(directory, devices, **settings)
        assert all(torch.equal(rank["weights"], ranks[0]["weights"]) for rank in ranks)
        assert len(list((directory / "privacy").glob("*.ledger"))) == 1
        found.append((weights(module), used.privacy.report()))
    for reached, report in found[1:]:
        torch.testing.assert_close(reached, found[0][0], rtol=0, atol=1e-6)
        assert report == found[0][1]
        assert report["steps"] == STEPS


@pytest.mark.distributed
def test_bytes_are_counted(tmp_path):
    """Four bytes for each number of the gradient, and what the basis takes, as docs/scaling.md has it."""
    sent = {}
    for name, settings in {"gp": {}, "spectral": {}, "gep": {"refresh_every": 2, "num_anchors": 20}}.items():
        *_, ranks = trained(tmp_path, 2, steps=26, mechanism=name, **settings)
        assert ranks[0]["sent"] == ranks[1]["sent"]
        sent[name] = ranks[0]["sent"]
    triangles = 6 * 7 // 2 + 2 * (5 * 6 // 2) + 3 * 4 // 2
    assert sent["gp"] == {"gradient": 26 * 4 * P}
    checksum, counts = 16, 16
    # Steps 0 (two sweeps), 12 and 24.
    assert sent["spectral"] == {"gradient": 26 * 4 * P, "basis": 4 * 4 * (triangles + P) + 3 * checksum}
    assert sent["gep"] == {"gradient": 26 * 4 * (6 + P), "basis": 13 * (20 * 4 * P + counts + checksum)}


class Counting(Exchange):
    """One of two processes, of which the other has nothing."""

    world_size = 2

    def __init__(self):
        self.bytes = 0

    def sum(self, tensor):
        self.bytes += tensor.numel() * tensor.element_size()
        return tensor


def test_spectral_sends_at_most_a_tenth_more_than_ddp_of_the_plain_network():
    """ResNet20: 4 bytes a parameter and step; covariances and energies at a refresh."""
    groups = ParameterGroups.from_module(ResNet20())
    spectrum, anchors = TrackedSpectrum(groups.shapes, num_anchors=3), torch.randn(3, groups.num_parameters)
    spectrum.exchange = Counting()
    for step in (0, 1):  # the first refresh sweeps twice
        spectrum.at_step(step, lambda: [anchors])
    plain, refresh = 4 * groups.num_parameters, spectrum.exchange.bytes // 3
    assert plain == 4 * 268_346
    assert refresh == 4 * (34_116 + 268_346)
    assert plain + refresh / STEPS_BETWEEN_SUMS <= 1.1 * plain


class Unequal(Classifier):
    """The second process rounds differently: its basis is off by the last digit before the third refresh."""

    def on_train_batch_start(self, batch, batch_idx):
        if self.trainer.global_rank == 1 and self.global_step == 3:
            self.trainer.strategy.prepared.basis_source.current.blocks[0].mul_(1 + 1e-6)


@pytest.mark.distributed
def test_bases_that_differ_are_found_and_all_continue_with_the_first(tmp_path):
    *_, ranks = trained(tmp_path, 2, Unequal(), steps=4, mechanism="gep", refresh_every=2)
    assert not torch.equal(*(rank["basis"][0] for rank in ranks)), "not refreshed yet"
    *_, ranks = trained(tmp_path, 2, Unequal(), steps=5, mechanism="gep", refresh_every=2)
    assert all(torch.equal(*blocks) for blocks in zip(*(rank["basis"] for rank in ranks), strict=True))


class Scored(Classifier):
    def __init__(self):
        super().__init__()
        self.metric = MulticlassAccuracy(CLASSES, average="micro")

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        self.metric(logits, y)
        self.log("metric", self.metric)
        self.log("logged", (logits.argmax(1) == y).float().mean(), sync_dist=True)
        self.log("records", float(len(y)), sync_dist=True, reduce_fx="sum")

    def predict_step(self, batch, batch_idx):
        torch.save(self(batch[0]), f"{self.trainer.default_root_dir}/{self.trainer.global_rank}-{batch_idx}.pt")


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("count", "devices", "options", "read"),
    [(7, 2, {"shuffle": True}, 7), (3, 4, {}, 12), (7, 2, {"sampler": SubsetRandomSampler(range(7))}, 14)],
    ids=["uneven", "few", "own sampler"],
)
def test_every_record_is_evaluated_once(tmp_path, count, devices, options, read):
    """However the shares come out; with fewer records than processes, or the user's own sampler, all evaluate all."""
    module, data = Scored(), DataLoader(records(count, seed=5), batch_size=2, **options)
    evaluate = trainer(tmp_path, strategy(mechanism="gp", start_method="fork"), devices=devices)
    (result,) = evaluate.validate(module, data, verbose=False)
    x, y = records(count, seed=5).tensors
    expected = float((module(x).argmax(1) == y).float().mean())
    assert result["metric"] == pytest.approx(expected, abs=1e-6)
    assert result["logged"] == pytest.approx(expected, abs=1e-6)
    assert result["records"] == read


@pytest.mark.distributed
def test_every_record_is_predicted_once(tmp_path):
    module, data = Scored(), DataLoader(records(7, seed=5), batch_size=2)
    predict = trainer(tmp_path, strategy(mechanism="gp", start_method="fork"), devices=2)
    predict.predict(module, data, return_predictions=False)
    found = torch.cat([torch.load(file, weights_only=True) for file in sorted(tmp_path.glob("*.pt"))])
    expected = module(records(7, seed=5).tensors[0]).detach()
    torch.testing.assert_close(found.sort(0).values, expected.sort(0).values)


def otherwise(change):
    """A module that changes something in the second process, before training is set up."""

    class Module(Classifier):
        def setup(self, stage):
            if self.trainer.global_rank == 1:
                change(self)

    return Module()


DIFFERENT = {
    "epsilon": (
        lambda module: vars(module.trainer.strategy).update(
            settings=replace(module.trainer.strategy.settings, noise_multiplier=2.0)
        ),
        "noise_multiplier is 2.0, not 1.0",
    ),
    "public data": (
        lambda module: vars(module.trainer.strategy).update(
            cost=replace(module.trainer.strategy.cost, aux_dataloader=public_loader(count=190))
        ),
        "the public data is .*190",
    ),
    "training data": (
        lambda module: vars(module.trainer.fit_loop._data_source).update(instance=loader(batch_size=6, count=54)),
        "num_records is 54, not 60",
    ),
    "module": (lambda module: setattr(module, "out", nn.Linear(5, 4)), "the module's out.weight is"),
}


@pytest.mark.distributed
@pytest.mark.parametrize("what", DIFFERENT)
def test_processes_that_differ_do_not_start(tmp_path, what):
    change, words = DIFFERENT[what]
    fit = trainer(tmp_path, strategy(start_method="fork"), max_steps=2, devices=2)
    with pytest.raises(Exception, match=f"Process 1 differs from process 0: .*{words}"):
        fit.fit(otherwise(change), loader(batch_size=6))
