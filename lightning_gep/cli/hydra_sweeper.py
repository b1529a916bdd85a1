"""Everything that reaches into Hydra's private modules, and why.

- `BasicSweeper`: Hydra's grid of overrides. Its grammar (`range(…)`, `choice(…)`, quotes) has no public function.
- `JoblibLauncher.joblib`: the arguments of joblib, to limit the number of workers.
- `Plugins.instance()`: a launcher that is not installed is a bare import error unless it is looked up first.
- A module made at run time below `hydra_plugins`: Hydra takes plugins only from that namespace. Files installed there
  would be imported at every start of every Hydra program on the machine; this module is seen by gep-train alone.

If a new version of Hydra moves one of them, importing this module fails, so `gep-train` and `gep-plan` do not start at
all; no job runs with other settings than asked for. `hydra-core` is therefore pinned below 1.4 in pyproject.toml.
"""

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from hydra._internal.core_plugins import basic_sweeper
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins

NAMESPACE = "hydra_plugins.lightning_gep"
"""Where `conf/hydra/sweeper/*.yaml` look for the sweepers of this package."""

Plugins.instance()  # reloads Hydra's own plugins: a base class taken before that would be a different class
BasicSweeper = basic_sweeper.BasicSweeper


def combinations_of(overrides: Sequence[Override]) -> list[list[str]]:
    """Every combination of the values given, as lists of plain overrides."""
    (combinations,) = basic_sweeper.BasicSweeper.split_arguments(list(overrides), None)
    return combinations


def is_installed(launcher: str) -> bool:
    """Whether Hydra found the plugin of that class name."""
    return launcher in Plugins.instance().class_name_to_class


def limit_workers(launcher: Any, jobs: int) -> None:
    """No more joblib workers than jobs: Ctrl-C would end an idle worker, and joblib would then kill the others, too."""
    from joblib import effective_n_jobs  # type: ignore[import-untyped]

    launcher.joblib["n_jobs"] = max(1, min(effective_n_jobs(launcher.joblib["n_jobs"]), jobs))


def register(*sweepers: type[basic_sweeper.BasicSweeper]) -> None:
    """Make sweepers known to Hydra under `NAMESPACE`."""
    ours = ModuleType(NAMESPACE)
    for sweeper in sweepers:
        sweeper.__module__ = NAMESPACE
        setattr(ours, sweeper.__name__, sweeper)
        Plugins.instance().register(sweeper)
    top, name = NAMESPACE.split(".")
    setattr(sys.modules.setdefault(top, ModuleType(top)), name, ours)
    sys.modules[NAMESPACE] = ours
