"""An average of the weights, as `callbacks=ema` in gep-train: released weights are public, so averaging is free."""

import pytest
import torch
from lightning.pytorch import Callback

from tests.toys import Classifier, loader, public_loader, strategy, trainer

callbacks = pytest.importorskip("lightning.pytorch.callbacks")
pytestmark = pytest.mark.skipif(not hasattr(callbacks, "EMAWeightAveraging"), reason="Lightning 2.6 and later have it")
DECAY = 0.8


class Steps(Callback):
    def __init__(self):
        self.weights = []

    def on_train_batch_end(self, trainer, module, *_):
        self.weights.append(torch.cat([p.detach().flatten() for p in module.parameters()]))


def test_the_weights_of_a_private_run_can_be_averaged(tmp_path):
    module, steps, private = Classifier(), Steps(), strategy()
    module.aux_dataloader = public_loader
    trainer(tmp_path, private, max_epochs=3, callbacks=[steps, callbacks.EMAWeightAveraging(decay=DECAY)]).fit(
        module, loader()
    )
    expected = steps.weights[0]
    for weights in steps.weights[1:]:
        expected = DECAY * expected + (1 - DECAY) * weights
    averaged = torch.cat([p.detach().flatten() for p in module.parameters()])
    torch.testing.assert_close(averaged, expected)
    assert private.privacy.steps == len(steps.weights) == 15
