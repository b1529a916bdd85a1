"""`python -m benchmarks.audit audit.json picture.svg`: the picture of docs/audit.md from the JSON of gep-audit."""

import argparse
import json
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from recipes.writing import save_svg

NAMES = {"gep": "GEP", "bgep": "B-GEP", "gp": "GP", "spectral": "spectral"}
BOUNDS = {
    ("release", "Gaussian"): ("o", "#1d3557", "one release, Gaussian"),
    ("release", "threshold"): ("^", "#c1666b", "one release, threshold"),
    ("run", "likelihood ratios"): ("s", "#7aa5d2", "whole run, likelihood ratios"),
}


def draw(findings: list[dict[str, Any]], path: Path) -> None:
    """Claims as lines, bounds as points under them, a group for every mechanism."""
    claims = sorted({round(finding["claimed"]) for finding in findings})
    figure = Figure(figsize=(7.2, 3.2), layout="constrained")
    axes = figure.subplots()
    for (part, name), (marker, color, label) in BOUNDS.items():
        points = [
            (list(NAMES).index(finding["mechanism"]) + 0.22 * (claims.index(round(finding["claimed"])) - 1), bound)
            for finding in findings
            if finding["part"] == part
            for bound in (each["epsilon"] for each in finding["bounds"] if each["name"] == name)
        ]
        axes.scatter(*zip(*points, strict=True), marker=marker, color=color, label=label, zorder=3, s=28)
    for place in range(len(NAMES)):
        for number, claim in enumerate(claims):
            middle = place + 0.22 * (number - 1)
            label = "claimed" if place == number == 0 else None
            axes.hlines(claim, middle - 0.09, middle + 0.09, color="#222222", linewidth=2, label=label)
    axes.set(xticks=range(len(NAMES)), xticklabels=NAMES.values(), ylabel="ε", ylim=(0, 1.1 * max(claims)))
    axes.grid(axis="y", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=4, frameon=False, fontsize="small")
    save_svg(figure, path)


def main() -> None:
    """Read the findings and draw them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("findings", type=Path)
    parser.add_argument("picture", type=Path)
    options = parser.parse_args()
    draw(json.loads(options.findings.read_text("utf-8"))["findings"], options.picture)


if __name__ == "__main__":
    main()
