"""Differentially private training by Gradient Embedding Perturbation."""

from lightning_gep.account import PrivacyAccount
from lightning_gep.calibration import Calibration, calibrate
from lightning_gep.errors import BudgetExhaustedError, ConfigurationError, LedgerError
from lightning_gep.plan import PrivacyPlan
from lightning_gep.variants import BGEP, GEP, GP

__all__ = [
    "BGEP",
    "GEP",
    "GP",
    "BudgetExhaustedError",
    "Calibration",
    "ConfigurationError",
    "LedgerError",
    "PrivacyAccount",
    "PrivacyPlan",
    "calibrate",
]
