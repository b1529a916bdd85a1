"""`gep-report`: a run, a sweep or all runs below a directory as one HTML page or as Markdown."""

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
    default = "DIR/report.html or DIR/report.md"
    add("--output", metavar="FILE", help=f"where to write it (default: {default}; - prints it)")
    add("--format", choices=["html", "md"], default="html", help="one HTML file, or Markdown tables")
    add("--open", action="store_true", help="open the report in the browser")
    options = parser.parse_args(arguments)
    if options.open and options.output == "-":
        parser.error("--open needs a file, but --output is -. Pass a file name, or omit --open")
    # Imported here, so that --help does not wait for it.
    from lightning_gep.reporting.report import html_report, markdown_report
    from lightning_gep.reporting.runs import load

    with errors_in_a_line("gep-report"):
        collection = load(options.directory)
        text = markdown_report(collection) if options.format == "md" else html_report(collection)
        _write(text, options)
    for warning in collection.warnings:
        sys.stderr.write(f"gep-report: {' '.join(warning.split())}\n")
    if not all(run.readable for run in collection.runs):
        parser.exit(2)


def _write(text: str, options: argparse.Namespace) -> None:
    if options.output == "-":
        sys.stdout.buffer.write(text.encode("utf-8"))
        sys.stdout.buffer.flush()
        return
    path = Path(options.output) if options.output else options.directory / f"report.{options.format}"
    path.write_text(text, "utf-8", newline="\n")
    print(f"gep-report: wrote {path}")
    if options.open:
        webbrowser.open(path.resolve().as_uri())


if __name__ == "__main__":
    main()
