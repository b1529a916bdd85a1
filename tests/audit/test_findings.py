"""The audit on the package as it is, and with bugs in it."""

import numpy as np
import pytest
import torch
from scipy.stats import binom

from lightning_gep.algorithm import clipping, gep
from lightning_gep.algorithm.noise import SystemNoise
from lightning_gep.audit import audit
from lightning_gep.audit.estimators import gaussian_epsilon
from lightning_gep.audit.mechanism import releases
from lightning_gep.audit.training import train_with_canaries
from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy.sampling import PoissonSampler
from tests.audit.toys import MECHANISMS, subject
from tests.toys import loader

CONFIDENCE = 1 - 1e-5
"""Of all bounds of a test: it fails for no reason once in 100 000 times."""


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_one_release_shows_most_of_what_is_claimed_and_no_more(mechanism):
    [found] = audit(subject(mechanism), parts=["release"], confidence=CONFIDENCE, accuracy=0.015)
    assert found.claimed == pytest.approx(8.0, rel=1e-3)
    assert not found.exceeded
    assert found.strongest.name == "Gaussian"
    assert found.strongest.epsilon > 0.8 * found.claimed
    assert found.settings["scores"] >= 20 * 40


def test_preconditioned_releases_are_read_in_their_own_coordinates():
    seen = releases(subject("spectral", precondition=True), 0.6, accuracy=0.1, canaries=20)
    assert float(np.std(seen.sides[1])) == pytest.approx(1.0, abs=0.1)
    assert seen.scale(0.5) == pytest.approx(1.0, abs=0.12)


def half_noise(monkeypatch):
    real = SystemNoise.normal
    monkeypatch.setattr(SystemNoise, "normal", lambda *given, **named: real(*given, **named) / 2)


def no_clipping(monkeypatch):
    monkeypatch.setattr(gep, "clip_factors", lambda *norms: tuple(2 * f for f in clipping.clip_factors(*norms)))


def same_noise_at_every_step(monkeypatch):
    drawn, real = {}, SystemNoise.normal

    def normal(self, size, **named):
        return drawn.setdefault((size, named["part"]), real(self, size, **named))

    monkeypatch.setattr(SystemNoise, "normal", normal)


@pytest.mark.slow
@pytest.mark.parametrize("bug", [half_noise, no_clipping, same_noise_at_every_step])
def test_bugs_in_a_release_are_found(monkeypatch, bug):
    bug(monkeypatch)
    [found] = audit(subject("gep"), parts=["release"], confidence=CONFIDENCE)
    assert found.exceeded
    assert found.strongest.epsilon > 1.5 * found.claimed


@pytest.mark.slow
def test_a_sampler_that_draws_more_than_is_accounted_is_found(monkeypatch):
    settings = {"train_loader": loader(batch_size=6), "noise_multiplier": 1.0, "epsilon": None}
    _, healthy = audit(subject(**settings), parts=["release", "training"], confidence=CONFIDENCE, canaries=60)
    assert not healthy.exceeded
    sample_rate = PoissonSampler.sample_rate.fget
    monkeypatch.setattr(PoissonSampler, "sample_rate", property(lambda self: 3 * sample_rate(self)))
    _, found = audit(subject(**settings), parts=["release", "training"], confidence=CONFIDENCE, canaries=60)
    assert found.exceeded
    assert found.strongest.name == "as measured"


@pytest.mark.slow
def test_a_training_never_shows_more_than_is_claimed():
    """Over many seeds at a low confidence, so that a bound that is only usually right would fail."""
    runs, above = 8, np.zeros(3, dtype=int)
    for seed in range(runs):
        torch.manual_seed(seed)
        trained = train_with_canaries(subject(MECHANISMS[seed % 4], trainer={"max_epochs": 2}), canaries=150)
        above += [bound.epsilon > 8.0 for bound in trained.bounds(1e-5, 0.8)]
    assert above.max() <= binom.isf(1e-7, runs, 0.2)


@pytest.mark.slow
def test_canaries_show_in_a_training_and_runs_are_pooled():
    everything = subject("gp", epsilon=None, noise_multiplier=0.3, train_loader=loader(batch_size=30))
    found = train_with_canaries(everything, canaries=20, runs=2)
    assert len(found.scores) == len(found.included) == 40
    assert found.sample_rate(1 - 1e-7) < found.plan.sample_rate == 0.5
    assert found.sample_rate(1 - 1e-7) > 0.3
    # Expected are 8 steps · q/σ = 13.3 and 0, with standard errors of about 1.6: canaries add to each other's scores.
    assert found.scores[found.included].mean() > 4
    assert abs(found.scores[~found.included].mean()) < 9


@pytest.mark.parametrize("clipping", ["separate", "joint"])
def test_the_steps_of_a_run_are_composed_without_an_accountant(clipping):
    """With joint clipping both parts share one shift."""
    [found] = audit(subject("gep", clipping=clipping), parts=["run"])
    assert found.settings["steps"] == 20
    assert 0.97 * found.claimed < found.bounds[0].epsilon < found.claimed


def test_epsilon_of_a_release_is_that_of_its_noise():
    noise = subject(epsilon=None, noise_multiplier=2.0)
    [found] = audit(noise, parts=["release"], accuracy=0.5)
    assert found.claimed == pytest.approx(gaussian_epsilon(0.5, 1e-5), rel=1e-3)
    assert found.settings["noise_multiplier"] == 2.0


def test_what_claims_nothing_is_refused():
    with pytest.raises(ConfigurationError, match="claims nothing"):
        audit(subject(epsilon=None, noise_multiplier=0.0))
    with pytest.raises(ConfigurationError, match="parts"):
        audit(subject(), parts=["runs"])
