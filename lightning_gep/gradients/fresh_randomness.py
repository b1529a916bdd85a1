"""Random numbers of this process that nobody can repeat, wherever private records are read or differentiated.

Which mask or augmentation a record gets depends on its place in the batch, so one record more gives others to all that
follow. That changes the sum by far more than a threshold if the random numbers are known, as they are to everyone who
knows the seed of `seed_everything`. If they are not, each record has its own, and its threshold bounds what it does.
"""

import os
import random
from collections.abc import Iterable

import numpy as np
import torch

from lightning_gep.gradients.host_states import Generator, reseed

STATE_WORDS = 624
WORDS_BEGIN = 24
"""Of the Mersenne Twister in torch's CPU generator: 32 bits each, in 64, after the seed and two counters."""


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
    """A whole new state of torch's CPU generator: of a seed it would keep 32 bits, which can all be tried."""
    state = torch.Generator().manual_seed(int.from_bytes(os.urandom(4), "little")).get_state()
    words = np.frombuffer(os.urandom(4 * STATE_WORDS), dtype=np.uint32).astype(np.uint64)
    state.numpy()[WORDS_BEGIN : WORDS_BEGIN + 8 * STATE_WORDS] = np.frombuffer(words.tobytes(), dtype=np.uint8)
    return state
