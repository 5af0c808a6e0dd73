"""Values of options: what is accepted, and what the error says."""

from __future__ import annotations

import pytest

from fencepost.base.failures import ConfigError
from fencepost.base.options import parse_boolean, parse_fraction, parse_whole, suggest


@pytest.mark.parametrize(("given", "number"), [("5", 5), (" 5 ", 5), ("+5", 5), ("-5", -5), (5, 5)])
def test_whole_numbers_are_parsed(given: object, number: int) -> None:
    assert parse_whole("retries", given, least=-5, most=5) == number


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ("0x10", "a whole number, not '0x10'"),
        ("1_000", "a whole number, not '1_000'"),
        ("5.0", "a whole number, not '5.0'"),
        ("", "a whole number, not ''"),
        ("9" * 40, "a whole number, not '9999"),
        ("-1", "at least 0, not '-1'"),
        (6, "at most 5, not 6"),
    ],
)
def test_the_error_says_what_a_number_must_be(given: object, complaint: str) -> None:
    with pytest.raises(ConfigError, match=f"retries must be {complaint}"):
        parse_whole("retries", given, least=0, most=5)


def test_fractions_and_booleans_are_parsed() -> None:
    assert parse_fraction("ratio", " .5 ") == 0.5
    assert parse_fraction("ratio", "1e-2") == 0.01
    with pytest.raises(ConfigError, match="ratio must be a number, not 'nan'"):
        parse_fraction("ratio", "nan")
    assert parse_boolean("enable", "TRUE") is True
    assert parse_boolean("enable", False) is False
    with pytest.raises(ConfigError, match="enable must be true or false, not 'yes'"):
        parse_boolean("enable", "yes")


def test_the_closest_known_name_is_suggested() -> None:
    known = ("startingOffsets", "endingOffsets")
    assert suggest("startingoffset", known) == "; did you mean startingOffsets?"
    assert suggest("linger.ms", known) == ""


@pytest.mark.parametrize("value", ["1" * 200_000 + "x", "1." * 100_000, "." + "1" * 200_000 + "e"])
def test_no_value_takes_for_ever(value: str) -> None:
    """Clients send such values; the test's timeout would tell."""
    with pytest.raises(ConfigError, match="ratio must be a number"):
        parse_fraction("ratio", value)
