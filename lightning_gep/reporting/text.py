"""Numbers formatted for readers. ε is always rounded up, so that a report never promises more than was kept."""

import math

MECHANISMS = {"gep": "GEP", "bgep": "B-GEP", "gp": "GP", "spectral": "Spectral", "pate": "PATE", "none": "No privacy"}
NOTHING = "–"


def percent(share: float | None) -> str:
    """A share between 0 and 1 as a percentage."""
    return NOTHING if share is None else f"{100 * share:.1f} %"


def with_spread(mean: float, deviation: float | None, digits: int = 1) -> str:
    """Mean ± standard deviation, both already in the displayed unit."""
    return f"{mean:.{digits}f}" if deviation is None else f"{mean:.{digits}f} ± {deviation:.{digits}f}"


def short(value: float | None) -> str:
    """A number with at most four digits."""
    return NOTHING if value is None else "∞" if value == math.inf else f"{value:.4g}".replace("e-0", "e-")


def duration(seconds: float | None) -> str:
    """Seconds, minutes or hours."""
    if seconds is None:
        return NOTHING
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{int(seconds) // 60} min {int(seconds) % 60} s"
    return f"{minutes // 60} h {minutes % 60} min"


def memory(megabytes: float | None) -> str:
    """Megabytes or gigabytes."""
    if megabytes is None:
        return NOTHING
    return f"{megabytes:.0f} MB" if megabytes < 1000 else f"{megabytes / 1000:.2f} GB"


def mechanism_name(mechanism: str) -> str:
    """The mechanism as the paper writes it."""
    return MECHANISMS.get(mechanism, mechanism) or NOTHING


def counted(count: int, thing: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def listed(words: list[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def one_line(text: str, longest: int | None = None) -> str:
    """The text without line breaks, cut if it is longer."""
    line = " ".join(text.split())
    return line if longest is None or len(line) <= longest else f"{line[: longest - 1]}…"
