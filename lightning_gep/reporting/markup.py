"""HTML from Python. `tag` escapes attributes, `text` escapes content: nothing from disk gets past them."""

from html import escape

VOID = {"br", "input", "wbr"}


def text(content: object) -> str:
    """Content as text, whatever is in it."""
    return escape(str(content))


def tag(name: str, *children: str, **attributes: str | int | bool | None) -> str:
    """An element. Children are HTML already; `class_` and `data_key` are written `class` and `data-key`.

    True is an attribute without a value; None and False leave the attribute out.
    """
    parts = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        written = key.rstrip("_").replace("_", "-")
        parts.append(written if value is True else f'{written}="{escape(str(value))}"')
    opening = f"<{' '.join(parts)}>"
    return opening if name in VOID else f"{opening}{''.join(children)}</{name}>"


def paragraphs(texts: list[str], **attributes: str | None) -> str:
    """A paragraph for each text that is not empty."""
    return "".join(tag("p", text(content), **attributes) for content in texts if content)


def mark(content: str, kind: str = "") -> str:
    """A small label: "good", "warn" or neither."""
    return tag("span", text(content), class_=f"mark {kind}".strip())


NOT_PRIVATE_MARK = mark("not private", "warn")
