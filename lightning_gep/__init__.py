"""Differentially private training by Gradient Embedding Perturbation, as a strategy for Lightning.

Everything but the errors is imported when it is first used, so that commands start quickly. `strategy="gep"` is
registered right away if Lightning is imported already, otherwise with the first name that imports it.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from lightning_gep.errors import BudgetExhaustedError, ConfigurationError, LedgerError

if TYPE_CHECKING:
    from lightning_gep.privacy.account import PrivacyAccount
    from lightning_gep.privacy.calibration import Calibration, calibrate
    from lightning_gep.strategy.callbacks import PerformanceMonitor, PrivacyBudget, PrivacyMonitor
    from lightning_gep.strategy.fixed_length import FixedLength
    from lightning_gep.strategy.persons import PerPerson
    from lightning_gep.strategy.random_labels import RandomLabels
    from lightning_gep.strategy.strategy import GEPStrategy
    from lightning_gep.strategy.synthetic import PinkNoise

__all__ = [
    "BudgetExhaustedError",
    "Calibration",
    "ConfigurationError",
    "FixedLength",
    "GEPStrategy",
    "LedgerError",
    "PerPerson",
    "PerformanceMonitor",
    "PinkNoise",
    "PrivacyAccount",
    "PrivacyBudget",
    "PrivacyMonitor",
    "RandomLabels",
    "calibrate",
]

_ON_FIRST_USE = {
    "Calibration": "lightning_gep.privacy.calibration",
    "FixedLength": "lightning_gep.strategy.fixed_length",
    "GEPStrategy": "lightning_gep.strategy.strategy",
    "PerformanceMonitor": "lightning_gep.strategy.callbacks",
    "PinkNoise": "lightning_gep.strategy.synthetic",
    "PrivacyAccount": "lightning_gep.privacy.account",
    "PrivacyBudget": "lightning_gep.strategy.callbacks",
    "PrivacyMonitor": "lightning_gep.strategy.callbacks",
    "PerPerson": "lightning_gep.strategy.persons",
    "RandomLabels": "lightning_gep.strategy.random_labels",
    "calibrate": "lightning_gep.privacy.calibration",
}


def __getattr__(name: str) -> Any:
    if name not in _ON_FIRST_USE:
        raise AttributeError(f"module 'lightning_gep' has no attribute {name!r}")
    found = getattr(import_module(_ON_FIRST_USE[name]), name)
    _register()
    return found


def _register() -> None:
    if "lightning.pytorch" in sys.modules:
        import_module("lightning_gep.strategy.by_name")


_register()
