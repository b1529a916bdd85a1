"""`gep-plan`: noise, ε and their trade-offs for the settings of gep-train, before any training."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from rich.console import Console
from rich.text import Text

from lightning_gep.cli.plan.costs import NoisePlan, plan_noise
from lightning_gep.cli.plan.errors import in_keys
from lightning_gep.cli.plan.jobs import Job, make_jobs
from lightning_gep.cli.plan.noise_search import CALIBRATED, EPOCHS, Search, default_batch_sizes, search
from lightning_gep.cli.plan.page import write_page
from lightning_gep.cli.plan.progress import Tick, progress
from lightning_gep.cli.plan.sizes import Known
from lightning_gep.cli.plan.table import common_values, plan_table
from lightning_gep.cli.plan.words import notes, search_in_words, why_a_least_number_of_steps
from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy.files import write_json

DESCRIPTION = "Noise and ε of the runs that gep-train would make with the same overrides, before any training."
EXAMPLES = """\
examples:
  gep-plan
      the default job
  gep-plan privacy.epsilon=1,2,4,8 mechanism=gep,gp
      every combination of the values given
  gep-plan privacy.epsilon=null privacy.noise_multiplier=1.3
      the ε that a given noise amounts to
  gep-plan privacy.epsilon=2 --search --min-steps 200 --html plan.html
      the batch size and epochs with the least noise, and a page with plots
  gep-plan --records 60000 --parameters 14394 privacy.delta=1e-5 data.batch_size=1000 trainer.max_epochs=50
      a project of your own, without its data and model
"""
MIN_STEPS = 100
BATCH_SIZE_KEY, EPOCHS_KEY = "data.batch_size", "trainer.max_epochs"


def main(arguments: Sequence[str] | None = None) -> None:
    """Plan and print; a setting that cannot work is one line on stderr and exit code 2."""
    options = make_parser().parse_intermixed_args(arguments)
    try:
        _check_options(options)
        _run(options, Console())
    except ConfigurationError as error:
        _give_up(str(error))
    except OSError as error:
        _give_up(f"{error.filename}: {error.strerror}. Give --html and --json a file that can be written.")


def make_parser() -> argparse.ArgumentParser:
    """The options; everything else on the line is an override."""
    parser = _Parser(
        prog="gep-plan",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="as for gep-train; commas give several values"
    )
    parser.add_argument("-m", "--multirun", action="store_true", help="accepted, so that a line of gep-train can stay")
    sizes = parser.add_argument_group("a project of your own")
    sizes.add_argument("--records", type=_count, metavar="N", help="training records, in place of the configured data")
    sizes.add_argument("--parameters", type=_count, metavar="P", help="trainable parameters, in place of the model")
    found = parser.add_argument_group("search")
    found.add_argument("--search", action="store_true", help="find batch size and epochs with the least noise")
    found.add_argument("--batch-sizes", type=_counts, metavar="B,…", help="to choose from (default: powers of two)")
    found.add_argument("--epochs", type=_counts, metavar="E,…", help=f"to choose from (default: {_listed(EPOCHS)})")
    found.add_argument(
        "--min-steps", type=_count, metavar="T", help=f"shorter runs do not count (default: {MIN_STEPS})"
    )
    found.add_argument("--top", type=_count, metavar="ROWS", help=f"how many to show (default: {CALIBRATED})")
    files = parser.add_argument_group("files")
    files.add_argument("--html", type=Path, metavar="FILE", help="write a page with plots that needs no network")
    files.add_argument("--json", type=Path, metavar="FILE", help="write the rows")
    return parser


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        _give_up(f"{message}. See gep-plan --help.")


def _give_up(message: str) -> NoReturn:
    print(f"gep-plan: {message}", file=sys.stderr)
    raise SystemExit(2)


def _check_options(options: argparse.Namespace) -> None:
    for name in ("batch_sizes", "epochs", "min_steps", "top"):
        if getattr(options, name) is not None and not options.search:
            raise ConfigurationError(f"--{name.replace('_', '-')} belongs to a search. Add --search.")


def _run(options: argparse.Namespace, console: Console) -> None:
    searches: list[Search] = []
    with progress() as tick:
        tick("reading the configuration", 0, 1)
        jobs, given = make_jobs(options.overrides, Known(options.records, options.parameters))
        if options.search:
            searches = [_search(job, given, options, tick) for job in _without_size(jobs)]
            plans = [row for found in searches for row in found.rows]
        else:
            plans = _plan(jobs, tick)
        if options.html is not None:
            write_page(options.html, plans, searches, tick)
        if options.json is not None:
            write_json(options.json, _as_json(plans, searches))
    for found in searches:
        _print_search(found, console)
    if searches:
        console.print(Text(why_a_least_number_of_steps(options.min_steps or MIN_STEPS), style="dim"))
    else:
        console.print(plan_table(plans, console))
    for note in notes(plans):
        console.print(Text(note, style="dim"))
    for path in (options.html, options.json):
        if path is not None:
            console.print(Text(f"Written: {path}"))


def _plan(jobs: Sequence[Job], tick: Tick) -> list[NoisePlan]:
    plans = []
    for done, job in enumerate(jobs):
        tick("calibrating", done, len(jobs))
        with in_keys(job.name):
            plans.append(plan_noise(job.settings, job.size, job.labels))
    return plans


def _search(job: Job, given: dict[str, list[str]], options: argparse.Namespace, tick: Tick) -> Search:
    """Among the sizes of the options, or else those that the overrides list, or else usual ones."""
    batch_sizes = _choices("--batch-sizes", options.batch_sizes, BATCH_SIZE_KEY, given)
    epochs = _choices("--epochs", options.epochs, EPOCHS_KEY, given)
    with in_keys(job.name):
        return search(
            job.settings,
            job.size,
            batch_sizes=batch_sizes or default_batch_sizes(job.size.num_records, job.size.devices),
            epochs=epochs or EPOCHS,
            min_steps=options.min_steps or MIN_STEPS,
            best=options.top or CALIBRATED,
            labels=job.labels,
            tick=tick,
        )


def _choices(option: str, values: list[int] | None, key: str, given: dict[str, list[str]]) -> list[int] | None:
    if key not in given:
        return values
    if values is not None:
        raise ConfigurationError(f"{key} and {option} both list what to search among. Give one of them.")
    try:
        return [int(value) for value in given[key]]
    except ValueError:
        raise ConfigurationError(f"{key}={_listed(given[key])} must be whole numbers to search among.") from None


def _without_size(jobs: Sequence[Job]) -> list[Job]:
    """One job for all that differ in batch size and epochs alone, which the search chooses itself."""
    found: dict[str, Job] = {}
    for job in jobs:
        labels = {key: value for key, value in job.labels.items() if key not in (BATCH_SIZE_KEY, EPOCHS_KEY)}
        found.setdefault(repr(labels), Job(job.settings, job.size, labels))
    return list(found.values())


def _print_search(found: Search, console: Console) -> None:
    for line in search_in_words(found):
        console.print(Text(line))
    console.print(Text(f"The same for all: {common_values(found.rows)}.", style="dim"))
    console.print()
    for title, rows in (("Least noise per step", found.per_step), ("Least noise of the mean", found.over_run)):
        console.print(Text(title, style="bold"))
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


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def _counts(text: str) -> list[int]:
    return list(dict.fromkeys(_count(part.strip()) for part in text.split(",")))


def _listed(values: Sequence[object]) -> str:
    return ",".join(str(value) for value in values)


if __name__ == "__main__":
    main()
