"""`gep-train` in a fork of this process: what it needs is imported already, and nothing it changes stays behind."""

import logging
import multiprocessing
import os
import sys
from types import SimpleNamespace

# Imported before the fork, so that no command waits for them.
import lightning_gep.cli.job
import lightning_gep.cli.sweep
import lightning_gep.cli.sweep_cost  # noqa: F401
from lightning_gep.cli.train import main

FORK = multiprocessing.get_context("fork")


def start(words, cwd, **environment):
    """Begins the command in a directory, with its output in `.stdout` and `.stderr` there."""
    process = FORK.Process(target=_command, args=(words, cwd, environment))
    process.start()
    return process


def gep_train(*words, cwd, **environment):
    """Runs the command to its end: its exit code and what it printed."""
    process = start(words, cwd, **environment)
    process.join(600)
    printed = {name: (cwd / f".{name}").read_text("utf-8") for name in ("stdout", "stderr")}
    return SimpleNamespace(returncode=process.exitcode, **printed)


def _command(words, cwd, environment):
    os.chdir(cwd)
    os.environ.update(environment)
    for number, name in ((1, "stdout"), (2, "stderr")):
        with open(f".{name}", "wb") as file:  # noqa: PTH123
            os.dup2(file.fileno(), number)
        setattr(sys, name, os.fdopen(number, "w", encoding="utf-8", buffering=1, closefd=False))
    logging.raiseExceptions = False  # handlers of earlier tests write to streams that are closed
    sys.argv = ["gep-train", *words]
    main()
