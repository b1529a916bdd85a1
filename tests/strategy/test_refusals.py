"""Every refusal: what, which, what to do; and nothing has been spent when it comes."""

import subprocess
import sys
import warnings

import pytest
import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    BatchSizeFinder,
    Callback,
    EarlyStopping,
    GradientAccumulationScheduler,
    LambdaCallback,
    LearningRateFinder,
    ModelCheckpoint,
)
from lightning.pytorch.utilities import CombinedLoader
from torch import nn
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    IterableDataset,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    random_split,
)
from torchmetrics import MeanMetric

from lightning_gep import RandomLabels
from lightning_gep.errors import ConfigurationError
from lightning_gep.strategy import public_data
from lightning_gep.strategy.strategy import GEPStrategy
from tests.toys import CLASSES, Classifier, loader, records, refusal, strategy, trainer


class Manual(Classifier):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False


class TwoOptimizers(Classifier):
    def configure_optimizers(self):
        return [torch.optim.SGD(part.parameters(), lr=0.1) for part in (self.hidden, self.out)]


class PersistentMetric(Classifier):
    def __init__(self):
        super().__init__()
        self.seen = MeanMetric()
        self.seen.persistent(True)

    def training_step(self, batch, batch_idx):
        self.seen.update(batch[0].detach().mean())
        return super().training_step(batch, batch_idx)


class ExtraState(Classifier):
    total = 0.0

    def get_extra_state(self):
        return {"total": self.total}

    def set_extra_state(self, state):
        self.total = state["total"]

    def training_step(self, batch, batch_idx):
        self.total += batch[0].sum().item()
        return super().training_step(batch, batch_idx)


class Hooked(Classifier):
    def __init__(self):
        super().__init__()
        self.hidden.weight.register_hook(lambda gradient: None)
        self.out.register_full_backward_hook(lambda *_: None)
        self.register_full_backward_pre_hook(lambda *_: None)


class OwnBackward(Classifier):
    def backward(self, loss):
        loss.backward()


def plateau(optimizer):
    return {"scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer), "monitor": "train/loss"}


class Looked(Classifier):
    def __init__(self, **layers):
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)


class Shortening(Classifier):
    """No row is too long before training, so none is changed then."""

    def __init__(self):
        super().__init__()
        self.words = nn.Parameter(torch.ones(2, 6))

    def training_step(self, batch, batch_idx):
        looked_up = nn.functional.embedding((batch[0][:, 0] > 0).long(), self.words, max_norm=100.0)
        return super().training_step((batch[0] + looked_up, batch[1]), batch_idx)


class InADataModule(LightningDataModule):
    batch_size = 12

    def train_dataloader(self):
        return loader(batch_size=self.batch_size)


class OwnSubset(SubsetRandomSampler):
    """With shuffle=True instead of it, training would read the held-out records."""


class Stream(IterableDataset):
    def __iter__(self):
        return iter(records())


def weighted():
    return WeightedRandomSampler(torch.ones(60).tolist(), 60)


class SeveralInADataModule(LightningDataModule):
    def train_dataloader(self):
        return {"a": loader(), "b": loader(seed=3)}


def deciding(monitor, decider=ModelCheckpoint):
    return {"callbacks": [decider(monitor=monitor)], "enable_checkpointing": decider is ModelCheckpoint}


def acting(callback):
    return {"callbacks": [callback], "module": Looked(backbone=nn.Linear(6, 6)), "data": InADataModule()}


