"""Long runs under stress, by hand: `python -m tests.soak memory` (an hour) and `python -m tests.soak kills`."""

import argparse
import csv
import gc
import itertools
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("memory",))
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--log", type=Path, default=Path("soak.csv"))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    return soak_memory(asked.minutes, asked.log)


if __name__ == "__main__":
    sys.exit(main())
