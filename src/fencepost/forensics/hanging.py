"""Hanging transactions: open on a partition, and no coordinator will ever end them (KIP-664).

The rule of kafka-transactions.sh find-hanging: a transaction hangs if it is open on a partition,
was last written to longer ago than any transaction may last (transaction.max.timeout.ms, and 5
minutes more), and its producer id has no transactional id, or the transaction of that id does not
have the partition. Two things are added here. Partition, coordinator and partition are asked in
this order (`holders.py`), so that a transaction that ends in between is not called hanging.
And an id that is not listed counts as absent only if the caller would see it (`visibility.py`);
otherwise the verdict is "cannot tell".

A transaction that no coordinator has is reported even if it is younger, as `suspect`: it will not
end by itself either, unless its producer still adds the partition.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from fencepost.base.failures import FencepostError
from fencepost.client.configs import broker_settings
from fencepost.forensics.commands import Proposal, abort_command
from fencepost.forensics.figures import Figure
from fencepost.forensics.holders import (
    Holder,
    Look,
    Standing,
    confirm,
    last_write_age,
    look_at_holders,
    partitions_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fencepost.client.blocking import Cluster

GRACE_MS: Final = 5 * 60_000
"""KIP-664 adds it to the largest timeout: clocks differ, and coordinators take their time."""
MAX_TIMEOUT: Final = "transaction.max.timeout.ms"
DEFAULT_MAX_TIMEOUT_MS: Final = 15 * 60_000


class Verdict(Enum):
    """How sure it is that a transaction hangs."""

    HANGING = "hanging"
    SUSPECT = "suspect"
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True, slots=True)
class Finding:
    """One transaction that may hang on one partition."""

    holder: Holder
    verdict: Verdict
    why: str
    last_write_age_ms: Figure
    command: Proposal | None


@dataclass(frozen=True, slots=True)
class Hanging:
    """The findings of one look."""

    found: list[Finding]
    missing: Mapping[int, str]
    limit_ms: int
    """How long ago the last write must be."""
    unreadable: int
    """How many lagging partitions did not show their producers."""


def find_hanging(
    cluster: Cluster,
    topic: str | None = None,
    broker: int | None = None,
    max_timeout_ms: int | None = None,
) -> Hanging:
    """Looks at a topic, at the partitions that a broker leads, or at all."""
    view = cluster.metadata(None if topic is None else [topic])
    if broker is not None and broker not in view.brokers:
        known = ", ".join(map(str, sorted(view.brokers)))
        raise FencepostError(f"The cluster has no live broker {broker}; its brokers are {known}.")
    if max_timeout_ms is None:
        max_timeout_ms = largest_timeout(cluster, set(view.brokers))
    look = look_at_holders(cluster, view, partitions_of(view, leader=broker))
    confirm(cluster, look)
    return judge_hanging(look, max_timeout_ms)


def largest_timeout(cluster: Cluster, brokers: set[int]) -> int:
    """Returns the largest timeout that a broker allows; Kafka's default if none tells."""
    settings = cluster.run(broker_settings(cluster.core, brokers, [MAX_TIMEOUT]))
    told = [int(value) for found in settings.values() if (value := found.get(MAX_TIMEOUT))]
    return max(told, default=DEFAULT_MAX_TIMEOUT_MS)


def judge_hanging(look: Look, max_timeout_ms: int) -> Hanging:
    """Applies the rule to every open producer; the oldest write first."""
    limit_ms = max_timeout_ms + GRACE_MS
    found = [
        finding
        for holder in look.holders
        if (finding := _judge(holder, look.taken_at_ms, limit_ms)) is not None
    ]
    found.sort(key=lambda each: (-(each.last_write_age_ms.value or 0), each.holder.partition))
    unreadable = sum(not isinstance(producers, list) for producers in look.producers.values())
    return Hanging(found, look.missing, limit_ms, unreadable)


def _judge(holder: Holder, now_ms: int, limit_ms: int) -> Finding | None:
    if holder.standing not in (Standing.HANGING, Standing.UNSEEN):
        return None
    age = last_write_age(holder.producer, now_ms)
    is_old = age.value is None or age.value > limit_ms
    if holder.standing is Standing.UNSEEN:
        return Finding(holder, Verdict.CANNOT_TELL, holder.why, age, None) if is_old else None
    command = abort_command(holder.partition, holder.producer.producer_id, holder.start_offset)
    if is_old:
        return Finding(holder, Verdict.HANGING, holder.why, age, command)
    why = f"{holder.why}; but its last write is younger than {limit_ms} ms"
    return Finding(holder, Verdict.SUSPECT, why, age, None)