X, Y = records(seed=9).tensors
SEVERAL = r"comes from several loaders, or .* Return one DataLoader"
REFUSED = {
    "trainer": [
        (lambda: {"accumulate_grad_batches": 4}, r"accumulate_grad_batches=4 .* microbatch_size"),
        (lambda: {"precision": "16-true"}, r"precision='16-true' scales the loss.*bf16-mixed"),
        (lambda: {"overfit_batches": 2}, r"overfit_batches=2 .* overfit_batches=0"),
        (lambda: {"reload_dataloaders_every_n_epochs": 1}, r"reload_dataloaders_every_n_epochs=1 .* Set it to 0"),
    ],
    "callbacks": [
        (
            lambda: acting(GradientAccumulationScheduler({0: 1, 4: 3})),
            r"GradientAccumulationScheduler\(.*4: 3.*batch_size",
        ),
        (lambda: acting(LearningRateFinder()), r"LearningRateFinder would spend budget on trial steps.*public data"),
        (lambda: acting(BatchSizeFinder()), r"BatchSizeFinder would spend budget on trial steps.*microbatch_size"),
        (lambda: acting(BackboneFinetuning()), r"BackboneFinetuning unfreezes .*parameter group with lr=0\.0"),
        (lambda: deciding("train/loss", EarlyStopping), r"EarlyStopping monitors 'train/loss'"),
        (lambda: deciding("train/loss"), r"ModelCheckpoint monitors 'train/loss'"),
        (lambda: deciding("train/loss_epoch"), r"ModelCheckpoint monitors 'train/loss_epoch'"),
    ],
    "modules": [
        (lambda: {"module": Shortening()}, r"^training_step changes words: .* released without noise"),
        (
            lambda: {"module": Looked(words=nn.Embedding(9, 4, max_norm=1.5), texts=nn.EmbeddingBag(9, 4, max_norm=2))},
            r"words has max_norm=1\.5, texts has max_norm=2: .* without noise\. Set max_norm=None",
        ),
        (
            lambda: {"module": Looked(words=nn.Embedding(9, 4, sparse=True), texts=nn.EmbeddingBag(9, 4, sparse=True))},
            r"words, texts: sparse=True gives gradients .* Set sparse=False",
        ),
        (lambda: {"module": OwnBackward()}, r"OwnBackward overrides backward\(\)"),
        (lambda: {"module": Classifier(scheduler=plateau)}, r"ReduceLROnPlateau monitors 'train/loss'"),
        (lambda: {"module": Manual()}, r"automatic_optimization=False: with manual optimization"),
        (lambda: {"module": TwoOptimizers()}, r"configure_optimizers returns several optimizers"),
        (lambda: {"module": Classifier(torch.optim.LBFGS)}, r"LBFGS evaluates the loss several times"),
        (lambda: {"module": PersistentMetric()}, r"training_step changes .*seen\.mean_value.* released without noise"),
        (lambda: {"module": ExtraState()}, r"training_step changes .*_extra_state.* released without noise"),
        (
            lambda: {"module": Hooked()},
            r"Hooks on the gradients of hidden\.weight, out, the module would see them before the noise.*W&B",
        ),
    ],
    "train loaders": [
        (lambda: {"data": DataLoader(Stream(), batch_size=12)}, r"data is a Stream, which cannot be sampled by index"),
        (
            lambda: {"data": loader(sampler=weighted(), shuffle=False)},
            r"by WeightedRandomSampler.*DataLoader\(Subset\(dataset, indices\), shuffle=True\).* weights into the loss",
        ),
        (
            lambda: {"data": loader(sampler=OwnSubset(range(40)), shuffle=False)},
            r"samples by OwnSubset.*DataLoader\(Subset\(dataset, indices\), shuffle=True\)",
        ),
        (
            lambda: {"data": loader(sampler=RandomSampler(records(), replacement=True), shuffle=False)},
            r"samples by RandomSampler, which does not draw every record with the same.*Use shuffle=True",
        ),
        (
            lambda: {"data": DataLoader(records(), batch_sampler=BatchSampler(weighted(), 12, False))},
            r"samples by WeightedRandomSampler|its own batch sampler",
        ),
        (lambda: {"data": CombinedLoader({"a": loader(), "b": loader()})}, SEVERAL),
        (lambda: {"data": [loader(), loader(seed=3)]}, SEVERAL),
        (lambda: {"data": SeveralInADataModule()}, SEVERAL),
        (
            lambda: {"data": DataLoader(ConcatDataset([records()] * 2), batch_size=12)},
            r"holds 60 records more than once \(up to 2 times\).*no dataset twice in a ConcatDataset",
        ),
        (
            lambda: {"data": loader(sampler=SubsetRandomSampler([*range(20), 3, 3]), shuffle=False)},
            r"holds 1 record more than once \(up to 3 times\)",
        ),
        (lambda: {"data": loader(batch_size=61)}, r"expected batch size 61 is above the number of records 60"),
    ],
    "public data": [
        (
            lambda: {"using": strategy(aux_dataloader=DataLoader(TensorDataset(X, X, Y)))},
            r"Public batches are \(.*\), but training batches are \(float32\[6\], int64\[\]\)",
        ),
        (lambda: {"using": strategy(aux_dataloader=None)}, r"no public data.*aux_dataloader\(\).*mechanism='gp'"),
        (lambda: {"using": strategy(aux_dataloader=[1, 2])}, r"aux_dataloader returned a list. Return a torch"),
        (lambda: {"using": strategy(aux_dataloader=loader())}, r"Public record 0 is a training record \(same content"),
    ],
    "sizes": [
        (lambda: {"using": strategy(k=100)}, "k=100 basis vectors are more than the 53 trainable parameters"),
        (lambda: {"using": strategy(delta=0.1)}, r"delta=0.1 is not below 1/N = 0.017 for N=60"),
        (lambda: {"using": strategy(epsilon=4.0), "max_epochs": -1}, "cannot be calibrated without an end of training"),
    ],
}


