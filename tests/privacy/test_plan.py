import json
import math
import re

import pytest

from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy.plan import PrivacyPlan
from lightning_gep.privacy.release import BGEP, GEP, GP, Spectral

GOOD = {
    "mechanism": GEP(1.0, 0.5),
    "num_records": 1000,
    "expected_batch_size": 100,
    "delta": 1e-4,
    "epsilon": 8.0,
    "steps": 50,
    "k": 20,
    "num_parameters": 500,
    "accountant": "rdp",
}


def plan(**change):
    return PrivacyPlan.make(**{**GOOD, **change})


def test_one_config_feeds_sampling_noise_and_accounting():
    made = plan()
    assert made.sample_rate == 0.1
    assert made.event.sample_rate == made.sample_rate
    assert made.event.noise_multiplier == made.release.noise_multiplier
    with pytest.raises(AttributeError):
        made.delta = 1e-3


@pytest.mark.parametrize("mechanism", [GEP(1.0, 0.5), GEP(1.0, 0.5, "joint"), BGEP(3.0), GP(1.0), GP(float("inf"))])
def test_the_state_round_trips_through_json(mechanism):
    noise = 0.0 if mechanism == GP(float("inf")) else 1.5
    made = plan(mechanism=mechanism, epsilon=None, noise_multiplier=noise)
    text = json.dumps(made.to_state(), allow_nan=False)
    assert PrivacyPlan.from_state(json.loads(text)) == made


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilon": 1e-9, "delta": 1e-12}, "cannot be reached"),
        ({"expected_batch_size": 0}, "expected_batch_size must be a whole number above 0"),
        ({"num_records": 0}, "num_records must be a whole number above 0"),
        ({"k": None}, "needs k and num_parameters, but got k=None"),
    ],
)
def test_bad_values_are_explained_before_anything_is_computed(change, message):
    with pytest.raises(ConfigurationError, match=message):
        plan(**change)


@pytest.mark.parametrize("clip", [1e-45, 1e-31, 1e39])
@pytest.mark.parametrize(("name", "mechanism"), [("clip_norm", GP), ("clip_norm", Spectral), ("clip_embedding", BGEP)])
def test_thresholds_beyond_float32_are_refused(name, mechanism, clip):
    """At 1e-45 a record moved the sum by two thresholds, at 1e39 to NaN."""
    with pytest.raises(ConfigurationError, match=re.escape(f"{name}={clip:g} is beyond what float32")):
        mechanism(**{name: clip})


@pytest.mark.parametrize("clips", [(math.inf, 1.0), (1.0, math.inf), (math.inf, math.inf)])
def test_an_infinite_threshold_with_noise_is_refused_in_words(clips):
    sizes = {"num_records": 1000, "expected_batch_size": 100, "delta": 1e-5, "k": 20, "num_parameters": 500}
    with pytest.raises(ConfigurationError, match="infinite noise"):
        PrivacyPlan.make(GEP(*clips), noise_multiplier=1.0, **sizes)
    assert PrivacyPlan.make(GEP(*clips), noise_multiplier=0.0, **sizes).event.noise_multiplier == 0
