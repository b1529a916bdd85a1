"""Runs with the same settings except the seed form a group; means and standard deviations over groups."""

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, stdev
from typing import TypeVar

from lightning_gep.privacy.rounding import rounded_up
from lightning_gep.reporting.runs import Run
from lightning_gep.reporting.text import mechanism_name

MAX_SERIES = 12
"""More lines than this in one plot cannot be told apart."""

# Settings that are named in another way, and those that cannot change the result.
NAMED = {"seed", "mechanism", "mechanism.k", "privacy.epsilon", "data"}
WITHOUT_EFFECT = (
    "threads",
    "output_dir",
    "privacy.log_nonprivate",
    "logger",
    "callbacks",
    "hydra",
    "trainer.default_root_dir",
    "trainer.enable_",
)

T = TypeVar("T")


def by_settings(runs: Sequence[Run], left_out: str = "") -> dict[str, list[Run]]:
    """The runs by mechanism and every setting that differs among them, such as `GEP, k = 100, optimizer.lr = 0.1`.

    The seed never differs, nor does the setting `left_out` ("k" or "ε"). If that makes more than `MAX_SERIES` groups,
    runs are told apart by their mechanism alone, and the names say so. Groups without privacy are marked.
    """
    settings = {id(run): _settings(run) for run in runs}
    names = dict.fromkeys(name for each in settings.values() for name in each if name != left_out)
    differ = [name for name in names if len({each.get(name) for each in settings.values()}) > 1]

    def name_of(run: Run) -> str:
        own = settings[id(run)]
        words = [f"{name} = {own[name]}" for name in differ if name in own]
        return ", ".join([_marked_mechanism(run), *words])

    groups = grouped(runs, name_of)
    if len(groups) <= MAX_SERIES:
        return groups
    return grouped(runs, lambda run: f"{_marked_mechanism(run)}, several settings")


def _marked_mechanism(run: Run) -> str:
    return mechanism_name(run.mechanism) + (" (not private)" if run.not_private else "")


def _settings(run: Run) -> dict[str, str]:
    named = {"data": run.data, "k": "" if run.k is None else str(run.k), "ε": rounded_up(epsilon_of(run))}
    others = {
        name: value
        for name, value in run.overrides.items()
        if name not in NAMED and not name.startswith(WITHOUT_EFFECT)
    }
    return {name: value for name, value in (named | others).items() if value}


def epsilon_of(run: Run) -> float | None:
    """The ε a run is listed under: its target, or what it spent if it has none; ∞ without noise."""
    if run.epsilon == math.inf or run.target_epsilon is None:
        return run.epsilon if run.epsilon is None or math.isinf(run.epsilon) else float(rounded_up(run.epsilon))
    return run.target_epsilon


def grouped(items: Iterable[T], key: Callable[[T], str]) -> dict[str, list[T]]:
    """The items by name, in order of first appearance."""
    groups: dict[str, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def spread(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean and the standard deviation (n − 1 in the denominator)."""
    return fmean(values), stdev(values) if len(values) > 1 else None


def thinned(points: Sequence[T], most: int) -> list[T]:
    """At most `most` of the points, evenly spaced, including the first and the last."""
    if len(points) <= most:
        return list(points)
    stride = (len(points) - 1) / (most - 1)
    return [points[round(index * stride)] for index in range(most)]
