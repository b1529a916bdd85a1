"""What mkdocs needs beside the pages in docs/: pages from elsewhere, links that leave docs/, and error messages."""

import json
import posixpath
import re
from pathlib import Path

from messages import with_messages
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
ELSEWHERE = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "recipes/README.md", "benchmarks/README.md")
NOTEBOOKS = "docs/notebooks/*.ipynb"
RESULTS = ("benchmarks/results/*.md", "benchmarks/results/*.svg")
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")


def site_path(path):
    """Where a file of the repository is in the site."""
    return "index.md" if path == "README.md" else path.removeprefix("docs/").replace(".ipynb", ".md")


def source_path(uri):
    """Where a page of the site is in the repository."""
    if uri == "index.md":
        return "README.md"
    if uri.startswith("notebooks/"):
        return f"docs/{uri}".replace(".md", ".ipynb")
    return uri if (ROOT / uri).is_file() else f"docs/{uri}"


def notebook_page(path):
    """A notebook as Markdown: text, code and what it printed."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        parts += (f"```text\n{''.join(output['text']).rstrip()}\n```" for output in cell.get("outputs", ()))
    return "\n\n".join(parts)


def on_config(config):
    """Pages that the navigation does not list come after those about privacy."""
    listed = set(re.findall(r"[\w/.-]+\.md", str(config.nav)))
    others = sorted(page.name for page in Path(config.docs_dir).glob("*.md") if page.name not in listed)
    next(part["Privacy"] for part in config.nav if "Privacy" in part).extend(others)
    return config


def on_files(files, config):
    """Adds the pages that live beside what they describe."""
    found = [path.relative_to(ROOT).as_posix() for pattern in RESULTS for path in sorted(ROOT.glob(pattern))]
    for path in (*ELSEWHERE, *found):
        files.append(File.generated(config, site_path(path), abs_src_path=str(ROOT / path)))
    for notebook in sorted(ROOT.glob(NOTEBOOKS)):
        page = site_path(notebook.relative_to(ROOT).as_posix())
        files.append(File.generated(config, page, content=notebook_page(notebook)))
    return files


def on_page_markdown(markdown, page, config, files):
    """Links to pages of the repository lead to the site; those to source files, which it does not have, are text."""
    here = source_path(page.file.src_uri)
    if page.file.src_uri == "errors.md":
        markdown = with_messages(markdown, ROOT / "lightning_gep")

    def in_site(link):
        image, text, target = link[1], LINK.sub(in_site, link[2]), link[3]
        if "://" in target or target.startswith("#"):
            return link[0]
        path, _, anchor = target.partition("#")
        to = site_path(posixpath.normpath(posixpath.join(posixpath.dirname(here), path)))
        if files.get_file_from_path(to) is None and (ROOT / posixpath.dirname(here) / path).exists():
            return text
        relative = posixpath.relpath(to, posixpath.dirname(page.file.src_uri))
        return f"{image}[{text}]({relative}{'#' * bool(anchor)}{anchor})"

    return LINK.sub(in_site, markdown).replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}")  # figures stay whole
