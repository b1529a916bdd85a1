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
    """One setting's table; contenders that were not measured today have their date."""
    table, limit = setting["contenders"], setting["limit_seconds"]

    def ratio(figure: str, of: str, to: str) -> float:
        return table[of][figure]["median"] / table[to][figure]["median"]

    rows = [
        f"| {NAMES[contender]}{dated(figures, today)} | {cell(figures['seconds'], 's', 2)} | "
        f"{ratio('seconds', contender, 'plain'):.2f} | {cell(figures['peak_mb'], 'MB', 0)} | "
        f"{figures['growth_mb']['median']:.0f} MB |"
        for contender, figures in table.items()
    ]
    lines = [
        f"## {name}: n = {setting['n']}, m = {setting['m']}, k = {setting['k']}, microbatch {setting['microbatch']}",
        "",
        "| | a step | × plain | peak memory | above set-up |",
        "|---|---|---|---|---|",
        *rows,
    ]
    if not table.keys() >= {"gradients", "gradients_each", "opacus_hooks", "gp", "gep", "gep_auto", "paper"}:
        return lines
    return [
        *lines,
        "",
        "The limit for GEP (plain gradients of its records and its products at "
        f"{setting['matmul_gflops']:.0f} GFLOP/s): {limit:.2f} s; GEP takes "
        f"{table['gep']['seconds']['median'] / limit:.2f} times that. GEP against Opacus' hooks: "
        f"{ratio('seconds', 'gep', 'opacus_hooks'):.2f}; GP against them: {ratio('seconds', 'gp', 'opacus_hooks'):.2f}"
        f"; the paper's algorithm against GEP: {ratio('seconds', 'paper', 'gep'):.1f} in time, "
        f"{ratio('peak_mb', 'paper', 'gep'):.1f} in memory, and {ratio('peak_mb', 'paper', 'gep_auto'):.1f} with the "
        f"automatic microbatch ({ratio('growth_mb', 'paper', 'gep_auto'):.1f} above what the process had before its "
        f"first step). Memory of GEP against Opacus' hooks: {ratio('peak_mb', 'gep', 'opacus_hooks'):.2f}. Gradients "
        f"of each record against those of the batch: {ratio('seconds', 'gradients_each', 'gradients'):.2f}.",
    ]


def dated(figures: dict[str, Any], today: str) -> str:
    """The day of figures that are older than the others."""
    date = figures.get("date", today)
    return "" if date == today else f" ({date})"


def cell(figures: dict[str, float], unit: str, digits: int) -> str:
    """A median with its spread."""
    return f"{figures['median']:.{digits}f} {unit} [{figures['min']:.{digits}f}, {figures['max']:.{digits}f}]"