@pytest.mark.parametrize(
    ("given", "message"),
    [pytest.param(*case, id=f"{kind} {i}") for kind in REFUSED for i, case in enumerate(REFUSED[kind])],
)
def test_what_cannot_be_trained_privately_is_refused_before_anything_is_begun(tmp_path, given, message):
    refusal(tmp_path, message, **given())


class Twice(torch.optim.SGD):
    """Like SAM: the loss is evaluated a second time at other weights."""

    def step(self, closure):
        closure()
        return super().step(closure)


def test_an_optimizer_that_asks_twice_gets_one_release(tmp_path):
    used = strategy()
    module = Classifier(lambda params: Twice(params, lr=0.1))
    with pytest.raises(ConfigurationError, match=r"Twice\.step evaluates the loss more than once on the same batch"):
        trainer(tmp_path, used).fit(module, loader())
    assert used.privacy.steps == 1


class UnfreezesLater(Callback):
    def on_fit_start(self, trainer, pl_module):
        pl_module.hidden.requires_grad_(False)

    def on_train_epoch_start(self, trainer, pl_module):
        pl_module.hidden.requires_grad_(trainer.current_epoch > 0)


def test_a_layer_that_is_unfrozen_in_a_later_epoch_is_refused_there(tmp_path):
    used = strategy(mechanism="gp")
    with pytest.raises(ConfigurationError, match=r"requires_grad of hidden\.weight, hidden\.bias changed"):
        trainer(tmp_path, used, max_epochs=2, callbacks=[UnfreezesLater()]).fit(Classifier(), loader())
    assert used.privacy.steps == 5, "the steps of the first epoch"


class Normalized(Classifier):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x):
        return super().forward(self.norm(x))


class FreezesItsNorm(Normalized):
    def on_train_epoch_start(self):
        self.norm.eval()


class FreezesNorms(Callback):
    def on_train_start(self, trainer, pl_module):
        pl_module.norm.eval()


class DoesNotFreeze(Normalized):
    def on_train_epoch_start(self):
        self.log("epoch", 1.0)


def test_batch_norm_is_fine_wherever_it_is_frozen(tmp_path):
    for module, callbacks in ((FreezesItsNorm, []), (Normalized, [FreezesNorms()])):
        used = strategy()
        trainer(tmp_path, used, max_steps=2, callbacks=callbacks).fit(module(), loader())
        assert used.privacy.steps == 2
    refusal(tmp_path / "at the start", r"BatchNorm mixes them: norm\. Replace it by nn\.GroupNorm", module=Normalized())
    refusal(tmp_path / "at the first step", r"BatchNorm mixes records: norm\. Replace it by", module=DoesNotFreeze())


