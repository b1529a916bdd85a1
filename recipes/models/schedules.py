"""Learning rate schedules by the length of the run, so that changing the number of epochs changes the schedule too."""

from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, MultiStepLR

from lightning_gep.arguments import finite_positive, positive_integer
from lightning_gep.errors import ConfigurationError

EPOCHS_FIX = "It is the length of the run; set trainer.max_epochs, or use scheduler=constant."


def step(optimizer: Optimizer, *, epochs: int, at: float = 0.5, factor: float = 0.1) -> LRScheduler:
    """The learning rate times `factor` once the fraction `at` of the epochs is over (the paper: a tenth at half).

    It changes between epochs: the middle of five is after the second.
    """
    positive_integer("epochs", epochs, EPOCHS_FIX)
    finite_positive("factor", factor, "It multiplies the learning rate, e.g. 0.1.")
    if not 0 < at < 1:
        raise ConfigurationError(
            f"at must be between 0 and 1, but it is {at!r}. Use 0.5 for the middle of the run.", setting="at"
        )
    return MultiStepLR(optimizer, milestones=[max(1, round(at * epochs))], gamma=factor)


def cosine(optimizer: Optimizer, *, epochs: int) -> LRScheduler:
    """Half a cosine, from the optimizer's learning rate down to 0 at the end of the run."""
    positive_integer("epochs", epochs, EPOCHS_FIX)
    return CosineAnnealingLR(optimizer, T_max=epochs)
