"""gep-plan from its parsed options to what it prints and writes."""

from argparse import Namespace
from collections.abc import Sequence

from rich.console import Console
from rich.progress import track
from rich.text import Text

from lightning_gep.cli.plan.costs import NoisePlan, plan_noise
from lightning_gep.cli.plan.inputs import Job, make_jobs, words
from lightning_gep.cli.plan.output import notes, plan_table
from lightning_gep.privacy.files import write_json


def run(options: Namespace) -> None:
    """Plan, write the files asked for, and print."""
    console = Console()
    jobs = make_jobs(options.overrides, options.records, options.parameters)
    plans = _calibrated(jobs)
    if options.html is not None:
        from lightning_gep.cli.plan.page import write_page  # needs the [report] extra

        write_page(options.html, plans)
    if options.json is not None:
        write_json(options.json, {"format": 1, "rows": [plan.row for plan in plans]})
    console.print(plan_table(plans))
    for note in notes(plans):
        console.print(Text(note, style="dim"))
    if options.compare:
        _print_comparison(jobs, console)
    for path in filter(None, (options.html, options.json)):
        console.print(Text(f"Written: {path}"))


def _calibrated(jobs: Sequence[Job]) -> list[NoisePlan]:
    """The plan of every job, with a progress bar on stderr if that is a terminal."""
    stderr, plans = Console(stderr=True), []
    for job in track(jobs, "calibrating", console=stderr, transient=True, disable=not stderr.is_terminal):
        with job.one_line_errors:
            plans.append(plan_noise(job.settings, job.size, job.labels))
    return plans


def _print_comparison(jobs: Sequence[Job], console: Console) -> None:
    from lightning_gep.cli.plan.mechanisms import NOTE, compare, mechanism_table  # needs torch and Lightning

    for job in jobs:
        with job.one_line_errors:
            table = mechanism_table(compare(job))
        table.title = words(job.labels) or None
        console.print(table)
    console.print(Text(NOTE, style="dim"))
