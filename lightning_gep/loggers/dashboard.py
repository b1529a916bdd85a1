"""The W&B dashboard: which charts show a project's runs, built without an account.

Everything that ε does not cover is in a section of its own, whose title says so.
"""

import json
from typing import Any

from lightning_gep.errors import ConfigurationError

try:
    from wandb_workspaces.reports.v2.interface import (
        BarPlot,
        Config,
        LinePlot,
        MarkdownPanel,
        ParallelCoordinatesPlot,
        ParallelCoordinatesPlotColumn,
        ScatterPlot,
        SummaryMetric,
    )
    from wandb_workspaces.workspaces import RunsetSettings, Section, Workspace, WorkspaceSettings
except ImportError:
    raise ConfigurationError(
        "The dashboard needs wandb-workspaces, which is not installed. Run pip install 'lightning-gep[dashboard]'."
    ) from None

STEP, EPSILON, ACCURACY = "trainer/global_step", "privacy/epsilon", "test/accuracy"
MECHANISMS = ("gep", "bgep", "gp")
NOT_COVERED = "NOT covered by ε: computed from private records"
NONPRIVATE = {
    "Training loss": ["nonprivate/train/loss"],
    "Norms, mean over a batch": ["nonprivate/gradient_norm", "nonprivate/residual_norm"],
    "Share of the gradient outside the subspace": ["nonprivate/residual_share", "nonprivate/projection_error"],
    "Stable rank of a batch": ["nonprivate/stable_rank"],
    "Share of records clipped": ["nonprivate/clipped_embeddings", "nonprivate/clipped_residuals"],
}


def dashboard(project: str, entity: str = "", name: str = "Privacy and accuracy") -> Workspace:
    """The workspace for a project, not saved anywhere."""
    return Workspace(
        entity=entity,
        project=project,
        name=name,
        sections=[_accuracy(), _by_mechanism(), _budget(), _performance(), _not_covered()],
        settings=WorkspaceSettings(x_axis=STEP, max_runs=50),
        runset_settings=RunsetSettings(
            pinned_columns=[
                "config:mechanism.value.mechanism",
                "config:mechanism.value.k",
                "config:privacy.value.epsilon",
                f"summary:{EPSILON}",
                f"summary:{ACCURACY}",
            ]
        ),
    )


def definition(workspace: Workspace) -> dict[str, Any]:
    """What would be sent to W&B, as plain data."""
    # The package has no public way to ask for it; `save` sends the same.
    return json.loads(workspace._to_model().model_dump_json(by_alias=True, exclude_none=True))


def _accuracy() -> Section:
    columns = [
        ParallelCoordinatesPlotColumn(Config("mechanism.mechanism"), display_name="mechanism"),
        ParallelCoordinatesPlotColumn(Config("mechanism.k"), display_name="k"),
        ParallelCoordinatesPlotColumn(SummaryMetric(EPSILON), display_name="ε spent"),
        ParallelCoordinatesPlotColumn(SummaryMetric(ACCURACY), display_name="test accuracy"),
    ]
    return _section(
        "Accuracy",
        [
            _scatter("Test accuracy against ε", SummaryMetric(EPSILON), ACCURACY),
            _scatter("Test accuracy against k", Config("mechanism.k"), ACCURACY),
            _lines("Validation accuracy", ["val/accuracy"]),
            ParallelCoordinatesPlot(columns=columns, title="Mechanism, k, ε and test accuracy"),
            BarPlot(
                title="Test accuracy by mechanism, mean over runs",
                metrics=[ACCURACY],
                groupby=Config("mechanism.mechanism"),
                groupby_aggfunc="mean",
                groupby_rangefunc="minmax",
            ),
        ],
    )


def _by_mechanism() -> Section:
    """One chart each: a chart of W&B cannot colour its points by a setting, and shows the runs that have its metric."""
    return _section(
        "Accuracy against ε by mechanism",
        [_scatter(name, SummaryMetric(EPSILON), f"accuracy_of/{name}", (0.0, 1.0)) for name in MECHANISMS],
    )


def _budget() -> Section:
    return _section(
        "Privacy budget",
        [
            _lines("ε spent", [EPSILON]),
            _lines("ε left of the target", ["privacy/remaining_epsilon"]),
            _lines("Noise multiplier", ["privacy/noise_multiplier"]),
        ],
    )


def _performance() -> Section:
    return _section(
        "Throughput and memory",
        [
            _lines("Records per second", ["performance/records_per_second"]),
            _lines("Steps per second", ["performance/steps_per_second"]),
            _lines("Peak memory, MB", ["performance/peak_memory_mb"]),
        ],
    )


def _not_covered() -> Section:
    explanation = MarkdownPanel(
        markdown=f"**{NOT_COVERED}.** Runs log these values only with `privacy.log_nonprivate=true`. They can tell "
        "about single training records: do not publish them with a model whose privacy you vouch for."
    )
    panels = [_lines(f"{title} (not private)", metrics) for title, metrics in NONPRIVATE.items()]
    return _section(NOT_COVERED, [explanation, *panels], is_open=False)


def _section(name: str, panels: list[Any], *, is_open: bool = True) -> Section:
    return Section(name=name, panels=panels, is_open=is_open)


def _scatter(title: str, x: Any, y: str, range_y: tuple[float | None, float | None] = (None, None)) -> Any:
    return ScatterPlot(
        title=title,
        x=x,
        y=SummaryMetric(y),
        range_y=range_y,
        legend_template="${config:mechanism.mechanism} ${run:displayName}",
    )


def _lines(title: str, metrics: list[str]) -> Any:
    return LinePlot(title=title, x=STEP, y=list(metrics))
