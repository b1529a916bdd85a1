import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_gep.algorithm import gep as mechanism
from lightning_gep.algorithm.basis import Basis
from lightning_gep.algorithm.clipping import clip_factors, residual_norm_bound
from lightning_gep.algorithm.gep import Sums, gradient_embedding_perturbation, perturb, reconstruct
from lightning_gep.algorithm.linalg import row_norms
from lightning_gep.algorithm.noise import SecureNoise, SeededNoise, SystemNoise
from lightning_gep.algorithm.subspace import NoSubspace, PowerSubspace
from lightning_gep.privacy.release import BGEP, GEP, GP, Part, Release
from tests.reference import dense, orthonormal_rows, release_parts

INF = float("inf")


def release(s1, s2, clipping="separate"):
    return Release(Part(s1, 0.0), Part(s2, 0.0), clipping)


def basis_of(sizes, dimensions, dtype):
    return Basis.of([orthonormal_rows(k, p, dtype) for k, p in zip(dimensions, sizes, strict=True)])


def summed(gradients, basis, of, cut=None):
    sums = Sums.zero(basis)
    for microbatch in gradients.split(cut or max(1, len(gradients))):
        sums.add(microbatch, basis, of)
    return sums


@st.composite
def problems(draw):
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    sizes = draw(st.lists(st.integers(1, 40), min_size=1, max_size=4))
    dimensions = [draw(st.integers(0, size)) for size in sizes]
    torch.manual_seed(draw(st.integers(0, 2**31)))
    gradients = torch.randn(draw(st.integers(0, 9)), sum(sizes), dtype=dtype) * draw(st.sampled_from([1e-3, 1.0, 1e3]))
    for bad in draw(st.lists(st.sampled_from([torch.nan, torch.inf, -torch.inf]), max_size=2)):
        if len(gradients):
            gradients[draw(st.integers(0, len(gradients) - 1)), draw(st.integers(0, sum(sizes) - 1))] = bad
    clips = draw(st.tuples(st.sampled_from([0.5, 3.0, INF]), st.sampled_from([0.1, 2.0, INF])))
    return basis_of(sizes, dimensions, dtype), gradients, *clips, draw(st.sampled_from(["separate", "joint"]))


def assert_each_record_agrees(gradients, basis, expected, of):
    """Embeddings and residuals, record by record; factors never larger, and smaller only as rounding explains."""
    for i, row in enumerate(gradients):
        if not torch.isfinite(row).all():
            continue
        embedding = basis.embed(row[None])
        size = float(row.double().norm())
        tolerance = (1e-5 if row.dtype == torch.float32 else 1e-13) * size + 1e-300
        torch.testing.assert_close(embedding[0], expected.embeddings[i], rtol=0, atol=tolerance)
        residual = row.double() - basis.expand(embedding[0])
        torch.testing.assert_close(residual, expected.residuals[i], rtol=0, atol=2 * tolerance)
        norms = row_norms(row[None]), row_norms(embedding)
        bound = residual_norm_bound(*norms, basis)
        first, second = (float(factor[0]) for factor in clip_factors(norms[1], bound, of))
        assert first <= expected.embedding_factors[i] * (1 + 1e-4)
        assert (
            second <= expected.residual_factors[i] * (1 + 1e-9) or second * float(residual.norm()) <= of.residual.clip
        )
        if float(residual.norm()) > 0.1 * size:
            assert first >= expected.embedding_factors[i] * (1 - 2e-2)
            assert second >= expected.residual_factors[i] * (1 - 2e-2)


