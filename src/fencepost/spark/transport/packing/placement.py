"""The partition of a row, as in Kafka's producer: the partition column, or murmur2 of the key.

Rows without a key stay together in runs, as in Kafka's producer, and the runs rotate over the
partitions. A small batch should not touch every partition, because each one costs a marker at the
end of the transaction. Batches and tasks begin at different partitions, so that small ones do not
all go to the first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fencepost.client.partitioner import partition_for_key
from fencepost.spark.connection import partition_count
from fencepost.spark.failures import NOTHING_WRITTEN, RowRefused

if TYPE_CHECKING:
    from collections.abc import Callable

    from fencepost.spark.transport.packing.packer import PackingPlan

RUN_BYTES: Final = 16 * 1024
"""Rows without a key stay together up to this size; it is Kafka's batch.size."""

RECORD_OVERHEAD_BYTES: Final = 32
"""The most that a record without headers needs beyond its key and value."""


class Placement:
    """Places the rows of one task."""

    def __init__(self, plan: PackingPlan, map_id: int) -> None:
        self._plan = plan
        self._counts = dict(plan.partition_counts)
        self.first_turn = plan.batch_id + map_id
        self.keyless_bytes = 0

    def count(self, topic: str) -> int:
        """How many partitions a topic has; requested once per task."""
        found = self._counts.get(topic)
        if found is None:
            if (reason := self._plan.reserved.get(topic)) is not None:
                raise RowRefused(f"a row names topic {topic!r}, {reason}. {NOTHING_WRITTEN}")
            found = self._counts[topic] = partition_count(self._plan.options, topic)
        return found

    def place(self, topic: str, wanted: int | None, key: bytes | None, size: int) -> int:
        """The partition of one row."""
        count = self.count(topic)
        if wanted is not None:
            if not 0 <= wanted < count:
                raise no_such_partition(topic, wanted, count)
            return wanted
        if key is not None:
            return partition_for_key(key, count)
        turn = self.first_turn + self.keyless_bytes // RUN_BYTES
        self.keyless_bytes += size
        return turn % count

    def check_size(self, size: int, key: Callable[[], bytes | None]) -> None:
        """RowRefused for a record that is too large. `key` returns the key of that row."""
        if size > self._plan.max_record_bytes:
            raise RowRefused(
                f"a row with key {shown(key())} is {size} bytes as a record, and "
                "kafka.max.request.size allows "
                f"{self._plan.max_record_bytes}: raise it (and max.message.bytes of the topic), "
                "or make the value smaller"
            )


def no_such_partition(topic: str, wanted: int, count: int) -> RowRefused:
    """The error for a partition column that names no partition of the topic."""
    return RowRefused(
        f"a row wants partition {wanted} of topic {topic!r}, which has {count} partitions: "
        "correct the partition "
        "column, or leave it out to place rows by their key"
    )


def no_partition(topic: str | None) -> RowRefused:
    """The error for a row without a partition where partitions are preserved."""
    return RowRefused(
        f"a row for topic {topic!r} has no partition, and with preserve_partitioning every row "
        "keeps the one it was read from: select the source's column partition unchanged"
    )


def no_topic(key: bytes | None) -> RowRefused:
    """The error for a row without a topic."""
    return RowRefused(
        f"a row with key {shown(key)} has no topic: fill the topic column, or pass topic= to "
        "the sink"
    )


def shown(key: bytes | None) -> str:
    """The start of a key, for messages."""
    return "null" if key is None else repr(bytes(key[:40]))
