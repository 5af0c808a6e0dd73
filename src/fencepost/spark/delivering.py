"""Batches to brokers: the second Python stage of a write, and the only one that touches a topic.

Theory of operation. This stage is a barrier stage whose result is collected: Spark runs every task of it exactly once
or fails the job. Each topic-partition belongs to one task (`packing.slot_of`), so each has one writer. A task takes
the identity that the driver got for this attempt of the job, numbers the batches of each partition from sequence 0,
and returns what was acknowledged.

The length of a partition's first batch is different for every attempt of a task. A broker takes a batch for a
repetition only when its first and last sequence are those of a batch it has; so if a second writer of one identity
ever appeared, in spite of all the above, it would get OUT_OF_ORDER_SEQUENCE, and not be mixed with the first.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa
from crc32c import crc32c

from fencepost.base.ids import TopicPartition
from fencepost.base.seams import Buffer
from fencepost.client.blocking import TransactionalWriter
from fencepost.client.options import ClientOptions
from fencepost.client.transactions import ProducerIdentity
from fencepost.client.writer import Written
from fencepost.records.batch import CRC_START, read_header
from fencepost.records.builder import build_batch
from fencepost.records.opened import Record, open_batch
from fencepost.spark.connection import cluster_of
from fencepost.spark.failures import CountsDisagree

REPORT_SCHEMA: Final = (
    "task_attempt_id long, topic string, partition int, records long, batches long, size_bytes long, "
    "base_offset long, last_offset long, last_sequence int, opened_ms long, manifest string"
)
_REPORT: Final = pa.schema(
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
"""Different lengths of a first batch. Attempts of one job have ids closer together than this."""

_PRODUCER: Final = struct.Struct(">qhi")
_PRODUCER_AT: Final = 43
_CRC_AT: Final = 17


@dataclass(frozen=True, slots=True)
class DeliveryPlan:
    """What the driver tells the tasks of this stage."""

    identity: ProducerIdentity
    slots: int
    options: ClientOptions


@dataclass(frozen=True, slots=True)
class Attempt:
    """Which attempt of which task this is."""

    partition_id: int
    attempt_number: int
    task_attempt_id: int


def deliver(
    plan: DeliveryPlan, attempt: Attempt, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The whole stage for one task."""
    if attempt.attempt_number:
        raise CountsDisagree(
            "Spark runs a task of the write stage for a second time, which a barrier stage never does: the "
            "transaction is given up"
        )
    manifests: list[str] = []
    with cluster_of(plan.options).writer(plan.identity) as writer:
        delivery = Delivery(plan, attempt, writer)
        for batch in batches:
            for row in _rows(batch):
                if row.topic is None:
                    manifests.append(bytes(row.payload).decode("utf-8"))
                else:
                    delivery.accept(row)
        written = writer.flush()
    yield _report(attempt, delivery.opened_ms, written, manifests)


class _Row(NamedTuple):
    slot: int
    topic: str | None
    partition: int
    payload: memoryview


def _rows(batch: pa.RecordBatch) -> Iterator[_Row]:
    """The rows of an Arrow batch; payloads are views, because they are large."""
    slots, topics, partitions = (
        batch.column(n).to_pylist() for n in ("slot", "topic", "partition")
    )
    for slot, topic, partition, payload in zip(
        slots, topics, partitions, batch.column("payload"), strict=True
    ):
        yield _Row(slot, topic, partition, memoryview(payload.as_buffer()))


class Delivery:
    """The batches of one task on their way."""

    def __init__(self, plan: DeliveryPlan, attempt: Attempt, writer: TransactionalWriter) -> None:
        self._plan = plan
        self._attempt = attempt
        self._writer = writer
        self._opened: set[TopicPartition] = set()
        self.opened_ms = 0
        """When this task began to write, and so the transaction at the latest."""

    def accept(self, row: _Row) -> None:
        """One row of the packing stage."""
        assert row.topic is not None
        if row.slot % self._plan.slots != self._attempt.partition_id:
            raise CountsDisagree(
                f"a batch for slot {row.slot} came to task {self._attempt.partition_id}"
            )
        place = TopicPartition(row.topic, row.partition)
        if place in self._opened:
            self._write(place, bytearray(row.payload))
            return
        self._opened.add(place)
        self.opened_ms = self.opened_ms or time.time_ns() // 1_000_000
        length = 1 + self._attempt.task_attempt_id % FIRST_LENGTHS
        for part in split_batch(row.payload, length):
            self._write(place, part)

    def _write(self, place: TopicPartition, batch: bytearray) -> None:
        stamp_producer(batch, self._writer.identity, self._writer.next_sequence(place))
        self._writer.write(place, batch)


def split_batch(data: Buffer, length: int) -> list[bytearray]:
    """A batch in two, the first with so many records; or as it is, when it has no more than that."""
    batch = read_header(data)
    if batch.record_count <= length:
        return [bytearray(data)]
    records = open_batch(batch)
    parts: list[list[Record]] = [records[:length], records[length:]]
    return [
        build_batch(part, timestamp_ms=batch.base_timestamp, codec=batch.codec, transactional=True)
        for part in parts
    ]


def stamp_producer(batch: bytearray, identity: ProducerIdentity, base_sequence: int) -> None:
    """Writes who sends the batch into its header, and renews the CRC."""
    _PRODUCER.pack_into(
        batch, _PRODUCER_AT, identity.producer_id, identity.producer_epoch, base_sequence
    )
    crc = crc32c(memoryview(batch)[CRC_START:])
    batch[_CRC_AT : _CRC_AT + 4] = crc.to_bytes(4, "big")


def _report(
    attempt: Attempt, opened_ms: int, written: dict[TopicPartition, Written], manifests: list[str]
) -> pa.RecordBatch:
    rows: list[dict[str, Any]] = [
        {
            "task_attempt_id": attempt.task_attempt_id,
            "topic": place.topic,
            "partition": place.partition,
            "records": lane.records,
            "batches": lane.batches,
            "size_bytes": lane.size_bytes,
            "base_offset": lane.base_offset,
            "last_offset": lane.last_offset,
            "last_sequence": lane.last_sequence,
            "opened_ms": opened_ms,
        }
        for place, lane in written.items()
    ]
    rows += [{"task_attempt_id": attempt.task_attempt_id, "manifest": text} for text in manifests]
    return pa.RecordBatch.from_pylist(rows, schema=_REPORT)
