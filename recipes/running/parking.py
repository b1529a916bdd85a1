"""Interrupted runs that continue on another machine: the files they need, small enough to commit."""

import shutil
from pathlib import Path
from typing import Any

import torch

from lightning_gep.privacy.files import RUN_FILE, read_json, write_json
from lightning_gep.reporting.records import RunRecord
from lightning_gep.strategy.checkpoints import CHECKPOINT_KEY, without_basis

CHECKPOINT = Path("checkpoints") / "last.ckpt"
AS_THEY_ARE = ("metrics/*.csv", "privacy/*")
RUN, DATA = "<run>", "<data>"
"""Placeholders for this machine's directories in a parked record."""


def park(run: Path, data: Path, parked: Path) -> None:
    """Copy what an interrupted run needs to continue; nothing if it has made no step.

    The basis is left out: it is by far the largest part, it is public, and the next step computes a new one. No path
    of this machine is kept.
    """
    record = RunRecord.read(run)
    if record is None or record.step == 0 or not (run / CHECKPOINT).exists():
        return
    shutil.rmtree(parked, ignore_errors=True)
    for path in (path for pattern in AS_THEY_ARE for path in run.glob(pattern)):
        target = parked / path.relative_to(run)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)
    content = {**read_json(run / RUN_FILE), "error": None}
    write_json(parked / RUN_FILE, _replaced(content, {str(run): RUN, str(data): DATA}))
    (parked / CHECKPOINT).parent.mkdir()
    torch.save(_travelling(torch.load(run / CHECKPOINT, weights_only=True)), parked / CHECKPOINT)


def fetch(parked: Path, run: Path, data: Path) -> None:
    """Copy a parked run to its working directory, unless the run has already begun there."""
    if parked.is_dir() and not (run / RUN_FILE).exists():
        shutil.copytree(parked, run, dirs_exist_ok=True)
        write_json(run / RUN_FILE, _replaced(read_json(run / RUN_FILE), {RUN: str(run), DATA: str(data)}))


def _replaced(content: Any, words: dict[str, str]) -> Any:
    """Nested lists and dictionaries with these substrings replaced in every string."""
    if isinstance(content, dict):
        return {key: _replaced(value, words) for key, value in content.items()}
    if isinstance(content, list):
        return [_replaced(value, words) for value in content]
    if isinstance(content, str):
        for old, new in words.items():
            content = content.replace(old, new)
    return content


def _travelling(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """The checkpoint without its basis and without the state of callbacks, which has paths."""
    private = checkpoint.get(CHECKPOINT_KEY)
    privacy = {} if private is None else {CHECKPOINT_KEY: {**without_basis(private), "ledger": None}}
    return {**checkpoint, "callbacks": {}, **privacy}
