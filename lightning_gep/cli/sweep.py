"""Sweeps: a grid of jobs, or a random number of them, in a directory that the same command continues."""

import secrets
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.errors import CompactHydraException
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, read_write
from rich.console import Console
from rich.text import Text
from typing_extensions import override

from lightning_gep.arguments import one_of, quoted
from lightning_gep.cli.configs import combinations, job_name
from lightning_gep.cli.console import outcome_table, short_path, terminal, watched
from lightning_gep.cli.interrupts import passed_on_to_workers
from lightning_gep.errors import ConfigurationError, missing_extra
from lightning_gep.reporting.facts import best_run
from lightning_gep.reporting.records import RunRecord, SweepRecord, locked
from lightning_gep.reporting.runs import Run, run_of

LAUNCHERS = {"hydra_joblib_launcher": "joblib", "hydra_submitit_launcher": "submitit", "hydra_ray_launcher": "ray"}
"""The extra that installs each launcher."""
NAMESPACE = "hydra_plugins.lightning_gep"
"""Where `conf/hydra/sweeper/*.yaml` look for the sweepers of this package."""

Job = list[str]
"""The overrides of one job."""


class JobsFailed(SystemExit):
    """The end of a sweep in which not every job finished."""

    code = 1


class GridSweeper(Sweeper):
    """Every combination of the values given: a list of jobs on disk, a live table of them, and the cost of all."""

    kind: Literal["grid", "repeat_and_select"] = "grid"
    config: DictConfig
    hydra_context: HydraContext
    record: SweepRecord

    def __init__(self, max_batch_size: int | None, params: Mapping[str, Any] | None = None) -> None:
        self.max_batch_size, self.params = max_batch_size, params or {}

    @override
    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config
        self.directory = Path(config.hydra.sweep.dir)
        launcher = config.hydra.launcher._target_
        self.extra = next((extra for name, extra in LAUNCHERS.items() if name in launcher), None)
        if self.extra is not None and launcher not in Plugins.instance().class_name_to_class:
            choice = config.hydra.runtime.choices["hydra/launcher"]
            raise CompactHydraException(f"gep-train: {missing_extra(self.extra, f'hydra/launcher={choice}')}")

    @override
    def sweep(self, arguments: list[str]) -> None:
        """Run every job that is not finished. A failed one does not stop the others, but makes the exit code 1."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with terminal() as console:
            try:
                # One command at a time: two would each count only their own jobs.
                with locked(self.directory):
                    jobs = self._list([*(f"{key}={value}" for key, value in self.params.items()), *arguments])
                    if jobs:
                        self._run(jobs, console)
                    else:
                        console.print("The random number of runs is 0: nothing is trained. Drawing again would cost.")
            except ConfigurationError as error:
                raise CompactHydraException(f"gep-train: {error}") from None
        if not all(_is_finished(run) for run in self._runs(jobs).values()):
            raise JobsFailed

    def choose(self, grid: list[Job], fixed: Job) -> list[Job]:
        """The jobs to run, each without the overrides `fixed` for all of them: here, the whole grid."""
        return grid

    def closing_words(self, runs: Sequence[RunRecord | None]) -> list[str]:
        """What to print about the outcome."""
        best = _best(runs)
        return [] if best is None else [f"Best by validation accuracy: {best.job}."]

    def _list(self, arguments: list[str]) -> dict[str, Job]:
        """The complete overrides of the jobs by name; all names are on disk before the first job starts."""
        overrides = OverridesParser.create(self.hydra_context.config_loader).parse_overrides(arguments)
        grid = combinations(override for override in overrides if override.is_sweep_override())
        fixed = [str(o.input_line) for o in overrides if not o.is_sweep_override() and o.key_or_group != "sweep"]
        self.validate_batch_is_legal([[*fixed, *point] for point in grid])
        self.record = SweepRecord.read(self.directory) or SweepRecord("", selection=self.kind)
        self.record.name = self.directory.name
        if self.record.selection != self.kind:
            raise ConfigurationError(
                f"{self.directory.name} is a sweep of another kind ({self.record.selection}, not {self.kind}), and the "
                "two cost differently. Give this one another name with sweep=<name>."
            )
        jobs = {job_name(job): job for job in self.choose(grid, fixed)}
        # Jobs of an earlier command with the same name stay on the list: they have been paid for, too.
        self.record.jobs = list(dict.fromkeys([*self.record.jobs, *jobs]))
        self.record.overrides = arguments
        self.record.write(self.directory)
        # A job knows its sweep and its own name: its directory and its group in a logger follow from them.
        sweep = f"sweep={quoted(self.directory.name)}"
        return {name: [*fixed, *job, sweep, f"hydra.sweep.subdir={quoted(name)}"] for name, job in jobs.items()}

    def _run(self, jobs: dict[str, Job], console: Console) -> None:
        workers: AbstractContextManager[None] = nullcontext()
        if self.extra == "joblib":
            from joblib import effective_n_jobs  # type: ignore[import-untyped]

            workers = passed_on_to_workers()
            # Ctrl-C would end an idle worker, and joblib would then kill the others, too.
            with read_write(self.config.hydra):
                self.config.hydra.launcher.n_jobs = min(effective_n_jobs(self.config.hydra.launcher.n_jobs), len(jobs))
        OmegaConf.save(self.config, self.directory / "multirun.yaml")
        launcher = Plugins.instance().instantiate_launcher(self.hydra_context, self.task_function, self.config)
        listed, size = list(jobs.values()), self.max_batch_size or len(jobs)
        try:
            with watched(self.directory, self.record.jobs, console), workers:
                for first in range(0, len(listed), size):
                    for result in launcher.launch(listed[first : first + size], initial_job_idx=first):
                        _ = result.return_value  # raises what went wrong outside of training
        except (KeyboardInterrupt, SystemExit):
            console.print(f"Interrupted. The same command continues in {short_path(self.directory)}.")
            raise KeyboardInterrupt from None
        finally:
            self._close(console)

    def _close(self, console: Console) -> None:
        """Print how it ended, and write what it cost."""
        runs = self._runs(self.record.jobs)
        console.print(outcome_table(runs))
        for job, run in runs.items():
            if run is not None and run.status == "failed":
                log = short_path(self.directory / job / "console.log")
                console.print(Text(f"{job} failed: {run.error}\n  see {log}"))
        from lightning_gep.cli.sweep_cost import write_sweep_cards  # --help does not wait for the accountants

        selection = write_sweep_cards(self.directory, self.record)
        # No run is called the best without what it costs to know that.
        if selection is not None:
            for line in [*self.closing_words(list(runs.values())), selection["explanation"]]:
                console.print(Text(line))
            console.print(Text(f"For a report: gep-report {short_path(self.directory)}"), soft_wrap=True)

    def _runs(self, jobs: Iterable[str]) -> dict[str, RunRecord | None]:
        return {job: RunRecord.read(self.directory / job) for job in jobs}


class RepeatAndSelectSweeper(GridSweeper):
    """A random number of jobs, each at a setting drawn at random from the grid.

    If only the best run's weights are published, picking it costs far less than all runs together (Papernot and
    Steinke, 2022), because nobody knows how many there were. The number is therefore drawn from the operating system's
    entropy before the first job, and kept when the sweep is continued.
    """

    kind = "repeat_and_select"

    def __init__(
        self, max_batch_size: int | None, mean: float, distribution: str, params: Mapping[str, Any] | None = None
    ) -> None:
        from lightning_gep.privacy.selection import SHAPES

        super().__init__(max_batch_size, params)
        self.mean, self.distribution = mean, one_of("hydra.sweeper.distribution", distribution, SHAPES)

    @override
    def choose(self, grid: list[Job], fixed: Job) -> list[Job]:
        """A random number of random settings, drawn once."""
        asked = {"mean": self.mean, "distribution": self.distribution, "settings": grid, "fixed": sorted(fixed)}
        drawn = self.record.repetitions
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
        from lightning_gep.privacy.selection import SHAPES, Distribution

        candidates = planned_costs([[*fixed, *point] for point in grid], self.config.hydra.job.config_name)
        count = Distribution(self.mean, SHAPES[self.distribution]).draw()
        drawn = [(secrets.randbelow(len(grid)), f"r{secrets.token_hex(4)}") for _ in range(count)]
        return {"shape": SHAPES[self.distribution], "candidates": candidates, "drawn": drawn}

    @override
    def closing_words(self, runs: Sequence[RunRecord | None]) -> list[str]:
        if not all(_is_finished(run) for run in runs):
            return ["No run is selected before all runs that were drawn are finished: the same command continues."]
        best = _best(runs)
        chosen = [] if best is None else [f"Selected by validation accuracy: {short_path(self.directory / best.job)}."]
        return [*chosen, "Publish only the selected run and its card: not the table above, nor the number of runs."]


def register_sweepers() -> None:
    """Make the sweepers known to Hydra, which takes plugins only from the namespace `hydra_plugins`.

    Files installed there would be imported at every start of every Hydra program on the machine; this alias of the
    module is seen by gep-train alone.
    """
    plugins = Plugins.instance()  # imports the namespace if other plugins are installed
    sys.modules.setdefault("hydra_plugins", ModuleType("hydra_plugins"))
    sys.modules[NAMESPACE] = sys.modules[__name__]
    for sweeper in (GridSweeper, RepeatAndSelectSweeper):
        sweeper.__module__ = NAMESPACE
        plugins.register(sweeper)


def _best(runs: Sequence[RunRecord | None]) -> Run | None:
    return best_run((run_of(run) for run in runs if run is not None), least=1)


def _is_finished(run: RunRecord | None) -> bool:
    return run is not None and run.status == "finished"
