"""What goes wrong on private records is told without their values."""

import re
import traceback

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

from lightning_gep.cli.job import train
from lightning_gep.errors import ConfigurationError, PrivateRecordError
from lightning_gep.gradients.withheld import withheld
from recipes.data.digits import DigitsDataModule
from tests.cli.test_job import composed
from tests.toys import FEATURES, RECORDS, Classifier, records, strategy, trainer

SECRET = 7351


def fails():
    raise ValueError(f"the value is {SECRET}")


def test_kind_and_line_are_told_and_nothing_else():
    with pytest.raises(PrivateRecordError) as raised:
        withheld(fails, "training_step", reveal=False)
    line = fails.__code__.co_firstlineno + 1
    assert f"training_step failed on private records: ValueError at {__file__}:{line} (fails)" in str(raised.value)
    assert "log_nonprivate=True" in str(raised.value)
    shown = "".join(traceback.format_exception(raised.value))
    assert str(SECRET) not in shown
    assert raised.value.__context__ is None
    assert raised.value.__cause__ is None


def test_errors_are_passed_on_if_asked_for_and_our_own_always():
    def refuses():
        raise ConfigurationError("use less")

    with pytest.raises(ValueError, match=str(SECRET)):
        withheld(fails, "training_step", reveal=True)
    with pytest.raises(ConfigurationError, match="use less"):
        withheld(refuses, "training_step", reveal=False)


def with_a_bad_label():
    x, y = records().tensors
    return TensorDataset(x, torch.where(torch.arange(RECORDS) == 0, SECRET, y))


class Reads(Dataset):
    def __len__(self):
        return RECORDS

    def __getitem__(self, index):
        in_training = torch.utils.data.get_worker_info() is not None
        return fails() if index == 1 and in_training else (torch.randn(FEATURES), 0)


def fails_in(hook):
    def fail(self, batch, dataloader_idx):
        if (batch[1] == SECRET).any():
            fails()
        return batch

    return type("Hook", (Classifier,), {hook: fail})


CASES = {
    "training_step": (
        Classifier,
        with_a_bad_label,
        0,
        "training_step failed on private records: RuntimeError at .*toys",
    ),
    "in a worker": (Classifier, Reads, 1, r"Reading a batch failed on private records: ValueError"),
    "hook": (
        fails_in("on_after_batch_transfer"),
        with_a_bad_label,
        0,
        r"on_after_batch_transfer failed .* ValueError at",
    ),
}


def show(module, data, workers, directory, **settings):
    """What would stand in a log after a fit that one record ends."""
    used = strategy(mechanism="gp", aux_dataloader=DataLoader(records(200, seed=99), batch_size=50), **settings)
    fit = trainer(directory, used)
    with pytest.raises((PrivateRecordError, RuntimeError, ValueError)) as raised:
        fit.fit(module(), DataLoader(data(), batch_size=RECORDS, shuffle=True, num_workers=workers))
    return "".join(traceback.format_exception(raised.value)), str(raised.value)


@pytest.mark.parametrize(("module", "data", "workers", "message"), CASES.values(), ids=CASES)
def test_a_record_that_ends_a_run_does_not_show_its_value(tmp_path, module, data, workers, message, capfd):
    shown, said = show(module, data, workers, tmp_path)
    assert str(SECRET) not in shown
    assert re.search(message, said), said
    printed = capfd.readouterr()
    assert str(SECRET) not in printed.out + printed.err


def test_log_nonprivate_shows_it(tmp_path):
    module, data, workers, _ = CASES["training_step"]
    shown, _ = show(module, data, workers, tmp_path, log_nonprivate=True)
    assert str(SECRET) in shown


def test_neither_the_record_of_a_job_nor_its_console_shows_it(tmp_path, monkeypatch, capfd):
    """A label of the digits that is out of range, in a run of gep-train."""
    ordinary = DigitsDataModule.train_dataloader

    def damaged(self):
        loader = ordinary(self)
        x, y = default_collate(list(loader.dataset))
        return DataLoader(TensorDataset(x, torch.full_like(y, SECRET)), batch_size=loader.batch_size, shuffle=True)

    monkeypatch.setattr(DigitsDataModule, "train_dataloader", damaged)
    with pytest.raises(PrivateRecordError) as raised:
        train(composed(tmp_path))
    record, printed = (tmp_path / "run.json").read_text(), capfd.readouterr()
    assert "PrivateRecordError: training_step failed on private records" in record
    console = "".join((printed.out, printed.err, *traceback.format_exception(raised.value)))
    assert str(SECRET) not in record + console


class BadAt(Dataset):
    """One record cannot be read."""

    def __init__(self, place):
        self.place = place

    def __len__(self):
        return RECORDS

    def __getitem__(self, index):
        return fails() if index == self.place else (torch.randn(FEATURES), index % 3)


class Words(Dataset):
    """Texts, of which one is unknown to code that looks them up."""

    def __len__(self):
        return RECORDS

    def __getitem__(self, index):
        return str(SECRET) if index == 3 else "word", index % 3


def looked_up(texts):
    return torch.stack([torch.full((FEATURES,), {"word": 1.0}[text]) for text in texts])


class Looks(Classifier):
    def training_step(self, batch, batch_idx):
        return super().training_step((looked_up(batch[0]), batch[1]), batch_idx)


BEFORE_TRAINING = {
    "stand-ins are read": (Classifier, BadAt(3), {}, "gp"),
    "contents are compared": (Classifier, BadAt(RECORDS - 1), {}, "gep"),
    "structures are compared": (Classifier, BadAt(0), {}, "gep"),
    "stand-ins are collated": (
        Classifier,
        Words(),
        {"collate_fn": lambda rows: (looked_up([text for text, _ in rows]), torch.tensor([y for _, y in rows]))},
        "gp",
    ),
    "texts are tried": (Looks, Words(), {}, "gp"),
}


@pytest.mark.parametrize("case", BEFORE_TRAINING)
def test_checks_before_training_tell_no_values_either(case, tmp_path):
    module, data, options, mechanism = BEFORE_TRAINING[case]
    training = DataLoader(data, batch_size=12, **options)
    with pytest.raises((PrivateRecordError, ConfigurationError), match=r"ValueError at|KeyError") as raised:
        trainer(tmp_path, strategy(mechanism=mechanism)).fit(module(), training)
    assert str(SECRET) not in "".join(traceback.format_exception(raised.value))
    with pytest.raises((ValueError, ConfigurationError), match=str(SECRET)):
        trainer(tmp_path, strategy(mechanism=mechanism, log_nonprivate=True)).fit(module(), training)
