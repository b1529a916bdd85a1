"""gep-plan from its parsed options to what it prints and writes."""

from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from lightning_gep.cli.plan.command import EPOCHS, MIN_STEPS, TOP
from lightning_gep.cli.plan.costs import NoisePlan, plan_noise
from lightning_gep.cli.plan.inputs import Job, make_jobs
from lightning_gep.cli.plan.output import common_values, notes, plan_table, search_in_words, why_min_steps
from lightning_gep.cli.plan.search import Search, Tick, default_batch_sizes, search
from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy.files import write_json

BATCH_SIZE_KEY, EPOCHS_KEY = "data.batch_size", "trainer.max_epochs"


def run(options: Namespace) -> None:
    """Plan, write the files asked for, and print."""
    console = Console()
    searches: list[Search] = []
    with _progress() as tick:
        tick("reading the configuration", 0, 1)
        jobs, given = make_jobs(options.overrides, options.records, options.parameters)
        if options.search:
            searches = [_search(job, given, options, tick) for job in _without_size(jobs)]
            plans = [row for found in searches for row in found.rows]
        else:
            plans = _plan(jobs, tick)
        if options.html is not None:
            from lightning_gep.cli.plan.page import write_page  # needs the [report] extra

            write_page(options.html, plans, searches, tick)
        if options.json is not None:
            write_json(options.json, _as_json(plans, searches))
    for found in searches:
        _print_search(found, console)
    if searches:
        console.print(Text(why_min_steps(options.min_steps or MIN_STEPS), style="dim"))
    else:
        console.print(plan_table(plans, console))
    for note in notes(plans):
        console.print(Text(note, style="dim"))
    for path in (options.html, options.json):
        if path is not None:
            console.print(Text(f"Written: {path}"))


@contextmanager
def _progress() -> Iterator[Tick]:
    """A progress bar on stderr that is gone at the end; nothing if stderr is not a terminal."""
    console = Console(stderr=True)
    shown = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*shown, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("")
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)


def _plan(jobs: Sequence[Job], tick: Tick) -> list[NoisePlan]:
    plans = []
    for done, job in enumerate(jobs):
        tick("calibrating", done, len(jobs))
        with job.one_line_errors:
            plans.append(plan_noise(job.settings, job.size, job.labels))
    return plans


def _search(job: Job, given: dict[str, list[str]], options: Namespace, tick: Tick) -> Search:
    """Among the sizes of the options, or those that the overrides list, or common ones."""
    batch_sizes = _choices("--batch-sizes", options.batch_sizes, given.get(BATCH_SIZE_KEY), BATCH_SIZE_KEY)
    epochs = _choices("--epochs", options.epochs, given.get(EPOCHS_KEY), EPOCHS_KEY)
    with job.one_line_errors:
        return search(
            job.settings,
            job.size,
            batch_sizes=batch_sizes or default_batch_sizes(job.size.num_records, job.size.devices),
            epochs=epochs or EPOCHS,
            min_steps=options.min_steps or MIN_STEPS,
            best=options.top or TOP,
            labels=job.labels,
            tick=tick,
        )


def _choices(option: str, values: list[int] | None, listed: list[str] | None, key: str) -> list[int] | None:
    if listed is None:
        return values
    if values is not None:
        raise ConfigurationError(f"{key} and {option} both list the values to search. Give one of them.")
    if not all(value.isdecimal() for value in listed):
        raise ConfigurationError(f"{key}={','.join(listed)} must be whole numbers for a search.")
    return [int(value) for value in listed]


def _without_size(jobs: Sequence[Job]) -> list[Job]:
    """One job for all that differ only in batch size and epochs, which the search chooses itself."""
    found: dict[str, Job] = {}
    for job in jobs:
        labels = {key: value for key, value in job.labels.items() if key not in (BATCH_SIZE_KEY, EPOCHS_KEY)}
        found.setdefault(repr(labels), replace(job, labels=labels))
    return list(found.values())


def _print_search(found: Search, console: Console) -> None:
    for line in search_in_words(found):
        console.print(Text(line))
    console.print(Text(f"The same for all: {common_values(found.rows)}.", style="dim"))
    for title, rows in (("Least noise per step", found.per_step), ("Least noise of the mean", found.over_run)):
        console.print(Text(f"\n{title}", style="bold"))
        console.print(plan_table(rows, console, among=found.rows))
    console.print()


def _as_json(plans: Sequence[NoisePlan], searches: Sequence[Search]) -> dict[str, object]:
    content: dict[str, object] = {"format": 1, "rows": [plan.to_row() for plan in plans]}
    if searches:
        content["searches"] = [
            {
                "least_noise_per_step": [plan.to_row() for plan in found.per_step],
                "least_noise_of_mean": [plan.to_row() for plan in found.over_run],
                "cheapest_near_least_noise_per_step": found.cheapest_per_step.to_row(),
                "cheapest_near_least_noise_of_mean": found.cheapest_over_run.to_row(),
                "searched": [plan.to_row() for plan in found.grid],
            }
            for found in searches
        ]
    return content
