"""Random numbers of this process that nobody can repeat, wherever private records are read or differentiated.

A dropout mask or augmentation depends on a record's position in the batch, so adding one record changes those of all
later records. If the random numbers are known, as they are to everyone who knows the seed of `seed_everything`, that
changes the sum by far more than the clipping threshold. If they are secret, each record has its own, and its threshold
bounds what it does.

Of a seed, torch's CPU generator keeps 32 bits, few enough to try them all, and it has no public way to take more. So
this file writes the words of its Mersenne Twister where its state keeps them. A torch that lays out its state in
another way is recognised by the size of the state or refused by `set_state`; then RuntimeError is raised and nothing
is trained. `tests/gradients/test_fresh_randomness.py` tells whether the installed version fits.
"""

import os
import random
from collections.abc import Iterable

import numpy as np
import torch

from lightning_gep.gradients.randomness import Generator, reseed

STATE_WORDS, STATE_BYTES = 624, 5056
WORDS_BEGIN = 24
"""The words are 32 bits each, in 64, after the seed and two counters."""


def renew_random_states(held: Iterable[Generator] = ()) -> None:
    """Put random bits of the operating system into the generators of torch, NumPy and Python, and into those given."""
    for generator in held:
        if isinstance(generator, torch.Generator) and generator.device.type == "cpu":
            generator.set_state(_new_state())
        else:
            reseed(generator, int.from_bytes(os.urandom(32), "little"))
    random.seed(os.urandom(32))
    np.random.seed(np.frombuffer(os.urandom(32), dtype=np.uint32))
    torch.set_rng_state(_new_state())
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(int.from_bytes(os.urandom(8), "little") >> 1)
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(int.from_bytes(os.urandom(8), "little") >> 1)


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
