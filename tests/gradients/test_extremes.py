"""One record with an extreme value may not change the others, however well-behaved the public records are."""

import math
from collections import namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, default_collate

from lightning_gep.algorithm.basis import Basis
from lightning_gep.algorithm.gep import Sums
from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.errors import ConfigurationError
from lightning_gep.gradients import choose_backend, microbatches
from lightning_gep.gradients.batches import take
from lightning_gep.gradients.checks import check_still_apart
from lightning_gep.gradients.extremes import extreme_batches, extreme_records, shorter_records
from lightning_gep.gradients.functional import FunctionalGradients
from lightning_gep.gradients.hooks import HookedGradients
from lightning_gep.gradients.interface import GradientError
from lightning_gep.gradients.loop import LoopGradients
from lightning_gep.gradients.mixing import check_collate
from lightning_gep.strategy.step import StepGradients, equal_pieces
from tests.toys import Classifier, loader, strategy, trainer

LABELS = 3


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, LABELS))


def public_batch(count=6):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, 4, generator=generator), torch.randint(LABELS, (count,), generator=generator)


def cross_entropy(net, batch):
    loss = nn.functional.cross_entropy(net(batch[0]), batch[1])
    loss.item()  # not under vmap
    return loss


def guarded(net, batch):
    loss = cross_entropy(net, batch)
    return loss if torch.isfinite(loss) else torch.zeros_like(loss, requires_grad=True)


def skipped_where_large(net, batch):
    loss = cross_entropy(net, batch)
    return 0 * loss if loss > 100 else loss


def mean_over_what_is_not_masked(net, batch):
    losses = nn.functional.cross_entropy(net(batch[0]), batch[1], reduction="none")
    mask = batch[0].abs().sum(dim=1) > 0
    mask.sum().item()
    return (losses * mask).sum() / mask.sum()


TREATS_A_BATCH_AS_A_WHOLE = [
    guarded,
    skipped_where_large,
    mean_over_what_is_not_masked,
    lambda net, batch: cross_entropy(net, batch).nan_to_num(),
    lambda net, batch: cross_entropy(net, batch).clamp(max=10.0),
]


def chosen(step, how="auto"):
    net = network()
    return choose_backend(net, lambda batch: step(net, batch), ParameterGroups.from_module(net), public_batch(), how)


@pytest.mark.parametrize("step", TREATS_A_BATCH_AS_A_WHOLE)
def test_a_loss_that_is_replaced_as_a_whole_is_computed_record_by_record(step):
    backend = chosen(step)
    assert backend.name == "loop"
    assert "hooks would let one record change the gradients of others: training_step treats a whole" in backend.reason
    with pytest.raises(ConfigurationError, match="gradients='hooks' cannot be used with this module: hooks would let"):
        chosen(step, "hooks")
    x, y = public_batch(20)
    x[-1] = math.nan
    others = backend((x[:-1], y[:-1]))
    assert torch.equal(backend((x, y))[:-1], others)
    assert others.any()


def test_an_ordinary_loss_keeps_its_hooks():
    backend = chosen(cross_entropy)
    assert backend.name == "hooks"
    check_still_apart(backend, public_batch())


def test_a_loss_that_begins_to_be_replaced_is_found_during_training():
    step = cross_entropy
    net = network()
    groups = ParameterGroups.from_module(net)
    backend = choose_backend(net, lambda batch: step(net, batch), groups, public_batch())
    assert backend.name == "hooks"
    step = guarded
    with pytest.raises(ConfigurationError, match="One record would change the gradients of all others: training_step"):
        check_still_apart(backend, public_batch())


@pytest.mark.parametrize(
    ("ignored", "loss"),
    [
        (-100, nn.functional.cross_entropy),
        (2, nn.CrossEntropyLoss(ignore_index=2)),
        (-100, lambda logits, target: nn.functional.nll_loss(logits.log_softmax(1), target)),
    ],
)
def test_hooks_do_not_take_a_mean_over_some_targets_for_one_over_all(ignored, loss):
    net = network()
    groups = ParameterGroups.from_module(net)
    x, y = public_batch()
    y[y == ignored] = 0
    hooks, loop = (
        way(net, lambda batch: loss(net(batch[0]), batch[1]), groups) for way in (HookedGradients, LoopGradients)
    )
    assert torch.allclose(hooks((x, y)), loop((x, y)), atol=1e-6)
    right = loop((x, y))[1:]
    y[0] = ignored
    with pytest.raises(
        GradientError, match=rf"ignores some targets \(ignore_index={ignored}\) and takes the mean over"
    ):
        hooks((x, y))
    assert torch.equal(loop((x, y))[1:], right)


