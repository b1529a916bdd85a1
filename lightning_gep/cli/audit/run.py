"""gep-audit from its parsed options to what it prints and writes."""

from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from hydra.utils import instantiate
from lightning.pytorch import seed_everything
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.progress import Progress
from rich.text import Text

from lightning_gep.audit import Finding, Subject, audit
from lightning_gep.audit.replay import run_replay
from lightning_gep.cli.audit.output import findings_tables, verdict
from lightning_gep.cli.failures import one_line_errors
from lightning_gep.cli.plan.inputs import composed_runs, strategy_arguments, words
from lightning_gep.privacy.files import write_json
from lightning_gep.strategy.public_data import find_public_loader

LENGTH = ("max_epochs", "max_steps", "limit_train_batches", "accelerator", "precision")
"""Settings of the trainer that an audit takes over; the rest is about logs and checkpoints."""


def run(options: Namespace) -> bool:
    """Audit every combination, write the files asked for, and print; returns whether a bound exceeds its claim."""
    console, found = Console(), list[Finding]()
    runs = composed_runs(options.overrides)
    if options.replay is not None:
        held = [_replay(config, labels, options.replay, console) for config, labels in runs]
        return not all(held)
    confidence = 1 - (1 - options.confidence) / len(runs)
    with _progress() as report:
        for number, (config, labels) in enumerate(runs, 1):
            with one_line_errors(words(labels), config):
                found += audit(
                    subject_of(config),
                    parts=options.parts,
                    confidence=confidence,
                    accuracy=options.accuracy,
                    canaries=options.canaries,
                    runs=options.runs,
                    progress=partial(report, f"[{number}/{len(runs)}] "),
                )
    console.print(findings_tables(found))
    console.print(Text(verdict(found, options.confidence)))
    if options.json is not None:
        content = {"format": 1, "confidence": options.confidence, "findings": [each.to_state() for each in found]}
        write_json(options.json, content)
    if options.html is not None:
        from lightning_gep.cli.audit.page import write_page  # needs the [report] extra

        write_page(options.html, found, options.confidence)
    for path in filter(None, (options.html, options.json)):
        console.print(Text(f"Written: {path}"))
    return any(each.exceeded for each in found)


def _replay(config: DictConfig, labels: Mapping[str, str], replays: int, console: Console) -> bool:
    """Whether nothing moved by more than its declared sensitivity."""
    with one_line_errors(words(labels), config):
        subject = subject_of(config)
        public = find_public_loader(None, subject.datamodule, subject.module)
        report = run_replay(subject.module, public, replays=replays, **subject.settings)
    console.print(Text("\n".join(filter(None, (words(labels), str(report))))))
    return report.held


def subject_of(config: DictConfig) -> Subject:
    """Module, data and settings as gep-train builds them."""
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    seed_everything(config.seed, verbose=False)
    datamodule, module = instantiate(config.data), instantiate(config.model)
    datamodule.prepare_data()
    datamodule.setup("fit")
    given: Any = OmegaConf.to_container(config.trainer, resolve=True)
    trainer = {name: given[name] for name in LENGTH if name in given}
    return Subject(module, datamodule.train_dataloader(), strategy_arguments(config), trainer, datamodule)


@contextmanager
def _progress() -> Iterator[Callable[[str, str, float], None]]:
    """A bar on stderr; without a terminal, what it says at the end."""
    console = Console(stderr=True)
    with Progress(console=console, transient=console.is_terminal) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda before, what, share: bar.update(task, description=before + what, completed=share)
