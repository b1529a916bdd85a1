import math

import pytest

from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy.accounting import LARGEST_TIGHT_EPSILON, SampledGaussian, epsilon, roughly_by_pld
from lightning_gep.privacy.calibration import calibrate, noise_multiplier_for

CIFAR, MNIST, SVHN = (1000 / 50_000, 1e-5), (1000 / 60_000, 1e-5), (1000 / 604_388, 1e-6)

# data, target ε, mechanism, steps, σ needed by RDP and by PLD (per part for GEP)
NEEDED = [
    (CIFAR, 8, "gp", 10000, 1.460, 1.389),
    (MNIST, 2, "gep", 3000, 2.992, 2.796),
    (SVHN, 8, "gep", 12087, 0.770, 0.742),
]


@pytest.mark.parametrize(("data", "target", "mechanism", "steps", "rdp", "pld"), NEEDED)
def test_the_noise_of_known_settings(data, target, mechanism, steps, rdp, pld):
    run = {"epsilon": target, "delta": data[1], "sample_rate": data[0], "steps": steps}
    for accountant, needed, tolerance in (("rdp", rdp, 0.005), ("pld", pld, 0.01)):
        found = calibrate(**run, mechanism=mechanism, split="equal", accountant=accountant)
        assert found.epsilon <= target
        assert found.sigma_residual == pytest.approx(needed, rel=tolerance)
        if mechanism == "gp":
            assert found.sigma_embedding is None
        else:
            assert found.sigma_embedding == found.sigma_residual == pytest.approx(2**0.5 * found.noise_multiplier)


@pytest.mark.parametrize("accountant", ["pld", "rdp", "prv"])
@pytest.mark.parametrize(
    ("target", "delta", "q", "steps", "odd"),
    [
        *((1, 1e-5, 1.0, 3, False), (3, 1e-7, 0.01, 400, False), (20, 1e-4, 0.2, 150, False)),
        *((1e-4, 1e-6, 1e-4, 1, True), (0.1, 0.01, 1.0, 1, True), (200, 1e-5, 0.5, 100, True)),
    ],
)
def test_what_comes_back_keeps_the_target_and_wastes_little(target, delta, q, steps, odd, accountant):
    """Odd targets are kept as well; how much noise they need at least is not looked at."""
    found = calibrate(epsilon=target, delta=delta, sample_rate=q, steps=steps, mechanism="gp", accountant=accountant)

    def spent(sigma):
        return epsilon([(SampledGaussian(q, sigma), steps)], delta, accountant)

    assert 0 <= found.epsilon == spent(found.noise_multiplier) <= target
    assert odd or spent(found.noise_multiplier * 0.995) > target


def test_the_papers_theorem_is_a_bound_from_above():
    """Theorem 3.4: σ₁ = σ₂ ≥ 2√(2T·ln(1/δ))/ε without subsampling, so the step's σ is σ₁/√2."""
    for target, steps in ((1.0, 10), (2.0, 100), (8.0, 300)):
        theorem = 2 * math.sqrt(steps * math.log(1e5)) / target
        for accountant in ("rdp", "pld"):
            tight, _ = noise_multiplier_for(target, 1e-5, 1.0, steps, accountant)
            assert 0.5 * theorem < tight < theorem


def test_the_optimal_split_has_the_least_noise_energy_of_all_splits():
    settings = {"clip_embedding": 10.0, "clip_residual": 2.0}
    k, p = 1000, 270_000
    common = {"epsilon": 8.0, "delta": 1e-5, "sample_rate": 0.02, "steps": 1000, "accountant": "rdp"}

    def energy(split):
        found = calibrate(**common, **settings, split=split, k=k, num_parameters=p)
        both = found.sigma_embedding**-2 + found.sigma_residual**-2
        assert found.noise_multiplier == pytest.approx(both**-0.5, rel=1e-12)
        return k * (10 * found.sigma_embedding) ** 2 + p * (2 * found.sigma_residual) ** 2

    best = energy("optimal")
    assert best < energy("equal")
    found = calibrate(**common, **settings, split="optimal", k=k, num_parameters=p)
    for tilt in (0.8, 0.95, 1.05, 1.25):
        assert best < energy((found.sigma_embedding * tilt, found.sigma_residual))
    assert best == pytest.approx(energy((found.sigma_embedding, found.sigma_residual)), rel=1e-9)


def test_a_given_pair_fixes_the_ratio_and_joint_clipping_has_the_steps_own_sigma_on_both_parts():
    common = {"epsilon": 8.0, "delta": 1e-5, "sample_rate": 0.02, "steps": 100, "accountant": "rdp"}
    one, other = calibrate(**common, split=(3.0, 1.0)), calibrate(**common, split=(6.0, 2.0))
    assert one.sigma_embedding / one.sigma_residual == pytest.approx(3.0)
    assert one.sigma_embedding == pytest.approx(other.sigma_embedding)
    joint = calibrate(**common, clipping="joint")
    assert joint.sigma_embedding == joint.sigma_residual == joint.noise_multiplier


GOOD = {"epsilon": 8.0, "delta": 1e-5, "sample_rate": 0.02, "steps": 100, "accountant": "rdp", "split": "equal"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilon": 0.0}, "epsilon must be a finite number above 0, but it is 0.0"),
        ({"epsilon": 1e-9}, "epsilon=1e-09 .* cannot be reached.*Raise epsilon"),
        ({"delta": 0.0}, "delta must lie between 0 and 1"),
        ({"steps": 0}, "steps must be a whole number above 0, but it is 0"),
        ({"accountant": "gdp"}, "accountant='gdp' is not known. Choose one of 'pld', 'rdp', 'prv'"),
        ({"mechanism": "dpsgd"}, "mechanism='dpsgd' is not known. Choose one of 'gep', 'bgep', 'gp'"),
        ({"clipping": "both"}, "clipping='both' is not known. Choose one of 'separate', 'joint'"),
        ({"split": (1.0,)}, r"split=\(1.0,\) must be 'optimal', 'equal' or a pair"),
        ({"split": (1.0, -2.0)}, "split must be a finite number above 0, but it is -2.0"),
        ({"split": (1.0, 2.0), "clipping": "joint"}, r"Joint clipping takes equal sigmas, but split=\(1.0, 2.0\)"),
        (
            {"split": "optimal"},
            "needs clip_embedding, clip_residual, k, num_parameters. Give them, or use split='equal'",
        ),
        ({"mechanism": "gp", "clip_norm": 0.0}, "clip_norm must be a number above 0, but it is 0.0"),
        ({"mechanism": "gp", "clip_residual": 2.0}, "clip_residual=2.0 has no meaning for mechanism='gp'"),
        ({"mechanism": "bgep", "clipping": "joint"}, "clipping='joint' ties embedding and residual together"),
    ],
)
def test_bad_values_are_explained(change, message):
    with pytest.raises(ConfigurationError, match=message):
        calibrate(**{**GOOD, **change})


def test_noise_so_small_that_a_grid_would_have_millions_of_points_is_looked_at_by_rdp_alone():
    """Where δ is above q no noise is needed for a small ε, and the search goes down all the way."""
    run = [(SampledGaussian(1e-6, 0.01), 1)]
    assert roughly_by_pld(run, 0.4, near=0.1) >= epsilon(run, 0.4) > LARGEST_TIGHT_EPSILON
