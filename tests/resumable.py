"""A small run with a checkpoint at every step."""

import base64

import numpy as np
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from lightning_gep.strategy import fit
from tests.toys import Classifier, loader, trainer

STEPS = 8


def module():
    def step(optimizer):
        return {"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 3), "interval": "step"}

    return Classifier(lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9), step)


def every_step(directory, **settings):
    return ModelCheckpoint(directory, "{step}", save_top_k=-1, every_n_train_steps=1, **settings)


def run(directory, using, steps=STEPS, checkpoint=None, callbacks=(), batch_size=12, **settings):
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
    fit.fit(trained, loader(batch_size), ckpt_path=checkpoint)
    return trained, fit


def encodings(secret):
    raw = secret.reveal()
    yield from (
        raw,
        raw[::-1],
        raw.hex().encode(),
        base64.b64encode(raw)[:40],
        str(int.from_bytes(raw, "little")).encode(),
    )
    yield str(list(raw)).encode()
    yield np.frombuffer(raw, np.uint8).astype(np.int64).tobytes()
    for step in range(4):
        key = secret.key("poisson", step)
        yield from (key.to_bytes(16, "little"), str(key).encode(), f"{key:x}".encode())


def found_in(directory, secret):
    contents = b"\0".join(path.read_bytes() for path in directory.rglob("*") if path.is_file())
    return [encoding for encoding in encodings(secret) if encoding in contents]


def watched_secrets(monkeypatch):
    """A list that gets every sampling secret a fit makes."""
    seen = []

    class Watched(fit.Secret):
        def __init__(self, value=None):
            super().__init__(value)
            seen.append(self)

    monkeypatch.setattr(fit, "Secret", Watched)
    return seen
