"""Modules as people write them, through the whole strategy."""

import functools

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.toys import Classifier, loader, strategy, trainer


class Checkpointed(Classifier):
    """Dropout inside a part whose activations are computed again in the backward pass."""

    def forward(self, x):
        dropped = lambda x: super(Checkpointed, self).forward(nn.functional.dropout(x, 0.5, self.training))  # noqa: E731
        return checkpoint(dropped, x, use_reentrant=False)


def test_checkpointing_that_is_not_reentrant_trains_with_dropout(tmp_path):
    used = strategy(mechanism="gp")
    trainer(tmp_path, used, max_steps=2).fit(Checkpointed(), loader())
    assert used.privacy.steps == 2
    assert used.prepared.gradients.backend.name == "loop"


def timed(step):
    return functools.wraps(step)(lambda *args: step(*args))


class OneCycle(Classifier):
    """As Lightning's documentation has it."""

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        self.planned = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=self.planned)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    training_step = timed(Classifier.training_step)


def test_optimizers_may_ask_for_the_number_of_steps_and_training_step_be_decorated(tmp_path):
    module, used = OneCycle(), strategy()
    fit = trainer(tmp_path, used, num_sanity_val_steps=1)
    fit.fit(module, loader(batch_size=20), loader(shuffle=False))
    assert used.privacy.steps == module.planned == fit.global_step == 6
