"""`gep-card`: make a key, sign a privacy card, verify a signed one."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from lightning_gep.cli.commands import errors_in_a_line
from lightning_gep.privacy.card.signing import create_key, sign_card, verify_card


def main(arguments: Sequence[str] | None = None) -> None:
    """Exit code 0, or 2 with a line on stderr: for a card that is not what was signed, too."""
    parser = argparse.ArgumentParser(prog="gep-card", description="Sign privacy cards, and verify signed ones.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("key", help="make a private key, and FILE.pub to hand out").add_argument("key", type=Path)
    for name, what, key in (
        ("sign", "write CARD.sig", "your private key"),
        ("verify", "check CARD.sig", "a .pub file"),
    ):
        command = commands.add_parser(name, help=what)
        command.add_argument("card", type=Path, help="a privacy_card.json")
        command.add_argument("--key", type=Path, required=True, help=key)
    asked = parser.parse_args(arguments)
    with errors_in_a_line("gep-card"):
        if asked.command == "verify":
            verify_card(asked.card, asked.key)
            print(f"gep-card: {asked.card} is unchanged since the owner of {asked.key} signed it.")
        else:
            wrote = create_key(asked.key) if asked.command == "key" else sign_card(asked.card, asked.key)
            print(f"gep-card: wrote {wrote}")


if __name__ == "__main__":
    main()
