"""Plans as one HTML page: three plots and a table, in one file that needs no network."""

import html
import json
import math
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from lightning_gep.cli.plan.costs import NoisePlan
from lightning_gep.cli.plan.output import (
    Column,
    columns,
    common_values,
    constant_columns,
    is_least,
    notes,
    search_in_words,
    values_of,
)
from lightning_gep.cli.plan.search import Search, Tick

MOST_CURVES, MOST_BARS = 8, 16
DASHES = {"gep": "solid", "bgep": "dot", "gp": "dash"}
SYMBOLS = {"gep": "circle", "bgep": "diamond", "gp": "square"}
LATER = (
    "sampling rate q",
    "basis vectors k",
    "σ of a step",
    "σ₁ (embedding)",
    "σ₂ (residual)",
    "embedding : residual",
)
"""Columns that stand behind those of the noise, where a narrow screen shows them last."""

Trace = dict[str, Any]
"""A trace of plotly.js; its `colour` is the number of a colour of the page, which depends on light and dark."""


def write_page(path: Path, plans: Sequence[NoisePlan], searches: Sequence[Search], tick: Tick) -> None:
    """Write the page of these plans; for searches, everything that was searched is in the first plot."""
    tick("ε over the run", 0, MOST_CURVES)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(plans, searches, tick), "utf-8")


def page(plans: Sequence[NoisePlan], searches: Sequence[Search], tick: Tick) -> str:
    """The page as text."""
    plotly = import_module("plotly.offline")  # not with the others: only this page needs it

    searched = [row for found in searches for row in found.grid]
    charts = {
        "noise": noise_by_batch_size(searched or plans, plans if searched else []),
        "epsilon": epsilon_over_steps(plans, tick),
        "split": split_of_noise(plans),
    }
    words = [line for found in searches for line in search_in_words(found)] + notes(plans)
    return TEMPLATE.format(
        style=STYLE,
        common=html.escape(common_values(plans) if len(plans) > 1 else ""),
        words="\n".join(f"<p>{html.escape(line)}</p>" for line in words),
        noise_caption=html.escape(_noise_caption(searched)),
        curves_caption=html.escape(_caption(len(charts["epsilon"]), len(_curves(plans)), "curves")),
        split_caption=html.escape(_caption(min(len(plans), MOST_BARS), len(plans), "rows")),
        table=_table(plans),
        charts=json.dumps(charts, ensure_ascii=False).replace("</", "<\\/"),
        plotly=plotly.get_plotlyjs(),
        script=SCRIPT,
    )


def noise_by_batch_size(plans: Sequence[NoisePlan], marked: Sequence[NoisePlan] = ()) -> list[Trace]:
    """Noise per step over batch size, a line for each mechanism and number of epochs; `marked` as stars over them."""
    plans = [plan for plan in plans if plan.noise_per_step > 0]
    groups: dict[tuple[str, ...], list[NoisePlan]] = {}
    for plan in plans:
        groups.setdefault(_series(plan), []).append(plan)
    epochs = sorted({plan.size.epochs for plan in plans})
    traces = []
    for series, rows in groups.items():
        rows = sorted(rows, key=lambda plan: plan.size.expected_batch_size)
        first = rows[0]
        traces.append(
            {
                **_points(rows),
                "name": ", ".join(series),
                "mode": "lines+markers",
                "colour": epochs.index(first.size.epochs),
                "line": {"dash": DASHES[first.mechanism], "width": 2},
                "marker": {"symbol": SYMBOLS[first.mechanism], "size": 8},
            }
        )
    if marked:
        star = {"symbol": "star", "size": 13}
        traces.append({**_points(marked), "name": "calibrated", "mode": "markers", "colour": -1, "marker": star})
    return traces


def epsilon_over_steps(plans: Sequence[NoisePlan], tick: Tick) -> list[Trace]:
    """ε over the steps of a run, once for all plans that share it: it does not depend on the mechanism."""
    traces = []
    curves = list(_curves(plans).values())[:MOST_CURVES]
    for number, plan in enumerate(curves):
        tick("ε over the run", number, len(curves))
        points = [(0, 0.0), *plan.epsilon_over_steps()]
        noise = f"σ {plan.plan.event.noise_multiplier:.3g}"
        traces.append(
            {
                "type": "scatter",
                "x": [steps for steps, _ in points],
                "y": [epsilon for _, epsilon in points],
                "name": f"batch {plan.size.expected_batch_size}, {plan.size.epochs:.4g} epochs, {noise}",
                "mode": "lines",
                "colour": number,
                "line": {"width": 2},
                "hovertemplate": "step %{x}: ε %{y:.3f}<extra></extra>",
            }
        )
    return traces


