"""The random generators of this process: seeded for checks, put back afterwards, and made unpredictable for training.

A dropout mask or augmentation depends on a record's position in the batch, so adding one record changes those of all
later records. If the random numbers are known, as they are to everyone who knows the seed of `seed_everything`, that
changes the sum by far more than the clipping threshold. If they are secret, each record has its own, and its threshold
bounds what it does.

Of a seed, torch's CPU generator keeps 32 bits, few enough to try them all, and it has no public way to take more. So
this file writes the words of its Mersenne Twister where its state keeps them. A torch that lays out its state in
another way is recognised by the size of the state or refused by `set_state`; then RuntimeError is raised and nothing
is trained. `tests/gradients/test_randomness.py` tells whether the installed version fits.
"""

import os
import pickle
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from torch import nn

Generator: TypeAlias = random.Random | np.random.Generator | np.random.RandomState | torch.Generator
Result = TypeVar("Result")

HOST: tuple[Any, ...] = (random, np.random)
"""Modules with the functions of a generator: they stand for the global generators of Python and NumPy."""
STATE_WORDS, STATE_BYTES = 624, 5056
WORDS_BEGIN = 24
"""The words are 32 bits each, in 64, after the seed and two counters."""


class HostStates:
    """The present states of the generators of Python and NumPy, and of those `held` that are not torch's."""

    def __init__(self, held: Iterable[Generator] = ()) -> None:
        others = (each for each in held if not isinstance(each, torch.Generator))
        self._states = [(each, _state_of(each)) for each in (*HOST, *others)]

    def put_back(self) -> None:
        """Let the same numbers come again."""
        for each, state in self._states:
            _set_state(each, state)

    def differ(self) -> bool:
        """Whether something has drawn from one of the generators since."""
        return any(pickle.dumps(state) != pickle.dumps(_state_of(each)) for each, state in self._states)


@contextmanager
def random_state_kept(module: nn.Module | None = None) -> Iterator[None]:
    """On leaving, the random states of torch on every device in use, NumPy, Python and the module are put back."""
    held = [] if module is None else held_generators(module)
    with ExitStack() as kept:
        for each in (*HOST, *held):
            kept.callback(_set_state, each, _state_of(each))
        if torch.backends.mps.is_available():
            kept.callback(torch.mps.set_rng_state, torch.mps.get_rng_state())
        devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
        kept.enter_context(torch.random.fork_rng(devices=devices))
        yield


def seeded(function: Callable[[Any], Result], seed: int, held: Iterable[Generator] = ()) -> Callable[[Any], Result]:
    """The function with every random state seeded again at each call, also of the generators given."""
    held = list(held)

    def call(argument: Any) -> Result:
        seed_everywhere(seed, held)
        return function(argument)

    return call


def seed_everywhere(seed: int, held: Iterable[Generator] = ()) -> None:
    """Seed torch, NumPy, Python and the generators given."""
    # Not torch.manual_seed: for a device that is not in use yet it leaves the seed behind, to be set at its first use.
    for generator in (*HOST, torch.default_generator, *held):
        reseed(generator, seed)
    _seed_devices(seed)


def renew_random_states(held: Iterable[Generator] = ()) -> None:
    """Put random bits of the operating system into the generators of torch, NumPy and Python, and into those given."""
    for generator in (*HOST, torch.default_generator, *held):
        if isinstance(generator, torch.Generator) and generator.device.type == "cpu":
            generator.set_state(_new_state())
        else:
            reseed(generator, int.from_bytes(os.urandom(32), "little"))
    _seed_devices(int.from_bytes(os.urandom(8), "little") >> 1)


def held_generators(module: nn.Module) -> list[Generator]:
    """The generators in attributes of the module and its submodules, or in a list, tuple or dict there."""
    values = [value for part in module.modules() for value in vars(part).values()]
    inner = [list(value.values()) if isinstance(value, dict) else value for value in values]
    values += [item for items in inner if isinstance(items, list | tuple) for item in items]
    found = {id(value): value for value in values if isinstance(value, Generator)}
    return [held for held in found.values() if not isinstance(held, random.SystemRandom)]


def reseed(generator: Any, seed: int) -> None:
    """Start again from a seed of up to 256 bits, of which torch keeps 63."""
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed % 2**63)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = type(generator.bit_generator)(seed).state
    elif hasattr(generator, "getstate"):  # Python's
        generator.seed(seed)
    else:
        generator.seed(np.random.SeedSequence(seed).generate_state(8))


def _state_of(generator: Any) -> Any:
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.getstate() if hasattr(generator, "getstate") else generator.get_state()


def _set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif hasattr(generator, "setstate"):
        generator.setstate(state)
    else:
        generator.set_state(state)


def _seed_devices(seed: int) -> None:
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(seed)


def _new_state() -> torch.Tensor:
    """A state of torch's CPU generator of which every word is new."""
    state = torch.Generator().manual_seed(int.from_bytes(os.urandom(4), "little")).get_state()
    if len(state) != STATE_BYTES:
        raise RuntimeError(
            f"The state of torch {torch.__version__}'s random generator has {len(state)} bytes instead of "
            f"{STATE_BYTES}, so it cannot be made secret. Use torch 2.x versions that lightning-gep is tested with."
        )
    words = np.frombuffer(os.urandom(4 * STATE_WORDS), dtype=np.uint32).astype(np.uint64)
    state.numpy()[WORDS_BEGIN : WORDS_BEGIN + 8 * STATE_WORDS] = np.frombuffer(words.tobytes(), dtype=np.uint8)
    return state
