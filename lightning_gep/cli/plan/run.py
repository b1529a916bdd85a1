"""gep-plan from its parsed options to what it prints and writes."""

from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from lightning_gep.cli.plan.command import EPOCHS, MIN_STEPS, TOP
from lightning_gep.cli.plan.costs import NoisePlan, plan_noise
from lightning_gep.cli.plan.inputs import Job, make_jobs
from lightning_gep.cli.plan.output import notes, plan_table, search_in_words, shared_figures, why_min_steps
from lightning_gep.cli.plan.search import CRITERIA, Search, default_batch_sizes, search, tracked
from lightning_gep.privacy.files import write_json
from lightning_gep.reporting.groups import grouped

CHOSEN_BY_A_SEARCH = ("data.batch_size", "trainer.max_epochs")


def run(options: Namespace) -> None:
    """Plan, write the files asked for, and print."""
    console = Console()
    jobs = make_jobs(options.overrides, options.records, options.parameters)
    # Batch size and epochs are what a search chooses, so jobs that differ in nothing else are one search.
    alike = grouped(jobs, lambda job: repr(_other_labels(job))) if options.search else {}
    searches = [_search(found, options) for found in alike.values()]
    plans = [row for found in searches for row in found.rows] or [_plan(job) for job in tracked(jobs, "calibrating")]
    if options.html is not None:
        from lightning_gep.cli.plan.page import write_page  # needs the [report] extra

        write_page(options.html, plans, searches)
    if options.json is not None:
        write_json(options.json, _as_json(plans, searches))
    for found in searches:
        _print_search(found, console)
    if not searches:
        console.print(plan_table(plans))
    for note in [*([why_min_steps(options.min_steps or MIN_STEPS)] if searches else []), *notes(plans)]:
        console.print(Text(note, style="dim"))
    if options.compare:
        _print_comparison(jobs, console)
    for path in filter(None, (options.html, options.json)):
        console.print(Text(f"Written: {path}"))


def _plan(job: Job) -> NoisePlan:
    with job.one_line_errors:
        return plan_noise(job.settings, job.size, job.labels)


def _other_labels(job: Job) -> dict[str, str]:
    return {key: value for key, value in job.labels.items() if key not in CHOSEN_BY_A_SEARCH}


def _search(jobs: Sequence[Job], options: Namespace) -> Search:
    """Among the sizes of the options, or those that the overrides list, or common ones."""
    given = {override.partition("=")[0].lstrip("+") for override in options.overrides}
    job = jobs[0]
    batch_sizes = dict.fromkeys(job.size.batch_size for job in jobs if "data.batch_size" in given)
    epochs = dict.fromkeys(job.size.max_epochs for job in jobs if "trainer.max_epochs" in given)
    with job.one_line_errors:
        return search(
            job.settings,
            job.size,
            batch_sizes=options.batch_sizes or list(batch_sizes) or default_batch_sizes(job.size),
            epochs=options.epochs or list(epochs) or EPOCHS,
            min_steps=options.min_steps or MIN_STEPS,
            best=options.top or TOP,
            labels=_other_labels(job),
        )


def _print_search(found: Search, console: Console) -> None:
    for line in search_in_words(found):
        console.print(Text(line))
    console.print(Text(f"The same for all: {shared_figures(found.rows)}.", style="dim"))
    for criterion, words in CRITERIA.items():
        console.print(Text(f"\nLeast {words}", style="bold"))
        console.print(plan_table(found.best[criterion], among=found.rows))
    console.print()


def _print_comparison(jobs: Sequence[Job], console: Console) -> None:
    from lightning_gep.cli.plan.mechanisms import NOTE, compare, mechanism_table  # needs torch and Lightning

    for job in jobs:
        with job.one_line_errors:
            table = mechanism_table(compare(job))
        table.title = " ".join(f"{key}={value}" for key, value in job.labels.items()) or None
        console.print(table)
    console.print(Text(NOTE, style="dim"))


def _as_json(plans: Sequence[NoisePlan], searches: Sequence[Search]) -> dict[str, Any]:
    content: dict[str, Any] = {"format": 1, "rows": [plan.row for plan in plans]}
    if searches:
        content["searches"] = [
            {
                **{f"least_{name}": [plan.row for plan in found.best[name]] for name in CRITERIA},
                **{f"cheapest_near_least_{name}": found.cheapest[name].row for name in CRITERIA},
                "searched": [plan.row for plan in found.grid],
            }
            for found in searches
        ]
    return content