class Chatters(Classifier):
    def training_step(self, batch, batch_idx):
        if not self.trainer.sanity_checking and self.global_step == 0:
            print("chatter")
            warnings.warn("chatter", stacklevel=1)
        return super().training_step(batch, batch_idx)


def test_trying_out_a_module_is_quiet_and_the_start_is_one_block(tmp_path, capsys, caplog):
    used = strategy(mechanism="gp", generator="system", epsilon=4.0)
    fit = trainer(tmp_path, used, max_steps=1)
    with caplog.at_level("INFO", logger="lightning.pytorch"), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit.fit(Chatters(), loader(batch_size=6))
    assert len([w for w in caught if str(w.message) == "chatter"]) < 20, "only the records of the step itself"
    assert capsys.readouterr().out.count("chatter") < 20
    (block,) = (record.message for record in caplog.records if record.message.startswith("GEPStrategy"))
    lines = block.splitlines()
    assert len(lines) == 7
    assert max(map(len, lines[:-1])) <= 80, "the card's path may be longer"
    assert "private: ε at most 4, δ = 0.001, by rdp, in" in lines[1]
    assert "53 parameters" in lines[4]
    assert "chunks of 16: " in lines[4]
    assert "train/loss" in lines[5]
    assert lines[6].endswith("privacy_card.html")
    assert {path.name for path in tmp_path.iterdir()} == {"privacy"}


@pytest.mark.parametrize(
    ("hooks", "message"),
    [
        (
            {"on_train_epoch_start": lambda _, module: module.hidden.weight.register_hook(lambda gradient: None)},
            r"Hooks on the gradients of hidden\.weight would see them",
        ),
        (
            {"on_train_epoch_start": lambda trainer, _: setattr(trainer, "accumulate_grad_batches", 3)},
            r"accumulate_grad_batches=3 .* microbatch_size",
        ),
    ],
)
def test_what_callbacks_do_when_training_starts_is_seen_before_the_first_release(tmp_path, hooks, message):
    used = strategy()
    fit = trainer(tmp_path, used, callbacks=[LambdaCallback(**hooks)])
    with pytest.raises(ConfigurationError, match=message):
        fit.fit(Classifier(), loader())
    assert used.privacy.steps == 0
    assert not list(tmp_path.rglob("*.ledger"))
    fit.callbacks, fit.accumulate_grad_batches = [], 1
    fit.fit(Classifier(), loader())
    assert used.privacy.steps == 10


class Augmented(TensorDataset):
    """Content that is never the same twice."""

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x + torch.randn_like(x), y


def test_public_data_that_is_another_part_of_the_training_data_before_they_were_permuted(tmp_path):
    everything = Augmented(*records(100).tensors)
    permuted = Subset(everything, torch.randperm(100, generator=torch.Generator().manual_seed(0)))
    used = strategy(aux_dataloader=DataLoader(Subset(permuted, range(60, 100)), batch_size=20))
    private = DataLoader(Subset(everything, range(60)), batch_size=12)
    refusal(tmp_path, r"public data contains training records", using=used, data=private)


def test_callbacks_do_not_decide_by_what_is_logged_as_not_private(tmp_path):
    used, decider = strategy(log_nonprivate=True), EarlyStopping("nonprivate/train/loss")
    refusal(tmp_path, r"monitors 'nonprivate/train/loss', which is not private", using=used, callbacks=[decider])


class Validated(LightningDataModule):
    """Trains on one data set and validates on others."""

    def __init__(self, training, *validation):
        super().__init__()
        self.training, self.validation = training, validation

    def train_dataloader(self):
        return DataLoader(self.training, batch_size=12, shuffle=True)

    def val_dataloader(self):
        return [DataLoader(data, batch_size=30) for data in self.validation]


