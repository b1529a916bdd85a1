"""JSON files that runs leave behind, each replaced as a whole."""

import json
import math
import os
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

RUN_FILE, SWEEP_FILE = "run.json", "sweep.json"
CARD_FILE, CARD_PAGE = "privacy_card.json", "privacy_card.html"


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Replace a JSON file. Infinite and undefined numbers, which JSON lacks, become strings."""
    write_text(path, json.dumps(_plain(content), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Replace a file atomically: a reader sees the old content or the new, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(text, "utf-8")
    partial.replace(path)


def read_json(path: Path) -> Any:
    """The content of a JSON file."""
    return json.loads(path.read_text("utf-8"))


def now() -> str:
    """The current time in UTC, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
