"""A Lightning strategy base for one process or several, without the wrapper that averages raw gradients."""

from typing import Any, TypeVar

import torch
from lightning.pytorch.strategies import DDPStrategy, Strategy
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor
from typing_extensions import override

from lightning_gep.strategy.child_processes import ForkLauncher, JobLauncher

T = TypeVar("T")


class ProcessStrategy(Strategy):
    """Places the module on its device and connects the processes; what is exchanged is the subclass' business.

    DDPStrategy does the connecting, as a part and not as a parent: a strategy that *is* one is refused by Lightning in
    notebooks and on Apple's accelerator even for a single device, and it would average gradients that are not private.
    Validation, test and prediction data are not divided: every process evaluates all of it, no record twice.
    """

    def __init__(self, start_method: str = "popen", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._start_method = start_method
        self._ddp = DDPStrategy(start_method="popen")
        self.child_command: list[str] | None = None
        """What Python runs in further processes; None: the same program as in this one."""

    # What the trainer sets.

    @property
    def parallel_devices(self) -> list[torch.device] | None:
        """The devices of this node."""
        return self._ddp.parallel_devices

    @parallel_devices.setter
    def parallel_devices(self, devices: list[torch.device] | None) -> None:
        self._ddp.parallel_devices = devices

    @property
    def cluster_environment(self) -> Any:
        """How the processes find each other."""
        return self._ddp.cluster_environment

    @cluster_environment.setter
    def cluster_environment(self, environment: Any) -> None:
        self._ddp.cluster_environment = environment

    @property
    def num_nodes(self) -> int:
        """Number of machines."""
        return self._ddp.num_nodes

    @num_nodes.setter
    def num_nodes(self, num_nodes: int) -> None:
        self._ddp.num_nodes = num_nodes

    # What the trainer asks.

    @property
    def num_processes(self) -> int:
        """Processes on this node."""
        return self._ddp.num_processes

    @property
    def world_size(self) -> int:
        """Processes in all."""
        return max(1, self.num_nodes * self.num_processes)

    @property
    def global_rank(self) -> int:
        """Number of the process among all."""
        return self._ddp.global_rank if self.world_size > 1 else 0

    @property
    def local_rank(self) -> int:
        """Number of the process on its node."""
        return self._ddp.local_rank if self.world_size > 1 else 0

    @property
    def node_rank(self) -> int:
        """Number of the node."""
        return self._ddp.node_rank

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
            self._launcher = JobLauncher(self)
        else:
            self._launcher = ForkLauncher(self, self._start_method)

    def state_of_weights(self) -> dict[str, Any] | None:
        """What has to stay with the weights, wherever they go: what they have cost; None if that is nothing."""
        return None

    def take_back(self, state: dict[str, Any] | None) -> None:
        """The weights, with this state, have come back from processes that were started for a fit."""

    @override
    def setup_environment(self) -> None:
        super().setup_environment()
        if self.world_size > 1:
            self._ddp.setup_distributed()

    def wait_for_children(self, seconds: float = 60.0) -> None:
        """Return when the processes that were started for this run have ended."""
        for child in self._launcher.procs if isinstance(self._launcher, JobLauncher) else ():
            child.wait(seconds)

    @override
    def model_to_device(self) -> None:
        """All processes begin with the weights of the first: without a seed each has made its own."""
        assert self.model is not None
        self.model.to(self.root_device)
        if self.world_size > 1:
            for tensor in (*self.model.parameters(), *self.model.buffers()):
                # As bytes: not every way to communicate knows every type of number.
                values = tensor.detach().reshape(-1).clone()
                torch.distributed.broadcast(values.view(torch.uint8), src=0)
                tensor.data.copy_(values.view(tensor.shape))

    # Between processes; with one process each of these does nothing.

    @override
    def barrier(self, name: str | None = None) -> None:
        self._ddp.barrier(name)

    @override
    def broadcast(self, obj: T, src: int = 0) -> T:
        return self._ddp.broadcast(obj, src)

    @override
    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        return self._ddp.reduce(tensor, group, reduce_op)

    @override
    def all_gather(self, tensor: Tensor, group: Any = None, sync_grads: bool = False) -> Tensor:
        return self._ddp.all_gather(tensor, group, sync_grads)

    @override
    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        return self._ddp.reduce_boolean_decision(decision, all) if self.world_size > 1 else decision

    @override
    def teardown(self) -> None:
        if self.cluster_environment is not None:
            self.cluster_environment.teardown()
        super().teardown()