class SeveralValidations(Classifier):
    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        super().validation_step(batch, batch_idx)


class AsksForTheSteps(Classifier):
    """So the train loader is there before the sanity check."""

    def configure_optimizers(self):
        assert self.trainer.estimated_stepping_batches > 0
        return super().configure_optimizers()


HELD_OUT = r"validation data of this fit \(.*\) contains training records.*random_split.*trainer\.validate accepts"


@pytest.mark.parametrize(
    ("module", "settings"),
    [
        (AsksForTheSteps, {"num_sanity_val_steps": 2}),
        (Classifier, {"check_val_every_n_epoch": None, "val_check_interval": 7}),
    ],
)
def test_validation_during_a_fit_reads_no_training_records(tmp_path, module, settings):
    everything = records()
    refusal(tmp_path, HELD_OUT, module=module(), data=Validated(everything, everything), **settings)


@pytest.mark.parametrize(
    ("validation", "sanity_steps"),
    [
        (lambda everything: [Subset(everything, range(60, 100)), ConcatDataset([records(seed=5), everything])], 2),
        (lambda everything: [RandomLabels(Subset(Subset(everything, range(99, -1, -1)), [99]), CLASSES)], 0),
    ],
)
def test_one_training_record_in_the_validation_data_is_too_many(tmp_path, validation, sanity_steps):
    everything = records(100)
    data = Validated(Subset(everything, range(60)), *validation(everything))
    refusal(tmp_path, HELD_OUT, module=SeveralValidations(), data=data, num_sanity_val_steps=sanity_steps)


def test_training_records_in_a_validation_loader_are_seen_although_it_was_validated_before(tmp_path):
    everything, used = records(), strategy()
    fit, module = trainer(tmp_path, used), Classifier()
    fit.validate(module, loader(seed=5, shuffle=False), verbose=False)
    with pytest.raises(ConfigurationError, match=HELD_OUT):
        fit.fit(module, DataLoader(everything, batch_size=12), DataLoader(everything, batch_size=30))
    assert used.privacy is None


def test_records_that_were_held_out_may_validate(tmp_path):
    training, held_out = random_split(ConcatDataset([records(80), records(20, seed=2)]), [60, 40])
    deciding = [EarlyStopping("val/accuracy", mode="max")]
    fit = trainer(tmp_path, strategy(), num_sanity_val_steps=2, callbacks=deciding)
    fit.fit(Classifier(), Validated(training, held_out))
    assert fit.strategy.privacy.steps == 10
    assert "val/accuracy" in fit.callback_metrics


