"""`python -m benchmarks.scaling`: how seconds and memory of a step grow with each size, the others fixed."""

import argparse
import json
from datetime import date
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from rich.progress import Progress

from benchmarks.machine import description
from benchmarks.measure import quietly_elsewhere
from benchmarks.processes import STEPS, in_processes, table
from benchmarks.run import HERE, in_a_process, step_seconds, steps_of
from benchmarks.settings import PROBES, SETTINGS
from benchmarks.tables import NAMES
from recipes.writing import save_svg

BASE = SETTINGS["resnet20, scaled"]
COLOURS = {
    "plain": "#8a8a8a",
    "opacus_hooks": "#c1666b",
    "gp": "#7aa5d2",
    "gep": "#1d3557",
    "gep_cold": "#9a6fb0",
    "paper": "#d1495b",
}
TITLES = {"n": "records n", "m": "anchors m", "k": "basis vectors k", "p": "parameters p"}
Point = tuple[str, str, dict[str, int | str]]
"""A contender, the name of a setting, and what is changed in it."""


def points() -> dict[str, dict[str, list[tuple[int | str, Point]]]]:
    """Axis → curve → where it is measured."""
    return {
        "n": {
            # Of those whose memory grows with n, no more than can be expected to fit.
            **{
                name: [(n, (name, BASE.name, {"n": n})) for n in (250, 1000, 2000)]
                for name in ("plain", "opacus_hooks")
            },
            **{name: [(n, (name, BASE.name, {"n": n})) for n in (250, 1000, 2000, 8000)] for name in ("gp", "gep")},
        },
        "m": {
            "gep_cold": [(m, ("gep_cold", BASE.name, {"m": m})) for m in (250, 2000, 8000)],
            "paper": [(m, ("paper", BASE.name, {"m": m})) for m in (250, 1000, 2000)],
        },
        "k": {
            "gep": [(k, ("gep", BASE.name, {"k": k})) for k in (100, 250, 500, 1000, 2000)],
            "gep_cold": [(k, ("gep_cold", BASE.name, {"k": k, "m": 2000})) for k in (100, 500, 2000)],
        },
        "p": {
            name: [(10 * length, (name, f"probe of {length}", {})) for length in PROBES]
            for name in ("opacus_hooks", "gp", "gep")
        },
        "groups": {"gep": [(groups, ("gep", BASE.name, {"grouping": groups})) for groups in (1, 2, 3, 5, 10)]},
        "microbatch": {
            name: [(size, (name, BASE.name, {"microbatch": size, "n": 500})) for size in (16, 64, 125, 250, 500)]
            for name in ("opacus_hooks", "gp", "gep")
        },
    }


def main() -> None:
    """Measure what is not there yet, and draw."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("--axes", nargs="*", default=[], help="n, m, k, p, groups or microbatch; all by default")
    parser.add_argument("--processes", type=int, nargs="+", help="only a step in so many processes, e.g. 1 2 4")
    parser.add_argument("--records", type=int, default=64, help="records of that step, over all processes (default 64)")
    parser.add_argument("--output", type=Path, default=HERE / "results", help="where the figures go")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    if options.processes:
        compare_processes(options.processes, options.records, options.output / "processes.json")
        return
    file = options.output / "scaling.json"
    results = json.loads(file.read_text()) if file.exists() else {"axes": {}}
    results |= {"date": str(date.today()), "threads": torch.get_num_threads(), "machine": description()}
    chosen = {axis: curves for axis, curves in points().items() if not options.axes or axis in options.axes}
    with Progress() as progress:
        task = progress.add_task("", total=sum(len(curve) for curves in chosen.values() for curve in curves.values()))
        for axis, curves in chosen.items():
            results["axes"][axis] = {name: [] for name in curves}
            for name, curve in curves.items():
                for at, point in curve:
                    progress.update(task, description=f"{axis} = {at}: {name}")
                    results["axes"][axis][name].append({"at": at, **figures(point)})
                    progress.advance(task)
            file.write_text(json.dumps(results, indent=2) + "\n")
    draw_scaling(results, options.output / "scaling.svg")


def compare_processes(counts: list[int], records: int, file: Path) -> None:
    """Seconds, memory and bytes of a step of ResNet20 in so many processes, printed and written down."""
    results: dict[str, Any] = {"date": str(date.today()), "machine": description(), "records": records, "steps": {}}
    torch.set_num_threads(1)
    for contender in STEPS:
        with quietly_elsewhere():
            results["steps"][contender] = {str(n): in_processes(contender, n, BASE, records) for n in counts}
        file.write_text(json.dumps(results, indent=2) + "\n")
    print(table(results["steps"]))


def figures(point: Point) -> dict[str, Any]:
    """Seconds of a step, and memory above what there was before the first one."""
    contender, setting, changes = point
    run = in_a_process(contender, SETTINGS[setting], steps_of(contender, quick=True), **changes)
    return {
        "seconds": next(step_seconds(contender, run["seconds"])),
        "peak_mb": run["peak_mb"],
        "growth_mb": run["peak_mb"] - run["baseline_mb"],
    }


def draw_scaling(results: dict[str, Any], file: Path) -> None:
    """Seconds above, memory below, a column for every axis."""
    axes_measured = results["axes"]
    columns = len(axes_measured)
    figure = Figure(figsize=(3.6 * columns, 6.4))
    axes = figure.subplots(2, columns, squeeze=False)
    for column, (axis, curves) in enumerate(axes_measured.items()):
        for row, (key, label) in enumerate((("seconds", "seconds of a step"), ("growth_mb", "MB above set-up"))):
            picture = axes[row][column]
            for name, curve in curves.items():
                picture.plot(
                    [point["at"] for point in curve],
                    [point[key] for point in curve],
                    marker="o",
                    markersize=3.5,
                    color=COLOURS[name],
                    label=NAMES[name].replace("*", ""),
                )
            picture.set_xscale("log", base=2)
            ticks = sorted({point["at"] for curve in curves.values() for point in curve})
            picture.set_xticks(ticks, [f"{tick:,}".replace(",", " ") for tick in ticks], fontsize=7, rotation=30)
            picture.set_ylim(bottom=0)
            picture.set_xlabel(TITLES.get(axis, axis))
            picture.set_ylabel(label if column == 0 else "")
            picture.grid(alpha=0.25)
        axes[0][column].legend(fontsize=6.5, frameon=False)
    figure.tight_layout()
    save_svg(figure, file)


if __name__ == "__main__":
    main()