@settings(max_examples=200, deadline=None)
@given(problems(), st.sampled_from([None, 1, 4]))
def test_sums_equal_the_slow_loop(problem, cut):
    basis, gradients, s1, s2, clipping = problem
    expected = release_parts(gradients, dense(basis.blocks), s1, s2, clipping)
    sums = summed(gradients, basis, release(s1, s2, clipping), cut)
    finite = gradients[torch.isfinite(gradients).all(dim=1)]
    largest = float(finite.double().norm(dim=1).max()) if len(finite) else 0.0
    assert_each_record_agrees(gradients, basis, expected, release(s1, s2, clipping))
    # The bound on a residual is never below the truth, and above it by √(2·rounding) of the gradient's norm at worst.
    slack = 2e-4 if gradients.dtype == torch.float64 else 2e-2
    # Where joint clipping looks at residuals alone and one is short, its bound decides: then the sums differ by more.
    B = dense(basis.blocks).double()
    residuals = finite.double() - finite.double() @ B.T @ B
    all_long = bool((residuals.norm(dim=1) > 0.1 * finite.double().norm(dim=1)).all())
    if all_long or clipping == "separate" or s1 < INF or s2 == INF:
        scale = 1e-12 + len(gradients) * min(largest, s1 if s1 < INF else largest)
        torch.testing.assert_close(sums.embedding, expected.embedding_sum, rtol=0, atol=slack * scale)
        scale = 1e-12 + len(gradients) * min(largest, s2 if s2 < INF else largest)
        torch.testing.assert_close(sums.residual(basis), expected.residual_sum, rtol=0, atol=slack * scale)
    assert int(sums.diagnostics.not_finite) == len(gradients) - len(finite)


