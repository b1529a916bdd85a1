import warnings
from itertools import pairwise

import pytest
import torch

from lightning_gep.algorithm.linalg import column_blocks, gram, largest_entry
from lightning_gep.algorithm.subspace import PowerSubspace, RandomSubspace
from lightning_gep.algorithm.tracked import LOOSEST, TrackedSubspace
from lightning_gep.errors import ConfigurationError
from tests.reference import dense, orthonormal_rows, principal_rows, span_distance

SIZES, QUOTAS = (200, 500), (15, 25)


def power(**kwargs):
    return PowerSubspace(SIZES, QUOTAS, **kwargs)


def tracked(**kwargs):
    return TrackedSubspace(SIZES, QUOTAS, num_anchors=kwargs.pop("num_anchors", 60), **kwargs)


def random(**kwargs):
    return RandomSubspace(SIZES, QUOTAS, **kwargs)


SOURCES = {"power": power, "tracked": tracked, "random": random}

ANCHORS = {
    "gaussian": lambda: torch.randn(120, 700),
    "duplicates": lambda: torch.randn(4, 700).repeat(30, 1),
    "zeros": lambda: torch.zeros(120, 700),
    "rank below k": lambda: torch.randn(120, 3) @ torch.randn(3, 700),
    "fewer anchors than k": lambda: torch.randn(6, 700),
    "huge": lambda: 1e30 * torch.randn(120, 700),
    "sums that overflow": lambda: torch.full((120, 700), 3e36) + 1e36 * torch.randn(120, 700),
    "tiny": lambda: 1e-30 * torch.randn(120, 700),
    "all scales": lambda: torch.randn(120, 700) * torch.logspace(-30, 30, 120)[:, None],
    "some not finite": lambda: torch.where(torch.rand(120, 700) < 0.0005, torch.inf, torch.randn(120, 700)),
    "all not finite": lambda: torch.full((120, 700), torch.nan),
    "float64": lambda: torch.randn(120, 700, dtype=torch.float64),
}


def quietly_at(subspace, step, gradients, cut=30):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return subspace.at_step(step, lambda: gradients.split(cut))


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("anchors", ANCHORS)
def test_the_basis_is_orthonormal_whatever_comes_in(source, anchors):
    subspace = SOURCES[source]()
    for step in range(5):
        basis = quietly_at(subspace, step, ANCHORS[anchors]())
        for block, quota, size in zip(basis.blocks, QUOTAS, SIZES, strict=True):
            assert block.shape[1] == size
            assert len(block) <= quota
            assert largest_entry(gram(block)) <= 1e-5
            defect = torch.linalg.eigvalsh(gram(block) - torch.eye(len(block), dtype=torch.float64)).abs()
            assert defect.numel() == 0 or float(defect.max()) <= basis.defect


@pytest.mark.parametrize("source", ["power", "tracked"])
@pytest.mark.parametrize(("anchors", "rank"), [("duplicates", 4), ("rank below k", 3), ("zeros", 0)])
def test_k_is_cut_to_the_rank_with_a_word(source, anchors, rank):
    subspace = SOURCES[source]()
    gradients = ANCHORS[anchors]()
    with pytest.warns(UserWarning, match=f"span {2 * rank} of the 40 directions"):
        basis = subspace.at_step(0, lambda: gradients.split(30))
    assert basis.dimensions == (rank, rank)
    for block, part in zip(basis.blocks, gradients.split(SIZES, dim=1), strict=True):
        assert span_distance(block, principal_rows(part, rank)) < 1e-4


@pytest.mark.parametrize("source", ["power", "tracked"])
def test_anchors_of_rank_k_are_spanned_exactly(source):
    """The paper's low-rank lemma: m ≥ k anchors of a rank-k distribution leave no residual."""
    factors = [torch.randn(quota, size, dtype=torch.float64) for quota, size in zip(QUOTAS, SIZES, strict=True)]

    def sample(count):
        rows = [torch.randn(count, len(f), dtype=torch.float64) @ f for f in factors]
        return torch.cat(rows, dim=1)

    basis = quietly_at(SOURCES[source](), 0, sample(25), cut=10)
    private = sample(50)
    residual = private - basis.embed(private) @ dense(basis.blocks)
    assert float(residual.norm() / private.norm()) < 1e-7


def test_power_iterations_approach_the_principal_components():
    spectrum = torch.cat([torch.linspace(4, 2, 15), torch.full((45,), 0.5)])
    parts = [torch.randn(300, 60) * spectrum @ orthonormal_rows(60, size, torch.float32) for size in SIZES]
    gradients = torch.cat(parts, dim=1)
    distances = []
    for iterations in (1, 2, 6):
        basis = quietly_at(PowerSubspace(SIZES, (15, 15), iterations=iterations), 0, gradients)
        distances.append(span_distance(basis.blocks[0], principal_rows(parts[0], 15)))
    assert distances[2] < distances[1] < distances[0]
    assert distances[2] < 1e-3


