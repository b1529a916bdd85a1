"""The command line of every recipe: which runs, where, how many at a time; then the runs, then the table."""

import argparse
import signal
from collections.abc import Sequence
from pathlib import Path

from lightning_gep.errors import ConfigurationError
from lightning_gep.reporting.records import RunRecord
from recipes.running.cells import Run, Table, check_names
from recipes.running.jobs import ROOT, Job, Places
from recipes.running.outcome import RESULTS, results_of
from recipes.running.page import write_page
from recipes.running.page_table import in_short, section
from recipes.running.progress import Progress
from recipes.running.queue import Outcome, Queue
from recipes.running.refusals import exit_code

WORK = ROOT / "outputs" / "recipes"
TRIALS = WORK / "trials"


def main(table: Table, arguments: Sequence[str] | None = None) -> int:
    """The runs of one table. Exit code 0, 1 if a run failed, 2 for a setting that cannot work, 130 interrupted."""
    parser = make_parser(f"python -m recipes.{table.name}", f"{table.title}: runs what is missing, prints the table.")
    asked = parse(parser, arguments)
    return exit_code(parser.prog, lambda: run_command(asked, [table], table.runs()))


def make_parser(program: str, description: str) -> argparse.ArgumentParser:
    """What all recipes understand."""
    parser = argparse.ArgumentParser(prog=program, description=description)
    add = parser.add_argument
    add("--only", nargs="+", metavar="CELL", help="some of the cells; mnist_* is all of MNIST")
    add("--seeds", nargs="+", metavar="SEED", help="some of the seeds (default: all that a cell has)")
    add("--data-directory", type=Path, default=Path("data"), metavar="DIR", help="docs/data.md (default: %(default)s)")
    add("--download", action="store_true", help="let torchvision bring what is missing there")
    add("--jobs", type=int, default=2, help="runs at a time, each on one thread (default: %(default)s)")
    add("--minutes", type=float, metavar="M", help="interrupt what runs after M minutes, to be continued later")
    add("--work", type=Path, default=WORK, metavar="DIR", help="where runs keep checkpoints (default: outputs/recipes)")
    add("--output", type=Path, metavar="DIR", help="where results go (default: docs/results)")
    add("--dry-run", action="store_true", help="list the runs, and run none")
    add("overrides", nargs="*", metavar="KEY=VALUE", help="for every run; such runs are no results of a table's")
    return parser


def parse(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line; overrides may also follow the names of cells or the seeds."""
    asked = parser.parse_intermixed_args(arguments)
    for option in ("only", "seeds"):
        words = getattr(asked, option) or []
        asked.overrides = [*asked.overrides, *filter(is_override, words)]
        setattr(asked, option, [word for word in words if not is_override(word)])
    return asked


def is_override(word: str) -> bool:
    """Whether it changes the configuration."""
    return "=" in word or word.startswith("~")


def run_command(asked: argparse.Namespace, tables: Sequence[Table], runs: Sequence[Run]) -> int:
    """Run what is asked for of these runs, in their order, and print the tables. Returns the exit code."""
    chosen, places = choose(asked, tables, runs), places_of(asked)
    if asked.jobs < 1:
        raise ConfigurationError(f"--jobs {asked.jobs} would run nothing. Use 1 or more.")
    if asked.minutes is not None and not asked.minutes > 0:
        raise ConfigurationError(f"--minutes {asked.minutes:g} leaves no time to run. Use a number above 0.")
    if asked.dry_run:
        for run in chosen:
            print(planned(run, places))
        return 0
    outcome = work(chosen, places, asked.jobs, asked.minutes)
    lines_of = section if len(tables) == 1 else in_short
    for table in tables:
        print("\n".join(["", *lines_of(table, results_of(table, places.output))]))
    if places.extra:
        print(f"\nWith {' '.join(places.extra)} these are no results of a table; theirs are in {places.output}.")
    elif outcome.finished:
        write_page(places.output)
    print(f"\n{outcome}")
    return outcome.exit_code


def choose(asked: argparse.Namespace, tables: Sequence[Table], runs: Sequence[Run]) -> list[Run]:
    """Of the runs, in their order, those that are asked for."""
    check_names(tables, asked.only)
    seeds = [int(seed) if seed.isdecimal() else seed for seed in asked.seeds] or None
    fitting = {run for table in tables for run in table.runs(asked.only or ["*"], seeds)}
    chosen = [run for run in runs if run in fitting]
    known = {str(run.seed) for run in chosen}
    unknown = [seed for seed in asked.seeds if seed not in known]
    if runs and unknown:
        raise ConfigurationError(f"--seeds {' '.join(unknown)}: no cell has such a seed. Leave it out.")
    return chosen


def places_of(asked: argparse.Namespace) -> Places:
    """Where everything is. Overrides make another run of it: its result must not stand among those of the tables."""
    extra = tuple(asked.overrides)
    wrong = next((word for word in extra if not is_override(word)), None)
    if wrong is not None:
        raise ConfigurationError(f"{wrong!r} is not an override. Write KEY=VALUE, or --only {wrong} for a cell.")
    output = (asked.output or (TRIALS if extra else RESULTS)).resolve()
    if extra and output == RESULTS:
        raise ConfigurationError(
            f"--output {asked.output} holds the results of the tables, and runs with {' '.join(extra)} are none. Leave "
            "--output out, or choose another directory."
        )
    return Places(asked.data_directory.resolve(), asked.work.resolve(), output, extra, asked.download)


def planned(run: Run, places: Places) -> str:
    """A line on what would be done."""
    job = Job.of(run, places)
    record = RunRecord.read(job.directory)
    state = "there already" if job.is_done() else "not run" if record is None else f"cut at step {record.step}"
    return f"{run.name}: {state}: gep-train {' '.join(job.arguments())}"


def work(runs: Sequence[Run], places: Places, jobs: int, minutes: float | None) -> Outcome:
    """Run what is missing. Being terminated, or the terminal being closed, is like Ctrl-C: what runs is saved."""
    # Also where Ctrl-C is ignored, as in the background of a script: runs would inherit that, and could only be killed.
    stops = [signal.SIGINT, signal.SIGTERM]
    # Where nohup ignores that the terminal is closed, it stays ignored. Windows has no such signal.
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        stops.append(signal.SIGHUP)
    before = {number: signal.signal(number, signal.default_int_handler) for number in stops}
    try:
        with Progress() as progress:
            return Queue(runs, places, progress, jobs).work(None if minutes is None else 60 * minutes)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
