"""The timeline from records and markers by hand."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from fencepost.base.ids import TopicPartition
from fencepost.cli.commands.txn.timeline import text_lines
from fencepost.forensics.history.markers import PartitionFacts, SeenMarker
from fencepost.forensics.history.state_changes import StateChange
from fencepost.forensics.history.timeline import Timeline, build_timeline, timeline_row
from fencepost.forensics.history.timeline_picture import MAX_LANES, draw
from fencepost.forensics.history.torn import find_torn
from fencepost.records.fates import End
from tests.forensics.changes import PRODUCER, change, history, metadata, tombstone

ORDERS = TopicPartition("orders", 0)


def marker(
    at_ms: int, *, commit: bool, epoch: int = 0, offset: int = 5, partition: TopicPartition = ORDERS
) -> SeenMarker:
    return SeenMarker(partition, PRODUCER, End(commit, offset, at_ms, 0, epoch), 0)


def test_a_marker_without_records_says_whether_that_is_certain() -> None:
    for has_start, said in ((True, "nothing was written there"), (False, "marker @5 after 1 ms")):
        bare = SeenMarker(ORDERS, PRODUCER, End(True, 5, 1_011, 0, 0), None, has_start)
        lines = list(text_lines(build_timeline(history(committed(1_000)), seen(bare)), 0, None))
        assert any(line.endswith(said) for line in lines), lines


def seen(*markers: SeenMarker, problem: str | None = None) -> list[PartitionFacts]:
    return [PartitionFacts(ORDERS, markers=list(markers), problem=problem)]


def committed(start_ms: int, offset: int = 0) -> list[StateChange]:
    """A TV1 transaction: the epoch stays."""
    return [
        change(offset, metadata("Ongoing", start_ms, start_ms=start_ms, tv=0)),
        change(offset + 1, metadata("PrepareCommit", start_ms + 10, start_ms=start_ms, tv=0)),
        change(offset + 2, metadata("CompleteCommit", start_ms + 12, start_ms=start_ms, tv=0)),
    ]


def test_each_marker_goes_to_the_last_end_before_it() -> None:
    changes = committed(1_000) + committed(1_020, 3) + committed(1_040, 6)
    markers = [marker(1_011 + 20 * n, commit=True, offset=n) for n in range(3)]
    found = build_timeline(history(changes), seen(*markers))
    assert [[each.end.offset for each in step.markers] for step in found.steps[1::3]] == [
        [0],
        [1],
        [2],
    ]
    assert found.strays == []


def test_a_marker_by_a_clock_that_is_behind_still_finds_its_end() -> None:
    found = build_timeline(history(committed(1_000)), seen(marker(700, commit=True)))
    assert found.strays == []


def test_a_marker_of_another_outcome_epoch_or_partition_is_a_stray() -> None:
    strangers = [
        marker(1_011, commit=False),
        marker(1_011, commit=True, epoch=1),
        marker(1_011, commit=True, partition=TopicPartition("else", 0)),
    ]
    found = build_timeline(history(committed(1_000)), seen(*strangers))
    assert len(found.strays) == 3
    assert found.steps[1].missing == ("orders-0",)


def test_a_marker_that_was_not_looked_for_is_not_called_missing() -> None:
    for facts in ([], seen(problem="read to offset 3 of 900 only (--max-read)")):
        found = build_timeline(history(committed(1_000)), facts)
        assert found.steps[1].missing == ()


def test_partitions_are_shown_where_they_join() -> None:
    first = metadata("Ongoing", 1_000, start_ms=1_000)
    second = metadata("Ongoing", 1_005, start_ms=1_000)
    second.partitions = {"orders": (0, 1)}
    found = build_timeline(history([change(0, first), change(1, second)]))
    assert [step.added for step in found.steps] == [("orders-0",), ("orders-1",)]


def test_gaps_new_producer_ids_and_moved_coordinators_are_noted() -> None:
    changes = [
        change(0, metadata("Ongoing", 1_000)),
        change(9, metadata("Empty", 9_000, 3)),
        change(10, metadata("Empty", 9_500, 0, producer=77, previous=PRODUCER), 4),
        StateChange(11, 9_600, 4, None, "version 8 of the schema"),
        tombstone(12, 9_700),
    ]
    notes = [step.notes for step in build_timeline(history(changes)).steps]
    assert notes[1] == ("records before this one were compacted away",)
    assert notes[2] == (
        "the coordinator moved (epoch 0 to 4)",
        f"a new producer id, after {PRODUCER}",
    )
    assert "version 8" in notes[3][0]


def test_a_row_for_json_says_whether_the_history_is_complete() -> None:
    row = timeline_row(build_timeline(history(committed(1_000))))
    assert not row["is_complete"]
    assert "what came before offset 0" in row["lost"]
    whole = [change(0, metadata("Empty", 900)), *committed(1_000, 1)]
    assert timeline_row(build_timeline(history(whole)))["is_complete"]


# -- torn transactions ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "torn"),
    [
        (committed(1_000), True),
        (committed(1_000)[:1], True),
        ([], False),
        (committed(2_000), False),
    ],
    ids=["committed later", "open still", "nothing", "began later"],
)
def test_an_abort_marker_inside_a_transaction_that_was_not_aborted_tears_it(
    changes: list[StateChange], torn: bool
) -> None:
    assert (find_torn(changes, [marker(1_005, commit=False)]) is not None) == torn


def test_an_empty_marker_tears_nothing() -> None:
    """The partition had no record of the transaction: the marker aborted nothing."""
    empty = SeenMarker(ORDERS, PRODUCER, End(False, 5, 1_005, 0, 0), None)
    assert find_torn(committed(1_000), [empty]) is None


# -- the picture ----------------------------------------------------------------------------------


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
