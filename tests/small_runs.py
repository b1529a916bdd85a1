"""Recipes in small: a few records, public images, basis vectors and steps, in this process instead of another."""

import traceback
from types import SimpleNamespace

from lightning_gep.cli.configs import composed
from lightning_gep.cli.train import single_job
from recipes.running.settings import settings_of

SMALL = {
    "data.batch_size": 4,
    "data.aux_batch_size": 6,
    "data.reserved_test_size": 6,
    "data.network.image_size": 32,
    "aux.count": 6,
    "mechanism.k": 5,
    "mechanism.num_anchors": 6,
    "privacy.epsilon": None,
    "privacy.noise_multiplier": 1.0,
    "privacy.accountant": "rdp",
    "trainer.max_steps": 2,
    "trainer.max_epochs": 1,
    "trainer.log_every_n_steps": 1,
    "trainer.accelerator": "cpu",
}


def small(run, **changes):
    """The overrides that make a run small: of those above the ones that it has."""
    settings = settings_of(run)
    validation = {"data.validation_size": 5} if settings["data"]["validation_size"] else {}
    asked = {**SMALL, **validation, **changes}
    return [
        f"{key}={'null' if value is None else value}" for key, value in asked.items() if _has(settings, key.split("."))
    ]


def _has(settings, path):
    return path[0] in settings and (len(path) == 1 or _has(settings[path[0]], path[1:]))


def start_here(arguments, log):
    """As recipes.running.runner.start does, without waiting for Lightning to be imported once more."""
    overrides = [word for word in arguments if not word.startswith("hydra.run.dir=")]
    code = 0
    try:
        single_job(composed(overrides, log.parent), [])
    except SystemExit as end:
        code = end.code
    except Exception:
        log.write_text(traceback.format_exc())
        code = 1
    return SimpleNamespace(poll=lambda: code)
