"""Slurm's signal to save and requeue a run is answered between two steps."""

import signal
from collections.abc import Callable
from typing import Any

from lightning.pytorch.plugins.environments import SLURMEnvironment  # type: ignore[attr-defined]

from lightning_gep.gradients.snapshot import package


class RequeueSignal:
    """Takes the signal in the place of Lightning's handler, which saves a checkpoint wherever the process is.

    Inside training_step that would be a checkpoint with what private records have left in the module, and processes
    that are not at the same step would wait for each other forever. A handler of the user stays where it is.
    """

    def __init__(self, environment: object) -> None:
        self._handler: Any = None
        self._number, self._arrived = 0, False
        if isinstance(environment, SLURMEnvironment) and environment.auto_requeue:
            self._number = environment.requeue_signal or 0
            handler = signal.getsignal(self._number)
            if package(type(handler)) == "lightning":
                self._handler = handler
                signal.signal(self._number, self._note)  # Lightning restores what was there before the fit

    def _note(self, *_: object) -> None:
        self._arrived = True

    def answer(self, in_any_process: Callable[[bool], bool]) -> None:
        """Save and requeue, in all processes, if the signal has reached one of them."""
        if self._handler is not None and in_any_process(self._arrived):
            self._arrived = False
            self._handler(self._number, None)
