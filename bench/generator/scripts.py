"""The work of a producer, as a generator that is resumed with each reply.

Transactions rotate over the partitions of the topic, and so do requests outside of transactions. In
TV2 every EndTxn gives the producer a new epoch, with which the sequences of all partitions begin
again; in TV1 they continue.

The first Produce request of a transaction is awaited before others are sent: it may get
CONCURRENT_TRANSACTIONS, and the requests after it would then be out of order.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Container, Generator, Iterable
from typing import Final

from bench.generator import answers
from bench.generator.answers import CONCURRENT_TRANSACTIONS, NO_ERROR, Answer, Identity
from bench.generator.engine import Connection, Engine, Script
from bench.generator.frames import AddPartitionsFrame, EndFrame, ProduceFrame
from bench.generator.job import Job
from bench.generator.routes import Route
from fencepost.base.ids import MAX_SEQUENCE
from fencepost.records.builder import build_batch
from fencepost.records.opened import Record

PRODUCE_TV1: Final = 11
"""The last version in which Produce does not add partitions to a transaction."""
PRODUCE_TV2: Final = 12
END_TV1: Final = 4
END_TV2: Final = 5

RETRIED: Final = (CONCURRENT_TRANSACTIONS,)
"""Errors that clients retry: the previous transaction is still being completed."""

_now = time.perf_counter


def make_batch(job: Job) -> bytes:
    """The batch of every request: incompressible bytes, with the current time."""
    records = [Record(value=os.urandom(job.size)) for _ in range(job.records)]
    nobody = -1 if job.mode == "acks1" else 0
    return bytes(
        build_batch(
            records,
            timestamp_ms=time.time_ns() // 1_000_000,
            producer_id=nobody,
            producer_epoch=nobody,
            base_sequence=nobody,
            transactional=job.mode not in ("acks1", "idempotent"),
        )
    )


class Asker:
    """A connection that sends a request and waits for its reply."""

    def __init__(self, job: Job, engine: Engine, connection: Connection) -> None:
        self._job = job
        self._engine = engine
        self._connection = connection

    def _ask(
        self,
        frame: bytearray,
        answer: Answer,
        retried: Container[bytes] = RETRIED,
        *,
        to: Connection | None = None,
    ) -> Generator[float | None, bytes | None, bytes]:
        """The reply to a request, which is retried while the broker asks for it."""
        connection = to or self._connection
        while True:
            connection.send(frame)
            reply = yield None
            while reply is None:  # The last of the request went out only now.
                reply = yield None
            self._engine.tally.requests += 1
            code = answer.error_in(reply)
            if code == NO_ERROR:
                return reply
            if code not in retried:
                raise answer.refusal(code)
            self._engine.tally.retries += 1
            yield self._job.backoff_ms / 1000


class Sender(Asker):
    """The common part of all producers: identity, partition and request."""

    _produce_version = PRODUCE_TV1
    _transactional_id: str | None = None

    def __init__(
        self, job: Job, engine: Engine, route: Route, number: int, identity: Identity
    ) -> None:
        super().__init__(job, engine, route.coordinator)
        self._identity = identity
        self._leaders = route.leaders
        self._places = route.partitions
        # Spread out: neighbours would all write to the same partition within milliseconds, and find
        # it in the cache.
        self._place = number * len(self._places) // job.producers
        self._partition = self._places[self._place]
        self._sequences = [0] * job.partitions
        self._records_at_once = job.records * job.spread
        self._bytes_at_once = self._records_at_once * job.size
        self._produced = answers.produced(job.topic, self._produce_version, job.spread)

    def _make_frame(self, batch: bytes) -> ProduceFrame:
        return ProduceFrame(
            self._job.topic,
            batch,
            version=self._produce_version,
            acks=1 if self._job.mode == "acks1" else -1,
            transactional_id=self._transactional_id,
            spread=self._job.spread,
        )

    def _seal(self, frame: ProduceFrame) -> None:
        """Prepares the next batches of the current partitions."""
        sequence = self._sequences[self._partition]
        frame.seal(*self._identity, sequence)
        self._sequences[self._partition] = (sequence + self._job.records) & MAX_SEQUENCE

    def _next_partition(self) -> None:
        self._place = (self._place + self._job.spread) % len(self._places)
        self._partition = self._places[self._place]

    def _count_records(self, sent_at: float) -> None:
        tally = self._engine.tally
        tally.records += self._records_at_once
        tally.value_bytes += self._bytes_at_once
        tally.request_seconds.append(_now() - sent_at)

    def _send_ahead(self, frame: ProduceFrame, count: int | None) -> Script:
        """Sends `count` Produce requests, or until the run ends, some in flight."""
        connection, engine, window = self._leaders[self._partition], self._engine, self._job.window
        sent_at: deque[float] = deque()
        left = count
        while True:
            may_send = left > 0 if left is not None else not engine.is_over
            if may_send and len(sent_at) < window and connection.rest is None:
                self._prepare(frame)
                sent_at.append(_now())
                connection.send(frame.data)
                left = None if left is None else left - 1
            elif sent_at:
                reply = yield None
                if reply is not None:
                    self._expect_success(reply)
                    self._count_records(sent_at.popleft())
            else:
                return

    def _prepare(self, frame: ProduceFrame) -> None:
        """Makes it the next request."""
        raise NotImplementedError

    def _expect_success(self, reply: bytes) -> None:
        self._engine.tally.requests += 1
        if (code := self._produced.error_in(reply)) != NO_ERROR:
            raise self._produced.refusal(code)


class Streaming(Sender):
    """Sends requests outside of transactions, each to the next partition."""

    def script(self, batch: bytes) -> Script:
        return self._send_ahead(self._make_frame(batch), None)

    def _prepare(self, frame: ProduceFrame) -> None:
        frame.address(self._partition, self._job.partitions)
        if self._job.mode == "idempotent":
            self._seal(frame)
        self._next_partition()


class Transactional(Sender):
    """Commits one transaction after the other (in TV2 the first Produce begins it)."""

    _produce_version = PRODUCE_TV2
    _end_version = END_TV2

    def __init__(
        self, job: Job, engine: Engine, route: Route, number: int, identity: Identity
    ) -> None:
        super().__init__(job, engine, route, number, identity)
        self._transactional_id = transactional_id = job.transactional_id(number)
        self._end = EndFrame(transactional_id, self._end_version)
        self._ended = answers.ended(self._end_version)

    def script(self, batch: bytes) -> Script:
        engine, more = self._engine, self._job.requests - 1
        frame = self._make_frame(batch)
        while not engine.is_over:
            begun_at = _now()
            yield from self._begin()
            frame.address(self._partition, self._job.partitions)
            self._seal(frame)
            sent_at = _now()
            yield from self._ask(frame.data, self._produced, to=self._leaders[self._partition])
            self._count_records(sent_at)
            if more:
                yield from self._send_ahead(frame, more)
            committing_at = _now()
            self._end.prepare(*self._identity)
            reply = yield from self._ask(self._end.data, self._ended)
            self._go_on(reply)
            done_at = _now()
            tally = engine.tally
            tally.transactions += 1
            tally.commit_seconds.append(done_at - committing_at)
            tally.transaction_seconds.append(done_at - begun_at)
            self._next_partition()

    def _begin(self) -> Iterable[float | None]:
        """Does nothing: the broker adds the partition on the first write."""
        return ()

    def _prepare(self, frame: ProduceFrame) -> None:
        self._seal(frame)

    def _go_on(self, ended: bytes) -> None:
        """Takes the producer id and epoch from the reply to EndTxn."""
        self._identity = self._ended.identity_in(ended)
        # A new epoch begins with sequence 0; no other partition was written in this one.
        self._sequences[self._partition] = 0


class TransactionalV1(Transactional):
    """Commits transactions in TV1: partitions are added first, and the epoch stays."""

    _produce_version = PRODUCE_TV1
    _end_version = END_TV1

    def __init__(
        self, job: Job, engine: Engine, route: Route, number: int, identity: Identity
    ) -> None:
        super().__init__(job, engine, route, number, identity)
        name = job.transactional_id(number)
        version = AddPartitionsFrame.VERSION
        self._add = AddPartitionsFrame(job.topic, name, job.spread)
        self._added = answers.partitions_added(job.topic, name, version, job.spread)

    def _begin(self) -> Script:
        self._add.prepare(*self._identity, self._partition, self._job.partitions)
        yield from self._ask(self._add.data, self._added)

    def _go_on(self, ended: bytes) -> None:
        """Keeps the producer id and epoch."""


def sender(mode: str) -> type[Streaming | Transactional]:
    """The script for each mode."""
    return {"tv1": TransactionalV1, "tv2": Transactional}.get(mode, Streaming)
