"""`gep-train`: train a model with differential privacy as the configuration in `conf/` says."""

import sys
from typing import NoReturn

import hydra
from hydra.errors import InstantiationException
from omegaconf import DictConfig
from rich.console import Console

from lightning_gep.cli.configs import config_directory
from lightning_gep.cli.summary import summary_table
from lightning_gep.errors import ConfigurationError, LedgerError


@hydra.main(version_base="1.3", config_path=str(config_directory()), config_name="train")
def main(config: DictConfig) -> None:
    """Train, test and print a summary; a setting that cannot work is one line on stderr and exit code 2."""
    # Lightning takes seconds to import: a misspelt key and --help should not wait for it.
    from lightning_gep.cli.job import train

    try:
        outcome = train(config)
    except (ConfigurationError, LedgerError) as error:
        _give_up(error)
    except InstantiationException as error:
        if not isinstance(error.__cause__, ConfigurationError):
            raise
        _give_up(error.__cause__)
    Console().print(summary_table(outcome))


def _give_up(error: Exception) -> NoReturn:
    print(f"gep-train: {error}", file=sys.stderr)
    raise SystemExit(2)


if __name__ == "__main__":
    main()
