"""The states of random generators outside torch: Python's, NumPy's, and those that a module holds."""

import pickle
import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn

from lightning_gep.gradients.state import attributes

Generator: TypeAlias = random.Random | np.random.Generator | np.random.RandomState | torch.Generator


class HostStates:
    """The states at the time this is made, of Python, NumPy and those `held` that are not torch's."""

    def __init__(self, held: Iterable[Generator] = ()) -> None:
        self._python, self._numpy = random.getstate(), np.random.get_state()
        self._held = [(each, state_of(each)) for each in held if not isinstance(each, torch.Generator)]

    def now(self) -> "HostStates":
        """The states of the same generators at another time."""
        return HostStates(each for each, _ in self._held)

    def put_back(self) -> None:
        """Let the same numbers come again."""
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        for each, state in self._held:
            set_state(each, state)

    def differ(self) -> bool:
        """Whether something has drawn from one of the generators since."""
        return random.getstate() != self._python or any(
            pickle.dumps(now) != pickle.dumps(before)
            for now, before in [
                (np.random.get_state(), self._numpy),
                *((state_of(each), state) for each, state in self._held),
            ]
        )


def held_generators(module: nn.Module) -> list[Generator]:
    """Those in attributes of the module and its submodules, or in a list, tuple or dict there."""
    values = [inner for value in attributes(module).values() for inner in (value, *_inside(value))]
    found = {id(value): value for value in values if isinstance(value, Generator)}
    return [held for held in found.values() if not isinstance(held, random.SystemRandom)]


@contextmanager
def held_generators_kept(module: nn.Module) -> Iterator[None]:
    """On leaving, the generators that the module holds are in the states they were in."""
    before = [(held, state_of(held)) for held in held_generators(module)]
    try:
        yield
    finally:
        for held, state in before:
            set_state(held, state)


def state_of(generator: Generator) -> Any:
    """The state, to compare or to put back."""
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.get_state()


def set_state(generator: Generator, state: Any) -> None:
    """Put a state back."""
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)


def reseed(generator: Generator, seed: int) -> None:
    """Start anew from a seed of up to 256 bits, of which torch keeps 63."""
    if isinstance(generator, random.Random):
        generator.seed(seed)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = type(generator.bit_generator)(seed).state
    elif isinstance(generator, np.random.RandomState):
        generator.seed(np.random.SeedSequence(seed).generate_state(8))
    else:
        generator.manual_seed(seed % 2**63)


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple) else []
