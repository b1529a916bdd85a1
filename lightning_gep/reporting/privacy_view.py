"""The privacy cards of a report, and what no card covers."""

from lightning_gep.privacy.rounding import rounded_up
from lightning_gep.reporting.card_view import card_html
from lightning_gep.reporting.facts import composition_sentence, not_covered
from lightning_gep.reporting.load import Collection, Run, Sweep
from lightning_gep.reporting.markup import paragraphs, tag, text
from lightning_gep.reporting.text import short

OTHER_CARDS = "The card of every other run opens from its name in the table of runs."
NO_CARD = "The run has no privacy card yet."
NO_SWEEP_CARD = "It is written when the last job has ended."


def privacy_section(collection: Collection, best: Run | None) -> str:
    """The card of the run; or those of the sweeps and of the best run, which are printed too."""
    single = collection.single
    if single is not None:
        parts = [card_html(single.card) if single.card else tag("p", text(f"{NO_CARD} {_so_far(single)}"))]
    else:
        parts = [_sweep_card(sweep, collection) for sweep in collection.sweeps]
        parts += [] if parts else [tag("p", text(composition_sentence(collection.runs)))]
        parts += [_best_card(best), tag("p", OTHER_CARDS, class_="quiet")]
    if not _says_what_is_not_covered(collection):
        items = [tag("li", text(item)) for item in not_covered(collection)]
        parts += [tag("h3", "Not covered by any ε"), tag("ul", *items)]
    return tag("section", tag("h2", "Privacy"), *parts, id="privacy")


def _so_far(run: Run) -> str:
    if run.epsilon is None:
        return "What it has spent is not known."
    return f"It has spent ε = {rounded_up(run.epsilon)} at δ = {short(run.delta)} so far."


def _sweep_card(sweep: Sweep, collection: Collection) -> str:
    several = len(collection.sweeps) > 1
    title = tag("h3", text(f"Privacy card of the sweep {sweep.name}" if several else "Privacy card of the sweep"))
    if sweep.card:
        return title + card_html(sweep.card)
    places = {f"{sweep.place}/{job}".lstrip("/") for job in sweep.jobs}
    runs = [run for run in collection.runs if run.place in places]
    return title + paragraphs([f"{NO_SWEEP_CARD} {composition_sentence(runs)}"])


def _best_card(best: Run | None) -> str:
    if best is None or not best.card:
        return ""
    summary = tag("summary", text(f"Privacy card of the best run, {best.job}"))
    return tag("details", summary, card_html(best.card), data_print=True)


def _says_what_is_not_covered(collection: Collection) -> bool:
    cards = [sweep.card for sweep in collection.sweeps] + ([collection.single.card] if collection.single else [])
    return any(card and card.get("not_covered") for card in cards)
