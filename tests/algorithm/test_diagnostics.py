"""Against a dense computation on the whole batch."""

import pytest
import torch

from lightning_gep.algorithm.basis import Basis
from lightning_gep.algorithm.diagnostics import BatchStatistics
from tests.reference import dense, orthonormal_rows


def test_they_equal_the_dense_computation():
    basis = Basis.of([orthonormal_rows(5, 40), orthonormal_rows(7, 60)])
    gradients = torch.randn(30, 100, dtype=torch.float64) + 0.3
    statistics = BatchStatistics()
    seen = list(statistics.watch(gradients.split(12)))
    assert torch.equal(torch.cat(seen), gradients)
    values = statistics.values(basis)
    mean, matrix = gradients.mean(0), dense(basis.blocks)
    residual = mean - matrix.T @ (matrix @ mean)
    assert values["projection_error"] == pytest.approx(float(residual.norm() / mean.norm()))
    first = torch.linalg.svdvals(gradients[:12])
    assert values["stable_rank"] == pytest.approx(float(first.square().sum() / first[0] ** 2))


def test_records_that_are_not_finite_and_empty_batches_do_no_harm():
    basis = Basis.of([orthonormal_rows(5, 40)])
    assert BatchStatistics().values(basis) == {}
    statistics = BatchStatistics()
    list(statistics.watch([torch.full((2, 40), torch.nan), torch.ones(3, 40, dtype=torch.float64)]))
    values = statistics.values(basis)
    assert values["stable_rank"] == pytest.approx(1.0)
    assert 0 < values["projection_error"] <= 1
