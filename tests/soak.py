"""Long runs under stress, by hand: `python -m tests.soak memory` (an hour) and `python -m tests.soak kills`.

`memory` trains again and again in one process and watches its memory and open files. `kills` trains one run in
processes that are killed at random moments and resumed from the newest checkpoint, and counts what was lost.
"""

import argparse
import csv
import gc
import itertools
import multiprocessing
import os
import random
import resource
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from lightning_gep.privacy.ledger import read
from tests import killed_child
from tests.toys import Classifier, loader, strategy, trainer

SETTINGS = (
    {"mechanism": "gep"},
    {"mechanism": "gep", "clipping": "joint", "generator": "secure"},
    {"mechanism": "bgep", "gradients": "loop"},
    {"mechanism": "gp", "gradients": "hooks", "clip_norm": 1.0},
    {"mechanism": "spectral", "clip_norm": 1.0},
)
WARM_UP = 0.25
"""Share of the fits after which memory has to be flat: caches and the allocator fill up before."""


def one_fit(directory: Path, settings: dict[str, object]) -> None:
    used = strategy(**{"generator": "system", "noise_multiplier": 1.0, **settings})
    workers = {"num_workers": 1} if settings["mechanism"] == "bgep" else {}
    fit = trainer(directory, used, max_epochs=2, enable_checkpointing=True)
    fit.fit(Classifier(), loader(**workers), val_dataloaders=loader(seed=5, shuffle=False))
    assert used.privacy.steps == 10


def resident_megabytes() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def count_of(directory: str) -> int:
    return len(list(Path(directory).iterdir()))


def soak_memory(minutes: float, log: Path) -> int:
    """Fits one after the other in one process; returns 1 if memory or open files grow."""
    start, rows = time.monotonic(), []
    with log.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("seconds", "fits", "megabytes", "open files", "threads"))
        for fits, settings in enumerate(itertools.cycle(SETTINGS), 1):
            with tempfile.TemporaryDirectory(prefix="soak-") as directory:
                one_fit(Path(directory), settings)
            gc.collect()
            seconds, files = time.monotonic() - start, count_of("/proc/self/fd")
            threads = count_of("/proc/self/task")
            rows.append((round(seconds, 1), fits, round(resident_megabytes(), 1), files, threads))
            writer.writerow(rows[-1])
            file.flush()
            if seconds > 60 * minutes:
                break
    steady = rows[int(WARM_UP * len(rows)) :]
    third = max(1, len(steady) // 3)
    first, last = (statistics.median(row[2] for row in part) for part in (steady[:third], steady[-third:]))
    files = {row[3] for row in steady}
    print(f"{len(rows)} fits in {rows[-1][0]:.0f} s: {first:.1f} MB, then {last:.1f} MB; open files {sorted(files)}")
    return int(last > 1.02 * first or len(files) > 1)


# The children are forked from a process that has imported everything and done nothing: a start costs no imports.
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload([killed_child.__name__])


def start_child(directory: Path, kill_at: int = 0, moment: str = "never", checkpoint: Path | None = None):
    if not (directory / "witness").exists():
        (directory / "witness").write_bytes(bytes(8))
    child = SERVER.Process(target=killed_child.train, args=(directory, kill_at, moment, checkpoint))
    child.start()
    return child


def witnessed(directory: Path) -> int:
    """How often noise was drawn, over all processes."""
    return int.from_bytes((directory / "witness").read_bytes(), "little")


def in_ledger(directory: Path) -> int:
    found = list((directory / "privacy").glob("*.ledger"))
    return len(read(found[0]).releases) if found else 0


def newest_checkpoint(directory: Path) -> Path | None:
    return max((directory / "all").glob("step=*.ckpt"), key=os.path.getmtime, default=None)


def steps_in(checkpoint: Path | None) -> int:
    return 0 if checkpoint is None else torch.load(checkpoint, weights_only=True)["global_step"]


@dataclass
class Kills:
    """What a series of kills has done to one run."""

    injected: int = 0
    in_training: int = 0
    """Between the first and the last step of a process."""
    hidden: int = 0
    """After which the ledger had fewer releases than noise was drawn."""
    lost: int = 0
    """After which the newest checkpoint could not be read, or was older than one before."""
    not_resumed: int = 0
    """Processes that ended by themselves, with an error."""


def kill_again_and_again(directory: Path, kills: int, seed: int = 0) -> Kills:
    """Train one run in `kills` processes, each killed at a random moment: one in five perhaps before its first step."""
    chance, counts = random.Random(seed), Kills()
    for attempt in range(kills):
        before = witnessed(directory) if attempt else 0
        checkpoint = newest_checkpoint(directory)
        steps = steps_in(checkpoint)
        child = start_child(directory, checkpoint=checkpoint)
        deadline = time.monotonic() + 120
        # Not before there is something to resume from.
        while (
            child.is_alive()
            and time.monotonic() < deadline
            and ((attempt % 5 and witnessed(directory) == before) or newest_checkpoint(directory) is None)
        ):
            time.sleep(0.002)
        time.sleep(chance.uniform(0, 0.15))
        counts.not_resumed += not child.is_alive() and child.exitcode != 0
        child.kill()
        child.join()
        counts.injected += 1
        counts.in_training += witnessed(directory) > before
        counts.hidden += in_ledger(directory) < witnessed(directory)
        try:
            counts.lost += steps_in(newest_checkpoint(directory)) < steps
        except (OSError, RuntimeError):
            counts.lost += 1
    return counts


def soak_kills(kills: int) -> int:
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        directory, start = Path(name), time.monotonic()
        counts = kill_again_and_again(directory, kills)
        made, drawn, counted = steps_in(newest_checkpoint(directory)), witnessed(directory), in_ledger(directory)
    print(
        f"{counts}\n{made} steps in the newest checkpoint, {drawn} draws of noise, {counted} releases in the ledger; "
    )
    print(f"{time.monotonic() - start:.0f} s")
    return int(counts.hidden + counts.lost + counts.not_resumed > 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("memory", "kills"))
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--log", type=Path, default=Path("soak.csv"))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    return soak_memory(asked.minutes, asked.log) if asked.what == "memory" else soak_kills(asked.kills)


if __name__ == "__main__":
    sys.exit(main())
