import json
import math
import multiprocessing
from pathlib import Path

import pytest

from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy.files import write_json
from lightning_gep.reporting.records import (
    RUN_FILE,
    RunRecord,
    SweepRecord,
    is_locked,
    keep_earlier_metrics,
    locked,
    read_metrics,
)


def test_a_record_comes_back_as_it_was_written(tmp_path):
    assert RunRecord.read(tmp_path) is None
    assert SweepRecord.read(tmp_path) is None
    record = RunRecord("seed=0", overrides=["seed=0"], config={"data": {"a": [1, None]}}, metrics={"val/accuracy": 0.5})
    record.status = "finished"
    record.write(tmp_path)
    assert RunRecord.read(tmp_path) == record
    assert record.started == record.updated != ""


def test_what_is_infinite_is_a_word_because_json_has_no_number_for_it(tmp_path):
    RunRecord("a", privacy={"epsilon": math.inf}, metrics={"val/loss": math.nan}).write(tmp_path)
    content = json.loads((tmp_path / RUN_FILE).read_text(), parse_constant=pytest.fail)
    assert float(content["privacy"]["epsilon"]) == math.inf
    assert content["metrics"]["val/loss"] == "nan"


def test_a_job_is_running_while_its_process_holds_the_directory_and_interrupted_after(tmp_path):
    RunRecord("a").write(tmp_path)
    with locked(tmp_path):
        assert RunRecord.read(tmp_path).status == "running"
    assert RunRecord.read(tmp_path).status == "interrupted"
    RunRecord("a", status="failed").write(tmp_path)
    assert RunRecord.read(tmp_path).status == "failed"


def hold(directory, held, release):
    with locked(Path(directory)):
        held.set()
        release.wait(60)


def test_a_second_process_is_refused_and_asking_does_not_disturb_the_first(tmp_path):
    context = multiprocessing.get_context("fork")
    held, release = context.Event(), context.Event()
    process = context.Process(target=hold, args=(str(tmp_path), held, release))
    process.start()
    assert held.wait(60)
    assert is_locked(tmp_path)
    with pytest.raises(ConfigurationError, match="Another process is training in"), locked(tmp_path):
        pass
    release.set()
    process.join()
    assert process.exitcode == 0
    assert not is_locked(tmp_path)
    with locked(tmp_path):
        pass


def test_a_file_is_replaced_as_a_whole(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    write_json(path, {"a": 1})

    def cut(self, *_):
        raise OSError("no space left")

    monkeypatch.setattr(Path, "write_text", cut)
    with pytest.raises(OSError, match="no space"):
        write_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 1}


def table(directory, name, *lines):
    (directory / "metrics").mkdir(exist_ok=True)
    (directory / "metrics" / name).write_text("\n".join(lines) + "\n")


def test_metrics_of_several_attempts_are_one_table_without_the_steps_that_were_lost(tmp_path):
    table(tmp_path, "metrics.csv", "epoch,step,val/accuracy", "0,4,0.1", "1,9,0.2", "2,14,0.3")
    keep_earlier_metrics(tmp_path)
    table(tmp_path, "metrics.csv", "epoch,step,val/accuracy", "1,9,0.4")
    keep_earlier_metrics(tmp_path)
    table(tmp_path, "metrics.csv", "epoch,step,val/accuracy", "2,14,0.5", "3,19,0.6")
    assert len(list((tmp_path / "metrics").glob("metrics*.csv"))) == 3
    assert [(row["step"], row["val/accuracy"]) for row in read_metrics(tmp_path)] == [
        (4, 0.1),
        (9, 0.4),
        (14, 0.5),
        (19, 0.6),
    ]


def test_cells_that_are_empty_or_half_written_are_left_out(tmp_path):
    table(tmp_path, "metrics.csv", "step,a,b", "1,,2.5", "2,3.5,", "3,1e")
    assert read_metrics(tmp_path) == [{"step": 1, "b": 2.5}, {"step": 2, "a": 3.5}, {"step": 3}]
    assert read_metrics(tmp_path / "nothing") == []
