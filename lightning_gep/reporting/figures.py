"""All plots of a report, in sections. What was not logged is left out, with a word on how to log it."""

from lightning_gep.reporting import accuracy, cost, curves, spending
from lightning_gep.reporting.grouping import Settings
from lightning_gep.reporting.load import Collection
from lightning_gep.reporting.plot import Plot, Section
from lightning_gep.reporting.published import RESULTS

NONPRIVATE_HINT = (
    "Projection error and noise against signal are functions of private records and are not logged. For public data, "
    "or to look at a run that will not be released: privacy.log_nonprivate=true"
)


def sections(collection: Collection) -> list[Section]:
    """Results, training and cost; and apart from them, what is not private."""
    return [_results(collection), _training(collection), _cost(collection), _nonprivate(collection)]


def _results(collection: Collection) -> Section:
    runs, plots, missing = collection.runs, [], []
    names = list(dict.fromkeys(run.data for run in accuracy.scored(runs)))
    several = len(names) > 1
    for index, data in enumerate(names):
        members = [run for run in runs if run.data == data]
        settings = Settings(members)
        suffix = f"-{index}" if several else ""
        label = data if several or data in RESULTS else ""
        plots += [
            accuracy.against_epsilon(members, settings, data, f"accuracy-epsilon{suffix}", label),
            accuracy.against_k(members, settings, label, f"accuracy-k{suffix}"),
        ]
    if not any(plots[::2]):
        missing.append(accuracy.EPSILON_HINT)
    if not any(plots[1::2]):
        missing.append(accuracy.K_HINT)
    return Section("results", "Results", _there(plots), missing)


def _training(collection: Collection) -> Section:
    learning = curves.over_steps(curves.LEARNING, collection.runs, Settings(collection.runs))
    spent = spending.epsilon_over_training(collection.runs)
    missing = [] if learning else [curves.LEARNING_HINT]
    return Section("training", "Training", _there([learning, spent]), missing if spent else [*missing, spending.HINT])


def _cost(collection: Collection) -> Section:
    runs, settings = collection.runs, Settings(collection.runs)
    if collection.single:
        speed = curves.throughput(runs[0])
        plots = [curves.over_steps(speed, runs, settings) if speed else None]
        hint = "Speed over training needs performance/records_per_second, which gep-train logs while it trains."
        return Section("cost", "Time and memory", _there(plots), [] if speed else [hint])
    time, memory = cost.training_time(runs, settings), cost.peak_memory(runs, settings)
    missing = [hint for plot, hint in ((time, cost.TIME_HINT), (memory, cost.MEMORY_HINT)) if plot is None]
    return Section("cost", "Time and memory", _there([time, memory]), missing)


def _nonprivate(collection: Collection) -> Section:
    settings = Settings(collection.runs)
    plots = _there([curves.over_steps(quantity, collection.runs, settings) for quantity in curves.DIAGNOSTICS])
    return Section("nonprivate", "Diagnostics", plots, [] if plots else [NONPRIVATE_HINT], private=False)


def _there(plots: list[Plot | None]) -> list[Plot]:
    return [plot for plot in plots if plot is not None]
