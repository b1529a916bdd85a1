"""Thresholds and k chosen on public gradients whose right answers are known."""

import pytest
import torch

from lightning_gep.algorithm import thresholds
from lightning_gep.algorithm.thresholds import (
    LARGEST_BASIS,
    basis_numbers,
    choose_clip_norm,
    choose_thresholds,
    largest_choice,
    limited_by_memory,
)
from lightning_gep.strategy.strategy import GEPStrategy
from tests.reference import orthonormal_rows

SIZES = (150, 250)


@pytest.fixture(autouse=True, params=["held", "one microbatch after the other"])
def both_ways(request, monkeypatch):
    """The principal components of a few anchors are computed at once, those of many as they come."""
    if request.param != "held":
        monkeypatch.setattr(thresholds, "HELD", 0)


def gradients(count, directions, inside, outside):
    """Rows with norm `inside` in the span of `directions` and norm `outside` beyond it, in expectation."""
    p = directions.shape[1]
    within = torch.randn(count, len(directions)) @ directions / len(directions) ** 0.5
    return inside * within + outside * torch.randn(count, p) / p**0.5


def choose(inside, outside, k=None, rank=20):
    blocks = [orthonormal_rows(rank // 2, size, torch.float32) for size in SIZES]
    directions = torch.block_diag(*blocks)
    fit, held_out = (gradients(count, directions, inside, outside) for count in (500, 200))
    return choose_thresholds(lambda: fit.split(100), lambda: held_out.split(60), SIZES, k=k, num_anchors=500)


@pytest.mark.parametrize(("scale", "larger"), [(3.0, 1.0), (100.0, 1.0), (0.01, 0.005)])
@pytest.mark.parametrize(("outside", "ratio"), [(0.8, 0.8), (0.2, 0.5)])
def test_thresholds_have_the_ratio_of_the_norms_or_half_and_the_larger_is_at_most_one(scale, larger, outside, ratio):
    chosen = choose(scale, scale * outside, k=25)
    assert chosen.k == 25
    assert chosen.clip_embedding == pytest.approx(larger, rel=0 if larger == 1 else 0.2)
    assert chosen.clip_residual / chosen.clip_embedding == pytest.approx(ratio, rel=0.2 if outside > 0.5 else 0.02)


def test_residuals_are_measured_on_anchors_the_basis_has_not_seen():
    """Pure noise: on its own anchors a basis would leave almost nothing, on others nearly all of it."""
    chosen = choose(0.0, 3.0, k=150)
    assert chosen.clip_residual / chosen.clip_embedding > 0.9


def test_k_stops_where_more_directions_cost_more_noise_than_they_save():
    assert choose(5.0, 0.3, rank=20).k == 25
    assert choose(5.0, 0.3, rank=100).k == 100


def test_directions_are_weighed_by_their_energy_not_by_when_they_were_seen():
    directions = torch.block_diag(*(orthonormal_rows(10, size, torch.float32) for size in SIZES))
    fit = torch.cat([gradients(100, directions, 0.0, 1.0), gradients(400, directions, 5.0, 0.1)])
    held_out = gradients(200, directions, 5.0, 0.1)
    assert choose_thresholds(lambda: fit.split(100), lambda: [held_out], SIZES, k=None, num_anchors=500).k == 25


def test_a_basis_that_is_chosen_has_its_size_in_memory_bounded():
    assert largest_choice([268_346 // 5] * 5, 500) == 500
    assert largest_choice([1_000_000] * 5, 500) == 100
    assert basis_numbers(100, [1_000_000] * 5) <= LARGEST_BASIS < basis_numbers(200, [1_000_000] * 5)
    assert largest_choice([10**9], 500) == 25
    assert largest_choice([30], 500) == 15
    million = [1_000_000] * 5
    assert [limited_by_memory(k, million) for k in (50, 100)] == [False, True]
    assert not limited_by_memory(500, [50_000] * 5)
    assert not limited_by_memory(15, [30])


def test_the_threshold_of_dp_sgd_is_one_or_half_the_median_norm():
    assert choose_clip_norm(torch.tensor([4.0, 30.0, 500.0])) == 1.0
    assert choose_clip_norm(torch.tensor([0.04, 0.1, 5.0, float("nan")])) == 0.05


def test_gradients_that_say_nothing_still_give_usable_thresholds():
    zero = torch.zeros(50, 400)
    with pytest.warns(UserWarning, match="span 0 of"):
        chosen = choose_thresholds(lambda: [zero], lambda: [zero], SIZES, k=10, num_anchors=50)
    assert chosen.clip_embedding > 0
    assert chosen.clip_residual > 0


@pytest.mark.parametrize(
    ("settings", "chosen"),
    [
        ({"mechanism": "gep", "k": 5, "clip_embedding": 1.0}, ("clip_residual",)),
        ({"mechanism": "bgep", "k": 5}, ("clip_embedding",)),
        ({"mechanism": "gp"}, ()),
        ({"mechanism": "spectral", "clip_norm": "auto"}, ("clip_norm",)),
        ({"mechanism": "bgep", "k": 5, "clip_embedding": 1.0, "clip_norm": "auto"}, ()),
    ],
)
def test_only_what_the_mechanism_uses_is_chosen(settings, chosen):
    assert GEPStrategy(epsilon=1.0, **settings).settings.chosen_on_public_data == chosen
