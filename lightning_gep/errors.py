"""The errors a user can meet. Each message says what is wrong, which value, and what to do instead."""

NOT_IN_DIRECTORY = "is not in directory="
"""How every message about data that are missing puts it; who runs many jobs knows by it which ones wait for data."""


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


class PrivateRecordError(RuntimeError):
    """An error of the user's code on private records. Its message is withheld: it may hold their values."""
