"""Logging to TensorBoard: rows once per epoch, and the configuration beside its results."""

from argparse import Namespace
from collections.abc import Mapping
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
    page, beside the results of the run. Takes the arguments of Lightning's logger; `tensorboard_logger` also checks
    that TensorBoard is installed.

    Example:
        ```python
        logger = tensorboard_logger("outputs/first", name="tensorboard", version="")
        trainer = Trainer(strategy=GEPStrategy(epsilon=8.0), logger=logger, callbacks=[PrivacyMonitor()])
        ```

    """

    @override
    @rank_zero_only
    def log_hyperparams(
        self, params: dict[str, Any] | Namespace, metrics: dict[str, Any] | None = None, step: int | None = None
    ) -> None:
        from torch.utils.tensorboard.summary import hparams

        plain = vars(params) if isinstance(params, Namespace) else dict(params)
        self.hparams.update(plain)
        # TensorBoard needs only the names of the results. Lightning would also log a made-up first value of each.
        writer = self.experiment._get_file_writer()
        for summary in hparams(flat(plain), dict.fromkeys(metrics or RESULTS, 0)):
            writer.add_summary(summary, step)


def tensorboard_logger(save_dir: str, **arguments: Any) -> PrivateTensorBoardLogger:
    """The logger for `logger=tensorboard`.

    Args:
        save_dir: The directory of the job.
        **arguments: Passed to `PrivateTensorBoardLogger`.

    Raises:
        ConfigurationError: TensorBoard is not installed.

    """
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError:
        raise missing_extra("tensorboard", "logger=tensorboard") from None
    return PrivateTensorBoardLogger(save_dir, default_hp_metric=False, **arguments)


def flat(params: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested configuration as `outer/inner: value`; values other than numbers, booleans and text become text."""
    found: dict[str, Any] = {}
    for name, value in params.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}/")
        else:
            found[f"{prefix}{name}"] = value if isinstance(value, bool | int | float | str) else str(value)
    return found
