"""The W&B dashboard: the charts of a project's runs, built without an account.

Everything that ε does not cover is in a section of its own, whose title says so.
"""

import json
from typing import Any

from lightning_gep.errors import missing_extra

try:
    from wandb_workspaces.reports.v2.interface import (
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
    raise missing_extra("dashboard", "The W&B dashboard") from None

STEP, EPSILON, ACCURACY = "trainer/global_step", "privacy/epsilon", "test/accuracy"
MECHANISM, K = Config("mechanism.mechanism"), Config("mechanism.k")
MECHANISMS = ("gep", "bgep", "gp", "spectral")
NOT_COVERED = "NOT covered by ε: computed from private records"
BUDGET = {
    "ε spent": [EPSILON],
    "ε left of the target": ["privacy/remaining_epsilon"],
    "Noise multiplier": ["privacy/noise_multiplier"],
}
PERFORMANCE = {
    "Records per second": ["performance/records_per_second"],
    "Steps per second": ["performance/steps_per_second"],
    "Peak memory, MB": ["performance/peak_memory_mb"],
}
NONPRIVATE = {
    "Training loss": ["nonprivate/train/loss"],
    "Norms, mean over a batch": ["nonprivate/gradient_norm", "nonprivate/residual_norm"],
    "Share of the gradient outside the subspace": ["nonprivate/residual_share", "nonprivate/projection_error"],
    "Stable rank of a batch": ["nonprivate/stable_rank"],
    "Share of records clipped": ["nonprivate/clipped_embeddings", "nonprivate/clipped_residuals"],
}


def dashboard(project: str, entity: str = "") -> Workspace:
    """The workspace for the project of a user or team. It is saved by `dashboard("project", "my-team").save()`."""
    explanation = MarkdownPanel(
        markdown=f"**{NOT_COVERED}.** Runs log these values only with `privacy.log_nonprivate=true`. They can reveal "
        "single training records: do not publish them with a model whose privacy you vouch for."
    )
    nonprivate = {f"{title} (not private)": metrics for title, metrics in NONPRIVATE.items()}
    # One chart per mechanism: W&B cannot color points by a setting, and shows only runs that have the metric.
    by_mechanism = [_scatter(kind, SummaryMetric(EPSILON), f"accuracy_of/{kind}") for kind in MECHANISMS]
    return Workspace(
        entity=entity,
        project=project,
        name="Privacy and accuracy",
        sections=[
            Section(name="Accuracy", panels=_accuracy(), is_open=True),
            Section(name="Accuracy against ε by mechanism", panels=by_mechanism, is_open=True),
            Section(name="Privacy budget", panels=_lines(BUDGET), is_open=True),
            Section(name="Throughput and memory", panels=_lines(PERFORMANCE), is_open=True),
            Section(name=NOT_COVERED, panels=[explanation, *_lines(nonprivate)], is_open=False),
        ],
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
    """What `save` would send to W&B, as plain data."""
    # The package has no public way to get it.
    return json.loads(workspace._to_model().model_dump_json(by_alias=True, exclude_none=True))


def _accuracy() -> list[Any]:
    epsilon, accuracy = SummaryMetric(EPSILON), SummaryMetric(ACCURACY)
    columns: dict[str, Any] = {"mechanism": MECHANISM, "k": K, "ε spent": epsilon, "test accuracy": accuracy}
    return [
        _scatter("Test accuracy against ε", epsilon, ACCURACY),
        _scatter("Test accuracy against k", K, ACCURACY),
        *_lines({"Validation accuracy": ["val/accuracy"]}),
        ParallelCoordinatesPlot(
            title="Mechanism, k, ε and test accuracy",
            columns=[ParallelCoordinatesPlotColumn(value, display_name=name) for name, value in columns.items()],
        ),
    ]


def _scatter(title: str, x: Any, y: str) -> Any:
    legend = "${config:mechanism.mechanism} ${run:displayName}"
    return ScatterPlot(title=title, x=x, y=SummaryMetric(y), legend_template=legend)


def _lines(charts: dict[str, list[str]]) -> list[Any]:
    return [LinePlot(title=title, x=STEP, y=list(metrics)) for title, metrics in charts.items()]