def test_power_iteration_does_not_depend_on_how_anchors_are_cut():
    gradients = torch.randn(300, 700)
    whole, cut_up = (quietly_at(power(), 0, gradients, cut=cut) for cut in (300, 7))
    assert all(span_distance(block, other) < 1e-4 for block, other in zip(whole.blocks, cut_up.blocks, strict=True))


def test_tracking_is_the_recipe_of_scaled_rows():
    """One update is the leading right singular vectors of M = [√(γC)·B ; √(1−γ)·G/‖G‖]."""
    decay, a = 0.9, 12
    subspace = TrackedSubspace((80,), (10,), num_anchors=a, decay=decay)
    first, second = torch.randn(a, 80, dtype=torch.float64), torch.randn(a, 80, dtype=torch.float64)
    before = quietly_at(subspace, 0, first, cut=a).blocks[0].clone()
    covariance = subspace.state_dict()["covariances"][0].clone()
    after = quietly_at(subspace, 1, second, cut=a)
    root = torch.linalg.cholesky(decay * covariance).T
    stacked = torch.cat([root @ before, (1 - decay) ** 0.5 * second / second.norm()])
    assert span_distance(after.blocks[0], principal_rows(stacked, 10)) < 1e-8
    new = subspace.state_dict()["covariances"][0]
    torch.testing.assert_close(torch.linalg.eigvalsh(new).flip(0), torch.linalg.svdvals(stacked)[:10] ** 2)
    inside = stacked @ after.blocks[0].T
    torch.testing.assert_close(new, inside.T @ inside)


def test_the_first_rows_of_a_principal_basis_are_the_principal_components():
    gradients = torch.randn(60, 700) * torch.linspace(1, 3, 60)[:, None]
    subspace = tracked()
    quietly_at(subspace, 0, gradients, cut=60)
    basis = subspace.principal_basis()
    assert subspace.basis is basis
    for block, part in zip(basis.blocks, gradients.split(SIZES, dim=1), strict=True):
        assert span_distance(block[:5], principal_rows(part, 5)) < 1e-4
        assert torch.linalg.eigvalsh(gram(block) - torch.eye(len(block))).abs().max() <= basis.defect


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_defect_bounds_the_truth_over_many_refreshes(dtype):
    """It is measured only now and then: in between, what a refresh may add to it is added."""
    subspace = TrackedSubspace((3000,), (60,), num_anchors=12, decay=0.9)
    common = torch.randn(80, 3000, dtype=dtype)
    bounds = []
    for step in range(150):
        # Long rows close to what is spanned already leave a small rest, in which rounding is large.
        noise = 1e-3 * torch.randn(12, 3000, dtype=dtype)
        rows = torch.randn(12, 80, dtype=dtype) @ common * 10.0 ** (step % 4) + noise
        basis = quietly_at(subspace, step, rows, cut=12)
        products = gram(basis.blocks[0])
        truth = torch.linalg.eigvalsh(products - torch.eye(len(products))).abs().max()
        assert float(truth) <= basis.defect
        assert largest_entry(products) <= 1e-5
        bounds.append(basis.defect)
    assert max(bounds) <= LOOSEST[dtype]
    rises = sum(later > earlier for earlier, later in pairwise(bounds[6:]))
    assert rises > 40, "most refreshes carry the bound on"
    assert min(bounds[20:]) < 0.1 * max(bounds), "and now and then it is measured anew"


def test_a_small_rest_is_freed_of_what_rounding_left_in_it():
    subspace = TrackedSubspace((3000,), (60,), num_anchors=40)
    spanned = torch.randn(40, 3000)
    quietly_at(subspace, 0, spanned, cut=40)
    basis = quietly_at(subspace, 1, torch.randn(40, 40) @ spanned + 2e-2 * torch.randn(40, 3000), cut=40)
    assert basis.defect < 2e-5, "one projection alone leaves ten times as much, and another pass over all rows to do"


def test_a_refresh_that_was_cut_off_leaves_no_basis_behind(monkeypatch):
    """Half of the columns are changed and half are not: orthonormal no more, and the bound does not know it."""
    subspace = TrackedSubspace((9000,), (20,), num_anchors=20)
    quietly_at(subspace, 0, torch.randn(20, 9000), cut=20)

    def one_block(*parts):
        yield next(column_blocks(*parts))
        raise KeyboardInterrupt

    monkeypatch.setattr("lightning_gep.algorithm.tracked.column_blocks", one_block)
    with pytest.raises(KeyboardInterrupt):
        quietly_at(subspace, 1, torch.randn(20, 9000), cut=20)
    monkeypatch.undo()
    assert subspace.basis is None
    basis = quietly_at(subspace, 1, torch.randn(30, 9000), cut=30)
    truth = torch.linalg.eigvalsh(gram(basis.blocks[0]) - torch.eye(20)).abs().max()
    assert float(truth) <= basis.defect < 1e-4


