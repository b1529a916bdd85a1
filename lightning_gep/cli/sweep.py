"""Sweeps: a grid of jobs, or as many as chance says, in a directory that can be started again until all are done."""

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from hydra.errors import CompactHydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from rich.console import Console
from rich.text import Text
from typing_extensions import override

from lightning_gep.arguments import one_of
from lightning_gep.cli.candidates import planned_events
from lightning_gep.cli.console import terminal
from lightning_gep.cli.hydra_sweeper import BasicSweeper, combinations_of, is_installed, register
from lightning_gep.cli.monitor import SweepMonitor, outcome_table
from lightning_gep.cli.names import job_name
from lightning_gep.cli.summary import short_path
from lightning_gep.cli.sweep_cards import write_sweep_cards
from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy.repetitions import SHAPES, Distribution
from lightning_gep.reporting.records import RunRecord, SweepRecord, locked
from lightning_gep.strategy.processes import quoted

EXTRAS = {"hydra_joblib_launcher": "joblib", "hydra_submitit_launcher": "submitit", "hydra_ray_launcher": "ray"}

Job = list[str]
"""The overrides of one job."""


class JobsFailed(SystemExit):
    """The end of a sweep in which not every job finished."""

    code = 1


class GridSweeper(BasicSweeper):
    """Hydra's own grid, with a list of its jobs on disk, a live table of them, and the cost of them all at the end."""

    record: SweepRecord
    launched: list[str]
    """The names of the jobs of this command."""

    def setup(self, *, config: DictConfig, **context: Any) -> None:
        """Take the launcher that is configured, if it is installed."""
        launcher = config.hydra.launcher._target_
        extra = next((extra for name, extra in EXTRAS.items() if name in launcher), None)
        if extra is not None and not is_installed(launcher):
            choice = config.hydra.runtime.choices["hydra/launcher"]
            raise CompactHydraException(
                f"gep-train: hydra/launcher={choice} is not installed. Use pip install 'lightning-gep[{extra}]', or "
                "leave hydra/launcher out to run one job after another."
            )
        super().setup(config=config, **context)

    def sweep(self, arguments: list[str]) -> Any:
        """Run every job that is not finished. A failed one does not stop the others; it makes the exit code 1."""
        assert self.config is not None
        directory = Path(self.config.hydra.sweep.dir)
        directory.mkdir(parents=True, exist_ok=True)
        with terminal() as console:
            try:
                # One command at a time: two would each count only the jobs they know of.
                with locked(directory):
                    self._run(arguments, directory, console)
            except ConfigurationError as error:
                raise CompactHydraException(f"gep-train: {error}") from None
        if any(run is None or run.status != "finished" for run in _runs(directory, self.launched)):
            raise JobsFailed

    def _run(self, arguments: list[str], directory: Path, console: Console) -> None:
        try:
            with SweepMonitor(directory, console):
                super().sweep(arguments)
        except (KeyboardInterrupt, SystemExit):
            console.print(f"Interrupted. The same command goes on in {short_path(directory)}.")
            raise KeyboardInterrupt from None
        finally:
            self._close(directory, console)

    def split_arguments(self, overrides: list[Override], max_batch_size: int | None) -> list[list[Job]]:  # type: ignore[override]
        """The jobs, in the batches that are launched one after another; their names are on disk before the first."""
        assert self.config is not None
        directory = Path(self.config.hydra.sweep.dir)
        swept = [override for override in overrides if override.is_sweep_override()]
        fixed = [str(o.input_line) for o in overrides if not o.is_sweep_override() and o.key_or_group != "sweep"]
        grid = combinations_of(swept)
        jobs = self.choose(grid, fixed, directory)
        self.launched = [job_name(job) for job in jobs]
        # Jobs of an earlier command with the same name stay on the list: they were paid for, too.
        self.record.jobs = list(dict.fromkeys([*_jobs_before(directory), *self.launched]))
        self.record.overrides = [str(override.input_line) for override in overrides]
        self.record.write(directory)
        # A job knows its sweep and its own name: its directory and its group in a logger follow from them.
        complete = [
            [*fixed, *job, f"sweep={quoted(directory.name)}", f"hydra.sweep.subdir={quoted(name)}"]
            for job, name in zip(jobs, self.launched, strict=True)
        ]
        return [list(batch) for batch in self.split_overrides_to_chunks(complete, max_batch_size)] if jobs else []

    def choose(self, grid: list[Job], fixed: Job, directory: Path) -> list[Job]:
        """The jobs to run, each without what is `fixed` for all of them: all of the grid."""
        self.record = SweepRecord(directory.name, started=_started(directory, "grid"))
        return grid

    def _close(self, directory: Path, console: Console) -> None:
        """Print how it ended, and write what it cost."""
        if not hasattr(self, "record"):
            return  # the settings were refused before there was a job
        runs = _runs(directory, self.record.jobs)
        if runs:
            console.print(outcome_table(self.record.jobs, runs))
        for job, run in zip(self.record.jobs, runs, strict=True):
            if run is not None and run.status == "failed":
                console.print(Text(f"{job} failed: {run.error}\n  see {short_path(directory / job / 'console.log')}"))
        selection = write_sweep_cards(directory, self.record)
        # No run is called the best without a word on what it costs to know that.
        if selection is not None:
            for line in [*self.closing_words(directory, runs), selection["explanation"]]:
                console.print(Text(line))
            console.print(Text(f"A report of it all: gep-report {short_path(directory)}"), soft_wrap=True)
        elif not self.record.jobs:
            console.print("The number drawn is 0: nothing is trained, nothing leaves. To draw again is not covered.")

    def closing_words(self, directory: Path, runs: Sequence[RunRecord | None]) -> list[str]:
        """What there is to say of the outcome."""
        best = best_by_validation(runs)
        return [] if best is None else [f"Best by validation accuracy: {best.job}."]


