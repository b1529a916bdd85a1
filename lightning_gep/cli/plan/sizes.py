"""N, p and the length of a run, from its configuration: data and model are built, and nothing is trained."""

import difflib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from lightning_gep.cli.plan.errors import with_keys
from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy.run_size import RunSize

REFUSED = {
    "fast_dev_run": "is a trial of the code, not a run that can be planned. Leave it out.",
    "accumulate_grad_batches": "is refused in training. Use 1, and a larger data.batch_size.",
    "overfit_batches": "is refused in training, because it is not Poisson sampling. Use 0.",
}
READ = (*REFUSED, "max_epochs", "max_steps", "limit_train_batches", "devices", "num_nodes")
"""The settings of the trainer that planning looks at."""


@dataclass(frozen=True)
class Known:
    """Sizes that are given, so that no data or model has to be built for them."""

    records: int | None = None
    parameters: int | None = None


@dataclass(frozen=True)
class Loaded:
    """What the train loader of a data module says."""

    records: int
    batch_size: int
    drop_last: bool


class Sizes:
    """The sizes of runs; what several combinations share is built once."""

    def __init__(self, known: Known) -> None:
        self.known = known
        self._loaded: dict[str, tuple[Loaded, bool]] = {}
        self._parameters: dict[str, int] = {}

    def of(self, config: DictConfig, settings: Mapping[str, Any]) -> RunSize:
        """The sizes of the run that this configuration describes; `settings` are those of its strategy."""
        trainer: Any = OmegaConf.to_container(config.trainer, resolve=True)
        _check_trainer(trainer)
        limit = trainer.get("limit_train_batches")
        loaded = self._data(config)
        if None in (self.known.records, self.known.parameters):
            # Lightning is needed anyway, so its refusals and those of the strategy are not left to gep-train.
            _check_trainer_names(trainer)
            _build("mechanism", lambda: instantiate(config.mechanism, **config.privacy))
        return RunSize(
            num_records=loaded.records,
            num_parameters=self._model(config, settings),
            batch_size=loaded.batch_size,
            drop_last=loaded.drop_last,
            max_epochs=trainer.get("max_epochs"),
            max_steps=trainer.get("max_steps", -1),
            limit_train_batches=1.0 if limit is None else limit,
            devices=_devices(trainer),
        )

    def _data(self, config: DictConfig) -> Loaded:
        asked = OmegaConf.select(config, "data.batch_size")
        if self.known.records is not None:
            if asked is None:
                raise ConfigurationError("data.batch_size is not set. It is the mean number of records of a step.")
            return Loaded(self.known.records, asked, drop_last=False)
        data: Any = OmegaConf.to_container(config.data, resolve=True)
        others = repr({key: value for key, value in data.items() if key != "batch_size"})
        before, follows = self._loaded.get(others, (None, False))
        if before is not None and follows:
            return Loaded(before.records, asked, before.drop_last)
        loader = _build("data", lambda: _train_loader(config))
        loaded = Loaded(len(loader.dataset), loader.batch_size, loader.drop_last)
        # Data modules pass their batch size on to the loader. Data that is slow to read is then read only once.
        self._loaded[others] = loaded, loaded.batch_size == asked
        return loaded

    def _model(self, config: DictConfig, settings: Mapping[str, Any]) -> int:
        if self.known.parameters is not None:
            return self.known.parameters
        groups = settings.get("groups", "balanced")
        key = repr((OmegaConf.to_container(config.model, resolve=True), groups))
        if key not in self._parameters:
            self._parameters[key] = _build("model", lambda: _num_parameters(config, groups))
        return self._parameters[key]


def _train_loader(config: DictConfig) -> Any:
    """The train loader, checked as the strategy checks it."""
    from lightning_gep.strategy.refusals import check_loader

    data = instantiate(config.data)
    data.prepare_data()
    data.setup("fit")
    return check_loader(data.train_dataloader())


def _num_parameters(config: DictConfig, groups: Any) -> int:
    """Trainable parameters, counted as the strategy counts them."""
    from lightning_gep.algorithm.groups import ParameterGroups

    model = instantiate(config.model)
    model.configure_model()
    return ParameterGroups.from_module(model, groups).num_parameters


def _build(group: str, build: Callable[[], Any]) -> Any:
    """Whatever goes wrong in a user's own data module or model is said with the group that it went wrong in."""
    try:
        return build()
    except Exception as error:
        known = error.__cause__ if isinstance(error, InstantiationException) else error
        if isinstance(known, ConfigurationError):
            named = with_keys(str(known))
            raise ConfigurationError(named if named != str(known) else f"{group}: {known}") from error
        option = {"data": "--records", "model": "--parameters"}.get(group)
        without = f" To plan without it, give {option}." if option else ""
        raise ConfigurationError(f"{group} could not be built ({type(error).__name__}: {error}).{without}") from error


def _check_trainer(trainer: Mapping[str, Any]) -> None:
    for name, why in REFUSED.items():
        if trainer.get(name) and not (name == "accumulate_grad_batches" and trainer[name] == 1):
            raise ConfigurationError(f"trainer.{name}={trainer[name]} {why}")
    for name in trainer:
        close = difflib.get_close_matches(name, READ, n=1, cutoff=0.85)
        if name not in READ and close:
            raise ConfigurationError(f"trainer.{name} is not known. Did you mean trainer.{close[0]}?")


def _check_trainer_names(trainer: Mapping[str, Any]) -> None:
    """Raises ConfigurationError for a key that Lightning's Trainer would refuse. Imports Lightning."""
    from lightning.pytorch import Trainer

    for name in trainer.keys() - inspect.signature(Trainer.__init__).parameters:
        if not name.startswith("_"):
            raise ConfigurationError(f"trainer.{name} is not an argument of Lightning's Trainer. Remove or correct it.")


def _devices(trainer: Mapping[str, Any]) -> int:
    """Processes that share a batch. It has to be a number: "auto" depends on the machine, and so would the noise."""
    devices, nodes = trainer.get("devices", "auto"), trainer.get("num_nodes", 1)
    if isinstance(devices, str) and devices.replace(",", "").isdigit():
        devices = [part for part in devices.split(",") if part] if "," in devices else int(devices)
    if isinstance(devices, list):
        devices = len(devices)
    if isinstance(devices, bool) or not isinstance(devices, int) or devices < 1:
        raise ConfigurationError(
            f"trainer.devices={devices!r} depends on the machine, and the expected batch size with it. "
            "Give the number of devices, e.g. 1."
        )
    if isinstance(nodes, bool) or not isinstance(nodes, int) or nodes < 1:
        raise ConfigurationError(f"trainer.num_nodes={nodes!r} must be a whole number above 0. Use 1.")
    return devices * nodes
