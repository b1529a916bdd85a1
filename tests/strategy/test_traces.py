"""What training_step keeps of private records reaches nothing that is saved, logged or decides.

Two fits differ in their private records alone: their weights do not move, so all that they leave has to be the same.
"""

import weakref
from array import array
from typing import ClassVar
from weakref import WeakKeyDictionary

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.nn.utils import spectral_norm as spectral_norm_by_hook
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.data import DataLoader
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy

from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.errors import ConfigurationError
from lightning_gep.gradients.functional import FunctionalGradients
from lightning_gep.gradients.loop import LoopGradients
from lightning_gep.gradients.snapshot import Snapshot, reachable
from tests.strategy.test_strategy import plain_training
from tests.toys import (
    CLASSES,
    FEATURES,
    INF,
    RECORDS,
    Classifier,
    loader,
    public_loader,
    records,
    strategy,
    trainer,
    weights,
)


class Still(torch.optim.SGD):
    """Moves nothing."""

    def step(self, closure=None):
        return closure()


def still(parameters):
    return Still(parameters, lr=0.1)


class Keeping(Classifier):
    """Keeps something of a batch in training_step, by a function of itself, the inputs and the loss."""

    def __init__(self, keep, at_batch_end=lambda module: None, save=lambda module, checkpoint: None, **held):
        super().__init__(still)
        self.keep, self.at_batch_end, self.save = keep, at_batch_end, save
        for name, value in held.items():
            if isinstance(value, torch.Tensor):
                self.register_buffer(name, value)
            else:
                setattr(self, name, value)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self(x), y)
        self.keep(self, x, loss)
        return loss

    def on_train_batch_end(self, *_):
        self.at_batch_end(self)

    def on_save_checkpoint(self, checkpoint):
        self.save(self, checkpoint)


def note(module, x, loss):
    module.last, module.last_loss = x, loss.detach()


def queue():
    """As in MoCo."""

    def enqueue(module):
        module.queue.copy_(torch.cat([module.last.detach(), module.queue])[: len(module.queue)])

    return Keeping(note, enqueue, queue=torch.zeros(16, FEATURES))


def set_rate(module, rate):
    for group in module.optimizers().param_groups:
        group["lr"] = rate


def rate_inside():
    return Keeping(lambda module, x, loss: set_rate(module, loss.detach()))


def losses():
    return Keeping(
        lambda module, x, loss: module.losses.append(loss.detach()),
        save=lambda module, checkpoint: checkpoint.update(losses=torch.stack(module.losses)),
        losses=[],
    )


class SharedByClass(Keeping):
    kept: ClassVar = []


def shared_by_class():
    return SharedByClass(
        lambda module, x, loss: module.kept.append(loss.detach()),
        save=lambda module, checkpoint: checkpoint.update(losses=torch.stack(module.kept[-5:])),
    )


class OneMetric(Keeping):
    """For training and validation."""

    def validation_step(self, batch, batch_idx):
        self.mean.update(nn.functional.cross_entropy(self(batch[0]), batch[1]))

    def on_validation_epoch_end(self):
        self.log("val/loss", self.mean.compute())


def one_metric():
    return OneMetric(lambda module, x, loss: module.mean.update(loss.detach()), mean=MeanMetric())


def stops():
    return Keeping(lambda module, x, loss: module.trainer.callback_metrics.update(loss=loss.detach()))


def silent():
    return Keeping(lambda module, x, loss: None)


class SavesInputs(Callback):
    def __init__(self):
        self.inputs = []

    def on_fit_start(self, trainer, pl_module):
        pl_module.hidden.register_forward_hook(lambda layer, inputs, output: self.inputs.append(inputs[0].detach()))

    def state_dict(self):
        return {"inputs": torch.cat(self.inputs)}