def test_training_records_may_be_looked_at_after_training(tmp_path):
    everything = DataLoader(records(), batch_size=12)
    fit, module = trainer(tmp_path, strategy(), max_steps=2, limit_val_batches=0), Classifier()
    fit.fit(module, everything, everything)
    fit.limit_val_batches = 1.0
    assert "val/accuracy" in fit.validate(module, everything, verbose=False)[0]
    assert fit.strategy.privacy.steps == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epsilon": 1.0, "noise_multiplier": 1.0}, r"exactly one of epsilon and noise_multiplier"),
        ({}, r"exactly one of epsilon and noise_multiplier, but got epsilon=None"),
        ({"epsilon": "8"}, r"epsilon must be a finite number above 0, but it is '8'"),
        ({"epsilon": 0}, r"epsilon must be a finite number above 0, but it is 0"),
        ({"noise_multiplier": -1.0}, r"noise_multiplier must be a finite number 0 or more, but it is -1"),
        ({"epsilon": 1.0, "delta": 1}, r"delta must lie between 0 and 1, but it is 1"),
        ({"epsilon": 1.0, "mechanism": "pate"}, r"mechanism='pate' is not known"),
        ({"epsilon": 1.0, "k": 0}, r"k must be a whole number above 0, but it is 0"),
        ({"epsilon": 1.0, "clip_embedding": 0.0}, r"clip_embedding must be a number above 0"),
        ({"epsilon": 1.0, "subspace": "pca"}, r"subspace='pca' is not known"),
        ({"epsilon": 1.0, "num_anchors": 0}, r"num_anchors must be a whole number above 0"),
        ({"epsilon": 1.0, "refresh_every": 0}, r"refresh_every must be a whole number above 0"),
        ({"epsilon": 1.0, "microbatch_size": 0}, r"microbatch_size must be a whole number above 0"),
        ({"epsilon": 1.0, "gradients": "fast"}, r"gradients='fast' is not known"),
        ({"epsilon": 1.0, "generator": "urandom"}, r"generator='urandom' is not known"),
        ({"epsilon": 1.0, "accountant": "zcdp"}, r"accountant='zcdp' is not known"),
        ({"epsilon": 1.0, "log_nonprivate": "off"}, r"log_nonprivate must be true or false, but it is 'off'"),
        ({"epsilon": 1.0, "trust_checkpoint": "off"}, r"trust_checkpoint must be true or false, but it is 'off'"),
        ({"epsilon": 1.0, "decay": 1.0}, r"decay must be at least 0 and below 1, but it is 1\.0"),
        ({"epsilon": 1.0, "subspace": "power", "power_iterations": 0}, r"iterations must be a whole number above 0"),
        ({"epsilon": 1.0, "residual_memory": 1.0}, r"residual_memory must be at least 0 and below 1, but it is 1\.0"),
        ({"epsilon": 1.0, "residual_memory": -0.1}, r"residual_memory must be at least 0 and below 1, but it is -0\.1"),
        ({"epsilon": 1.0, "residual_memory": float("nan")}, r"residual_memory must be at least 0 and below 1"),
        ({"epsilon": 1.0, "start_method": "threads"}, r"start_method='threads' is not known"),
        ({"epsilon": 1.0, "clipping": "joint", "split": (1.0, 2.0)}, r"Joint clipping takes equal sigmas"),
    ],
)
def test_bad_arguments_are_refused_when_the_strategy_is_made(settings, message):
    with pytest.raises(ConfigurationError, match=message):
        GEPStrategy(**settings)


def test_thresholds_of_another_mechanism_are_named():
    with pytest.warns(UserWarning, match="'gep' clips by clip_embedding and clip_residual: clip_norm has no effect"):
        GEPStrategy(epsilon=1.0, clip_norm=3.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        GEPStrategy(epsilon=1.0, mechanism="gp", clip_norm=3.0)


def test_a_trial_run_says_that_it_costs_as_much_as_a_whole_one(tmp_path):
    used = strategy(mechanism="gp", epsilon=8.0)
    with pytest.warns(UserWarning, match=r"fast_dev_run spends the whole ε = 8 on 1 step.*Discard these weights"):
        trainer(tmp_path, used, fast_dev_run=True).fit(Classifier(), loader())
    assert (used.card_directory / "privacy_card.json").exists()


def test_slow_data_is_compared_in_part_and_it_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(public_data, "SECONDS_FOR_COMPARISON", 1e-9)
    with pytest.warns(UserWarning, match="Comparing all 60 training records .* is your responsibility"):
        trainer(tmp_path, strategy(), max_steps=1).fit(Classifier(), loader())


def test_the_other_namespace_is_named():
    others = pytest.importorskip("pytorch_lightning")
    with pytest.raises(ValueError, match=r"for lightning\.pytorch\.Trainer, not for pytorch_lightning\.Trainer"):
        others.Trainer(strategy=GEPStrategy(epsilon=1.0), logger=False)
    program = "import pytorch_lightning as pl; from lightning_gep import GEPStrategy; pl.Trainer(strategy='gep')"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=False)
    assert "ConfigurationError: This Trainer is that of pytorch_lightning" in done.stderr
    assert "import lightning.pytorch as pl" in done.stderr