def split_of_noise(plans: Sequence[NoisePlan]) -> list[Trace]:
    """A bar as long as the noise per step for each plan, parted by energy; GP's gradient counts as residual."""
    shown = [plan for plan in plans if plan.noise_per_step > 0][:MOST_BARS]
    shares = {"embedding": [plan.embedding_share for plan in shown]}
    shares["residual (gp: gradient)"] = [1 - share for share in shares["embedding"]]
    return [
        {
            "type": "bar",
            "orientation": "h",
            "y": [_short_name(plan, number) for number, plan in enumerate(shown)],
            "x": [share * plan.noise_per_step for share, plan in zip(values, shown, strict=True)],
            "text": [f"{share:.0%}" for share in values],
            "textposition": "none",
            "name": name,
            "colour": colour,
            "hovertemplate": "%{text} of the noise energy<extra></extra>",
        }
        for colour, (name, values) in enumerate(shares.items())
    ]


def _points(plans: Sequence[NoisePlan]) -> Trace:
    return {
        "type": "scatter",
        "x": [plan.size.expected_batch_size for plan in plans],
        "y": [plan.noise_per_step for plan in plans],
        "text": [f"{plan.mechanism}, {plan.size.epochs:.4g} epochs, {plan.steps} steps" for plan in plans],
        "hovertemplate": "%{text}<br>batch %{x}: noise %{y:.4g}<extra></extra>",
    }


def _series(plan: NoisePlan) -> tuple[str, ...]:
    """What a line has in common."""
    hidden = ("mechanism", "data.batch_size", "trainer.max_epochs")
    others = [f"{key.rpartition('.')[2]} {value}" for key, value in plan.labels.items() if key not in hidden]
    return (plan.mechanism, f"{plan.size.epochs:.4g} epochs", *others)


def _short_name(plan: NoisePlan, number: int) -> str:
    """A name for an axis; the number keeps plans of the same name apart, in invisible characters."""
    others = "".join(f" {part}" for part in _series(plan)[2:])
    return f"{plan.mechanism} {plan.size.expected_batch_size} × {plan.steps}{others}" + "\u200b" * number


def _curves(plans: Sequence[NoisePlan]) -> dict[Any, NoisePlan]:
    finite = [plan for plan in plans if math.isfinite(plan.epsilon)]
    found: dict[Any, NoisePlan] = {}
    for plan in finite:
        # GEP's σ comes from its two parts, so it is not that of GP to the last bit.
        event = plan.plan.sample_rate, f"{plan.plan.event.noise_multiplier:.9g}"
        found.setdefault((*event, plan.plan.delta, plan.plan.accountant, plan.steps), plan)
    return found


def _noise_caption(searched: Sequence[NoisePlan]) -> str:
    if not searched:
        return "In the gradient's units; both axes are logarithmic."
    return (
        "Lines: everything searched, by the RDP bound. Stars: calibrated by the accountant. Both axes are logarithmic."
    )


def _caption(shown: int, total: int, what: str) -> str:
    return f"The first {shown} of {total} {what}." if shown < total else ""


def _table(plans: Sequence[NoisePlan]) -> str:
    """Several plans as rows, noise first, without what the head of the page says; one plan as a list."""
    if len(plans) == 1:
        values = values_of(plans[0]).items()
        rows = "\n".join(f"<tr><td>{html.escape(name)}</td><td>{html.escape(text)}</td></tr>" for name, text in values)
        return f"<table><tbody>{rows}</tbody></table>"
    constant = {column.name for column in constant_columns(plans)}
    shown = [column for column in columns(plans) if column.name not in constant]
    shown.sort(key=lambda column: column.name in LATER)
    head = "".join(f"<th>{html.escape(column.name)}</th>" for column in shown)
    rows = "\n".join("<tr>" + "".join(_cell(plan, column, plans) for column in shown) + "</tr>" for plan in plans)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _cell(plan: NoisePlan, column: Column, plans: Sequence[NoisePlan]) -> str:
    text = html.escape(column.text(plan))
    return f'<td class="least">★ {text}</td>' if is_least(plan, column, plans) else f"<td>{text}</td>"


