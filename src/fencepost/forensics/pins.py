"""Pinned partitions: who holds back the last stable offset, until when, and what to do.

Readers of committed records stop at the last stable offset (LSO), the first offset of the oldest
open transaction. A pin is a partition whose LSO is behind its high watermark. Kinds:

    open         a live transaction; it ends when its producer ends it or its timeout does
    ending       committed or aborted already, but its marker cannot be delivered
    hanging      no coordinator has the transaction: no timeout ends it
    no holder    no producer is open at the LSO: the marker that ended the transaction is in the
                 log, but not on all in-sync replicas yet
    cannot tell  the holder is hidden from the caller, or a broker did not answer

A coordinator looks for timed-out transactions once in a period (10 s on Apache Kafka). So a timeout
ends a transaction within an interval, and both of its ends compare the coordinator's clock with the
clock here.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fencepost.client.configs import broker_settings, topic_settings
from fencepost.client.survey.asking import Missing
from fencepost.client.survey.partitions import PartitionEnds
from fencepost.forensics.commands import (
    Proposal,
    abort_command,
    describe_command,
    fence_command,
)
from fencepost.forensics.figures import Figure, estimated, exact, unknown
from fencepost.forensics.holders import (
    Holder,
    Look,
    Standing,
    confirm,
    lags,
    look_at_holders,
    partitions_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fencepost.base.ids import TopicPartition
    from fencepost.client.admin import PartitionView, TransactionView
    from fencepost.client.blocking import Cluster

REAPER_PERIOD: Final = "transaction.abort.timed.out.transaction.cleanup.interval.ms"
DEFAULT_REAPER_PERIOD_MS: Final = 10_000
NO_HOLDER: Final = "no holder"

_COORDINATOR: Final = "DescribeTransactions"
_PARTITION: Final = "DescribeProducers"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a judgement needs besides the look."""

    compacted: Mapping[str, bool]
    """Topics whose cleanup.policy could be read: whether it has `compact`."""
    reaper_periods_ms: Mapping[int, int]
    """Coordinators whose settings could be read: the period of their reaper."""


@dataclass(frozen=True, slots=True)
class Pin:
    """One pinned partition."""

    partition: TopicPartition
    kind: str
    why: str
    ends: PartitionEnds
    leader: int
    pinned_for_ms: Figure
    started_at_ms: Figure
    last_written_at_ms: Figure
    ends_in_at_least_ms: Figure
    ends_in_at_most_ms: Figure
    next_last_stable_offset: Figure
    compaction_waits: Figure
    holder: Holder | None
    open_producers: int
    """How many producers have a transaction open on the partition."""
    advice: str
    command: Proposal | None

    @property
    def hidden_offsets(self) -> int:
        """How many offsets readers of committed records do not see yet, markers included."""
        return self.ends.high_watermark - self.ends.last_stable_offset

    @property
    def held_by(self) -> str | None:
        """The transactional id that holds it, or else the producer; None if neither is known."""
        if self.holder is None:
            return None
        if self.holder.transaction is not None:
            return self.holder.transaction.transactional_id
        return f"producer {self.holder.producer.producer_id}"


@dataclass(frozen=True, slots=True)
class Unread:
    """A partition whose offsets could not be read."""

    partition: TopicPartition
    reason: str


@dataclass(frozen=True, slots=True)
class Pins:
    """The findings of one look."""

    found: list[Pin]
    unread: list[Unread]
    missing: Mapping[int, str]
    """The brokers that did not answer."""
    partitions: int
    """How many partitions were looked at."""


def find_pins(cluster: Cluster, topic: str | None = None) -> Pins:
    """Looks at one topic or at all of them, internal ones too."""
    view = cluster.metadata(None if topic is None else [topic])
    partitions = partitions_of(view)
    look = look_at_holders(cluster, view, partitions)
    confirm(cluster, look)
    return judge_pins(look, _look_around(cluster, look))


