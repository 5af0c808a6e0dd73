"""Open transactions as their partitions and their coordinators see them.

A partition knows producer ids; a coordinator knows transactional ids. `Holder` joins the two for
one producer with an open transaction on one partition, and its `Standing` says how they agree:

    LIVE      the coordinator has the transaction open, with this partition
    ENDING    the coordinator has decided (Prepare...): the marker has not reached the partition
    HANGING   no coordinator has this transaction, so no timeout will end it
    UNSEEN    a coordinator did not answer, or its id may be hidden from the caller

Theory of operation. A broker adds a partition to the transaction at the coordinator before the
first record is appended, and a coordinator completes a transaction after every marker is written.
So a producer that is open on a partition before and after its coordinator was asked, at the same
start offset, was open there at that moment too: if the coordinator did not have it, nothing will
end it. `confirm` makes that second look, and drops what has ended since. Without it, every
transaction that ends during the look would seem to hang. Likewise the offsets of a partition and
its producers are answers of different moments: on a busy partition they never agree. So a
partition is called pinned without an open holder only if its LSO is the same in three looks, the
last of which comes after its producers were asked.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final

from fencepost.base.ids import TopicPartition
from fencepost.client.survey.asking import Missing
from fencepost.client.survey.coordinators import describe_listed, transactions_of
from fencepost.client.survey.partitions import PartitionEnds, partition_ends, producers_of
from fencepost.forensics.figures import Figure, estimated, unknown
from fencepost.forensics.visibility import Visibility, look_at_visibility

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from fencepost.client.admin import ActiveProducer, ClusterView, TransactionView
    from fencepost.client.blocking import Cluster

PREPARED: Final = frozenset({"PrepareCommit", "PrepareAbort", "PrepareEpochFence"})
ONGOING: Final = "Ongoing"
OPEN_STATES: Final = PREPARED | {ONGOING}

CONFIRM_SECONDS: Final = 0.3
"""Between the first and the second look: markers are written within milliseconds."""


class Standing(Enum):
    """How the coordinator's view agrees with the partition's; see above."""

    LIVE = "open"
    ENDING = "ending"
    HANGING = "hanging"
    UNSEEN = "cannot tell"


@dataclass(frozen=True, slots=True)
class Transaction:
    """The transactional id that has a producer id, as its coordinator describes it."""

    transactional_id: str
    coordinator: int
    view: TransactionView | Missing


@dataclass(frozen=True, slots=True)
class Holder:
    """A producer with an open transaction on one partition."""

    partition: TopicPartition
    producer: ActiveProducer
    transaction: Transaction | None
    standing: Standing
    why: str

    @property
    def view(self) -> TransactionView | None:
        """The coordinator's description, if there is one."""
        found = self.transaction.view if self.transaction else None
        return None if isinstance(found, Missing) else found

    @property
    def start_offset(self) -> int:
        """Where its transaction begins on this partition."""
        return self.producer.current_txn_start_offset


@dataclass(slots=True)
class Look:
    """What one look found. Times are those of this machine."""

    taken_at_ms: int
    cluster: ClusterView
    ends: Mapping[TopicPartition, PartitionEnds | Missing] = field(default_factory=dict)
    producers: Mapping[TopicPartition, list[ActiveProducer] | Missing] = field(default_factory=dict)
    """Of the partitions whose last stable offset lags."""
    holders: list[Holder] = field(default_factory=list)
    moving: set[TopicPartition] = field(default_factory=set)
    """Partitions whose LSO lags but moves on: transactions end there as they should."""
    visibility: Visibility | None = None
    """None if it was not needed."""
    missing: dict[int, str] = field(default_factory=dict)
    """The brokers that did not answer, and why."""

    def note_missing(self, answers: Collection[object]) -> None:
        """Notes the brokers that did not answer."""
        for each in answers:
            if isinstance(each, Missing) and each.broker >= 0:
                self.missing[each.broker] = each.reason


def now_ms() -> int:
    """The time of this machine."""
    return time.time_ns() // 1_000_000


