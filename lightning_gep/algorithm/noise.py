"""Gaussian noise and where its randomness comes from. Standard normal draws in float64; the mechanism scales them."""

import os
from typing import NoReturn, Protocol

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from torch import Tensor

from lightning_gep.arguments import one_of


class Noise(Protocol):
    """A source of standard normal vectors."""

    def normal(self, size: int, *, step: int, part: str, device: torch.device) -> Tensor:
        """`size` standard normal numbers in float64, for one part of the release of one step."""


class _OwnProcess:
    """Randomness that belongs to one process: it cannot be saved or copied, and a forked child starts its own."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        """Draw new state from the operating system."""
        self._process = os.getpid()

    def _after_fork(self) -> None:
        if self._process != os.getpid():
            self._start()

    def __reduce__(self) -> NoReturn:
        raise TypeError("A source of noise must not be saved or copied: its draws would come twice.")


class SystemNoise(_OwnProcess):
    """The default: a fast generator, started from operating system entropy in every process.

    On the CPU the generator is NumPy's with 256 bits, because torch's keeps only the low 32 bits of its seed: two runs
    in 77 000 would share all their noise with even odds. On other devices it is the device's own generator with a
    64-bit seed, so that nothing waits for the host.
    """

    def _start(self) -> None:
        super()._start()
        # Without `pool_size` NumPy would keep 128 of the bits.
        entropy = np.random.SeedSequence(int.from_bytes(os.urandom(32), "little"), pool_size=8)
        self._numpy = np.random.Generator(np.random.PCG64DXSM(entropy))
        self._torch: dict[torch.device, torch.Generator] = {}

    def normal(self, size: int, *, step: int, part: str, device: torch.device) -> Tensor:
        """The next `size` draws; they never come again, whatever the step."""
        self._after_fork()
        if device.type == "cpu":
            return torch.from_numpy(self._numpy.standard_normal(size))
        return torch.randn(size, dtype=torch.float64, device=device, generator=self._generator(device))

    def _generator(self, device: torch.device) -> torch.Generator | None:
        if device.type == "meta":
            return None
        if device not in self._torch:
            seed = int.from_bytes(os.urandom(8), "little", signed=True)
            self._torch[device] = torch.Generator(device).manual_seed(seed)
        return self._torch[device]


class SecureNoise(_OwnProcess):
    """Cryptographically secure: ChaCha20 under a key from the operating system, which exists only in this process.

    Each number is the sum of four independent Box–Muller draws, halved: a single draw takes so few floating-point
    values that a noisy result can betray the sum under it (Mironov 2012); undoing a sum of four is infeasible (Holohan
    and Braghin 2021).
    """

    DRAWS = 4

    def _start(self) -> None:
        super()._start()
        algorithm = algorithms.ChaCha20(key=os.urandom(32), nonce=os.urandom(16))
        self._keystream = Cipher(algorithm, mode=None).encryptor()

    def normal(self, size: int, *, step: int, part: str, device: torch.device) -> Tensor:
        """The next `size` draws; the stream cipher's counter only moves forward."""
        self._after_fork()
        if size == 0:
            return torch.zeros(0, dtype=torch.float64, device=device)
        pairs = self.DRAWS // 2 * size
        bits = np.frombuffer(self._keystream.update(bytes(16 * pairs)), dtype=np.uint64).reshape(2, pairs)
        uniform = ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
        radius, angle = np.sqrt(-2 * np.log(uniform[0])), 2 * np.pi * uniform[1]
        # The two numbers of a pair go to neighbouring places, so that each sum has four pairs in it and not two.
        cosines, sines = ((radius * part(angle)).reshape(-1, size) for part in (np.cos, np.sin))
        summed = (cosines + np.roll(sines, 1, axis=1)).sum(axis=0) / np.sqrt(self.DRAWS)
        return torch.from_numpy(summed).to(device)


class SeededNoise:
    """Reproducible draws from (seed, step, part), for tests. Not private: who knows the seed can subtract the noise."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def normal(self, size: int, *, step: int, part: str, device: torch.device) -> Tensor:
        """The same `size` numbers whenever seed, step and part are the same."""
        entropy = [self.seed, step, *part.encode()]
        return torch.from_numpy(np.random.default_rng(entropy).standard_normal(size)).to(device)


class NoNoise:
    """Zeros, for the processes of a distributed run that leave the noise to another one."""

    def normal(self, size: int, *, step: int, part: str, device: torch.device) -> Tensor:
        """Nothing is added here."""
        return torch.zeros(size, dtype=torch.float64, device=device)


def make_noise(generator: str, seed: int = 0) -> Noise:
    """The source of noise of that name; `seed` matters for "seeded" only."""
    one_of("generator", generator, ("system", "secure", "seeded"))
    if generator == "seeded":
        return SeededNoise(seed)
    return SecureNoise() if generator == "secure" else SystemNoise()
