"""One process or several: how they start, and how they talk to each other."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.overrides.distributed import UnrepeatedDistributedSampler
from lightning.pytorch.strategies import DDPStrategy, Strategy
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor
from torch.utils.data import DataLoader
from typing_extensions import override

from lightning_gep.arguments import quoted
from lightning_gep.errors import ConfigurationError, ProcessLostError
from lightning_gep.privacy.card.software import PACKAGES, version_of
from lightning_gep.strategy.internals import (
    ForkLauncher,
    ScriptLauncher,
    current_hook,
    divides_evaluation,
    in_a_notebook,
    ordinary_batches,
    with_sampler,
)
from lightning_gep.strategy.logs import EVALUATION

T = TypeVar("T")
CONFIG_FLAGS = ("--config-path", "-cp", "--config-name", "-cn", "--config-dir", "-cd")


@dataclass(frozen=True)
class Processes:
    """The place of this process among those of a run, and the way to reach the others."""

    rank: int
    world_size: int
    broadcast: Callable[[Any], Any]
    """The first process' object, in every process."""
    gather: Callable[[Any], list[Any]]
    """The objects of all processes, in every process."""

    @property
    def is_first(self) -> bool:
        """Whether this is the process that draws noise and writes files."""
        return self.rank == 0

    def check_alike(self, facts: Mapping[str, Any]) -> None:
        """Raises ConfigurationError in all processes if one of them has other settings, data, modules or versions."""
        first, *others = self.gather({name: str(value) for name, value in facts.items()})
        for rank, other in enumerate(others, 1):
            names = [name for name in {**first, **other} if first.get(name) != other.get(name)]
            differ = [f"{name} is {other.get(name)}, not {first.get(name)}" for name in names]
            if differ:
                raise ConfigurationError(
                    f"Process {rank} differs from process 0: {'; '.join(differ)}. Start all processes with the same "
                    "configuration, data and package versions."
                )


@contextmanager
def in_contact(rank: int) -> Iterator[None]:
    """What a lost process looks like to torch, as a ProcessLostError."""
    try:
        yield
    except RuntimeError as error:  # torch's errors of connections are of this type
        raise ProcessLostError(
            f"Process {rank} has lost contact with another process, which has failed, was killed, or did not answer in "
            "time (GEPStrategy(timeout=...)); the cause is in that process' output. All releases so far are in the "
            f"ledger: resume from the last checkpoint, and ε goes on from there. ({str(error).partition(chr(10))[0]})"
        ) from error


def _of_ddp(name: str, doc: str) -> Any:
    """A property that the trainer reads and sets, kept by the DDP strategy."""
    return property(lambda self: getattr(self._ddp, name), lambda self, value: setattr(self._ddp, name, value), doc=doc)


