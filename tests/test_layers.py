"""What importing the package brings with it; import-linter holds the layers themselves."""

import subprocess
import sys

import pytest

import lightning_gep
from lightning_gep.strategy.settings import DEFAULTS

HEAVY = ("hydra", "omegaconf", "plotly", "wandb", "opacus", "rich", "sklearn")


def modules_after(statement):
    script = f"import sys; {statement}; print(*sys.modules)"
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import lightning_gep", ("torch", "lightning", *HEAVY)),
        ("import lightning_gep.privacy.card.writing, lightning_gep.privacy.selection", ("torch", "lightning")),
        ("import lightning_gep.strategy.settings", ("torch", "lightning", *HEAVY)),
        ("from lightning_gep import GEPStrategy, PrivacyMonitor, RandomLabels", HEAVY),
    ],
)
def test_what_is_not_imported(statement, absent):
    """Lightning and its torchmetrics import some packages themselves, where they are installed; those do not count."""
    theirs = modules_after("import lightning.pytorch, torchmetrics") if "torch" not in absent else []
    assert not set(absent) & (set(modules_after(statement)) - set(theirs))


@pytest.mark.parametrize("name", lightning_gep.__all__)
def test_everything_public_is_there_and_documented(name):
    public = getattr(lightning_gep, name)
    assert public.__name__ == name
    assert public.__doc__


def test_a_name_that_is_not_there_is_an_error():
    with pytest.raises(AttributeError, match="has no attribute 'GepStrategy'"):
        lightning_gep.GepStrategy  # noqa: B018


def test_the_strategys_name_is_known_once_the_package_is_imported():
    script = "import lightning.pytorch as L; import lightning_gep; L.Trainer(strategy='gep', logger=False)"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, check=False).returncode == 0


def test_every_argument_of_the_strategy_is_documented_with_its_default():
    documented = lightning_gep.GEPStrategy.__doc__.partition("Args:")[2].partition("Raises:")[0]
    for name, default in DEFAULTS.items():
        entry = documented.partition(f"\n        {name}: ")[2].partition("\n        \n")[0]
        assert entry, name
        shown = f'"{default}"' if isinstance(default, str) else str(default)
        assert shown in entry, (name, default)
