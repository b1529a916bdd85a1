"""Norms, stable ranks and projection errors against slow, obvious ones, and the three commands on small files."""

import itertools
import json
import re
import runpy
import shutil
import subprocess
import sys

import pytest
import torch
from omegaconf import OmegaConf
from torch import nn

from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.algorithm.subspace import random_rows
from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy.release import Part, Release
from recipes import first_epochs, gradient_norms, projection_error, stable_rank
from recipes.measured import drawing
from recipes.measured.batch import WHOLE, of_gradients, of_projection, products_of
from recipes.measured.nested_basis import cold_start, largest_quotas, random_basis
from recipes.measured.options import SOURCES
from recipes.measured.training import training
from recipes.running.outcome import RESULTS
from recipes.running.overview import README
from recipes.running.page import FIGURES
from recipes.running.settings import settings_of, without_machine

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


def test_principal_directions_are_those_of_most_energy(groups, gradients):
    private, anchors = gradients
    ks = (4, 12)
    nested = cold_start(lambda: iter([anchors]), groups, ks, seed=5)
    found = measured_with(nested, private, groups, "principal", 4)["error_of_mean"]
    starts = random_rows(5, largest_quotas(groups, ks), groups.sizes, anchors)
    rest, parts = [], split(anchors, groups)
    for start, (name, rows), quota in zip(starts, split(private, groups).items(), groups.quotas(4), strict=True):
        product = start.double() @ parts[name].T @ parts[name]
        top = torch.linalg.svd(product, full_matrices=False).Vh[:quota]
        rest.append((rows - rows @ top.T @ top).mean(dim=0))
        size = float(rows.mean(dim=0).norm())
        assert found[name] == pytest.approx(float(rest[-1].norm()) / size, rel=1e-3)
    assert found[WHOLE] == pytest.approx(float(torch.cat(rest).norm() / private.double().mean(dim=0).norm()), rel=1e-3)


def test_a_random_basis_leaves_out_its_share(groups, gradients):
    """A random subspace of k of p dimensions has k/p of the energy on average."""
    private, _ = gradients
    k, p = 30, groups.num_parameters
    nested = [random_basis(groups, (k, 60), seed) for seed in range(40)]
    kept = [1 - measured_with(basis, private, groups, "random", k)["error_of_mean"][WHOLE] ** 2 for basis in nested]
    share = (
        sum(
            q / size * float(rows.mean(dim=0).norm()) ** 2
            for q, size, rows in zip(groups.quotas(k), groups.sizes, split(private, groups).values(), strict=True)
        )
        / float(private.double().mean(dim=0).norm()) ** 2
    )
    assert sum(kept) / len(kept) == pytest.approx(share, rel=0.1)
    assert 0 < share < 1
    assert k < p


def test_the_large_basis_has_enough_vectors_for_every_k(groups):
    for ks in itertools.combinations((3, 4, 5, 11, 12), 2):
        largest = largest_quotas(groups, ks)
        assert all(q <= most for k in ks for q, most in zip(groups.quotas(k), largest, strict=True))


SMALL_WITHOUT_STEPS = [
    *("--batch", "8", "--anchors", "6", "--k", "3", "6"),
    *("--set", "data.batch_size=4", "data.aux_batch_size=6", "aux.count=6", "mechanism.k=4", "mechanism.num_anchors=6"),
    *("privacy.accountant=rdp", "trainer.accelerator=cpu", "threads=1", "logger=none", "~callbacks.progress_bar"),
]
SMALL = ["--steps", "0", "2", *SMALL_WITHOUT_STEPS]


@pytest.fixture
def command(small_data, tmp_path):
    """Runs a recipe's command on small files; gives the figures and the picture."""
    places = ["--working-directory", str(tmp_path / "work"), "--output", str(tmp_path / "figures")]

    def run(recipe, data, *more):
        recipe.main(["--data", data, "--data-directory", str(small_data), *places, *SMALL, *more])
        text = (tmp_path / "figures" / f"measured_{data}.json").read_text()
        picture = (tmp_path / "figures" / f"{recipe.NAME}_{data}.svg").read_text()
        assert str(tmp_path) not in text
        assert str(small_data) not in text
        return json.loads(text), picture

    return run


