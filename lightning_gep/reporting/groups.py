"""Runs with the same settings except the seed form a group; means and standard deviations over groups."""

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, stdev
from typing import Literal, TypeVar

from lightning_gep.privacy.rounding import rounded_up
from lightning_gep.reporting.runs import Run
from lightning_gep.reporting.text import NOTHING, listed, mechanism_name, with_spread

MAX_SERIES = 12
"""More lines than this in one plot cannot be told apart."""

# Settings that have a column of their own, and those that cannot change the result.
HAVE_A_PLACE = {"seed", "mechanism", "mechanism.k", "privacy.epsilon", "data"}
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

Groups = dict[str, list[Run]]
Part = Literal["data", "epsilon", "k", "others"]
"""Parts of a setting's name besides the mechanism."""
T = TypeVar("T")


class Settings:
    """Names the settings of a run by what differs among the given runs."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._several_data = len({run.data for run in runs if run.data}) > 1
        sizes = {(run.mechanism, run.k) for run in runs if run.k is not None}
        mechanisms = [mechanism for mechanism, _ in sizes]
        self._several_k = {mechanism for mechanism in mechanisms if mechanisms.count(mechanism) > 1}
        names = dict.fromkeys(name for run in runs for name in run.overrides)
        kept = [name for name in names if name not in HAVE_A_PLACE and not name.startswith(WITHOUT_EFFECT)]
        self.varying = [name for name in kept if len({run.overrides.get(name) for run in runs}) > 1]
        """Other settings that differ: `optimizer.lr`."""

    def name(self, run: Run, *parts: Part) -> str:
        """`GEP, k = 100, optimizer.lr = 0.1` with the parts that differ; runs without privacy are marked."""
        words = [mechanism_name(run.mechanism)]
        if "k" in parts and run.mechanism in self._several_k and run.k is not None:
            words.append(f"k = {run.k}")
        if "others" in parts:
            words += [f"{name} = {run.overrides[name]}" for name in self.varying if name in run.overrides]
        if run.not_private:
            words.append("not private")
        if "epsilon" in parts:
            words.append(f"ε = {rounded_up(epsilon_of(run))}")
        return (f"{run.data}: " if "data" in parts and self._several_data and run.data else "") + ", ".join(words)

    def groups(self, runs: Sequence[Run], *parts: Part, most: int = MAX_SERIES) -> tuple[Groups, list[str]]:
        """The runs by name. While there are more than `most` groups, the last part is left out of the names.

        Also a note if parts were left out, because then a group has runs that differ in more than the seed.
        """
        kept = list(parts)
        while len(found := grouped(runs, lambda run: self.name(run, *kept))) > most and kept:
            kept.pop()
        words = {"data": "dataset", "epsilon": "ε", "k": "k", "others": listed(self.varying)}
        pooled = listed([words[part] for part in parts if part not in kept and words[part]])
        note = f"At most {most} lines are drawn: runs that differ in {pooled} share one, so the spread is not over"
        return found, [f"{note} seeds alone."] if pooled else []


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


def percentages(runs: Iterable[Run], name: str) -> list[float]:
    """The last values of a logged share, in percent."""
    return [100 * value for run in runs if (value := run.newest(name)) is not None]


def mean_percentage(runs: Iterable[Run], name: str) -> str:
    """Mean ± standard deviation in percent."""
    values = percentages(runs, name)
    return with_spread(*spread(values), 2) if values else NOTHING


def most_spent(runs: Iterable[Run]) -> str:
    """The largest ε that one of the runs spent."""
    return rounded_up(max((run.epsilon for run in runs if run.epsilon is not None), default=None))


def thinned(points: Sequence[T], most: int) -> list[T]:
    """At most `most` of the points, evenly spaced, including the first and the last."""
    if len(points) <= most:
        return list(points)
    stride = (len(points) - 1) / (most - 1)
    return [points[round(index * stride)] for index in range(most)]
