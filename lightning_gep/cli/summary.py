"""What a run says at its end."""

from pathlib import Path
from typing import Any

from rich.table import Table

from lightning_gep.privacy.files import CARD_PAGE
from lightning_gep.privacy.rounding import rounded_up
from lightning_gep.reporting.records import RunRecord


def summary_table(record: RunRecord, directory: Path) -> Table:
    """A short table for people."""
    table = Table(show_header=False, title="gep-train")
    for name, value in summary_rows(record, directory).items():
        table.add_row(name, value)
    return table


def summary_rows(record: RunRecord, directory: Path) -> dict[str, str]:
    """The rows of the table."""
    privacy = record.privacy or {}
    card = directory / "checkpoints" / CARD_PAGE
    tested = {name.replace("/", " "): value for name, value in record.metrics.items() if name.startswith("test/")}
    return {
        "mechanism": record.config["mechanism"]["mechanism"],
        **{name: percent(value) if "accuracy" in name else f"{value:.4g}" for name, value in tested.items()},
        "ε spent": spent(privacy),
        **({"δ": f"{privacy['delta']:g}"} if "delta" in privacy else {}),
        "steps": str(privacy["steps"]),
        "training time": f"{record.seconds:.1f} s",
        "outputs": short_path(directory),
        **({} if record.without_privacy else {"privacy card": short_path(card)}),
    }


def percent(share: float | None) -> str:
    """A share as a percentage, or a dash where there is none."""
    return "–" if share is None else f"{100 * share:.1f} %"


def spent(privacy: dict[str, Any]) -> str:
    """What was spent, of how much, and whether that is worth anything."""
    epsilon, target = float(privacy["epsilon"]), privacy.get("target_epsilon")
    if not privacy.get("noise_multiplier"):
        return "∞ (not private: there is no noise)"
    if not privacy["private"]:
        return "∞ (not private: sampling and noise can be repeated)"
    return rounded_up(epsilon) + (f" of {target:g}" if target is not None else "")


def short_path(path: Path) -> str:
    """Relative to where the command was started, if it is below."""
    absolute, here = path.resolve(), Path.cwd()
    return str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute)
