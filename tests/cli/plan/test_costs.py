import math
from dataclasses import replace

import numpy as np
import pytest

from lightning_gep.algorithm.thresholds import basis_numbers
from lightning_gep.cli.plan.costs import plan_noise
from lightning_gep.privacy.run_size import RunSize
from lightning_gep.strategy.settings import PrivacySettings

SMALL = RunSize(num_records=1000, num_parameters=500, batch_size=100, max_epochs=5)
GP = PrivacySettings(mechanism="gp", epsilon=2.0, clip_norm=1.5, accountant="rdp")
GEP = PrivacySettings(mechanism="gep", epsilon=2.0, k=40, clip_embedding=3.0, clip_residual=0.5, accountant="rdp")
BGEP = replace(GEP, mechanism="bgep")


@pytest.mark.parametrize("settings", [GEP, replace(GEP, split="equal"), replace(GEP, clipping="joint"), BGEP, GP])
def test_noise_is_what_drawing_it_gives(settings):
    """A slow, obvious loop: draw the noise of many runs and look at its size, per step and of the mean of a run."""
    row = plan_noise(settings, SMALL)
    random, runs = np.random.default_rng(0), 400

    def drawn(part, numbers):
        noise = random.standard_normal((runs, SMALL.steps, numbers))
        return noise * (row[f"clip_{part}"] or 0.0) * (row[f"sigma_{part}"] or 0.0) / SMALL.batch_size

    # The residual's noise in all p directions: the strategy removes k of them again, which the figure leaves out.
    parts = drawn("embedding", 40), drawn("residual", 500)
    squared = [(part**2).sum(axis=2).mean() for part in parts]
    of_mean = sum((part.mean(axis=1) ** 2).sum(axis=1).mean() for part in parts)
    assert row["noise_per_step"] == pytest.approx(math.sqrt(sum(squared)), rel=0.005)
    assert row["noise_of_mean"] == pytest.approx(math.sqrt(of_mean), rel=0.01)


def test_memory_and_traffic_follow_from_parameters_groups_and_k():
    groups = (90_000, 40_000, 10_000)
    size = replace(SMALL, num_parameters=sum(groups), group_sizes=groups, devices=2)
    gep, bgep, gp = (plan_noise(settings, size) for settings in (GEP, BGEP, GP))
    assert gep["basis_bytes"] == bgep["basis_bytes"] == pytest.approx(4 * basis_numbers(40, groups), rel=0.05)
    assert gep["basis_bytes"] < plan_noise(GEP, replace(size, group_sizes=()))["basis_bytes"] == 4 * 40 * sum(groups)
    assert (gp["basis_bytes"], gp["gradient_bytes"]) == (0, 4 * sum(groups))
    assert [row["reduced_bytes"] for row in (gep, bgep, gp)] == [4 * (40 + sum(groups)), 4 * 40, 4 * sum(groups)]
    assert plan_noise(GP, replace(size, devices=1))["reduced_bytes"] == 0
