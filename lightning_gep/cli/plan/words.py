"""What the numbers of a plan mean, in sentences."""

from collections.abc import Sequence

from lightning_gep.cli.plan.costs import NoisePlan
from lightning_gep.cli.plan.noise_search import Search


def search_in_words(found: Search) -> list[str]:
    """What was searched, then for both criteria the best, whether it is at an edge, and a cheaper one."""
    first = found.per_step[0]
    plan = first.plan
    others = "".join(f", {key}={value}" for key, value in first.labels.items() if key != "mechanism")
    left_out = f" (left out, with fewer steps: {found.too_short})" if found.too_short else ""
    mean = found.over_run[0]
    return [
        f"{first.mechanism} at ε = {plan.target_epsilon:g}, δ = {plan.delta:g}{others}: {len(found.grid)} candidates"
        f"{left_out} by the RDP bound, the best of them by {plan.accountant}.",
        _best("Least noise per step", first, found.cheapest_per_step, "noise_per_step", found),
        _best("Least noise of the mean over the run", mean, found.cheapest_over_run, "noise_of_mean", found),
    ]


def _best(title: str, best: NoisePlan, cheap: NoisePlan, figure: str, found: Search) -> str:
    line = f"{title}: {_run(best)}, {getattr(best, figure):.4g}{_edge(best, found)}."
    if cheap.records_read < best.records_read:
        share = cheap.records_read / best.records_read
        line += f" With {share:.0%} of the computing: {_run(cheap)}, {getattr(cheap, figure):.4g}."
    return line


def why_a_least_number_of_steps(min_steps: int) -> str:
    """Why noise alone does not choose the number of steps."""
    return (
        "Every larger batch and every shorter run has less noise per step: without a least number of steps the answer "
        "would be one step on all records, which learns nothing. The noise of the mean falls with batch size and "
        "epochs to that same step's noise and then stays there. How many steps a model needs, noise cannot tell: "
        f"--min-steps {min_steps} is a choice of yours."
    )


def notes(plans: Sequence[NoisePlan]) -> list[str]:
    """What a reader has to know about these rows."""
    gradient = " (gp: √p·S·σ/n̄)" if any(plan.mechanism == "gp" for plan in plans) else ""
    found = [f"Noise per step = √(k(S₁σ₁)² + p(S₂σ₂)²)/n̄{gradient}; of the mean over the run: that/√steps."]
    if len(plans) > 1:
        found[0] += " ★ is the least."
    if len({(plan.mechanism, plan.k, *(part.clip for part in plan.release.parts)) for plan in plans}) > 1:
        found.append(
            "Mechanisms, k and thresholds also decide how much of the gradient is clipped, or left out (bgep): "
            "less noise is not always better there."
        )
    if any(plan.plan.event.noise_multiplier == 0 for plan in plans):
        found.append("Rows without noise (ε = ∞) are NOT private.")
    elif not all(plan.private for plan in plans):
        found.append("privacy.generator=seeded can be repeated: such a run is NOT private, whatever its ε.")
    return found


def _run(plan: NoisePlan) -> str:
    return f"batch size {plan.size.expected_batch_size}, {plan.size.epochs:.4g} epochs ({plan.steps} steps)"


def _edge(plan: NoisePlan, found: Search) -> str:
    """Whether more of the same could be better still."""
    sizes = {row.size.batch_size for row in found.grid}
    epochs = {row.size.max_epochs for row in found.grid}
    edges = []
    if len(sizes) > 1 and plan.size.batch_size == max(sizes):
        edges.append("largest batch size")
    if len(epochs) > 1 and plan.size.max_epochs == max(epochs, key=lambda count: count or 0):
        edges.append("most epochs")
    return f" (at the edge of the search: {', '.join(edges)})" if edges else ""
