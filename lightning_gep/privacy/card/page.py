"""The card as a page for people: what is promised comes first, then what an evaluator would ask."""

import math
from collections.abc import Mapping
from typing import Any

from lightning_gep.privacy.card.headline import NOT_PRIVATE, guaranteed, headline
from lightning_gep.privacy.card.html import Markup, bullets, document, element, facts, section, table, text, topics
from lightning_gep.privacy.rounding import shown, shown_delta, shown_epsilon

Card = Mapping[str, Any]

MECHANISMS = {
    "gep": "Gradient Embedding Perturbation (GEP): embedding and residual of each gradient, clipped, with noise",
    "bgep": "Biased GEP: the embedding of each gradient alone, clipped, with noise",
    "gp": "Gradient perturbation (DP-SGD): each gradient, clipped, with noise",
}
STATUS = {
    "training": "Training goes on, or ended without a word: the figures are those of the last writing",
    "finished": "Training finished",
    "stopped": "Training stopped early, by an error or an interruption",
}


def run_page(card: Card) -> str:
    """The page of a run's card."""
    return document(
        "Privacy card",
        _run_head(card),
        section("Covered", "What may leave under this guarantee?", topics(card["released"])),
        section("Not covered", "What could reveal records all the same?", topics(card["not_covered"]), css="warning"),
        element(
            "div",
            _guarantee(card),
            _mechanism(card),
            _randomness(card["randomness"]),
            _composition(card),
            _selection(card["selection"]),
            _public_data(card["public_data"], card["mechanism"]),
            _utility(card["utility"]),
            _software(card["software"]),
            css="columns",
        ),
        element("footer", f"Run {card['run_id']} · written {card['written']} · card format {card['format']}"),
    )


def sweep_page(card: Card) -> str:
    """The page of a sweep's card."""
    head = ("run", "ε", "δ", "mechanism", "k", "σ", "steps", "state")
    rows = [
        (
            run["job"],
            shown_epsilon(run["epsilon"]),
            shown_delta(run["delta"]),
            run["mechanism"],
            shown(run["k"]),
            shown(run["noise_multiplier"]),
            shown(run["steps"]),
            run["status"],
        )
        for run in card["runs"]
    ]
    return document(
        f"Privacy card of the sweep {card['name']}",
        _head(card, f"Sweep {card['name']}", card["guarantee"]["statement"]),
        element("p", card["share"], css="notice") if card["share"] else "",
        _selection(card["selection"]),
        section("Runs", "What was made on the same records, and at which cost each?", table(head, rows)),
        section("Not covered", "What could reveal records all the same?", topics(card["not_covered"]), css="warning"),
        _software(card["software"]),
        element("footer", f"Written {card['written']} · card format {card['format']}"),
    )


def _run_head(card: Card) -> Markup:
    guarantee, steps, selection = card["guarantee"], card["steps"], card["selection"]
    own, planned = guarantee["epsilon_spent"][guarantee["accountant"]], guarantee["epsilon_planned"]
    in_sweep = selection["rule"] != "single"
    notes = []
    if in_sweep:
        alone = f"Trained alone, without a look at the others, this run would have ε = {shown_epsilon(own)}."
        notes.append(element("p", f"One run of a sweep. {selection['explanation']} {alone}", css="notice"))
    if card["logs"]["left_unprotected"]:
        left = "Values computed from training records left without protection (log_nonprivate): see “Not covered”."
        notes.append(element("p", left, css="notice"))
    numbers = (
        ("ε of this run", shown_epsilon(own)),
        ("ε with selection", shown_epsilon(selection["epsilon"]))
        if in_sweep
        else ("ε planned", shown_epsilon(planned and planned[guarantee["accountant"]])),
        ("δ", shown_delta(guarantee["delta"])),
        ("noise multiplier σ", shown(card["mechanism"]["noise_multiplier"])),
        ("steps", f"{shown(steps['counted'])} of {shown(steps['planned'])}" if steps["planned"] else steps["counted"]),
        ("records", shown(card["sampling"]["records"])),
    )
    tiles = element("div", *(element("p", element("b", value), name) for name, value in numbers), css="numbers")
    ended = guarantee["private"] and card["status"] != "training"
    words = _promise(card) if ended else guarantee["statement"]
    return Markup(_head(card, STATUS[card["status"]], words) + "".join(notes) + tiles)


