"""A random number that some records of a step share and others do not would let one more record change many.

Records are differentiated in chunks, and one more moves others across their borders. So a number is drawn for each
record, or for all of a step. Copies of one record show it: their gradients differ, or are equal in every chunk.
"""

import random
import secrets

import numpy as np
import pytest
import torch
from lightning.pytorch.plugins import Precision
from torch import nn

from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.errors import ConfigurationError
from lightning_gep.gradients.randomness import HostStates, held_generators, reseed
from lightning_gep.strategy.step import StepGradients
from tests.toys import FEATURES, Classifier, records

CHUNK = 4
COPIES = 8 * CHUNK
ROUNDING = 1e-5


class Draws(Classifier):
    """Scales the inputs by a random number."""

    def __init__(self, draw, branches=False):
        super().__init__()
        self.draw, self.branches = draw, branches
        self.numpy_generator, self.python_generators = np.random.default_rng(3), [random.Random(3)]
        self.torch_generator = torch.Generator().manual_seed(3)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self(x * (1 + self.draw(self, x))), y)
        if self.branches:
            assert loss >= 0  # not under vmap
        return loss


OUTSIDE_TORCH = {
    "random": lambda _, x: random.random(),
    "numpy.random": lambda _, x: np.random.rand(),
    "a generator of NumPy that the module holds": lambda module, x: module.numpy_generator.random(),
    "a generator of Python in a list": lambda module, x: module.python_generators[0].random(),
}
FOR_A_BATCH = {
    "one number": lambda _, x: torch.rand(()),
    "a coin": lambda _, x: float(torch.rand(()) < 0.5),
    "a number that is asked for": lambda _, x: torch.rand(()).item(),
    "a mask for all": lambda _, x: torch.rand(FEATURES),
    "a mask for all, from a generator": lambda module, x: torch.rand(FEATURES, generator=module.torch_generator),
    "a permutation of features": lambda _, x: torch.randperm(FEATURES) / FEATURES,
}
FOR_EACH_RECORD = {
    "a number": lambda _, x: torch.rand(len(x), 1),
    "a mask": lambda _, x: torch.rand_like(x),
    "dropout": lambda _, x: nn.functional.dropout(x),
    "a mask, from a generator": lambda module, x: torch.rand(x.shape, generator=module.torch_generator),
}
ASK_FOR_VALUES = ("a coin", "a number that is asked for")


def step_gradients(module, how="auto", seed=None, expected_records=COPIES):
    """The gradients of a step, in chunks of CHUNK records."""
    made = StepGradients(
        module,
        Precision(),
        ParameterGroups.from_module(module),
        microbatch=CHUNK,
        expected_records=expected_records,
        seed=seed,
    )
    made.choose_backend(records(12, seed=99).tensors, how)
    return made


def of_copies(gradients):
    x, y = records()[:1]
    return torch.cat(list(gradients.of_private((x.repeat(COPIES, 1), y.repeat(COPIES)))))


def different(rows):
    """How many rows differ by more than rounding, which on some processors depends on the position in a chunk."""
    near = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist") < ROUNDING
    return int((near.int().argmax(1) == torch.arange(len(rows))).sum())


def differ_within_chunks(rows):
    """A fair coin for each record falls on the same side in all of each of eight chunks once in 10⁷ times."""
    return any(different(chunk) > 1 for chunk in rows.split(CHUNK))


@pytest.mark.parametrize("draw", OUTSIDE_TORCH)
def test_numbers_from_outside_torch_are_drawn_once_a_step(draw):
    gradients = step_gradients(Draws(OUTSIDE_TORCH[draw]))
    assert gradients.backend.name == "functional"
    steps = [of_copies(gradients) for _ in range(3)]
    assert [different(rows) for rows in steps] == [1, 1, 1], "by chunks there would be eight"
    assert different(torch.stack([rows[0] for rows in steps])) == 3


