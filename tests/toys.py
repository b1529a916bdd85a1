"""Small ordinary Lightning code for the tests of the strategy: nothing in it knows of privacy."""

import mmap

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_gep import ConfigurationError, GEPStrategy

FEATURES, CLASSES, RECORDS = 6, 3, 60
INF = float("inf")


class Classifier(LightningModule):
    """Two layers, cross entropy; the optimizer and what training_step does can be swapped."""

    def __init__(self, optimizer=None, scheduler=None, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(7)
        self.hidden = nn.Linear(FEATURES, 5).to(dtype)
        self.out = nn.Linear(5, CLASSES).to(dtype)
        self.make_optimizer = optimizer or (lambda params: torch.optim.SGD(params, lr=0.1))
        self.make_scheduler = scheduler

    def forward(self, x):
        return self.out(torch.tanh(self.hidden(x)))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self(x), y)
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val/accuracy", (self(x).argmax(1) == y).float().mean())

    test_step = validation_step

    def predict_step(self, batch, batch_idx):
        return self(batch[0])

    def configure_optimizers(self):
        optimizer = self.make_optimizer(self.parameters())
        if self.make_scheduler is None:
            return optimizer
        return {"optimizer": optimizer, "lr_scheduler": self.make_scheduler(optimizer)}


def records(count=RECORDS, seed=1, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(CLASSES, (count,), generator=generator)
    x = torch.randn(count, FEATURES, generator=generator) + 2 * nn.functional.one_hot(y, FEATURES)
    return TensorDataset(x.to(dtype), y)


def loader(batch_size=12, seed=1, count=RECORDS, dtype=torch.float32, **kwargs):
    kwargs.setdefault("shuffle", True)
    return DataLoader(records(count, seed, dtype), batch_size=batch_size, **kwargs)


def public_loader(dtype=torch.float32, count=200):
    return loader(batch_size=50, seed=99, count=count, dtype=dtype)


def strategy(**settings):
    """A quick strategy: no calibration, small k, reproducible unless told otherwise."""
    defaults = {
        "noise_multiplier": 1.0,
        "delta": 1e-3,
        "k": 6,
        "clip_embedding": 1.0,
        "clip_residual": 1.0,
        "accountant": "rdp",
        "generator": "seeded",
        "num_anchors": 20,
    }
    if "epsilon" in settings:
        defaults.pop("noise_multiplier")
    if settings.get("mechanism") != "gp":
        settings.setdefault("aux_dataloader", public_loader())
    return GEPStrategy(**{**defaults, **settings})


def trainer(directory, using, **settings):
    defaults = {
        "max_epochs": 2,
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
        "default_root_dir": directory,
    }
    return Trainer(strategy=using, **{**defaults, **settings})


def refusal(directory, message, module=None, data=None, using=None, **settings):
    """A fit that is refused before anything is begun."""
    used = using or strategy()
    with pytest.raises(ConfigurationError, match=message):
        trainer(directory, used, **settings).fit(module or Classifier(), loader() if data is None else data)
    assert used.privacy is None or used.privacy.steps == 0
    assert not list(directory.rglob("*.ledger")), "nothing was begun"


class Gradients(Callback):
    """The released gradients of all steps."""

    def __init__(self):
        self.seen = []

    def on_after_backward(self, trainer, pl_module):
        self.seen.append(torch.cat([p.grad.reshape(-1).clone() for p in pl_module.parameters()]))


def fresh_memory(megabytes):
    """A tensor in memory of its own, which goes back to the system: after a fit the allocator keeps what is freed."""
    return torch.frombuffer(mmap.mmap(-1, megabytes * 2**20), dtype=torch.uint8).fill_(1)


def weights(module):
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])