def _promise(card: Card) -> str:
    """The definition in words, with its factor: at a large ε it is large, and should be seen."""
    epsilon, delta = guaranteed(card)
    if epsilon == "inf":
        return "At least one run of the sweep is not private, so neither is what was picked from it."
    factor = f" = {shown_epsilon(math.exp(float(epsilon)))}" if float(epsilon) < 20 else ""
    return (
        "Whatever is observed of the weights, and of everything computed from them, is at most "
        f"e^ε{factor} times as likely with any one record as without it, or the other way round, up to a probability "
        f"of δ = {shown_delta(delta)}."
    )


def _head(card: Card, state: str, words: str) -> Markup:
    title = headline(card)
    return element(
        "header",
        element("p", "Privacy card", css="kind"),
        element("h1", title),
        element("p", words, css="statement"),
        element("p", state, css="state"),
        css="not-private" if title == NOT_PRIVATE else "private",
    )


def _guarantee(card: Card) -> Markup:
    guarantee = card["guarantee"]
    spent, planned = guarantee["epsilon_spent"], guarantee["epsilon_planned"] or {}
    figures = table(
        ("accountant", "ε spent", "ε planned"),
        [
            (
                f"{name.upper()}{' (this run’s)' if name == guarantee['accountant'] else ''}",
                shown_epsilon(spent[name]),
                shown_epsilon(planned.get(name)),
            )
            for name in spent
        ],
    )
    return section(
        "Guarantee",
        "What is promised, to whom, against whom, and how strongly?",
        facts(
            [
                ("definition", guarantee["definition"]),
                ("unit of privacy", guarantee["unit"]),
                ("neighbours", guarantee["neighbouring_relation"]),
                ("target ε", shown(guarantee["target_epsilon"])),
                ("δ", shown_delta(guarantee["delta"])),
            ]
        ),
        figures,
        element("p", element("b", "Trust. "), _sentence(guarantee["trust_model"])),
    )


def _mechanism(card: Card) -> Markup:
    mechanism = card["mechanism"]
    auto = mechanism["chosen_on_public_data"]
    rows: list[tuple[str, object]] = [("method", MECHANISMS.get(mechanism["name"], mechanism["name"]))]
    for part in ("embedding", "residual"):
        if (values := mechanism[part]) is not None:
            name = "gradient" if mechanism["name"] == "gp" else part
            chosen = " (chosen on public data)" if f"clip_{part}" in auto else ""
            noise = f"σ\u00a0=\u00a0{shown(values['sigma'])}, noise std\u00a0{shown(values['noise_std'])}"
            rows.append((name, f"clipped to {shown(values['clip'])}{chosen}, {noise}"))
    rows += [
        ("together", f"noise multiplier {shown(mechanism['noise_multiplier'])}"),
        ("clipping, split", f"{mechanism['clipping']}, {_split(mechanism['split'])}"),
        ("parameters", shown(mechanism["num_parameters"])),
    ]
    if mechanism["k"] is not None:
        groups = ", ".join(f"{group['name']} {shown(group['k'])}" for group in mechanism["groups"])
        chosen = " (chosen on public data)" if "k" in auto else ""
        rows += [
            ("basis", f"k = {shown(mechanism['k'])}{chosen}: {groups}"),
            (
                "subspace",
                f"{mechanism['subspace']}, from {shown(mechanism['num_anchors'])} public records every "
                + ("step" if mechanism["refresh_every"] == 1 else f"{shown(mechanism['refresh_every'])} steps"),
            ),
        ]
    question = "Which noise is added, and what bounds one record’s influence?"
    return section("Mechanism and sensitivity", question, facts(rows), element("p", mechanism["sensitivity"]))


