"""Batches to brokers: what the writer of a partition does, on every route.

Theory of operation. The stage that writes is a barrier stage whose result is collected: Spark runs
every task of it exactly once or fails the job. Where Spark refuses barrier stages, only one try of
each task gets a permit to write (`meeting/permits.py`). Each topic-partition belongs to one task
(`packing/packer.py`), so each has one writer. A task uses the identity that the driver got for this
attempt of the job, numbers the batches of each partition from sequence 0, seals them, and reports
what was acknowledged.

The length of a partition's first batch is different for every attempt of a task (`first_length`). A
broker treats a batch as a duplicate only if its first and last sequence match a batch it has. So if
a second writer with the same identity ever appeared, it would get OUT_OF_ORDER_SEQUENCE instead of
being mixed with the first.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import pyarrow as pa
from crc32c import crc32c

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import TopicPartition
from fencepost.client.blocking import TransactionalWriter
from fencepost.client.failures import BatchRefusedForSize, Refused
from fencepost.client.transactions import ProducerIdentity
from fencepost.client.writer import Written
from fencepost.records.batch import CRC_START
from fencepost.spark.failures import BatchTooLarge, CountsDisagree, RowRefused

T = TypeVar("T")

REPORT_SCHEMA: Final = (
    "task_attempt_id long, topic string, partition int, records long, batches long, size_bytes "
    "long, "
    "base_offset long, last_offset long, last_sequence int, opened_ms long, manifest string"
)
REPORT_COLUMNS: Final = pa.schema(
    [
        ("task_attempt_id", pa.int64()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("records", pa.int64()),
        ("batches", pa.int64()),
        ("size_bytes", pa.int64()),
        ("base_offset", pa.int64()),
        ("last_offset", pa.int64()),
        ("last_sequence", pa.int32()),
        ("opened_ms", pa.int64()),
        ("manifest", pa.string()),
    ]
)

FIRST_LENGTHS: Final = 509
"""How many lengths a first batch may have; attempts of one job have ids closer than this."""

_PRODUCER: Final = struct.Struct(">qhi")
_PRODUCER_AT: Final = 43
_CRC_AT: Final = 17


@dataclass(frozen=True, slots=True)
class Attempt:
    """Which attempt of which task this is."""

    partition_id: int
    attempt_number: int
    task_attempt_id: int

    def refuse_second(self) -> None:
        """Raises on a second run of the task: the first run may have written already."""
        if self.attempt_number:
            raise CountsDisagree(
                "Spark runs a task of the write stage for a second time, which a barrier stage "
                "never does: the "
                "transaction is given up"
            )


def first_length(task_attempt_id: int) -> int:
    """The most records of a first batch by this attempt of a task."""
    return 1 + task_attempt_id % FIRST_LENGTHS


class Delivery:
    """Seals and sends the batches of one task."""

    def __init__(self, writer: TransactionalWriter) -> None:
        self._writer = writer
        self.opened_ms = 0
        """When this task began to write: the transaction is open since then or longer."""

    def write(
        self,
        place: TopicPartition,
        batch: bytearray | memoryview,
        done: Callable[[], None] | None = None,
    ) -> None:
        """Seals the batch and sends it; its bytes must not change until `done`."""
        self._seal(place, batch)
        self._writer.write(place, batch, done)

    def put(self, place: TopicPartition, batch: bytearray | memoryview) -> None:
        """Seals the batch and holds it back until the next `write`, or the writer's flush."""
        self._seal(place, batch)
        self._writer.put(place, batch)

    def _seal(self, place: TopicPartition, batch: bytearray | memoryview) -> None:
        self.opened_ms = self.opened_ms or time.time_ns() // 1_000_000
        stamp_producer(batch, self._writer.identity, self._writer.next_sequence(place))


def stamp_producer(
    batch: bytearray | memoryview, identity: ProducerIdentity, base_sequence: int
) -> None:
    """Writes the producer's identity, the sequence and the CRC into the header of a batch."""
    _PRODUCER.pack_into(
        batch, _PRODUCER_AT, identity.producer_id, identity.producer_epoch, base_sequence
    )
    crc = crc32c(memoryview(batch)[CRC_START:])
    batch[_CRC_AT : _CRC_AT + 4] = crc.to_bytes(4, "big")


_ABOUT_ROWS: Final[Mapping[int, str]] = {
    ErrorCode.INVALID_RECORD: "the topic does not accept these rows (a compacted topic needs a key "
    "in every row)",
    ErrorCode.INVALID_TIMESTAMP: "the topic does not accept the timestamps of these rows "
    "(message.timestamp.before.max.ms, message.timestamp.after.max.ms)",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "this user may not write to the topic: grant WRITE on it",
}
"""Errors about the rows themselves, which another attempt would not fix."""


def explained(reports: Iterator[T]) -> Iterator[T]:
    """Passes the reports on; turns a broker's refusal of the rows into RowRefused."""
    with explained_refusals():
        yield from reports


@contextmanager
def explained_refusals() -> Iterator[None]:
    """Turns a broker's refusal of the rows into RowRefused, or BatchTooLarge."""
    try:
        yield
    except BatchRefusedForSize as problem:
        raise _too_large(problem) from problem
    except Refused as problem:
        if (advice := _ABOUT_ROWS.get(problem.code)) is None:
            raise
        raise RowRefused(f"{problem.partition}: {advice}") from problem


def _too_large(problem: BatchRefusedForSize) -> BatchTooLarge:
    assert problem.partition is not None, "a writer names the partition"
    return BatchTooLarge(problem.partition.topic, problem.records, problem.size_bytes)


def report(
    attempt: Attempt,
    opened_ms: int,
    written: dict[TopicPartition, Written],
    manifests: Iterable[str],
) -> pa.RecordBatch:
    """The report of a task to the driver."""
    return pa.RecordBatch.from_pylist(
        report_rows(attempt, opened_ms, written, manifests), schema=REPORT_COLUMNS
    )


def report_rows(
    attempt: Attempt,
    opened_ms: int,
    written: dict[TopicPartition, Written],
    manifests: Iterable[str],
) -> list[dict[str, Any]]:
    """The rows of a report."""
    nothing: dict[str, Any] = dict.fromkeys(REPORT_COLUMNS.names)
    rows = [
        {
            **nothing,
            "task_attempt_id": attempt.task_attempt_id,
            "topic": place.topic,
            "partition": place.partition,
            "records": one.records,
            "batches": one.batches,
            "size_bytes": one.size_bytes,
            "base_offset": one.base_offset,
            "last_offset": one.last_offset,
            "last_sequence": one.last_sequence,
            "opened_ms": opened_ms,
        }
        for place, one in written.items()
    ]
    rows += [
        {**nothing, "task_attempt_id": attempt.task_attempt_id, "manifest": text}
        for text in manifests
    ]
    return rows
