"""Random numbers during the checks: seeded, made equal for all records, and put back afterwards."""

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from lightning_gep.gradients.host_states import Generator, reseed
from lightning_gep.gradients.interface import LossFunction

T = TypeVar("T")
DROPOUTS = {
    *("dropout", "dropout_", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "alpha_dropout_"),
    *("feature_dropout", "feature_dropout_", "feature_alpha_dropout", "feature_alpha_dropout_"),
}
WITH_DROPOUT = {
    *("scaled_dot_product_attention", "multi_head_attention_forward"),
    *("lstm", "gru", "rnn_tanh", "rnn_relu"),
}
DRAWS = {
    *("rand", "rand_like", "randn", "randn_like", "normal"),
    *("normal_", "uniform_", "exponential_", "log_normal_", "cauchy_"),
}
COINS = {"bernoulli", "bernoulli_"}
INTEGERS = {"randint", "randint_like", "multinomial"}
SEEDS, SEEDS_AT_A_LEVEL = range(16), range(8)
LEVELS = (0.0, 1 - 2**-20)
"""For what happens with some random numbers only. In the place of those between 0 and 1, a coin that torch throws falls
either way at one of these levels, however rarely it does otherwise. Permutations stay random, and one may leave all in
their places, so each level has several seeds."""


@contextmanager
def random_state_kept() -> Iterator[None]:
    """The random states of torch, on every device in use, of NumPy and of Python are put back on leaving."""
    python, numpy = random.getstate(), np.random.get_state()
    metal = torch.mps.get_rng_state() if torch.backends.mps.is_available() else None
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        if metal is not None:
            torch.mps.set_rng_state(metal)


def seeded(loss_function: LossFunction, seed: int, held: Iterable[Generator] = ()) -> LossFunction:
    """The loss with every random state seeded anew at each call, also of generators that a module holds."""
    held = list(held)

    def loss(batch: Any) -> Tensor:
        seed_everywhere(seed, held)
        return loss_function(batch)

    return loss


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


class DrawSizes(TorchDispatchMode):
    """Inside, notes how many random numbers torch draws at a time, by whatever name and from whatever generator."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self.unseen = False
        """Whether torch's own generator has moved although nothing was noted: a library's operator may draw within."""

    def __enter__(self) -> "DrawSizes":
        self._before = torch.get_rng_state()
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self.unseen = not self.sizes and not torch.equal(self._before, torch.get_rng_state())

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = operator(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded in operator.tags:
            self.sizes.append((result[0] if isinstance(result, tuple) else result).numel())
        return result

    def for_each_of(self, records: int) -> bool:
        """Whether the numbers can be shared out: as many for each of so many records."""
        return all(size % records == 0 for size in self.sizes)


def quiet(loss_function: Callable[[Any], T], level: float = 0.5) -> Callable[[Any], T]:
    """The loss without dropout, and with `level` in the place of every number from a range that torch draws.

    So a loss that is random in training mode can be compared between one batch and its records alone, without leaving
    training mode, in which alone some things happen.
    """

    def loss(batch: Any) -> T:
        with _Quiet(level):
            return loss_function(batch)

    return loss


class _Quiet(TorchFunctionMode):
    def __init__(self, level: float) -> None:
        super().__init__()
        self.level = level

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        return _substitute(getattr(function, "__name__", ""), function, args, kwargs, self.level)


def _substitute(
    name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], level: float
) -> Any:
    if name in DROPOUTS:
        return args[0] if args else kwargs["input"]
    if name in WITH_DROPOUT:
        # The probability of dropout is the only float that these take by position.
        args = tuple(0.0 if isinstance(arg, float) else arg for arg in args)
        return function(*args, **{key: 0.0 if key == "dropout_p" else value for key, value in kwargs.items()})
    if name == "gumbel_softmax":
        return _softmax(*args, **kwargs)
    result = function(*args, **kwargs)
    if name == "uniform_":
        low, high = _bounds(args, kwargs)
        return _filled(name, result, low + level * (high - low))
    if name in DRAWS:
        return _filled(name, result, level)
    if name in COINS:
        return _filled(name, result, 1.0)
    if name in INTEGERS:
        return _filled(name, result, _lowest(args, kwargs))
    return result


def _softmax(logits: Tensor, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1) -> Tensor:
    return torch.softmax(logits / tau, dim)


def _lowest(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """The lower bound in the arguments of randint: given by name, or the first of two whole numbers."""
    bounds = [arg for arg in args if isinstance(arg, int)]
    return int(kwargs.get("low", bounds[0] if len(bounds) > 1 else 0))


def _bounds(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[float, float]:
    """The range of uniform_, given by position or by name."""
    given = dict(zip(("from", "to"), args[1:3], strict=False)) | kwargs
    return float(given.get("from", 0.0)), float(given.get("to", 1.0))


def _filled(name: str, result: Tensor, value: float) -> Tensor:
    return result.fill_(value) if name.endswith("_") else torch.full_like(result, value)
