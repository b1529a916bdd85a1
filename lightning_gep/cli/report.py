"""`gep-report`: a run, a sweep or all runs below a directory as one HTML page or as Markdown."""

import argparse
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path

from lightning_gep.errors import ConfigurationError


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the report. Exit code 0, or 2 with a line on stderr for everything that could not be read or written.

    An unreadable run file also gives 2, but all other runs are still reported.
    """
    options = _parser().parse_args(arguments)
    # Imported here, so that --help does not wait for it.
    from lightning_gep.reporting.report import html_report, markdown_report
    from lightning_gep.reporting.runs import load

    try:
        if options.open and options.output == "-":
            raise ConfigurationError("--open needs a file, but --output is -. Pass a file name, or omit --open.")
        collection = load(options.directory)
        text = markdown_report(collection) if options.format == "md" else html_report(collection)
        _write(text, options)
    except (ConfigurationError, OSError) as error:
        return _complain(str(error))
    for warning in collection.warnings:
        _complain(warning)
    return 2 if collection.damaged else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gep-report",
        description="Write a report of a run, a sweep, or all runs below a directory.",
    )
    parser.add_argument(
        "directory", type=Path, metavar="DIR", help="the directory of a run or a sweep, or one above them"
    )
    parser.add_argument(
        "--output", metavar="FILE", help="where to write it (default: DIR/report.html or DIR/report.md; - prints it)"
    )
    parser.add_argument("--format", choices=["html", "md"], default="html", help="one HTML file, or Markdown tables")
    parser.add_argument("--open", action="store_true", help="open the report in the browser")
    return parser


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


def _complain(message: str) -> int:
    print(f"gep-report: {' '.join(message.split())}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
