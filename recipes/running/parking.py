"""Runs that take longer than a machine is there: what one needs to go on elsewhere, small enough to be committed."""

import shutil
from pathlib import Path
from typing import Any

import torch

from lightning_gep.resumption import CHECKPOINT_KEY, without_basis
from lightning_gep.runs import RUN_FILE, RunRecord, read_json, write_json
from recipes.running.settings import without_machine

CHECKPOINT = Path("checkpoints") / "last.ckpt"
KEPT = ("metrics/*.csv", "privacy/*.ledger")


def park(run: Path, parked: Path) -> None:
    """Keep what the interrupted run in a directory needs to go on; nothing if it has not begun.

    The basis stays behind: it is the largest part by far, public, and computed again by the next step. So do paths, which
    mean nothing elsewhere.
    """
    record = RunRecord.read(run)
    if record is None or record.step == 0 or not (run / CHECKPOINT).exists():
        return
    shutil.rmtree(parked, ignore_errors=True)
    for path in (path for pattern in KEPT for path in run.glob(pattern)):
        _copy(path, parked / path.relative_to(run))
    content = {**read_json(run / RUN_FILE), "overrides": [], "error": None}  # both may name paths
    write_json(parked / RUN_FILE, without_machine(content))
    (parked / CHECKPOINT).parent.mkdir(parents=True, exist_ok=True)
    torch.save(_travelling(torch.load(run / CHECKPOINT, weights_only=False)), parked / CHECKPOINT)


def fetch(parked: Path, run: Path) -> None:
    """Put a parked run where it goes on, unless it has begun there already."""
    if parked.is_dir() and not (run / RUN_FILE).exists():
        shutil.copytree(parked, run, dirs_exist_ok=True)


def _travelling(checkpoint: dict[str, Any]) -> dict[str, Any]:
    private = checkpoint.get(CHECKPOINT_KEY)
    privacy = {} if private is None else {CHECKPOINT_KEY: {**without_basis(private), "ledger": None}}
    return {**checkpoint, "callbacks": {}, **privacy}


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source, target)
