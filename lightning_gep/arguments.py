"""Checks of single arguments, so that every bad value is reported in the same words."""

import math
import re
from collections.abc import Iterable

from lightning_gep.errors import ConfigurationError


def finite_positive(name: str, value: float, fix: str) -> float:
    """`value` as a float, if it is a number above 0 and below infinity."""
    return _number(name, value, fix, lowest_excluded=0.0, finite=True)


def positive(name: str, value: float, fix: str) -> float:
    """`value` as a float, if it is a number above 0; infinity is allowed."""
    return _number(name, value, fix, lowest_excluded=0.0, finite=False)


def not_negative(name: str, value: float, fix: str) -> float:
    """`value` as a float, if it is a finite number that is at least 0."""
    return _number(name, value, fix, lowest_excluded=-math.ulp(0.0), finite=True)


def share(name: str, value: float, fix: str) -> float:
    """`value` as a float, if it is a number from 0 to below 1."""
    usable = isinstance(value, int | float) and not isinstance(value, bool)
    if not usable or not 0 <= value < 1:
        raise ConfigurationError(f"{name} must be at least 0 and below 1, but it is {value!r}. {fix}", setting=name)
    return float(value)


def positive_integer(name: str, value: int, fix: str) -> int:
    """`value` as an int, if it is a whole number above 0."""
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise ConfigurationError(f"{name} must be a whole number above 0, but it is {value!r}. {fix}", setting=name)
    return value


def whole_number(name: str, value: int, fix: str = "Use 0.") -> int:
    """`value` as an int, if it is a whole number that is 0 or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ConfigurationError(
            f"{name} must be a whole number that is 0 or more, but it is {value!r}. {fix}", setting=name
        )
    return value


def boolean(name: str, value: bool) -> bool:
    """`value`, if it is a boolean. A string such as "no" from a command line would count as true."""
    if not isinstance(value, bool):
        raise ConfigurationError(f"{name} must be true or false, but it is {value!r}. Use false.", setting=name)
    return value


def one_of(name: str, value: str, choices: Iterable[str]) -> str:
    """`value`, if it is one of `choices`."""
    choices = tuple(choices)
    if value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise ConfigurationError(f"{name}={value!r} is not known. Choose one of {listed}.", setting=name)
    return value


def _number(name: str, value: float, fix: str, *, lowest_excluded: float, finite: bool) -> float:
    usable = isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
    if not usable or value <= lowest_excluded or (finite and math.isinf(value)):
        bound = "above 0" if lowest_excluded == 0.0 else "0 or more"
        kind = "a finite number" if finite else "a number"
        raise ConfigurationError(f"{name} must be {kind} {bound}, but it is {value!r}. {fix}", setting=name)
    return float(value)


def quoted(text: str) -> str:
    """The text as one value on Hydra's command line; a backslash is special only before a quote."""
    escaped = re.sub(r"(\\*)('|$)", lambda found: 2 * found[1] + ("\\'" if found[2] else ""), text)
    return f"'{escaped}'"
