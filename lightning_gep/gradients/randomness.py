"""The states of all random generators: seeded for checks, put back afterwards, compared, and found in a module.

`fresh_randomness` gives them states that nobody can repeat.
"""

import pickle
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from torch import nn

from lightning_gep.gradients.state import attributes

Generator: TypeAlias = random.Random | np.random.Generator | np.random.RandomState | torch.Generator
Result = TypeVar("Result")


class HostStates:
    """The present states of the generators of Python and NumPy, and of those `held` that are not torch's."""

    def __init__(self, held: Iterable[Generator] = ()) -> None:
        self._python, self._numpy = random.getstate(), np.random.get_state()
        self._held = [(each, state_of(each)) for each in held if not isinstance(each, torch.Generator)]

    def now(self) -> "HostStates":
        """The states of the same generators at this moment."""
        return HostStates(each for each, _ in self._held)

    def put_back(self) -> None:
        """Let the same numbers come again."""
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        for each, state in self._held:
            set_state(each, state)

    def differ(self) -> bool:
        """Whether something has drawn from one of the generators since."""
        states = [self._python, self._numpy, *(state for _, state in self._held)]
        now = [random.getstate(), np.random.get_state(), *(state_of(each) for each, _ in self._held)]
        return any(pickle.dumps(one) != pickle.dumps(other) for one, other in zip(states, now, strict=True))


@contextmanager
def random_state_kept(module: nn.Module | None = None) -> Iterator[None]:
    """On leaving, the random states of torch on every device in use, NumPy, Python and the module are put back."""
    held = [] if module is None else held_generators(module)
    host, of_torch = HostStates(held), [(each, each.get_state()) for each in held if isinstance(each, torch.Generator)]
    metal = torch.mps.get_rng_state() if torch.backends.mps.is_available() else None
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []):
            yield
    finally:
        host.put_back()
        for generator, state in of_torch:
            generator.set_state(state)
        if metal is not None:
            torch.mps.set_rng_state(metal)


def seeded(function: Callable[[Any], Result], seed: int, held: Iterable[Generator] = ()) -> Callable[[Any], Result]:
    """The function with every random state seeded again at each call, also of the generators given."""
    held = list(held)

    def call(argument: Any) -> Result:
        seed_everywhere(seed, held)
        return function(argument)

    return call


def seed_everywhere(seed: int, held: Iterable[Generator] = ()) -> None:
    """Seed torch, NumPy, Python and the generators given."""
    for generator in held:
        reseed(generator, seed)
    random.seed(seed)
    np.random.seed(seed)
    # Not torch.manual_seed: for a device that is not in use yet it leaves the seed behind, to be set at its first use.
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(seed)


def held_generators(module: nn.Module) -> list[Generator]:
    """The generators in attributes of the module and its submodules, or in a list, tuple or dict there."""
    values = [inner for value in attributes(module).values() for inner in (value, *_inside(value))]
    found = {id(value): value for value in values if isinstance(value, Generator)}
    return [held for held in found.values() if not isinstance(held, random.SystemRandom)]


def state_of(generator: Generator) -> Any:
    """The state, to compare or to put back."""
    if isinstance(generator, random.Random):
        return generator.getstate()
    return generator.bit_generator.state if isinstance(generator, np.random.Generator) else generator.get_state()


def set_state(generator: Generator, state: Any) -> None:
    """Put a state back."""
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)


def reseed(generator: Generator, seed: int) -> None:
    """Start again from a seed of up to 256 bits, of which torch keeps 63."""
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
