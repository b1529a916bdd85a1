"""gep-plan from its parsed options to what it prints and writes."""

from argparse import Namespace
from collections.abc import Iterable

from omegaconf import DictConfig
from rich.console import Console
from rich.progress import track
from rich.text import Text

from lightning_gep.cli.failures import one_line_errors
from lightning_gep.cli.plan.costs import NoisePlan, plan_noise
from lightning_gep.cli.plan.inputs import Sizes, composed_runs, privacy_settings, words
from lightning_gep.cli.plan.output import notes, plan_table
from lightning_gep.privacy.files import write_json


def run(options: Namespace) -> None:
    """Plan every combination of the values given, write the files asked for, and print."""
    console, stderr = Console(), Console(stderr=True)
    sizes, planned = Sizes(options.records, options.parameters), []
    runs = composed_runs(options.overrides)
    for config, labels in track(runs, "calibrating", console=stderr, transient=True, disable=not stderr.is_terminal):
        with one_line_errors(words(labels), config):
            planned.append((config, plan_noise(privacy_settings(config), sizes.of(config), labels)))
    plans = [plan for _, plan in planned]
    if options.html is not None:
        from lightning_gep.cli.plan.page import write_page  # needs the [report] extra

        write_page(options.html, plans)
    if options.json is not None:
        write_json(options.json, {"format": 1, "rows": [plan.row for plan in plans]})
    console.print(plan_table(plans))
    for note in notes(plans):
        console.print(Text(note, style="dim"))
    if options.compare:
        _print_comparison(planned, console)
    for path in filter(None, (options.html, options.json)):
        console.print(Text(f"Written: {path}"))


def _print_comparison(planned: Iterable[tuple[DictConfig, NoisePlan]], console: Console) -> None:
    from lightning_gep.cli.plan.mechanisms import NOTE, compare, mechanism_table  # needs torch and Lightning

    for config, plan in planned:
        with one_line_errors(words(plan.labels), config):
            table = mechanism_table(compare(config, plan))
        table.title = words(plan.labels) or None
        console.print(table)
    console.print(Text(NOTE, style="dim"))