@pytest.mark.parametrize("draw", {**OUTSIDE_TORCH, **FOR_A_BATCH})
def test_in_a_loop_every_record_draws_its_own_numbers(draw):
    gradients = step_gradients(Draws({**OUTSIDE_TORCH, **FOR_A_BATCH}[draw], branches=True))
    assert gradients.backend.name == "loop"
    assert differ_within_chunks(of_copies(gradients))


@pytest.mark.parametrize("draw", {**FOR_A_BATCH, **FOR_EACH_RECORD})
def test_numbers_from_torch_are_drawn_for_each_record(draw):
    gradients = step_gradients(Draws({**FOR_A_BATCH, **FOR_EACH_RECORD}[draw]))
    assert gradients.backend.name == ("loop" if draw in ASK_FOR_VALUES else "functional")
    assert differ_within_chunks(of_copies(gradients))


def test_a_mask_that_could_be_for_each_record_is_found_by_the_check_on_public_records():
    """With CHUNK features for CHUNK records numbers alone do not tell whose they are."""
    module = Draws(lambda _, x: 0.0)
    gradients = step_gradients(module, "hooks")
    module.draw = lambda _, x: torch.cat([torch.rand(CHUNK), torch.zeros(FEATURES - CHUNK)])
    with pytest.raises(ConfigurationError, match="hooks would share random numbers"):
        gradients.check_again(records(12, seed=99).tensors)


@pytest.mark.parametrize(
    ("draw", "how"),
    [*((draw, "functional") for draw in OUTSIDE_TORCH), *(("nothing", how) for how in ("functional", "hooks", "loop"))],
)
def test_one_more_record_changes_no_other(draw, how):
    """With the same draws before and after; by chunks, the sum of the others' gradients would move by many norms."""
    module = Draws({**OUTSIDE_TORCH, "nothing": lambda _, x: 0.0}[draw])
    gradients = step_gradients(module, how, seed=0)
    x, y = records(5 * CHUNK).tensors
    found = []
    for first in (0, 1):
        for generator in held_generators(module):
            reseed(generator, 1)
        random.seed(1)
        np.random.seed(1)
        found.append(torch.cat(list(gradients.of_private((x[first:], y[first:])))))
    torch.testing.assert_close(found[0][1:], found[1], rtol=0, atol=ROUNDING)


OWN_GENERATORS = {
    "default_rng() in training_step": lambda _, x: np.random.default_rng().random(),
    "secrets": lambda _, x: secrets.randbelow(1000) / 1000,
    "random.SystemRandom": lambda _, x: random.SystemRandom().random(),
}


@pytest.mark.parametrize("branches", [False, True])
@pytest.mark.parametrize("draw", OWN_GENERATORS)
def test_numbers_that_nothing_can_watch_are_refused(draw, branches):
    with pytest.raises(ConfigurationError, match="make the generator an attribute of the module"):
        step_gradients(Draws(OWN_GENERATORS[draw], branches))


GENERATORS = {
    "Random": lambda: random.Random(1),
    "Generator": lambda: np.random.default_rng(1),
    "Philox": lambda: np.random.Generator(np.random.Philox(1)),
    "RandomState": lambda: np.random.RandomState(1),
}


@pytest.mark.parametrize("kind", GENERATORS)
def test_states_are_compared_and_put_back(kind):
    generator = GENERATORS[kind]()
    module = nn.Module()
    module.chance = {"a": random.SystemRandom(), "b": generator}
    assert held_generators(module) == [generator], "one without a state is left out"
    states = HostStates([generator])
    assert not states.differ()
    first = generator.random()
    assert states.differ()
    states.put_back()
    assert not states.differ()
    assert generator.random() == first
    for seeds, same in (((5, 5), True), ((5, 2**200 + 5), False)):
        drawn = [reseed(generator, seed) or generator.random() for seed in seeds]
        assert (drawn[0] == drawn[1]) is same
