"""What W&B really wrote: a reader of the files of offline runs, and an environment in which it finds no account."""

import json
import os
import struct
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import wandb
from wandb.proto import wandb_internal_pb2 as messages

BLOCK, FILE_HEADER, CHUNK_HEADER = 32768, 7, 7
WHOLE, LAST = 1, 4


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """No key, no network, nothing written outside the test's directory; nothing left over for the next test."""
    for name in [name for name in os.environ if name.startswith("WANDB")]:
        monkeypatch.delenv(name)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("NETRC", str(home / "netrc"))
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")  # nothing listens there
    for name in ("CACHE", "CONFIG", "DATA", "ARTIFACT"):
        monkeypatch.setenv(f"WANDB_{name}_DIR", str(home / name.lower()))
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    wandb.teardown()
    yield
    if wandb.run is not None:  # a failed test left it
        wandb.finish()
    wandb.teardown()
    assert not list(work.iterdir()), "W&B wrote into the working directory"


@dataclass
class WrittenRun:
    path: Path
    run: messages.RunRecord = field(default_factory=messages.RunRecord)
    kinds: set[str] = field(default_factory=set)
    rows: list[dict] = field(default_factory=list)
    config: dict = field(default_factory=dict)
    summary: dict = field(default_factory=dict)
    artifacts: list = field(default_factory=list)
    exit_code: int | None = None

    @property
    def keys(self):
        """Everything that rows name, without what W&B itself counts."""
        return {key for row in self.rows for key in row if not key.startswith("_")}


def written_runs(directory, patience=10.0):
    """All runs below a directory, oldest first, once W&B's own process has written how they ended."""
    until = time.monotonic() + patience
    while True:
        runs = [read_run(path) for path in sorted(Path(directory).rglob("run-*.wandb"))]
        if all(run.exit_code is not None for run in runs) or time.monotonic() > until:
            return runs
        time.sleep(0.02)


def read_run(path):
    found = WrittenRun(path)
    for record in records(path.read_bytes()):
        kind = record.WhichOneof("record_type")
        found.kinds.add(kind)
        if kind == "run":
            found.run = record.run
            found.config |= values(record.run.config.update)
        elif kind == "config":
            found.config |= values(record.config.update)
        elif kind == "history":
            found.rows.append(values(record.history.item))
        elif kind == "summary":
            found.summary |= values(record.summary.update)
        elif kind == "artifact":
            found.artifacts.append(record.artifact)
        elif kind == "exit":
            found.exit_code = record.exit.exit_code
    return found


def values(items):
    return {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}


def records(data):
    """The log's format is LevelDB's: blocks of 32 KB, a record in one chunk or several."""
    assert b":W&B".startswith(data[:4])
    position, parts = FILE_HEADER, b""
    while position + CHUNK_HEADER <= len(data):
        left = BLOCK - position % BLOCK
        if left < CHUNK_HEADER:
            position += left
            continue
        _, size, kind = struct.unpack_from("<IHB", data, position)
        if position + CHUNK_HEADER + size > len(data):
            return  # still being written
        parts += data[position + CHUNK_HEADER : position + CHUNK_HEADER + size]
        position += CHUNK_HEADER + size
        if kind in (WHOLE, LAST):
            yield messages.Record.FromString(parts)
            parts = b""
