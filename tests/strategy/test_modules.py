"""Through the whole strategy, a module gets the gradient of an ordinary backward pass."""

import functools

import pytest
import torch
from lightning.pytorch import Callback
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from lightning_gep.gradients import take
from tests.gradients_zoo import ZOO, N, loss_of
from tests.toys import INF, Classifier, loader, strategy, trainer


class Gradient(Callback):
    def on_after_backward(self, trainer, pl_module):
        self.seen = {name: p.grad.clone() for name, p in pl_module.named_parameters() if p.grad is not None}


def plain_gradient(module, batch):
    loss = loss_of(module)(batch)
    (loss["loss"] if isinstance(loss, dict) else loss).backward()
    trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    gradients = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in trained}
    module.zero_grad(set_to_none=True)
    return gradients


PLAIN = [
    "nn.LSTM",
    "tied weights",
    "frozen parameters",
    "unused parameters",
    "weights reached past the module tree",
    "torchmetrics in training_step",
    "tuple batch, several inputs",
    "strings in the batch",
    "bf16-mixed",
]


@pytest.mark.parametrize("name", PLAIN)
def test_the_gradient_is_the_plain_one(name, tmp_path):
    """All records are drawn (q = 1), nothing is clipped, no noise is added."""
    case = ZOO[name]
    module, batch = case.build()
    expected = plain_gradient(module, batch)
    module.configure_optimizers = lambda: torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.0)
    used = strategy(mechanism="gp", noise_multiplier=0.0, clip_norm=INF, delta=0.1, microbatch_size=4)
    seen = Gradient()
    loader = DataLoader(range(N), batch_size=N, collate_fn=lambda indices: take(batch, indices))
    trainer(tmp_path, used, callbacks=[seen], max_steps=1).fit(module, loader)
    assert set(seen.seen) == set(expected)
    tolerance = 2e-2 if case.half else 1e-5
    for parameter, gradient in expected.items():
        torch.testing.assert_close(seen.seen[parameter], gradient, rtol=tolerance, atol=tolerance)


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
