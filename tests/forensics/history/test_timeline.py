"""The timeline from records and markers by hand."""

from __future__ import annotations

from fencepost.base.ids import TopicPartition
from fencepost.cli.commands.txn.timeline import text_lines
from fencepost.forensics.history.markers import SeenMarker
from fencepost.forensics.history.state_changes import StateChange
from fencepost.forensics.history.timeline import build_timeline, timeline_row
from fencepost.records.fates import End
from tests.forensics.history.changes import (
    ORDERS,
    PRODUCER,
    change,
    committed,
    history,
    marker,
    metadata,
    seen,
    tombstone,
)


def test_a_marker_without_records_says_whether_that_is_certain() -> None:
    for has_start, said in ((True, "nothing was written there"), (False, "marker @5 after 1 ms")):
        bare = SeenMarker(ORDERS, PRODUCER, End(True, 5, 1_011, 0, 0), None, has_start)
        lines = list(text_lines(build_timeline(history(committed(1_000)), seen(bare)), 0, None))
        assert any(line.endswith(said) for line in lines), lines


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
