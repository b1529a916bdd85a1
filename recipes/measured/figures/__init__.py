"""The figures drawn from one file of measurements. Each module has its name, title, table, summary and picture."""

from pathlib import Path
from types import ModuleType
from typing import Any

from lightning_gep.privacy.files import read_json
from recipes.measured.drawing import data_title
from recipes.measured.figures import gradient_norms, projection_error, stable_rank

FIGURES = (gradient_norms, stable_rank, projection_error)

__all__ = ["FIGURES", "data_title", "measured_files"]


def measured_files(figure: ModuleType, output: Path) -> dict[Path, dict[str, Any]]:
    """The pictures of a figure below the results, one for each data set, with the measurements behind them."""
    pictures = sorted((output / "figures").glob(f"{figure.NAME}_*.svg"))
    return {path: read_json(path.with_name(f"{path.stem.replace(figure.NAME, 'measured')}.json")) for path in pictures}
