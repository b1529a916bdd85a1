"""`Trainer(strategy="gep")`: registered when this module is imported, for Trainers of both namespaces."""

import sys

from lightning.pytorch import strategies
from lightning.pytorch.utilities import rank_zero_warn
from typing_extensions import Never

from lightning_gep.errors import ConfigurationError
from lightning_gep.strategy.strategy import GEPStrategy

EPSILON = 8.0


def by_name() -> GEPStrategy:
    """The strategy of `Trainer(strategy="gep")`."""
    rank_zero_warn(
        f"strategy='gep' stands for GEPStrategy(epsilon={EPSILON}): an ε that you did not choose. Pass "
        "strategy=GEPStrategy(epsilon=...) with the ε that your records deserve."
    )
    return GEPStrategy(epsilon=EPSILON)


def in_the_other_namespace() -> Never:
    """The strategy of `Trainer(strategy="gep")` for a Trainer of pytorch_lightning."""
    raise ConfigurationError(
        "This Trainer is that of pytorch_lightning, and GEPStrategy is for that of lightning.pytorch: the two packages "
        "do not mix. Replace `import pytorch_lightning as pl` by `import lightning.pytorch as pl` in all files.",
        setting="strategy",
    )


strategies.StrategyRegistry.register("gep", by_name, description="Differentially private training by GEP, ε = 8")
if "pytorch_lightning" in sys.modules:
    sys.modules["pytorch_lightning"].strategies.StrategyRegistry.register("gep", in_the_other_namespace)
