"""Norms, stable ranks and projection errors against slow, obvious ones, and the command on small files."""

import json
import shutil

import pytest
import torch
from torch import nn

from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.algorithm.subspace import random_rows
from lightning_gep.privacy.release import Part, Release
from recipes.measured.__main__ import main
from recipes.measured.batch import WHOLE, of_gradients, of_projection, products_of
from recipes.measured.figures import FIGURES
from recipes.measured.measuring import SOURCES
from recipes.measured.nested_basis import cold_start, largest_quotas

RECORDS, ANCHORS = 14, 40
S, S1, S2 = 1.6, 1.2, 1.0


@pytest.fixture(scope="module")
def groups():
    network = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    return ParameterGroups.from_module(network)


@pytest.fixture(scope="module")
def gradients(groups):
    """Rows with a spectrum that decays, as gradients have it, and of lengths on both sides of the thresholds."""
    generator = torch.Generator().manual_seed(3)
    directions = torch.linalg.qr(torch.randn(groups.num_parameters, 30, generator=generator)).Q.T
    scales = 0.8 ** torch.arange(30.0)

    def draw(count, shift):
        return ((torch.randn(count, 30, generator=generator) + shift) * scales) @ directions

    return draw(RECORDS, 0.3), draw(ANCHORS, 0.2)


def plain_bases(anchors, groups, quotas, step, ks):
    """For each k and group the basis of the paper: QR of the power iteration of the first kᵢ random rows."""
    starts = random_rows(step, quotas, groups.sizes, anchors)
    bases = {}
    for k in ks:
        blocks = []
        for start, part, quota in zip(starts, anchors.split(groups.sizes, dim=1), groups.quotas(k), strict=True):
            product = start[:quota].double() @ part.T.double() @ part.double()
            blocks.append(torch.linalg.qr(product.T).Q.T)
        bases[k] = blocks
    return bases


def split(rows, groups):
    return dict(zip(groups.names, rows.double().split(groups.sizes, dim=1), strict=True))


def measured_with(nested, gradients, groups, way, k):
    embedded = nested.turned(nested.basis.embed(gradients))[way]
    first = {n: part[:, :q] for n, part, q in zip(groups.names, embedded, groups.quotas(k), strict=True)}
    return of_projection(products_of(gradients, groups), first, Release(Part(S1, 0.0), Part(S2, 0.0)))


def plain_rank(rows):
    values = torch.linalg.svdvals(rows)
    return float((values**2).sum() / values[0] ** 2)


def test_gradients_are_described_as_by_loops_and_a_singular_value_decomposition(groups, gradients):
    private, _ = gradients
    found = of_gradients(products_of(private, groups), S)
    for name, rows in {**split(private, groups), WHOLE: private.double()}.items():
        assert found["stable_rank"][name] == pytest.approx(plain_rank(rows), rel=1e-6)
        assert found["norm_of_mean"][name] == pytest.approx(float(rows.mean(dim=0).norm()), rel=1e-6)
    total, clipped = torch.zeros(groups.num_parameters, dtype=torch.float64), 0
    for row in private.double():
        total += row * min(1.0, S / float(row.norm()))
        clipped += float(row.norm()) > S
    assert 0 < clipped < RECORDS
    assert found["clipped_records"] == clipped / RECORDS
    assert found["norm_of_clipped_mean"] == pytest.approx(float(total.norm()) / RECORDS, rel=3e-4)
    assert found["norm_of_a_record"] == pytest.approx(float(private.double().norm(dim=1).mean()), rel=1e-6)


