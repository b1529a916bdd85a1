"""Pictures that are the same, byte for byte, whenever they show the same."""

from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

STYLE = {
    "svg.fonttype": "none",  # text stays text: smaller, and it can be searched
    "svg.hashsalt": "recipes",  # or the names of its parts are drawn at random
}


def save_svg(figure: Figure, file: Path) -> None:
    """Write a figure, without the date."""
    with matplotlib.rc_context(STYLE):
        figure.savefig(file, metadata={"Date": None})