def left_by(directory, module, data, gradients, callbacks=(), **settings):
    """All that a fit saves and logs."""
    fit = trainer(
        directory,
        strategy(mechanism="gp", gradients=gradients, aux_dataloader=public_loader, **settings),
        max_epochs=1,
        callbacks=[made() for made in callbacks],
        logger=CSVLogger(directory),
    )
    torch.manual_seed(3)
    fit.fit(module(), loader(seed=data), loader(seed=5, shuffle=False))
    fit.save_checkpoint(directory / "all.ckpt")
    saved = torch.load(directory / "all.ckpt", weights_only=False)
    kept = {"state_dict", "optimizer_states", "hyper_parameters", "callbacks", "losses", "mean"}
    return {name: saved[name] for name in kept & saved.keys()} | {"logged": dict(fit.callback_metrics)}


EXAMPLES = [
    *((module, ()) for module in (queue, rate_inside, losses, one_metric, stops, shared_by_class)),
    (silent, (SavesInputs,)),
]


@pytest.mark.parametrize(("module", "callbacks"), EXAMPLES, ids=lambda value: getattr(value, "__name__", ""))
def test_nothing_of_private_records_is_left(tmp_path, module, callbacks):
    one, other = (left_by(tmp_path / str(data), module, data, "auto", callbacks) for data in (1, 2))
    torch.testing.assert_close(one, other, rtol=0, atol=0)


class Holder:
    """Something that can be referred to."""


def noting_losses(training_step):
    seen = []

    def noting(self, batch, batch_idx):
        loss = training_step(self, batch, batch_idx)
        seen.append(float(loss))
        return loss

    noting.seen = seen
    return noting


class NotesLosses(Keeping):
    training_step = noting_losses(Keeping.training_step)

    class Last:
        loss = 0.0

    def note(self):
        """A function with a variable."""


def keeping_losses(keep, read, **held):
    return NotesLosses(
        lambda module, x, loss: keep(module, float(loss)),
        save=lambda module, checkpoint: checkpoint.update(losses=read(module)),
        **held,
    )


def in_a_decorator():
    return keeping_losses(lambda module, loss: None, lambda module: list(module.training_step.seen))


def in_a_variable_of_a_method():
    return keeping_losses(
        lambda module, loss: vars(NotesLosses.note).update(last=loss), lambda module: module.note.last
    )


def in_a_nested_class():
    return keeping_losses(lambda module, loss: setattr(module.Last, "loss", loss), lambda module: NotesLosses.Last.loss)


def in_a_class_that_is_held():
    return keeping_losses(
        lambda module, loss: setattr(module.kind, "loss", loss), lambda module: module.kind.loss, kind=Holder
    )


def in_an_array():
    return keeping_losses(lambda module, loss: module.a.append(loss), lambda module: list(module.a), a=array("d"))


def in_an_array_of_objects():
    a = np.empty(1, dtype=object)
    a[0] = []
    return keeping_losses(lambda module, loss: module.a[0].append(loss), lambda module: list(module.a[0]), a=a)


def under_a_weak_key():
    return keeping_losses(
        lambda module, loss: module.losses.update({module.hidden: loss}),
        lambda module: list(module.losses.values()),
        losses=WeakKeyDictionary(),
    )


REFERRED_TO = Holder()


def behind_a_weak_reference():
    return keeping_losses(
        lambda module, loss: setattr(module.reference(), "loss", loss),
        lambda module: module.reference().loss,
        reference=weakref.ref(REFERRED_TO),
    )


@pytest.mark.parametrize(
    "module",
    [
        *(in_a_decorator, in_a_variable_of_a_method, in_a_nested_class, in_a_class_that_is_held),
        *(in_an_array, in_an_array_of_objects, under_a_weak_key, behind_a_weak_reference),
    ],
    ids=lambda made: made.__name__,
)
def test_losses_of_private_records_stay_nowhere(tmp_path, module):
    """In a loop `float(loss)` is the loss of a record."""
    NotesLosses.training_step.seen.clear()
    one = left_by(tmp_path / "1", module, 1, "loop")
    NotesLosses.training_step.seen.clear()
    other = left_by(tmp_path / "2", module, 2, "loop")
    assert one["losses"] == other["losses"]


