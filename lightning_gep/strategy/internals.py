"""The private names of Lightning and torch that this package uses, all of them, and why.

A release of Lightning or torch that renames one breaks its test in tests/strategy/test_internals.py, and a fit raises
AttributeError before the first release; none of them can fail silently into a weaker guarantee.
"""

import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.overrides.distributed import _IndexBatchSamplerWrapper
from lightning.pytorch.strategies.launchers import _MultiProcessingLauncher, _SubprocessScriptLauncher
from lightning.pytorch.trainer.connectors import accelerator_connector
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.data import _update_dataloader
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler
from typing_extensions import override

TRANSFER_HOOK = "_on_before_batch_transfer"


def on_before_batch_transfer(module: LightningModule, batch: Any, dataloader_idx: int = 0) -> Any:
    """The batch after the user's hook of this name.

    The public hook of the module would miss the one of a datamodule; Lightning's private method finds both.
    """
    return LightningModule._on_before_batch_transfer(module, batch, dataloader_idx)


def source_of_training_data(trainer: Trainer) -> Any:
    """What was passed to `fit`: loaders in any structure, or else the datamodule or module that has them.

    Lightning keeps it only here; `trainer.train_dataloader` is what it made of it.
    """
    return trainer.fit_loop._data_source.instance


def train_loader_in_list(trainer: Trainer) -> bool:
    """Whether the train loader was passed to `fit` in a list of one, so that its batches come in such a list, too."""
    given = source_of_training_data(trainer)
    return isinstance(given, list | tuple) and len(given) == 1


def divides_evaluation(trainer: Trainer) -> bool:
    """Whether the user leaves `Trainer(use_distributed_sampler=True)`. Lightning keeps it only here."""
    return trainer._accelerator_connector.use_distributed_sampler


def ordinary_batches(loader: Any) -> BatchSampler | None:
    """How a loader makes its batches, if it does so from all records; also where Lightning notes their indices."""
    batches = getattr(loader, "batch_sampler", None)
    batches = batches._batch_sampler if isinstance(batches, _IndexBatchSamplerWrapper) else batches
    if type(batches) is not BatchSampler or type(batches.sampler) not in (SequentialSampler, RandomSampler):
        return None
    return batches


def with_sampler(loader: DataLoader[Any], sampler: Any, trainer: Trainer) -> object:
    """The same loader, of the user's type, with another sampler. Lightning has the only function that makes one."""
    if isinstance(loader.batch_sampler, _IndexBatchSamplerWrapper):  # which that function takes for the user's
        loader.batch_sampler._batch_sampler.sampler = sampler  # type: ignore[attr-defined]
        return loader
    return _update_dataloader(loader, sampler, mode=trainer.state.stage)


def attached_trainer(module: LightningModule) -> Any:
    """The trainer of a module, or None. The public `module.trainer` raises where there is none."""
    return module._trainer


def current_hook(module: LightningModule) -> str | None:
    """The name of the hook that Lightning is running, which tells training from validation. No public name has it."""
    return module._current_fx_name


def logged_results(trainer: Trainer) -> object:
    """What holds the values logged so far, which training_step can reach through `self.trainer`."""
    return trainer._logger_connector


def parts_with_gradient_hooks(module: nn.Module) -> list[str]:
    """Names of parameters and submodules with hooks that see gradients. torch has no public list of hooks."""
    hooked = [name for name, p in module.named_parameters() if p._backward_hooks]
    hooked += [name or "the module" for name, part in module.named_modules() if part._backward_hooks]
    return hooked + [name or "the module" for name, part in module.named_modules() if part._backward_pre_hooks]


def in_a_notebook() -> bool:
    """Whether Lightning takes this process for an interactive one, in which it refuses to start scripts."""
    return bool(accelerator_connector._IS_INTERACTIVE)  # type: ignore[attr-defined]


class ScriptLauncher(_SubprocessScriptLauncher):
    """Lightning's launcher of child processes, running the given command instead of Lightning's own.

    In a job of a Hydra sweep Lightning's command would start the whole sweep again: see `processes.child_command`.
    """

    def __init__(self, environment: Any, num_processes: int, num_nodes: int, command: Callable[[], Any]) -> None:
        super().__init__(environment, num_processes, num_nodes)
        self.command = command

    @override
    def _call_children_scripts(self) -> None:
        self._check_can_spawn_children()
        environment = self.cluster_environment
        os.environ.update(
            MASTER_ADDR=environment.main_address,
            MASTER_PORT=str(environment.main_port),
            NODE_RANK=str(environment.node_rank()),
            LOCAL_RANK=str(environment.local_rank()),
            WORLD_SIZE=str(self.num_processes * self.num_nodes),
        )
        command, directory = self.command()
        self.procs = [
            subprocess.Popen(command, env={**os.environ, "LOCAL_RANK": str(rank)}, cwd=directory)
            for rank in range(1, self.num_processes)
        ]


class ForkLauncher(_MultiProcessingLauncher):
    """Lightning's launcher for notebooks; the privacy state comes back from the first process with the weights."""

    @override
    def get_extra_results(self, trainer: Trainer) -> dict[str, Any]:
        strategy: Any = trainer.strategy
        fits = trainer.state.fn == TrainerFn.FITTING  # nothing else returns weights
        # By a file: the pipe to the main process, which reads it when all have ended, holds 64 kB and then blocks.
        handle, path = tempfile.mkstemp(suffix=".pt")
        with os.fdopen(handle, "wb") as file:
            torch.save(strategy.state_of_weights() if fits else None, file)
        return {**super().get_extra_results(trainer), "state_of_weights": path}

    @override
    def update_main_process_results(self, trainer: Trainer, extra: dict[str, Any]) -> None:
        super().update_main_process_results(trainer, extra)
        strategy: Any = trainer.strategy
        path = Path(extra["state_of_weights"])
        strategy.take_back(torch.load(path, map_location="cpu", weights_only=True))
        path.unlink()
