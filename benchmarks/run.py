"""`make bench`: every contender at every setting, side by side, in interleaved repetitions.

Each measurement is a process of its own, so that no one's memory or warm caches serve another.
"""

import argparse
import json
import statistics
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from datetime import date
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress

from benchmarks.contenders import CONTENDERS
from benchmarks.limit import matmul_speed, seconds_at_the_limit
from benchmarks.machine import description
from benchmarks.measure import laps, quietly_elsewhere
from benchmarks.settings import FULL, QUICK, SETTINGS, Setting
from benchmarks.tables import markdown
from lightning_gep.strategy.settings import CostSettings

HERE = Path(__file__).parent
REFRESHED = {"bgep": 1, "gep": 1, "gep_auto": 1, "gep_tree": 1, "spectral": 4, "spectral_ghost": 4}
"""Steps between two refreshes by default: only whole laps can be compared."""
SLOW = {"gep_cold", "paper"}


def main() -> None:
    """Measure, and write JSON and a table."""
    options = parse()
    settings = [s for s in (QUICK if options.quick else FULL) if not options.settings or s.name in options.settings]
    name = "quick" if options.quick else "latest"
    file = options.output / f"{name}.json"
    part = options.settings or options.contenders
    kept = json.loads(file.read_text())["settings"] if part and file.exists() else {}
    results = {
        "date": str(date.today()),
        "threads": torch.get_num_threads(),
        "machine": description(),
        "settings": kept,
    }
    for setting in settings:
        before = kept.get(setting.name, {}).get("contenders", {}) if options.contenders else {}
        names = [name for name in CONTENDERS if not options.contenders or name in ("plain", *options.contenders)]
        found = measure(setting, names, options.repetitions, quick=options.quick)
        results["settings"][setting.name] = joined(setting, {**before, **found})
        options.output.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(results, indent=2) + "\n")
        (options.output / f"{name}.md").write_text(markdown(results))
    print(markdown(results))


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one small network, one repetition: half a minute")
    parser.add_argument("--repetitions", type=int, default=None, help="interleaved repetitions (default 3; quick: 1)")
    parser.add_argument("--settings", nargs="*", default=[], help="only these settings; the others' figures stay")
    parser.add_argument(
        "--contenders",
        nargs="*",
        default=[],
        choices=CONTENDERS,
        help="only these and plain Lightning; the others' figures stay, with their date",
    )
    parser.add_argument("--output", type=Path, default=HERE / "results", help="where the figures go")
    options = parser.parse_args()
    options.repetitions = options.repetitions or (1 if options.quick else 3)
    return options


def measure(setting: Setting, contenders: Sequence[str], repetitions: int, *, quick: bool) -> dict[str, Any]:
    """Contenders at one setting: medians over the repetitions, with the smallest and the largest."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in contenders}
    with Progress() as progress:
        task = progress.add_task(setting.name, total=repetitions * len(contenders))
        for _ in range(repetitions):
            for contender in contenders:
                progress.update(task, description=f"{setting.name}: {contender}")
                found[contender].append(in_a_process(contender, setting, steps_of(contender, quick=quick)))
                progress.advance(task)
    return {contender: summary(contender, runs) for contender, runs in found.items()}


def joined(setting: Setting, table: dict[str, Any]) -> dict[str, Any]:
    """The figures of a setting, in the order of the contenders, and what follows from them."""
    table = {name: table[name] for name in CONTENDERS if name in table}
    speed = matmul_speed(setting)
    limit = seconds_at_the_limit(
        setting,
        plain=table["plain"]["seconds"]["median"],
        speed=speed,
        anchors=CostSettings().anchors,
        refresh_every=REFRESHED["gep"],
    )
    sizes = {"n": setting.n, "m": setting.m, "k": setting.k, "microbatch": setting.microbatch}
    return {**sizes, "matmul_gflops": speed / 1e9, "limit_seconds": limit, "contenders": table}


def steps_of(contender: str, *, quick: bool) -> int:
    """Steps that are timed, after one that is not."""
    if contender in REFRESHED:
        return REFRESHED[contender] * (1 if quick else 2)
    return 1 if quick or contender in SLOW else 4


def in_a_process(contender: str, setting: Setting, steps: int, **changes: int | str) -> dict[str, Any]:
    """The figures of one process, forked from a server that has imported everything; `changes` are to the setting."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.contenders"])
    try:
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            return pool.submit(_measured, contender, setting.name, steps, changes).result()
    except Exception as error:
        raise RuntimeError(f"{contender} at {setting.name} failed: {error}") from error


def _measured(contender: str, setting: str, steps: int, changes: dict[str, Any]) -> dict[str, Any]:
    """In the process: the contender in a temporary directory, where its ledger and card go."""
    with quietly_elsewhere():
        return asdict(CONTENDERS[contender](replace(SETTINGS[setting], **changes), steps))


def summary(contender: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Seconds of a step and memory of a process over the repetitions, and the day they were measured."""
    seconds = [lap for run in runs for lap in step_seconds(contender, run["seconds"])]
    return {
        "date": str(date.today()),
        "seconds": spread(seconds),
        "peak_mb": spread([run["peak_mb"] for run in runs]),
        "growth_mb": spread([run["peak_mb"] - run["baseline_mb"] for run in runs]),
    }


def step_seconds(contender: str, seconds: list[float]) -> Iterator[float]:
    """Comparable figures: single steps, or laps from refresh to refresh."""
    return laps(seconds, REFRESHED.get(contender, 1))


def spread(values: list[float]) -> dict[str, float]:
    """Median, smallest and largest."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


if __name__ == "__main__":
    main()