def _composition(card: Card) -> Markup:
    sampling, steps = card["sampling"], card["steps"]
    return section(
        "Sampling and composition",
        "How often are records used, and how does that add up?",
        facts(
            [
                ("sampling", f"{sampling['method'].title()}, rate {shown(sampling['sample_rate'])}"),
                ("mean batch", f"{shown(sampling['expected_batch_size'])} of {shown(sampling['records'])} records"),
                ("steps counted", shown(steps["counted"])),
                ("steps planned", shown(steps["planned"])),
                ("ledger", element("code", shown(steps["ledger"]))),
            ]
        ),
        element("p", card["guarantee"]["composition"]),
    )


def _selection(selection: Mapping[str, Any]) -> Markup:
    rules = {
        "single": "a single run",
        "composition": "all runs of a list, composed",
        "repeat_and_select": "a random number of runs, the best of them selected",
    }
    rows = [("counted", rules.get(selection["rule"], selection["rule"]))]
    if selection["runs"] is not None:
        rows.append(("runs", shown(selection["runs"])))
    total = f"ε = {shown_epsilon(selection['epsilon'])}, δ = {shown_delta(selection['delta'])}"
    rows.append(("total cost", f"{total} ({selection['accountant'].upper()})"))
    rows.append(("complete", shown(selection["complete"])))
    return section(
        "Cost of selection",
        "Was this the only look at the records?",
        facts(rows),
        element("p", selection["explanation"]),
        bullets(selection.get("conditions", ())) if selection["rule"] != "single" else "",
    )


def _public_data(public: Mapping[str, Any] | None, mechanism: Mapping[str, Any]) -> Markup:
    question = "Which data is taken to be public?"
    if public is None:
        return section("Public data", question, element("p", "No public data was used."))
    hashed = public["sha256"]
    rows = [
        ("records", f"{public['name']}, {shown(public['records'])} records"),
        ("used for", public["used_for"]),
        ("SHA-256", element("code", hashed) if hashed else public["note"]),
        *([("hashed", f"first {shown(public['hashed_records'])}: {public['note']}")] if hashed else []),
        ("compared", f"none of the first {shown(public['compared_records'])} is among {public['compared_with']}"),
        ("chosen on it", ", ".join(mechanism["chosen_on_public_data"]) or "nothing"),
    ]
    return section("Public data", question, facts(rows))


def _randomness(randomness: Mapping[str, Any]) -> Markup:
    rows = [("generator", randomness["generator"]), ("secret", shown(randomness["secret"]))]
    question = "Can anyone repeat or predict the draws?"
    return section("Randomness", question, facts(rows), element("p", randomness["explanation"]))


def _utility(utility: str) -> Markup:
    return section("Utility and bias", "What does privacy cost, and whom?", element("p", _sentence(utility)))


def _software(software: Mapping[str, Any]) -> Markup:
    revision = software["git_revision"]
    changed = " (with changes)" if software["git_dirty"] else ""
    versions = ", ".join(
        f"{name} {value}"
        for name, value in software.items()
        if name not in ("git_revision", "git_dirty", "platform", "device", "processes") and value
    )
    rows = [
        ("versions", versions),
        ("code", Markup(element("code", revision[:12]) + text(changed)) if revision else "not under git"),
        ("machine", ", ".join(str(software[name]) for name in ("platform", "device") if software.get(name))),
    ]
    return section("Software", "With what was it made?", facts(rows))


def _split(value: Any) -> str:
    if value is None:
        return "no split"
    return f"split in the ratio {' : '.join(map(shown, value))}" if isinstance(value, list) else f"{value} split"


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:]
