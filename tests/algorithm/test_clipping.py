"""Sensitivity: what one record can change, over records chosen to break it, measured in float64."""

import math
import subprocess
import sys

import pytest
import torch

from lightning_gep.algorithm.basis import Basis
from lightning_gep.algorithm.clipping import MARGIN, residual_norm_bound
from lightning_gep.algorithm.gep import Sums, perturb
from lightning_gep.algorithm.linalg import row_norms
from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy.release import BGEP, GEP, GP, Part, Release
from tests.reference import orthonormal_rows

S1, S2 = 10.0, 2.0


def bent_basis(k=100, p=400, entry=1e-5, dtype=torch.float32):
    """A basis with every entry of BBᵀ−I at `entry`, the edge of the promise; its worst direction; one outside."""
    rows = orthonormal_rows(k + 1, p)
    bend = torch.eye(k, dtype=torch.float64) + entry * torch.ones(k, k, dtype=torch.float64)
    basis = Basis.of([(torch.linalg.cholesky(bend) @ rows[:k]).to(dtype)])
    matrix = basis.blocks[0].double()
    worst = torch.linalg.eigh(matrix @ matrix.T).eigenvectors[:, -1] @ matrix
    outside = rows[k] - torch.linalg.pinv(matrix) @ (matrix @ rows[k])
    return basis, worst / worst.norm(), outside / outside.norm()


def adversarial_records():
    basis, worst, outside = bent_basis()
    tau = basis.defect
    matrix = basis.blocks[0].double()
    inside = torch.randn(5, len(matrix), dtype=torch.float64) @ matrix
    generic = torch.randn(5, matrix.shape[1], dtype=torch.float64)
    tricky = [math.sqrt(1 - a) * worst + math.sqrt(a) * outside for a in (0, tau / 4, tau, 4 * tau, 0.01, 0.5, 1)]
    unit = torch.cat([torch.stack(tricky), inside, generic])
    unit = unit / unit.norm(dim=1, keepdim=True)
    scales = [1e-40, 1e-12, 0.1, S2, S1, 10 * S1, 1e3, 1e4, 1e6, 1e30]
    records = torch.cat([scale * unit for scale in scales]).float()
    special = torch.stack([torch.full((400,), value) for value in (torch.inf, -torch.inf, torch.nan, 3e38, 0.0)])
    return basis, torch.cat([records, special])


def summed(rows, basis, release):
    """Embedding and residual of a batch, read in microbatches."""
    sums = Sums.zero(basis)
    for microbatch in rows.split(64):
        sums.add(microbatch, basis, release)
    return sums.embedding, sums.residual(basis)


def contributions(records, basis, release):
    """For every record alone: norms of what it adds to the embedding and to the residual."""
    for record in records:
        yield tuple(float(part.norm()) for part in summed(record[None], basis, release))


def largest_overshoot(release, dtype=torch.float32, basis_and_records=None):
    basis, records = basis_and_records or adversarial_records()
    s1, s2 = release.embedding.clip, release.residual.clip
    worst = 0.0
    for embedding, residual in contributions(records.to(dtype), basis, release):
        assert math.isfinite(embedding)
        assert math.isfinite(residual)
        if release.clipping == "joint":
            worst = max(worst, math.hypot(embedding / s1, residual / s2))
        else:
            worst = max(worst, embedding / s1, residual / s2)
    return worst


