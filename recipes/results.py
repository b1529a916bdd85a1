"""`make results`: every run that is missing, the most telling first, then the page of them all in docs/results."""

import argparse
from collections.abc import Sequence

from lightning_gep.cli.summary import short_path
from recipes.all_tables import TABLES, runs_in_order
from recipes.running.command import make_parser, parse, places_of, run_command
from recipes.running.page import PAGE, write_page
from recipes.running.refusals import exit_code


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0, 1 if a run failed, 2 for a setting that cannot work, 130 interrupted: the same command goes on."""
    parser = make_parser("python -m recipes.results", "All tables: runs what is missing, then writes the page.")
    parser.add_argument("--tables-only", action="store_true", help="write the page from the results there are")
    asked = parse(parser, arguments)
    return exit_code(parser.prog, lambda: _results(asked))


def _results(asked: argparse.Namespace) -> int:
    places = places_of(asked)
    code = 0 if asked.tables_only else run_command(asked, TABLES, runs_in_order())
    if asked.tables_only:
        write_page(places.output)
    if not asked.dry_run and not places.extra:
        print(f"The tables are in {short_path(places.output / PAGE)}.")
    return code


if __name__ == "__main__":
    raise SystemExit(main())
