"""`gep-train`: train a model with differential privacy as the configuration in `conf/` says, once or in a sweep.

Exit codes: 0 success, 1 a job failed, 2 a setting cannot work (nothing was trained), 130 interrupted.
"""

import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_gep.cli.commands import check_cli_extra, errors_in_a_line

if TYPE_CHECKING:
    from omegaconf import DictConfig

begun = False
"""Whether a job has begun: an error before that is about settings."""


def main() -> None:
    """The console command."""
    with errors_in_a_line("gep-train"):
        check_cli_extra("gep-train")
    import hydra

    from lightning_gep.cli.configs import config_directory
    from lightning_gep.cli.interrupts import sigterm_as_ctrl_c
    from lightning_gep.cli.sweep import JobsFailed, register_sweepers

    register_sweepers()
    sigterm_as_ctrl_c()
    try:
        hydra.main(version_base="1.3", config_path=str(config_directory()), config_name="train")(run_job)()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except JobsFailed:
        raise
    except SystemExit as end:
        raise SystemExit(2 if end.code == 1 and not begun else end.code) from None


def run_job(config: "DictConfig") -> None:
    """One job, alone or as part of a sweep."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    global begun
    begun = True
    job = HydraConfig.get()
    overrides = list(job.overrides.task)
    if job.mode != RunMode.MULTIRUN:
        return single_job(config, overrides)
    from lightning_gep.cli.console import output_into
    from lightning_gep.cli.interrupts import job_in_worker

    # All output goes to the job's own file; an error is in its record, and the sweep continues.
    in_worker = "Joblib" in job.launcher._target_
    with output_into(Path(config.output_dir) / "console.log"), job_in_worker(in_worker) as may_start:
        from lightning_gep.cli.job import train

        try:
            if may_start:
                train(config, overrides)
        except Exception:
            traceback.print_exc()


def single_job(config: "DictConfig", overrides: list[str]) -> None:
    """Train, test and print a summary; a setting that cannot work is one line on stderr and exit code 2."""
    # Lightning takes seconds to import: a misspelt key and --help should not wait for it.
    from rich.console import Console
    from rich.table import Table

    from lightning_gep.cli.console import summary_rows
    from lightning_gep.cli.failures import in_a_line, is_a_setting
    from lightning_gep.cli.job import train

    try:
        record = train(config, overrides)
    except SystemExit:  # what Lightning makes of Ctrl-C
        raise KeyboardInterrupt from None
    except Exception as error:
        if not is_a_setting(error):
            raise
        print(f"gep-train: {in_a_line(error, config)}", file=sys.stderr)
        raise SystemExit(2) from None
    if int(os.environ.get("LOCAL_RANK", 0)) == 0:
        table = Table(show_header=False, title="gep-train")
        for row in summary_rows(record, Path(config.output_dir)).items():
            table.add_row(*row)
        Console().print(table)


if __name__ == "__main__":
    main()
