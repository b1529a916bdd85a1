"""PATE on MNIST, SVHN or CIFAR-10, at the ε of Table 1. Run: python -m recipes.pate --data-directory DIR"""

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from torch import Tensor, nn

from lightning_gep.arguments import positive_integer
from lightning_gep.cli.commands import errors_in_a_line
from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy.card.software import software
from lightning_gep.privacy.files import write_json
from recipes.data.image_sets import PRIVATE
from recipes.data.images import ImageDataModule
from recipes.data.records import drawn_rows, other_rows
from recipes.pate.accounting import budget_for, data_dependent_epsilon, epsilon_of
from recipes.pate.networks import NETWORKS, accuracy, fit, fit_student, votes_of
from recipes.pate.voting import Voting, ask
from recipes.published import EPSILONS, RESULTS

HERE = Path(__file__).resolve().parents[2] / "docs" / "results" / "pate"
PUBLIC_SHARE = 5
"""One in so many test images is public, for queries and to learn from; the student is tested on the others."""
TEACHER_STEPS, STUDENT_STEPS, ROUNDS = 200, 400, 4
SEED = 0


def main(arguments: Sequence[str] | None = None) -> None:
    """Exit code 0, or 2 for a setting that cannot work."""
    parser = argparse.ArgumentParser(prog="python -m recipes.pate", description=__doc__)
    parser.add_argument("--data", choices=sorted(NETWORKS), default="mnist")
    parser.add_argument("--data-directory", type=Path, default=Path("data"), help="docs/data.md says what is there")
    parser.add_argument("--teachers", type=int, default=250, help="each trains on its own part (default: %(default)s)")
    parser.add_argument("--epsilon", type=float, nargs="+", default=list(EPSILONS), help="default: those of Table 1")
    parser.add_argument("--students", type=int, default=3, help="runs of asking and learning (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=HERE, help="where the figures go (default: docs/results/pate)")
    asked = parser.parse_args(arguments)
    with errors_in_a_line(parser.prog):
        run(asked)


def run(asked: argparse.Namespace) -> None:
    """Train the teachers, then a student at each ε; print and write the figures."""
    positive_integer("teachers", asked.teachers, "Each teacher trains on its own part of the records, e.g. 250.")
    positive_integer("students", asked.students, "It is the number of runs at each ε, e.g. 3.")
    delta = RESULTS[PRIVATE[asked.data].title].delta
    budgets = {epsilon: budget_for(_positive(epsilon), delta) for epsilon in asked.epsilon}
    data = ImageDataModule(asked.data, str(asked.data_directory), validation_size=0)
    (images, labels), (test_images, test_labels) = (_tensors(records) for records in data.load())
    if asked.teachers > len(images):
        raise ConfigurationError(f"--teachers {asked.teachers} is above the {len(images)} records. Use fewer.")
    torch.manual_seed(SEED)
    public = drawn_rows(len(test_images), len(test_images) // PUBLIC_SHARE, SEED)
    private = other_rows(len(test_images), public)
    queries, evaluation = test_images[public], (test_images[private], test_labels[private])
    started = time.monotonic()
    votes = votes_of(_teachers(asked, images, labels), queries, data.num_classes)
    majority = float((torch.tensor([int(v.argmax()) for v in votes]) == test_labels[public]).double().mean())
    print(
        f"{asked.teachers} teachers in {time.monotonic() - started:.0f} s; their majority is right for {majority:.1%}."
    )
    voting = Voting(threshold=0.8 * asked.teachers, check_noise=0.6 * asked.teachers, vote_noise=0.16 * asked.teachers)
    rows = []
    for epsilon, budget in budgets.items():
        for _ in range(asked.students):
            answers = ask(votes, voting, budget)
            known = answers.answered
            if not known:
                raise ConfigurationError(f"--epsilon {epsilon:g} pays for no answer. Use more, or more teachers.")
            said = torch.tensor([answers.labels[query] for query in known])
            others = queries[torch.tensor(sorted(set(range(len(queries))) - set(known)))]
            network = NETWORKS[asked.data]()
            student = fit_student(network, queries[known], said, others, steps=STUDENT_STEPS, rounds=ROUNDS)
            rows.append(
                {
                    "target_epsilon": epsilon,
                    "epsilon": epsilon_of(answers.cost(voting), delta),
                    "nonprivate_epsilon_of_these_votes": data_dependent_epsilon(answers, votes, voting, delta),
                    "queries": answers.queries,
                    "answered": len(known),
                    "right_answers": float((said == test_labels[public][known]).double().mean()),
                    "test_accuracy": accuracy(student, *evaluation),
                }
            )
            print(_line(rows[-1]))
    settings: dict[str, Any] = {"data": asked.data, "teachers": asked.teachers, "delta": delta, **asdict(voting)}
    figures = {
        "settings": settings,
        "nonprivate_majority": majority,
        "rows": rows,
        "seconds": round(time.monotonic() - started),
    }
    write_json(asked.output / f"{asked.data}.json", {**figures, "versions": software()})


def _teachers(asked: argparse.Namespace, images: Tensor, labels: Tensor) -> Iterator[nn.Module]:
    """One teacher at a time; which records it gets does not depend on any other record."""
    owner = torch.randint(asked.teachers, (len(images),))
    for teacher in track(range(asked.teachers), description="Teachers"):
        own = (owner == teacher).nonzero().squeeze(1)
        network = NETWORKS[asked.data]()
        steps = TEACHER_STEPS if len(own) else 0  # a teacher may be left without records by chance
        yield fit(network, images[own], labels[own], steps=steps, batch_size=min(64, len(own)), shift=True)


def _tensors(records: Any) -> tuple[Tensor, Tensor]:
    pairs = [records[row] for row in range(len(records))]
    return torch.stack([image for image, _ in pairs]), torch.tensor([int(label) for _, label in pairs])


def _positive(epsilon: float) -> float:
    if not epsilon > 0:
        raise ConfigurationError(f"--epsilon {epsilon:g} must be above 0, e.g. 2.")
    return epsilon


def _line(row: dict[str, Any]) -> str:
    for_these = row["nonprivate_epsilon_of_these_votes"]
    return (
        f"ε = {row['epsilon']:.3f} of {row['target_epsilon']:g} ({for_these:.3f} for these votes, "
        f"which is private itself): {row['answered']} of {row['queries']} queries answered, {row['right_answers']:.1%} "
        f"rightly; student {row['test_accuracy']:.2%}"
    )


if __name__ == "__main__":
    main()
