"""The ledger: an append-only file of releases that outlives the process, so that a crash cannot hide one."""

import itertools
import json
import os
import zlib
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from lightning_gep.errors import LedgerError
from lightning_gep.privacy.accounting import SampledGaussian

try:
    import fcntl
except ImportError:  # Windows has no advisory locks: two runs on one ledger are not detected there
    fcntl = None  # type: ignore[assignment]

FORMAT = "lightning-gep ledger 1"


def _encode(entry: dict[str, Any]) -> bytes:
    """A line without its end: a checksum and the entry."""
    text = json.dumps(entry, separators=(",", ":"), allow_nan=False).encode()
    return b"%08x %s" % (zlib.crc32(text), text)


TORN_LINE = _encode({"torn": True})
"""Follows a line that a killed process left incomplete."""


@dataclass
class LedgerContent:
    """The run that a ledger belongs to, and every release in order."""

    run_id: str
    parameters: dict[str, Any]
    releases: list[SampledGaussian] = field(default_factory=list)
    carried: int = 0
    """Releases known from a checkpoint that are not in this ledger."""
    torn: bool = False
    """The last line is incomplete: the process died while writing it."""

    @property
    def count(self) -> int:
        """All releases of the run."""
        return self.carried + len(self.releases)

    @property
    def history(self) -> list[tuple[SampledGaussian, int]]:
        """The recorded releases, for an accountant."""
        return list(Counter(self.releases).items())


class Ledger:
    """An open ledger of one run, held by one process.

    Guarantee: when `record` returns, the release is on disk (written and fsynced, its directory entry too). It is
    called before the noise is drawn, so a process killed at any moment has recorded at least the releases it made. A
    last line torn by the kill counts as a release: overcounting costs budget, undercounting would cost privacy.
    """

    def __init__(self, path: Path, file: IO[bytes], content: LedgerContent) -> None:
        self.path, self._file, self.content = path, file, content

    @classmethod
    def create(cls, path: str | os.PathLike[str], run_id: str, parameters: dict[str, Any]) -> "Ledger":
        """A new ledger; an existing one is never overwritten. `parameters` include sample_rate and noise_multiplier."""
        path = Path(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = open_locked(path)
        except OSError as error:
            raise LedgerError(
                f"No ledger can be kept at {path} ({error}). Train with a default_root_dir that can be written to."
            ) from error
        if read_or_none(path) is not None:
            file.close()
            raise LedgerError(
                f"There is a ledger at {path} already. Continue that run from its checkpoint, or use another directory."
            )
        file.truncate(0)  # at most an incomplete first line, so nothing was released
        ledger = cls(path, file, LedgerContent(run_id, parameters))
        ledger._write(_encode({"format": FORMAT, "run_id": run_id, "parameters": parameters}))
        _fsync_directory(path.parent)
        return ledger

    @classmethod
    def resume(cls, path: str | os.PathLike[str], run_id: str) -> "Ledger":
        """The ledger of an earlier process of the same run, open for appending."""
        path = Path(path)
        read(path)  # opening would create a missing file
        file = open_locked(path)
        content = read(path)
        if content.run_id != run_id:
            file.close()
            raise LedgerError(
                f"The ledger at {path} belongs to run {content.run_id}, but the checkpoint to run {run_id}. "
                "Put the run's own ledger there."
            )
        ledger = cls(path, file, content)
        if content.torn:
            ledger._write(b"\n" + TORN_LINE)
            content.torn = False
        return ledger

    def record(self, event: SampledGaussian, step: int) -> None:
        """Write one release to disk; returns only once it is there."""
        if self._file.closed:
            raise LedgerError(f"The ledger {self.path} is closed. Resume it before releasing anything else.")
        self._write(_encode({"step": step, "q": event.sample_rate, "sigma": event.noise_multiplier}))
        self.content.releases.append(event)

    def carry(self, count: int) -> None:
        """Record `count` releases that are missing here, so that the ledger never counts fewer than the run made."""
        self._write(_encode({"carried": count}))
        self.content.carried += count

    def close(self) -> None:
        """Close the file and release its lock."""
        with suppress(OSError):  # what could not be written before cannot be written now; the file is closed
            self._file.close()

    def _write(self, line: bytes) -> None:
        try:
            self._file.write(line + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise LedgerError(
                f"The ledger {self.path} cannot be written ({error}), so nothing more is released. Make room on the "
                "disk, then resume from the last checkpoint."
            ) from error


def read(path: str | os.PathLike[str]) -> LedgerContent:
    """The content of a ledger. A torn last line is accepted and counted; any other damage raises LedgerError."""
    content = read_or_none(path)
    if content is None:
        raise LedgerError(
            f"There is no usable ledger at {path}. It counts what was released since the last checkpoint. Restore it, "
            "or pass trust_checkpoint=True to state that the checkpoint's count is complete."
        )
    return content


def read_or_none(path: str | os.PathLike[str]) -> LedgerContent | None:
    """Like `read`, but None if the file is missing or its first line is incomplete, so nothing was released."""
    path = Path(path)
    if not path.exists():
        return None
    written = path.read_bytes()
    if b"\n" not in written:
        return None
    first, *lines = [line for line in written.split(b"\n") if line]
    header = _parse(first)
    if header is None or header.get("format") != FORMAT:
        raise LedgerError(
            f"{path} does not start like a ledger of this version ({FORMAT!r}). Give the run's own ledger."
        )
    content = LedgerContent(header["run_id"], header["parameters"], torn=not written.endswith(b"\n"))
    for number, line in enumerate(lines):
        entry = _parse(line)
        if entry is None:
            if not _is_torn(lines[number + 1 :]):
                raise LedgerError(
                    f"Line {number + 2} of the ledger {path} is damaged, so the releases cannot be counted. "
                    "Restore the file from a copy."
                )
            content.torn = content.torn or TORN_LINE not in lines[number:]
            planned = SampledGaussian(content.parameters["sample_rate"], content.parameters["noise_multiplier"])
            content.releases.append(content.releases[-1] if content.releases else planned)
        elif "carried" in entry:
            content.carried += entry["carried"]
        elif line != TORN_LINE:
            content.releases.append(SampledGaussian(entry["q"], entry["sigma"]))
    return content


def _is_torn(following: list[bytes]) -> bool:
    """Whether a bad line was left incomplete by a killed process, rather than damaged later.

    It was if it is the last line, or if the mark of its repair follows; the repair may itself have been killed.
    """
    others = itertools.dropwhile(lambda line: line != TORN_LINE and TORN_LINE.startswith(line), following)
    return next(others, TORN_LINE) == TORN_LINE


def _parse(line: bytes) -> dict[str, Any] | None:
    """The entry on a line, or None if the line is incomplete or fails its checksum."""
    checksum, _, text = line.partition(b" ")
    try:
        if int(checksum, 16) != zlib.crc32(text):
            return None
        entry = json.loads(text)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None


def open_locked(path: Path) -> IO[bytes]:
    """The file, open for appending. Raises LedgerError if another process has it."""
    file = path.open("ab")
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            raise LedgerError(
                f"Another process is training with the ledger {path}. Wait for it to end, or use another directory."
            ) from None
    return file


def _fsync_directory(path: Path) -> None:
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(path, os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
