"""Ranges are read to their end, whatever compaction, retention and moving leaders do."""

from __future__ import annotations

from typing import Any, cast

import pytest

from fencepost.base.failures import FencepostError
from fencepost.base.ids import TopicPartition
from fencepost.client.blocking import Cluster
from fencepost.forensics.logs.partition_reading import Budget, Range, read_range
from tests.forensics.batches import data
from tests.forensics.fake_cluster import FakeCluster

ORDERS = TopicPartition("orders", 0)


def read(cluster: FakeCluster, wanted: Range, budget: Budget | None = None) -> list[int]:
    fetches = read_range(cast(Cluster, cluster), wanted, budget or Budget())
    return [batch.base_offset for fetched in fetches for batch in fetched.batches]


def test_a_range_whose_rest_was_compacted_away_is_whole() -> None:
    cluster = FakeCluster({ORDERS: [data(0, 1), data(1, 1)]}, ends={ORDERS: 50})
    wanted = Range(ORDERS, 0, 50)
    assert read(cluster, wanted) == [0, 1]
    assert wanted.is_whole


def test_a_leader_that_returns_nothing_is_an_error_and_no_endless_loop() -> None:
    cluster = FakeCluster({ORDERS: [data(0, 1)]})
    with pytest.raises(FencepostError, match="returned nothing from offset 1 on"):
        read(cluster, Range(ORDERS, 0, 9))
    assert cluster.fetches < 10


def test_a_leader_that_does_not_answer_at_first_is_asked_again() -> None:
    class Slow(FakeCluster):
        def fetch(self, offsets: Any, **more: Any) -> Any:
            found = super().fetch(offsets, **more)
            return {} if self.fetches % 2 else found

    assert read(Slow({ORDERS: [data(0, 1), data(1, 1)]}), Range(ORDERS, 0, 2)) == [0, 1]


def test_a_budget_is_shared_by_ranges() -> None:
    cluster = FakeCluster({ORDERS: [data(offset, 1) for offset in range(10)]})
    budget = Budget(3 * data(0, 1).size_bytes)
    assert read(cluster, Range(ORDERS, 0, 2), budget) == [0, 1]
    rest = Range(ORDERS, 2, 10)
    assert read(cluster, rest, budget) == [2]
    assert not rest.is_whole
    assert rest.reached == 3
