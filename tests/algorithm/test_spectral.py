"""Coordinates of spectral perturbation against dense matrices and a loop over records."""

import math

import pytest
import torch

from lightning_gep.algorithm.basis import Basis
from lightning_gep.algorithm.gep import Sums, gradient_embedding_perturbation
from lightning_gep.algorithm.noise import SeededNoise
from lightning_gep.algorithm.spectral import Rotation, SpectralBasis, TrackedSpectrum, sides_of
from lightning_gep.algorithm.subspace import NoSubspace
from lightning_gep.privacy.release import GEP, GP

INF = math.inf
SHAPES = {
    "convolution": torch.Size((4, 3, 3, 3)),
    "norm": torch.Size((4,)),
    "linear": torch.Size((5, 6)),
    "scale": torch.Size(()),
}
SIZES = [shape.numel() for shape in SHAPES.values()]
P = sum(SIZES)


def anchors(count=60, dtype=torch.float64, seed=0):
    """Gradients with a spectrum: few directions hold most of the energy."""
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(P, P, generator=generator, dtype=dtype) * torch.logspace(0, -3, P, dtype=dtype)
    return torch.randn(count, P, generator=generator, dtype=dtype) @ mixing.T


def spectrum(rows=None, **settings):
    rows = anchors() if rows is None else rows
    source = TrackedSpectrum(SHAPES, num_anchors=len(rows), decay=0.0, **settings)
    return source.at_step(0, lambda: rows.split(17))


def dense(basis):
    """The matrix of g ↦ z, one Kronecker product per tensor."""
    blocks = []
    for rotation in basis.rotations:
        matrix = torch.ones(1, 1, dtype=torch.float64)
        for side, one in zip(rotation.scales.shape, rotation.bases, strict=True):
            matrix = torch.kron(matrix, (torch.eye(side) if one is None else one.T).double())
        blocks.append(matrix / rotation.scales.flatten()[:, None].double())
    return torch.block_diag(*blocks)


def test_coordinates_are_the_dense_map_and_gradients_its_inverse():
    basis, rows = spectrum(), torch.randn(7, P, dtype=torch.float64)
    T = dense(basis)
    torch.testing.assert_close(basis.coordinates(rows.clone()), rows @ T.T)
    z = torch.randn(P, dtype=torch.float64)
    torch.testing.assert_close(basis.gradient(z), torch.linalg.solve(T, z))


def test_scales_are_the_fourth_root_of_the_anchors_energies_in_eigenvectors_of_their_covariances():
    rows = anchors()
    basis = spectrum(rows, floor=1e-6)
    raw = []
    for shape, rotation, part in zip(SHAPES.values(), basis.rotations, rows.split(SIZES, dim=1), strict=True):
        tensors = part.reshape(len(rows), *sides_of(shape))
        for side, basis_of_side in enumerate(rotation.bases):
            if basis_of_side is not None:
                flat = tensors.movedim(side + 1, 0).flatten(1)
                turned = basis_of_side.T @ (flat @ flat.T) @ basis_of_side
                off_diagonal = turned - turned.diag().diag()
                assert float(off_diagonal.abs().max()) < 1e-9 * float(turned.abs().max())
        raw.append((part @ dense_rotation(rotation).T).square().mean(0))
    energies = torch.cat(raw)
    expected = (energies + 1e-6 * energies.mean()) ** 0.25
    expected = expected / expected.square().mean().sqrt()
    torch.testing.assert_close(torch.cat([r.scales.flatten() for r in basis.rotations]), expected)


def dense_rotation(rotation):
    matrix = torch.ones(1, 1, dtype=torch.float64)
    for side, one in zip(rotation.scales.shape, rotation.bases, strict=True):
        matrix = torch.kron(matrix, torch.eye(side, dtype=torch.float64) if one is None else one.T)
    return matrix


