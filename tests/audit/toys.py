"""What the tests audit: a small classifier on random records."""

from lightning_gep.audit import Subject
from tests.toys import Classifier, loader, public_loader

MECHANISMS = ("gep", "bgep", "gp", "spectral")


def subject(mechanism="gp", module=None, train_loader=None, trainer=None, datamodule=None, **settings):
    defaults = {"epsilon": 8.0, "delta": 1e-5, "k": 20, "clip_embedding": 3.0, "clip_residual": 0.5, "num_anchors": 40}
    if mechanism != "gp":
        settings.setdefault("aux_dataloader", public_loader())
    return Subject(
        module or Classifier(),
        train_loader or loader(),
        {**defaults, "mechanism": mechanism, **settings},
        {"max_epochs": 4, "accelerator": "cpu", **(trainer or {})},
        datamodule,
    )
