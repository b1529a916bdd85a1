"""What hooks and callbacks of the training get in the place of a batch of private records."""

from typing import Any, NoReturn

from lightning_gep.errors import ConfigurationError

CLOSED = (
    "Hooks and callbacks of the training, such as on_train_batch_start and on_train_batch_end, get no private records: "
    "what they change in a batch or keep of it would mix records, or leave without noise. Do it within each record, in "
    "the data set, on_after_batch_transfer or training_step."
)


class PrivateBatch:
    """A batch that only the strategy opens, for training_step. It does not even tell how many records it has."""

    def __init__(self, records: Any) -> None:
        self._records = records

    def open(self) -> Any:
        """The batch as Lightning would have handed it on."""
        return self._records

    def __getitem__(self, _: object) -> NoReturn:  # also what unpacking and loops ask for
        raise ConfigurationError(CLOSED)

    def __len__(self) -> NoReturn:
        raise ConfigurationError(CLOSED)

    def __getattr__(self, name: str) -> NoReturn:
        # hasattr and copies ask for names that nobody has.
        raise AttributeError(f"{name}: {CLOSED}")

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return "PrivateBatch(closed)"
