"""Logging to TensorBoard: rows once per epoch, and the configuration beside its results."""

from argparse import Namespace
from typing import Any

from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only
from typing_extensions import override

from lightning_gep.errors import missing_extra
from lightning_gep.loggers.epoch_rows import EpochRows

RESULTS = ("test/accuracy", "val/accuracy", "privacy/epsilon")


class PrivateTensorBoardLogger(EpochRows, TensorBoardLogger):
    """Lightning's TensorBoardLogger for private runs; rows are timestamped, so they are written once per epoch.

    Hyperparameters go to `hparams.yaml` as they are, and flat (`mechanism/k`) to the table of TensorBoard's HParams
    page, beside the results of the run. Takes the arguments of Lightning's logger. Raises ConfigurationError if
    TensorBoard is not installed.
    """

    def __init__(self, save_dir: str, **arguments: Any) -> None:
        try:
            import torch.utils.tensorboard  # noqa: F401
        except ImportError:
            raise missing_extra("tensorboard", "logger=tensorboard") from None
        super().__init__(save_dir, default_hp_metric=False, **arguments)

    @override
    @rank_zero_only
    def log_hyperparams(
        self, params: dict[str, Any] | Namespace, metrics: dict[str, Any] | None = None, step: int | None = None
    ) -> None:
        at = {} if step is None else {"step": step}  # Lightning 2.4 has no such argument
        super().log_hyperparams(params, metrics or dict.fromkeys(RESULTS, 0.0), **at)
        if metrics is None:
            self._held.pop()  # TensorBoard needs only the names of the results; Lightning logs these values, too
