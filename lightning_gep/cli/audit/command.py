"""`gep-audit`: lower bounds on the ε of a configuration, measured through real fits, beside the ε it claims.

Exit codes: 0 no bound exceeds its claim, 1 one does, 2 a setting cannot work.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from lightning_gep.cli.commands import check_cli_extra, count, errors_in_a_line, overrides_parser

DESCRIPTION = "Lower bounds on the ε of the runs that gep-train would make with the same overrides, beside the claims."
EXAMPLES = """\
examples:
  gep-audit
      the default job: one release, the composition of the run, and a training with canaries
  gep-audit mechanism=gep,bgep,gp,spectral privacy.epsilon=1,2,8 --parts release,run --html audit.html
      every combination of the values given, without training, and a page with a plot
  gep-audit --parts training --runs 5
      canaries in five trainings
  gep-audit --replay 200
      200 steps on public records, played again with one record more or less: what moves, and by how much
"""
PARTS = ("release", "run", "training")


def main(arguments: Sequence[str] | None = None) -> None:
    """Audit and print; a setting that cannot work is one line on stderr and exit code 2."""
    parser = make_parser()
    options = parser.parse_intermixed_args(arguments)
    with errors_in_a_line("gep-audit"):
        check_cli_extra("gep-audit")
        from lightning_gep.cli.audit.run import run  # --help does not wait for Lightning

        exceeded = run(options)
    if exceeded:
        what = "a lower bound is above the ε that is claimed" if options.replay is None else "more moved than may"
        parser.exit(1, f"gep-audit: {what}.\n")


def make_parser() -> argparse.ArgumentParser:
    """The options; everything else on the line is an override."""
    parser = overrides_parser("gep-audit", DESCRIPTION, EXAMPLES)
    add = parser.add_argument
    add("--parts", type=_parts, default=PARTS, metavar="PART,…", help=f"of {', '.join(PARTS)} (default: all)")
    add("--confidence", type=_share, default=0.95, metavar="C", help="that all bounds hold at once (default: 0.95)")
    add("--accuracy", type=_share, default=0.03, metavar="A", help="of part release (default: 0.03); half takes 4×")
    add("--canaries", type=count, default=500, metavar="M", help="of a training (default: 500)")
    add("--runs", type=count, default=1, metavar="R", help="trainings (default: 1)")
    add("--html", type=Path, metavar="FILE", help="write one page with a plot, which works offline")
    add("--replay", type=count, metavar="N", help="instead, replay N steps with one public record more or less")
    return parser


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number between 0 and 1")
    return value


def _parts(text: str) -> tuple[str, ...]:
    chosen = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    unknown = [part for part in chosen if part not in PARTS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(PARTS)}")
    return chosen


if __name__ == "__main__":
    main()
