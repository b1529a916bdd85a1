"""The running mean of noisy residuals against a loop over everything that was released."""

import pytest
import torch

from lightning_gep.algorithm.gep import gradient_embedding_perturbation
from lightning_gep.algorithm.noise import SeededNoise
from lightning_gep.algorithm.residual_memory import ResidualMemory
from lightning_gep.algorithm.tracked import TrackedSubspace
from lightning_gep.privacy.release import GEP

P, K = 30, 4


def step(number, memory, noise=None):
    generator = torch.Generator().manual_seed(number)
    anchors, rows = (torch.randn(count, P, dtype=torch.float64, generator=generator) for count in (12, 20))
    gradient, _ = gradient_embedding_perturbation(
        lambda: [anchors],
        [rows],
        subspace=TrackedSubspace([P], [K], num_anchors=12),
        release=GEP(1.0, 0.5).release(1.0, k=K, num_parameters=P),
        noise=noise or SeededNoise(0),
        expected_batch_size=20,
        step=number,
        charge=lambda: None,
        residual_memory=memory,
    )
    return gradient


class Seen(ResidualMemory):
    """Keeps all that comes in, for the slow way."""

    released = ()

    def __call__(self, released):
        self.released = (*self.released, released.clone())
        return super().__call__(released)


def slow(released, memory):
    weights = torch.tensor([memory**age for age in reversed(range(len(released)))], dtype=torch.float64)
    return sum(w * r for w, r in zip(weights / weights.sum(), released, strict=True))


@pytest.mark.parametrize("memory", [0.3, 0.95])
def test_the_mean_is_that_of_a_loop_over_all_released_residuals(memory):
    seen = Seen(memory)
    for number in range(8):
        plain, found = step(number, None), step(number, seen)
        basis = TrackedSubspace([P], [K], num_anchors=12)
        generator = torch.Generator().manual_seed(number)
        anchors = torch.randn(12, P, dtype=torch.float64, generator=generator)
        B = basis.at_step(number, lambda anchors=anchors: [anchors]).blocks[0]
        change = slow(seen.released, memory) - seen.released[-1]
        expected = plain + (change - B.T @ (B @ change)) / 20  # the embedding is as it was
        torch.testing.assert_close(found, expected)
    assert float((found - plain).norm()) > 0.01


def test_without_memory_nothing_changes():
    memory = ResidualMemory(0.0)
    for number in range(3):
        assert torch.equal(step(number, memory), step(number, None))
    assert memory.state_dict() is None


def test_the_state_continues_for_the_same_parameters_only():
    names, cpu = ("first", "second"), torch.device("cpu")
    one = ResidualMemory(0.9, names)
    released = torch.randn(5, P, dtype=torch.float64)
    for residual in released[:3]:
        one(residual)
    state = one.state_dict()
    copies = [ResidualMemory(0.9, names), ResidualMemory(0.9, names[::-1]), ResidualMemory(0.0, names)]
    for copy in copies:
        copy.load_state_dict(state, cpu)
    expected = one(released[3])
    assert torch.equal(copies[0](released[3]), expected)
    torch.testing.assert_close(copies[1](released[3]), released[3])
    assert torch.equal(copies[2](released[3]), released[3])
