"""`gep-report`: a run, a sweep or all runs below a directory as one HTML page."""

import argparse
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path

from lightning_gep.cli.commands import errors_in_a_line


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the report. Exit code 0, or 2 with a line on stderr for everything that could not be read or written.

    An unreadable run file also gives 2, but all other runs are still reported.
    """
    parser = argparse.ArgumentParser(
        prog="gep-report", description="Write a report of a run, a sweep, or all runs below a directory."
    )
    add = parser.add_argument
    add("directory", type=Path, metavar="DIR", help="the directory of a run or a sweep, or one above them")
    add("--output", type=Path, metavar="FILE", help="where to write it (default: DIR/report.html)")
    add("--open", action="store_true", help="open the report in the browser")
    options = parser.parse_args(arguments)
    # Imported here, so that --help does not wait for it.
    from lightning_gep.reporting.report import html_report
    from lightning_gep.reporting.runs import load

    path = options.output or options.directory / "report.html"
    with errors_in_a_line("gep-report"):
        collection = load(options.directory)
        path.write_text(html_report(collection), "utf-8", newline="\n")
    print(f"gep-report: wrote {path}")
    if options.open:
        webbrowser.open(path.resolve().as_uri())
    for warning in collection.warnings:
        sys.stderr.write(f"gep-report: {' '.join(warning.split())}\n")
    if not all(run.readable for run in collection.runs):
        parser.exit(2)


if __name__ == "__main__":
    main()
