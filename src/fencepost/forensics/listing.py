"""Transactional ids and producers as coordinators, partitions and the transaction log show them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from fencepost.base.ids import NO_NODE, TopicPartition
from fencepost.client.failures import ClientError
from fencepost.client.moves import find_coordinator
from fencepost.client.survey.asking import Missing
from fencepost.client.survey.coordinators import describe_listed, transactions_of
from fencepost.client.survey.partitions import PartitionEnds, partition_ends, producers_of
from fencepost.client.transactions import coordinator_of
from fencepost.forensics.figures import Figure, estimated, unknown
from fencepost.forensics.history.transaction_log import NoTransactionLogError, read_history
from fencepost.forensics.holders import (
    OPEN_STATES,
    Transaction,
    look_at_transactions,
    now_ms,
    partitions_of,
)
from fencepost.forensics.pins import DEFAULT_REAPER_PERIOD_MS, reaper_periods

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from fencepost.client.admin import ActiveProducer, ListedTransaction, TransactionView
    from fencepost.client.blocking import Cluster
    from fencepost.records.transaction_log import TransactionMetadata

Key = TypeVar("Key")

_CLOCKS = "coordinator, here"
_SOURCE = "DescribeTransactions"


@dataclass(frozen=True, slots=True)
class Listed:
    """The ids that match, each with its description, and the brokers that did not answer."""

    transactions: list[tuple[ListedTransaction, TransactionView | None]]
    missing: Mapping[int, str]
    taken_at_ms: int


def list_ids(
    cluster: Cluster,
    *,
    states: Collection[str],
    producer_ids: Collection[int],
    longer_than_ms: int,
    pattern: str | None,
) -> Listed:
    """Lists and describes the ids of all coordinators that answer, in the order of the ids."""
    listed, missing = cluster.run(
        transactions_of(
            cluster.core,
            states=states,
            producer_ids=producer_ids,
            longer_than_ms=longer_than_ms,
            pattern=pattern,
        )
    )
    views = cluster.run(describe_listed(cluster.core, listed))
    found = [
        (each, None if isinstance(view, Missing) else view)
        for each in sorted(listed, key=lambda one: one.transactional_id)
        for view in (views.get(each.transactional_id),)
    ]
    if longer_than_ms >= 0:
        # The broker counts from the last transaction, or from 1970 if there was none.
        found = [(each, view) for each, view in found if view is None or _is_open(view)]
    return Listed(found, _reasons(missing), now_ms())


def _is_open(view: TransactionView) -> bool:
    return view.state in OPEN_STATES and view.start_ms >= 0


def age_of(view: TransactionView | None, at_ms: int) -> Figure | None:
    """Returns how long the id's transaction has been open; None if none is."""
    if view is None:
        return unknown("its coordinator did not describe it")
    if not _is_open(view):
        return None
    return estimated(max(0, at_ms - view.start_ms), _SOURCE, _CLOCKS)


# One id.


@dataclass(frozen=True, slots=True)
class Description:
    """One id, as its coordinator and the transaction log have it."""

    view: TransactionView | None
    coordinator: int | None
    logged: TransactionMetadata | None
    log_partition: TopicPartition | None
    log_offset: int | None
    log_problem: str | None
    """Why the log could not be read."""
    reaper_period_ms: int
    taken_at_ms: int

    def times_out_in(self) -> tuple[Figure, Figure] | None:
        """In how long its timeout ends it, at least and at most; None if it is not Ongoing."""
        view = self.view
        if view is None or view.state != "Ongoing" or view.start_ms < 0:
            return None
        left_ms = view.start_ms + view.timeout_ms - self.taken_at_ms
        return (
            estimated(max(0, left_ms), _SOURCE, _CLOCKS),
            estimated(max(0, left_ms) + self.reaper_period_ms, _SOURCE, _CLOCKS),
        )


def describe_id(cluster: Cluster, transactional_id: str) -> Description:
    """Describes one id from its coordinator and, as far as it can be read, from the log."""
    view = cluster.describe_transactions([transactional_id])[transactional_id]
    coordinator = cluster.run(find_coordinator(cluster.core, coordinator_of(transactional_id)))
    periods = reaper_periods(cluster, {coordinator})
    logged, place, offset, problem = _find_record(cluster, transactional_id)
    return Description(
        view,
        coordinator if coordinator != NO_NODE else None,
        logged,
        place,
        offset,
        problem,
        periods.get(coordinator, DEFAULT_REAPER_PERIOD_MS),
        now_ms(),
    )


def _find_record(
    cluster: Cluster, transactional_id: str
) -> tuple[TransactionMetadata | None, TopicPartition | None, int | None, str | None]:
    """Returns an id's newest record in __transaction_state, its partition and offset."""
    try:
        history = read_history(cluster, transactional_id)
    except (ClientError, NoTransactionLogError) as problem:
        return None, None, None, str(problem)
    last = history.last
    if last is None:
        return None, history.partition, None, None
    return last.metadata, history.partition, last.offset, last.problem


# Producers.


@dataclass(frozen=True, slots=True)
class Producer:
    """One producer of a partition, and the transactional id that has its producer id."""

    partition: TopicPartition
    state: ActiveProducer
    transaction: Transaction | None
    pins: bool
    """Whether its transaction holds back the last stable offset."""


@dataclass(frozen=True, slots=True)
class Producers:
    """The producers of some partitions; `unread` has the partitions that did not answer."""

    found: list[Producer]
    unread: Mapping[TopicPartition, str]
    missing: Mapping[int, str]
    taken_at_ms: int


def list_producers(cluster: Cluster, topic: str, index: int | None = None) -> Producers:
    """Lists the producers of a topic or of one of its partitions."""
    view = cluster.metadata([topic])
    partitions = partitions_of(view, topic) if index is None else [TopicPartition(topic, index)]
    states = cluster.run(producers_of(cluster.core, partitions))
    ends = cluster.run(partition_ends(cluster.core, partitions))
    known = {p: found for p, found in states.items() if not isinstance(found, Missing)}
    producer_ids = {each.producer_id for found in known.values() for each in found}
    transactions, missing = (
        look_at_transactions(cluster, producer_ids) if producer_ids else ({}, {})
    )
    found = [
        Producer(partition, each, transactions.get(each.producer_id), _pins(each, ends[partition]))
        for partition in sorted(known)
        for each in sorted(known[partition], key=lambda one: one.producer_id)
    ]
    unread = {p: each for p, each in states.items() if isinstance(each, Missing)}
    silent = {each.broker: each for each in unread.values() if each.broker != NO_NODE} | missing
    return Producers(found, _reasons(unread), _reasons(silent), now_ms())


def _reasons(missing: Mapping[Key, Missing]) -> dict[Key, str]:
    return {key: each.reason for key, each in missing.items()}


def _pins(producer: ActiveProducer, ends: PartitionEnds | Missing) -> bool:
    return (
        isinstance(ends, PartitionEnds)
        and producer.current_txn_start_offset == ends.last_stable_offset
        and ends.last_stable_offset < ends.high_watermark
    )
