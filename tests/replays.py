"""Steps of the strategy, replayed with one record more or less, over the module zoo: `python -m tests.replays`.

Prints a table of the largest movement beside the declared sensitivity, for every mechanism and backend.
"""

import argparse
import itertools
import logging
import sys
import time
import warnings
from collections import Counter, defaultdict

import torch
from torch.utils.data import DataLoader

from lightning_gep.audit.replay import ReplayReport, run_replay
from lightning_gep.errors import ConfigurationError
from lightning_gep.gradients.batches import batch_size, joined, take
from tests.gradients_zoo import ZOO, default_dtype

MECHANISMS = {
    "gep, separate": {"mechanism": "gep"},
    "gep, joint": {"mechanism": "gep", "clipping": "joint"},
    "bgep": {"mechanism": "bgep"},
    "gp": {"mechanism": "gp"},
    "spectral": {"mechanism": "spectral"},
}
BACKENDS = ("functional", "loop", "hooks", "ghost")
PRECISIONS = ("32-true", "64-true", "bf16-mixed")
BATCHES = 8


def public_records(name, dtype):
    """A loader of records for a module of the zoo."""
    case = ZOO[name]
    with default_dtype(dtype), torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        batches = [case.batch() for _ in range(BATCHES)]
    everything = joined(batches)
    return DataLoader(range(batch_size(everything)), batch_size=8, collate_fn=lambda which: take(everything, which))


def replayed(name, mechanism, backend, precision, **settings) -> ReplayReport:
    """Replays of one module of the zoo; thresholds around the norms of its gradients, so that some are clipped."""
    dtype = torch.float64 if precision == "64-true" else torch.float32
    module, _ = ZOO[name].build(dtype)
    module.configure_optimizers = lambda: torch.optim.SGD(
        [p for p in module.parameters() if p.requires_grad], lr=0.05, momentum=0.9
    )
    quick = {"k": 6, "num_anchors": 12, "delta": 1e-3, "accountant": "rdp", "microbatch_size": 4}
    clips = {"clip_embedding": 0.5, "clip_residual": 0.3, "clip_norm": 0.5}
    trainer = {"precision": precision, "accelerator": "cpu", **settings.pop("trainer", {})}
    return run_replay(
        module,
        public_records(name, dtype),
        trainer=trainer,
        **{**quick, **clips, "gradients": backend, **MECHANISMS[mechanism], **settings},
    )


def rows_of_table(seen):
    yield "| mechanism | backend | modules | replays | refused | largest ratio | others' gradients | moved |"
    yield "|---|---|---|---|---|---|---|---|"
    for (mechanism, backend), reports in seen.items():
        counts = [len(reports), sum(r.replays for r in reports), sum(r.refused for r in reports)]
        largest, others = (max(getattr(r, name) for r in reports) for name in ("largest", "others"))
        moved = sum((r.moved for r in reports), Counter())
        cells = (mechanism, backend, *counts, f"{largest:.6f}", f"{others:.1e}", dict(moved) or "nothing")
        yield f"| {' | '.join(map(str, cells))} |"


def combinations_of(modules, every_mechanism):
    """Every module with every backend; mechanisms and precisions take turns."""
    for i, j in itertools.product(range(len(modules)), range(len(BACKENDS))):
        for k in range(len(MECHANISMS)) if every_mechanism else [i + j]:
            mechanism = list(MECHANISMS)[k % len(MECHANISMS)]
            yield modules[i], mechanism, BACKENDS[j], PRECISIONS[(i + j + k + i // 5) % len(PRECISIONS)]


def main(arguments=None):
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--replays", type=int, default=12_000, help="about how many, over all modules")
    parser.add_argument("--modules", nargs="*", default=list(ZOO), help="names in the zoo; all if none is given")
    parser.add_argument("--all", action="store_true", help="every mechanism on every module, not one in turn")
    asked = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    combinations = list(combinations_of(asked.modules, every_mechanism=asked.all))
    each = -(-asked.replays // len(combinations))
    seen, not_possible, start = defaultdict(list), [], time.monotonic()
    for number, (name, mechanism, backend, precision) in enumerate(combinations):
        try:
            report = replayed(name, mechanism, backend, precision, replays=each, steps=2, seed=number)
        except ConfigurationError as error:
            not_possible.append((name, backend, str(error)))
            continue
        seen[mechanism, backend].append(report)
        if not report.held:
            print(f"{name}, {mechanism}, {backend}, {precision}:\n{report}", file=sys.stderr, flush=True)
    print(*rows_of_table(seen), sep="\n")
    reports = [report for group in seen.values() for report in group]
    print(
        f"\n{sum(r.replays for r in reports)} replays in {len(reports)} fits, {time.monotonic() - start:.0f} s; "
        f"largest ratio {max(r.largest for r in reports):.6f}; {len(not_possible)} combinations refused."
    )
    for name, backend, reason in not_possible:
        print(name, backend, reason[:150], sep=": ", file=sys.stderr)
    return int(not all(report.held for report in reports))


if __name__ == "__main__":
    sys.exit(main())
