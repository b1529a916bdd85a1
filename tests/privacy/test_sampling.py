import copy
import pickle

import numpy as np
import pytest
from scipy import stats
from torch.utils.data import DataLoader, Dataset

from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy.sampling import PoissonSampler, Secret, seeded_secret


def sampler(n=1000, batch=50, secret=None, steps=20, **kwargs):
    return PoissonSampler(n, batch, secret=secret or Secret(), steps_per_epoch=steps, **kwargs)


def test_every_record_is_in_with_probability_q_independently():
    n, batch, steps = 500, 40, 4000
    counts = np.zeros(n)
    together = 0
    sizes = []
    poisson = sampler(n, batch)
    for step in range(steps):
        drawn = poisson.draw(step)
        assert len(drawn) == len(set(drawn))
        counts[drawn] += 1
        sizes.append(len(drawn))
        member = np.zeros(n, dtype=bool)
        member[drawn] = True
        together += np.count_nonzero(member[::2] & member[1::2])
    q = batch / n
    assert stats.chisquare(counts, np.full(n, counts.sum() / n)).pvalue > 1e-6
    assert abs(counts.sum() / (n * steps * q) - 1) < 5 / np.sqrt(n * steps * q)
    assert np.var(sizes) == pytest.approx(n * q * (1 - q), rel=0.2), "the size of a batch varies as a binomial does"
    pairs = steps * n / 2
    assert together / pairs == pytest.approx(q * q, abs=6 * q / np.sqrt(pairs)), "pairs are drawn as if by chance"


def test_empty_batches_are_real():
    poisson = sampler(n=1000, batch=1, steps=1000)
    sizes = [len(batch) for batch in poisson]
    assert len(sizes) == 1000
    assert sizes.count(0) / 1000 == pytest.approx(np.exp(-1), abs=0.1)
    assert poisson.expected_batch_size == 1


def test_no_two_steps_and_no_two_starts_draw_the_same():
    draws = [tuple(poisson.draw(step)) for poisson in (sampler(), sampler()) for step in range(50)]
    assert len(set(draws)) == len(draws)


def test_epochs_do_not_repeat():
    poisson = sampler(steps=5)
    first = list(poisson)
    poisson.first_step = 5
    assert all(a != b for a, b in zip(first, poisson, strict=True))


class Indices(Dataset):
    def __getitem__(self, index):
        return index

    def __len__(self):
        return 1000


@pytest.mark.parametrize("workers", [0, 2])
def test_prefetching_workers_do_not_shift_the_draws(workers):
    poisson = sampler(steps=12)
    loader = DataLoader(
        Indices(), batch_sampler=poisson, num_workers=workers, prefetch_factor=4 if workers else None, collate_fn=list
    )
    iterator = iter(loader)
    seen = [next(iterator) for _ in range(5)]
    del iterator
    poisson.first_step = 5
    seen += list(loader)[:7]
    assert seen == [poisson.draw(step) for step in range(12)]


def test_the_order_of_a_batch_is_random():
    """In increasing order one more record would move all later ones to another position."""
    poisson = sampler()
    draws = [draw for draw in (poisson.draw(step) for step in range(2000)) if len(draw) > 1]
    rising = sum(first < second for first, second, *_ in draws)
    assert abs(rising - len(draws) / 2) < 5 * (len(draws) / 4) ** 0.5


def test_the_ranks_share_one_draw():
    secret = Secret()
    whole = sampler(secret=secret)
    parts = [sampler(secret=Secret(secret.reveal()), rank=r, world_size=3) for r in range(3)]
    for step, shares in zip(range(20), zip(*parts, strict=True), strict=True):
        assert [index for share in shares for index in share] == whole.draw(step)


def test_a_record_goes_to_a_rank_by_itself():
    """By position in the draw, one record more would send all later ones to the other rank."""
    secret, steps = Secret(), 400
    ranks = [sampler(secret=Secret(secret.reveal()), steps=steps, rank=r, world_size=2) for r in range(2)]
    pairs, apart, on_first, drawn = 0, 0, np.zeros(1000), np.zeros(1000)
    for first, second in zip(*ranks, strict=True):
        rank_of = {**dict.fromkeys(first, 0), **dict.fromkeys(second, 1)}
        in_order = [rank_of[index] for index in sorted(rank_of)]
        pairs += len(in_order) - 1
        apart += np.count_nonzero(np.diff(in_order))
        on_first[first] += 1
        drawn[[*first, *second]] += 1
    assert apart / pairs == pytest.approx(0.5, abs=3 / np.sqrt(pairs)), "neighbours in a draw are strangers (6 sd)"
    spread = ((on_first - drawn / 2) ** 2 / (drawn / 4).clip(min=1e-9)).sum()
    assert 1e-7 < stats.chi2(np.count_nonzero(drawn)).sf(spread) < 1 - 1e-7, "no record is bound to a rank"


def test_a_secret_cannot_be_seen_saved_or_copied():
    secret = Secret()
    assert secret.reveal().hex() not in repr(secret) + str(secret) + f"{secret!r}"
    for leak in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="must not be saved"):
            leak(secret)
    with pytest.raises(TypeError, match="must not be saved"):
        pickle.dumps(sampler(secret=secret))


def test_a_seeded_secret_repeats_and_a_short_one_is_refused():
    one, again, other = (sampler(secret=seeded_secret(seed)).draw(3) for seed in (1, 1, 2))
    assert one == again != other
    with pytest.raises(ConfigurationError, match="has 32 bytes, not 5"):
        Secret(b"short")
