"""Runs with the same settings except the seed form a group; means and standard deviations over groups."""

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, stdev
from typing import NamedTuple, TypeVar

from lightning_gep.privacy.rounding import rounded_up
from lightning_gep.reporting.runs import Run
from lightning_gep.reporting.text import mechanism_name

MAX_SERIES = 12
"""More lines than this in one plot cannot be told apart."""

# Settings that have a column of their own, and those that cannot change the result.
HAVE_A_PLACE = {
    "seed",
    "mechanism",
    "mechanism.k",
    "privacy.epsilon",
    "data",
    "privacy.log_nonprivate",
    "output_dir",
}
WITHOUT_EFFECT = ("threads", "logger", "callbacks", "hydra", "trainer.default_root_dir", "trainer.enable_")

Groups = dict[str, list[Run]]
T = TypeVar("T")


class Mean(NamedTuple):
    """The mean over a number of runs at a step; a single run has no standard deviation."""

    step: float
    mean: float
    deviation: float | None
    runs: int


class Settings:
    """Names the settings of a run by what differs among the given runs."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._several_data = len({run.data for run in runs if run.data}) > 1
        sizes = {(run.mechanism, run.k) for run in runs if run.k is not None}
        mechanisms = [mechanism for mechanism, _ in sizes]
        self._several_k = {mechanism for mechanism in mechanisms if mechanisms.count(mechanism) > 1}
        self.varying = varying(runs)
        """Other settings that differ: `optimizer.lr`."""

    def name(self, run: Run, *, others: bool = True, k: bool = True, data: bool = False, epsilon: bool = False) -> str:
        """`GEP, k = 100, optimizer.lr = 0.1`; runs without privacy are marked."""
        parts = [mechanism_name(run.mechanism)]
        if k and run.mechanism in self._several_k and run.k is not None:
            parts.append(f"k = {run.k}")
        if others:
            parts += [f"{name} = {run.overrides[name]}" for name in self.varying if name in run.overrides]
        if run.not_private:
            parts.append("not private")
        if epsilon:
            parts.append(f"ε = {rounded_up(epsilon_of(run))}")
        return (f"{run.data}: " if data and self._several_data and run.data else "") + ", ".join(parts)


def varying(runs: Sequence[Run]) -> list[str]:
    """The overrides that differ between runs and are not shown elsewhere."""
    names = dict.fromkeys(name for run in runs for name in run.overrides)
    kept = [name for name in names if name not in HAVE_A_PLACE and not name.startswith(WITHOUT_EFFECT)]
    return [name for name in kept if len({run.overrides.get(name) for run in runs}) > 1]


def epsilon_of(run: Run) -> float | None:
    """The ε a run is listed under: its target, or what it spent if it has none; ∞ without noise."""
    if run.epsilon == math.inf or run.target_epsilon is None:
        return run.epsilon if run.epsilon is None or math.isinf(run.epsilon) else float(rounded_up(run.epsilon))
    return run.target_epsilon


def grouped(runs: Iterable[Run], key: Callable[[Run], str]) -> Groups:
    """The runs by name, in order of first appearance."""
    groups: Groups = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    return groups


def at_most(runs: Sequence[Run], keys: Sequence[Callable[[Run], str]], most: int = MAX_SERIES) -> tuple[Groups, bool]:
    """The finest grouping with at most `most` groups, and whether it pools what the first key tells apart.

    If even the coarsest key gives too many groups, its largest ones are kept.
    """
    for level, key in enumerate(keys):
        groups = grouped(runs, key)
        if len(groups) <= most:
            return groups, level > 0
    largest = sorted(groups, key=lambda name: -len(groups[name]))[:most]
    return {name: found for name, found in groups.items() if name in largest}, True


def spread(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean and the standard deviation (n − 1 in the denominator)."""
    return fmean(values), stdev(values) if len(values) > 1 else None


def mean_curve(curves: Iterable[list[tuple[float, float]]], scale: float = 1.0) -> list[Mean]:
    """The mean at every step where all curves that span the step have a value.

    A curve counts once per step, with its last value. Steps that only some of the running curves logged are left out,
    so the mean does not jump when its members change. Curves that have ended are no longer waited for.
    """
    tables = [table for table in map(dict, curves) if table]
    spans = [(min(table), max(table)) for table in tables]
    found = []
    for step in sorted({step for table in tables for step in table}):
        values = [scale * table[step] for table in tables if step in table]
        if len(values) == sum(first <= step <= last for first, last in spans):
            found.append(Mean(step, *spread(values), len(values)))
    return found


def thinned(points: Sequence[T], most: int) -> list[T]:
    """At most `most` of the points, evenly spaced, including the first and the last."""
    if len(points) <= most:
        return list(points)
    stride = (len(points) - 1) / (most - 1)
    return [points[round(index * stride)] for index in range(most)]
