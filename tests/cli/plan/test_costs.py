import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from lightning_gep.cli.plan.costs import plan_noise
from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy.account import PrivacyAccount
from lightning_gep.privacy.accounting import SampledGaussian, epsilon
from lightning_gep.privacy.run_size import RunSize
from lightning_gep.strategy.settings import PrivacySettings

MNIST = RunSize(num_records=60_000, num_parameters=14_394, batch_size=1000, max_epochs=50)
SMALL = RunSize(num_records=1000, num_parameters=500, batch_size=100, max_epochs=5)
SHORT = replace(SMALL, max_epochs=2, max_steps=18)
GP = PrivacySettings(mechanism="gp", epsilon=2.0, clip_norm=1.5, accountant="rdp")
GEP = PrivacySettings(mechanism="gep", epsilon=2.0, k=40, clip_embedding=3.0, clip_residual=0.5, accountant="rdp")
BGEP = replace(GEP, mechanism="bgep")
INF = float("inf")


@pytest.mark.parametrize("settings", [GEP, replace(GEP, split="equal"), replace(GEP, clipping="joint"), BGEP, GP])
def test_noise_is_what_drawing_it_gives(settings):
    """A slow, obvious loop: draw the noise of many runs and look at its size, per step and of the mean of a run."""
    planned = plan_noise(settings, SMALL)
    embedding, residual = planned.release.embedding, planned.release.residual
    random, runs = np.random.default_rng(0), 400

    def drawn(part, numbers):
        noise = random.standard_normal((runs, planned.steps, numbers))
        return noise * (0.0 if part is None else part.clip * part.sigma) / SMALL.batch_size

    # The residual's noise in all p directions: the strategy removes k of them again, which the figure leaves out.
    parts = drawn(embedding, 40), drawn(residual, 500)
    squared = [(part**2).sum(axis=2).mean() for part in parts]
    of_mean = sum((part.mean(axis=1) ** 2).sum(axis=1).mean() for part in parts)
    assert planned.noise_per_step == pytest.approx(math.sqrt(sum(squared)), rel=0.005)
    assert planned.noise_of_mean == pytest.approx(math.sqrt(of_mean), rel=0.01)
    assert planned.embedding_share == pytest.approx(squared[0] / sum(squared), abs=0.005)


def test_the_optimal_split_has_less_noise_than_any_other():
    best = plan_noise(GEP, SMALL).noise_per_step
    for split in ("equal", (1.0, 1.5), (1.5, 1.0), (3.0, 1.0)):
        assert best <= plan_noise(replace(GEP, split=split), SMALL).noise_per_step


def test_epsilon_of_a_given_noise_is_the_accountants():
    planned = plan_noise(replace(GP, epsilon=None, noise_multiplier=1.3, accountant="pld"), SMALL)
    history = [(SampledGaussian(0.1, 1.3), 50)]
    assert planned.epsilon == epsilon(history, 1e-4, "pld")
    assert planned.epsilon_by_rdp == epsilon(history, 1e-4, "rdp") > planned.epsilon
    assert planned.plan.target_epsilon is None


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_epsilon_over_the_run_is_what_the_run_will_report(accountant):
    planned = plan_noise(replace(GEP, accountant=accountant), SHORT)
    account = PrivacyAccount(planned.plan)
    for steps, spent in [*planned.epsilon_over_steps(), *planned.epsilon_at_quarters()]:
        account.steps = steps
        assert spent == account.epsilon()
    assert [steps for steps, _ in planned.epsilon_at_quarters()] == [5, 9, 14]
    assert planned.epsilon_over_steps()[-1] == (18, pytest.approx(planned.epsilon))


def test_without_noise_or_with_draws_that_repeat_nothing_is_private():
    planned = plan_noise(replace(GP, epsilon=None, noise_multiplier=0.0, clip_norm=INF), SMALL)
    assert (planned.epsilon, planned.noise_per_step, planned.private) == (INF, 0.0, False)
    private = [plan_noise(replace(GP, generator=name), SMALL).private for name in ("system", "secure", "seeded")]
    assert private == [True, True, False]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": "auto"}, r"k='auto' is chosen on public data.*Give a number, e.g. 100"),
        ({"clip_residual": "auto"}, "clip_residual='auto' is chosen on public data"),
        ({"clip_embedding": INF}, "infinite noise"),
        ({"k": 501}, "k=501"),
        ({"delta": 0.01}, "delta=0.01"),
    ],
)
def test_settings_that_cannot_be_planned(change, message):
    with pytest.raises(ConfigurationError, match=message):
        plan_noise(replace(GEP, **change), SMALL)


def test_thresholds_of_other_mechanisms_may_be_automatic():
    assert plan_noise(replace(GP, k="auto", clip_residual="auto"), SMALL).k is None
    assert plan_noise(replace(BGEP, clip_residual="auto"), SMALL).k == 40


def test_a_larger_batch_has_less_noise_and_one_step_on_everything_the_least():
    """What the search says about its own criteria."""
    one = plan_noise(GP, replace(SMALL, batch_size=1000, max_steps=1))
    endless = replace(SMALL, max_epochs=-1, max_steps=40)
    same_steps = [plan_noise(GP, replace(endless, batch_size=size)) for size in (50, 200, 800, 1000)]
    noises = [planned.noise_per_step for planned in same_steps]
    assert noises == sorted(noises, reverse=True)
    assert one.noise_per_step < noises[-1] / 6
    means = [planned.noise_of_mean for planned in same_steps]
    assert means == sorted(means, reverse=True)
    assert means[-1] == pytest.approx(one.noise_of_mean, rel=1e-3)
    assert plan_noise(GP, replace(endless, batch_size=800, max_steps=80)).noise_per_step > noises[2]


def test_a_row_is_plain_and_complete():
    row = plan_noise(GEP, SMALL, {"seed": "1"}).to_row()
    assert row["labels"] == {"seed": "1"}
    assert row["sigma_embedding"] ** -2 + row["sigma_residual"] ** -2 == pytest.approx(row["noise_multiplier"] ** -2)
    assert (row["clip_embedding"], row["clip_residual"], row["k"], row["steps"]) == (3.0, 0.5, 40, 50)
    assert all(value is None or isinstance(value, str | int | float | dict) for value in row.values())
    assert "epsilon_at_quarters" not in row


def test_planning_needs_neither_torch_nor_lightning():
    code = "import sys, lightning_gep.cli.plan.search; print({'torch', 'lightning', 'opacus'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"