class RepeatAndSelectSweeper(GridSweeper):
    """As many jobs as chance says, each at a setting drawn at random from the grid.

    If only the best run's weights leave, having picked it costs far less than all runs together (Papernot and Steinke,
    2022): what pays for it is that nobody knows how many there were. The number is therefore drawn from the operating
    system's entropy before the first job, and kept when the sweep is started again.
    """

    def __init__(self, max_batch_size: int | None, mean: float, distribution: str, params: Any = None) -> None:
        super().__init__(max_batch_size, params)
        self.mean, self.distribution = mean, one_of("hydra.sweeper.distribution", distribution, SHAPES)

    def choose(self, grid: list[Job], fixed: Job, directory: Path) -> list[Job]:
        """A random number of random settings, drawn once."""
        started = _started(directory, "repeat_and_select")
        before = SweepRecord.read(directory)
        asked = {"mean": self.mean, "distribution": self.distribution, "settings": grid, "fixed": sorted(fixed)}
        if before is not None and before.repetitions is not None:
            repetitions = before.repetitions
            if {**repetitions, **asked} != repetitions:
                raise ConfigurationError(
                    f"The sweep {directory.name} was begun with a mean of {repetitions['mean']:g} "
                    f"({repetitions['distribution']}), {len(repetitions['settings'])} settings and "
                    f"{' '.join(repetitions['fixed']) or 'nothing'} for all. Its runs are drawn: continue with the "
                    "same, or give another name with sweep=<name>."
                )
        else:
            repetitions = {**asked, **self._draw(grid, fixed)}
        self.record = SweepRecord(directory.name, selection="repeat_and_select", started=started)
        self.record.repetitions = repetitions
        return [[*grid[number], f"draw={name}"] for number, name in repetitions["drawn"]]

    def _draw(self, grid: list[Job], fixed: Job) -> dict[str, Any]:
        """The runs, each a setting and a name; and what every setting costs, drawn or not.

        Names are random: a number would tell how many runs there are at least, and that earlier ones were no better.
        """
        configs = [self._composed([*fixed, *point]) for point in grid]
        for config in configs:
            check_stays_here(config)
        candidates = planned_events(configs)
        count = Distribution(self.mean, SHAPES[self.distribution]).draw()
        drawn = [(secrets.randbelow(len(grid)), f"r{secrets.token_hex(4)}") for _ in range(count)]
        return {"shape": SHAPES[self.distribution], "candidates": candidates, "drawn": drawn}

    @override
    def closing_words(self, directory: Path, runs: Sequence[RunRecord | None]) -> list[str]:
        if any(run is None or run.status != "finished" for run in runs):
            return ["Nothing is selected before all runs that were drawn are finished: the same command goes on."]
        best = best_by_validation(runs)
        chosen = [] if best is None else [f"Selected by validation accuracy: {short_path(directory / best.job)}."]
        return [
            *chosen,
            "Only the selected run and its card may leave: not the table above, nor how many runs there are.",
        ]

    def _composed(self, overrides: Job) -> DictConfig:
        assert self.config is not None
        assert self.hydra_context is not None
        config = self.hydra_context.config_loader.load_sweep_config(self.config, overrides)
        with open_dict(config):
            del config["hydra"]
            config.output_dir = "."  # known inside a job only; nothing is written
        return config


def register_sweepers() -> None:
    """Make the sweepers known to Hydra."""
    register(GridSweeper, RepeatAndSelectSweeper)


def check_stays_here(config: DictConfig) -> None:
    """Raises ConfigurationError if a logger would send every run away, where only the selected one may leave."""
    loggers: Any = OmegaConf.select(config, "logger") or {}
    for name, logger in loggers.items():
        if "wandb" in str(logger.get("_target_", "")).lower() and logger.get("offline") is not True:
            raise ConfigurationError(
                "hydra/sweeper=repeat_and_select keeps all runs but the selected one secret, and W&B would get every "
                f"one of them. Use logger.{name}.offline=true, or logger=csv."
            )


def best_by_validation(runs: Sequence[RunRecord | None]) -> RunRecord | None:
    """The finished run with the highest validation accuracy; test accuracy has no part in a choice."""
    scored = [run for run in runs if run is not None and run.status == "finished" and "val/accuracy" in run.metrics]
    return max(scored, key=lambda run: run.metrics["val/accuracy"], default=None)


def _started(directory: Path, selection: str) -> str:
    before = SweepRecord.read(directory)
    if before is None:
        return ""
    if before.selection != selection:
        raise ConfigurationError(
            f"{directory.name} is a sweep of another kind ({before.selection}, not {selection}), and the two cost "
            "differently. Give this one another name with sweep=<name>."
        )
    return before.started


def _jobs_before(directory: Path) -> list[str]:
    before = SweepRecord.read(directory)
    return [] if before is None else before.jobs


def _runs(directory: Path, jobs: Sequence[str]) -> Sequence[RunRecord | None]:
    return [RunRecord.read(directory / job) for job in jobs]
