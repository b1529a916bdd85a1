"""Record and replay: what one record more or less moves in a real step, beside what may move.

A step of `GEPStrategy` is recorded on the batch D that it drew, then played again on D plus or minus one record, with
all random numbers and what the step releases, the noisy sums, frozen as recorded. The sums before the noise may differ
by at most their clipping thresholds. Nothing else may differ: not the basis, another record's gradient, or the noise
that is asked for, nor anything computed from the release. The method is that of arXiv 2602.17454; the records are
public ones, or made from them.
"""

import copy
import math
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeAlias, cast

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from torch.utils.data import DataLoader, Subset
from typing_extensions import override

from lightning_gep.algorithm.clipping import MARGIN
from lightning_gep.algorithm.exchange import Exchange
from lightning_gep.algorithm.noise import NoNoise
from lightning_gep.errors import ConfigurationError, PrivateRecordError
from lightning_gep.gradients.batches import Constant, batch_size, joined, record_leaves, replace_leaves, take
from lightning_gep.gradients.factors import FactoredGradients
from lightning_gep.gradients.interface import GradientError
from lightning_gep.gradients.randomness import held_generators, random_state_kept, seed_everywhere
from lightning_gep.gradients.snapshot import Snapshot, reachable, same_value
from lightning_gep.privacy.release import Release
from lightning_gep.strategy.data import EmptyBatch, PrivateBatch, loader_options
from lightning_gep.strategy.exchange import SharedBasis
from lightning_gep.strategy.fit import Fit
from lightning_gep.strategy.strategy import GEPStrategy

SCALES = {"zeros": 0.0, "tiny": 1e-30, "large": 1e4, "huge": 1e8, "1e30": 1e30, "infinite": math.inf, "NaN": math.nan}
KINDS = ("random", "duplicate", "extreme integers", *SCALES)
"""Records that are added: another public record, one of the batch again, labels or tokens at the ends of their range,
or one whose numbers are multiplied."""
REMOVED, SAME, OTHER = "removed", "same batch", "other process"
FEWEST_RECORDS, PUBLIC_BATCH = 8, 64
Origins: TypeAlias = list[int | None]


@dataclass
class ReplayReport:
    """The largest movements over all replays, as ratios to the declared sensitivity."""

    replays: int = 0
    refused: int = 0
    """Records that end the training instead (an error of training_step), which the privacy card warns of."""
    ratios: dict[str, float] = field(default_factory=dict)
    """Kind of record → the largest movement of the sums over their thresholds, at most 1."""
    others: float = 0.0
    """The largest relative change of another record's gradient: 0, or rounding."""
    moved: Counter[str] = field(default_factory=Counter)
    """What moved though it must not → in how many replays."""

    @property
    def largest(self) -> float:
        """The largest ratio of a movement to the declared sensitivity."""
        return max(self.ratios.values(), default=0.0)

    @property
    def held(self) -> bool:
        """Whether nothing has moved by more than it may."""
        return self.largest <= 1.0 and not self.moved

    def __str__(self) -> str:
        wrong = ", ".join(f"{name} ({count} times)" for name, count in self.moved.items())
        lines = [f"{kind:<17} {ratio:.4f}" for kind, ratio in self.ratios.items()]
        lines.append(
            f"{self.replays} replays, {self.refused} refused: largest ratio {self.largest:.4f}; "
            f"other records' gradients by {self.others:.1e}; moved though it must not: {wrong or 'nothing'}"
        )
        return "\n".join(lines)


