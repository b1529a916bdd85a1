"""All plots of a report in sections. Quantities that were not logged are left out, with a hint how to log them."""

from lightning_gep.reporting import accuracy
from lightning_gep.reporting.curves import DIAGNOSTICS, TRAINING, over_steps
from lightning_gep.reporting.groups import Settings
from lightning_gep.reporting.plots import Plot, Section
from lightning_gep.reporting.published import RESULTS
from lightning_gep.reporting.runs import Collection, Run

NONPRIVATE_HINT = (
    "Projection error and noise-to-signal ratio are computed from private records and are not logged. For public data, "
    "or for a run that will not be released: privacy.log_nonprivate=true"
)


def sections(collection: Collection) -> list[Section]:
    """Results, training, and apart from them the nonprivate diagnostics."""
    runs, settings = collection.runs, Settings(collection.runs)
    training = [(over_steps(quantity, runs, settings), quantity.hint) for quantity in TRAINING]
    diagnostics = [plot for quantity in DIAGNOSTICS if (plot := over_steps(quantity, runs, settings))]
    return [
        Section("results", "Results", _results(runs)),
        Section(
            "training",
            "Training",
            [plot for plot, _ in training if plot],
            [hint for plot, hint in training if plot is None],
        ),
        Section("nonprivate", "Diagnostics", diagnostics, [] if diagnostics else [NONPRIVATE_HINT], private=False),
    ]


def _results(runs: list[Run]) -> list[Plot]:
    """Accuracy against ε and against k, for every dataset."""
    names = list(dict.fromkeys(run.data for run in accuracy.scored(runs)))
    plots = []
    for index, data in enumerate(names):
        members = [run for run in runs if run.data == data]
        settings = Settings(members)
        suffix = f"-{index}" if len(names) > 1 else ""
        label = data if len(names) > 1 or data in RESULTS else ""
        plots.append(accuracy.against_epsilon(members, settings, data, f"accuracy-epsilon{suffix}", label))
        plots.append(accuracy.against_k(members, settings, f"accuracy-k{suffix}", label))
    return [plot for plot in plots if plot]
