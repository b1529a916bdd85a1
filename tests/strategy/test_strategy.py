"""The strategy against plain Lightning training, and the signs that an update really is private."""

import copy
import math
import warnings
from operator import attrgetter

import pytest
import torch
from lightning.pytorch import Callback, LightningDataModule, Trainer
from lightning.pytorch.accelerators.mps import MPSAccelerator
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import nn
from torchmetrics.classification import MulticlassAccuracy

from lightning_gep.errors import BudgetExhaustedError, ConfigurationError
from lightning_gep.privacy.sampling import PoissonSampler, seeded_secret
from lightning_gep.strategy import release_checks
from tests.toys import (
    CLASSES,
    FEATURES,
    INF,
    RECORDS,
    Classifier,
    Gradients,
    loader,
    public_loader,
    records,
    strategy,
    trainer,
    weights,
)

OPTIMIZERS = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1),
    "momentum": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "adam": lambda params: torch.optim.Adam(params, lr=0.01),
}
SCHEDULERS = {
    "constant": None,
    "step": lambda optimizer: {
        "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.5),
        "interval": "step",
    },
}
NO_PRIVACY = {"noise_multiplier": 0.0, "clip_embedding": INF, "clip_residual": INF}


def plain_training(module, steps, batch_size=12, dtype=torch.float64, clip=None):
    """An ordinary loop on the same Poisson batches, the loss scaled by |batch|/n̄."""
    sampler = PoissonSampler(RECORDS, batch_size, secret=seeded_secret(0), steps_per_epoch=steps)
    configured = module.configure_optimizers()
    optimizer = configured["optimizer"] if isinstance(configured, dict) else configured
    scheduler = configured["lr_scheduler"]["scheduler"] if isinstance(configured, dict) else None
    x, y = records(dtype=dtype).tensors
    for indices in sampler:
        optimizer.zero_grad()
        if indices:
            loss = nn.functional.cross_entropy(module(x[indices]), y[indices]) * len(indices) / batch_size
            loss.backward()
        else:
            for p in module.parameters():
                p.grad = torch.zeros_like(p)
        if clip:
            torch.nn.utils.clip_grad_norm_(module.parameters(), clip)
        optimizer.step()
        if scheduler:
            scheduler.step()
    return module


@pytest.mark.parametrize(
    ("optimizer", "scheduler", "mechanism", "clip"),
    [
        ("sgd", "constant", "gep", 0.05),
        ("momentum", "step", "gp", None),
        ("momentum", "step", "spectral", None),
        ("adam", "step", "gep", None),
        ("adam", "constant", "gp", 0.05),
    ],
)
def test_without_noise_and_clipping_it_is_plain_training_on_the_same_batches(
    tmp_path, optimizer, scheduler, mechanism, clip
):
    settings = {"mechanism": mechanism, **NO_PRIVACY, "clip_norm": INF, "microbatch_size": 5}
    settings["aux_dataloader"] = public_loader(torch.float64)
    module = Classifier(OPTIMIZERS[optimizer], SCHEDULERS[scheduler], torch.float64)
    fit = trainer(tmp_path, strategy(**settings), max_epochs=3, gradient_clip_val=clip)
    fit.fit(module, loader(dtype=torch.float64))
    expected = plain_training(Classifier(OPTIMIZERS[optimizer], SCHEDULERS[scheduler], torch.float64), 15, clip=clip)
    torch.testing.assert_close(weights(module), weights(expected), rtol=0, atol=1e-11)
    assert fit.strategy.privacy.epsilon() == math.inf
    assert fit.strategy.privacy.report()["private"] is False


def test_empty_batches_are_steps_too(tmp_path):
    """Batches of one expected record: a third of them are empty, and no collate function sees them."""

    def collate(items):
        assert items, "never an empty list"
        return torch.utils.data.default_collate(items)

    settings = {**NO_PRIVACY, "aux_dataloader": public_loader(torch.float64)}
    module = Classifier(OPTIMIZERS["momentum"], dtype=torch.float64)
    data = loader(batch_size=1, dtype=torch.float64, collate_fn=collate)
    fit = trainer(tmp_path, strategy(**settings), max_steps=30)
    fit.fit(module, data)
    expected = plain_training(Classifier(OPTIMIZERS["momentum"], dtype=torch.float64), 30, batch_size=1)
    torch.testing.assert_close(weights(module), weights(expected), rtol=0, atol=1e-11)
    assert fit.strategy.privacy.steps == 30


