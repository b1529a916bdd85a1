"""`make results`: trains every run of the tables that has no result yet, and writes the page in docs/results."""

import argparse
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from lightning_gep.cli.commands import errors_in_a_line
from lightning_gep.cli.console import short_path
from lightning_gep.errors import ConfigurationError
from recipes.measured.__main__ import measure_missing
from recipes.page import PAGE, write_page
from recipes.running.outcome import RESULTS
from recipes.running.runner import ROOT, Job, Places, work
from recipes.tables import TABLES, runs_in_order
from recipes.tables.types import Run

WORK = ROOT / "outputs" / "recipes"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0; 1 if a run failed; 2 for a setting that cannot work; 130 interrupted: the same command goes on."""
    parser = argparse.ArgumentParser(prog="python -m recipes.results", description=__doc__)
    add = parser.add_argument
    add("--only", nargs="+", default=[], metavar="NAME", help="some tables or cells: table1, or 'mnist_*' for cells")
    add("--seeds", nargs="+", default=[], metavar="SEED", help="some of the seeds (default: all that a cell has)")
    add("--data-directory", type=Path, default=Path("data"), metavar="DIR", help="docs/data.md (default: %(default)s)")
    add("--download", action="store_true", help="let torchvision download what is missing there")
    add("--jobs", type=int, default=2, help="runs at a time, each on one thread (default: %(default)s)")
    add("--minutes", type=float, metavar="M", help="stop what runs after M minutes; the same command continues it")
    add("--work", type=Path, default=WORK, metavar="DIR", help="where runs keep checkpoints (default: outputs/recipes)")
    add("--output", type=Path, metavar="DIR", help="where results go (default: docs/results)")
    add("--dry-run", action="store_true", help="list the runs without starting any")
    add("--tables-only", action="store_true", help="write the page from the results there are")
    add("overrides", nargs="*", metavar="KEY=VALUE", help="for every run; such runs are not results of a table")
    asked = parser.parse_intermixed_args(arguments)
    for option in ("only", "seeds"):  # overrides may follow the names without a separator
        words = getattr(asked, option)
        asked.overrides += [word for word in words if _is_override(word)]
        setattr(asked, option, [word for word in words if not _is_override(word)])
    with errors_in_a_line(parser.prog):
        return run(asked)


def run(asked: argparse.Namespace) -> int:
    """Do what the command line asks for. Returns the exit code."""
    places, runs = places_of(asked), chosen_runs(asked.only, asked.seeds)
    if asked.jobs < 1:
        raise ConfigurationError(f"--jobs {asked.jobs} would run nothing. Use 1 or more.")
    if asked.minutes is not None and not asked.minutes > 0:
        raise ConfigurationError(f"--minutes {asked.minutes:g} leaves no time to run. Use a number above 0.")
    if asked.dry_run:
        for each in runs:
            job = Job(each, places)
            print(f"{each.name}: {'there already' if job.is_done() else job}: gep-train {' '.join(job.arguments())}")
        return 0
    code = 0
    if not asked.tables_only:
        outcome = work(runs, places, jobs=asked.jobs, seconds=None if asked.minutes is None else 60 * asked.minutes)
        code = outcome.exit_code
        print(f"\n{outcome}")
        if places.extra:
            print(f"With {' '.join(places.extra)} these are not results of a table; they are in {places.output}.")
            return code
        if code in (0, 1) and not (asked.only or asked.seeds or asked.minutes is not None):
            measure_missing(places.data, places.work, places.output / "figures")
    write_page(places.output)
    print(f"The tables are in {short_path(places.output / PAGE)}.")
    return code


def chosen_runs(only: Sequence[str], seeds: Sequence[str]) -> list[Run]:
    """The runs of these tables or cells, in order. Raises ConfigurationError for a name or seed that none has."""
    tables = {table.name for table in TABLES}
    runs = runs_in_order()

    def fits(run: Run, pattern: str) -> bool:
        return run.table == pattern if pattern in tables else fnmatchcase(run.cell.name, pattern)

    for pattern in only:
        if not any(fits(run, pattern) for run in runs):
            cells = ", ".join(dict.fromkeys(run.cell.name for run in runs))
            raise ConfigurationError(
                f"--only {pattern} matches no table or cell. Tables: {', '.join(sorted(tables))}. Cells: {cells}."
            )
    chosen = [run for run in runs if not only or any(fits(run, pattern) for pattern in only)]
    for seed in seeds:
        if seed not in {str(run.seed) for run in chosen}:
            raise ConfigurationError(f"--seeds {seed}: no chosen cell has this seed. Leave it out.")
    return [run for run in chosen if not seeds or str(run.seed) in seeds]


def places_of(asked: argparse.Namespace) -> Places:
    """Where everything is. Runs with overrides are other runs: their results are kept apart from the tables'."""
    extra = tuple(asked.overrides)
    wrong = next((word for word in extra if not _is_override(word)), None)
    if wrong is not None:
        raise ConfigurationError(f"{wrong!r} is not an override. Write KEY=VALUE, or --only {wrong} for a cell.")
    output = (asked.output or (WORK / "trials" if extra else RESULTS)).resolve()
    if extra and output == RESULTS:
        raise ConfigurationError(
            f"--output {asked.output} holds the results of the tables; runs with {' '.join(extra)} do not belong "
            "there. Leave --output out, or choose another directory."
        )
    return Places(asked.data_directory.resolve(), asked.work.resolve(), output, extra, asked.download)


def _is_override(word: str) -> bool:
    return "=" in word or word.startswith("~")


if __name__ == "__main__":
    raise SystemExit(main())