STYLE = """
:root { color-scheme: light dark; --page: #fff; --text: #1c2024; --soft: #5b6570; --line: #dfe3e8; --good: #15803d;
  --c0: #0b6fb8; --c1: #c2410c; --c2: #15803d; --c3: #7c3aed; --c4: #a16207; --c5: #be185d; --c6: #0e7490;
  --c7: #4b5563; }
@media (prefers-color-scheme: dark) { :root { --page: #14171a; --text: #e6e9ec; --soft: #9aa5b1; --line: #333a41;
  --good: #4ade80; --c0: #58b2f4; --c1: #fb923c; --c2: #4ade80; --c3: #b794f6; --c4: #facc15; --c5: #f472b6;
  --c6: #22d3ee; --c7: #cbd5e1; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 60rem; padding: 1.5rem 1rem 3rem; background: var(--page); color: var(--text);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; }
h2 { font-size: 1.1rem; margin: 2rem 0 .25rem; }
p { margin: .4rem 0; overflow-wrap: anywhere; }
.soft { color: var(--soft); font-size: .9rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; width: 100%; }
th, td { padding: .35rem .6rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th { color: var(--soft); font-weight: 600; white-space: normal; vertical-align: bottom; min-width: 4.2rem; }
th:first-child, td:first-child { text-align: left; }
.least { color: var(--good); font-weight: 600; }
"""

SCRIPT = """
const charts = JSON.parse(document.getElementById('data').textContent);
const value = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const colour = number => number < 0 ? value('--text') : value('--c' + number % 8);
const sizes = [...new Set(charts.noise.flatMap(trace => trace.x))].sort((a, b) => a - b);

function traces(list) {
  return list.map(({colour: number, ...trace}) => ({...trace,
    line: {...trace.line, color: colour(number)}, marker: {...trace.marker, color: colour(number)}}));
}
function axis(title, more) {
  return {title: {text: title, standoff: 8}, gridcolor: value('--line'), linecolor: value('--line'),
    zerolinecolor: value('--line'), automargin: true, ...more};
}
function draw(id, xaxis, yaxis, height, more) {
  const list = charts[id], box = document.getElementById(id);
  if (!list.length || !list[0].x.length) { box.textContent = 'Nothing to show: no row has noise.'; return; }
  const across = Math.max(1, Math.floor(box.clientWidth / 230)), legend = Math.ceil(list.length / across) * 21;
  const below = 64 + legend;
  Plotly.react(box, traces(list), {xaxis, yaxis, height: height + below, showlegend: true,
    margin: {l: 8, r: 12, t: 12, b: below}, paper_bgcolor: 'rgba(0,0,0,0)', plot_bgcolor: 'rgba(0,0,0,0)',
    font: {family: 'system-ui, sans-serif', size: 13, color: value('--text')},
    legend: {orientation: 'h', traceorder: 'normal', x: 0, y: -62 / height, yanchor: 'top', yref: 'paper'}, ...more},
    {responsive: true, displayModeBar: false});
}
function drawAll() {
  const log = {type: 'log', tickvals: sizes, ticktext: sizes.map(String), tickangle: 'auto'};
  draw('noise', axis('expected batch size', log),
    axis('noise per step', {type: 'log', tickformat: '.3~g', nticks: 6}), 340);
  draw('epsilon', axis('steps', {rangemode: 'tozero'}), axis('ε', {rangemode: 'tozero'}), 320);
  draw('split', axis('noise per step', {rangemode: 'tozero', nticks: 6}), axis('', {autorange: 'reversed'}),
    60 + 30 * charts.split[0].x.length, {barmode: 'stack', bargap: 0.3});
}
drawAll();
document.documentElement.dataset.plots = 'drawn';
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', drawAll);
addEventListener('resize', drawAll);
"""

TEMPLATE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>gep-plan</title>
<style>{style}</style>
</head>
<body>
<h1>Noise before training</h1>
<p class="soft">{common}</p>
{words}
<h2>Noise per step, by batch size</h2>
<p class="soft">{noise_caption}</p>
<div id="noise"></div>
<h2>ε over the steps of a run</h2>
<p class="soft">As the run will report it, rounded up. The mechanism does not matter here. {curves_caption}</p>
<div id="epsilon"></div>
<h2>Noise of embedding and residual</h2>
<p class="soft">The bar is the noise per step; its colours part its energy. Rows: mechanism, batch size × steps.
{split_caption}</p>
<div id="split"></div>
<h2>All rows</h2>
<div class="wide">{table}</div>
<script type="application/json" id="data">{charts}</script>
<script>{plotly}</script>
<script>{script}</script>
</body>
</html>
"""
