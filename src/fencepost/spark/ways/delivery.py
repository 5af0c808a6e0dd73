"""Batches to brokers: what the writer of a partition does, on every route.

Theory of operation. The stage that writes is a barrier stage whose result is collected: Spark runs
every task of it exactly once or fails the job. Where Spark refuses barrier stages, only one try of
each task gets a permit to write (`permits.py`). Each topic-partition belongs to one task
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
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Self

from crc32c import crc32c

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import TopicPartition
from fencepost.client.blocking import TransactionalWriter
from fencepost.client.failures import BatchRefusedForSize, Refused
from fencepost.client.options import ClientOptions
from fencepost.client.transactions import ProducerIdentity
from fencepost.client.writer import Written
from fencepost.records.batch import CRC_START
from fencepost.spark.connection import cluster_of
from fencepost.spark.failures import BatchTooLarge, CountsDisagree, RowRefused

FIRST_LENGTHS: Final = 509
"""How many lengths a first batch may have; attempts of one job have ids closer than this."""

INBOX_BYTES: Final = 16 * 1024 * 1024
"""The most that may wait in the queue of a delivery thread. Beyond it, `put` waits."""

LISTEN_SECONDS: Final = 0.002
"""How long a delivery thread without work waits before it polls for answers of the brokers."""

GIVE_UP_SECONDS: Final = 5.0
"""How long a failing task waits for its delivery thread, which may be waiting for a broker."""

QueuedBatch = tuple[TopicPartition, bytearray | memoryview, Callable[[], None]]
"""A batch, its place, and what to call when its bytes are no longer needed."""

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
                "never does: the transaction is given up"
            )


def first_length(task_attempt_id: int) -> int:
    """The most records of a first batch by this attempt of a task."""
    return 1 + task_attempt_id % FIRST_LENGTHS


class Delivery:
    """Seals the batches of one task, and passes them to its writer."""

    def __init__(self, writer: TransactionalWriter) -> None:
        self._writer = writer
        self.opened_ms = 0
        """When this task began to write: the transaction is open since then or longer."""

    def put(
        self,
        place: TopicPartition,
        batch: bytearray | memoryview,
        done: Callable[[], None] | None = None,
    ) -> None:
        """Seals the batch; the next `poll` or `flush` of the writer sends it.

        Its bytes must not change until `done`.
        """
        self.opened_ms = self.opened_ms or time.time_ns() // 1_000_000
        stamp_producer(batch, self._writer.identity, self._writer.next_sequence(place))
        self._writer.put(place, batch, done)


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


@contextmanager
def explained_refusals() -> Iterator[None]:
    """Turns a broker's refusal of the rows into RowRefused, or BatchTooLarge."""
    try:
        yield
    except BatchRefusedForSize as problem:
        place, records, size_bytes = problem.partition, problem.records, problem.size_bytes
        assert place is not None, "a writer names the partition"
        raise BatchTooLarge(place.topic, records, size_bytes) from problem
    except Refused as problem:
        if (advice := _ABOUT_ROWS.get(problem.code)) is None:
            raise
        raise RowRefused(f"{problem.partition}: {advice}") from problem


class DeliveryThread:
    """The thread of a task that writes to the brokers, and its queue of batches.

    It ends when all sources of batches have ended.
    """

    def __init__(
        self,
        options: ClientOptions,
        identity: ProducerIdentity,
        sources: int,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._options = options
        self._identity = identity
        self._sources = sources
        self._on_failure = on_failure
        self._changed = threading.Condition()
        self._waiting: deque[QueuedBatch] = deque()
        self._waiting_bytes = 0
        self._is_closed = False
        self._failure: BaseException | None = None
        self._written: dict[TopicPartition, Written] = {}
        self._thread = threading.Thread(target=self._run, name="deliverer", daemon=True)
        self.opened_ms = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join(GIVE_UP_SECONDS)

    # For the sources.

    def put(
        self, place: TopicPartition, data: bytearray | memoryview, done: Callable[[], None]
    ) -> None:
        """Queues a batch; waits while the queue is full. Raises the failure of the delivery."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._failure or self._is_closed or self._waiting_bytes < INBOX_BYTES
            )
            self._raise_failure()
            self._waiting.append((place, data, done))
            self._waiting_bytes += len(data)
            self._changed.notify_all()

    def end(self) -> None:
        """Notes that one source has no more batches."""
        with self._changed:
            self._sources -= 1
            self._changed.notify_all()

    def fail(self, problem: BaseException) -> None:
        """Notes that one source has failed, and with it the task."""
        with self._changed:
            self._failure = self._failure or problem
            self._changed.notify_all()
        self._on_failure(problem)

    def finish(self) -> dict[TopicPartition, Written]:
        """Waits until all batches of all sources are acknowledged."""
        self._thread.join()
        self._raise_failure()
        return self._written

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    # The thread.

    def _run(self) -> None:
        try:
            with cluster_of(self._options).writer(self._identity) as writer:
                delivery = Delivery(writer)
                while (queued := self._next(writer)) is not None:
                    delivery.put(*queued)
                    writer.poll()
                self._written = writer.flush()
                self.opened_ms = delivery.opened_ms
        except BaseException as problem:  # noqa: BLE001 - raised again by `finish`.
            self.fail(problem)

    def _next(self, writer: TransactionalWriter) -> QueuedBatch | None:
        """The next batch, or None at the end; polls for answers of the brokers while it waits."""
        while True:
            with self._changed:
                is_ready = self._changed.wait_for(
                    lambda: self._waiting or not self._sources or self._is_closed or self._failure,
                    LISTEN_SECONDS if writer.unacknowledged_bytes else None,
                )
                if is_ready and (self._failure or self._is_closed or not self._waiting):
                    return None
                if is_ready:
                    queued = self._waiting.popleft()
                    self._waiting_bytes -= len(queued[1])
                    self._changed.notify_all()
                    return queued
            writer.poll()