def test_losses_that_are_summed_may_ignore_targets():
    net = network()
    x, y = public_batch()
    y[0] = -100

    def summed(batch):
        return nn.functional.cross_entropy(net(batch[0]), batch[1], reduction="sum") / len(batch[0])

    hooks, loop = (way(net, summed, ParameterGroups.from_module(net)) for way in (HookedGradients, LoopGradients))
    assert torch.allclose(hooks((x, y)), loop((x, y)), atol=1e-6)


def tokens(length, label=1):
    return torch.arange(1, length + 1), label


def padded_to_the_longest(batch):
    return pad_sequence([words for words, _ in batch], batch_first=True), torch.tensor([label for _, label in batch])


def padded_to_ten(batch):
    rows = [nn.functional.pad(words[:10], (0, 10 - len(words[:10]))) for words, _ in batch]
    return torch.stack(rows), torch.tensor([label for _, label in batch])


def without_what_is_not_finite(batch):
    return default_collate([record for record in batch if torch.isfinite(record[0]).all()])


def all_or_nothing(batch):
    x, y = default_collate(batch)
    return (x if torch.isfinite(x).all() else torch.zeros_like(x)), y


def scaled_by_the_last_dimension(batch):
    longest = max(sound.shape[-1] for sound, _ in batch)
    return torch.stack([nn.functional.pad(sound, (0, longest - sound.shape[-1])) for sound, _ in batch]), [
        label for _, label in batch
    ]


def strings_padded_to_the_longest(batch):
    longest = max(len(text) for text, _ in batch)
    return torch.tensor([[ord(letter) for letter in text.ljust(longest)] for text, _ in batch]), [y for _, y in batch]


@dataclass
class Sentence:
    words: torch.Tensor
    label: int


def sentences_padded_to_the_longest(batch):
    return pad_sequence([sentence.words for sentence in batch], batch_first=True)


TEXTS = [tokens(8, i) for i in range(8)]
STRINGS = [(8 * letter, i) for i, letter in enumerate("abcdefgh")]
SENTENCES = [Sentence(torch.arange(i, i + 8), i) for i in range(8)]
NUMBERS = [(torch.randn(3, generator=torch.Generator().manual_seed(i)), i) for i in range(8)]
SOUNDS = [(torch.randn(2, 6, generator=torch.Generator().manual_seed(i)), i) for i in range(8)]


@pytest.mark.parametrize(
    ("collate", "records"),
    [
        (padded_to_the_longest, TEXTS),
        (strings_padded_to_the_longest, STRINGS),
        (sentences_padded_to_the_longest, SENTENCES),
        (all_or_nothing, NUMBERS),
        (scaled_by_the_last_dimension, SOUNDS),
    ],
)
def test_a_collate_function_is_tried_on_records_unlike_the_public_ones(collate, records):
    with pytest.raises(ConfigurationError, match="collate function mixes records"):
        check_collate(DataLoader(records, collate_fn=collate), records)


@pytest.mark.parametrize(
    ("collate", "records"),
    [(padded_to_ten, TEXTS), (without_what_is_not_finite, NUMBERS), (lambda batch: default_collate(batch), SOUNDS)],
)
def test_what_a_collate_function_does_to_each_record_is_fine(collate, records):
    check_collate(DataLoader(records, collate_fn=collate), records)


def test_a_transfer_hook_that_clears_a_batch_is_refused(tmp_path):
    class Clears(Classifier):
        def on_after_batch_transfer(self, batch, dataloader_idx):
            x, y = batch
            return (x if torch.isfinite(x).all() else torch.zeros_like(x)), y

    with pytest.raises(ConfigurationError, match="on_after_batch_transfer mixes records"):
        trainer(tmp_path, strategy()).fit(Clears(), loader())