def step_and_diagnostics(rows, source, release, noise=None, cut=8, **settings):
    settings = {"noise": noise or SeededNoise(0), "step": 0, "charge": lambda: None, **settings}
    batches = [lambda: anchors().split(20), [part.clone() for part in rows.split(cut)]]
    return gradient_embedding_perturbation(
        *batches, subspace=source, release=release, expected_batch_size=len(rows), **settings
    )


def private_step(*arguments):
    return step_and_diagnostics(*arguments)[0]


def source(**settings):
    return TrackedSpectrum(SHAPES, num_anchors=60, decay=0.0, **settings)


def test_equal_scales_are_dp_sgd():
    """An infinite floor makes every direction alike; rotations do not change norms."""
    rows = torch.randn(30, P, dtype=torch.float64)
    shaped = private_step(rows, source(floor=1e12), GP(1.0).release(0.0))
    plain = private_step(rows, NoSubspace(P, rows), GP(1.0).release(0.0))
    torch.testing.assert_close(shaped, plain, rtol=1e-9, atol=1e-9)


class Fixed:
    """A source that always has the same basis."""

    def __init__(self, basis):
        self._basis = basis

    def at_step(self, step, anchors):
        return self._basis


def test_two_levels_of_scales_are_gep_with_joint_clipping():
    """d = S₁ on k orthonormal directions and S₂ on all others: the same clipped sum, and noise of the same law."""
    k, s1, s2 = 9, 1.5, 0.4
    U = torch.linalg.qr(torch.randn(P, P, dtype=torch.float64)).Q
    scales = torch.full((P, 1), s2, dtype=torch.float64)
    scales[:k] = s1
    shaped = Fixed(SpectralBasis((torch.zeros(0, P, dtype=torch.float64),), 0.0, (Rotation((U, None), scales),)))
    embedded = Fixed(Basis((U.T[:k].contiguous(),), 0.0))
    gep = GEP(s1, s2, "joint", "equal")
    rows = torch.randn(30, P, dtype=torch.float64) * torch.logspace(-2, 1, 30, dtype=torch.float64)[:, None]
    clipped = [private_step(rows, shaped, GP(1.0).release(0.0)), private_step(rows, embedded, gep.release(0.0))]
    torch.testing.assert_close(*clipped, rtol=2e-4, atol=1e-6)  # GEP's margins for rounding
    assert float((clipped[0] - rows.mean(0)).norm()) > 0.1, "nothing was clipped"

    releases = (shaped, GP(1.0).release(2.0)), (embedded, gep.release(2.0))
    expected = torch.where(torch.arange(P) < k, 2.0 * s1, 2.0 * s2).double()
    for source_, release in releases:
        nothing = torch.zeros(1, P, dtype=torch.float64)
        drawn = torch.stack([private_step(nothing, source_, release, SeededNoise(seed)) for seed in range(400)])
        levels = (drawn @ U / expected).square()
        for part in (levels[:, :k], levels[:, k:]):
            assert float(part.mean()) == pytest.approx(1.0, abs=5 * math.sqrt(2 / part.numel()))


