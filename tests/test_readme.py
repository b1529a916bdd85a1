"""Every command and script of the README and the first pages of docs/ runs as printed; figures are those measured."""

import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from recipes.page.accuracy import PICTURE, ROWS, draw_accuracy, front_page
from recipes.running.outcome import result_file, results_of, write_result
from recipes.tables import COMPARISONS, MNIST_EPSILON2, MNIST_LARGER_EPSILON, TABLE1, THRESHOLDS

ROOT = Path(__file__).resolve().parent.parent
README, PAPER = (ROOT / "README.md").read_text(), (ROOT / "docs" / "paper.md").read_text()
PAGES = ("README.md", "docs/quickstart.md", "docs/commands.md", "docs/choosing.md")
"""Pages whose commands are run."""


def blocks(page, kind):
    """The code blocks of a page."""
    return re.findall(rf"^```{kind}\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


LINES = [line for page in PAGES for text in blocks(page, "bash") for line in text.replace("\\\n ", "").splitlines()]
INSTALLS, COMMANDS = ([line for line in LINES if line.startswith("pip ") is pip] for pip in (True, False))


def run(command, cwd):
    # The environment the tests run in takes the place of `source .venv/bin/activate`.
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


SAID = {
    "make train": "Test accuracy",
    "gep-init my-project": "python train.py",
    "gep-plan --records 50000": "noise",
    "gep-train mechanism=gp": "ε spent",
    "gep-train mechanism=none": "Not private",
    "gep-plan mechanism=gep,gp": "noise",
    "gep-train -m": "4 jobs: 4 finished",
    "gep-report": "report.html",
    "gep-plan --records 60000": "noise",
}
"""What each command, by its beginning, has to print."""


def test_the_pages_have_what_these_tests_look_for():
    assert len(COMMANDS) == len(SAID)
    assert all(command.startswith(said) for command, said in zip(COMMANDS, SAID, strict=True))
    assert len(README.split()) <= 700


def test_what_is_installed_exists():
    extras = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text().split("[project.optional-dep")[1], re.M)
    assert len(INSTALLS) == 2
    for command in INSTALLS:
        name, asked = re.fullmatch(r"pip install '?([\w-]+)(?:\[([\w,]+)\])?'?", command).groups()
        assert name == "lightning-gep"
        assert set((asked or "cli").split(",")) <= set(extras)


def test_make_train_is_the_default_job():
    recipe = (ROOT / "Makefile").read_text().split("\ntrain:")[1].split("\n\n")[0]
    assert recipe.splitlines()[1:] == ["\t$(BIN)/gep-train"]


ALONE = [command for command in COMMANDS if not command.startswith(("gep-train -m", "gep-report"))]


@pytest.mark.slow
@pytest.mark.parametrize(
    "commands", [*([command] for command in ALONE), [c for c in COMMANDS if c not in ALONE]], ids=lambda c: c[0]
)
def test_commands_as_they_are_printed(commands, tmp_path):
    """The report needs the sweep before it; the others stand alone."""
    for command in commands:
        printed = run(command.replace("make train", "gep-train").split(), tmp_path)
        assert next(said for start, said in SAID.items() if command.startswith(start)) in printed
    if commands == ["make train"]:
        accuracy = re.search(r"Test accuracy\W+([\d.]+) %", printed)[1]
        assert float(accuracy) > 80, "the default job learns"
    assert len(commands) == 1 or (tmp_path / "sweeps" / "first" / "report.html").is_file()


def run_script(text, tmp_path):
    (tmp_path / "script.py").write_text(text)
    return run([sys.executable, "script.py"], tmp_path)


@pytest.mark.slow
def test_the_quick_start_from_top_to_bottom(tmp_path):
    printed = run_script("\n".join(blocks("docs/quickstart.md", "python")), tmp_path)
    assert float(re.search(r"'accuracy': ([\d.]+)", printed)[1]) > 0.85
    assert 7.9 < float(re.search(r"'epsilon': ([\d.]+)", printed)[1]) <= 8.0
    assert list(tmp_path.rglob("privacy_card.html")), "the page says that there is a card"


AROUND = """\
import torch
from lightning.pytorch import LightningModule
from torch.utils.data import DataLoader, TensorDataset

class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(192, 10)

    def training_step(self, batch, batch_idx):
        return loss(self.layer(batch[0].flatten(1)), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

module, loss = Module(), torch.nn.CrossEntropyLoss()
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
records = TensorDataset(torch.randn(2000, 3, 8, 8), torch.randint(10, (2000,)))
loader = DataLoader(records, batch_size=1000, shuffle=True)
"""
"""What a reader has before the snippets of the other pages."""
SNIPPETS = [(page, text) for page in ("docs/opacus.md", "docs/public_data.md") for text in blocks(page, "python")]
DIFF = "\n".join(line[1:] for line in blocks("README.md", "diff")[0].splitlines() if line[:1] in ("", " ", "+"))


@pytest.mark.slow
@pytest.mark.parametrize(("page", "snippet"), SNIPPETS, ids=["opacus", "ours", "public data"])
def test_snippets_of_other_pages(page, snippet, tmp_path):
    printed = run_script(AROUND + snippet, tmp_path)
    assert "print" not in snippet or 0 < float(printed.split()[-1]) <= 8.0


