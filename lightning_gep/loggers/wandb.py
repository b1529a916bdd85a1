"""Logging to Weights & Biases: one run per job, and nothing in it that ε does not cover."""

import inspect
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger, WandbLogger
from lightning.pytorch.utilities import rank_zero_only
from torch import nn
from typing_extensions import override

from lightning_gep.errors import ConfigurationError, missing_extra
from lightning_gep.loggers.epoch_rows import EpochRows
from lightning_gep.privacy.files import CARD_FILE, CARD_PAGE, RUN_FILE, SWEEP_FILE, read_json

ID_FILE = Path("wandb") / "run_id.txt"
QUIET = {
    "console": "off",
    "save_code": False,
    "disable_code": True,
    "disable_git": True,
    "disable_job_creation": True,
    "x_disable_stats": True,
    "x_disable_meta": True,
    "x_disable_machine_info": True,
    "x_save_requirements": False,  # the privacy card lists the versions that matter
    "host": "",
}
"""Settings under which W&B receives only what is logged."""


def wandb_package() -> Any:
    """The wandb package, imported only when a run needs it. Raises ConfigurationError if it is not installed."""
    try:
        import wandb
    except ImportError:
        raise missing_extra("wandb", "Logging to W&B (logger=wandb)") from None
    return wandb


class PrivateWandbLogger(EpochRows, WandbLogger):
    """Lightning's WandbLogger for private runs.

    By default W&B collects more than what is logged. This logger turns off: console output; code and git state; system
    metrics, because the machine's load between two steps reveals how many records were sampled (`PerformanceMonitor`
    logs epoch means instead); host name, user and command line. Rows are sent once per epoch (see `EpochRows`).

    A job that is resumed continues its W&B run: the run's id is kept in `save_dir/wandb/run_id.txt`. Raises
    ConfigurationError if wandb is not installed or, when the run starts, if another W&B run is in progress.

    Args:
        save_dir: The directory of the job. W&B's files go to `save_dir/wandb`.
        offline: True and False force the mode. None means online if wandb is logged in, unless `WANDB_MODE` is set.
        **arguments: Passed to `wandb.init`: `project`, `entity`, `job_type`, `tags`, …; `name` is by default the job's
            name in `run.json` or the directory's, `group` the name of the sweep that the directory belongs to.

    """

    def __init__(
        self,
        save_dir: str | os.PathLike[str],
        *,
        project: str = "lightning-gep",
        offline: bool | None = None,
        **arguments: Any,
    ) -> None:
        wandb_package()
        self._directory, self._asked_offline = Path(save_dir), offline
        super().__init__(save_dir=self._directory, project=project, **arguments)

    @property
    @override
    def experiment(self) -> Any:
        """The W&B run, started on first use, on the first process only."""
        if self._experiment is None and getattr(self, "_attach_id", None) is None:
            self._prepare()
        return super().experiment

    @rank_zero_only
    def _prepare(self) -> None:
        """Decide what is known only when the run starts: its names, its id, its mode."""
        running = wandb_package().run
        if running is not None:
            # Lightning would continue that run, which has another job's values or captures the console.
            raise ConfigurationError(
                f"A W&B run (id {running.id}) is in progress. Every job needs a run of its own: call wandb.finish() "
                "before this one, or finish_runs(loggers) after a job."
            )
        directory = self._directory
        self._id = self._wandb_init["id"] = self._id or _kept_id(directory)
        self._name = self._wandb_init["name"] = self._name or _recorded(directory / RUN_FILE, "job") or directory.name
        self._wandb_init["group"] = self._wandb_init.get("group") or _recorded(directory.parent / SWEEP_FILE, "name")
        offline = self._asked_offline
        if offline is None and "WANDB_MODE" not in os.environ:
            offline = not logged_in()
        if offline is not None:
            # Lightning's own argument would set WANDB_MODE for all later jobs of the process.
            self._wandb_init["mode"] = "offline" if offline else "online"
        self._wandb_init.pop("anonymous", None)  # Lightning passes it on, and wandb warns that it is ignored
        self._wandb_init["settings"] = wandb_package().Settings(**QUIET)

    @override
    def watch(
        self, model: nn.Module, log: str | None = "parameters", log_freq: int = 100, log_graph: bool = False
    ) -> None:
        """Log a model's weights. Raises ConfigurationError for gradients, which are private before the noise."""
        if log not in ("parameters", None):
            raise ConfigurationError(
                f"watch(log={log!r}) would send gradients as they are before the noise. Use log='parameters'."
            )
        super().watch(model, log=log, log_freq=log_freq, log_graph=log_graph)


def finish_runs(loggers: Iterable[Logger], failed: bool = False) -> None:
    """End the W&B runs among `loggers` that have started, so that the next job of the process can start its own."""
    for logger in _of_wandb(loggers):
        if isinstance(logger, EpochRows):
            logger.send_rows()
        run, logger._experiment = logger._experiment, None
        if run is not None:
            run.finish(exit_code=int(failed))


@rank_zero_only
def log_outcome(
    loggers: Iterable[Logger],
    privacy: Mapping[str, Any],
    card_directory: str | os.PathLike[str] | None = None,
    **values: float | None,
) -> None:
    """Write the outcome of a job to the W&B runs among `loggers`: a summary, and the privacy card as an artifact.

    `privacy` is the report of the privacy account: it counts every step, while logged rows may end a few steps earlier.
    It goes to the summary as `privacy/…`, and `values` that are known as they are named.
    """
    summary = {**{f"privacy/{name}": value for name, value in privacy.items()}, **values}
    summary["privacy/private"] = float(privacy["private"])  # a number, as in the rows
    for logger in _of_wandb(loggers):
        if isinstance(logger, EpochRows):
            logger.send_rows()  # sent later, they would replace these values
        logger.experiment.summary.update({name: value for name, value in summary.items() if value is not None})
        if card_directory is not None and (Path(card_directory) / CARD_FILE).is_file():
            artifact = wandb_package().Artifact(f"privacy-card-{logger.experiment.id}", type="privacy-card")
            for name in (CARD_FILE, CARD_PAGE):
                artifact.add_file(str(Path(card_directory) / name))
            logger.experiment.log_artifact(artifact)


def logged_in() -> bool:
    """Whether wandb has an API key or an identity; never prompts, and without one does not use the network."""
    wandb = wandb_package()
    if "prompt" in inspect.signature(wandb.login).parameters:
        return bool(wandb.login(prompt=False, verify=False))
    return bool(wandb.api.api_key)  # older versions, whose login always prompts


def _of_wandb(loggers: Iterable[Logger]) -> Iterator[WandbLogger]:
    return (logger for logger in loggers if isinstance(logger, WandbLogger))


def _recorded(path: Path, key: str) -> str | None:
    """A name in the record of a job or sweep, if there is one."""
    return read_json(path).get(key) or None if path.exists() else None


def _kept_id(directory: Path) -> str:
    """The id of the directory's run: drawn once and kept, even if the directory is moved."""
    path = directory / ID_FILE
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(secrets.token_hex(4) + "\n")
    return path.read_text().strip()
