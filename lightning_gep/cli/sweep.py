"""Sweeps: a grid of jobs, or a random number of them, in a directory that the same command continues."""

import secrets
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from hydra.errors import CompactHydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from rich.console import Console
from rich.text import Text
from typing_extensions import override

from lightning_gep.arguments import one_of, quoted
from lightning_gep.cli.configs import job_name
from lightning_gep.cli.console import short_path, terminal
from lightning_gep.cli.hydra_sweeper import BasicSweeper, combinations_of, is_installed, limit_workers, register
from lightning_gep.cli.interrupts import passed_on_to_workers
from lightning_gep.cli.monitor import SweepMonitor, outcome_table
from lightning_gep.errors import ConfigurationError, missing_extra
from lightning_gep.reporting.records import RunRecord, SweepRecord, locked

LAUNCHERS = {"hydra_joblib_launcher": "joblib", "hydra_submitit_launcher": "submitit", "hydra_ray_launcher": "ray"}
"""The extra that installs each launcher."""

Job = list[str]
"""The overrides of one job."""


class JobsFailed(SystemExit):
    """The end of a sweep in which not every job finished."""

    code = 1


class GridSweeper(BasicSweeper):
    """Hydra's own grid, with a list of its jobs on disk, a live table of them, and the cost of all at the end."""

    record: SweepRecord
    launched: list[str]
    """The names of the jobs of this command."""

    def setup(self, *, config: DictConfig, **context: Any) -> None:
        """Take the configured launcher, if it is installed."""
        launcher = config.hydra.launcher._target_
        self.extra = next((extra for name, extra in LAUNCHERS.items() if name in launcher), None)
        if self.extra is not None and not is_installed(launcher):
            choice = config.hydra.runtime.choices["hydra/launcher"]
            raise CompactHydraException(f"gep-train: {missing_extra(self.extra, f'hydra/launcher={choice}')}")
        super().setup(config=config, **context)

    @property
    def directory(self) -> Path:
        """Where the sweep's record and the directories of its jobs are."""
        assert self.config is not None
        return Path(self.config.hydra.sweep.dir)

    def sweep(self, arguments: list[str]) -> Any:
        """Run every job that is not finished. A failed one does not stop the others, but makes the exit code 1."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with terminal() as console:
            try:
                # One command at a time: two would each count only their own jobs.
                with locked(self.directory):
                    self._run(arguments, console)
            except ConfigurationError as error:
                raise CompactHydraException(f"gep-train: {error}") from None
        if not all(_is_finished(run) for run in self._runs(self.launched)):
            raise JobsFailed

    def _run(self, arguments: list[str], console: Console) -> None:
        try:
            workers = passed_on_to_workers() if self.extra == "joblib" else nullcontext()
            with SweepMonitor(self.directory, console), workers:
                super().sweep(arguments)
        except (KeyboardInterrupt, SystemExit):
            console.print(f"Interrupted. The same command continues in {short_path(self.directory)}.")
            raise KeyboardInterrupt from None
        finally:
            self._close(console)

    def split_arguments(self, overrides: list[Override], max_batch_size: int | None) -> list[list[Job]]:  # type: ignore[override]
        """The jobs, in batches that are launched one after another; all names are on disk before the first starts."""
        swept = [override for override in overrides if override.is_sweep_override()]
        fixed = [str(o.input_line) for o in overrides if not o.is_sweep_override() and o.key_or_group != "sweep"]
        before = SweepRecord.read(self.directory)
        jobs = self.choose(combinations_of(swept), fixed, before)
        self.launched = [job_name(job) for job in jobs]
        # Jobs of an earlier command with the same name stay on the list: they have been paid for, too.
        self.record.jobs = list(dict.fromkeys([*(before.jobs if before else []), *self.launched]))
        self.record.overrides = [str(override.input_line) for override in overrides]
        self.record.write(self.directory)
        # A job knows its sweep and its own name: its directory and its group in a logger follow from them.
        if self.extra == "joblib":
            limit_workers(self.launcher, len(jobs))
        complete = [
            [*fixed, *job, f"sweep={quoted(self.directory.name)}", f"hydra.sweep.subdir={quoted(name)}"]
            for job, name in zip(jobs, self.launched, strict=True)
        ]
        return [list(batch) for batch in self.split_overrides_to_chunks(complete, max_batch_size)] if jobs else []

    def choose(self, grid: list[Job], fixed: Job, before: SweepRecord | None) -> list[Job]:
        """The jobs to run, each without the overrides `fixed` for all of them: here, the whole grid."""
        self.record = self._new_record("grid", before)
        return grid

    def _new_record(self, selection: Any, before: SweepRecord | None) -> SweepRecord:
        if before is not None and before.selection != selection:
            raise ConfigurationError(
                f"{self.directory.name} is a sweep of another kind ({before.selection}, not {selection}), and the two "
                "cost differently. Give this one another name with sweep=<name>."
            )
        return SweepRecord(self.directory.name, selection=selection, started=before.started if before else "")

    def _runs(self, jobs: Sequence[str]) -> list[RunRecord | None]:
        return [RunRecord.read(self.directory / job) for job in jobs]

    def _close(self, console: Console) -> None:
        """Print how it ended, and write what it cost."""
        if not hasattr(self, "record"):
            return  # the settings were refused before there was a job
        if not self.record.jobs:
            console.print("The random number of runs is 0: nothing is trained. Drawing again would not be covered.")
            return
        runs = self._runs(self.record.jobs)
        console.print(outcome_table(self.record.jobs, runs))
        for job, run in zip(self.record.jobs, runs, strict=True):
            if run is not None and run.status == "failed":
                log = short_path(self.directory / job / "console.log")
                console.print(Text(f"{job} failed: {run.error}\n  see {log}"))
        from lightning_gep.cli.sweep_cost import write_sweep_cards  # --help does not wait for the accountants

        selection = write_sweep_cards(self.directory, self.record)
        # No run is called the best without what it costs to know that.
        if selection is not None:
            for line in [*self.closing_words(runs), selection["explanation"]]:
                console.print(Text(line))
            console.print(Text(f"For a report: gep-report {short_path(self.directory)}"), soft_wrap=True)

    def closing_words(self, runs: Sequence[RunRecord | None]) -> list[str]:
        """What to print about the outcome."""
        best = best_by_validation(runs)
        return [] if best is None else [f"Best by validation accuracy: {best.job}."]


class RepeatAndSelectSweeper(GridSweeper):
    """A random number of jobs, each at a setting drawn at random from the grid.

    If only the best run's weights are published, picking it costs far less than all runs together (Papernot and
    Steinke, 2022), because nobody knows how many there were. The number is therefore drawn from the operating system's
    entropy before the first job, and kept when the sweep is continued.
    """

    def __init__(self, max_batch_size: int | None, mean: float, distribution: str, params: Any = None) -> None:
        from lightning_gep.privacy.repetitions import SHAPES

        super().__init__(max_batch_size, params)
        self.mean, self.distribution = mean, one_of("hydra.sweeper.distribution", distribution, SHAPES)

    @override
    def choose(self, grid: list[Job], fixed: Job, before: SweepRecord | None) -> list[Job]:
        """A random number of random settings, drawn once."""
        self.record = self._new_record("repeat_and_select", before)
        asked = {"mean": self.mean, "distribution": self.distribution, "settings": grid, "fixed": sorted(fixed)}
        drawn = before.repetitions if before is not None else None
        if drawn is not None and {**drawn, **asked} != drawn:
            raise ConfigurationError(
                f"The sweep {self.directory.name} was begun with a mean of {drawn['mean']:g} "
                f"({drawn['distribution']}), {len(drawn['settings'])} settings and "
                f"{' '.join(drawn['fixed']) or 'nothing'} for all. Its runs are drawn: continue with the same "
                "overrides, or give another name with sweep=<name>."
            )
        self.record.repetitions = repetitions = drawn or {**asked, **self._draw(grid, fixed)}
        return [[*grid[number], f"draw={name}"] for number, name in repetitions["drawn"]]

    def _draw(self, grid: list[Job], fixed: Job) -> dict[str, Any]:
        """The runs, each a setting and a name; and what every setting costs, drawn or not.

        Names are random: a number would tell how many runs there are at least, and that earlier ones were no better.
        """
        from lightning_gep.cli.sweep_cost import planned_costs
        from lightning_gep.privacy.repetitions import SHAPES, Distribution

        configs = [self._composed([*fixed, *point]) for point in grid]
        for config in configs:
            check_stays_here(config)
        candidates = planned_costs(configs)
        count = Distribution(self.mean, SHAPES[self.distribution]).draw()
        drawn = [(secrets.randbelow(len(grid)), f"r{secrets.token_hex(4)}") for _ in range(count)]
        return {"shape": SHAPES[self.distribution], "candidates": candidates, "drawn": drawn}

    @override
    def closing_words(self, runs: Sequence[RunRecord | None]) -> list[str]:
        if not all(_is_finished(run) for run in runs):
            return ["No run is selected before all runs that were drawn are finished: the same command continues."]
        best = best_by_validation(runs)
        chosen = [] if best is None else [f"Selected by validation accuracy: {short_path(self.directory / best.job)}."]
        return [*chosen, "Publish only the selected run and its card: not the table above, nor the number of runs."]

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
    """Raises ConfigurationError if a logger would upload every run, where only the selected one may be published."""
    loggers: Any = OmegaConf.select(config, "logger") or {}
    for name, logger in loggers.items():
        if "wandb" in str(logger.get("_target_", "")).lower() and logger.get("offline") is not True:
            raise ConfigurationError(
                "hydra/sweeper=repeat_and_select keeps all runs but the selected one secret, and W&B would receive "
                f"all of them. Use logger.{name}.offline=true, or logger=csv."
            )


def best_by_validation(runs: Sequence[RunRecord | None]) -> RunRecord | None:
    """The finished run with the highest validation accuracy. Test accuracy never decides."""
    scored = [run for run in runs if run is not None and _is_finished(run) and "val/accuracy" in run.metrics]
    return max(scored, key=lambda run: run.metrics["val/accuracy"], default=None)


def _is_finished(run: RunRecord | None) -> bool:
    return run is not None and run.status == "finished"
