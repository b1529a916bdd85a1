"""Directories as gep-train leaves them, without training: runs over mechanism, k, ε and seed in every state.

The numbers are made up, but hang together: noise and ε belong to the plan of 150 steps on 1257 records, and accuracy
grows with ε.
"""

import copy
import csv
import functools
import itertools
import math
import random

from lightning_gep.privacy.card.sweep import sweep_card as sweep_card_of
from lightning_gep.privacy.files import write_json
from tests.cards import SOFTWARE, a_card

STEPS, RATE, DELTA = 150, 256 / 1257, 1e-4
NOISE = {1.0: 8.0645, 2.0: 4.4636, 4.0: 2.5562, 8.0: 1.5517}
"""The step's σ for a target ε."""


def epsilon_after(steps, target):
    """Close to what the accountant would say."""
    return round(target * 0.9998 * (steps / STEPS) ** 0.55, 6) if steps else 0.0


def accuracy_of(mechanism, k, epsilon, seed):
    """A believable test accuracy, always the same for the same run."""
    reached = {"gep": 0.93, "bgep": 0.86, "gp": 0.88}[mechanism] - 0.22 / (1 + min(epsilon, 20))
    reached += 0.0 if k is None else 0.012 * math.log2(k / 100)
    return round(reached + random.Random(f"{mechanism}{k}{epsilon}{seed}").gauss(0, 0.008), 4)


def write_run(
    directory,
    *,
    mechanism="gep",
    k=100,
    epsilon=8.0,
    seed=0,
    status="finished",
    private=True,
    nonprivate=False,
    error=None,
    data="recipes.data.digits.DigitsDataModule",
    job=None,
    overrides=None,
    metrics=None,
    card=True,
    step=None,
):
    """One run's directory; `epsilon=inf` is a run without noise."""
    directory.mkdir(parents=True, exist_ok=True)
    k = None if mechanism == "gp" else k
    step = STEPS if step is None and status == "finished" else 60 if step is None else step
    test = accuracy_of(mechanism, k, epsilon, seed)
    table = _table(step, epsilon, test, mechanism, nonprivate, seed)
    newest = {}
    for row in table:
        newest.update({name: value for name, value in row.items() if not name.startswith("nonprivate/")})
    newest = {name: value for name, value in newest.items() if name not in ("step", "epoch")}
    if status == "finished":
        newest["test/accuracy"] = test
    newest.update(metrics or {})
    spent = epsilon_after(step, epsilon)
    target = None if math.isinf(epsilon) else epsilon
    report = {
        "private": private and not math.isinf(epsilon),
        "epsilon": str(math.inf) if not private or math.isinf(spent) else spent,
        "accounted_epsilon": "inf" if math.isinf(spent) else spent,
        "delta": DELTA,
        "target_epsilon": target,
        "remaining_epsilon": None if target is None else target - spent,
        "steps": step,
        "planned_steps": STEPS,
        "noise_multiplier": NOISE.get(epsilon, 0.0),
        "sample_rate": RATE,
        "accountant": "pld",
    }
    record = {
        "job": directory.name if job is None else job,
        "status": status,
        "overrides": directory.name.split(",") if overrides is None else overrides,
        "config": _config(mechanism, k, target, seed, data),
        "attempts": 1,
        "started": "2025-03-01T10:00:00+00:00",
        "updated": "2025-03-01T10:01:00+00:00",
        "seconds": round({"gep": 24.0, "bgep": 19.0, "gp": 11.0}[mechanism] * step / STEPS * (1 + seed / 40), 2),
        "step": step,
        "planned_steps": STEPS,
        "metrics": newest,
        "privacy": report if step else None,
        "error": error,
    }
    write_json(directory / "run.json", record)
    _write_table(directory / "metrics" / "metrics.csv", table)
    if card and step:
        state = "finished" if status == "finished" else "training"
        write_json(directory / "checkpoints" / "privacy_card.json", run_card(report, mechanism, k, state))
    return directory


