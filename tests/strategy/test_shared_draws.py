"""A random number that some records of a step share and others do not would let one more record change many.

Records are differentiated in chunks, and one more moves others across their borders. So a number is drawn for each
record, or for all of a step. Copies of one record show it: their gradients differ, or are equal in every chunk.
"""

import random
import secrets

import numpy as np
import pytest
import torch
from torch import nn

from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.errors import ConfigurationError
from lightning_gep.gradients import choose_backend
from lightning_gep.gradients.host_states import HostStates, held_generators, reseed, state_of
from lightning_gep.gradients.randomness import DrawSizes
from tests.toys import CLASSES, FEATURES, Classifier, loader, records, strategy, trainer

CHUNK = 4
COPIES = 8 * CHUNK


class Draws(Classifier):
    """Scales the inputs by a random number."""

    def __init__(self, draw, metric=False):
        super().__init__()
        self.draw, self.metric = draw, metric
        self.numpy_generator, self.python_generators = np.random.default_rng(3), [random.Random(3)]
        self.torch_generator = torch.Generator().manual_seed(3)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self(x * (1 + self.draw(self, x))), y)
        if self.metric:
            loss.item()  # not under vmap
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
    "a mask for all": lambda _, x: torch.rand(FEATURES),
    "a mask for all, from a generator": lambda module, x: torch.rand(FEATURES, generator=module.torch_generator),
    "a permutation of features": lambda _, x: torch.randperm(FEATURES) / FEATURES,
}
FOR_EACH_RECORD = {
    "a number": lambda _, x: torch.rand(len(x), 1),
    "a mask": lambda _, x: torch.rand_like(x),
    "dropout": lambda _, x: nn.functional.dropout(x),
    "a mask, time first": lambda _, x: nn.functional.dropout(x.T).T,
    "a mask, from a generator": lambda module, x: torch.rand(x.shape, generator=module.torch_generator),
}


def trained(tmp_path, module, **settings):
    """The gradients of a strategy that has trained for a step, in chunks of CHUNK records."""
    used = strategy(**{"mechanism": "gp", "generator": "system", "microbatch_size": CHUNK, **settings})
    trainer(tmp_path, used, max_steps=1).fit(module, loader())
    return used._gradients


def of_copies(gradients):
    x, y = records()[:1]
    return torch.cat(list(gradients.of_private((x.repeat(COPIES, 1), y.repeat(COPIES)))))


def different(rows):
    return len({tuple(row) for row in rows.tolist()})


def differ_within_chunks(rows):
    """A fair coin for each record falls on the same side in all of each of eight chunks once in 10⁷ times."""
    return any(different(chunk) > 1 for chunk in rows.split(CHUNK))


@pytest.mark.parametrize("draw", OUTSIDE_TORCH)
def test_numbers_from_outside_torch_are_drawn_once_a_step(draw, tmp_path):
    gradients = trained(tmp_path, Draws(OUTSIDE_TORCH[draw]))
    assert gradients.backend.name == "functional"
    steps = [of_copies(gradients) for _ in range(3)]
    assert [different(rows) for rows in steps] == [1, 1, 1], "by chunks there would be eight"
    assert different(torch.stack([rows[0] for rows in steps])) == 3


@pytest.mark.parametrize("draw", {**OUTSIDE_TORCH, **FOR_A_BATCH})
def test_numbers_for_a_batch_are_drawn_for_each_record_where_hooks_would_share_them(draw, tmp_path):
    gradients = trained(tmp_path, Draws({**OUTSIDE_TORCH, **FOR_A_BATCH}[draw], metric=True))
    assert gradients.backend.name == "loop"
    assert differ_within_chunks(of_copies(gradients))


@pytest.mark.parametrize("draw", {**FOR_A_BATCH, **FOR_EACH_RECORD})
def test_numbers_from_torch_are_drawn_for_each_record(draw, tmp_path):
    gradients = trained(tmp_path, Draws({**FOR_A_BATCH, **FOR_EACH_RECORD}[draw]))
    asks_for_values = draw in ("a coin", "a permutation of features")
    assert gradients.backend.name == ("loop" if asks_for_values else "functional")
    assert differ_within_chunks(of_copies(gradients))


@pytest.mark.parametrize("draw", FOR_EACH_RECORD)
def test_numbers_for_each_record_keep_the_hooks(draw, tmp_path):
    gradients = trained(tmp_path, Draws(FOR_EACH_RECORD[draw], metric=True))
    assert gradients.backend.name == "hooks"
    assert differ_within_chunks(of_copies(gradients))


def test_hooks_that_are_asked_for_are_refused(tmp_path):
    module = Draws(lambda _, x: float(torch.rand(()) < 0.5), metric=True)
    with pytest.raises(ConfigurationError, match="hooks would share random numbers among records"):
        trained(tmp_path, module, gradients="hooks")


