"""The partitions whose last stable offset lags, by how much, and for how long.

A partition is pinned if its last stable offset is below its high watermark: read_committed readers
wait for the oldest open transaction. How long it has been so:

- since the transaction began, if this broker coordinates it;
- otherwise at least since the producer's last write, by the timestamp of that batch, or since a
  scrape first found the last stable offset where it is now. The longer of the two counts.

`PinWatch` remembers the last scrape for that. It holds only partitions that are pinned now.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fencepost.base.ids import TopicPartition
    from fencepost.partition.partition import Partition

LATE_MS: Final = 5 * 60 * 1000
"""KIP-664: a transaction is late if it is older than its longest timeout and this."""


class Pin(NamedTuple):
    """One pinned partition."""

    name: TopicPartition
    lag: int
    """Offsets between the last stable offset and the high watermark."""
    age_ms: int
    is_late: bool
    """KIP-664's rule for partitions: by the last write of its oldest transaction."""


class PinWatch:
    """Looks at partitions, scrape after scrape."""

    def __init__(self) -> None:
        self._seen: dict[TopicPartition, tuple[int, int]] = {}
        """Last stable offset and when it was first seen, of the last scrape."""
        self._next: dict[TopicPartition, tuple[int, int]] = {}

    def begin(self) -> None:
        """Begins a scrape."""
        self._seen, self._next = self._next, {}

    def look(
        self, partition: Partition, began_ms: Mapping[int, int], now_ms: int, max_timeout_ms: int
    ) -> Pin | None:
        """The pin of a partition; `began_ms` has the transactions that this broker coordinates."""
        stable, end = partition.last_stable_offset, partition.high_watermark
        if stable >= end:
            return None
        offset, first_seen_ms = self._seen.get(partition.name, (-1, now_ms))
        if offset != stable:
            first_seen_ms = now_ms
        self._next[partition.name] = stable, first_seen_ms
        since_ms = first_seen_ms
        written_ms = now_ms
        producer_id = partition.open_txns.oldest_producer_id()
        state = None if producer_id is None else partition.producers.get(producer_id)
        if state is not None and state.last_timestamp_ms > 0:
            written_ms = state.last_timestamp_ms
            since_ms = min(since_ms, began_ms.get(state.producer_id, written_ms))
        is_late = now_ms - written_ms > max_timeout_ms + LATE_MS
        return Pin(partition.name, end - stable, max(0, now_ms - since_ms), is_late)
