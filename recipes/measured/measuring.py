"""The measurements behind three figures of the paper, at a few steps of one training.

All figures are drawn from one file, `measured_<data>.json`; once it is there, nothing is measured again. Bases are
found by the paper's cold start at the current weights, whatever subspace the training used. No ε covers any of it.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig

from benchmarks.machine import description
from lightning_gep.arguments import positive_integer
from lightning_gep.cli.configs import composed
from lightning_gep.privacy.files import now, read_json, write_json
from lightning_gep.privacy.release import Part, Release
from recipes.measured.batch import ByGroup, of_gradients, of_projection
from recipes.measured.gradients import PUBLIC, RANDOM, MeasuredGradients
from recipes.measured.nested_basis import NestedBasis, cold_start, random_basis
from recipes.measured.training import deciding_settings, experiment, training, weights_after

EPOCHS = 2
SOURCES = (*PUBLIC, RANDOM)
NOT_COVERED = (
    "Nonprivate: computed from private records without noise, so not covered by any ε. For data that is public anyway."
)


def file_of(asked: argparse.Namespace) -> Path:
    """Where the measurements are."""
    return Path(asked.output) / f"measured_{asked.data}.json"


def measure(asked: argparse.Namespace) -> dict[str, Any]:
    """All measurements: those in the file, if it is there, or else new ones, after the training."""
    if file_of(asked).exists():
        figures: dict[str, Any] = read_json(file_of(asked))
        return figures
    config = training(asked.data, asked.overrides)
    config.data.directory = str(asked.data_directory)
    if config.threads is not None:
        torch.set_num_threads(positive_integer("threads", config.threads, "Use 1, or null for torch's own choice."))
    gradients = MeasuredGradients(config, records=asked.batch, anchors=asked.anchors)
    an_epoch = -(-gradients.num_records // config.data.batch_size)
    ks = sorted({*asked.k, config.mechanism.k})
    clip_norm = composed([f"experiment={experiment(asked.data, 'gp')}"]).mechanism.clip_norm
    steps = sorted(asked.steps or (epoch * an_epoch for epoch in range(EPOCHS + 1)))
    weights, record = weights_after(steps, config, asked.working_directory)
    measured: dict[str, Any] = {}
    for step in steps:
        gradients.use(weights[step])
        products, bases = gradients.products(), {}
        for source in SOURCES:
            start = time.perf_counter()
            found = measure_basis(gradients, products, _basis(gradients, source, step, ks), ks, release_of(config))
            bases[source] = {**found, "seconds": time.perf_counter() - start}
            print(f"step {step}, {source}: {bases[source]['seconds']:.0f} s", flush=True)
        measured[str(step)] = {"bases": bases, "gradients": of_gradients(products, clip_norm)}
    figures = {
        "what": NOT_COVERED,
        "date": now(),
        "machine": description(),
        "threads": torch.get_num_threads(),
        "settings": {
            "experiment": experiment(asked.data),
            "training": deciding_settings(config),
            "private_records": asked.batch,
            "anchors": asked.anchors,
            "k": ks,
            "gp_clip_norm": clip_norm,
            "groups": dict(zip(gradients.groups.names, gradients.groups.sizes, strict=True)),
            "training_records": gradients.num_records,
        },
        "training": {
            "started": record.started,
            "seconds": record.seconds,
            "test_accuracy": record.metrics.get("test/accuracy"),
            "privacy": record.privacy,
        },
        "steps": measured,
    }
    write_json(file_of(asked), figures)
    return figures


def release_of(config: DictConfig) -> Release:
    """The thresholds of the training, without noise."""
    mechanism = config.mechanism
    embedding, residual = Part(mechanism.clip_embedding, 0.0), Part(mechanism.clip_residual, 0.0)
    return Release(embedding, residual, mechanism.clipping)


def _basis(gradients: MeasuredGradients, source: str, step: int, ks: Sequence[int]) -> NestedBasis:
    if source == RANDOM:
        return random_basis(gradients.groups, ks, step)
    return cold_start(gradients.anchors(source, step), gradients.groups, ks, step)


def measure_basis(
    gradients: MeasuredGradients, products: ByGroup, nested: NestedBasis, ks: Sequence[int], release: Release
) -> dict[str, Any]:
    """For each way to choose a smaller basis and each k, what it misses of the private gradients."""
    groups = gradients.groups
    embeddings = torch.cat([nested.basis.embed(rows) for rows in gradients.private()])
    figures: dict[str, Any] = {}
    for way, parts in nested.turned(embeddings).items():
        for k in ks:
            chosen = zip(groups.names, parts, groups.quotas(k), strict=True)
            first = {name: part[:, :quota] for name, part, quota in chosen}
            figures.setdefault(way, {})[str(k)] = of_projection(products, first, release)
    return figures
