"""Starting the further processes of a run."""

import io
import os
import subprocess
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.strategies.launchers import _MultiProcessingLauncher, _SubprocessScriptLauncher
from lightning.pytorch.trainer.states import TrainerFn
from typing_extensions import override

from lightning_gep.strategy.job_command import child_command

if TYPE_CHECKING:
    from lightning_gep.strategy.processes import ProcessStrategy


class JobLauncher(_SubprocessScriptLauncher):
    """Lightning's launcher, except that a child of a Hydra job runs that job and nothing else."""

    def __init__(self, strategy: "ProcessStrategy") -> None:
        super().__init__(strategy.cluster_environment, strategy.num_processes, strategy.num_nodes)
        self.strategy = strategy

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
        command, directory = child_command(self.strategy.child_command)
        self.procs = [
            subprocess.Popen(command, env={**os.environ, "LOCAL_RANK": str(rank)}, cwd=directory)
            for rank in range(1, self.num_processes)
        ]


class ForkLauncher(_MultiProcessingLauncher):
    """Lightning's launcher, except that with the weights what they have cost comes back from the first process."""

    def __init__(self, strategy: "ProcessStrategy", start_method: str) -> None:
        super().__init__(strategy, start_method=start_method)  # type: ignore[arg-type]
        self.strategy = strategy

    @override
    def get_extra_results(self, trainer: Trainer) -> dict[str, Any]:
        fits = trainer.state.fn == TrainerFn.FITTING  # from anything else no weights come back
        state = io.BytesIO()  # tensors would be shared with a process that ends
        torch.save(self.strategy.state_of_weights() if fits else None, state)
        return {**super().get_extra_results(trainer), "state_of_weights": state.getvalue()}

    @override
    def update_main_process_results(self, trainer: Trainer, extra: dict[str, Any]) -> None:
        super().update_main_process_results(trainer, extra)
        state = io.BytesIO(extra["state_of_weights"])
        self.strategy.take_back(torch.load(state, map_location="cpu", weights_only=True))