def made_sparse(kind):
    """A graph beside the weights."""
    module = Keeping(lambda module, x, loss: None)
    graph = torch.eye(FEATURES) + torch.eye(FEATURES).roll(1, 0)
    module.held, graph = getattr(graph, kind)(), getattr(graph, kind)()
    module.register_buffer("graph", graph)
    return module


@pytest.mark.parametrize("kind", ["to_sparse", "to_sparse_csr", "to_sparse_csc"])
def test_sparse_tensors_are_compared_and_put_back(kind):
    module = made_sparse(kind)
    before = Snapshot(reachable(module))
    values, copy = module.graph.values if kind != "to_sparse" else module.graph._values, module.graph.to_dense()
    assert before.put_back() == []
    values()[0] = 7.0
    assert before.put_back() == ["graph"]
    torch.testing.assert_close(module.graph.to_dense(), copy)
    if kind == "to_sparse":  # others keep their number of values
        module.graph.data = torch.eye(FEATURES).to_sparse()
        assert before.put_back() == ["graph"]
        torch.testing.assert_close(module.graph.to_dense(), copy)


@pytest.mark.parametrize("kind", ["to_sparse", "to_sparse_csr"])
def test_modules_with_sparse_tensors_train(tmp_path, kind):
    fit = trainer(tmp_path, strategy(mechanism="gp"), max_epochs=1)
    fit.fit(made_sparse(kind), loader())
    assert fit.strategy.privacy.steps == 5


class Collects(Classifier):
    """The usual pattern: a list that a later hook empties, and a count that is no buffer."""

    def __init__(self):
        super().__init__()
        self.losses, self.calls, self.means = [], 0, []

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.losses.append(loss.detach())
        self.calls += 1
        return loss

    def on_train_epoch_end(self):
        self.means.append(torch.stack(self.losses).mean())
        self.losses.clear()


@pytest.mark.parametrize("gradients", ["functional", "hooks"])
def test_hooks_find_what_training_step_keeps_once_for_every_step(tmp_path, gradients):
    module = Collects()
    trainer(tmp_path, strategy(gradients=gradients, mechanism="gp", microbatch_size=4), max_epochs=2).fit(
        module, loader()
    )
    assert module.calls == 10
    assert len(module.means) == 2


class Counts(Classifier):
    """The loss depends on the count: all records of a step must meet the same."""

    def __init__(self, count_records=False):
        super().__init__(dtype=torch.float64)
        self.count_records = count_records
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def training_step(self, batch, batch_idx):
        self.steps += len(batch[0]) if self.count_records else 1
        return super().training_step(batch, batch_idx) * self.steps


NO_NOISE = {
    "mechanism": "gp",
    "noise_multiplier": 0.0,
    "clip_norm": INF,
    "microbatch_size": 5,
    "aux_dataloader": lambda: public_loader(torch.float64),
}


@pytest.mark.parametrize("gradients", ["functional", "hooks", "loop"])
def test_a_buffer_that_counts_steps_goes_up_by_one_a_step(tmp_path, gradients):
    module = Counts()
    trainer(tmp_path, strategy(gradients=gradients, **NO_NOISE), max_epochs=3).fit(module, loader(dtype=torch.float64))
    assert module.steps == 15
    # A loss that is multiplied by the count is a learning rate that is.
    expected = Classifier(
        lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        lambda optimizer: {"scheduler": torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step + 1)},
        torch.float64,
    )
    torch.testing.assert_close(weights(module), weights(plain_training(expected, 15)), rtol=0, atol=1e-10)


def test_a_buffer_that_counts_records_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match=r"training_step changes steps: .*a count of steps, may stay"):
        trainer(tmp_path, strategy(**NO_NOISE)).fit(Counts(count_records=True), loader(dtype=torch.float64))