def test_a_smaller_basis_is_that_of_a_cold_start_of_its_own(groups, gradients):
    """Errors, ranks and clipped sums by explicit QR and subtraction, for each k from the one large basis."""
    private, anchors = gradients
    ks = (4, 7, 12)
    nested = cold_start(lambda: iter(anchors.split(9)), groups, ks, seed=5)
    for k, blocks in plain_bases(anchors, groups, largest_quotas(groups, ks), 5, ks).items():
        found = measured_with(nested, private, groups, "power", k)
        embeddings, residuals = {}, {}
        for (name, rows), block in zip(split(private, groups).items(), blocks, strict=True):
            embeddings[name] = rows @ block.T
            residuals[name] = rows - embeddings[name] @ block
        residuals[WHOLE] = torch.cat(list(residuals.values()), dim=1)
        assert found["vectors"] == k
        for name, rows in {**split(private, groups), WHOLE: private.double()}.items():
            rest = residuals[name]
            assert found["error_of_mean"][name] == pytest.approx(
                float(rest.mean(dim=0).norm() / rows.mean(dim=0).norm()), rel=1e-3
            )
            each = [float(r.norm() / g.norm()) for r, g in zip(rest, rows, strict=True)]
            assert found["error_of_a_record"][name] == pytest.approx(sum(each) / RECORDS, rel=1e-3)
            assert found["stable_rank_of_residuals"][name] == pytest.approx(plain_rank(rest), rel=1e-3)
        whole = torch.cat(list(embeddings.values()), dim=1)
        for part, rows, threshold in (("embedding", whole, S1), ("residual", residuals[WHOLE], S2)):
            total = sum(row * min(1.0, threshold / float(row.norm())) for row in rows)
            clipped = sum(float(row.norm()) > threshold for row in rows) / RECORDS
            assert found[f"norm_of_clipped_{part}"] == pytest.approx(float(total.norm()) / RECORDS, rel=1e-3)
            assert found[f"clipped_{part}s"] == clipped


STEPS = ["--steps", "0", "2"]
SMALL = [
    *("--batch", "8", "--anchors", "6", "--k", "3", "6"),
    *("--set", "data.batch_size=4", "data.aux_batch_size=6", "aux.count=6", "mechanism.k=4", "mechanism.num_anchors=6"),
    *("privacy.accountant=rdp", "trainer.accelerator=cpu", "threads=1", "logger=none", "~callbacks.progress_bar"),
]


@pytest.fixture
def command(small_data, tmp_path):
    """Runs the command on small files."""
    places = ["--working-directory", str(tmp_path / "work"), "--output", str(tmp_path / "figures")]

    def run(data, *more):
        main(["--data", data, "--data-directory", str(small_data), *places, *SMALL, *more])

    return run


def read(directory, data):
    text = (directory / "figures" / f"measured_{data}.json").read_text()
    assert str(directory) not in text
    return json.loads(text)


@pytest.mark.slow
def test_all_figures_come_from_one_training_that_is_measured_once(command, tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        command("cifar10", "--batch", "31")
    assert "--batch 31 is above the 30 training images" in capsys.readouterr().err

    command("cifar10", *STEPS)
    figures, printed = read(tmp_path, "cifar10"), capsys.readouterr().out
    assert list(figures["steps"]) == ["0", "2"]
    assert "not covered by any ε" in figures["what"]
    assert figures["training"]["privacy"]["steps"] == 2
    assert figures["settings"]["k"] == [3, 4, 6]
    for step in figures["steps"].values():
        assert list(step["bases"]) == list(SOURCES)
        for source, ways in step["bases"].items():
            for way in ["random"] if source == "random" else ["power", "principal"]:
                errors = [ways[way][k]["error_of_mean"]["all"] for k in ("3", "4", "6")]
                assert 0 < errors[-1] < errors[0] < 1
    assert figures["steps"]["0"]["bases"]["random"]["random"]["6"]["error_of_mean"]["all"] > 0.95
    assert figures["steps"]["0"]["gradients"] != figures["steps"]["2"]["gradients"]
    words = {"projection_error": "second stage", "stable_rank": "stage3, p = ", "gradient_norms": "ε = 8 in 200 epochs"}
    for figure in FIGURES:
        assert words[figure.NAME] in (tmp_path / "figures" / f"{figure.NAME}_cifar10.svg").read_text()
        assert figure.TITLE in printed

    shutil.move(tmp_path / "figures" / "measured_cifar10.json", tmp_path)
    with pytest.raises(SystemExit, match="2"):
        command("cifar10", "--steps", "0", "3")
    assert "ended after 2 steps, and the weights after 3 were not kept" in capsys.readouterr().err
    shutil.move(tmp_path / "measured_cifar10.json", tmp_path / "figures")
    shutil.rmtree(tmp_path / "work")
    command("cifar10", *STEPS)  # what is measured is drawn without training
    assert not (tmp_path / "work").exists()
