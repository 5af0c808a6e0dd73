"""Where reading begins, for every combination of what the row and the log say."""

from __future__ import annotations

import pytest

from fencepost.outside.consumer.rule import (
    Found,
    Refusal,
    Stored,
    decide,
)

FOUND = Found("new", log_start=10, end=20)


@pytest.mark.parametrize(
    ("stored", "earliest", "latest"),
    [
        (Stored(), 10, 20),
        (Stored("new", None), 10, 20),
        (Stored("new", 9), Refusal.EXPIRED, Refusal.EXPIRED),
        (Stored("new", 10), 10, 10),
        (Stored("new", 15), 15, 15),
        (Stored("new", 20), 20, 20),
        (Stored("new", 21), Refusal.BEYOND_END, Refusal.BEYOND_END),
        # An offset without an id was written by a person, who means it.
        (Stored(None, 9), Refusal.EXPIRED, Refusal.EXPIRED),
        (Stored(None, 15), 15, 15),
        (Stored(None, 21), Refusal.BEYOND_END, Refusal.BEYOND_END),
        # Of another topic, no offset says anything.
        (Stored("old", None), Refusal.RECREATED, Refusal.RECREATED),
        (Stored("old", 9), Refusal.RECREATED, Refusal.RECREATED),
        (Stored("old", 15), Refusal.RECREATED, Refusal.RECREATED),
        (Stored("old", 21), Refusal.RECREATED, Refusal.RECREATED),
    ],
)
def test_a_position_is_used_only_if_it_fits_the_topic(
    stored: Stored, earliest: int | Refusal, latest: int | Refusal
) -> None:
    assert decide(stored, FOUND, "earliest") == earliest
    assert decide(stored, FOUND, "latest") == latest


def test_an_empty_partition_begins_where_it_ends() -> None:
    empty = Found("new", log_start=7, end=7)
    assert decide(Stored(), empty, "earliest") == 7
    assert decide(Stored(), empty, "latest") == 7
    assert decide(Stored("new", 7), empty, "earliest") == 7
