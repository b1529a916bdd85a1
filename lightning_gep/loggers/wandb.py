"""Logging to Weights & Biases: every job a run of its own, and in it nothing that ε does not cover."""

import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import wandb
from lightning.pytorch.loggers import Logger, WandbLogger
from lightning.pytorch.utilities import rank_zero_info, rank_zero_only
from torch import nn
from typing_extensions import override

from lightning_gep.errors import ConfigurationError
from lightning_gep.loggers.epoch_rows import EpochRows
from lightning_gep.loggers.wandb_login import logged_in
from lightning_gep.privacy.files import CARD_FILE, CARD_PAGE
from lightning_gep.reporting.records import RunRecord, SweepRecord

ID_FILE = Path("wandb") / "run_id.txt"


class PrivateWandbLogger(EpochRows, WandbLogger):
    """Lightning's WandbLogger for private runs.

    W&B would send more than is logged. Off are: console output, which shows whatever a user prints; code and the
    changes in its git repository; system metrics, because the load of the machine between two steps tells how many
    records were drawn (`PerformanceMonitor` logs means instead); host, user and command line. Rows are sent an epoch
    at a time (see `EpochRows`). `watch` takes weights, which are released, and no gradients, which are not.

    `save_dir` is the job's directory: files go into its `wandb/`, and the run's id is kept there, so that a job that is
    resumed continues its run. `name` is by default the job's name, and `group` the name of the sweep that the
    directory belongs to. `tags` are by default the mechanism (`job_type`), the data set and `epsilon=…`. `offline=None`
    means: online if wandb is logged in (or as WANDB_MODE says), otherwise offline. Other arguments go to `wandb.init`.
    """

    def __init__(
        self,
        save_dir: str | os.PathLike[str],
        *,
        project: str = "lightning-gep",
        entity: str | None = None,
        name: str | None = None,
        group: str | None = None,
        job_type: str | None = None,
        tags: Sequence[str] | None = None,
        dataset: str | None = None,
        epsilon: float | None = None,
        offline: bool | None = None,
        **arguments: Any,
    ) -> None:
        directory = Path(save_dir)
        super().__init__(
            save_dir=directory,
            project=project,
            entity=entity,
            name=name,
            group=group,
            job_type=job_type,
            tags=default_tags(job_type, dataset, epsilon) if tags is None else list(tags),
            **arguments,
        )
        self._directory, self._asked_offline = directory, offline

    @property
    @override
    def experiment(self) -> Any:
        """The W&B run. It begins when it is first asked for, on the first process only."""
        if self._experiment is None and getattr(self, "_attach_id", None) is None:
            self._prepare()
            self._say_where(super().experiment)
        return super().experiment

    @rank_zero_only
    def _prepare(self) -> None:
        """Decide what is known only when the run begins: its names, its id, its mode."""
        if wandb.run is not None:
            # Lightning would go on in that run, which has another job's values, or captures the console.
            raise ConfigurationError(
                f"A W&B run (id {wandb.run.id}) is in progress. Every job is a run of its own: call wandb.finish() "
                "before this one, or finish_runs(loggers) after a job."
            )
        self._id = self._wandb_init["id"] = self._id or _kept_id(self._directory)
        self._name = self._wandb_init["name"] = self._name or job_name(self._directory)
        self._wandb_init["group"] = self._wandb_init["group"] or sweep_name(self._directory)
        offline = self._asked_offline
        if offline is None and "WANDB_MODE" not in os.environ:
            offline = not logged_in()
        if offline is not None:
            # Not Lightning's own argument, which sets WANDB_MODE for all later jobs of the process, too.
            self._wandb_init["mode"] = "offline" if offline else "online"
        self._wandb_init.pop("anonymous", None)  # Lightning passes it on, and wandb warns that it means nothing
        self._wandb_init["settings"] = quiet_settings(silent=offline is True)

    @rank_zero_only
    def _say_where(self, run: Any) -> None:
        if run.offline:
            why = "as WANDB_MODE says" if "WANDB_MODE" in os.environ else "because wandb is not logged in"
            rank_zero_info(
                f"W&B: not uploaded, {'as offline=true says' if self._asked_offline else why}. The run is in "
                f"{run.settings.sync_dir}; `wandb login` and `wandb sync {run.settings.sync_dir}` upload it."
            )

    @override
    def watch(
        self, model: nn.Module, log: str | None = "parameters", log_freq: int = 100, log_graph: bool = False
    ) -> None:
        """Log the weights of a model. Raises ConfigurationError for gradients: before the noise they are private."""
        if log not in ("parameters", None):
            raise ConfigurationError(
                f"watch(log={log!r}) would send gradients as they are before the noise. Use log='parameters'."
            )
        super().watch(model, log=log, log_freq=log_freq, log_graph=log_graph)

    @rank_zero_only
    def finish(self, exit_code: int = 0) -> None:
        """End the run, if it has begun. What is logged later continues it."""
        self.send_rows()
        if self._experiment is not None:
            self._experiment.finish(exit_code=exit_code)
            self._experiment = None


