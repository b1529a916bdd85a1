"""`python -m benchmarks.scaling`: how seconds and memory of a step grow with each size, the others fixed."""

import argparse
import json
from datetime import date
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress

from benchmarks.machine import description
from benchmarks.plots import draw_scaling
from benchmarks.run import HERE, in_a_process, step_seconds, steps_of
from benchmarks.settings import PROBES, SETTINGS

BASE = SETTINGS["resnet20, scaled"]
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
    parser.add_argument("--output", type=Path, default=HERE / "results", help="where the figures go")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
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


def figures(point: Point) -> dict[str, Any]:
    """Seconds of a step, and memory above what there was before the first one."""
    contender, setting, changes = point
    run = in_a_process(contender, SETTINGS[setting], steps_of(contender, quick=True), **changes)
    return {
        "seconds": next(step_seconds(contender, run["seconds"])),
        "peak_mb": run["peak_mb"],
        "growth_mb": run["peak_mb"] - run["baseline_mb"],
    }


if __name__ == "__main__":
    main()