RELEASES = {
    "separate": Release(Part(S1, 1.0), Part(S2, 1.0)),
    "joint": Release(Part(S1, 1.0), Part(S2, 1.0), "joint"),
    "tiny threshold": Release(Part(1e-9, 1.0), Part(1e-9, 1.0)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", RELEASES)
def test_no_record_contributes_more_than_its_threshold(name, dtype):
    overshoot = largest_overshoot(RELEASES[name], dtype)
    assert overshoot <= 1.0
    assert overshoot > 0.99, "the worst record should come close, or the test tests nothing"


@pytest.mark.parametrize("setting", ["autocast", "medium"])
def test_thresholds_hold_under_the_users_precision_settings(setting):
    basis_and_records = adversarial_records()
    torch.set_float32_matmul_precision("medium" if setting == "medium" else "highest")
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=setting == "autocast"):
            assert largest_overshoot(RELEASES["separate"], basis_and_records=basis_and_records) <= 1.0
        assert (torch.get_float32_matmul_precision() == "medium") == (setting == "medium"), "it must come back"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_the_bound_is_never_below_the_true_residual_and_not_far_above():
    torch.manual_seed(3)
    for dtype, slack in ((torch.float32, 0.05), (torch.float64, 1e-6)):
        basis = Basis.of([orthonormal_rows(80, 3000, dtype)])
        gradients = torch.randn(200, 3000, dtype=dtype)
        embeddings = basis.embed(gradients)
        true = (gradients.double() - embeddings @ basis.blocks[0].double()).norm(dim=1)
        bound = residual_norm_bound(row_norms(gradients), row_norms(embeddings), basis)
        assert (bound >= true).all()
        assert (bound <= true * (1 + slack)).all()


def test_the_rounding_error_of_embeddings_is_within_its_bound():
    rows = orthonormal_rows(60, 40_000, torch.float32)
    basis = Basis.of([rows])
    # Gradients aligned with |B|, where the rounding errors of one sign pile up.
    gradients = torch.stack([rows[0].abs(), rows.abs().sum(0), torch.randn(40_000), 1e-38 * torch.randn(40_000)])
    exact = gradients.double() @ rows.double().T
    error = (basis.embed(gradients) - exact).norm(dim=1)
    bound = basis.embedding_error(row_norms(gradients))
    assert (error <= bound).all()


def test_adding_a_record_to_a_batch_shifts_the_sums_by_no_more_than_the_thresholds():
    """Also with other records around it: the rounding of the sum itself is covered."""
    basis, records = adversarial_records()
    crowd = 1e4 * torch.randn(512, 400)
    without = summed(crowd, basis, RELEASES["separate"])
    for record in records[::3]:
        joined = summed(torch.cat([record[None], crowd]), basis, RELEASES["separate"])
        embedding, residual = (float((a - b).norm()) for a, b in zip(joined, without, strict=True))
        assert embedding <= S1
        assert residual <= S2


class Ones:
    """Not noise: one standard deviation on every coordinate, to read off the scale that is really added."""

    def normal(self, size, **_):
        return torch.ones(size, dtype=torch.float64)


def noise_scale(part, size):
    zero = torch.zeros(size, dtype=torch.float64)
    return None if part is None else float(perturb(zero, part, Ones(), 0, "x")[0])


def worst_shift(release, basis):
    """The largest Mahalanobis norm that one record causes, over directions and sizes."""
    matrix = basis.blocks[0].double()
    outside = torch.linalg.qr(torch.cat([matrix, torch.randn(1, matrix.shape[1])]).T).Q[:, -1]
    inside = matrix[0] if len(matrix) else outside
    angles = torch.linspace(0, math.pi / 2, 41, dtype=torch.float64)
    records = torch.stack([a.cos() * inside + a.sin() * outside for a in angles])
    records = torch.cat([scale * records for scale in (0.1, 1.0, 30.0, 1e5)])
    scales = noise_scale(release.embedding, 1), noise_scale(release.residual, 1)
    worst = 0.0
    for shifts in contributions(records, basis, release):
        units = [shift / scale for shift, scale in zip(shifts, scales, strict=True) if scale is not None]
        worst = max(worst, math.hypot(*units))
    return worst


def mechanisms():
    for split in ("optimal", "equal", (3.0, 1.0), (1.0, 5.0)):
        yield f"gep separate {split}", GEP(S1, S2, "separate", split)
    yield "gep joint", GEP(S1, S2, "joint", "equal")
    yield "gep joint, optimal by name", GEP(S1, 7.0, "joint", "optimal")
    yield "bgep", BGEP(S1)
    yield "gp", GP(1.5)


@pytest.mark.parametrize("sigma", [0.6, 2.0])
@pytest.mark.parametrize("config", [pytest.param(m, id=name) for name, m in mechanisms()])
def test_the_worst_shift_in_units_of_the_noise_is_one_over_the_accounted_sigma(config, sigma):
    release = config.release(sigma, k=10, num_parameters=50)
    assert release.noise_multiplier == pytest.approx(sigma, rel=1e-12)
    k = 10 if config.uses_basis else 0
    basis = Basis.of([orthonormal_rows(k, 50)])
    shift = worst_shift(release, basis)
    assert shift <= 1 / sigma
    assert shift == pytest.approx(1 / sigma, rel=1e-3), "noise that is not accounted for is wasted"


def test_joint_clipping_with_unequal_sigmas_breaks_that_equation():
    """Built past the constructor, which refuses it: neither rule for the step's σ is then right."""
    release = object.__new__(Release)
    for name, value in (("embedding", Part(S1, 1.0)), ("residual", Part(S2, 2.0)), ("clipping", "joint")):
        object.__setattr__(release, name, value)
    shift = worst_shift(release, Basis.of([orthonormal_rows(10, 50)]))
    as_if_separate = (1.0**-2 + 2.0**-2) ** 0.5
    as_if_the_residual_decided = 1 / 2.0
    assert shift < as_if_separate * 0.95
    assert shift > as_if_the_residual_decided * 1.5


def test_one_threshold_for_all_groups_together():
    """Clipping per group would let √groups times the threshold through."""
    basis = Basis.of([orthonormal_rows(5, 50) for _ in range(4)])
    record = 100 * torch.cat([block[0] for block in basis.blocks]) + torch.randn(200, dtype=torch.float64)
    (embedding, residual), *_ = contributions(record[None], basis, RELEASES["separate"])
    assert embedding == pytest.approx(S1, rel=2e-4)
    assert residual == pytest.approx(S2, rel=2e-4)


def test_the_residual_comes_from_the_unclipped_embedding():
    basis = Basis.of([orthonormal_rows(5, 50)])
    record = 1e3 * basis.blocks[0][0]
    (_, residual), *_ = contributions(record[None], basis, RELEASES["separate"])
    assert residual < 1e-3


def test_one_record_more_hardly_moves_the_others():
    """A product of float32 matrices may round a row differently in another place; the margin has to cover that."""
    basis, _ = adversarial_records()
    crowd = (1e4 * basis.blocks[0][:1] + 1e2 * torch.randn(1, 400)).repeat(10_000, 1)
    batches = crowd, torch.cat([torch.zeros(1, 400), crowd])
    first, second = (summed(rows, basis, RELEASES["separate"]) for rows in batches)
    assert float((first[0] - second[0]).norm()) <= MARGIN / 2 * S1
    assert float((first[1] - second[1]).norm()) <= MARGIN / 2 * S2


@pytest.mark.parametrize("p", [300, 5000])
def test_the_error_bound_of_embeddings_is_the_textbook_one(p):
    """γ_L‖g‖ for each of k coordinates, strips of L columns, and the smallest normal number for each lost product."""
    basis, unit = Basis.of([orthonormal_rows(16, p, torch.float32)]), 2.0**-24
    length = min(p, 512)
    one = torch.ones(1, dtype=torch.float64)
    assert float(basis.embedding_error(one)) >= 4 * length * unit / (1 - length * unit)
    assert float(basis.embedding_error(0 * one)) >= 4 * p * torch.finfo(torch.float32).tiny


def test_the_rounding_of_norms_is_allowed_for():
    one = torch.ones(1, dtype=torch.float64)
    assert float(residual_norm_bound(one, 0 * one, Basis.empty(10**6, torch.zeros(1)))) >= 1 + 10**6 * 2.0**-53
    assert 1e-6 <= MARGIN <= 1e-3


def test_low_precision_bases_are_refused():
    with pytest.raises(ConfigurationError, match=r"must be float32 or float64, not torch.bfloat16"):
        Basis.of([orthonormal_rows(3, 10).bfloat16()])


def test_products_are_exact_where_shortcuts_were_allowed_by_the_newer_settings():
    script = (
        "import torch; from lightning_gep.algorithm.basis import full_precision\n"
        "torch.backends.mkldnn.matmul.fp32_precision = 'bf16'\n"
        "with full_precision(torch.device('cpu')):\n"
        "    assert torch.backends.mkldnn.matmul.fp32_precision == 'ieee'\n"
        "    assert torch.backends.cudnn.conv.fp32_precision == 'ieee'\n"
        "assert torch.backends.mkldnn.matmul.fp32_precision == 'bf16'\n"
        "assert torch.backends.cudnn.conv.fp32_precision == 'tf32'\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
