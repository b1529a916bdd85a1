"""Sums of several processes as integers: what rounding may add to a record's contribution, thresholds have given up."""

import pytest
import torch

from lightning_gep.algorithm.exchange import decode, encode
from lightning_gep.privacy.fixed_point import FixedPoint, lowered
from lightning_gep.privacy.release import Part, Release

PART, SIZE = Part(0.7, 1.1), 40_000
BATCH = 90_000
"""So large that the loss is close to the largest that is allowed, and errors in it show."""


def moved_most(code, length):
    """How far a contribution of this length moves the integers where every entry is rounded the wrong way."""
    change = torch.full((SIZE,), length / SIZE**0.5, dtype=torch.float64)
    start = torch.full_like(change, (0.5 - 1e-3) * code.unit)  # rounded down, and up with a little more
    return float((decode(code, encode(code, start + change)) - decode(code, encode(code, start))).norm())


def test_a_record_moves_the_rounded_sum_by_at_most_its_threshold():
    code = FixedPoint.of(PART, SIZE, BATCH)
    assert 0.008 < code.loss <= 0.01
    lengths = torch.linspace(0.5, 1.0, 400, dtype=torch.float64) * PART.clip
    within = lowered(Release(None, PART), (None, code)).residual.clip
    assert max(moved_most(code, float(length)) - float(length) for length in lengths) <= code.loss * PART.clip
    assert moved_most(code, within) <= PART.clip * (1 + 1e-12)
    assert max(moved_most(code, float(length)) for length in lengths) > PART.clip, "or nothing had to be given up"


def test_joint_clipping_gives_up_the_norm_of_both_losses():
    parts = Part(2.0, 1.0), Part(0.5, 1.0)
    codes = tuple(FixedPoint.of(part, size, 1000) for part, size in zip(parts, (10**6, 10**8), strict=True))
    both = lowered(Release(*parts, "joint"), codes)
    for before, after, code in zip(parts, both.parts, codes, strict=True):
        assert 1 - after.clip / before.clip == pytest.approx((codes[0].loss ** 2 + codes[1].loss ** 2) ** 0.5)
        assert 1 - after.clip / before.clip >= code.loss
        assert after.sigma == before.sigma


def test_adding_integers_to_a_rounded_noisy_sum_is_rounding_the_sum():
    """So noise that is added before rounding, by one process, hides the integers of all: it is post-processing."""
    code = FixedPoint.of(PART, 500, 1000)
    noisy, share = 30 * torch.randn(500, dtype=torch.float64), encode(code, 20 * torch.randn(500, dtype=torch.float64))
    together = encode(code, noisy + decode(code, share))
    assert torch.equal(encode(code, noisy) + share, together)
    turned = encode(code, torch.tensor([PART.clip * 5000.0], dtype=torch.float64))
    exact = int(torch.round(torch.tensor(PART.clip * 5000.0, dtype=torch.float64) / code.unit))
    assert abs(exact) > 2**31, "more than 32 bits hold"
    assert (int(turned) - exact) % 2**32 == 0, "the exact sum modulo 2³²"


@pytest.mark.parametrize("batch", [1, 12, 1000, 10**5])
@pytest.mark.parametrize("size", [1, 300, 268_346, 10**9])
def test_no_sum_wraps_around_and_little_is_lost(batch, size):
    code = FixedPoint.of(PART, size, batch)
    most = PART.clip * (batch + 10 * batch**0.5) + 10 * PART.noise_std
    assert most / code.unit < (2**31 if code.bytes == 4 else 2**62)
    assert code.loss <= 0.01
    assert code.unit < 1e-3 * PART.noise_std