def last_write_age(producer: ActiveProducer, now_ms: int) -> Figure:
    """How long ago a producer has last written to a partition."""
    if producer.last_timestamp_ms < 0:
        return unknown("the partition has no time of its last write")
    age_ms = max(0, now_ms - producer.last_timestamp_ms)
    return estimated(age_ms, "DescribeProducers", "client, here")


def partitions_of(
    view: ClusterView, topic: str | None = None, *, leader: int | None = None
) -> list[TopicPartition]:
    """Returns the partitions of a topic or of all, or those that one broker leads."""
    return [
        TopicPartition(name, each.index)
        for name, found in view.topics.items()
        if topic is None or name == topic
        for each in found.partitions
        if leader is None or each.leader == leader
    ]


def lags(ends: PartitionEnds | Missing | None) -> bool:
    """Whether readers of committed records stop before the end of the partition."""
    return isinstance(ends, PartitionEnds) and ends.last_stable_offset < ends.high_watermark


def look_at_holders(
    cluster: Cluster, view: ClusterView, partitions: Collection[TopicPartition]
) -> Look:
    """Finds the open transactions of these partitions. Asks only partitions whose LSO lags."""
    look = Look(now_ms(), view)
    look.ends = cluster.run(partition_ends(cluster.core, partitions))
    look.note_missing(look.ends.values())
    lagging = [partition for partition, ends in look.ends.items() if lags(ends)]
    look.producers = cluster.run(producers_of(cluster.core, lagging))
    look.note_missing(look.producers.values())
    add_holders(cluster, look)
    return look


def add_holders(cluster: Cluster, look: Look) -> None:
    """Joins the open producers of a look with what coordinators say."""
    opened = [
        (partition, producer)
        for partition, found in look.producers.items()
        if not isinstance(found, Missing)
        for producer in found
        if producer.current_txn_start_offset >= 0
    ]
    if not opened:
        return
    by_producer, missing = look_at_transactions(
        cluster, {producer.producer_id for _, producer in opened}
    )
    look.note_missing(missing.values())
    if any(producer.producer_id not in by_producer for _, producer in opened):
        look.visibility = look_at_visibility(cluster, missing)
    look.taken_at_ms = now_ms()
    look.holders = [
        judge_holder(partition, producer, by_producer.get(producer.producer_id), look.visibility)
        for partition, producer in opened
    ]


def look_at_transactions(
    cluster: Cluster, producer_ids: Collection[int]
) -> tuple[dict[int, Transaction], dict[int, Missing]]:
    """Returns the transactional ids with these producer ids, and the brokers that are missing."""
    listed, missing = cluster.run(transactions_of(cluster.core, producer_ids=producer_ids))
    views = cluster.run(describe_listed(cluster.core, listed))
    gone = Missing("the coordinator did not describe it")
    found = {
        each.producer_id: Transaction(
            each.transactional_id, each.coordinator, views.get(each.transactional_id, gone)
        )
        for each in listed
    }
    return found, missing


def judge_holder(
    partition: TopicPartition,
    producer: ActiveProducer,
    transaction: Transaction | None,
    visibility: Visibility | None,
) -> Holder:
    """Compares a partition's open producer with its coordinator's view."""
    standing, why = _judge(partition, producer, transaction, visibility)
    return Holder(partition, producer, transaction, standing, why)


def _judge(
    partition: TopicPartition,
    producer: ActiveProducer,
    transaction: Transaction | None,
    visibility: Visibility | None,
) -> tuple[Standing, str]:
    if transaction is None:
        if visibility is not None and visibility.is_complete:
            why = f"no coordinator knows producer id {producer.producer_id}"
            return Standing.HANGING, f"{why} ({visibility.reason})"
        reason = visibility.reason if visibility else "not every coordinator was asked"
        return Standing.UNSEEN, f"no visible id has this producer id, but {reason}"
    view = transaction.view
    if isinstance(view, Missing):
        return (
            Standing.UNSEEN,
            f"{transaction.transactional_id!r} cannot be described: {view.reason}",
        )
    return _judge_view(partition, producer, view)