def test_the_figures_of_cifar10_come_from_one_training_each_measured_once(command, tmp_path, capsys, monkeypatch):
    figures, picture = command(stable_rank, "cifar10")
    assert "stage3, p = " in picture
    assert "| stage1 | " in capsys.readouterr().out
    assert list(figures["steps"]) == ["0", "2"]
    assert all(list(step["bases"]) == ["imagenet"] for step in figures["steps"].values())
    first = figures["steps"]["0"]["bases"]["imagenet"]
    monkeypatch.setattr("recipes.measured.training.KeepWeights._keep", None)  # would fail if anything trained again

    figures, picture = command(projection_error, "cifar10", "--sources", *SOURCES)
    assert figures["steps"]["0"]["bases"]["imagenet"] == first
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
    assert "ImageNet, random labels:" in picture
    assert "second stage" in picture
    assert "| 2 | 6 | 0." in capsys.readouterr().out

    with pytest.raises(ConfigurationError, match=r"measured_cifar10.json has figures of other settings \(anchors: 6 →"):
        command(projection_error, "cifar10", "--anchors", "5")
    with pytest.raises(ConfigurationError, match=r"figures of a training begun .*, and its weights are not in other"):
        command(projection_error, "cifar10", "--steps", "0", "1", "--working-directory", str(tmp_path / "other"))
    with pytest.raises(ConfigurationError, match=r"ended after 2 steps, and the weights after 3 were not kept"):
        command(projection_error, "cifar10", "--steps", "0", "3")


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
def test_each_command_runs_as_printed_and_draws_again_what_was_measured(small_data, tmp_path, monkeypatch, capsys):
    printed = re.findall(r"^\| `python -m recipes\.(\w+) ([^`]*)`", README.read_text(), re.MULTILINE)
    commands = [(name, words) for name, words in printed if name in FIGURES]
    assert [name for name, _ in commands] == list(FIGURES)
    small = ["--working-directory", str(tmp_path / "work"), "--output", str(tmp_path / "figures")]
    for at, (name, words) in enumerate(commands):
        more = SMALL_WITHOUT_STEPS if at else SMALL  # the later commands find the steps in the file
        monkeypatch.setattr(sys, "argv", [name, *words.replace("DIR", str(small_data)).split(), *small, *more])
        with pytest.raises(SystemExit) as end:
            runpy.run_module(f"recipes.{name}", run_name="__main__")
        assert end.value.code == 0, capsys.readouterr()
        assert (tmp_path / "figures" / f"{name}_cifar10.svg").exists()
    assert list(json.loads((tmp_path / "figures" / "measured_cifar10.json").read_text())["steps"]) == ["0", "2"]

    shutil.rmtree(tmp_path / "work")
    stable_rank.main(["--data-directory", str(small_data), *small, *SMALL_WITHOUT_STEPS])
    assert not (tmp_path / "work").exists(), "what is measured is drawn without training"


def test_a_step_that_was_cut_is_measured_by_the_next_call(command, small_data, tmp_path):
    whole, _ = command(stable_rank, "mnist")
    file = tmp_path / "figures" / "measured_mnist.json"
    file.write_text(json.dumps({**whole, "steps": {"0": whole["steps"]["0"]}}))
    places = ["--working-directory", str(tmp_path / "work"), "--output", str(tmp_path / "figures")]
    words = ["--data", "mnist", "--data-directory", str(small_data), *places, *SMALL_WITHOUT_STEPS]
    stable_rank.main(words)
    assert list(json.loads(file.read_text())["steps"]) == ["0", "2"]


def test_the_training_on_cifar10_is_that_of_gep_in_its_first_epochs():
    """So that the directory of the one serves the other: only what is shown may differ."""
    (run,) = first_epochs.TABLE.runs(["gep"])
    asked = OmegaConf.to_container(training("cifar10", ["output_dir=."]), resolve=True)
    done = settings_of(run)
    for group in ("data", "aux", "model", "optimizer", "scheduler", "mechanism", "privacy", "trainer", "seed"):
        assert without_machine(asked[group]) == done[group]


def test_noise_stands_beside_gradients_on_mnist(command, capsys):
    figures, picture = command(gradient_norms, "mnist")
    assert {epsilon: noise["epochs"] for epsilon, noise in figures["noise"].items()} == {"2": 50, "5": 90, "8": 200}
    for noise in figures["noise"].values():
        sigma, p = noise["noise_multiplier"], 14394
        assert noise["gradient"] == pytest.approx(10 * sigma * p**0.5 / 4)
        assert noise["embedding"] == pytest.approx(10 * 2**0.5 * sigma * 4**0.5 / 4)
        assert noise["residual"] == pytest.approx(2 * 2**0.5 * sigma * p**0.5 / 4)
    assert "ε = 8 in 200 epochs" in picture
    printed = capsys.readouterr().out
    assert "| GEP: clipped residual | " in printed
    lengths = [f"{step['gradients']['norm_of_mean']['all']:.3g}" for step in figures["steps"].values()]
    assert f"| gradient, before clipping | {' | '.join(lengths)} | – | – | – |" in printed
    assert figures["steps"]["2"]["gradients"]["norm_of_clipped_mean"] > 0


def test_a_step_without_residuals_is_left_out_of_the_summary():
    figures = json.loads((RESULTS / "figures" / "measured_mnist.json").read_text())
    figures["steps"]["180"] = {**figures["steps"]["120"], "bases": {}}
    assert stable_rank.summary(figures).startswith("at step 120, ")
    for step in figures["steps"].values():
        step["bases"] = {}
    assert stable_rank.summary(figures) == "residuals were not measured"


def test_no_line_of_a_picture_is_outside_of_its_panel():
    _, ((left, right),) = drawing.panels(1, 2)
    for axes, points in ((left, {1: 0.02, 2: 0.1}), (right, {1: 0.98, 2: 0.99})):
        drawing.line(axes, points, "a line", 0)
        drawing.label(axes, "title", "x", "y")
    for axes in (left, right):
        low, high = axes.get_ylim()
        assert low < 0.02 < 0.99 < high


def test_a_batch_larger_than_the_data_is_refused(command):
    with pytest.raises(ConfigurationError, match="--batch 31 is above the 30 training images"):
        command(stable_rank, "mnist", "--batch", "31")


def test_a_setting_that_cannot_work_ends_the_command_in_a_sentence(small_data, tmp_path):
    words = ["--data", "mnist", "--data-directory", small_data, "--output", tmp_path]
    command = [sys.executable, "-m", "recipes.stable_rank", *map(str, words), "--working-directory", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"python -m recipes.stable_rank: batch_size=1000 is above the \d+ .*\n", done.stderr)
