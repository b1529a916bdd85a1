from dataclasses import replace

import pytest
import torch
from lightning.pytorch import Trainer
from torch.utils.data import DataLoader, TensorDataset

from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy.run_size import RunSize
from lightning_gep.strategy.task import planned_steps

SMALL = RunSize(num_records=1000, num_parameters=500, batch_size=100, max_epochs=5)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"batch_size": 300, "drop_last": True},
        {"batch_size": 128, "devices": 3},
        {"batch_size": 70, "max_steps": 20},
        {"max_epochs": -1, "max_steps": 17},
        {"batch_size": 70, "limit_train_batches": 0.5},
        {"batch_size": 70, "limit_train_batches": 4},
    ],
)
def test_steps_are_counted_as_the_strategy_counts_them(changes):
    size = replace(SMALL, **changes)
    loader = DataLoader(TensorDataset(torch.zeros(1000, 1)), batch_size=size.batch_size, drop_last=size.drop_last)
    limits = {name: getattr(size, name) for name in ("max_epochs", "max_steps", "limit_train_batches")}
    trainer = Trainer(**limits, logger=False, enable_checkpointing=False, accelerator="cpu")
    assert size.steps == planned_steps(trainer, -(-len(loader) // size.devices))
    assert size.expected_batch_size == loader.batch_size * size.devices


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_epochs": -1}, "max_epochs=-1 and max_steps=-1 leave the run without an end"),
        ({"max_epochs": 0}, "max_epochs must be"),
        ({"max_steps": 0}, "max_steps must be"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"limit_train_batches": 0.001}, "limit_train_batches=0.001 must be .* leaves at least one"),
        ({"limit_train_batches": 1.5}, "limit_train_batches=1.5 must be"),
        ({"limit_train_batches": True}, "limit_train_batches=True must be"),
        ({"num_records": 0}, "records must be"),
    ],
)
def test_sizes_that_cannot_be_planned(change, message):
    with pytest.raises(ConfigurationError, match=message):
        replace(SMALL, **change)
