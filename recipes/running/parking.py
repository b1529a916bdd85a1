"""Runs that take longer than a machine is there: what one needs to go on elsewhere, small enough to be committed."""

import shutil
from pathlib import Path
from typing import Any

import torch

from lightning_gep.privacy.files import read_json, write_json
from lightning_gep.reporting.records import RUN_FILE, RunRecord
from lightning_gep.strategy.checkpoints import CHECKPOINT_KEY, without_basis

CHECKPOINT = Path("checkpoints") / "last.ckpt"
AS_THEY_ARE = ("metrics/*.csv", "privacy/*")
RUN, DATA = "<run>", "<data>"
"""What stands for the directories of a machine in a record that leaves it."""


def park(run: Path, data: Path, parked: Path) -> None:
    """Keep what the interrupted run in a directory needs to go on; nothing if it has not begun.

    The basis stays behind: it is by far the largest part, it is public, and the next step computes a new one. Nothing
    that is kept names a path of this machine.
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
    torch.save(_travelling(torch.load(run / CHECKPOINT, weights_only=False)), parked / CHECKPOINT)


def fetch(parked: Path, run: Path, data: Path) -> None:
    """Put a parked run where it goes on, unless it has begun there already."""
    if parked.is_dir() and not (run / RUN_FILE).exists():
        shutil.copytree(parked, run, dirs_exist_ok=True)
        write_json(run / RUN_FILE, _replaced(read_json(run / RUN_FILE), {RUN: str(run), DATA: str(data)}))


def _replaced(content: Any, words: dict[str, str]) -> Any:
    """Nested lists and dictionaries with these words replaced wherever a text has them."""
    if isinstance(content, dict):
        return {key: _replaced(value, words) for key, value in content.items()}
    if isinstance(content, list):
        return [_replaced(value, words) for value in content]
    if isinstance(content, str):
        for old, new in words.items():
            content = content.replace(old, new)
    return content


def _travelling(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """The checkpoint without its basis and without what callbacks keep, which is where files were."""
    private = checkpoint.get(CHECKPOINT_KEY)
    privacy = {} if private is None else {CHECKPOINT_KEY: {**without_basis(private), "ledger": None}}
    return {**checkpoint, "callbacks": {}, **privacy}
