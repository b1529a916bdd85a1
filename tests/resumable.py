"""A small run with a checkpoint at every step."""

import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from tests.toys import Classifier, loader, trainer

STEPS = 8


def module():
    def step(optimizer):
        return {"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 3), "interval": "step"}

    return Classifier(lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9), step)


def every_step(directory, **settings):
    return ModelCheckpoint(directory, "{step}", save_top_k=-1, every_n_train_steps=1, **settings)


def run(directory, using, steps=STEPS, checkpoint=None, callbacks=(), **settings):
    trained = module()
    enabled = any(isinstance(callback, ModelCheckpoint) for callback in callbacks)
    fit = trainer(
        directory,
        using,
        max_steps=steps,
        callbacks=list(callbacks),
        enable_checkpointing=enabled,
        max_epochs=-1,
        **settings,
    )
    fit.fit(trained, loader(), ckpt_path=checkpoint)
    return trained, fit
