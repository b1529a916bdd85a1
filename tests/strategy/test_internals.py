"""The private names of Lightning and torch in use: each still does what it is used for."""

import pytest
import torch
from lightning.pytorch import LightningDataModule

from lightning_gep.strategy import internals
from tests.toys import Classifier, loader, strategy, trainer


class Spy(Classifier):
    """Asks everything during a fit."""

    def on_train_start(self):
        self.in_list = internals.train_loader_in_list(self.trainer)
        self.hook = internals.current_hook(self)
        self.doubled = internals.on_before_batch_transfer(self, [torch.ones(1)])
        self.attached = internals.attached_trainer(self) is self.trainer
        self.results = internals.logged_results(self.trainer).callback_metrics

    def training_step(self, batch, batch_idx):
        return super().training_step(batch[0] if self.in_list else batch, batch_idx)


class Data(LightningDataModule):
    def train_dataloader(self):
        return loader()

    def on_before_batch_transfer(self, batch, dataloader_idx):
        return [2 * part for part in batch] if len(batch) == 1 else batch


@pytest.mark.parametrize("in_list", [False, True])
def test_what_is_asked_during_a_fit(tmp_path, in_list):
    module = Spy()
    module.in_list = in_list
    fit = trainer(tmp_path, strategy(mechanism="gp"), max_steps=1)
    fit.fit(module, [loader()] if in_list else Data())
    assert module.in_list == in_list
    assert module.hook == "on_train_start"
    assert module.attached
    assert module.results == {}
    assert float(module.doubled[0]) == (1.0 if in_list else 2.0), "the hook of the datamodule is found"


def test_outside_a_fit_there_is_no_trainer_and_no_hook():
    assert internals.attached_trainer(Classifier()) is None
    assert internals.current_hook(Classifier()) is None


def test_hooks_on_gradients_are_found():
    module = Classifier()
    assert internals.parts_with_gradient_hooks(module) == []
    module.hidden.weight.register_hook(lambda gradient: None)
    module.out.register_full_backward_hook(lambda *_: None)
    module.register_full_backward_pre_hook(lambda *_: None)
    assert internals.parts_with_gradient_hooks(module) == ["hidden.weight", "out", "the module"]


def test_the_launchers_override_what_lightning_calls():
    """They are run by the tests of two processes; this says first what a new release of Lightning has renamed."""
    for launcher, names in (
        (internals.ScriptLauncher, ("_call_children_scripts", "_check_can_spawn_children")),
        (internals.ForkLauncher, ("get_extra_results", "update_main_process_results")),
    ):
        assert all(hasattr(launcher.__base__, name) for name in names)
