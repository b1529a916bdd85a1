"""`python -m benchmarks.profile_step resnet20`: where the time of a step of GEP goes.

The parts are timed by wrapping the functions that do them, on the clock; a part's time is without that of the parts
inside it. What is not wrapped, Lightning's loop and the user's optimizer, is the rest.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.contenders import gep
from benchmarks.measure import quietly_elsewhere
from benchmarks.run import HERE
from benchmarks.settings import SETTINGS, Setting
from lightning_gep.algorithm import gep as mechanism
from lightning_gep.algorithm.basis import Basis
from lightning_gep.algorithm.noise import SystemNoise
from lightning_gep.gradients.interface import Backend
from lightning_gep.privacy.account import PrivacyAccount
from lightning_gep.strategy.data import PoissonLoader
from lightning_gep.strategy.exchange import SharedBasis

REST = "Lightning, optimizer and the rest"
ORDER = (
    "private gradients",
    "anchor gradients",
    "basis update",
    "projection",
    "clipping and sums",
    "reconstruction",
    "noise",
    "sampling and loading",
    "accounting and ledger",
    REST,
)


class Parts:
    """Exclusive times: while an inner part runs, the outer one's clock stands still."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = dict.fromkeys(ORDER, 0.0)
        self._running: list[str] = []
        self._since = time.perf_counter()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Everything inside counts for `name`, but for the parts in it."""
        self._note()
        self._running.append(name)
        try:
            yield
        finally:
            self._note()
            self._running.pop()

    def _note(self) -> None:
        now = time.perf_counter()
        self.seconds[self._running[-1] if self._running else REST] += now - self._since
        self._since = now

    def start(self) -> None:
        """From here on."""
        self.seconds = dict.fromkeys(ORDER, 0.0)
        self._since = time.perf_counter()

    def inside(self, name: str) -> bool:
        """Whether the part is running, perhaps with others in it."""
        return name in self._running


def profile(setting: Setting, steps: int) -> dict[str, float]:
    """Seconds of a step by part, over `steps` after the one that fills the basis."""
    parts, done = Parts(), 0

    def wrapped(function: Callable[..., Any], name: str | Callable[[], str]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            with parts.part(name if isinstance(name, str) else name()):
                return function(*args, **kwargs)

        return timed

    def gradients_of() -> str:
        return "anchor gradients" if parts.inside("basis update") else "private gradients"

    def loading(function: Callable[..., Any]) -> Callable[..., Any]:
        def batches(self: Any) -> Iterator[Any]:
            nonlocal done
            iterator = iter(function(self))
            while True:
                if done == 1:
                    parts.start()
                with parts.part("sampling and loading"):
                    batch = next(iterator, None)
                if batch is None:
                    return
                done += 1
                yield batch

        return batches

    for owner, attribute, name in (
        (Backend, "__call__", gradients_of),
        (SharedBasis, "at_step", "basis update"),
        (Basis, "embed", "projection"),
        (mechanism.Sums, "add", "clipping and sums"),
        (mechanism.Sums, "residual", "reconstruction"),
        (mechanism, "reconstruct", "reconstruction"),
        (SystemNoise, "normal", "noise"),
        (PrivacyAccount, "charge", "accounting and ledger"),
    ):
        setattr(owner, attribute, wrapped(getattr(owner, attribute), name))
    PoissonLoader.__iter__ = loading(PoissonLoader.__iter__)  # type: ignore[method-assign]
    gep(setting, steps)
    parts._note()
    return {name: seconds / steps for name, seconds in parts.seconds.items()}


def table(seconds: dict[str, float]) -> str:
    """A Markdown table."""
    total = sum(seconds.values())
    rows = [f"| {name} | {value:.3f} s | {100 * value / total:.1f} % |" for name, value in seconds.items()]
    return "\n".join(["| part of a step | seconds | share |", "|---|---|---|", *rows, f"| **all** | {total:.3f} s | |"])


def main() -> None:
    """Profile a setting, and write the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile_step", description=__doc__)
    parser.add_argument("setting", choices=list(SETTINGS), default="resnet20", nargs="?")
    parser.add_argument("--steps", type=int, default=4)
    options = parser.parse_args()
    with quietly_elsewhere():
        seconds = profile(SETTINGS[options.setting], options.steps)
    (HERE / "results" / "profile.json").write_text(json.dumps({options.setting: seconds}, indent=2) + "\n")
    print(table(seconds))


if __name__ == "__main__":
    main()
