"""Where single records go, and which of them are acknowledged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from fencepost.base.ids import TopicPartition
from fencepost.client.partitioner import partition_for_key
from fencepost.client.record_writer import Numbers, RecordWriter
from fencepost.records.opened import Record


class Sink:
    """Takes batches, and acknowledges them on request."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, list[Record]]] = []
        self.unacknowledged: list[Callable[[], None]] = []

    def write_records(
        self, partition: TopicPartition, records: Sequence[Record], done: Callable[[], None]
    ) -> None:
        self.batches.append((partition.partition, list(records)))
        self.unacknowledged.append(done)

    put_records = write_records

    def poll(self) -> None:
        pass

    def flush(self) -> None:
        while self.unacknowledged:
            self.unacknowledged.pop(0)()


def writer(sink: Sink, **more: Any) -> RecordWriter:
    return RecordWriter(cast("Any", sink), "t", range(3), batch_bytes=100, **more)


VALUE = Record(value=b"x" * 20)


def test_records_without_a_key_fill_a_batch_of_one_partition_after_the_other() -> None:
    sink = Sink()
    written = writer(sink)
    for number in range(8):
        written.add(VALUE, number)
    written.flush()
    assert [(partition, len(batch)) for partition, batch in sink.batches] == [
        (0, 2), (1, 2), (2, 2), (0, 2),
    ]  # fmt: skip
    assert written.acknowledged == {0: 4, 1: 2, 2: 2}


def test_a_partition_without_a_leader_gets_only_the_keys_that_belong_there() -> None:
    sink = Sink()
    written = writer(sink, available=[2])
    keys = [b"%d" % n for n in range(9)]
    for number, key in enumerate(keys):
        written.add(Record(key=key), number)
        written.add(VALUE, number)
    written.flush()
    for partition, batch in sink.batches:
        for record in batch:
            expected = 2 if record.key is None else partition_for_key(record.key, 3)
            assert partition == expected


def test_a_record_larger_than_a_batch_is_sent_alone() -> None:
    sink = Sink()
    written = writer(sink)
    for number, size in enumerate((1, 500, 1)):
        written.add(Record(value=b"x" * size), number, partition=0)
    written.send()
    assert [len(batch) for _, batch in sink.batches] == [1, 1, 1]


def test_the_oldest_unacknowledged_batch_tells_where_a_write_stopped() -> None:
    sink = Sink()
    written = writer(sink)
    for number in range(1, 7):
        written.add(VALUE, number, partition=number % 2)
    written.send()
    assert [partition for partition, _ in sink.batches] == [1, 0, 1, 0]
    one, two, five, six = sink.unacknowledged
    assert written.oldest_unacknowledged() == Numbers(1, 3)
    one()
    five()
    assert written.oldest_unacknowledged() == Numbers(2, 4)
    assert written.oldest_unacknowledged(1) is None
    # A batch may be acknowledged before the one ahead of it.
    six()
    assert written.oldest_unacknowledged(0) == Numbers(2, 4)
    two()
    assert written.oldest_unacknowledged() is None
    assert written.acknowledged == {0: 3, 1: 3}
