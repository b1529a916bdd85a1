"""Numbers for people. ε and δ are rounded up, so that no text promises more than holds."""

import math
from decimal import ROUND_CEILING, Context, Decimal

Figure = float | str | None
"""A figure as a card holds it: a number, "inf", or None where it was not computed."""


def figure(value: float) -> float | str:
    """A number as a card holds it; JSON has no infinity."""
    return "inf" if math.isinf(value) else value


def rounded_up(epsilon: float | None, digits: int = 3) -> str:
    """ε with at most `digits` decimals, rounded up, for tables; ∞ without a bound, a dash for None."""
    if epsilon is None:
        return "–"
    if math.isinf(epsilon):
        return "∞"
    # In decimal: in binary 1000·1.1 exceeds 1100, which would show a target that was kept as exceeded.
    value = Decimal(repr(float(epsilon))).quantize(Decimal(1).scaleb(-digits), ROUND_CEILING)
    return f"{value.normalize():f}"


def shown_epsilon(epsilon: Figure, digits: int = 4) -> str:
    """ε to four digits, rounded up; ∞ without a bound, a dash for None."""
    if epsilon is None:
        return "–"
    if math.isinf(value := float(epsilon)):
        return "∞"
    rounded = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(repr(value)).normalize()
    if rounded == 0 or Decimal("1e-4") <= rounded < Decimal("1e6"):
        return f"{rounded:f}"
    mantissa, exponent = f"{rounded:e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def shown_delta(delta: Figure) -> str:
    """δ to six digits, rounded up."""
    return shown_epsilon(delta, digits=6)


def shown(value: object) -> str:
    """Any other value: numbers to six digits, a dash for None."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value in ("inf", math.inf):
        return "∞"
    if isinstance(value, int) and abs(value) >= 10_000:
        return f"{value:,}".replace(",", "\u202f")
    return f"{value:.6g}" if isinstance(value, float) else str(value)
