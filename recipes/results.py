"""`make results`: every run that is missing, the most telling first, then figures, then the page in docs/results."""

import argparse
from collections.abc import Sequence
from importlib import import_module
from itertools import product

from lightning_gep.cli.summary import short_path
from lightning_gep.errors import ConfigurationError
from recipes.all_tables import TABLES, runs_in_order
from recipes.running.command import make_parser, parse, places_of, run_command
from recipes.running.jobs import Places
from recipes.running.page import FIGURES, PAGE, write_page
from recipes.running.refusals import exit_code

FIGURES_OF = ("cifar10", "mnist")


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0, 1 if a run failed, 2 for a setting that cannot work, 130 interrupted: the same command goes on."""
    parser = make_parser("python -m recipes.results", "All tables: runs what is missing, then writes the page.")
    parser.add_argument("--tables-only", action="store_true", help="write the page from the results there are")
    asked = parse(parser, arguments)
    return exit_code(parser.prog, lambda: _results(asked))


def _results(asked: argparse.Namespace) -> int:
    places = places_of(asked)
    code = 0 if asked.tables_only else run_command(asked, TABLES, runs_in_order())
    if asked.dry_run or places.extra:
        return code
    if code in (0, 1) and not (asked.tables_only or asked.only or asked.seeds or asked.minutes is not None):
        measure_figures(places)
    write_page(places.output)
    print(f"The tables are in {short_path(places.output / PAGE)}.")
    return code


def measure_figures(places: Places) -> None:
    """What is no table, as far as there is no picture of it yet. It trains, and goes on where it was cut."""
    output = places.output / "figures"
    for data, name in product(FIGURES_OF, FIGURES):
        if not (output / f"{name}_{data}.svg").exists():
            where = ["--data-directory", places.data, "--working-directory", places.work / f"measured_{data}"]
            words = ["--data", data, *where, "--output", output]
            try:
                import_module(f"recipes.{name}").main(list(map(str, words)))
            except ConfigurationError as error:
                print(f"{name} of {data}: not run. {error}")


if __name__ == "__main__":
    raise SystemExit(main())
