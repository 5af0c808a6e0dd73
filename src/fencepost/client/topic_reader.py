"""Reads several partitions of a topic, a fetch at a time.

`positions` says where each partition continues. It advances past a record when the caller asks for
the next one, or sets it: what is before it was processed, so positions can be committed at any
time. At the end of a fetch it advances past markers and aborted records as well.

A broker sends at least one batch, whatever its size, but only for the first partition of a request.
A partition whose next batch is larger than the limit gets nothing after others, so the next fetch
asks for it alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fencepost.base.ids import TopicPartition
from fencepost.records.opened import Record, iterate_records

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fencepost.client.blocking import Cluster
    from fencepost.client.fetched import FetchedPartition
    from fencepost.client.topics import PartitionOffsets


class Ends(NamedTuple):
    """The ends of a partition, as of the last fetch; -1 before it."""

    last_stable_offset: int = -1
    high_watermark: int = -1


class TopicReader:
    """Reads partitions from their positions on; up to `ends`, if there are."""

    def __init__(
        self,
        cluster: Cluster,
        positions: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int] | None,
        isolation: str,
    ) -> None:
        self.positions = dict(positions)
        self.seen: dict[TopicPartition, Ends] = {}
        self._cluster = cluster
        self._ends = ends
        self._isolation = isolation
        self._starved: list[TopicPartition] = []

    @property
    def is_done(self) -> bool:
        """Whether all ends are reached; never without ends."""
        return not self._unread()

    def note_ends(self, ends: Mapping[TopicPartition, PartitionOffsets]) -> None:
        """Notes the ends of the logs as of before the first fetch."""
        for partition, found in ends.items():
            self.seen[partition] = Ends(found.last_stable_offset, found.high_watermark)

    def hidden(self) -> dict[TopicPartition, int]:
        """Returns how many offsets open transactions hide from a reader that has caught up.

        Nothing is hidden with read_uncommitted.
        """
        if self._isolation != "read_committed":
            return {}
        return {
            partition: ends.high_watermark - ends.last_stable_offset
            for partition, ends in self.seen.items()
            if self.positions[partition] >= ends.last_stable_offset >= 0
            and ends.high_watermark > ends.last_stable_offset
        }

    def poll(self, max_wait_ms: int) -> Iterator[tuple[TopicPartition, Record]]:
        """Fetches once; yields the records, none if none came within the wait."""
        wanted = self._starved[:1] or self._unread()
        fetched = self._cluster.fetch(
            {partition: self.positions[partition] for partition in wanted},
            isolation=self._isolation,
            max_wait_ms=max_wait_ms,
        )
        self._starved = [each for each in fetched if self._is_starved(fetched[each])]
        for partition, found in sorted(fetched.items()):
            self.seen[partition] = Ends(found.last_stable_offset, found.high_watermark)
            yield from self._records(partition, found)

    def _unread(self) -> list[TopicPartition]:
        if self._ends is None:
            return list(self.positions)
        return [each for each, end in self._ends.items() if self.positions[each] < end]

    def _is_starved(self, found: FetchedPartition) -> bool:
        committed = self._isolation == "read_committed"
        end = found.last_stable_offset if committed else found.high_watermark
        return not found.batches and found.fetch_offset < end

    def _records(
        self, partition: TopicPartition, found: FetchedPartition
    ) -> Iterator[tuple[TopicPartition, Record]]:
        end = None if self._ends is None else self._ends[partition]
        for batch in found.visible_batches():
            for record in iterate_records(batch, name_errors="backslashreplace"):
                if end is not None and record.offset >= end:
                    self.positions[partition] = end
                    return
                if record.offset >= found.fetch_offset:
                    yield partition, record
                    self.positions[partition] = record.offset + 1
        self.positions[partition] = max(self.positions[partition], found.next_offset)
