"""All plots of a report in sections. Quantities that were not logged are left out, with a hint how to log them."""

from lightning_gep.reporting import accuracy, cost, curves
from lightning_gep.reporting.groups import Settings
from lightning_gep.reporting.plots import Plot, Section
from lightning_gep.reporting.published import RESULTS
from lightning_gep.reporting.runs import Collection

SPEED_HINT = "Speed over training needs performance/records_per_second, which gep-train logs while it trains."
NONPRIVATE_HINT = (
    "Projection error and noise-to-signal ratio are computed from private records and are not logged. For public data, "
    "or for a run that will not be released: privacy.log_nonprivate=true"
)


def sections(collection: Collection) -> list[Section]:
    """Results, training, cost, and apart from them the nonprivate diagnostics."""
    runs, settings = collection.runs, Settings(collection.runs)
    if collection.single:
        speed = curves.throughput(runs[0])
        costs = [(curves.over_steps(speed, runs, settings) if speed else None, SPEED_HINT)]
    else:
        time, memory = cost.training_time(runs, settings), cost.peak_memory(runs, settings)
        costs = [(time, cost.TIME_HINT), (memory, cost.MEMORY_HINT)]
    diagnostics = [curves.over_steps(quantity, runs, settings) for quantity in curves.DIAGNOSTICS]
    return [
        _results(collection),
        _section(
            "training",
            "Training",
            [
                (curves.over_steps(curves.LEARNING, runs, settings), curves.LEARNING_HINT),
                (curves.epsilon_over_training(runs), curves.SPENDING_HINT),
            ],
        ),
        _section("cost", "Time and memory", costs),
        Section(
            "nonprivate",
            "Diagnostics",
            [plot for plot in diagnostics if plot],
            [] if any(diagnostics) else [NONPRIVATE_HINT],
            private=False,
        ),
    ]


def _section(key: str, title: str, plots: list[tuple[Plot | None, str]]) -> Section:
    return Section(key, title, [plot for plot, _ in plots if plot], [hint for plot, hint in plots if not plot])


def _results(collection: Collection) -> Section:
    """Accuracy against ε and against k, for every dataset."""
    names = list(dict.fromkeys(run.data for run in accuracy.scored(collection.runs)))
    by_epsilon, by_k = [], []
    for index, data in enumerate(names):
        members = [run for run in collection.runs if run.data == data]
        settings = Settings(members)
        suffix = f"-{index}" if len(names) > 1 else ""
        label = data if len(names) > 1 or data in RESULTS else ""
        by_epsilon.append(accuracy.against_epsilon(members, settings, data, f"accuracy-epsilon{suffix}", label))
        by_k.append(accuracy.against_k(members, settings, f"accuracy-k{suffix}", label))
    plots = [plot for pair in zip(by_epsilon, by_k, strict=True) for plot in pair if plot]
    missing = [] if any(by_epsilon) else [accuracy.EPSILON_HINT]
    return Section("results", "Results", plots, missing if any(by_k) else [*missing, accuracy.K_HINT])
