"""Finds the transactions and markers of some producers in partitions, around a time.

A partition does not know transactional ids; it has producer ids, epochs, and the time of each
record. `offsetsForTimes` finds the first record that is new enough. Records carry the client's
clock and markers the broker's, so the search begins a little before the wanted time. It has no
upper bound but the budget: it stops at the marker that the caller expects. What lies between two
windows is not read: a transaction may be open for hours and hold gigabytes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from fencepost.base.failures import FencepostError
from fencepost.client.failures import UnknownTopicOrPartition
from fencepost.forensics.logs.partition_reading import (
    Budget,
    Progress,
    Range,
    log_bounds,
    no_progress,
    read_range,
)
from fencepost.records.fates import End, Known, Transaction, TransactionFollower, end_of_marker

if TYPE_CHECKING:
    from fencepost.base.ids import TopicPartition
    from fencepost.client.blocking import Cluster
    from fencepost.client.fetched import FetchedPartition

CLOCK_SLACK_MS: Final = 1_000
"""How far the clocks of a coordinator and a partition's leader may be apart."""


class Window(NamedTuple):
    """A part of a partition to search."""

    from_ms: int
    until_ms: int | None
    """A marker not before this time ends the search; None: to the end of the log."""


@dataclass(frozen=True, slots=True)
class SeenTransaction:
    """A transaction in one partition."""

    transaction: Transaction
    first_at_ms: int
    """The time of its first record that was read, by the client's clock."""


@dataclass(frozen=True, slots=True)
class SeenMarker:
    """A marker in one partition."""

    partition: TopicPartition
    producer_id: int
    end: End
    first_offset: int | None
    """Where its transaction began, as far as it was read; None if no record of it was read."""
    has_start: bool = True
    """Whether `first_offset` is exact, and None means that the partition has no record of it. If
    not, the transaction may have begun before the part that was read."""


@dataclass(slots=True)
class PartitionFacts:
    """What one partition has of some producers."""

    partition: TopicPartition
    transactions: list[SeenTransaction] = field(default_factory=list)
    markers: list[SeenMarker] = field(default_factory=list)
    problem: str | None = None
    """Why it could not be read, or not to its end."""


def find_markers(
    cluster: Cluster,
    producer_ids: Collection[int],
    wanted: Mapping[TopicPartition, Sequence[Window]],
    budget: Budget,
    progress: Progress = no_progress,
) -> list[PartitionFacts]:
    """Reads the windows of each partition; one that cannot be read says why."""
    found = []
    for partition, windows in wanted.items():
        facts = PartitionFacts(partition)
        try:
            _read_windows(cluster, facts, producer_ids, windows, budget, progress)
        except UnknownTopicOrPartition:
            facts.problem = "the topic no longer exists"
        except FencepostError as problem:
            facts.problem = str(problem)
        found.append(facts)
    return found


def _read_windows(
    cluster: Cluster,
    facts: PartitionFacts,
    producer_ids: Collection[int],
    windows: Sequence[Window],
    budget: Budget,
    progress: Progress,
) -> None:
    position, end = log_bounds(cluster, facts.partition)
    follower = TransactionFollower(Known(open_at_start={} if position == 0 else None))
    for window in sorted(windows, key=lambda each: each.from_ms):
        if window.until_ms is not None and _has_marker(facts, window.until_ms):
            continue
        start = _offset_at(cluster, facts.partition, window.from_ms, end)
        if start > position:
            # What lies in between may have ended transactions that the follower has open.
            follower = TransactionFollower(Known())
            position = start
        part = Range(facts.partition, position, end)
        for fetched in read_range(cluster, part, budget, progress=progress):
            _follow(fetched, follower, facts, producer_ids)
            if window.until_ms is not None and _has_marker(facts, window.until_ms):
                break
        position = part.reached
        if budget.is_spent and position < end:
            facts.problem = f"read to offset {position} of {end} only (--max-read)"
            return


def _has_marker(facts: PartitionFacts, at_ms: int) -> bool:
    return any(each.end.at_ms >= at_ms for each in facts.markers)


def _offset_at(cluster: Cluster, partition: TopicPartition, at_ms: int, end: int) -> int:
    """The first offset that is not older; the end if all records are."""
    times = {partition: max(0, at_ms - CLOCK_SLACK_MS)}
    listed = cluster.list_offsets(times, isolation="read_uncommitted")[partition]
    return listed.offset if listed.offset >= 0 else end


def _follow(
    fetched: FetchedPartition,
    follower: TransactionFollower,
    facts: PartitionFacts,
    producer_ids: Collection[int],
) -> None:
    for batch in fetched.batches:
        if not batch.is_transactional or batch.producer_id not in producer_ids:
            continue
        is_new = batch.producer_id not in follower.open
        is_known = follower.knows_all_of(batch.producer_id)
        transaction = follower.follow(batch)
        if batch.is_control:
            end = end_of_marker(batch, transaction)
            if end is not None:
                marker = _seen(facts.partition, batch.producer_id, end, transaction, is_known)
                facts.markers.append(marker)
        elif is_new and transaction is not None:
            facts.transactions.append(SeenTransaction(transaction, batch.base_timestamp))


def _seen(
    partition: TopicPartition,
    producer_id: int,
    end: End,
    transaction: Transaction | None,
    is_known: bool,
) -> SeenMarker:
    if transaction is None:
        return SeenMarker(partition, producer_id, end, None, is_known)
    return SeenMarker(partition, producer_id, end, transaction.first_offset, transaction.has_start)
