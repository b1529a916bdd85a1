import pytest
import torch

from lightning_gep.algorithm import linalg as orthonormal
from lightning_gep.algorithm.linalg import (
    gram,
    largest_entry,
    largest_overlap,
    orthonormalise,
    polish,
    reflector,
    rounding_of_rows,
    spectral_defect,
)
from tests.reference import orthonormal_rows, principal_rows, span_distance


def with_spectrum(values, p):
    values = torch.as_tensor(values, dtype=torch.float64)
    left = torch.linalg.qr(torch.randn(len(values), len(values), dtype=torch.float64)).Q
    return (left * values) @ orthonormal_rows(len(values), p)


CASES = {
    "gaussian": lambda: torch.randn(60, 900),
    "one row": lambda: torch.randn(1, 40),
    "square": lambda: torch.randn(50, 50),
    "steep spectrum": lambda: with_spectrum(torch.logspace(0, -5, 60), 900).float(),
    "fourth power of a spectrum": lambda: with_spectrum(torch.logspace(0, -6, 83), 2000).float(),
    "duplicates": lambda: torch.randn(6, 500).repeat(10, 1),
    "zero rows": lambda: torch.cat([torch.randn(5, 500), torch.zeros(5, 500)]),
    "huge": lambda: 1e30 * torch.randn(40, 500),
    "tiny": lambda: 1e-35 * torch.randn(40, 500),
    "float64": lambda: torch.randn(40, 500, dtype=torch.float64),
}


RANKS = {"duplicates": 6, "zero rows": 5}


@pytest.mark.parametrize("name", CASES)
def test_rows_are_orthonormal_and_span_the_same_whatever_comes_in(name):
    given = CASES[name]()
    rows, defect = orthonormalise(given)
    assert len(rows) == RANKS.get(name, len(given))
    products = gram(rows)
    assert largest_entry(products) <= 1e-5
    true_defect = float(torch.linalg.matrix_norm(products - torch.eye(len(rows), dtype=torch.float64), 2))
    assert true_defect <= defect <= true_defect + 1e-9
    scaled = (given / given.abs().max()).double()
    lost = scaled - (scaled @ rows.T.double()) @ rows.double()
    assert float(lost.norm() / scaled.norm()) < 2e-6


def test_the_fallback_takes_over_when_cholesky_fails(monkeypatch):
    rows = torch.randn(30, 400)

    def fails(matrix):
        return matrix, torch.ones((), dtype=torch.int32)

    monkeypatch.setattr(orthonormal.torch.linalg, "cholesky_ex", fails)
    result, _ = polish(rows.clone())
    assert largest_entry(gram(result)) <= 1e-5
    assert span_distance(result, principal_rows(rows, 30)) < 1e-5


def test_the_defect_is_an_upper_bound_on_the_spectral_norm():
    rows = orthonormal_rows(50, 300)
    error = torch.ones(50, 50, dtype=torch.float64) * 1e-5
    bent = torch.linalg.cholesky(torch.eye(50, dtype=torch.float64) + error) @ rows
    assert spectral_defect(gram(bent), 300) == pytest.approx(50 * 1e-5, rel=1e-6)
    assert largest_entry(gram(bent)) == pytest.approx(1e-5, rel=1e-6)


@pytest.mark.parametrize(("rows", "columns"), [(1, 300), (40, 300), (500, 4096)])
def test_the_defect_covers_what_float64_may_lose_in_every_entry(rows, columns):
    """Each of k² products may be off by p·eps, so BBᵀ by k times that in norm."""
    exact = torch.eye(rows, dtype=torch.float64)
    assert spectral_defect(exact, columns) >= rows * columns * torch.finfo(torch.float64).eps


@pytest.mark.parametrize("vectors", ["random", "last axes", "minus last axes", "first axes", "all"])
def test_a_reflection_moves_given_vectors_to_the_last_axes(vectors):
    n, count = 30, {"all": 30}.get(vectors, 7)
    eye = torch.eye(n, dtype=torch.float64)
    given = {
        "random": orthonormal_rows(count, n).T,
        "last axes": eye[:, -count:],
        "minus last axes": -eye[:, -count:],
        "first axes": eye[:, :count],
        "all": orthonormal_rows(count, n).T,
    }[vectors]
    wide, factor = reflector(given)
    reflection = eye - wide @ factor @ wide.T
    torch.testing.assert_close(reflection @ reflection, eye)
    torch.testing.assert_close(reflection, reflection.T)
    torch.testing.assert_close((reflection @ given)[: n - count], torch.zeros(n - count, count, dtype=torch.float64))


def test_the_overlap_is_the_largest_cosine_between_two_subspaces():
    rows = orthonormal_rows(5, 9000, torch.float32)
    others = orthonormal_rows(3, 9000, torch.float32)
    expected = float(torch.linalg.svdvals(rows.double() @ others.double().T)[0])
    assert expected <= largest_overlap(rows, others) <= expected + 1e-9
    assert largest_overlap(rows[:0], others) == 0.0


def test_rounding_of_rows_covers_what_rounding_does():
    exact = orthonormal_rows(50, 3000)
    error = torch.linalg.matrix_norm(exact.float().double() - exact, ord=2)
    bound = rounding_of_rows(exact.float(), reflector_shape=(60, 10), defect=0.0)
    assert float(error) <= bound <= 1e-6
