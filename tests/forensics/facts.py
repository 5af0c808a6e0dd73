"""Facts for judges: what a partition and a coordinator could have told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fencepost.base.ids import TopicPartition
from fencepost.client.admin import (
    ActiveProducer,
    ClusterView,
    PartitionView,
    TopicView,
    TransactionView,
)
from fencepost.client.options import Endpoint
from fencepost.client.survey.asking import Missing
from fencepost.client.survey.partitions import PartitionEnds
from fencepost.forensics.holders import Look, Transaction, judge_holder
from fencepost.forensics.visibility import Visibility

NOW_MS = 1_800_000_000_000
ORDERS = TopicPartition("orders", 0)
SEES_ALL = Visibility(True, "the cluster has no authorizer")
SEES_SOME = Visibility(False, "this user may not describe every transactional id")


def producer(start: int = 10, *, producer_id: int = 7, **changes: Any) -> ActiveProducer:
    """A producer with a transaction open from offset `start`; -1 for none."""
    plain = ActiveProducer(
        producer_id=producer_id,
        producer_epoch=3,
        last_sequence=4,
        last_timestamp_ms=NOW_MS - 2_000,
        coordinator_epoch=0,
        current_txn_start_offset=start,
    )
    return replace(plain, **changes)


def view(state: str = "Ongoing", *partitions: TopicPartition, **changes: Any) -> TransactionView:
    """A coordinator's description, on orders-0 unless told otherwise."""
    plain = TransactionView("refunds", state, 7, 3, 60_000, NOW_MS - 5_000, partitions or (ORDERS,))
    return replace(plain, **changes)


def transaction(described: TransactionView | Missing) -> Transaction:
    name = "refunds" if isinstance(described, Missing) else described.transactional_id
    return Transaction(name, 1, described)


def look(
    producers: list[ActiveProducer] | Missing,
    transactions: dict[int, Transaction] | None = None,
    *,
    partition: TopicPartition = ORDERS,
    ends: PartitionEnds | Missing = PartitionEnds(0, 20, 10),  # noqa: B008 - it is a tuple
    visibility: Visibility | None = SEES_ALL,
    isr: tuple[int, ...] = (1,),
    replicas: tuple[int, ...] = (1,),
) -> Look:
    """A look at one partition."""
    place = PartitionView(partition.partition, 1, 0, replicas, isr)
    topic = TopicView(partition.topic, bytes(16), False, (place,))
    cluster = ClusterView("c", 1, {1: Endpoint("h", 1)}, {partition.topic: topic})
    found = Look(NOW_MS, cluster, {partition: ends}, {partition: producers})
    found.visibility = visibility
    if not isinstance(producers, Missing):
        found.holders = [
            judge_holder(
                partition, each, (transactions or {}).get(each.producer_id), found.visibility
            )
            for each in producers
            if each.current_txn_start_offset >= 0
        ]
    return found