class ProcessStrategy(Strategy):
    """Places the module on its device and connects the processes; gradients are not exchanged here.

    A `DDPStrategy` makes the connections. It is a part and not the parent: Lightning refuses its subclasses in
    notebooks and on Apple's accelerator even for a single device, and it would average gradients that are not private.
    Validation, test and prediction data are divided over the processes: see `divided`.
    """

    child_command: Sequence[str] | None = None
    """What Python runs in child processes; None: the program of this process."""

    parallel_devices: Any = _of_ddp("parallel_devices", "The devices of this node.")
    cluster_environment: Any = _of_ddp("cluster_environment", "How the processes find each other.")
    num_nodes: Any = _of_ddp("num_nodes", "Number of machines.")
    num_processes: Any = _of_ddp("num_processes", "Number of processes on this node.")
    node_rank: Any = _of_ddp("node_rank", "Index of this node.")

    def __init__(self, start_method: str = "popen", timeout: float = 1800.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._start_method = start_method
        self._ddp = DDPStrategy(start_method="popen", timeout=timedelta(seconds=timeout))

    @property
    def world_size(self) -> int:
        """Total number of processes."""
        return max(1, self.num_nodes * self.num_processes)

    @property
    def global_rank(self) -> int:
        """Index of this process among all."""
        return self._ddp.global_rank if self.world_size > 1 else 0

    @property
    def local_rank(self) -> int:
        """Index of this process on its node."""
        return self._ddp.local_rank if self.world_size > 1 else 0

    @property
    def processes(self) -> Processes:
        """What others need to know about the processes of this run."""
        return Processes(self.global_rank, self.world_size, self.broadcast, self._gather)

    @property
    def is_distributed(self) -> bool:
        """Whether Lightning averages over processes what a hook logs with `sync_dist=True`: in evaluation only."""
        module = self.lightning_module
        return self.world_size > 1 and module is not None and (current_hook(module) or "").startswith(EVALUATION)

    def divided(self, loader: object, trainer: Trainer) -> object:
        """The loader of this process' share of the records to evaluate: each record is in one share.

        Shares, and so numbers of batches, differ by at most one; Lightning's own sampler would repeat records instead.
        Every process evaluates all records where one would have no batch, and so never meet the others to add up their
        metrics; with a sampler of the user, which may give every process another order; and on request.
        """
        batches = ordinary_batches(loader) if divides_evaluation(trainer) else None
        if self.world_size == 1 or batches is None or not isinstance(loader, DataLoader):
            return loader
        data: Any = loader.dataset
        if len(data) // self.world_size < (batches.batch_size if batches.drop_last else 1):
            return loader
        share = UnrepeatedDistributedSampler(data, self.world_size, self.global_rank, shuffle=False)
        return with_sampler(loader, share, trainer)

    @property
    @override
    def is_global_zero(self) -> bool:
        return self.global_rank == 0

    @property
    @override
    def root_device(self) -> torch.device:
        return self.parallel_devices[self.local_rank] if self.parallel_devices else torch.device("cpu")

    def set_world_ranks(self) -> None:
        """Tell the environment and the loggers which process this is."""
        if self.world_size > 1:
            self._ddp.set_world_ranks()
        else:
            rank_zero_only.rank = 0  # type: ignore[attr-defined]

    @override
    def _configure_launcher(self) -> None:
        if self.world_size == 1:
            return
        if self._start_method == "popen":
            if in_a_notebook():
                # Lightning would recommend strategy="ddp_notebook", which has no privacy.
                raise ConfigurationError(
                    f"In a notebook a script cannot be started again on {self.world_size} devices. Use "
                    "GEPStrategy(..., start_method='fork') before anything has used a GPU, or Trainer(devices=1).",
                    setting="start_method",
                )
            self._launcher = ScriptLauncher(
                self.cluster_environment,
                self.num_processes,
                self.num_nodes,
                lambda: child_command(self.child_command),
            )
        else:
            self._launcher = ForkLauncher(self, start_method=self._start_method)  # type: ignore[arg-type]

    @override
    def setup_environment(self) -> None:
        super().setup_environment()
        if self.world_size > 1:
            self._ddp.setup_distributed()

    def wait_for_children(self, seconds: float = 60.0) -> None:
        """Return when the processes that were started for this run have ended."""
        for child in self._launcher.procs if isinstance(self._launcher, ScriptLauncher) else ():
            child.wait(seconds)

    @override
    def model_to_device(self) -> None:
        """All processes start with the weights of the first: without a seed each has initialized its own."""
        assert self.model is not None
        self.model.to(self.root_device)
        if self.world_size > 1:
            tensors = {f"the module's {name}": (*t.shape, t.dtype) for name, t in self.model.state_dict().items()}
            self.processes.check_alike({**{name: version_of(name) for name in PACKAGES}, **tensors})
            for tensor in (*self.model.parameters(), *self.model.buffers()):
                # As bytes: not every communication backend knows every number type.
                values = tensor.detach().reshape(-1).clone()
                with in_contact(self.global_rank):
                    torch.distributed.broadcast(values.view(torch.uint8), src=0)
                tensor.data.copy_(values.view(tensor.shape))

    # With one process each of these returns what it is given.

    @override
    def barrier(self, name: str | None = None) -> None:
        with in_contact(self.global_rank):
            self._ddp.barrier(name)

    @override
    def broadcast(self, obj: T, src: int = 0) -> T:
        with in_contact(self.global_rank):
            return self._ddp.broadcast(obj, src)

    def _gather(self, obj: T) -> list[T]:
        found: list[Any] = [obj] * self.world_size
        if self.world_size > 1:
            with in_contact(self.global_rank):
                torch.distributed.all_gather_object(found, obj)
        return found

    @override
    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        if isinstance(tensor, Tensor) and not tensor.is_floating_point():
            tensor = tensor.double()  # the mean of 4 and 3 records would be 3
        with in_contact(self.global_rank):
            return self._ddp.reduce(tensor, group, reduce_op)

    @override
    def all_gather(self, tensor: Tensor, group: Any = None, sync_grads: bool = False) -> Tensor:
        with in_contact(self.global_rank):
            return self._ddp.all_gather(tensor, group, sync_grads)

    @override
    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        with in_contact(self.global_rank):
            return self._ddp.reduce_boolean_decision(decision, all) if self.world_size > 1 else decision

    @override
    def teardown(self) -> None:
        if self.cluster_environment is not None:
            self.cluster_environment.teardown()
        super().teardown()


def child_command(program: Sequence[str] | None = None) -> tuple[list[str], str | None]:
    """The command that starts a child process, and the directory to start it in (None: the current one).

    `program` is what Python runs; by default, the program of this process. A child of a Hydra job gets the overrides of
    that job, as a single run in the job's directory. With the command line of its parent it would start the whole sweep
    again, and train at the first job's settings, privacy included, while its parent trains at another's.
    """
    command = [sys.executable, *(_this_program() if program is None else program)]
    hydra = sys.modules.get("hydra.core.hydra_config")  # a job of Hydra has imported it; nobody else needs it
    if hydra is None or not hydra.HydraConfig.initialized():
        return [*command, *sys.argv[1:]], None
    job = hydra.HydraConfig.get()
    settings = {
        "hydra.mode": "RUN",
        "hydra.run.dir": quoted(job.runtime.output_dir),
        "hydra.output_subdir": "null",  # the parent has written the job's configuration
        "hydra.job.name": f"{job.job.name}_child",
    }
    overrides = [*job.overrides.task, *(f"{key}={value}" for key, value in settings.items())]
    return [*command, *config_flags(sys.argv[1:]), *overrides], job.runtime.cwd


def _this_program() -> list[str]:
    import __main__

    spec = __main__.__spec__
    return [str(Path(sys.argv[0]).resolve())] if spec is None else ["-m", spec.name]


def config_flags(arguments: Sequence[str]) -> list[str]:
    """The flags of a Hydra command line that locate configuration files."""
    found = []
    for i, argument in enumerate(arguments):
        if argument in CONFIG_FLAGS:
            found += [argument, *arguments[i + 1 : i + 2]]
        elif argument.startswith(tuple(f"{flag}=" for flag in CONFIG_FLAGS)):
            found.append(argument)
    return found