def run_replay(
    module: LightningModule,
    public: DataLoader[Any],
    *,
    replays: int = 200,
    steps: int = 4,
    seed: int = 0,
    trainer: Mapping[str, Any] | None = None,
    **settings: Any,
) -> ReplayReport:
    """Replay steps of a module on public records, and compare what moves with what may.

    Args:
        module: The module as it would be trained. Its weights change.
        public: Public records. Every other one stands in for a training record, the others are the public data.
        replays: The number of replays, at least one per step.
        steps: Steps that are recorded, after one that is only trained.
        seed: Of the batches, the records that are added, and everything random in a step.
        trainer: Further arguments of the Trainer, such as precision.
        **settings: Of GEPStrategy.

    """
    count = len(public.dataset)  # type: ignore[arg-type]
    if count < FEWEST_RECORDS:
        raise ConfigurationError(f"A replay needs {FEWEST_RECORDS} public records or more, not {count}.")
    records = [Subset(public.dataset, range(first, count, 2)) for first in (0, 1)]
    sizes = (min(public.batch_size or 1, len(records[0])), min(PUBLIC_BATCH, len(records[1])))
    training, anchors = (DataLoader(*each, **loader_options(public)) for each in zip(records, sizes, strict=True))
    target = {} if {"epsilon", "noise_multiplier"} & settings.keys() else {"noise_multiplier": 1.0}
    given: dict[str, Any] = {**target, "aux_dataloader": anchors, **settings, "generator": "seeded", "seed": seed}
    strategy = ReplayStrategy(replays=max(1, replays // steps), **given)
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    with tempfile.TemporaryDirectory() as directory, random_state_kept():
        options: dict[str, Any] = {**quiet, "default_root_dir": directory, **(trainer or {})}
        Trainer(strategy=strategy, max_steps=steps + 1, max_epochs=-1, **options).fit(module, training)
    return strategy.report


@dataclass
class Tape:
    """What one play of a step has shown. With `frozen`, the tape of another play, the step releases what that did."""

    frozen: "Tape | None" = None
    rows: list[Tensor] = field(default_factory=list)
    """Per-sample gradients."""
    asked: list[object] = field(default_factory=list)
    """Calls of the account and of the noise source, in order."""
    sums: list[Tensor] = field(default_factory=list)
    """Over all processes, with the same noise in every play, so that it does not count in differences."""
    public: dict[str, Any] = field(default_factory=dict)
    """The basis, and everything that is there when the step is over."""

    def charge(self) -> None:
        """In place of the account's."""
        self.asked.append("charge")

    def normal(self, size: int, *, step: int, part: str, device: torch.device) -> Tensor:
        """In place of the noise source's."""
        self.asked.append((size, step, part))
        generator = torch.Generator().manual_seed(len(part))
        return torch.randn(size, dtype=torch.float64, generator=generator).to(device)

    def watch(self, private: Iterator[Tensor | FactoredGradients]) -> Iterator[Tensor | FactoredGradients]:
        """Per-sample gradients on their way to the mechanism, which may overwrite them."""
        for rows in private:
            if isinstance(rows, Tensor):
                self.rows += rows.detach().clone()
            else:  # never formed: each is a sum over one record
                self.rows += [rows.weighted_sum(one) for one in torch.eye(len(rows), dtype=torch.float64)]
            yield rows

    def release(self, total: Tensor) -> Tensor:
        """What the step gets for its noisy sum."""
        self.sums.append(total.clone())
        return total if self.frozen is None else self.frozen.sums[len(self.sums) - 1].clone()


class TapedExchange(Exchange):
    """The exchange of a fit, with what it adds up on tape."""

    def __init__(self, exchange: Exchange, tape: Tape) -> None:
        self.thresholds, self._exchange, self._tape = exchange.thresholds, exchange, tape  # type: ignore[method-assign]

    @override
    def total(self, *arguments: Any) -> Tensor:
        return self._tape.release(self._exchange.total(*arguments))


class ReplayStrategy(GEPStrategy):
    """Plays every step but the first many times before it is made; training itself goes on undisturbed."""

    def __init__(self, replays: int, **settings: Any) -> None:
        super().__init__(**settings)
        self.report = ReplayReport()
        self._replays, self._chance = replays, random.Random(self.settings.seed)
        self._tape: Tape | None = None
        self._drawn: Any = None
        self._pool: Any = None

    @override
    def process_dataloader(self, dataloader: object) -> object:
        if self._fits and isinstance(dataloader, DataLoader):
            self._pool = self._like_a_training_batch(next(iter(dataloader)))
        return super().process_dataloader(dataloader)

    @override
    def batch_to_device(self, batch: Any, device: torch.device | None = None, dataloader_idx: int = 0) -> Any:
        moved = super().batch_to_device(batch, device, dataloader_idx)
        if isinstance(moved, PrivateBatch):
            self._drawn = moved.open()
        return moved

    @override
    def training_step(self, batch: PrivateBatch, *arguments: Any, **kwargs: Any) -> Tensor:
        return super().training_step(batch if self._tape is None else PrivateBatch(self._drawn), *arguments, **kwargs)

    @override
    def optimizer_step(self, optimizer: Any, closure: Any, model: Any = None, **kwargs: Any) -> Any:
        step = partial(super().optimizer_step, optimizer, closure, model, **kwargs)
        if self._trainer.global_step > 0:
            self._replay(step, optimizer)
        return step()

    def _replay(self, step: Callable[[], Any], optimizer: Any) -> None:
        drawn, fit = self._drawn, self.prepared
        assert fit is not None
        source, before = fit.basis_source, Snapshot(reachable(self._module, optimizer))
        basis = copy.deepcopy(source.state_dict()) if isinstance(source, SharedBasis) else None

        def play(batch: Any, frozen: Tape | None = None, seed: int = self.settings.seed) -> Tape:
            self._drawn, self._tape, fit.gradients.seed = batch, Tape(frozen), seed
            self.prepared = _watched(fit, self._tape)
            seed_everywhere(seed, held_generators(self._module))
            try:
                step()
                self._tape.public = {"basis": asdict(source.current), **self._after(optimizer)}
                return self._tape
            finally:
                self._drawn, self._tape, self.prepared, fit.gradients.seed = drawn, None, fit, self.settings.seed
                vars(fit.gradients).pop("of_private")
                before.put_back()
                if isinstance(source, SharedBasis):
                    source.load_state_dict(copy.deepcopy(basis))

        recorded = play(drawn)
        self._compare(SAME, recorded, play(drawn, recorded))
        fixed = same_value(recorded.rows, play(drawn, seed=self.settings.seed + 1).rows)
        for number in range(self._replays):
            neighbour = self._neighbour(drawn, KINDS[number % len(KINDS)], any_position=fixed)
            kind, batch, origins = neighbour if number % self.world_size == self.global_rank else (OTHER, drawn, None)
            try:
                self._compare(kind, recorded, play(batch, recorded), origins)
            except (PrivateRecordError, GradientError):
                self.report.refused += 1

    def _neighbour(self, drawn: Any, kind: str, *, any_position: bool) -> tuple[str, Any, Origins]:
        """The batch with one record more or, now and then, one less: it changes places with the last record.

        The order of a batch is random, so in distribution a record that joins is appended and then swapped with any
        other one. Where random numbers depend on the position, as those of dropout do, it stays last.
        """
        size = 0 if isinstance(drawn, EmptyBatch) else batch_size(drawn)
        origins: Origins = list(range(size))
        if size and self._chance.random() < 0.2:
            gone = self._chance.randrange(size) if any_position else size - 1
            origins[gone] = size - 1
            origins.pop()
            return REMOVED, take(drawn, cast(list[int], origins)) if origins else EmptyBatch(), origins
        pool = drawn if kind == "duplicate" and size else self._pool
        record = _changed(take(pool, [self._chance.randrange(batch_size(pool))]), kind, self._pool, self._chance)
        if size == 0:
            return kind, record, [None]
        position = self._chance.randint(0, size) if any_position else size
        origins[position : position + 1], last = [None], origins[position : position + 1]
        origins += last
        return kind, take(joined([drawn, record]), [size if i is None else i for i in origins]), origins

    def _compare(self, kind: str, recorded: Tape, played: Tape, origins: Origins | None = None) -> None:
        """Count one replay. `origins` are the positions of its records in the recorded batch; None: the same batch."""
        report, before = self.report, range(len(recorded.rows)) if origins is None else origins
        pairs = [(recorded.rows[i], row) for i, row in zip(before, played.rows, strict=True) if i is not None]
        change = max((_relative_change(*pair) for pair in pairs), default=0.0)
        moved = [name for name, value in recorded.public.items() if not same_value(value, played.public[name])]
        if change > MARGIN:
            moved.append("gradients of other records")
        if recorded.asked != played.asked:
            moved.append("noise")
        assert self.privacy is not None
        ratio = movement(recorded.sums, played.sums, self.privacy.plan.release)
        report.replays += 1
        report.others = max(report.others, change)
        report.ratios[kind] = max(report.ratios.get(kind, 0.0), ratio)
        report.moved.update(moved)

    def _after(self, optimizer: Any) -> dict[str, Any]:
        module = self._module
        gradients = {name: p.grad for name, p in module.named_parameters()}
        attributes = {name: value for name, value in vars(module).items() if _is_plain(value)}
        after = {"p.grad": gradients, "weights and buffers": module.state_dict(), "attributes": attributes}
        after |= {"optimizer": optimizer.state_dict(), "logged values": dict(self._trainer.callback_metrics)}
        return copy.deepcopy(after)


def movement(before: Sequence[Tensor], after: Sequence[Tensor], release: Release) -> float:
    """How far the sums of the released parts have moved, in units of what one record may move them."""
    shifts = [float((a - b).norm()) / part.clip for a, b, part in zip(before, after, release.parts, strict=True)]
    if any(math.isnan(shift) for shift in shifts):
        return math.inf  # NaN compares as if nothing had moved
    return math.hypot(*shifts) if release.clipping == "joint" else max(shifts)


def _watched(fit: Fit, tape: Tape) -> Fit:
    """The fit with everything on tape that the step asks of it; checks on public records are made once, not here."""
    vars(fit.gradients)["of_private"] = lambda batch: tape.watch(type(fit.gradients).of_private(fit.gradients, batch))
    account: Any = SimpleNamespace(plan=fit.account.plan, charge=tape.charge)
    checks: Any = SimpleNamespace(before_a_release=lambda *_: None)
    noise: Any = fit.noise if isinstance(fit.noise, NoNoise) else tape
    memory = copy.copy(fit.residual_memory)  # every play begins with the same
    exchange = TapedExchange(fit.exchange, tape)
    return replace(fit, account=account, checks=checks, noise=noise, exchange=exchange, residual_memory=memory)


def _changed(record: Any, kind: str, pool: Any, chance: random.Random) -> Any:
    def changed(leaf: Any, among: Any) -> Any:
        if isinstance(leaf, Tensor) and leaf.is_floating_point() and kind in SCALES:
            return leaf * SCALES[kind]
        if isinstance(leaf, Tensor) and not leaf.is_floating_point() and kind == "extreme integers":
            return torch.full_like(leaf, int(chance.choice((among.min(), among.max()))))
        return leaf

    return replace_leaves(record, list(map(changed, record_leaves(record), record_leaves(pool))))


def _relative_change(row: Tensor, other: Tensor) -> float:
    if same_value(row, other):
        return 0.0
    change = float((row.double() - other.double()).norm() / row.double().norm())
    return math.inf if math.isnan(change) else change


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple | dict):
        return all(map(_is_plain, value.values() if isinstance(value, dict) else value))
    return isinstance(value, Tensor | Constant)
