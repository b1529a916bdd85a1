"""`gep-dashboard`: put the charts of a project on W&B, or write their definition to a file."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from lightning_gep.cli.commands import errors_in_a_line
from lightning_gep.errors import ConfigurationError


def main(arguments: Sequence[str] | None = None) -> None:
    """Exit code 0, or one line on stderr and 2: not logged in, or something is not installed; 1: W&B said no."""
    parser = argparse.ArgumentParser(prog="gep-dashboard", description="Charts of a project's runs, on W&B.")
    parser.add_argument("--project", default="lightning-gep", help="the W&B project (default: %(default)s)")
    parser.add_argument("--entity", help="the user or team it belongs to (default: the account's own)")
    parser.add_argument("--json", metavar="FILE", help="only write the definition, '-' for the terminal; no account")
    options = parser.parse_args(arguments)
    with errors_in_a_line("gep-dashboard"):
        from lightning_gep.loggers.dashboard import dashboard, definition  # says what to install, if that is missing

        if options.json is not None:
            view = definition(dashboard(options.project, options.entity or ""))
            text = json.dumps(view, indent=2, ensure_ascii=False) + "\n"
            if options.json == "-":
                sys.stdout.write(text)
            else:
                Path(options.json).write_text(text, "utf-8")
            return
        try:
            print(_save(options.project, options.entity))
        except RuntimeError as error:
            parser.exit(1, f"gep-dashboard: {error}\n")


def _save(project: str, entity: str | None) -> str:
    """The address of the dashboard on W&B."""
    from lightning_gep.loggers.dashboard import dashboard
    from lightning_gep.loggers.wandb import logged_in, wandb_package

    wandb = wandb_package()
    if not logged_in():
        raise ConfigurationError("Not logged in to W&B. Run `wandb login`, or use --json FILE, which needs no account.")
    try:
        owner = entity or wandb.Api().default_entity
        url = dashboard(project, owner).save().url if owner else ""
    except (wandb.Error, OSError, ValueError) as error:
        raise RuntimeError(f"W&B rejected the dashboard: {error}") from error
    if not owner:
        raise ConfigurationError("The W&B account has no default entity. Add --entity.")
    return url


if __name__ == "__main__":
    main()
