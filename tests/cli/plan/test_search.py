from dataclasses import replace

import pytest

from lightning_gep.cli.plan.costs import plan_noise
from lightning_gep.cli.plan.search import SLACK, default_batch_sizes, search
from lightning_gep.privacy.run_size import RunSize
from lightning_gep.strategy.settings import PrivacySettings

SMALL = RunSize(num_records=1000, num_parameters=500, batch_size=100, max_epochs=5)
GP = PrivacySettings(mechanism="gp", epsilon=2.0, clip_norm=1.5, accountant="rdp")
GEP = PrivacySettings(mechanism="gep", epsilon=2.0, k=40, clip_embedding=3.0, clip_residual=0.5, accountant="rdp")


@pytest.mark.parametrize("settings", [GEP, GP])
def test_a_search_finds_what_trying_everything_finds(settings):
    found = search(settings, SMALL, batch_sizes=[50, 100, 400], epochs=[5, 10, 20], min_steps=45, best=3)
    sizes = [replace(SMALL, batch_size=b, max_epochs=e) for b in (50, 100, 400) for e in (5, 10, 20)]
    everything = [plan_noise(settings, size) for size in sizes if size.steps >= 45]
    by_step = sorted(everything, key=lambda planned: planned.noise_per_step)
    by_mean = sorted(everything, key=lambda planned: planned.noise_of_mean)
    assert [row.size for row in found.best["noise_per_step"]] == [row.size for row in by_step[:3]]
    assert [row.size for row in found.best["noise_of_mean"]] == [row.size for row in by_mean[:3]]
    assert len(found.grid) == len(everything)
    assert found.too_short == 9 - len(everything) == 2
    near = [row for row in everything if row.noise_of_mean <= (1 + SLACK) * by_mean[0].noise_of_mean]
    assert found.cheapest["noise_of_mean"].records_read == min(row.records_read for row in near)


def test_the_best_of_a_search_are_calibrated_by_the_configured_accountant():
    settings = replace(GP, accountant="pld")
    found = search(settings, SMALL, batch_sizes=[100, 200], epochs=[10, 20], min_steps=50, best=1)
    assert {row.plan.accountant for row in found.grid} == {"rdp"}
    for row in found.rows:
        assert row == plan_noise(settings, row.size)
        (bound,) = [other for other in found.grid if other.size == row.size]
        assert row.noise_per_step < bound.noise_per_step


@pytest.mark.parametrize(("records", "devices"), [(1257, 1), (60_000, 1), (60_000, 4), (10, 1), (16, 1), (604_388, 1)])
def test_default_batch_sizes_fit_the_data(records, devices):
    sizes = default_batch_sizes(RunSize(records, 1, 1, 1, devices=devices))
    assert 1 <= len(sizes) <= 9
    assert sizes == sorted(set(sizes))
    assert sizes[-1] * devices <= records < 2 * sizes[-1] * devices
