"""Putting scripts and data into a page so that nothing from disk can run and nothing asks the network."""

import base64
import hashlib
import json
from importlib.resources import files
from typing import Any

from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]


def resource(name: str) -> str:
    """A file of this package."""
    return files("lightning_gep.reporting").joinpath(name).read_text("utf-8")


def json_script(identifier: str, content: Any) -> str:
    """Data that a script reads. Without `<`, `>` and `&` it can neither end its element nor begin another."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return f'<script type="application/json" id="{identifier}">{text}</script>'


class Scripts:
    """The scripts of a page, and a policy that lets the browser run these and no other."""

    def __init__(self) -> None:
        self._hashes: list[str] = []

    def inline(self, source: str) -> str:
        """A script element."""
        # Inside of strings, where alone they occur, these mean the same. A browser hashes line ends as \n.
        source = source.replace("\r\n", "\n").replace("</script", "<\\/script").replace("<!--", "\\x3c!--")
        digest = base64.b64encode(hashlib.sha256(source.encode("utf-8")).digest()).decode("ascii")
        self._hashes.append(f"'sha256-{digest}'")
        return f"<script>{source}</script>"

    def plotly(self) -> str:
        """plotly.js, the whole of it, as the plotly package ships it."""
        return self.inline(get_plotlyjs())

    @property
    def policy(self) -> str:
        """For a Content-Security-Policy: no request to anywhere, no script but those inlined so far."""
        return (
            f"default-src 'none'; script-src {' '.join(self._hashes)}; style-src 'unsafe-inline'; "
            "img-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'"
        )
