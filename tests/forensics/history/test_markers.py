"""Markers are found around their times, without reading what lies in between."""

from __future__ import annotations

from typing import cast

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import TopicPartition
from fencepost.client.blocking import Cluster
from fencepost.forensics.history.markers import PartitionFacts, Window, find_markers
from fencepost.forensics.logs.partition_reading import Budget
from tests.forensics.batches import data, marker
from tests.forensics.fake_cluster import FakeCluster

ORDERS = TopicPartition("orders", 0)


PRODUCER = 40


def search(cluster: FakeCluster, *windows: Window, budget: Budget | None = None) -> PartitionFacts:
    (found,) = find_markers(
        cast(Cluster, cluster), {PRODUCER}, {ORDERS: windows}, budget or Budget()
    )
    return found


HOUR = 3_600_000


def long_log() -> FakeCluster:
    """A transaction of an hour with a thousand batches, and another one a day later."""
    log = [data(offset, 1_000 + offset * 3_600) for offset in range(1_000)]
    log.append(marker(1_000, HOUR + 1_000))
    log += [data(1_001, 24 * HOUR, sequence=0), marker(1_002, 24 * HOUR + 50, commit=False)]
    return FakeCluster({ORDERS: log})


def test_only_the_surroundings_of_each_marker_are_read() -> None:
    cluster = long_log()
    found = search(
        cluster, Window(HOUR + 1_000, HOUR + 1_000), Window(24 * HOUR + 50, 24 * HOUR + 50)
    )
    assert [(each.end.offset, each.end.commit) for each in found.markers] == [
        (1_000, True),
        (1_002, False),
    ]
    assert cluster.fetches < 10
    assert [each.has_start for each in found.markers] == [False, True]
    assert found.problem is None


def test_a_window_to_the_end_reads_all_since_it_began() -> None:
    found = search(long_log(), Window(0, None))
    assert [each.first_offset for each in found.markers] == [0, 1_001]
    assert all(each.has_start for each in found.markers)


def test_markers_of_others_are_left_out() -> None:
    log = [data(0, 1_000), marker(1, 1_500, producer=7), marker(2, 2_000)]
    found = search(FakeCluster({ORDERS: log}), Window(1_000, 2_000))
    assert [each.end.offset for each in found.markers] == [2]


def test_a_budget_ends_the_search_and_says_where() -> None:
    found = search(long_log(), Window(0, None), budget=Budget(1_000))
    assert found.problem is not None
    assert "--max-read" in found.problem


def test_a_marker_that_was_never_written_ends_the_search_at_the_end_of_the_log() -> None:
    cluster = FakeCluster({ORDERS: [data(0, 1_000)]})
    found = search(cluster, Window(1_000, 5_000), Window(9_000, 9_000))
    assert found.markers == []
    assert len(found.transactions) == 1
    assert found.problem is None


def test_a_partition_that_cannot_be_read_says_why() -> None:
    for code, said in (
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no longer exists"),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, "grant"),
    ):
        cluster = FakeCluster({ORDERS: []}, refused={"orders": code})
        assert said in (search(cluster, Window(0, None)).problem or "")
