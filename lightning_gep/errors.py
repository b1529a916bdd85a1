"""The errors a user can meet. Each message says what is wrong, which value, and what to do instead."""


class ConfigurationError(ValueError):
    """A setting that cannot work; raised before any private record is read."""


class BudgetExhaustedError(RuntimeError):
    """A release that would cost more than the target ε; raised before its noise is drawn."""


class LedgerError(RuntimeError):
    """The ledger of releases is missing, damaged, of another run, or held by another process."""
