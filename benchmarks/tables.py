"""The figures as Markdown: ratios in one run, and how they stand to what we aim at."""

from typing import Any

NAMES = {
    "gradients": "gradients of the batch, alone",
    "gradients_each": "gradients of each record, alone",
    "plain": "plain Lightning",
    "opacus_hooks": "Opacus DP-SGD, hooks",
    "opacus_ghost": "Opacus DP-SGD, ghost clipping",
    "gp": "ours: GP",
    "gp_ghost": "ours: GP, ghost clipping",
    "spectral": "ours: **spectral**",
    "spectral_ghost": "ours: spectral, ghost clipping",
    "bgep": "ours: B-GEP",
    "gep": "ours: **GEP**",
    "gep_auto": "ours: GEP, automatic microbatch",
    "gep_tree": "ours: GEP, the paper's groups",
    "gep_cold": "ours: GEP, cold start on all anchors",
    "paper": "the paper's algorithm, plainly",
}
COMPARED = (
    ("spectral", "gp"),
    ("spectral", "opacus_hooks"),
    ("spectral_ghost", "opacus_ghost"),
    ("gp", "opacus_hooks"),
    ("gp_ghost", "opacus_ghost"),
    ("gep", "opacus_hooks"),
    ("paper", "gep"),
    ("paper", "gep_auto"),
    ("gradients_each", "gradients"),
)
"""Contenders, and what they are compared with."""


def markdown(results: dict[str, Any]) -> str:
    """A table for every setting."""
    machine = results["machine"]
    lines = [
        "# Seconds and memory of a private step",
        "",
        f"{results['date']}; {machine['processor']}, {machine['cores']} cores, {machine['memory_gb']} GB; torch "
        f"{machine['torch']} on {results['threads']} threads, Lightning {machine['lightning']}, Opacus "
        f"{machine['opacus']}. Medians of interleaved repetitions, each in a process of its own; in brackets the "
        "smallest and the largest.",
        "",
    ]
    for name, setting in results["settings"].items():
        lines += [*section(name, setting, results["date"]), ""]
    return "\n".join(lines)


def section(name: str, setting: dict[str, Any], today: str) -> list[str]:
    """One setting's table; contenders that were not measured with the others have their date, and no ratio."""
    table = setting["contenders"]
    together = {contender for contender, figures in table.items() if not dated(figures, today)}

    def ratio(figure: str, of: str, to: str) -> str:
        return f"{table[of][figure]['median'] / table[to][figure]['median']:.2f}" if {of, to} <= together else "–"

    rows = [
        f"| {NAMES[contender]}{dated(figures, today)} | {cell(figures['seconds'], 's', 2)} | "
        f"{ratio('seconds', contender, 'plain')} | {cell(figures['peak_mb'], 'MB', 0)} | "
        f"{figures['growth_mb']['median']:.0f} MB |"
        for contender, figures in table.items()
    ]
    compared = [
        f"| {plainly(of)} | {plainly(to)} | {ratio('seconds', of, to)} | {ratio('peak_mb', of, to)} |"
        for of, to in COMPARED
        if {of, to} <= together
    ]
    lines = [
        f"## {name}: n = {setting['n']}, m = {setting['m']}, k = {setting['k']}, microbatch {setting['microbatch']}",
        "",
        "| | a step | × plain | peak memory | above set-up |",
        "|---|---|---|---|---|",
        *rows,
    ]
    if compared:
        lines += ["", "| | against | time | peak memory |", "|---|---|---|---|", *compared]
    if {"plain", "gep"} <= together:
        limit = setting["limit_seconds"]
        lines += [
            "",
            f"The limit for GEP, plain gradients of its records and its products at {setting['matmul_gflops']:.0f} "
            f"GFLOP/s: {limit:.2f} s. GEP takes {table['gep']['seconds']['median'] / limit:.2f} times that.",
        ]
    return lines


def plainly(contender: str) -> str:
    """A contender's name without emphasis."""
    return NAMES[contender].replace("*", "")


def dated(figures: dict[str, Any], today: str) -> str:
    """The day of figures that are older than the others."""
    date = figures.get("date", today)
    return "" if date == today else f" ({date})"


def cell(figures: dict[str, float], unit: str, digits: int) -> str:
    """A median with its spread."""
    return f"{figures['median']:.{digits}f} {unit} [{figures['min']:.{digits}f}, {figures['max']:.{digits}f}]"
