"""`gep-plan`: noise, ε and their trade-offs for the settings of gep-train, before any training."""

import argparse
from collections.abc import Sequence

from lightning_gep.cli.commands import check_cli_extra, count, errors_in_a_line, overrides_parser

DESCRIPTION = "The noise and ε of the runs that gep-train would make with the same overrides, before any training."
EXAMPLES = """\
examples:
  gep-plan
      the default job
  gep-plan privacy.epsilon=1,2,4,8 mechanism=gep,gp
      every combination of the values given
  gep-plan privacy.epsilon=null privacy.noise_multiplier=1.3
      the ε of a given noise multiplier
  gep-plan privacy.epsilon=2 data.batch_size=128,256,512 trainer.max_epochs=10,20,40
      the batch size and epochs with the least noise
  gep-plan data=mnist aux=imagenet model=mnist_cnn privacy.epsilon=2 --compare
      which mechanism has the least noise for its signal, on gradients of public records
  gep-plan --records 60000 --parameters 14394 privacy.delta=1e-5 data.batch_size=1000 trainer.max_epochs=50
      a project of your own, without its data and model
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Plan and print; a setting that cannot work is one line on stderr and exit code 2."""
    parser = make_parser()
    options = parser.parse_intermixed_args(arguments)
    if options.compare and (options.records or options.parameters):
        parser.error("--compare differentiates the model on public records: leave out --records, --parameters")
    with errors_in_a_line("gep-plan"):
        check_cli_extra("gep-plan")
        from lightning_gep.cli.plan.run import run  # --help does not wait for Hydra and the accountants

        run(options)


def make_parser() -> argparse.ArgumentParser:
    """The options; everything else on the line is an override."""
    parser = overrides_parser("gep-plan", DESCRIPTION, EXAMPLES)
    add = parser.add_argument
    add("-m", "--multirun", action="store_true", help="accepted as in gep-train, without effect")
    add("--compare", action="store_true", help="compare mechanisms on the gradients of public records")
    add = parser.add_argument_group("a project of your own").add_argument
    add("--records", type=count, metavar="N", help="number of training records: the data is not built")
    add("--parameters", type=count, metavar="P", help="number of trainable parameters: the model is not built")
    return parser


if __name__ == "__main__":
    main()
