"""The errors a user can meet. Each message says what is wrong, which value, and what to do instead."""


class ConfigurationError(ValueError):
    """A setting that cannot work; raised before any private record is read.

    Args:
        message: What is wrong, which value, and what to do instead.
        setting: The argument it is about, so that a command can name the matching configuration key.

    """

    def __init__(self, message: str, *, setting: str | None = None) -> None:
        super().__init__(message)
        self.setting = setting


class MissingDataError(ConfigurationError):
    """A data file that a run needs is not there."""


class BudgetExhaustedError(RuntimeError):
    """A release that would cost more than the target ε; raised before its noise is drawn."""


class LedgerError(RuntimeError):
    """The ledger of releases is missing, damaged, of another run, or held by another process."""


class ProcessLostError(RuntimeError):
    """Another process of the run has failed, was killed, or does not answer."""


class PrivateRecordError(RuntimeError):
    """An error of the user's code on private records. Its message is withheld: it may hold their values."""


def missing_extra(extra: str, what: str) -> ConfigurationError:
    """The error for an optional package that is not installed, with the command that installs it.

    Args:
        extra: The extra of this package that brings what is missing: `report`, `wandb`, `cli`, …
        what: What was asked for and cannot work without it, at the start of the sentence.

    Example:
        ```python
        try:
            import plotly
        except ImportError:
            raise missing_extra("report", "gep-report") from None
        ```

    """
    return ConfigurationError(f"{what} needs an extra. Install it with pip install 'lightning-gep[{extra}]'.")