def finish_runs(loggers: Iterable[Logger], failed: bool = False) -> None:
    """End the W&B runs among `loggers`: without it the next job of the process could not begin its own."""
    for logger in loggers:
        if isinstance(logger, PrivateWandbLogger):
            logger.finish(int(failed))
        elif isinstance(logger, WandbLogger):
            wandb.finish(exit_code=int(failed))


@rank_zero_only
def log_card(loggers: Logger | Iterable[Logger], directory: str | os.PathLike[str] | None) -> None:
    """Attach the privacy card in `directory` to the W&B runs among `loggers`, as an artifact; no card, no artifact.

    Its name is `privacy-card-<run id>`, its type `privacy-card`; it holds the card as JSON and as a page.
    """
    names = (CARD_FILE, CARD_PAGE)
    files = [] if directory is None else [path for name in names if (path := Path(directory) / name).is_file()]
    for logger in [loggers] if isinstance(loggers, Logger) else loggers:
        if files and isinstance(logger, WandbLogger):
            artifact = wandb.Artifact(f"privacy-card-{logger.experiment.id}", type="privacy-card")
            for path in files:
                artifact.add_file(str(path))
            logger.experiment.log_artifact(artifact)


@rank_zero_only
def log_summary(
    loggers: Iterable[Logger],
    *,
    mechanism: str,
    privacy: Mapping[str, Any],
    test_accuracy: float | None = None,
    seconds: float | None = None,
) -> None:
    """Write the outcome of a job into the summary of its W&B run; other loggers have none.

    `privacy` is the report of the privacy account, as `privacy/…`: it counts every step, while the rows that were
    logged may end a few steps earlier. `accuracy_of/<mechanism>` is the test accuracy once more, so that a chart can
    show one mechanism.
    """
    values: dict[str, Any] = {f"privacy/{name}": value for name, value in privacy.items() if value is not None}
    values["privacy/private"] = float(privacy["private"])  # a number, as in the rows
    if test_accuracy is not None:
        values |= {"test/accuracy": test_accuracy, f"accuracy_of/{mechanism}": test_accuracy}
    if seconds is not None:
        values["performance/training_seconds"] = seconds
    for logger in loggers:
        if isinstance(logger, WandbLogger):
            if isinstance(logger, EpochRows):
                logger.send_rows()  # they would replace these values
            logger.experiment.summary.update(values)


def quiet_settings(*, silent: bool) -> wandb.Settings:
    """Settings under which W&B gets what is logged and nothing else; `silent` also keeps it from printing."""
    return wandb.Settings(
        console="off",
        save_code=False,
        disable_code=True,
        disable_git=True,
        disable_job_creation=True,
        x_disable_stats=True,
        x_disable_meta=True,
        x_disable_machine_info=True,
        x_save_requirements=False,  # the privacy card names the versions that matter
        host="",
        silent=silent,
    )


def default_tags(mechanism: str | None, dataset: str | None, epsilon: float | None) -> list[str]:
    """Mechanism, data set (from the name of its class: `DigitsDataModule` gives `digits`) and `epsilon=…`."""
    tags = [mechanism] if mechanism else []
    if dataset:
        last = dataset.rsplit(".", 1)[-1]
        tags.append((last.removesuffix("DataModule") or last).lower())
    if epsilon is not None:
        tags.append(f"epsilon={epsilon:g}")
    return tags


def job_name(directory: Path) -> str:
    """The name in the job's own record, or that of its directory."""
    record = RunRecord.read(directory)
    return record.job if record is not None and record.job else directory.name


def sweep_name(directory: Path) -> str | None:
    """The name of the sweep that a job's directory is part of, if it is."""
    record = SweepRecord.read(directory.parent)
    return None if record is None else record.name


def _kept_id(directory: Path) -> str:
    """The id of the directory's run: drawn once, then always the same, also where the directory was moved to."""
    path = directory / ID_FILE
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(secrets.token_hex(4) + "\n")
    return path.read_text().strip()