@pytest.mark.slow
def test_the_change_that_the_readme_shows_makes_a_run_private(tmp_path):
    """With its other snippet as public data."""
    data = "import lightning.pytorch as L\nL.LightningDataModule.patients = records\n"
    (public,) = blocks("README.md", "python")
    public = public.replace("(3, 32, 32)", "(3, 8, 8)") + "L.LightningDataModule.imagenet = public\n"
    printed = run_script(AROUND + data + public + DIFF, tmp_path)
    assert 7.9 < float(printed.split()[-1]) <= 8.0


def test_links_lead_somewhere():
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert link.startswith("https://") or (page.parent / link).exists(), f"{page.name}: {link}"


def percent(table, cell, digits=1):
    """Mean and spread of the results of a cell, as the pages write them."""
    values = [100 * result["test_accuracy"] for result in results_of(table)[cell]]
    if not values:
        return "not run"
    mean = f"{statistics.fmean(values):.{digits}f}"
    return f"{mean} ± {statistics.stdev(values):.2f}" if len(values) > 1 else mean


@pytest.mark.parametrize("label", ROWS)
def test_the_readmes_accuracies_are_those_of_the_results(label):
    (setting,) = [each for each in COMPARISONS if each.label == label]
    found = results_of(setting.table)
    cells = [setting.cells.get(name) for name in ("GP", "GEP", "spectral")]
    runs = ", ".join(str(len(found.get(cell, []))) for cell in cells)
    shown = [percent(setting.table, cell, 2) if found.get(cell) else "–" for cell in (setting.without_privacy, *cells)]
    assert f"| {label} | {' | '.join(shown)} | {runs} |" in README.splitlines(), "recipes.results --tables-only"


def test_the_table_and_the_picture_follow_the_results(tmp_path):
    """A new result is in both; without any, the table says so and the picture has no curve."""
    draw_accuracy(tmp_path)
    assert "DP-SGD" not in (tmp_path / PICTURE).read_text()
    run_ = MNIST_EPSILON2.runs(["mnist_best_gp"])[0]
    found = {"experiment": run_.cell.experiment, "overrides": [], "extra_overrides": [], "seed": 0}
    write_result(result_file(tmp_path, run_), {**found, "test_accuracy": 0.6174})
    draw_accuracy(tmp_path)
    assert "DP-SGD" in (tmp_path / PICTURE).read_text()
    assert "| MNIST, ε = 2, our settings | – | 61.74 | – | – | 1, 0, 0 |" in front_page(README, tmp_path)
    assert front_page(README) == README


def test_accuracies_beside_the_papers_are_those_of_the_results():
    mechanisms = ("gp", "bgep", "gep")
    paper = " | ".join(percent(TABLE1, f"mnist_{name}_eps2", 2) for name in mechanisms)
    ours = " | ".join(percent(MNIST_EPSILON2, f"mnist_best{name}", 2) for name in ("_gp", "_bgep", ""))
    rows = [line for line in PAPER.splitlines() if line.startswith("| ")]
    (row,) = [line for line in rows if line.startswith("| the paper's settings")]
    assert row.endswith(f" | {paper} |")
    (row,) = [line for line in rows if line.startswith("| `experiment=mnist_best`")]
    assert row.endswith(f" | {ours} |")
    words = " ".join(PAPER.split())
    larger = {name: percent(MNIST_LARGER_EPSILON, name) for name in ("gep_eps5", "gep_eps8", "gp_eps5", "gp_eps8")}
    assert "GEP {gep_eps5} and {gep_eps8} %, GP {gp_eps5} and {gp_eps8} %".format(**larger) in words
    names = {"gp": "mnist_gp_eps2_threshold_alone", "gep": "mnist_gep_eps2_thresholds_alone"}
    alone = {mechanism: percent(THRESHOLDS, name) for mechanism, name in names.items()}
    assert "GP has {gp} % and GEP, with our basis, {gep} % (one run each)".format(**alone) in words


@pytest.mark.parametrize(
    ("page", "sources"),
    [
        ("docs/choosing.md", ("docs/results/README.md", "docs/planning.md")),
        (
            "docs/scaling.md",
            tuple(
                f"benchmarks/{name}.md"
                for name in ("README", *(f"results/{n}" for n in ("latest", "cost_model", "processes")))
            ),
        ),
        ("docs/public_data.md", ("docs/results/README.md", "recipes/tables/paper.py")),  # and published figures
    ],
)
def test_figures_of_the_guides_were_measured(page, sources):
    """Every number with decimals is in the results that the page refers to; versions and settings are not figures."""
    text = re.sub(r"```.*?```|`[^`]*`", "", (ROOT / page).read_text(), flags=re.DOTALL)
    measured = " ".join((ROOT / source).read_text() for source in sources)
    figures = set(re.findall(r"\b\d+\.\d+\b", text)) - {"1.0"}
    assert figures
    assert [figure for figure in figures if figure not in measured] == []
