"""Every error message of the package, read from its source: what a user may search for."""

import ast
import html
import re
from pathlib import Path

ERRORS = {
    "BudgetExhaustedError",
    "ConfigurationError",
    "GradientError",
    "LedgerError",
    "MissingDataError",
    "PrivateRecordError",
}
TRAINING = "Trainer, callbacks, optimizer and loaders"
PUBLIC = "Public data and overlap"
MODULE = "Your module"
RESUMING = "Resuming and the ledger"
ARGUMENTS = "Arguments"
COMMANDS = "Commands, reports and loggers"
SECTIONS = {
    "strategy/public_data": PUBLIC,
    "strategy/overlap": PUBLIC,
    "strategy/random_labels": PUBLIC,
    "strategy/checkpoints": RESUMING,
    "strategy/origins": RESUMING,
    "privacy/ledger": RESUMING,
    "privacy/account": RESUMING,
    "strategy/settings": ARGUMENTS,
    "strategy/": TRAINING,
    "gradients/": MODULE,
    "algorithm/": ARGUMENTS,
    "arguments": ARGUMENTS,
    "privacy/card/": COMMANDS,
    "privacy/selection": COMMANDS,
    "privacy/": ARGUMENTS,
    "": COMMANDS,
}
"""The section of a module: by its path, or by the beginning of it. The first that fits counts."""


def messages(package: Path) -> dict[str, list[str]]:
    """The messages by section, each once; … stands for a value that is filled in."""
    trees = {path.relative_to(package): ast.parse(path.read_text("utf-8")) for path in sorted(package.rglob("*.py"))}
    constants = {name: value for tree in trees.values() for name, value in _constants(tree)}
    found: dict[str, dict[str, None]] = {name: {} for name in (TRAINING, PUBLIC, MODULE, RESUMING, ARGUMENTS, COMMANDS)}
    for path, tree in trees.items():
        texts = [_text(call.args[0], constants) for call in ast.walk(tree) if _is_error(call)]
        found[_section(path.with_suffix("").as_posix())].update(dict.fromkeys(filter(_says_something, texts)))
    return {section: list(texts) for section, texts in found.items()}


def _section(place: str) -> str:
    return next(
        section
        for start, section in SECTIONS.items()
        if place == start or (place.startswith(start) and start[-1:] in ("/", ""))
    )


def _says_something(text: str) -> bool:
    """Not the message of another error, raised again."""
    return any(character.isalpha() for character in text)


def _is_error(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ERRORS and bool(node.args)


def _constants(tree: ast.Module) -> list[tuple[str, ast.expr]]:
    """Names in capitals that a module assigns."""
    assigned = [(node.targets[0], node.value) for node in tree.body if isinstance(node, ast.Assign)]
    return [(name.id, value) for name, value in assigned if isinstance(name, ast.Name) and name.id.isupper()]


def _text(node: ast.AST, constants: dict[str, ast.expr]) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part, constants) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return _text(node.value, constants)
    if isinstance(node, ast.Name) and node.id in constants:
        return _text(constants[node.id], constants)
    return "…"


def with_messages(markdown: str, package: Path) -> str:
    """The page with the list of each section in place of its mark."""
    for section, texts in messages(package).items():
        markdown = markdown.replace(f"<!-- messages: {section} -->", "\n".join(f"- {_escaped(text)}" for text in texts))
    return markdown


def _escaped(text: str) -> str:
    """Plain text for Markdown, which knows no escape for < and &."""
    return re.sub(r"([\\`*_\[\]#{}])", r"\\\1", html.escape(" ".join(text.split()), quote=False))