LATER = {
    "random": lambda _, x: random.random(),
    "numpy.random": lambda _, x: np.random.rand(),
    "torch": lambda _, x: float(torch.rand(())),
}


@pytest.mark.parametrize("draw", LATER)
def test_a_step_that_begins_to_draw_for_a_chunk_is_computed_record_by_record_at_once(draw, tmp_path):
    module = Draws(lambda _, x: 0.0, metric=True)
    gradients = trained(tmp_path, module)
    assert gradients.backend.name == "hooks"
    assert different(of_copies(gradients)) == 1
    module.draw = LATER[draw]
    with pytest.warns(UserWarning, match=r"training_step draws random numbers .* a chunk would share"):
        assert different(of_copies(gradients)) == COPIES
    assert gradients.backend.name == "loop"
    assert gradients.backend.reason.startswith("loop: training_step draws random numbers")


def test_a_mask_that_could_be_for_each_record_is_found_by_the_check_on_public_records(tmp_path):
    """With CHUNK features for CHUNK records numbers alone do not tell whose they are."""
    module = Draws(lambda _, x: 0.0, metric=True)
    gradients = trained(tmp_path, module)
    module.draw = lambda _, x: torch.cat([torch.rand(CHUNK), torch.zeros(FEATURES - CHUNK)])
    with pytest.warns(UserWarning, match="for a batch as a whole"):
        gradients.check_again(next(iter(loader())))
    assert different(of_copies(gradients)) == COPIES


@pytest.mark.parametrize(
    ("draw", "metric"), [*((name, False) for name in OUTSIDE_TORCH), ("nothing", False), ("nothing", True)]
)
def test_one_more_record_changes_no_other(draw, metric, tmp_path):
    """With the same draws before and after; by chunks, the sum of the others' gradients would move by many norms."""
    module = Draws({**OUTSIDE_TORCH, "nothing": lambda _, x: 0.0}[draw], metric)
    gradients = trained(tmp_path, module, generator="seeded")
    assert gradients.backend.name == ("hooks" if metric else "functional")
    x, y = records(5 * CHUNK).tensors
    found = []
    for first in (0, 1):
        for generator in held_generators(module):
            reseed(generator, 1)
        random.seed(1)
        np.random.seed(1)
        found.append(torch.cat(list(gradients.of_private((x[first:], y[first:])))))
    assert torch.equal(found[0][1:], found[1])


OWN_GENERATORS = {
    "default_rng() in training_step": lambda _, x: np.random.default_rng().random(),
    "secrets": lambda _, x: secrets.randbelow(1000) / 1000,
    "random.SystemRandom": lambda _, x: random.SystemRandom().random(),
}


@pytest.mark.parametrize("metric", [False, True])
@pytest.mark.parametrize("draw", OWN_GENERATORS)
def test_numbers_that_nothing_can_watch_are_refused(draw, metric, tmp_path):
    with pytest.raises(ConfigurationError, match="make the generator an attribute of the module"):
        trained(tmp_path, Draws(OWN_GENERATORS[draw], metric))


def test_choosing_a_backend_leaves_the_generators_of_the_module_alone():
    module = Draws(OUTSIDE_TORCH["a generator of NumPy that the module holds"])
    before = [str(state_of(generator)) for generator in held_generators(module)]
    batch = (torch.randn(6, FEATURES), torch.randint(CLASSES, (6,)))
    choose_backend(module, lambda batch: module.training_step(batch, 0), ParameterGroups.from_module(module), batch)
    assert len(before) == 3
    assert [str(state_of(generator)) for generator in held_generators(module)] == before


GENERATORS = {
    "Random": lambda: random.Random(1),
    "Generator": lambda: np.random.default_rng(1),
    "Philox": lambda: np.random.Generator(np.random.Philox(1)),
    "RandomState": lambda: np.random.RandomState(1),
}


@pytest.mark.parametrize("kind", GENERATORS)
def test_states_are_compared_and_put_back(kind):
    generator = GENERATORS[kind]()
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


def test_generators_that_have_no_state_are_left_out():
    module = nn.Module()
    module.chance = {"a": random.SystemRandom(), "b": random.Random()}
    assert held_generators(module) == [module.chance["b"]]


def test_every_draw_of_torch_is_noted():
    x = torch.ones(3, 4)
    with DrawSizes() as draws:
        nn.functional.dropout(x)
        torch.randn(2)
        x.clone().uniform_(generator=torch.Generator())
        torch.distributions.Normal(x, 1.0).rsample()
        torch.relu(x)
    assert draws.sizes == [12, 2, 12, 12]
    assert not draws.unseen
    with DrawSizes() as draws:
        torch.relu(x)
    assert not draws.unseen
    with DrawSizes() as draws:
        torch.set_rng_state(torch.Generator().manual_seed(9).get_state())
    assert draws.unseen
