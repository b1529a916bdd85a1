"""Full disks, damaged files, dying workers and the like: a clear error, no release uncounted, nothing finished lost."""

import errno
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from lightning_gep.algorithm.noise import SystemNoise
from lightning_gep.errors import ConfigurationError, LedgerError, PrivateRecordError
from lightning_gep.privacy import ledger
from lightning_gep.strategy.release_checks import ReleaseChecks
from tests.resumable import every_step, run
from tests.soak import in_ledger
from tests.toys import FEATURES, RECORDS, Classifier, loader, strategy, trainer, weights


class FullDisk:
    """A file on a disk that has room for so many more writes, then for part of one."""

    def __init__(self, file, room):
        self.file, self.room = file, room

    def write(self, data):
        self.room -= 1
        if self.room < 0:
            self.file.write(data[: len(data) // 2])
            self.file.flush()
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.file.write(data)

    def __getattr__(self, name):
        return getattr(self.file, name)


@pytest.fixture
def draws(monkeypatch):
    """The steps of which noise is drawn."""
    seen, normal = [], SystemNoise.normal

    def noted(self, size, *, step, part, device):
        seen.append(step)
        return normal(self, size, step=step, part=part, device=device)

    monkeypatch.setattr(SystemNoise, "normal", noted)
    return seen


def gp(**settings):
    return strategy(mechanism="gp", generator="system", **settings)


@pytest.mark.parametrize("room", [0, 1, 4])
def test_a_full_disk_ends_the_run_before_the_release_it_cannot_count(tmp_path, monkeypatch, draws, room):
    """The header is the first write, then one for each release."""
    opened = ledger.open_locked
    with monkeypatch.context() as patch:
        patch.setattr(ledger, "open_locked", lambda path: FullDisk(opened(path), room))
        with pytest.raises(LedgerError, match=r"No space left on device.*Make room on the disk"):
            run(tmp_path, gp(), steps=6, callbacks=[every_step(tmp_path / "all")])
    assert len(draws) == max(0, room - 1)
    if room > 1:
        assert in_ledger(tmp_path) >= len(draws)
        used = gp()
        run(tmp_path, used, steps=6, checkpoint=tmp_path / "all" / f"step={room - 1}.ckpt")
        assert used.privacy.steps >= len(draws)
        assert used.privacy.steps in (6, 7), "the release that was refused may be counted"


def train_until_the_disk_is_full(directory):
    """In a process of its own: fills the disk but for the ledger's last block, and trains until that is full too."""
    drawn, normal = [], SystemNoise.normal
    SystemNoise.normal = lambda self, *size, **of: drawn.append(of["step"]) or normal(self, *size, **of)
    used = gp()
    fit = trainer(directory, used, max_epochs=200)
    used.on_train_start = lambda: fill(directory / "filler")  # the header is written by then
    try:
        fit.fit(Classifier(), loader())
    except LedgerError as error:
        print(f"{error}\n{len(drawn)} {in_ledger(directory)} {used.privacy.steps}")


def fill(path):
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


def test_a_disk_that_is_really_full_ends_the_run_with_every_release_counted(tmp_path):
    """A file system of one megabyte, in a mount namespace of its own."""
    alone = ["unshare", "--mount", "--map-root-user", "sh", "-c"]
    mount = f"mount -t tmpfs -o size=1m tmpfs {tmp_path}"
    if sys.platform != "linux" or subprocess.run([*alone, mount], capture_output=True).returncode:
        pytest.skip("this system does not let its users mount a file system of their own")
    code = f"from tests.strategy.test_faults import *; train_until_the_disk_is_full(Path({str(tmp_path)!r}))"
    done = subprocess.run(
        [*alone, f'{mount} && exec "$0" -c "$1"', sys.executable, code],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
    )
    assert "No space left on device" in done.stdout, done.stderr[-2000:]
    drawn, counted, steps = map(int, done.stdout.split()[-3:])
    assert 0 < drawn <= steps <= counted <= drawn + 1, "the release that was refused may be counted"


def test_a_place_without_room_for_a_ledger_is_refused_before_training(tmp_path, draws):
    (tmp_path / "privacy").write_text("in the way")
    with pytest.raises(LedgerError, match=r"No ledger can be kept at .*default_root_dir that can be written to"):
        run(tmp_path, gp(), steps=1)
    assert not draws


def test_a_checkpoint_that_cannot_be_written_ends_the_run_with_its_releases_counted(tmp_path, monkeypatch, draws):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    used, kept = gp(), every_step(tmp_path / "all")
    monkeypatch.setattr("lightning.fabric.plugins.io.torch_io._atomic_save", full)
    with pytest.raises(OSError, match=r"No space left"):
        run(tmp_path, used, steps=6, callbacks=[kept])
    assert len(draws) == in_ledger(tmp_path) == used.privacy.steps == 1


class Planted:
    """A pickle that writes a file when it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("damage", ["cut", "emptied", "overwritten", "poisoned"])
def test_a_damaged_checkpoint_is_named_and_runs_no_code(tmp_path, damage):
    run(tmp_path, gp(), steps=2, callbacks=[every_step(tmp_path / "all")])
    file = tmp_path / "all" / "step=2.ckpt"
    content = file.read_bytes()
    if damage == "poisoned":
        torch.save({**torch.load(file, weights_only=True), "callbacks": Planted(tmp_path / "ran")}, file)
    else:
        file.write_bytes({"cut": content[: len(content) // 2], "emptied": b"", "overwritten": b"x" * 999}[damage])
    with pytest.raises(ConfigurationError, match=r"step=2\.ckpt cannot be read"):
        run(tmp_path, gp(), steps=4, checkpoint=file)
    assert not (tmp_path / "ran").exists()
    used = gp()
    run(tmp_path, used, steps=4, checkpoint=tmp_path / "all" / "step=1.ckpt")
    assert used.privacy.steps == 2 + 3, "the step after the older checkpoint was released twice"


class Dies(Dataset):
    """Its worker is gone at the first record that it reads in training."""

    def __len__(self):
        return RECORDS

    def __getitem__(self, index):
        if torch.utils.data.get_worker_info() is not None:
            os._exit(3)
        return torch.randn(FEATURES), index % 3


def test_a_worker_that_dies_ends_the_run_in_words(tmp_path, draws):
    used = gp()
    with pytest.raises(PrivateRecordError, match="Reading a batch failed on private records: RuntimeError"):
        trainer(tmp_path, used).fit(Classifier(), DataLoader(Dies(), batch_size=12, num_workers=1))
    assert used.privacy.steps == in_ledger(tmp_path) == len(draws) == 0


def test_a_step_that_fails_in_the_middle_of_a_batch_releases_nothing_of_it(tmp_path, draws, monkeypatch):
    # At a step drawn at random it would meet the error first, on records that are not private.
    monkeypatch.setattr(ReleaseChecks, "before_a_release", lambda *_: None)

    class Fails(Classifier):
        def training_step(self, batch, batch_idx):
            if self.trainer.global_step == 3 and self.fails:
                raise ValueError("a value of a record")
            return super().training_step(batch, batch_idx)

    module, used = Fails(), gp(gradients="loop")
    module.fails = True
    fit = trainer(tmp_path, used)
    with pytest.raises(PrivateRecordError, match="training_step failed on private records: ValueError"):
        fit.fit(module, loader())
    assert used.privacy.steps == in_ledger(tmp_path) == len(draws) == 3
    assert torch.isfinite(weights(module)).all()
    module.fails = False
    fit.fit(module, loader())
    assert used.privacy.steps == in_ledger(tmp_path) == len(draws) > 3, "a second fit goes on with the count"


def test_records_that_are_not_finite_do_not_end_a_run(tmp_path):
    module, used, data = Classifier(), gp(), loader()
    x = data.dataset.tensors[0]
    x[0], x[1], x[2] = float("nan"), float("inf"), 1e38
    trainer(tmp_path, used).fit(module, data)
    assert used.privacy.steps == 10
    assert torch.isfinite(weights(module)).all()


def test_a_clock_that_goes_backwards_changes_no_count(tmp_path, monkeypatch):
    clock = iter(range(2_000_000_000, 0, -86_400))
    monkeypatch.setattr(time, "time", lambda: float(next(clock)))
    used = gp()
    run(tmp_path, gp(), steps=3, callbacks=[every_step(tmp_path / "all")])
    run(tmp_path, used, steps=5, checkpoint=tmp_path / "all" / "step=2.ckpt")
    assert used.privacy.steps == in_ledger(tmp_path) == 3 + 3
