"""The picture of a timeline."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from fencepost.forensics.history.timeline import Timeline, build_timeline
from fencepost.forensics.history.timeline_picture import MAX_LANES, draw
from tests.forensics.history.changes import change, committed, history, metadata, seen


def drawn(timeline: Timeline) -> list[str]:
    picture = draw(timeline, lambda at_ms: f"2026-01-01 00:00:{at_ms:06}", lambda ms: f"{ms} ms")
    return [text for text in ET.fromstring(picture).itertext() if text.strip()]


def test_the_picture_shows_lanes_up_to_a_limit_and_says_how_many_are_left_out() -> None:
    opened = metadata("Ongoing", 1_000, start_ms=1_000)
    opened.partitions = {"orders": tuple(range(MAX_LANES + 3))}
    words = drawn(build_timeline(history([change(0, opened)])))
    assert f"orders-{MAX_LANES - 1}" in words
    assert f"orders-{MAX_LANES}" not in words
    assert "3 more partitions are not drawn." in words


def test_the_picture_of_a_long_history_ends_with_its_newest_states() -> None:
    changes = [each for n in range(300) for each in committed(1_000 + 100 * n, 3 * n)]
    words = drawn(build_timeline(history(changes)))
    assert "700 earlier states are not drawn." in words
    assert words.count("CompleteCommit") in (66, 67)


def test_the_picture_shows_an_end_without_a_marker_and_an_open_transaction() -> None:
    words = drawn(build_timeline(history(committed(1_000) + committed(2_000, 3)[:1]), seen()))
    assert "no marker found" in words
    assert "open" in words
