"""`gep-dashboard`: put the charts of a project on W&B, or write their definition to a file."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from lightning_gep.errors import ConfigurationError


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0, or one line on stderr and 2: not logged in, or something is not installed; 1: W&B said no."""
    asked = _parser().parse_args(arguments)
    try:
        import lightning_gep.loggers.dashboard  # noqa: F401  # says what to install, if that is missing

        if asked.json is not None:
            _write(asked.project, asked.entity or "", asked.json)
            return 0
        return _push(asked.project, asked.entity)
    except ConfigurationError as error:
        return _give_up(str(error), 2)


def _write(project: str, entity: str, target: str) -> None:
    from lightning_gep.loggers.dashboard import dashboard, definition

    text = json.dumps(definition(dashboard(project, entity)), indent=2, ensure_ascii=False) + "\n"
    if target == "-":
        sys.stdout.write(text)
    else:
        Path(target).write_text(text, "utf-8")


def _push(project: str, entity: str | None) -> int:
    from lightning_gep.loggers.dashboard import dashboard
    from lightning_gep.loggers.wandb import logged_in, wandb_package

    wandb = wandb_package()
    if not logged_in():
        return _give_up("not logged in to W&B. Run `wandb login`, or use --json FILE, which needs no account.", 2)
    try:
        owner = entity or wandb.Api().default_entity
        if not owner:
            return _give_up("the W&B account has no default entity. Add --entity.", 2)
        workspace = dashboard(project, owner).save()
    except (wandb.Error, OSError, ValueError) as error:
        return _give_up(f"W&B rejected the dashboard: {error}", 1)
    print(workspace.url)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gep-dashboard", description="Charts of a project's runs, on W&B.")
    parser.add_argument("--project", default="lightning-gep", help="the W&B project (default: %(default)s)")
    parser.add_argument("--entity", help="the user or team it belongs to (default: the account's own)")
    parser.add_argument("--json", metavar="FILE", help="only write the definition, '-' for the terminal; no account")
    return parser


def _give_up(message: str, code: int) -> int:
    print(f"gep-dashboard: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    raise SystemExit(main())