def write_sweep(
    directory,
    *,
    mechanisms=("gep", "gp"),
    ks=(100,),
    epsilons=(2.0, 4.0, 8.0),
    seeds=(0, 1, 2),
    states=None,
    name="digits sweep",
    card=True,
    **settings,
):
    """A sweep over everything listed; `states` gives the first jobs another state than finished.

    "waiting" jobs have no directory. The sweep has a card only if all jobs have ended. Returns the names of the jobs.
    """
    jobs, states = {}, dict(enumerate(states or []))
    for mechanism, epsilon, seed in itertools.product(mechanisms, epsilons, seeds):
        for k in (None,) if mechanism == "gp" else ks:
            size = "" if k is None else f"mechanism.k={k},"
            job = f"mechanism={mechanism},{size}privacy.epsilon={epsilon:g},seed={seed}"
            jobs[job] = {"mechanism": mechanism, "k": k, "epsilon": epsilon, "seed": seed}
    directory.mkdir(parents=True, exist_ok=True)
    for index, (job, options) in enumerate(jobs.items()):
        state = states.get(index, "finished")
        if state != "waiting":
            error = "RuntimeError: out of memory" if state == "failed" else None
            write_run(directory / job, **options, status=state, error=error, **settings)
    record = {
        "name": name,
        "jobs": list(jobs),
        "overrides": [],
        "selection": "grid",
        "repetitions": None,
        "started": "2025-03-01T10:00:00+00:00",
    }
    write_json(directory / "sweep.json", record)
    if card and not {"waiting", "running"} & set(states.values()):
        write_json(directory / "privacy_card.json", sweep_card(len(jobs), sum(job["epsilon"] for job in jobs.values())))
    return list(jobs)


@functools.cache  # the accountants take a second
def _real_card(status, private):
    return a_card(status=status, generator="system" if private else "seeded")


def run_card(report, mechanism, k, status):
    """A real card with the figures of a made-up account."""
    spent, private = report["epsilon"], report["private"]
    card = copy.deepcopy(_real_card(status, private))
    parts = {"embedding": None} if mechanism == "gp" else {"residual": None} if mechanism == "bgep" else {}
    card["guarantee"] |= {"delta": DELTA, "accountant": "pld", "epsilon_spent": {"pld": spent}, "private": private}
    card["mechanism"] |= {**parts, "name": mechanism, "noise_multiplier": report["noise_multiplier"], "k": k}
    card["selection"] |= {"epsilon": spent, "delta": DELTA}
    card["steps"] |= {"counted": report["steps"], "planned": STEPS}
    return {**card, "not_covered": [*card["not_covered"][:1], "values logged as nonprivate/…"]}


def sweep_card(runs, epsilon):
    """A real card of a sweep with a made-up total."""
    together = f"The {runs} runs compose: ε = {0.8 * epsilon:g}, δ = 0.0018."
    total = {"runs": runs, "rule": "composition", "epsilon": 0.8 * epsilon, "delta": 0.0018, "accountant": "pld"}
    card = sweep_card_of("digits sweep", {}, {**total, "explanation": together, "complete": True}, SOFTWARE)
    card["guarantee"]["statement"] = f"All {runs} models together are ({0.8 * epsilon:g}, 0.0018)-DP."
    return {**card, "not_covered": ["validation and test records, and choices made by looking at them"]}


def _config(mechanism, k, epsilon, seed, data):
    size = {} if k is None else {"k": k}
    return {
        "seed": seed,
        "data": {"_target_": data, "batch_size": 256},
        "mechanism": {"_target_": "lightning_gep.strategy.strategy.GEPStrategy", "mechanism": mechanism, **size},
        "privacy": {"epsilon": epsilon, "delta": DELTA, "accountant": "pld"},
        "trainer": {"max_epochs": 30},
    }


def _table(steps, epsilon, test, mechanism, nonprivate, seed):
    """The rows that CSVLogger writes: training values every fifth step, validation every tenth."""
    draw = random.Random(f"{mechanism}{epsilon}{seed}")
    rows = []
    for step in range(4, steps, 5):
        spent = epsilon_after(step + 1, epsilon)
        row = {
            "step": step,
            "epoch": step // 5,
            "privacy/epsilon": spent,
            "privacy/steps": step + 1,
            "privacy/delta": DELTA,
            "performance/steps_per_second": round(6 + draw.random(), 3),
            "performance/records_per_second": round(1536 + 200 * draw.random(), 1),
            "performance/peak_memory_mb": {"gep": 820, "bgep": 700, "gp": 540}[mechanism] + 8 * seed,
        }
        if nonprivate:
            share = (step + 1) / STEPS
            row["nonprivate/projection_error"] = round(0.35 + 0.25 * share + 0.02 * draw.random(), 4)
            row["nonprivate/noise_to_signal"] = round((0.4 + 2 * share) * 8 / min(epsilon, 80) + 0.1 * draw.random(), 4)
            row["nonprivate/gradient_norm"] = round(2.5 - share + 0.1 * draw.random(), 4)
            row["nonprivate/train/loss"] = round(2.3 * math.exp(-2 * share) + 0.05 * draw.random(), 4)
        rows.append(row)
        if step % 10 == 9:
            reached = test - 0.01 - (test - 0.1) * math.exp(-5 * (step + 1) / STEPS) + 0.006 * draw.random()
            rows.append({"step": step, "epoch": step // 5, "val/accuracy": round(reached, 4), "val/loss": 0.5})
    return rows


def _write_table(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)