def test_the_sum_is_a_loop_over_records_clipped_in_the_coordinates():
    rows, clip = torch.randn(25, P, dtype=torch.float64), 3.0
    T = dense(spectrum())
    total = torch.zeros(P, dtype=torch.float64)
    for row in rows:
        z = T @ row
        total += z * min(1.0, clip * (1 - 1e-4) / float(z.norm()))
    expected = torch.linalg.solve(T, total) / len(rows)
    torch.testing.assert_close(private_step(rows, source(), GP(clip).release(0.0)), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_record_moves_the_clipped_sum_by_more_than_the_threshold(dtype):
    basis, clip = spectrum(anchors(dtype=dtype)), 0.7
    release = GP(clip).release(1.0)
    huge = torch.randn(40, P, dtype=dtype) * torch.logspace(-20, 20, 40, dtype=dtype)[:, None]
    for row in huge:
        sums = Sums.zero(basis)
        sums.add(basis.coordinates(row[None].clone()), basis, release, 8)
        assert float(sums.residual(basis).norm()) <= clip


def test_coordinates_and_embeddings_are_computed_in_microbatches_of_one_size():
    """Matrix products of another size round differently: how many records were drawn must not change the others."""
    sizes, projected = [], []

    class Watched(Basis):
        def coordinates(self, gradients):
            sizes.append(len(gradients))
            return gradients

        def embed(self, gradients):
            projected.append(len(gradients))
            return super().embed(gradients)

    source = NoSubspace(P, torch.zeros(0))
    source.at_step = lambda step, anchors: Watched((torch.zeros(0, P),), 0.0)
    for count in (3, 32, 45):
        rows = torch.randn(count, P)
        of = GP(INF).release(0.0)
        released, diagnostics = step_and_diagnostics(rows, source, of, cut=32, microbatch_size=32)
        assert int(diagnostics.records) == count
        torch.testing.assert_close(released, rows.double().mean(0), rtol=1e-5, atol=1e-6)
    assert sizes == [32, 32, 32, 32]
    assert [size for size in projected if size > 1] == sizes, "the noisy sum is projected, too"


def test_the_noise_has_the_stated_scale_in_every_direction():
    """Mahalanobis: in the coordinates the noise is white with standard deviation S·σ."""
    basis, z = spectrum(), []
    T = dense(basis)
    for seed in range(60):
        released = private_step(
            torch.zeros(1, P, dtype=torch.float64), source(), GP(2.0).release(1.5), SeededNoise(seed)
        )
        z.append(T @ released)
    values = torch.cat(z)
    assert float(values.square().mean()) == pytest.approx(9.0, rel=5 * math.sqrt(2 / len(values)))
    per_direction = torch.stack(z).square().mean(0) / 9.0
    assert float(per_direction.min()) > 0.4
    assert float(per_direction.max()) < 2.0


def test_preconditioned_updates_are_the_coordinates_turned_back():
    basis = spectrum(precondition=True)
    z = torch.randn(P, dtype=torch.float64)
    rotations = torch.block_diag(*[dense_rotation(rotation) for rotation in basis.rotations])
    torch.testing.assert_close(basis.gradient(z), rotations.T @ z)


def test_running_means_forget_and_a_checkpoint_continues():
    first, second = anchors(seed=1), anchors(seed=2)
    source = TrackedSpectrum(SHAPES, num_anchors=60, decay=0.5)
    source.at_step(0, lambda: first.split(20))
    copy = TrackedSpectrum(SHAPES, num_anchors=60, decay=0.5)
    assert copy.fits(source.state_dict())
    copy.load_state_dict(source.state_dict())
    for following in (source, copy):
        for step in range(1, 30):
            following.at_step(step, lambda: second.split(20))
    fresh = TrackedSpectrum(SHAPES, num_anchors=60, decay=0.5).at_step(0, lambda: second.split(20))
    for a, b, c in zip(source.current.rotations, copy.current.rotations, fresh.rotations, strict=True):
        assert torch.equal(a.scales, b.scales)
        torch.testing.assert_close(a.scales, c.scales, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("value", [torch.nan, INF, 1e25, 3e38])
def test_rows_that_are_not_finite_or_too_long_do_not_reach_the_spectrum(value):
    rows = anchors(dtype=torch.float32)
    spoiled = torch.cat([rows, torch.full((1, P), value)])
    basis, expected = (
        TrackedSpectrum(SHAPES, num_anchors=60, decay=0.0).at_step(0, lambda rows=rows: rows.split(61))
        for rows in (spoiled, rows)
    )
    for one, other in zip(basis.rotations, expected.rotations, strict=True):
        torch.testing.assert_close(one.scales, other.scales)


def test_a_spectrum_of_another_module_does_not_fit():
    other = TrackedSpectrum({"other": torch.Size((3, 3))}, num_anchors=1)
    assert not other.fits(TrackedSpectrum(SHAPES, num_anchors=1).state_dict())
