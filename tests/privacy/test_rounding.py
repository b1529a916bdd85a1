"""ε and δ for people: rounded up, never down."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_gep.privacy.rounding import shown_delta, shown_epsilon


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (7.996001, "7.997"), (7.996, "7.996"), (8.0, "8"), (7.99999, "8"), (47.0832, "47.09"), (1234.56, "1235"),
        (0.1, "0.1"), (0.123401, "0.1235"), (0.0, "0"), (1e-9, "1e-9"), (1.23451e-9, "1.235e-9"), (2.5e7, "2.5e7"),
        (123456.0, "123500"), ("inf", "∞"), (float("inf"), "∞"), (None, "–"),
    ],
)  # fmt: skip
def test_epsilon(value, text):
    assert shown_epsilon(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(1e-4, "0.0001"), (1e-5, "1e-5"), (1e-3, "0.001"), (1 / 1257, "0.000795545"), (1.23456789e-7, "1.23457e-7")],
)
def test_delta(value, text):
    assert shown_delta(value) == text


@given(st.floats(1e-12, 1e9))
def test_never_below_the_figure_and_never_far_above(value):
    figure = Decimal(repr(value))
    assert figure <= Decimal(shown_epsilon(value)) <= figure * Decimal("1.0011")
    assert figure <= Decimal(shown_delta(value)) <= figure * Decimal("1.000011")