def _look_around(cluster: Cluster, look: Look) -> Surroundings:
    topics = {partition.topic for partition, ends in look.ends.items() if lags(ends)}
    policies = cluster.run(topic_settings(cluster.core, topics, "cleanup.policy")) if topics else {}
    coordinators = {each.transaction.coordinator for each in look.holders if each.transaction}
    return Surroundings(
        {name: "compact" in (policy or "") for name, policy in policies.items()},
        reaper_periods(cluster, coordinators),
    )


def reaper_periods(cluster: Cluster, coordinators: set[int]) -> dict[int, int]:
    """Returns how often these coordinators look for timed-out transactions, where they tell."""
    if not coordinators:
        return {}
    settings = cluster.run(broker_settings(cluster.core, coordinators, [REAPER_PERIOD]))
    return {
        broker: int(period)
        for broker, found in settings.items()
        if (period := found.get(REAPER_PERIOD)) is not None
    }


def judge_pins(look: Look, around: Surroundings) -> Pins:
    """Turns a look into findings: the partitions whose LSO lags, the longest pinned first."""
    holders: dict[TopicPartition, list[Holder]] = defaultdict(list)
    for each in sorted(look.holders, key=lambda one: one.start_offset):
        holders[each.partition].append(each)
    places = {
        (topic.name, place.index): place
        for topic in look.cluster.topics.values()
        for place in topic.partitions
    }
    found = [
        _judge(partition, ends, places.get(partition), holders[partition], look, around)
        for partition, ends in look.ends.items()
        if isinstance(ends, PartitionEnds) and lags(ends) and partition not in look.moving
    ]
    unread = [
        Unread(partition, ends.reason)
        for partition, ends in look.ends.items()
        if isinstance(ends, Missing)
    ]
    found.sort(key=lambda pin: (-(pin.pinned_for_ms.value or 0), pin.partition))
    return Pins(
        found, sorted(unread, key=lambda each: each.partition), look.missing, len(look.ends)
    )


def _judge(
    partition: TopicPartition,
    ends: PartitionEnds,
    place: PartitionView | None,
    holders: list[Holder],
    look: Look,
    around: Surroundings,
) -> Pin:
    holder = next((h for h in holders if h.start_offset == ends.last_stable_offset), None)
    kind, why = _kind(partition, place, holder, look)
    least, most = _timeout(holder, look.taken_at_ms, around)
    advice, command = _advise(kind, partition, holder)
    return Pin(
        partition,
        kind,
        why,
        ends,
        place.leader if place else -1,
        _pinned_for(holder, look.taken_at_ms),
        _started(holder),
        _last_written(holder),
        least,
        most,
        _next_stable(ends, holders),
        _compaction(partition.topic, around),
        holder,
        len(holders),
        advice,
        command,
    )


def _kind(
    partition: TopicPartition, place: PartitionView | None, holder: Holder | None, look: Look
) -> tuple[str, str]:
    if holder is not None:
        return holder.standing.value, holder.why
    producers = look.producers.get(partition)
    if isinstance(producers, Missing):
        return Standing.UNSEEN.value, f"its producers cannot be read: {producers.reason}"
    lag = "the marker that ended the transaction is not replicated yet"
    if place is not None and len(place.isr) < len(place.replicas):
        lag += f"; in sync are brokers {list(place.isr)} of {list(place.replicas)}"
    return NO_HOLDER, f"no producer is open at the last stable offset: {lag}"


# Times.


def _pinned_for(holder: Holder | None, now_ms: int) -> Figure:
    view = holder.view if holder else None
    if view is not None and _is_of(view, holder):
        return estimated(max(0, now_ms - view.start_ms), _COORDINATOR, "coordinator, here")
    if holder is not None and holder.producer.last_timestamp_ms >= 0:
        # The last write is known, and the first one is not later.
        age_ms = max(0, now_ms - holder.producer.last_timestamp_ms)
        return estimated(age_ms, f"{_PARTITION}: at least since its last write", "client, here")
    return unknown("no producer is known that holds it")