def step(gradients, of, quotas=(5, 9), anchors=None, batch=None, cut=16, **settings):
    """One step on public data that says nothing, unless told otherwise."""
    anchors = torch.randn(250, 200, dtype=gradients.dtype) if anchors is None else anchors
    settings = {"noise": SeededNoise(0), "step": 0, "charge": lambda: None, **settings}
    settings.setdefault("subspace", PowerSubspace((60, 140), quotas))
    batch = batch or len(gradients)
    anchor_source = lambda: anchors.split(50)  # noqa: E731
    return gradient_embedding_perturbation(
        anchor_source, gradients.split(cut), release=of, expected_batch_size=batch, **settings
    )[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("clipping", ["separate", "joint"])
@pytest.mark.parametrize("quotas", [(5, 9), (60, 140)])
def test_without_noise_and_clipping_it_is_the_plain_gradient(dtype, clipping, quotas):
    gradients = torch.randn(50, 200, dtype=dtype)
    result = step(gradients, release(INF, INF, clipping), quotas)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(result, gradients.double().mean(0), rtol=0, atol=tolerance)


def test_bgep_misses_exactly_the_residual():
    gradients = torch.randn(50, 200, dtype=torch.float64)
    basis = basis_of((60, 140), (10, 20), torch.float64)
    sums = summed(gradients, basis, BGEP(INF).release(0.0))
    matrix = dense(basis.blocks)
    residual = gradients - gradients @ matrix.T @ matrix
    torch.testing.assert_close(gradients.sum(0) - reconstruct(sums.embedding, None, basis), residual.sum(0))
    assert float(sums.gradient.abs().max()) == 0.0, "B-GEP has no business with the gradient itself"


def test_the_sum_is_divided_by_the_expected_batch_size_whatever_was_drawn():
    gradients = torch.randn(30, 200, dtype=torch.float64)
    result = step(gradients, release(INF, INF), batch=100)
    torch.testing.assert_close(result, gradients.sum(0) / 100)


def test_an_empty_batch_releases_noise_alone():
    of = GEP(1.0, 0.5, split="equal").release(2.0)
    result = step(torch.zeros(0, 200), of, batch=10)
    assert float(result.norm()) > 0
    assert torch.isfinite(result).all()


def test_noise_has_the_stated_scale_in_and_outside_the_subspace():
    basis = basis_of((500, 700), (200, 300), torch.float64)
    of = Release(Part(3.0, 2.0), Part(0.5, 1.5))
    zero = Sums.zero(basis)
    noise = SeededNoise(1)
    w = perturb(zero.embedding, of.embedding, noise, 0, "embedding")
    r = perturb(zero.residual(basis), of.residual, noise, 0, "residual")
    result = reconstruct(w, r, basis)
    inside = basis.embed(result[None])[0]
    outside = result - basis.expand(inside)
    torch.testing.assert_close(inside, w)  # nothing of the residual's noise, which would be noise without any privacy
    assert float(inside.square().mean()) == pytest.approx(6.0**2, rel=0.25)
    assert float(outside.square().sum() / (1200 - 500)) == pytest.approx(0.75**2, rel=0.2)


def test_the_charge_comes_before_any_noise_and_a_refusal_draws_none():
    events = []

    class Spy(SeededNoise):
        def normal(self, size, **where):
            events.append("noise")
            return super().normal(size, **where)

    of = GEP(1.0, 0.5, split="equal").release(2.0)
    step(torch.randn(8, 200), of, noise=Spy(0), charge=lambda: events.append("charge"))
    assert events == ["charge", "noise", "noise"]

    def refuse():
        raise RuntimeError("no budget")

    events.clear()
    with pytest.raises(RuntimeError, match="no budget"):
        step(torch.randn(8, 200), of, noise=Spy(0), charge=refuse)
    assert events == []


def test_a_record_that_is_not_finite_is_as_if_it_were_not_there():
    basis = basis_of((60, 140), (10, 20), torch.float32)
    good = torch.randn(20, 200)
    bad = torch.randn(3, 200)
    bad[0, 3], bad[1, 150], bad[2, :] = torch.nan, torch.inf, -torch.inf
    mixed = torch.cat([good[:10], bad, good[10:]])
    of = release(1.0, 0.5)
    with_bad, without = summed(mixed, basis, of), summed(good, basis, of)
    torch.testing.assert_close(with_bad.embedding, without.embedding)
    torch.testing.assert_close(with_bad.gradient, without.gradient)
    assert int(with_bad.diagnostics.not_finite) == 3


def test_diagnostics_count_what_clipping_did():
    basis = basis_of((60, 140), (10, 20), torch.float64)
    gradients = torch.randn(100, 200, dtype=torch.float64)
    s1, s2 = 5.0, 13.0
    expected = release_parts(gradients, dense(basis.blocks), s1, s2)
    seen = summed(gradients, basis, release(s1, s2), cut=33).diagnostics
    assert int(seen.records) == 100
    assert int(seen.clipped_embeddings) == sum(f < 1 for f in expected.embedding_factors)
    assert int(seen.clipped_residuals) == sum(f < 1 for f in expected.residual_factors)
    assert float(seen.gradient_norms) == pytest.approx(float(gradients.norm(dim=1).sum()))
    squares = sum(float(r.square().sum()) for r in expected.residuals)
    assert float(seen.squared_residual_norms) == pytest.approx(squares, rel=1e-6)


def could_come_from(released, total):
    """Whether a float64 number could be `total` plus any float64 number at all."""
    difference = released - total
    tried = (difference, math.nextafter(difference, INF), math.nextafter(difference, -INF))
    return any(total + noise == released for noise in tried)


@pytest.mark.parametrize("source", [SystemNoise, SecureNoise])
def test_the_last_bits_of_a_float64_release_do_not_tell_who_was_in(source):
    """Without a grid four of five coordinates close to zero could not have come about with the record."""
    record = torch.full((1, 400), 0.05, dtype=torch.float64)
    of, subspace = GP(1.0).release(0.02), NoSubspace(400, record)
    released = step(torch.zeros(0, 400), of, batch=1, subspace=subspace, noise=source())
    near_zero = [value for value in released.tolist() if abs(value) < 0.05 / 4]
    assert len(near_zero) > 50
    assert all(could_come_from(value, 0.05) for value in near_zero)


@pytest.mark.parametrize("of", [GEP(1.0, 2.0).release(0.7, k=14, num_parameters=200), BGEP(3.0).release(1.3)])
def test_every_released_part_lies_on_a_public_grid(of, monkeypatch):
    seen = []
    monkeypatch.setattr(mechanism, "reconstruct", lambda w, r, B: seen.extend((w, r)) or reconstruct(w, r, B))
    step(torch.randn(50, 200, dtype=torch.float64), of, noise=SystemNoise())
    for part, values in zip((of.embedding, of.residual), seen, strict=True):
        if part is None:
            continue
        multiples = values / 2.0 ** (math.floor(math.log2(part.noise_std)) - mechanism.BITS_BELOW_NOISE)
        assert torch.equal(multiples, multiples.round())
        assert float(multiples.abs().median()) > 1e5, "far finer than the noise"


def test_the_basis_does_not_depend_on_private_gradients():
    anchors, blocks = torch.randn(50, 200), []
    for private in (torch.randn(8, 200), 1e3 * torch.randn(8, 200), torch.zeros(0, 200)):
        subspace = PowerSubspace((60, 140), (5, 9))
        step(private, release(1.0, 1.0), anchors=anchors, subspace=subspace, batch=8)
        blocks.append(subspace.basis.blocks)
    assert all(torch.equal(a, b) for other in blocks[1:] for a, b in zip(blocks[0], other, strict=True))
