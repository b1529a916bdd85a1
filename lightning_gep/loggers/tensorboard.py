"""Logging to TensorBoard: rows an epoch at a time, and the configuration beside the results it gave."""

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only
from typing_extensions import override

from lightning_gep.errors import ConfigurationError
from lightning_gep.loggers.epoch_rows import EpochRows

RESULTS = ("test/accuracy", "val/accuracy", "privacy/epsilon")


class PrivateTensorBoardLogger(EpochRows, TensorBoardLogger):
    """Lightning's TensorBoardLogger, which notes the time of every row, so rows are written an epoch at a time.

    Hyper-parameters go into `hparams.yaml` as they are, and flat (`mechanism/k`) into the table of TensorBoard's
    HParams page, beside the results of the run.
    """

    @override
    @rank_zero_only
    def log_hyperparams(
        self, params: dict[str, Any] | Namespace, metrics: dict[str, Any] | None = None, step: int | None = None
    ) -> None:
        from torch.utils.tensorboard.summary import hparams

        plain = vars(params) if isinstance(params, Namespace) else dict(params)
        self.hparams.update(plain)
        # Lightning would log a made-up first value of every result. TensorBoard needs their names only.
        writer = self.experiment._get_file_writer()
        for summary in hparams(flat(plain), dict.fromkeys(metrics or RESULTS, 0)):
            writer.add_summary(summary, step)


def tensorboard_logger(save_dir: str, **arguments: Any) -> PrivateTensorBoardLogger:
    """The logger. Raises ConfigurationError, with the extra to install, if there is no TensorBoard."""
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError:
        raise ConfigurationError(
            "logger=tensorboard needs TensorBoard, which is not installed. Run "
            "pip install 'lightning-gep[tensorboard]', or use logger=csv."
        ) from None
    return PrivateTensorBoardLogger(save_dir, default_hp_metric=False, **arguments)


def flat(params: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested configuration as `outer/inner: value`; what is no number, truth value or text becomes text."""
    found: dict[str, Any] = {}
    for name, value in params.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}/")
        else:
            plain = isinstance(value, bool | int | float | str)
            found[f"{prefix}{name}"] = value if plain else str(value)
    return found