def _is_of(view: TransactionView, holder: Holder | None) -> bool:
    """Whether the coordinator's transaction is the one that is open on the partition."""
    ours = (Standing.LIVE, Standing.ENDING)
    return holder is not None and holder.standing in ours and view.start_ms >= 0


def _started(holder: Holder | None) -> Figure:
    view = holder.view if holder else None
    if view is not None and _is_of(view, holder):
        return exact(view.start_ms, _COORDINATOR, "coordinator")
    return unknown("only a coordinator knows when a transaction began")


def _last_written(holder: Holder | None) -> Figure:
    if holder is None or holder.producer.last_timestamp_ms < 0:
        return unknown("no producer is known that holds it")
    return exact(holder.producer.last_timestamp_ms, _PARTITION, "client")


def _timeout(holder: Holder | None, now_ms: int, around: Surroundings) -> tuple[Figure, Figure]:
    """Returns in how long the timeout ends the transaction, at least and at most."""
    view = holder.view if holder else None
    if holder is None or view is None or not _is_of(view, holder):
        return (nothing := unknown("no coordinator is known that will end it")), nothing
    if holder.standing is Standing.ENDING:
        return (nothing := unknown("it is decided, and ends when its marker is delivered")), nothing
    assert holder.transaction is not None
    coordinator = holder.transaction.coordinator
    period_ms = around.reaper_periods_ms.get(coordinator, DEFAULT_REAPER_PERIOD_MS)
    known = "" if coordinator in around.reaper_periods_ms else ", assumed"
    source = f"{_COORDINATOR}, and a check every {period_ms} ms{known}"
    left_ms = view.start_ms + view.timeout_ms - now_ms
    clock = "coordinator, here"
    return (
        estimated(max(0, left_ms), source, clock),
        estimated(max(0, left_ms) + period_ms, source, clock),
    )


# Offsets.


def _next_stable(ends: PartitionEnds, holders: list[Holder]) -> Figure:
    later = [h.start_offset for h in holders if h.start_offset > ends.last_stable_offset]
    if later:
        return exact(min(later), f"{_PARTITION}: the next open transaction begins there")
    if not holders:
        return unknown("the open producers are not known")
    return estimated(ends.high_watermark, "the high watermark now, which may rise until then")


def _compaction(topic: str, around: Surroundings) -> Figure:
    waits = around.compacted.get(topic)
    if waits is None:
        return unknown("cleanup.policy of the topic could not be read")
    return exact(waits, "DescribeConfigs: cleanup.policy")


# What to do.


def _advise(
    kind: str, partition: TopicPartition, holder: Holder | None
) -> tuple[str, Proposal | None]:
    transactional_id = (
        holder.transaction.transactional_id if holder and holder.transaction else None
    )
    if kind == Standing.LIVE.value and transactional_id is not None:
        return (
            (
                "wait for its producer or its timeout; or abort it now on all its partitions, and "
                "fence the producer"
            ),
            fence_command(transactional_id),
        )
    if kind == Standing.ENDING.value and holder is not None and holder.transaction is not None:
        return (
            (
                "only its marker can end it. See which partitions wait for one and why in the log "
                f"of broker {holder.transaction.coordinator}, its coordinator; when it is "
                "restarted, it sends the markers again"
            ),
            describe_command(holder.transaction.transactional_id),
        )
    if kind == Standing.HANGING.value and holder is not None:
        return (
            "abort it on this partition; no coordinator and no other partition is affected",
            abort_command(partition, holder.producer.producer_id, holder.start_offset),
        )
    if kind == NO_HOLDER:
        return "check that all replicas of the partition are alive and in sync", None
    return "look again as a user who may see it: READ on the topic, DESCRIBE on its ids", None