class Silent(Classifier):
    """A loss whose gradient is zero for private records, which are all zeros, and not for public ones."""

    def training_step(self, batch, batch_idx):
        x, _ = batch
        return (x.square().sum(1) * self(x).square().sum(1)).mean()


STEPS_TO_TELL = {"gep": 100, "bgep": 100, "gp": 10}
"""So many that 5 % is five standard deviations of the noise's mean energy, or more: 200 numbers a step have most of the
energy of GEP's noise and all of B-GEP's."""


@pytest.mark.parametrize(
    ("mechanism", "generator"), [("gep", "system"), ("bgep", "system"), ("gp", "system"), ("gp", "secure")]
)
def test_at_zero_gradient_the_variance_is_that_of_the_noise(tmp_path, mechanism, generator):
    spy, wide, steps = Gradients(), 400, STEPS_TO_TELL[mechanism]

    class Wide(Silent):
        def __init__(self):
            super().__init__(lambda params: torch.optim.SGD(params, lr=0.0))
            self.hidden, self.out = nn.Linear(FEATURES, wide), nn.Linear(wide, 3)

    settings = {"mechanism": mechanism, "generator": generator, "clip_embedding": 3.0, "clip_residual": 0.5, "k": 200}
    anchors = {"num_anchors": 200, "refresh_every": 10_000, "aux_dataloader": public_loader(count=400)}
    used = strategy(**settings, **anchors, noise_multiplier=2.0, clip_norm=0.7, delta=1e-4)
    # All steps in one epoch, before each of which there are checks.
    zeros = torch.utils.data.DataLoader([(torch.zeros(FEATURES), 0)] * 12 * steps, batch_size=12)
    trainer(tmp_path, used, callbacks=[spy], max_epochs=1).fit(Wide(), zeros)
    release, n = used.privacy.plan.release, used.privacy.plan.expected_batch_size
    p = len(spy.seen[0])
    k = used.prepared.basis_source.subspace.basis.dimension if mechanism != "gp" else 0
    expected = sum(
        part.noise_std**2 * size
        for part, size in ((release.embedding, k), (release.residual, p - k))
        if part is not None
    )
    energy = torch.stack(spy.seen).double().square().sum(1).mean() * n**2
    assert len(spy.seen) == steps
    assert float(energy) == pytest.approx(expected, rel=0.05)


class WritesLater(Classifier):
    """From the third step on it writes what it sees, in a way that autograd does not."""

    def __init__(self, name, least_records=1):
        super().__init__()
        self.name, self.least_records = name, least_records
        self.register_buffer("mean", torch.zeros(FEATURES))
        self.frozen = nn.Parameter(torch.zeros(FEATURES), requires_grad=False)

    def training_step(self, batch, batch_idx):
        if self.global_step >= 2 and len(batch[0]) >= self.least_records:
            attrgetter(self.name)(self).data.copy_(batch[0].mean(0))
        return super().training_step(batch, batch_idx)


class WeightsAtStepStart(Callback):
    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.seen = copy.deepcopy(pl_module.state_dict())


def refused_at_the_third_step(tmp_path, monkeypatch, module, **settings):
    """The refusal leaves parameters and buffers as they were when the step began."""
    # The check on public records that chance decides on would refuse it too, in other words, if it came to this step.
    monkeypatch.setattr(release_checks.secrets, "randbelow", lambda steps: 0)
    used, start = strategy(**settings), WeightsAtStepStart()
    message = rf"training_step changes {module.name}: .* released without noise"
    with pytest.raises(ConfigurationError, match=message):
        trainer(tmp_path, used, callbacks=[start]).fit(module, loader())
    torch.testing.assert_close(dict(module.state_dict()), dict(start.seen), rtol=0, atol=0)
    return used.privacy.steps


