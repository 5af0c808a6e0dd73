"""Durations and times, as people read and write them."""

from __future__ import annotations

import pytest

from fencepost.cli.units import for_people, moment_for_people, parse_duration


@pytest.mark.parametrize(
    ("duration_ms", "words"),
    [
        (0, "<1 ms"),
        (1, "1 ms"),
        (850, "850 ms"),
        (12_345, "12.3 s"),
        (250_000, "4 min 10 s"),
        (11_100_000, "3 h 5 min"),
        (187_200_000, "2 d 4 h"),
    ],
)
def test_durations_are_printed_in_short_form(duration_ms: int, words: str) -> None:
    assert for_people(duration_ms) == words


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        ("500ms", 500),
        ("10s", 10_000),
        ("5m", 300_000),
        ("2h", 7_200_000),
        ("1.5 s", 1_500),
        ("1d", 86_400_000),
        ("0s", 0),
    ],
)
def test_durations_are_read_with_their_unit(text: str, duration_ms: int) -> None:
    assert parse_duration(text) == duration_ms


@pytest.mark.parametrize(
    "text", ["", "10", "s", "-1s", "10 minutes", "1e3s", "9" * 30 + "h", "nan s"]
)
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="500ms"):
        parse_duration(text)


def test_timestamps_are_printed_to_the_millisecond() -> None:
    assert moment_for_people(1_700_000_000_007) == "2023-11-14 22:13:20.007 UTC"
