"""Starting the further processes of a run."""

import os
import subprocess
from typing import TYPE_CHECKING

from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher
from typing_extensions import override

from lightning_gep.job_command import child_command

if TYPE_CHECKING:
    from lightning_gep.processes import ProcessStrategy


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