@pytest.mark.parametrize(
    ("name", "gradients", "mechanism"),
    [
        ("mean", "hooks", "gep"),
        ("mean", "loop", "gp"),
        ("frozen", "hooks", "gp"),
        ("hidden.weight", "hooks", "gp"),
        ("hidden.weight", "loop", "gp"),
    ],
)
def test_a_step_that_writes_to_parameters_or_buffers_releases_nothing(
    tmp_path, monkeypatch, name, gradients, mechanism
):
    settings = {"gradients": gradients, "mechanism": mechanism, "microbatch_size": 4}
    assert refused_at_the_third_step(tmp_path, monkeypatch, WritesLater(name), **settings) == 2


def test_a_pass_for_logging_that_writes_to_buffers_moves_no_weights(tmp_path, monkeypatch):
    """It sees the batch as a whole, where gradients are those of records alone."""
    module = WritesLater("mean", least_records=2)
    assert refused_at_the_third_step(tmp_path, monkeypatch, module, log_nonprivate=True) == 3


def test_epsilon_is_calibrated_to_the_run_and_a_second_fit_continues_the_count(tmp_path):
    used = strategy(epsilon=5.0)
    fit = trainer(tmp_path, used, max_epochs=2)
    fit.fit(Classifier(), loader())
    assert used.privacy.steps == 10
    assert 4.9 < used.privacy.accounted_epsilon() <= 5.0
    fit.fit_loop.max_epochs = 4
    with pytest.raises(BudgetExhaustedError, match="after 10 steps"):
        fit.fit(Classifier(), loader())
    assert used.privacy.steps == 10


def test_validate_test_and_predict_cost_nothing(tmp_path):
    fit = trainer(tmp_path, strategy(), max_steps=4)
    module = Classifier()
    fit.fit(module, loader(), loader(shuffle=False))
    spent = fit.strategy.privacy.report()
    assert "val/accuracy" in fit.validate(module, loader(shuffle=False), verbose=False)[0]
    fit.test(module, loader(shuffle=False), verbose=False)
    assert len(fit.predict(module, loader(shuffle=False))) == 5
    assert fit.strategy.privacy.report() == spent
    alone = trainer(tmp_path, strategy())
    alone.validate(Classifier(), loader(shuffle=False), verbose=False)
    assert alone.strategy.privacy is None


class WithPublicData(LightningDataModule):
    def train_dataloader(self):
        return loader()

    def aux_dataloader(self):
        return public_loader()


class ModuleWithPublicData(Classifier):
    aux_dataloader = WithPublicData.aux_dataloader


class Measured(Classifier):
    def __init__(self):
        super().__init__()
        self.accuracy = MulticlassAccuracy(CLASSES)

    def validation_step(self, batch, batch_idx):
        self.accuracy(self(batch[0]), batch[1])
        self.log("val/accuracy", self.accuracy)

    test_step = validation_step


def test_a_metric_that_was_used_for_evaluation_before_is_no_obstacle(tmp_path):
    fit, module = trainer(tmp_path, strategy(), max_steps=2), Measured()
    fit.test(module, loader(shuffle=False), verbose=False)
    fit.validate(module, loader(shuffle=False), verbose=False)
    fit.fit(module, loader(), loader(seed=5, shuffle=False))
    assert fit.strategy.privacy.steps == 2


def test_public_data_may_come_from_the_module(tmp_path):
    used = strategy(aux_dataloader=None)
    trainer(tmp_path, used, max_steps=2).fit(ModuleWithPublicData(), loader())
    assert used.privacy.steps == 2


def test_it_is_registered_under_a_name_and_finds_the_public_data_of_a_datamodule(tmp_path):
    with pytest.warns(UserWarning, match=r"strategy='gep' stands for .*epsilon=8\.0.*you did not choose"):
        fit = trainer(tmp_path, "gep", max_epochs=2)
    fit.fit(Classifier(), WithPublicData())
    assert fit.strategy.privacy.plan.target_epsilon == 8.0
    assert fit.strategy.privacy.delta == 0.01, "the largest power of ten below 1/N"
    assert fit.strategy.privacy.epsilon() <= 8.0


def test_thresholds_and_k_are_chosen_on_public_data_and_recorded(tmp_path):
    used = strategy(k="auto", clip_embedding="auto", clip_residual="auto")
    trainer(tmp_path, used, max_steps=2).fit(Classifier(), loader())
    chosen = used.prepared.chosen
    assert 1 <= chosen.k <= 53
    assert used.privacy.plan.release.embedding.clip == chosen.clip_embedding > 0
    assert used.privacy.plan.release.residual.clip == chosen.clip_residual > 0


