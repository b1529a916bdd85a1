"""The package's layers: maths on torch, accounting on neither torch nor Lightning."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import lightning_gep

ROOT = Path(lightning_gep.__file__).parent
MATHS = ["groups", "orthonormal", "basis", "subspace", "tracking", "clipping", "diagnostics", "mechanism", "noise"]
ACCOUNTING = [
    "checks",
    "errors",
    "release",
    "variants",
    "accounting",
    "calibration",
    "curve",
    "plan",
    "ledger",
    "account",
    "repetitions",
    "selection",
]


def imported(module):
    for node in ast.walk(ast.parse((ROOT / f"{module}.py").read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.split(".")[0]


@pytest.mark.parametrize("module", [*MATHS, *ACCOUNTING, "sampling"])
def test_the_core_does_not_know_lightning(module):
    assert not {"lightning", "pytorch_lightning", "lightning_fabric"} & set(imported(module))


def test_accounting_starts_without_torch():
    modules = ", ".join(f"lightning_gep.{name}" for name in ACCOUNTING)
    script = f"import sys; import {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


@pytest.mark.parametrize("name", lightning_gep.__all__)
def test_everything_public_is_there(name):
    assert getattr(lightning_gep, name).__name__ == name


def test_a_name_that_is_not_there_is_an_error():
    with pytest.raises(AttributeError, match="has no attribute 'GepStrategy'"):
        lightning_gep.GepStrategy  # noqa: B018


def test_the_strategys_name_is_known_once_the_package_is_imported():
    script = "import lightning.pytorch as L; import lightning_gep; L.Trainer(strategy='gep', logger=False)"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, check=False).returncode == 0
