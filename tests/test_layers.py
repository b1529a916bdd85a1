"""What importing the package brings with it; import-linter holds the layers themselves."""

import inspect
import re
import subprocess
import sys
from typing import Literal, get_args, get_origin, get_type_hints

import pytest

import lightning_gep
from lightning_gep.privacy.accounting import ACCOUNTANTS
from lightning_gep.privacy.release import MECHANISMS
from lightning_gep.strategy.settings import DEFAULTS

HEAVY = ("hydra", "omegaconf", "plotly", "wandb", "opacus", "rich", "sklearn")


def imported_by(statement, before="pass"):
    script = f"import sys; {before}; before = set(sys.modules); {statement}; print(*set(sys.modules) - before)"
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
    before = "pass" if "torch" in absent else "import lightning.pytorch, torchmetrics"
    assert not set(absent) & set(imported_by(statement, before))


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
    arguments = lightning_gep.GEPStrategy.__doc__.partition("Args:\n")[2].partition("\n\n")[0]
    documented = dict(re.findall(r"^ {8}(\w+): (.*?)(?=^ {8}\w|\Z)", arguments, re.MULTILINE | re.DOTALL))
    assert list(documented) == list(inspect.signature(lightning_gep.GEPStrategy).parameters)
    for name, default in DEFAULTS.items():
        shown = f'"{default}"' if isinstance(default, str) else str(default)
        assert shown in documented[name], (name, default)
        assert "default" in documented[name].lower(), name


CHOICES = {"mechanism": MECHANISMS, "accountant": ACCOUNTANTS}


def test_an_editor_completes_the_choices_of_every_argument_that_is_a_name():
    """And they are the choices there are: the class docstring names each of them."""
    hints = get_type_hints(lightning_gep.GEPStrategy.__init__)
    for name in ("mechanism", "accountant", "generator", "subspace", "gradients", "start_method"):
        assert get_origin(hints[name]) is Literal
        for choice in get_args(hints[name]):
            lightning_gep.GEPStrategy(
                epsilon=1.0, **{name: choice, **({"mechanism": "gp"} if choice == "ghost" else {})}
            )
            assert f'"{choice}"' in lightning_gep.GEPStrategy.__doc__
    for name, choices in CHOICES.items():
        assert get_args(hints[name]) == tuple(choices)
