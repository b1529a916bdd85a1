"""Which runs belong together: the same settings but for the seed. Means and deviations over such groups."""

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, stdev
from typing import TypeVar

from lightning_gep.privacy.rounding import rounded_up
from lightning_gep.reporting.load import Run
from lightning_gep.reporting.text import mechanism_name

MOST_SERIES = 12
"""More lines than this in one plot cannot be told apart."""

# What has a column of its own, or cannot change the result.
HAVE_A_PLACE = {"seed", "mechanism", "mechanism.k", "privacy.epsilon", "data", "privacy.log_nonprivate", "output_dir"}
WITHOUT_EFFECT = ("threads", "logger", "callbacks", "hydra", "trainer.default_root_dir", "trainer.enable_")

Groups = dict[str, list[Run]]
Mean = tuple[float, float, float | None, int]
"""A step, the mean there, the standard deviation and the number of runs."""

T = TypeVar("T")


class Settings:
    """Names the settings of a run by what differs among the runs at hand."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._several_data = len({run.data for run in runs if run.data}) > 1
        self._several_k = {
            mechanism
            for mechanism in {run.mechanism for run in runs}
            if len({run.k for run in runs if run.mechanism == mechanism and run.k is not None}) > 1
        }
        self.varying = varying(runs)
        """Further settings that differ: `optimizer.lr`."""

    def name(self, run: Run, *, others: bool = True, k: bool = True) -> str:
        """`GEP, k = 100, optimizer.lr = 0.1`, with a mark on what is not private."""
        parts = [mechanism_name(run.mechanism)]
        if k and run.mechanism in self._several_k and run.k is not None:
            parts.append(f"k = {run.k}")
        if others:
            parts += [f"{name} = {run.overrides[name]}" for name in self.varying if name in run.overrides]
        if run.not_private:
            parts.append("not private")
        return ", ".join(parts)

    def data(self, run: Run) -> str:
        """The data set, where there are several."""
        return f"{run.data}: " if self._several_data and run.data else ""


def varying(runs: Iterable[Run]) -> list[str]:
    """The overrides that differ from run to run, beyond those that have a place of their own."""
    runs = list(runs)
    names = dict.fromkeys(name for run in runs for name in run.overrides)
    kept = [name for name in names if name not in HAVE_A_PLACE and not name.startswith(WITHOUT_EFFECT)]
    return [name for name in kept if len({run.overrides.get(name) for run in runs}) > 1]


def epsilon_of(run: Run) -> float | None:
    """The ε that a run is filed under: its target, or what it spent without one; ∞ without noise."""
    if run.epsilon == math.inf or run.target_epsilon is None:
        return run.epsilon if run.epsilon is None or math.isinf(run.epsilon) else float(rounded_up(run.epsilon))
    return run.target_epsilon


def grouped(runs: Iterable[Run], key: Callable[[Run], str]) -> Groups:
    """The runs by name, in order of first appearance."""
    groups: Groups = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    return groups


def at_most(runs: Sequence[Run], keys: Sequence[Callable[[Run], str]], most: int = MOST_SERIES) -> tuple[Groups, int]:
    """The finest grouping with few enough groups, and how many finer ones were passed over.

    The last key is taken in any case; beyond `most` its largest groups are kept.
    """
    for level, key in enumerate(keys):
        groups = grouped(runs, key)
        if len(groups) <= most:
            return groups, level
    largest = sorted(groups, key=lambda name: -len(groups[name]))[:most]
    return {name: found for name, found in groups.items() if name in largest}, len(keys)


def spread(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean and the standard deviation (n − 1 in the denominator), which one value does not have."""
    return fmean(values), stdev(values) if len(values) > 1 else None


def mean_curve(curves: Iterable[list[tuple[float, float]]]) -> list[Mean]:
    """(step, mean, deviation, number of runs) at every step where all curves that reach it have a value.

    A curve counts once per step, with its last value. Steps that only some of the running curves logged are left out,
    so that the mean does not jump with who is in it; a curve that has ended is no longer waited for.
    """
    tables = [table for table in map(dict, curves) if table]
    spans = [(min(table), max(table)) for table in tables]
    found = []
    for step in sorted({step for table in tables for step in table}):
        values = [table[step] for table in tables if step in table]
        reaching = sum(first <= step <= last for first, last in spans)
        if len(values) == reaching:
            found.append((step, *spread(values), len(values)))
    return found


def thinned(points: Sequence[T], most: int) -> list[T]:
    """At most `most` of the points, evenly spaced, first and last among them."""
    if len(points) <= most:
        return list(points)
    stride = (len(points) - 1) / (most - 1)
    return [points[round(index * stride)] for index in range(most)]
