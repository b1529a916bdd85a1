"""Plants bugs in copies of the package, one in each, and shows that a test fails for every one of them.

python -m tests.planted_bugs          all
python -m tests.planted_bugs 4 17     some, by their numbers

A bug is a small change that breaks the promise of docs/privacy.md, and the tests that have to notice it. They are
listed in planted_bugs.txt.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
NEEDED = ("lightning_gep", "recipes", "tests", "conf", "pyproject.toml")


@dataclass(frozen=True)
class Bug:
    point: int
    """Of the promise, as docs/privacy.md numbers them."""
    why: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def planted(self, source: str) -> str:
        assert source.count(self.old) == 1, f"{self.file} has {source.count(self.old)} times: {self.old}"
        return source.replace(self.old, self.new)


def read_bugs(text: str) -> Iterator[Bug]:
    """Blocks of lines: the point and why, the file, lines that are taken out (-) and put in (+), and the tests."""
    for block in text.strip().split("\n\n"):
        head, file, *lines = block.splitlines()
        point, _, why = head.removeprefix("# ").partition(". ")
        old, new = ("\n".join(line[2:] for line in lines if line.startswith(sign)) for sign in ("- ", "+ "))
        yield Bug(int(point), why, file, old, new, tuple(line for line in lines if not line.startswith(("- ", "+ "))))


BUGS = tuple(read_bugs(Path(__file__).with_suffix(".txt").read_text("utf-8")))


@dataclass(frozen=True)
class Outcome:
    caught_by: str | None
    seconds: float
    output: str


def run_tests(tests: Sequence[str], bug: Bug | None = None) -> Outcome:
    """The tests on a copy of the package, with the bug in it if there is one."""
    with tempfile.TemporaryDirectory(prefix="planted-") as directory:
        for name in NEEDED:
            copy = shutil.copy if (ROOT / name).is_file() else shutil.copytree
            copy(ROOT / name, Path(directory) / name)
        if bug is not None:
            file = Path(directory) / "lightning_gep" / bug.file
            file.write_text(bug.planted(file.read_text()))
        start = time.perf_counter()
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        done = subprocess.run(
            [*command, *(f"tests/{test}" for test in tests)],
            cwd=directory,
            env={**os.environ, "PYTHONPATH": directory},
            capture_output=True,
            text=True,
        )
        seconds = time.perf_counter() - start
    failed = re.search(r"^FAILED tests/(.*?)(?: - |$)", done.stdout, re.MULTILINE)
    if done.returncode not in (0, 1) or (done.returncode == 1 and failed is None):
        raise RuntimeError(f"The tests did not run:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return Outcome(failed[1] if failed else None, seconds, done.stdout)


def table() -> str:
    """The bugs and their tests, as docs/assurance.md has them."""
    rows = [
        f"| {number} | {bug.point} | {bug.why} | {', '.join(f'`{test}`' for test in bug.tests)} |"
        for number, bug in enumerate(BUGS, 1)
    ]
    return "\n".join(["| | point | bug | caught by |", "|---|---|---|---|", *rows])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("numbers", nargs="*", type=int, help="the bugs to plant, from 1; all if none is given")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="how many to try at a time")
    parser.add_argument("--verbose", action="store_true", help="also print how the tests failed")
    parser.add_argument("--list", action="store_true", help="print the table of docs/assurance.md and plant nothing")
    asked = parser.parse_args(arguments)
    if asked.list:
        print(table())
        return 0
    chosen = {number: BUGS[number - 1] for number in asked.numbers or range(1, len(BUGS) + 1)}

    clean = run_tests(list(dict.fromkeys(test for bug in chosen.values() for test in bug.tests)))
    if clean.caught_by is not None:
        print(f"{clean.caught_by} fails without any bug:\n{clean.output[-3000:]}")
        return 2
    print(f"Without a bug all tests pass ({clean.seconds:.0f} s).\n")
    print("| | point | bug | caught by | s |\n|---|---|---|---|---|")
    escaped = 0
    with ThreadPoolExecutor(asked.jobs) as pool:
        outcomes = pool.map(lambda bug: run_tests(bug.tests, bug), chosen.values())
        for (number, bug), outcome in zip(chosen.items(), outcomes, strict=True):
            escaped += outcome.caught_by is None
            caught = f"`{outcome.caught_by}`" if outcome.caught_by else "**NOT CAUGHT**"
            print(f"| {number} | {bug.point} | {bug.why} | {caught} | {outcome.seconds:.0f} |", flush=True)
            if asked.verbose:
                print(outcome.output)
    print(f"\n{len(chosen) - escaped} of {len(chosen)} planted bugs are caught.")
    return 1 if escaped else 0


if __name__ == "__main__":
    sys.exit(main())