def _judge_view(
    partition: TopicPartition, producer: ActiveProducer, view: TransactionView
) -> tuple[Standing, str]:
    if view.producer_id != producer.producer_id:
        return Standing.UNSEEN, "its transactional id has just got another producer id"
    if view.state in OPEN_STATES and partition in view.partitions:
        if view.state == ONGOING:
            return Standing.LIVE, "its coordinator has it open"
        by = f", by an administrator ({view.administrator})" if view.administrator else ""
        return Standing.ENDING, f"{view.state}{by}: its marker has not reached this partition"
    # The caller may describe the topic (it could read it), so a partition that is not in the
    # description is not in the transaction.
    lacks = (
        ", and its transaction does not have this partition"
        if view.state in OPEN_STATES
        else ": its coordinator has no open transaction"
    )
    return Standing.HANGING, f"{view.transactional_id!r} is {view.state}{lacks}"


def confirm(cluster: Cluster, look: Look) -> None:
    """Looks again at partitions where something is odd, and keeps what is still the same."""
    odd = {each.partition for each in look.holders if each.standing is not Standing.LIVE}
    odd |= set(unexplained(look))
    if not odd:
        return
    time.sleep(CONFIRM_SECONDS)
    again = look_at_holders(cluster, look.cluster, odd)
    held = held_by_live(again)
    unsettled = [p for p in odd if lags(again.ends[p]) and p not in held]
    last = cluster.run(partition_ends(cluster.core, unsettled))
    merge(look, again, last)


def merge(look: Look, again: Look, last: Mapping[TopicPartition, PartitionEnds | Missing]) -> None:
    """Puts a second look at some partitions, and the last ends of the odd ones, into the first."""
    before = {_key(each): each for each in look.holders}
    agreed = [
        holder
        for each in again.holders
        if (holder := _agreed(each, before.get(_key(each)))) is not None
    ]
    settled = {(each.partition, each.start_offset) for each in agreed}
    dropped = {_place(each) for each in again.holders} - settled
    look.moving = {
        partition
        for partition, ends in last.items()
        if not _stands_still(look.ends[partition], again.ends[partition], ends)
        or (partition, _stable(ends)) in dropped
    }
    again_at = again.ends.keys()
    look.holders = [each for each in look.holders if each.partition not in again_at] + agreed
    look.producers = {
        **{p: found for p, found in look.producers.items() if p not in again_at},
        **again.producers,
    }
    look.ends = {**look.ends, **again.ends}
    look.missing |= again.missing
    look.visibility = again.visibility or look.visibility
    look.taken_at_ms = again.taken_at_ms


def held_by_live(look: Look) -> set[TopicPartition]:
    """Returns the partitions at whose last stable offset a live transaction begins."""
    return {
        each.partition
        for each in look.holders
        if each.standing is Standing.LIVE
        and each.start_offset == _stable(look.ends[each.partition])
    }


def _stands_still(*ends: PartitionEnds | Missing) -> bool:
    """Whether the last stable offset is the same in all looks that have an answer."""
    return len({_stable(each) for each in ends if not isinstance(each, Missing)}) <= 1


def _stable(ends: PartitionEnds | Missing) -> int | None:
    return None if isinstance(ends, Missing) else ends.last_stable_offset


def _place(holder: Holder) -> tuple[TopicPartition, int]:
    return holder.partition, holder.start_offset


def _key(holder: Holder) -> tuple[TopicPartition, int, int]:
    return holder.partition, holder.start_offset, holder.producer.producer_id


def _agreed(again: Holder, before: Holder | None) -> Holder | None:
    """Returns the judgement of both looks; None if the two show a transaction on its way."""
    if again.standing is Standing.LIVE:
        return again
    if before is None:
        return None
    if before.standing is again.standing or again.standing is Standing.UNSEEN:
        return again
    return before if before.standing is Standing.UNSEEN else None


def unexplained(look: Look) -> list[TopicPartition]:
    """Returns partitions that lag although no producer is open at their last stable offset."""
    starts = {(each.partition, each.start_offset) for each in look.holders}
    return [
        partition
        for partition, ends in look.ends.items()
        if isinstance(ends, PartitionEnds)
        and lags(ends)
        and not isinstance(look.producers.get(partition), Missing)
        and (partition, ends.last_stable_offset) not in starts
    ]