class Faint(Classifier):
    def training_step(self, batch, batch_idx):
        return 0.01 * super().training_step(batch, batch_idx)


@pytest.mark.parametrize("mechanism", ["gp", "spectral"])
def test_the_threshold_of_dp_sgd_fits_small_gradients(tmp_path, mechanism):
    used = strategy(mechanism=mechanism, clip_norm="auto", aux_dataloader=public_loader())
    trainer(tmp_path, used, max_steps=1).fit(Faint(), loader())
    clip = used.privacy.plan.release.residual.clip
    assert 0.001 < clip < 0.02
    assert used.prepared.chosen.clip_norm == clip
    without = strategy(mechanism="gp", clip_norm="auto")
    with pytest.raises(ConfigurationError, match=r"clip_norm='auto' is chosen on public data.*or a number"):
        trainer(tmp_path, without).fit(Faint(), loader())


def test_noise_that_drowns_the_gradient_is_told(tmp_path):
    with pytest.warns(UserWarning, match=r"noise of a step is \d+ times as long as its gradient.*larger batches"):
        trainer(tmp_path, strategy(noise_multiplier=100.0), max_steps=1).fit(Classifier(), loader())
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="On public records")
        trainer(tmp_path, strategy(noise_multiplier=1.0), max_steps=1).fit(Classifier(), loader())


@pytest.mark.parametrize(
    ("subspace", "precision"), [("tracked", "bf16-mixed"), ("power", "64-true"), ("random", "32-true")]
)
def test_every_subspace_and_precision_trains(tmp_path, subspace, precision):
    module = Classifier()
    fit = trainer(tmp_path, strategy(subspace=subspace, refresh_every=2), max_steps=5, precision=precision)
    fit.fit(module, loader())
    assert torch.isfinite(weights(module)).all()
    assert fit.strategy.privacy.steps == 5


def test_it_runs_in_a_notebook(tmp_path, monkeypatch):
    """Where Lightning refuses strategies that start scripts."""
    monkeypatch.setattr("lightning.pytorch.trainer.connectors.accelerator_connector._IS_INTERACTIVE", True)
    fit = trainer(tmp_path, strategy(), max_steps=2, devices=1)
    fit.fit(Classifier(), loader())
    assert fit.strategy.privacy.steps == 2
    with pytest.raises(ConfigurationError, match=r"In a notebook .* on 2 devices\. Use .*start_method='fork'"):
        trainer(tmp_path, strategy(), devices=2)
    assert trainer(tmp_path, strategy(start_method="fork"), devices=2).strategy.world_size == 2
    with pytest.raises(MisconfigurationException, match="interactive"):
        trainer(tmp_path, DDPStrategy(), devices=1)


def test_it_is_accepted_on_a_mac(monkeypatch):
    """There accelerator='auto' is Apple's, on which Lightning refuses every strategy that is a parallel one."""
    monkeypatch.setattr(MPSAccelerator, "is_available", staticmethod(lambda: True))
    monkeypatch.setattr(MPSAccelerator, "parse_devices", staticmethod(lambda devices: [0]))
    for accelerator in ("auto", "mps"):
        made = Trainer(strategy=strategy(mechanism="gp"), accelerator=accelerator, devices=1, logger=False)
    assert made.strategy.root_device.type == "mps"
    with pytest.raises(ValueError, match="not supported on the MPS"):
        Trainer(strategy=DDPStrategy(), accelerator="auto", devices=1, logger=False)


class CliModule(Classifier):
    def __init__(self):
        super().__init__()


def test_lightning_cli_takes_it(tmp_path):
    arguments = {
        "trainer": {
            "strategy": {
                "class_path": "lightning_gep.strategy.strategy.GEPStrategy",
                "init_args": {"noise_multiplier": 1.0, "k": 5, "accountant": "rdp"},
            },
            "max_steps": 2,
            "accelerator": "cpu",
            "logger": False,
            "enable_checkpointing": False,
            "default_root_dir": str(tmp_path),
        }
    }
    arguments = {"fit": arguments, "subcommand": "fit"}
    cli = LightningCLI(CliModule, WithPublicData, args=arguments, save_config_callback=None)
    assert cli.trainer.strategy.privacy.steps == 2
