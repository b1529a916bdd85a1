"""HTML pages with everything inside: one stylesheet, plotly.js, and a policy under which nothing else can run.

Templates escape every value. A page makes no network request, so it can be mailed or archived.
"""

import base64
import hashlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from lightning_gep.errors import missing_extra
from lightning_gep.privacy.card.software import version_of
from lightning_gep.privacy.files import now
from lightning_gep.reporting.plots import Plot

TEMPLATES = Path(__file__).parent / "templates"


def page(
    template: str,
    *,
    command: str,
    title: str,
    plots: Sequence[Plot],
    filters: dict[str, Callable[..., Any]] | None = None,
    rounding: str = "Every ε is rounded up.",
    **content: Any,
) -> str:
    """A page from a template that extends `base.html`, with its plots drawn by plotly.js.

    Raises ConfigurationError if plotly is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]
    except ImportError:
        raise missing_extra("report", "An HTML page with plots") from None
    # HTML is escaped automatically; an undefined name is an error.
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(filters or {})
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "allow_nan": False, "separators": (",", ":")}
    scripts = {
        "theme": script(source("theme.js")),
        "plotly": script(get_plotlyjs()),
        "script": script(source("page.js")),
    }
    return environment.get_template(template).render(
        content,
        **scripts,
        policy=policy(scripts.values()),
        css=Markup(source("page.css")),
        plots=plots,
        drawings=[{name: getattr(plot, name) for name in ("key", "traces", "layout", "height")} for plot in plots],
        command=command,
        title=title,
        version=version_of("lightning_gep") or "(not installed)",
        rounding=rounding,
        written=now().replace("T", " ").replace("+00:00", " UTC"),
    )


def source(name: str) -> str:
    """A file of the templates as it is."""
    return (TEMPLATES / name).read_text("utf-8")


def script(text: str) -> Markup:
    """The text of a script element: it cannot end the element early, and line ends are as the browser hashes them."""
    return Markup(text.replace("\r\n", "\n").replace("</script", "<\\/script").replace("<!--", "\\x3c!--"))


def policy(scripts: Iterable[str]) -> str:
    """A Content-Security-Policy that allows these inline scripts and no request to anywhere."""
    digests = [base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii") for text in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'"
    )
