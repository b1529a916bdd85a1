"""Pieces of a page. Everything that comes in as text is escaped; only what these functions return is markup."""

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

STYLE = Path(__file__).with_name("style.css")


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


def text(value: object) -> Markup:
    """Any value as text of a page."""
    return value if isinstance(value, Markup) else Markup(escape(str(value)))


def element(tag: str, *children: object, css: str = "") -> Markup:
    """An element with its children, in order."""
    attributes = f' class="{escape(css)}"' if css else ""
    return Markup(f"<{tag}{attributes}>{''.join(text(child) for child in children)}</{tag}>")


def facts(rows: Iterable[tuple[str, object]]) -> Markup:
    """A list of names and values."""
    cells = (element("dt", name) + element("dd", value) for name, value in rows)
    return element("dl", Markup("".join(cells)))


def bullets(lines: Iterable[object]) -> Markup:
    """A list of sentences."""
    return element("ul", *(element("li", line) for line in lines))


def topics(lines: Iterable[str]) -> Markup:
    """A list of sentences, with the topic before the first colon set off."""
    return bullets(_with_topic(line) for line in lines)


def table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> Markup:
    """A table with a row of headings."""
    body = [element("tr", *(element("td", cell) for cell in row)) for row in rows]
    return element(
        "div",
        element(
            "table",
            element("thead", element("tr", *(element("th", cell) for cell in head))),
            element("tbody", *body),
        ),
        css="scroll",
    )


def section(title: str, question: str, *content: object, css: str = "") -> Markup:
    """A part of the card, with the question of an evaluator that it answers."""
    return element("section", element("h2", title), element("p", question, css="question"), *content, css=css)


def document(title: str, *body: object) -> str:
    """A whole page that needs nothing but itself: no script, no font, no network."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>\n{STYLE.read_text('utf-8')}</style>\n</head>\n"
        f"<body>\n<main>\n{''.join(f'{text(part)}{chr(10)}' for part in body)}</main>\n</body>\n</html>\n"
    )


def _with_topic(line: str) -> Markup:
    topic, colon, rest = line.partition(": ")
    return Markup(element("b", f"{topic}:") + text(f" {rest}")) if colon else text(line)
