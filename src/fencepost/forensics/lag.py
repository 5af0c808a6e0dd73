"""The lag of a group, partition by partition: what it can read, and what is hidden from it.

Looks at the group's members and committed offsets, at the ends of each partition, and at the
batches in between (`record_counts`). Partitions of the group's topics that have no committed offset
have a row as well: their lag counts from the log start, which is where a consumer begins that has
auto.offset.reset=earliest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fencepost.base.ids import TopicPartition
from fencepost.client.group_admin import describe_group
from fencepost.client.topics import PartitionOffsets, partition_offsets
from fencepost.forensics.figures import Figure, unknown
from fencepost.forensics.record_counts import BehindCount, HiddenCount, RangeScan, add

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fencepost.client.blocking import Cluster
    from fencepost.client.group_admin import GroupView, MemberView

DEFAULT_MAX_READ_BYTES: Final = 16 << 20
_FETCH_BYTES: Final = 4 << 20
_AT_ONCE: Final = 50
"""Partitions in one request: more would wait for their turn in every reply."""
COUNTS: Final = ("behind_records", "hidden_records", "read_uncommitted_records")


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """The lag of a group in one partition."""

    partition: TopicPartition
    committed: int | None
    offsets: PartitionOffsets | None
    """None if the partition has no leader, or is not there."""
    behind: Figure
    hidden: Figure
    read_uncommitted: Figure
    owner: MemberView | None

    @property
    def offset_lag(self) -> int | None:
        """High watermark minus committed offset, as Kafka's tools count."""
        if self.offsets is None or self.committed is None:
            return None
        return self.offsets.high_watermark - self.committed

    def row(self) -> dict[str, Any]:
        """Returns the fields for output."""
        offsets, owner = self.offsets, self.owner
        return {
            "topic": self.partition.topic,
            "partition": self.partition.partition,
            "committed_offset": self.committed,
            "log_start_offset": offsets and offsets.log_start_offset,
            "last_stable_offset": offsets and offsets.last_stable_offset,
            "high_watermark": offsets and offsets.high_watermark,
            "offset_lag": self.offset_lag,
            "behind_records": self.behind,
            "hidden_records": self.hidden,
            "read_uncommitted_records": self.read_uncommitted,
            "member_id": owner and owner.member_id,
            "client_id": owner and owner.client_id,
            "host": owner and owner.host,
        }


@dataclass(frozen=True, slots=True)
class GroupLag:
    """The lag of a group."""

    view: GroupView | None
    partitions: tuple[PartitionLag, ...]

    def total(self) -> dict[str, Any]:
        """Returns the sums of all partitions."""
        rows = [each.row() for each in self.partitions]
        known = [row["offset_lag"] for row in rows if row["offset_lag"] is not None]
        sums = {name: add(*[row[name] for row in rows]) for name in COUNTS}
        return {"offset_lag": sum(known), **sums}


def look_at_lag(cluster: Cluster, group: str, max_read_bytes: int) -> GroupLag:
    """Looks at a group; reads at most about so many bytes of each partition."""
    view = cluster.run(describe_group(cluster.core, group))
    committed = {
        partition: found.offset
        for partition, found in cluster.offset_fetch(group, require_stable=False).items()
    }
    owners = view.owners if view is not None else {}
    topics = {each.topic for each in (*committed, *owners)}
    leaders = _leaders(cluster, topics)
    places = sorted({*committed, *owners, *leaders})
    led = [each for each in places if leaders.get(each, -1) >= 0]
    offsets = cluster.run(partition_offsets(cluster.core, led))
    figures = _count(cluster, offsets, committed, max_read_bytes)
    return GroupLag(
        view,
        tuple(
            PartitionLag(
                each,
                committed.get(each),
                offsets.get(each),
                *figures.get(each, _uncounted(each in leaders)),
                owners.get(each),
            )
            for each in places
        ),
    )


def _leaders(cluster: Cluster, topics: set[str]) -> dict[TopicPartition, int]:
    """Returns the leader of each partition of these topics, as far as they are visible."""
    views = cluster.metadata().topics
    return {
        TopicPartition(name, p.index): p.leader
        for name in topics
        if name in views
        for p in views[name].partitions
    }


def _uncounted(is_known: bool) -> tuple[Figure, Figure, Figure]:
    reason = "the partition has no leader" if is_known else "no such partition, or not visible"
    return unknown(reason), unknown(reason), unknown(reason)


def _count(
    cluster: Cluster,
    offsets: Mapping[TopicPartition, PartitionOffsets],
    committed: Mapping[TopicPartition, int],
    max_read_bytes: int,
) -> dict[TopicPartition, tuple[Figure, Figure, Figure]]:
    hidden, behind = {}, {}
    for place, found in offsets.items():
        # A committed offset below the log start: the records in between were deleted.
        start = max(committed.get(place, 0), found.log_start_offset)
        stable, high = found.last_stable_offset, found.high_watermark
        # A group that reads uncommitted records may be beyond the last stable offset, but what it
        # has read belongs to the transactions that are followed from there.
        hidden_scan = RangeScan(min(stable, high), high, max_read_bytes)
        if start < stable:
            hidden_scan.budget_bytes //= 2
        hidden[place] = HiddenCount(hidden_scan, start)
        behind[place] = BehindCount(RangeScan(start, max(start, stable), max_read_bytes))
    _scan(cluster, hidden, "read_uncommitted")
    for place, count in behind.items():
        count.scan.budget_bytes -= hidden[place].scan.read_bytes
    _scan(cluster, behind, "read_committed")
    return {
        place: (
            behind[place].visible,
            hidden[place].hidden,
            add(behind[place].all, hidden[place].all),
        )
        for place in offsets
    }


def _scan(
    cluster: Cluster, counts: Mapping[TopicPartition, BehindCount | HiddenCount], isolation: str
) -> None:
    """Fetches until every range is read or its budget is used up."""
    alone: list[TopicPartition] = []
    while going := [each for each, count in counts.items() if count.scan.goes_on]:
        wanted = alone or going[:_AT_ONCE]
        left = max(counts[each].scan.budget_bytes - counts[each].scan.read_bytes for each in wanted)
        fetched = cluster.fetch(
            {each: counts[each].scan.position for each in wanted},
            isolation=isolation,
            max_wait_ms=0,
            partition_max_bytes=min(_FETCH_BYTES, left),
        )
        without = [each for each, found in fetched.items() if not found.batches]
        for each, found in fetched.items():
            counts[each].count(found)
        if alone and without:
            # Asked alone it gets at least one batch, if there is one.
            counts[alone[0]].scan.finish()
        alone = [] if alone else without[:1]
