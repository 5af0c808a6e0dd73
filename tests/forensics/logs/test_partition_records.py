"""Fates above the last stable offset."""

from __future__ import annotations

from typing import cast

from fencepost.base.ids import TopicPartition
from fencepost.client.blocking import Cluster
from fencepost.forensics.logs.partition_reading import Budget, Range
from fencepost.forensics.logs.partition_records import read_fates
from fencepost.records.fates import Fate
from tests.forensics.batches import data, marker
from tests.forensics.fake_cluster import FakeCluster

ORDERS = TopicPartition("orders", 0)


def fates_of(cluster: FakeCluster, start: int, end: int, stable: int) -> dict[int, Fate]:
    wanted = Range(ORDERS, start, end)
    log_end = cluster.end(ORDERS)
    judged = read_fates(cast(Cluster, cluster), wanted, 0, stable, log_end, Budget())
    return {each.batch.base_offset: each.fate for each in judged}


def test_above_the_last_stable_offset_markers_decide_and_the_rest_is_open() -> None:
    log = [data(0, 1), data(1, 1, producer=7), marker(2, 2, commit=False, producer=7), data(3, 3)]
    cluster = FakeCluster({ORDERS: log})
    assert fates_of(cluster, 0, 4, stable=0) == {
        0: Fate.OPEN,
        1: Fate.ABORTED,
        2: Fate.CONTROL,
        3: Fate.OPEN,
    }
    # The range ends before the log does: a marker may follow.
    assert fates_of(cluster, 0, 2, stable=0) == {0: Fate.UNKNOWN, 1: Fate.UNKNOWN}
