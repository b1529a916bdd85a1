"""gep-plan from its parsed options to what it prints and writes."""

from argparse import Namespace
from collections.abc import Sequence
from textwrap import fill

from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

from lightning_gep.cli.failures import one_line_errors
from lightning_gep.cli.plan.costs import Row, plan_noise
from lightning_gep.cli.plan.inputs import Sizes, composed_runs, privacy_settings, words
from lightning_gep.privacy.files import write_json
from lightning_gep.privacy.rounding import rounded_up

NOISE = {"noise_per_step": "noise per step", "noise_of_mean": "noise of the mean"}
"""What is better when it is less: its name in a row, and in words."""
RESULTS = {"steps", "ε", "σ", *NOISE.values()}
"""What a table of several runs has beside the values that were given."""


def run(options: Namespace) -> None:
    """Plan every combination of the values given, write the file asked for, and print."""
    console, stderr = Console(), Console(stderr=True)
    sizes, rows = Sizes(options.records, options.parameters), list[Row]()
    runs = composed_runs(options.overrides)
    for config, labels in track(runs, "calibrating", console=stderr, transient=True, disable=not stderr.is_terminal):
        with one_line_errors(words(labels), config):
            rows.append(plan_noise(privacy_settings(config), sizes.of(config), labels))
    print_plans(rows, console)
    if options.compare:
        from lightning_gep.cli.plan.mechanisms import NOTE, compare, mechanism_table  # needs torch and Lightning

        for (config, labels), row in zip(runs, rows, strict=True):
            with one_line_errors(words(labels), config):
                table = mechanism_table(compare(config, row))
            table.title = words(labels) or None
            console.print(table)
        console.print(Text(NOTE, style="dim"))
    if options.json is not None:
        write_json(options.json, {"format": 1, "rows": rows})
        console.print(Text(f"Written: {options.json}"))


def print_plans(rows: Sequence[Row], console: Console) -> None:
    """One plan as a list of names and values; several as lines, below what all of them share. Then how to read them."""
    found = [figures(row) for row in rows]
    if len(rows) == 1:
        table = Table(show_header=False, title="gep-plan", title_justify="left")
        for name, text in found[0].items():
            table.add_row(name, text)
    else:
        mark_least_noise(rows, found)
        columns = [name for name in found[0] if name in RESULTS or name in rows[0]["labels"]]
        shared = {name: text for name, text in found[0].items() if all(each.get(name) == text for each in found)}
        same = ", ".join(f"{name} {text}" for name, text in shared.items() if name not in columns)
        console.print(Text(f"The same for all: {same}.\n", style="dim"))
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 0), pad_edge=False, show_edge=False)
        for name in columns:
            table.add_column(fill(name.replace(".", ". "), 9, break_long_words=False), justify="right", no_wrap=True)
        for each in found:
            cells = [each[name] for name in columns]
            table.add_row(*(Text(cell, style="bold green" if cell.startswith("★") else "") for cell in cells))
    console.print(table)
    for note in notes(rows):
        console.print(Text(note, style="dim"))


def figures(row: Row) -> dict[str, str]:
    """What a plan says, by name in words: the overrides that tell it from others, and its figures."""
    parts = {"₁": "embedding", "₂": "residual"} if row["k"] is not None else {"": "residual"}
    used = {sign: name for sign, name in parts.items() if row[f"clip_{name}"] is not None}
    found = {
        **row["labels"],
        "mechanism": row["mechanism"],
        "training records N": str(row["records"]),
        "parameters p": str(row["parameters"]),
        "batch size": str(row["batch_size"]),
        "epochs": f"{row['epochs']:.4g}",
        "steps": str(row["steps"]),
        "sampling rate q": f"{row['sample_rate']:.3g}",
        "basis vectors k": str(row["k"] or ""),
        "memory of the basis": _megabytes(row["basis_bytes"]),
        "gradient of a record": _megabytes(row["gradient_bytes"]),
        "all-reduced a step": _megabytes(row["reduced_bytes"]),
        "thresholds": ", ".join(f"S{sign} = {row[f'clip_{name}']:g}" for sign, name in used.items()),
        "ε": rounded_up(row["epsilon"]),
        "δ": f"{row['delta']:g}",
        "accountant": row["accountant"],
        "σ": _digits(row["noise_multiplier"]),
        **{f"σ{sign} ({name})": _digits(row[f"sigma_{name}"]) for sign, name in used.items() if sign},
        **{name: _digits(row[key]) for key, name in NOISE.items()},
    }
    return {name: text for name, text in found.items() if text}


def mark_least_noise(rows: Sequence[Row], found: Sequence[dict[str, str]]) -> None:
    """★ at the least noise of each kind; a plan without noise, so without privacy, never has it."""
    for key, name in NOISE.items():
        least = min((row[key] for row in rows if row[key] > 0), default=None)
        for row, each in zip(rows, found, strict=True):
            each[name] = f"★ {each[name]}" if row[key] == least else each[name]


def notes(rows: Sequence[Row]) -> list[str]:
    """How to read these rows."""
    single = sorted({row["mechanism"] for row in rows if row["clip_embedding"] is None})
    gradient = f" ({', '.join(single)}: √p·S·σ/n̄)" if single else ""
    least = " ★ marks the least; --json has all figures." if len(rows) > 1 else ""
    found = [f"Noise per step = √(k(S₁σ₁)² + p(S₂σ₂)²)/n̄{gradient}; of the mean of all steps: that/√steps.{least}"]
    if len({(row["mechanism"], row["k"], row["clip_embedding"], row["clip_residual"]) for row in rows}) > 1:
        found.append(
            "Mechanism, k and thresholds also decide how much of the gradient is clipped, or left out (bgep): there, "
            "less noise is not always better."
        )
    if any(row["noise_multiplier"] == 0 for row in rows):
        found.append("Rows without noise (ε = ∞) are NOT private.")
    elif not all(row["private"] for row in rows):
        found.append("privacy.generator=seeded makes draws repeatable: such a run is NOT private, whatever its ε.")
    return found


def _megabytes(size: float) -> str:
    return f"{size / 1e6:.3g} MB" if size else ""


def _digits(value: float) -> str:
    return f"{value:#.4g}".rstrip(".") if value else "0"
