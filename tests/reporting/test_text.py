import math

import pytest

from lightning_gep.privacy.rounding import rounded_up
from lightning_gep.reporting.text import duration, listed, memory, percent, sentence, short, spent, with_spread


@pytest.mark.parametrize(
    ("epsilon", "shown"),
    [
        (7.9981, "7.999"),
        (8.0, "8"),
        (1.1, "1.1"),
        (0.0001, "0.001"),
        (2.0000001, "2.001"),
        (120.0, "120"),
        (math.inf, "∞"),
    ],
)
def test_epsilon_is_rounded_up_and_no_further(epsilon, shown):
    assert rounded_up(epsilon) == shown


def test_unknown_values():
    assert (rounded_up(None), percent(None), short(None), duration(None), memory(None)) == ("–",) * 5


def test_epsilon_with_its_target():
    assert spent(7.9981, 8.0) == "7.999 / 8"
    assert spent(7.9981, None) == "7.999"


@pytest.mark.parametrize(
    ("seconds", "shown"), [(9.87, "9.9 s"), (200, "3 min 20 s"), (3600, "1 h 0 min"), (7500, "2 h 5 min")]
)
def test_durations(seconds, shown):
    assert duration(seconds) == shown


def test_other_numbers():
    assert (memory(540.2), memory(1536.0)) == ("540 MB", "1.54 GB")
    assert (short(1e-5), short(0.0001), short(math.inf)) == ("1e-5", "0.0001", "∞")
    assert percent(0.9137) == "91.4 %"
    assert (with_spread(91.25, 0.5, 2), with_spread(91.25, None, 2)) == ("91.25 ± 0.50", "91.25")


def test_lists_and_sentences():
    assert (listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"])) == ("a", "a and b", "a, b and c")
    assert (sentence("one\n two"), sentence("Done."), sentence("")) == ("one two.", "Done.", "")
