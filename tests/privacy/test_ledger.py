import os

import pytest

from lightning_gep.errors import LedgerError
from lightning_gep.privacy import ledger as ledger_module
from lightning_gep.privacy.accounting import SampledGaussian
from lightning_gep.privacy.ledger import Ledger, read

EVENT = SampledGaussian(0.1, 1.5)
PARAMETERS = {"sample_rate": 0.1, "noise_multiplier": 1.5}


def written(path, count):
    ledger = Ledger.create(path, "run", PARAMETERS)
    for step in range(count):
        ledger.record(EVENT, step)
    ledger.close()
    return path


def test_record_returns_only_after_the_line_is_synced_and_a_new_file_also_in_its_directory(tmp_path, monkeypatch):
    path, synced = tmp_path / "ledger", []

    def fsync(descriptor):
        synced.append((os.fstat(descriptor).st_ino, len(path.read_bytes().splitlines())))

    monkeypatch.setattr(ledger_module.os, "fsync", fsync)
    written(path, 2)
    file, directory = path.stat().st_ino, tmp_path.stat().st_ino
    assert synced == [(file, 1), (directory, 1), (file, 2), (file, 3)], "what is new is there before it is synced"


def test_any_cut_of_the_last_line_reads_and_never_counts_less(tmp_path):
    whole = written(tmp_path / "whole", 3).read_bytes()
    last = whole[:-1].rfind(b"\n") + 1
    for cut in range(last + 1, len(whole)):
        path = tmp_path / "torn"
        path.write_bytes(whole[:cut])
        assert len(read(path).releases) == 3
        again = Ledger.resume(path, "run")
        again.record(EVENT, 3)
        again.close()
        assert len(read(path).releases) == 4
        assert not read(path).torn
    path.write_bytes(whole[:last])
    assert len(read(path).releases) == 2


def test_a_torn_first_release_takes_the_parameters_of_the_header_and_a_torn_header_means_there_was_none(tmp_path):
    path = written(tmp_path / "ledger", 1)
    path.write_bytes(path.read_bytes()[:-6])
    assert read(path).releases == [EVENT]
    path.write_bytes(path.read_bytes().splitlines()[0])
    with pytest.raises(LedgerError, match="no usable ledger"):
        read(path)
    assert len(read(written(path, 2)).releases) == 2


@pytest.mark.parametrize("damage", [lambda b: b.replace(b'"sigma":1.5', b'"sigma":9.5', 1), lambda b: b[:60] + b[61:]])
def test_damage_anywhere_else_is_an_error(tmp_path, damage):
    path = written(tmp_path / "ledger", 4)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(LedgerError, match=r"damaged|does not start like a ledger"):
        read(path)


def test_a_ledger_that_is_missing_there_already_of_another_run_or_in_use_is_refused(tmp_path):
    with pytest.raises(LedgerError, match="There is no usable ledger"):
        Ledger.resume(tmp_path / "none", "run")
    assert not (tmp_path / "none").exists()
    path = written(tmp_path / "ledger", 2)
    with pytest.raises(LedgerError, match=r"There is a ledger at .* already"):
        Ledger.create(path, "other", PARAMETERS)
    with pytest.raises(LedgerError, match="belongs to run run, but the checkpoint to run other"):
        Ledger.resume(path, "other")
    holder = Ledger.resume(path, "run")
    with pytest.raises(LedgerError, match="Another process is training with the ledger"):
        Ledger.resume(path, "run")
    holder.close()
    Ledger.resume(path, "run").close()
    assert len(read(path).releases) == 2


def test_a_repair_that_was_torn_itself_is_repaired(tmp_path):
    path = written(tmp_path / "ledger", 3)
    path.write_bytes(path.read_bytes()[:-5])
    torn = path.read_bytes()
    Ledger.resume(path, "run").close()
    repaired = path.read_bytes()
    for cut in range(len(torn) + 1, len(repaired)):
        path.write_bytes(repaired[:cut])
        for extra in range(2):
            again = Ledger.resume(path, "run")
            assert again.content.count >= 3 + extra
            again.record(EVENT, 3)
            again.close()
        assert 5 <= read(path).count <= 6