@pytest.mark.parametrize(("normed", "gradients"), [(spectral_norm, "functional"), (spectral_norm_by_hook, "loop")])
def test_spectral_norm_is_that_of_plain_training(tmp_path, normed, gradients):
    module, expected = Classifier(dtype=torch.float64), Classifier(dtype=torch.float64)
    for made in (module, expected):
        torch.manual_seed(4)
        normed(made.hidden)
    trainer(tmp_path, strategy(gradients=gradients, **NO_NOISE), max_epochs=3).fit(module, loader(dtype=torch.float64))
    expected = plain_training(expected, 15)
    torch.testing.assert_close(dict(module.state_dict()), dict(expected.state_dict()), rtol=0, atol=1e-11)


class WithAccuracy(Classifier):
    def __init__(self):
        super().__init__(still)
        self.accuracy = MulticlassAccuracy(CLASSES, average="micro")

    def training_step(self, batch, batch_idx):
        self.accuracy(self(batch[0]), batch[1])
        self.log("accuracy", self.accuracy, on_step=False, on_epoch=True)
        return nn.functional.cross_entropy(self(batch[0]), batch[1])


def test_a_metric_that_is_logged_without_protection_is_that_of_the_private_records(tmp_path):
    fit = trainer(tmp_path, strategy(mechanism="gp"), max_epochs=1)
    fit.fit(WithAccuracy(), loader())
    assert not fit.callback_metrics
    module = WithAccuracy()
    fit = trainer(tmp_path, strategy(mechanism="gp", log_nonprivate=True), max_epochs=1)
    fit.fit(module, loader(batch_size=RECORDS))
    x, y = records().tensors
    torch.testing.assert_close(fit.callback_metrics["nonprivate/accuracy"], (module(x).argmax(1) == y).float().mean())


class Adds(Classifier):
    total = 0.0

    def training_step(self, batch, batch_idx=0):
        loss = super().training_step(batch, batch_idx)
        self.total = self.total + loss.detach()
        return loss


def test_no_chunk_of_a_microbatch_meets_what_was_kept_of_another():
    """A tensor that was kept under vmap cannot be read under the next."""
    module = Adds()
    gradients = FunctionalGradients(module, module.training_step, ParameterGroups.from_module(module))
    batch = records(7).tensors
    module.log = lambda *_: None
    expected = gradients(batch, chunk_size=None, put_back=Snapshot(reachable(module)).put_back)
    rows = gradients(batch, chunk_size=2, put_back=Snapshot(reachable(module)).put_back)
    torch.testing.assert_close(rows, expected)
    assert module.total == 0.0


class Remembers(Classifier):
    """A record weighs as much as the loss of the one before it."""

    before = 1.0

    def training_step(self, batch, batch_idx=0):
        loss = super().training_step(batch, batch_idx)
        weighted, self.before = loss * self.before, float(loss)
        return weighted


def test_in_a_loop_no_record_meets_what_was_kept_of_another():
    module = Remembers()
    gradients = LoopGradients(module, module.training_step, ParameterGroups.from_module(module))
    x, y = records(5).tensors
    module.log = lambda *_: None
    put_back = Snapshot(reachable(module)).put_back
    alone = torch.cat([gradients((x[i : i + 1], y[i : i + 1]), put_back=put_back) for i in range(5)])
    torch.testing.assert_close(gradients((x, y), chunk_size=4, put_back=put_back), alone, rtol=0, atol=0)
    assert not torch.equal(gradients((x, y)), alone), "without it they do"


class Texts(Keeping):
    """Records of which the strategy can make up none."""

    def training_step(self, batch, batch_idx):
        x, y, self.names = batch
        return super().training_step((x, y), batch_idx)


def test_where_no_records_can_be_made_up_nothing_is_kept(tmp_path):
    x, y = records().tensors
    data = [(a, b, f"patient {i}") for i, (a, b) in enumerate(zip(x, y, strict=True))]
    module = Texts(note)
    trainer(tmp_path, strategy(mechanism="gp"), max_epochs=1).fit(module, DataLoader(data, batch_size=12, shuffle=True))
    assert not hasattr(module, "names")
    assert not hasattr(module, "last")
