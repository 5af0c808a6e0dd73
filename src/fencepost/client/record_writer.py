"""Writes single records: chooses their partitions, and collects them into batches.

A record with a key goes to the partition that Kafka's Java client would choose. Records without one
stay in one partition until its batch is full, then use the next: few large batches cost less
than many small ones. Each record has a number (of its line, say). Records of one partition are
written in the order of their numbers, so the numbers of the oldest unacknowledged batch tell where
a failed write stopped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from fencepost.base.ids import TopicPartition
from fencepost.client.partitioner import partition_for_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fencepost.client.blocking import TransactionalWriter
    from fencepost.records.opened import Record

_RECORD_OVERHEAD_BYTES: Final = 30
"""More than lengths, deltas and attributes of a record can take."""


Write = Callable[["TopicPartition", "Sequence[Record]", "Callable[[], None]"], None]
"""How a batch goes to the writer: at once, or with the next request."""


class Numbers(NamedTuple):
    """The first and the last number of a batch."""

    first: int
    last: int


class _Batch:
    """The records of one partition that were not sent yet."""

    __slots__ = ("first", "last", "records", "size")

    def __init__(self, number: int) -> None:
        self.records: list[Record] = []
        self.size = 0
        self.first = self.last = number


class RecordWriter:
    """Writes the records of one topic."""

    def __init__(
        self,
        writer: TransactionalWriter,
        topic: str,
        partitions: Sequence[int],
        *,
        available: Sequence[int] = (),
        batch_bytes: int,
    ) -> None:
        """`available` are partitions for records without a key: those with a leader."""
        assert partitions
        self.acknowledged: dict[int, int] = {}
        """How many records of each partition are acknowledged."""
        self._writer = writer
        self._topic = topic
        self._partitions = sorted(partitions)
        self._available = sorted(available or partitions)
        self._batch_bytes = batch_bytes
        self._turn = 0
        self._collected: dict[int, _Batch] = {}
        self._unacknowledged: dict[int, deque[Numbers]] = {}

    @property
    def count(self) -> int:
        """How many records are acknowledged."""
        return sum(self.acknowledged.values())

    def add(self, record: Record, number: int, partition: int | None = None) -> None:
        """Adds a record; sends its batch when that is full, and waits while the buffer is full."""
        index = self._choose(record) if partition is None else partition
        size = _size(record)
        batch = self._collected.get(index)
        if batch is not None and batch.size + size > self._batch_bytes:
            self._seal(index, self._writer.write_records)
            if partition is None and record.key is None:
                index = self._choose(record)
            batch = self._collected.get(index)
        if batch is None:
            batch = self._collected[index] = _Batch(number)
        batch.records.append(record)
        batch.size += size
        batch.last = number

    def send(self) -> None:
        """Sends what was collected, without waiting for acknowledgements."""
        self.put()
        self._writer.poll()

    def put(self) -> None:
        """Queues what was collected. What the writer sends next takes all of it along."""
        for index in list(self._collected):
            self._seal(index, self._writer.put_records)

    def flush(self) -> None:
        """Sends what was collected, and waits until everything is acknowledged."""
        self.send()
        self._writer.flush()

    def oldest_unacknowledged(self, partition: int | None = None) -> Numbers | None:
        """Returns the numbers of the oldest batch without an acknowledgement, in any partition."""
        waiting = [
            queue[0]
            for index, queue in self._unacknowledged.items()
            if queue and partition in (None, index)
        ]
        return min(waiting, default=None)

    def _choose(self, record: Record) -> int:
        if record.key is None:
            return self._available[self._turn % len(self._available)]
        # The Java client counts all partitions, with or without a leader.
        return self._partitions[partition_for_key(record.key, len(self._partitions))]

    def _seal(self, index: int, write: Write) -> None:
        batch = self._collected.pop(index)
        if self._available[self._turn % len(self._available)] == index:
            self._turn += 1
        numbers = Numbers(batch.first, batch.last)
        self._unacknowledged.setdefault(index, deque()).append(numbers)

        def done() -> None:
            # Not always the oldest: a batch may be acknowledged after the one behind it.
            self._unacknowledged[index].remove(numbers)
            self.acknowledged[index] = self.acknowledged.get(index, 0) + len(batch.records)

        write(TopicPartition(self._topic, index), batch.records, done)


def _size(record: Record) -> int:
    size = _RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")
    for name, value in record.headers:
        size += _RECORD_OVERHEAD_BYTES + len(name) * 4 + len(value or b"")
    return size