@pytest.mark.parametrize("way", [FunctionalGradients, HookedGradients, LoopGradients])
def test_the_gradient_of_a_record_is_the_same_however_many_others_there_are(way, monkeypatch):
    """In other sizes products of matrices round differently; at a tie of two logits that moved all of a gradient."""
    net = nn.Linear(784, LABELS)
    x = torch.randn(40, 784, generator=torch.Generator().manual_seed(0)) * 1e7
    batch = (x, torch.arange(40) % LABELS)
    backend = way(
        net, lambda batch: nn.functional.cross_entropy(net(batch[0]), batch[1]), ParameterGroups.from_module(net)
    )
    sizes, rows_of = [], backend.rows
    monkeypatch.setattr(backend, "rows", lambda batch, size, out=None: sizes.append(size) or rows_of(batch, size, out))
    found = [backend(take(batch, slice(0, drawn)), pieces_of=16) for drawn in (1, 15, 16, 17, 33)]
    assert [len(rows) for rows in found] == [1, 15, 16, 17, 33]
    assert way is LoopGradients or set(sizes) == {16}
    for rows in found:
        assert torch.equal(rows, found[-1][: len(rows)])
    shifted = backend(take(batch, slice(5, 38)), pieces_of=16)
    assert torch.equal(shifted[:-5], found[-1][5:])


def test_all_private_microbatches_of_a_training_are_computed_and_projected_in_one_size(tmp_path, monkeypatch):
    sizes: dict[str, set[int]] = {"differentiated": set(), "projected": set(), "held": set()}
    rows_of, embed, add = FunctionalGradients.rows, Basis.embed, Sums.add

    def noting_rows(self, batch, size, out=None):
        sizes["differentiated"].add(size)
        return rows_of(self, batch, size, out)

    def noting_embed(self, gradients):
        sizes["projected"].add(len(gradients))
        return embed(self, gradients)

    def noting_add(self, gradients, *others):
        sizes["held"].add(len(gradients))
        with monkeypatch.context() as inside:
            inside.setattr(Basis, "embed", noting_embed)
            return add(self, gradients, *others)

    monkeypatch.setattr(Sums, "add", noting_add)
    fit = trainer(tmp_path, strategy(gradients="functional", generator="system"), max_epochs=4)
    monkeypatch.setattr(
        StepGradients, "of_private", noting_the(StepGradients.of_private, FunctionalGradients, noting_rows, monkeypatch)
    )
    fit.fit(Classifier(), loader(batch_size=30))
    assert sizes["differentiated"] == sizes["projected"] == {16}
    assert len(sizes["held"]) > 1, "batches of several sizes were drawn"


def noting_the(of_private, backend, rows, monkeypatch):
    """Private gradients with another `rows`; those of public records keep their own."""

    def noted(self, batch):
        for microbatch in microbatches(batch, self.private_microbatch):
            with monkeypatch.context() as inside:
                inside.setattr(backend, "rows", rows)
                yield next(of_private(self, microbatch))

    return noted


def test_pieces_are_as_large_as_is_expected_and_fits():
    assert equal_pieces(1000, most=256) == 129
    assert equal_pieces(4000, most=250) == 250
    assert equal_pieces(12, most=512) == 16
    assert equal_pieces(12, most=5) == 5


Pair = namedtuple("Pair", "x y")


def test_extreme_values_keep_structure_shape_and_type():
    batch = {"x": torch.zeros(3, 2, dtype=torch.float16), "y": np.zeros(3, np.uint8), "names": ["a", "b", "c"]}
    found = list(extreme_batches(batch, row=1))
    assert len(found) == 8 + 3 + 1
    for one in found:
        assert (one["x"].shape, one["x"].dtype, one["y"].dtype) == ((3, 2), torch.float16, np.uint8)
        assert not one["x"][[0, 2]].any()
        assert not one["y"][[0, 2]].any()
        assert one["names"][::2] == ["a", "c"]
    assert sum(bool(torch.isinf(one["x"][1]).all()) for one in found) == 4, "1e30 is too large for half precision"
    assert found[-1]["names"] == ["a", "", "c"]
    record = Pair({"x": torch.ones(2), "flag": True}, 3)
    assert all(isinstance(one, Pair) for one in extreme_records(record))
    assert [one.y for one in extreme_records(record)][-3:] == [0, -1, -100]
    assert record.x["flag"] is True


def test_shorter_records_are_cut_one_value_at_a_time_and_as_a_whole():
    record = {"sound": torch.ones(4, 6), "text": "abcd", "tokens": [1, 2, 3, 4], "label": 3}
    shapes = [(tuple(one["sound"].shape), one["text"], len(one["tokens"])) for one in shorter_records(record)]
    assert shapes == [
        ((2, 6), "abcd", 4),
        ((4, 3), "abcd", 4),
        ((4, 6), "ab", 4),
        ((4, 6), "abcd", 2),
        ((2, 6), "ab", 2),
        ((4, 3), "ab", 2),
    ]
