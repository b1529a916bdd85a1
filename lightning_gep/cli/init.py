"""`gep-init`: a ready project in an empty folder."""

import argparse
from collections.abc import Sequence
from pathlib import Path

TEMPLATES = Path(__file__).parent / "project"
NEXT = """\
gep-init: wrote {files} to {directory}
Put your images into {directory}/data/train/<class>/ (those to test on, if you have set some aside, into
{directory}/data/test/<class>/, and public ones, if you have any, into {directory}/data/public/any/). Then, in
{directory}:
  python train.py    trains privately and writes a privacy card below runs/; settings are in config.yaml
  gep-report .       writes report.html about all runs
  pytest             checks that the project still works (pip install pytest)
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Exit code 0, or 2 with a line on stderr if the folder is not empty or cannot be written to."""
    parser = argparse.ArgumentParser(
        prog="gep-init", description="Write a ready project, which trains privately on your own images."
    )
    parser.add_argument("directory", type=Path, nargs="?", default=Path(), help="an empty or new folder (default: .)")
    directory = parser.parse_args(arguments).directory
    try:
        directory.mkdir(parents=True, exist_ok=True)
        found = next(directory.iterdir(), None)
        if found is not None:
            parser.exit(2, f"gep-init: {directory} is not empty (it has {found.name}). Name a new folder.\n")
        for template in TEMPLATES.iterdir():
            (directory / template.stem).write_text(template.read_text("utf-8"), "utf-8")
    except OSError as error:
        parser.exit(2, f"gep-init: {error}\n")
    print(NEXT.format(files=", ".join(sorted(file.stem for file in TEMPLATES.iterdir())), directory=directory), end="")


if __name__ == "__main__":
    main()
