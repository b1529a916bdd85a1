"""The size of a run: the public numbers that determine its noise."""

from dataclasses import dataclass

from lightning_gep.arguments import positive_integer
from lightning_gep.errors import ConfigurationError


@dataclass(frozen=True)
class RunSize:
    """The public numbers that determine a run's noise, counted as the strategy counts them.

    `batch_size` is that of the train loader, so of one device. A run ends after `max_epochs` or `max_steps`, whichever
    comes first; −1 means no limit.
    """

    num_records: int
    num_parameters: int
    batch_size: int
    max_epochs: int | None
    max_steps: int = -1
    limit_train_batches: int | float = 1.0
    devices: int = 1
    drop_last: bool = False
    group_sizes: tuple[int, ...] = ()
    """Parameters of each group, if the model was built."""

    def __post_init__(self) -> None:
        positive_integer("records", self.num_records, "It is the number of training records (N).")
        positive_integer("parameters", self.num_parameters, "It is the number of trainable parameters (p).")
        positive_integer("batch_size", self.batch_size, "It is the expected number of records per step, e.g. 256.")
        positive_integer("devices", self.devices, "It is the number of processes that share a batch.")
        for name, limit in {"max_epochs": self.max_epochs, "max_steps": self.max_steps}.items():
            if limit is not None and limit != -1:
                positive_integer(name, limit, "It ends the run; -1 means no limit.")
        if self.max_steps == -1 and self.max_epochs in (None, -1):
            raise ConfigurationError(
                f"max_epochs={self.max_epochs} and max_steps=-1 leave the run without an end, so its noise and ε "
                "cannot be planned. Set one of them.",
                setting="max_epochs",
            )
        share = self.limit_train_batches
        if isinstance(share, bool) or (isinstance(share, float) and share > 1) or self.steps_per_epoch < 1:
            raise ConfigurationError(
                f"limit_train_batches={share!r} must be a number of steps above 0, or a fraction of the epoch up to "
                "1.0 that leaves at least one. Use 1.0 for the whole epoch.",
                setting="limit_train_batches",
            )

    @property
    def expected_batch_size(self) -> int:
        """n̄: the expected number of records of a step, over all devices."""
        return self.batch_size * self.devices

    @property
    def steps_per_epoch(self) -> int:
        """Steps of one epoch, over all devices."""
        whole = self.num_records // self.batch_size if self.drop_last else -(-self.num_records // self.batch_size)
        return limited(-(-whole // self.devices), self.limit_train_batches)

    @property
    def steps(self) -> int:
        """Steps of the whole run."""
        steps = total_steps(self.steps_per_epoch, self.max_epochs, self.max_steps)
        assert steps is not None, "a run without an end was refused"
        return steps

    @property
    def epochs(self) -> float:
        """Epochs of the whole run; fractional if `max_steps` ends it."""
        return self.steps / self.steps_per_epoch


def limited(batches: int, limit: float) -> int:
    """The batches of an epoch under Lightning's limit: a count, or a fraction of them."""
    return int(limit * batches) if isinstance(limit, float) else min(limit, batches)


def total_steps(steps_per_epoch: int, max_epochs: int | None, max_steps: int) -> int | None:
    """The steps of a run that ends after `max_epochs` or `max_steps`, whichever comes first; None if it has no end."""
    ends = [max_steps] if max_steps > 0 else []
    if max_epochs is not None and max_epochs > 0:
        ends.append(max_epochs * steps_per_epoch)
    return min(ends) if ends else None