def test_an_overlap_of_new_directions_with_old_ones_is_in_the_bound(monkeypatch):
    """New directions that lean on the old ones, as rounding might leave them, and that nothing takes out again."""
    subspace = TrackedSubspace((300,), (20,), num_anchors=20, decay=0.5)
    old = quietly_at(subspace, 0, torch.randn(20, 300)).blocks[0].clone()
    beside = torch.linalg.qr(torch.cat([old, torch.randn(5, 300)]).double().T).Q.T[20:]
    leaning = (beside + 3e-6 * old[:5]).float()
    monkeypatch.setattr("lightning_gep.algorithm.tracked.new_directions", lambda *_: (leaning, 1e-7))
    basis = quietly_at(subspace, 1, torch.randn(20, 5) @ leaning)
    truth = torch.linalg.eigvalsh(gram(basis.blocks[0]) - torch.eye(20)).abs().max()
    assert 1e-6 < float(truth) <= basis.defect


@pytest.mark.parametrize(("old_steps", "scale", "decay"), [(10, 1, 0.8), (1, 1000, 0.9)])
def test_tracking_forgets_also_large_gradients_of_the_first_steps(old_steps, scale, decay):
    """Gradients often shrink a hundredfold in the first steps; their squares would outweigh all that follow."""
    old, new = orthonormal_rows(5, 100, torch.float32), orthonormal_rows(5, 100, torch.float32)
    subspace = TrackedSubspace((100,), (5,), num_anchors=20, decay=decay)
    for step in range(40):
        quietly_at(subspace, step, torch.randn(20, 5) @ (scale * old if step < old_steps else new))
    assert span_distance(subspace.basis.blocks[0], new) < 0.05


def test_tracking_remembers_what_power_iteration_on_few_anchors_cannot_see():
    directions = orthonormal_rows(40, 700, torch.float32)

    def anchors():
        return torch.randn(10, 40) @ directions + 0.01 * torch.randn(10, 700)

    remembering = TrackedSubspace((700,), (40,), num_anchors=10, decay=0.98)
    for step in range(40):
        quietly_at(remembering, step, anchors(), cut=10)
    forgetting = quietly_at(PowerSubspace((700,), (40,)), 0, anchors(), cut=10)
    private = torch.randn(200, 40) @ directions

    def error(basis):
        return float((private - (basis.embed(private) @ dense(basis.blocks)).float()).norm() / private.norm())

    assert error(remembering.basis) < 0.1
    assert error(forgetting) > 0.5


@pytest.mark.parametrize("source", SOURCES)
def test_refresh_every_r_steps_and_no_anchor_gradient_in_between(source):
    subspace, sweeps = SOURCES[source](refresh_every=4), []

    def anchors():
        sweeps.append(1)
        return torch.randn(60, 700).split(30)

    bases = [subspace.at_step(step, anchors) for step in range(9)]
    assert len(sweeps) == 3
    assert bases[0] is bases[3]
    assert bases[3] is not bases[4]


@pytest.mark.parametrize("source", SOURCES)
def test_a_restored_subspace_goes_on_as_if_nothing_had_happened(source):
    def anchors_of(step):
        return torch.randn(60, 700, generator=torch.Generator().manual_seed(step))

    unbroken = SOURCES[source](refresh_every=2)
    for step in range(5):
        quietly_at(unbroken, step, anchors_of(step))
    first = SOURCES[source](refresh_every=2)
    for step in range(3):
        quietly_at(first, step, anchors_of(step))
    second = SOURCES[source](refresh_every=2)
    state = first.state_dict()
    before = [block.clone() for block in state["blocks"]]
    second.load_state_dict(state)
    assert second.basis.defect == first.basis.defect > 0
    for step in range(3, 5):
        quietly_at(second, step, anchors_of(step))
    assert all(map(torch.equal, unbroken.basis.blocks, second.basis.blocks))
    assert all(map(torch.equal, state["blocks"], before)), "what a checkpoint holds stays as it was"


def test_a_random_basis_ignores_the_anchors_and_changes_at_every_refresh():
    one, other = random(), random()
    first = quietly_at(one, 0, torch.randn(60, 700))
    assert torch.equal(first.blocks[0], quietly_at(other, 0, torch.randn(60, 700)).blocks[0])
    assert span_distance(first.blocks[0], quietly_at(one, 1, torch.randn(60, 700)).blocks[0]) > 0.5


@pytest.mark.parametrize("source", SOURCES)
def test_no_anchors_at_all_is_explained(source):
    with pytest.raises(ConfigurationError, match="There are no anchor gradients"):
        SOURCES[source]().at_step(0, lambda: iter(()))
