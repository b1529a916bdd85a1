import copy
import os
import pickle

import numpy as np
import pytest
import torch
from scipy import stats

from lightning_gep.algorithm import noise as noise_module
from lightning_gep.algorithm.gep import perturb
from lightning_gep.algorithm.noise import SecureNoise, SeededNoise, SystemNoise
from lightning_gep.privacy.release import Part
from lightning_gep.privacy.sampling import Secret

CPU = torch.device("cpu")
SOURCES = {"system": SystemNoise, "secure": SecureNoise, "seeded": lambda: SeededNoise(3)}


def draw(noise, size, step=0, part="embedding"):
    return noise.normal(size, step=step, part=part, device=CPU)


def looks_like(sample, std):
    """Variance within 1 % (7 standard errors at 10⁶) and the Gaussian shape of the first quarter."""
    variance_right = abs(float(sample.square().mean()) / std**2 - 1) < 0.01
    shape_right = stats.kstest(sample[:250_000].numpy() / std, "norm").pvalue > 1e-6
    return variance_right and shape_right


@pytest.mark.parametrize("name", SOURCES)
def test_a_million_draws_have_the_right_scale_and_shape(name):
    part = Part(clip=0.7, sigma=2.5)
    noisy = perturb(torch.zeros(1_000_000, dtype=torch.float64), part, SOURCES[name](), 0, "residual")
    assert looks_like(noisy, 0.7 * 2.5)
    assert not looks_like(noisy * 1.03, 0.7 * 2.5), "a scale 3 % too large must be noticed"
    assert not looks_like(noisy * 0.97, 0.7 * 2.5), "a scale 3 % too small must be noticed"


@pytest.mark.parametrize("name", ["system", "secure"])
def test_draws_never_repeat(name):
    """Not from call to call with the same step, not from start to start, not because the user fixed every seed."""
    seen = []
    for _ in range(3):
        torch.manual_seed(0)
        np.random.seed(0)
        noise = SOURCES[name]()
        seen += [draw(noise, 1000) for _ in range(2)]
    values = torch.cat(seen)
    assert len(values.unique()) == len(values)
    correlations = torch.corrcoef(torch.stack(seen)).fill_diagonal_(0)
    assert float(correlations.abs().max()) < 0.2


@pytest.mark.parametrize("name", SOURCES)
def test_nothing_and_odd_numbers_can_be_drawn(name):
    assert [len(draw(SOURCES[name](), size)) for size in (0, 1, 7)] == [0, 1, 7]


def test_seeded_noise_depends_on_seed_step_and_part_and_on_nothing_else():
    where = [(3, 5, "embedding"), (4, 5, "embedding"), (3, 6, "embedding"), (3, 5, "residual")]
    first, again = ([draw(SeededNoise(seed), 100, step, part) for seed, step, part in where] for _ in range(2))
    assert all(map(torch.equal, first, again))
    assert not any(torch.equal(first[0], other) for other in first[1:])


@pytest.mark.parametrize("name", ["system", "secure"])
def test_a_source_cannot_be_saved_or_copied(name):
    for copying in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="must not be saved or copied"):
            copying(SOURCES[name]())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.parametrize("name", ["system", "secure"])
def test_a_forked_process_draws_its_own_noise(name):
    noise = SOURCES[name]()
    draw(noise, 3)
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.write(writing, draw(noise, 50).numpy().tobytes())
        os._exit(0)
    os.wait()
    theirs = np.frombuffer(os.read(reading, 400))
    assert not set(theirs) & set(draw(noise, 50).tolist())


def test_sources_start_from_enough_entropy(monkeypatch):
    asked, real = [], os.urandom
    monkeypatch.setattr(noise_module.os, "urandom", lambda count: asked.append(count) or real(count))
    SystemNoise()
    SecureNoise()
    Secret()
    assert asked == [32, 32, 16, 32]
    monkeypatch.setattr(noise_module.os, "urandom", lambda count: bytes(range(count)))
    assert Secret().reveal() == bytes(range(32))
    assert torch.equal(draw(SystemNoise(), 5), draw(SystemNoise(), 5)), "nothing else goes in"


def test_other_devices_use_their_own_generator_with_a_seed_from_the_system(monkeypatch):
    """No other device is here, so its generator is watched instead."""
    seeds, used = [], []

    class Generator:
        def __init__(self, device):
            pass

        def manual_seed(self, seed):
            seeds.append(seed)
            return self

    monkeypatch.setattr(noise_module.torch, "Generator", Generator)
    monkeypatch.setattr(noise_module.torch, "randn", lambda size, **k: used.append(k["generator"]) or torch.zeros(size))
    device = torch.device("cuda", 0)
    sources = [SystemNoise(), SystemNoise()]
    for source in sources:
        for _ in range(2):
            source.normal(3, step=0, part="x", device=device)
    assert len(set(seeds)) == 2, "one seed a source"
    assert used[0] is used[1] is not used[2]


def test_secure_noise_is_a_sum_of_four_draws_and_both_numbers_of_a_pair_end_in_different_sums(monkeypatch):
    """With the angle at zero every cosine is 1 and every sine 0, so that the sums show who got what."""
    words = np.zeros((2, 8), dtype=np.uint64)
    words[0] = np.arange(1, 9, dtype=np.uint64) << np.uint64(59)
    lengths = []

    class FixedCipher:
        def __init__(self, *_, **__):
            self.encryptor = lambda: self

        def update(self, data):
            lengths.append(len(data))
            return words.tobytes()

    monkeypatch.setattr(noise_module, "Cipher", FixedCipher)
    noise = SecureNoise()
    at_zero = draw(noise, 4)
    words[1, 0] = np.uint64(1) << np.uint64(62)
    changed = (at_zero - draw(noise, 4)).abs() > 1e-9
    assert changed.tolist() == [True, True, False, False]
    assert lengths == [4 * 4 * 8] * 2, "four 64-bit words a number"
