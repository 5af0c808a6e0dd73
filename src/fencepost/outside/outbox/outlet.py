"""Kafka's side of the relay: one transaction per chunk, with the position in it.

A chunk: rows are sent as batches become full; at its end the others together with the position, in
one request if one broker leads all their partitions, then EndTxn. With transaction version 2 each
EndTxn returns a new epoch. With version 1 the next epoch is requested with the current one, so a
relay that was fenced cannot fence its successor in turn (KIP-360).
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import TopicPartition
from fencepost.client.failures import ClientError, ProducerFenced, Refused
from fencepost.client.record_writer import RecordWriter
from fencepost.outside.failures import OutsideError
from fencepost.outside.outbox.positions import encode_position, ensure_topic, read_position
from fencepost.outside.outbox.refused import (
    READABLE_BYTES,
    ROW_CODES,
    TOPIC_PATIENCE_SECONDS,
    ChunkRefused,
    RecordRefused,
)
from fencepost.outside.outbox.rows import RowRefused
from fencepost.records.opened import Record

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fencepost.client.admin import TopicView
    from fencepost.client.blocking import Cluster, TransactionalWriter
    from fencepost.client.transactions import ProducerIdentity
    from fencepost.outside.outbox.rules import Position

BATCH_BYTES: Final = 256 * 1024
"""Records of a partition are collected into batches of this size; a larger record is one alone."""
TOPIC_RETRY_SECONDS: Final = 0.2


class TopicMissing(RowRefused):
    """A row names a topic that does not exist."""

    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.name


class RelayFenced(OutsideError):  # noqa: N818 - named for what is the case
    """Another relay has taken over."""


class Outlet:
    """The transactional producer of a relay. `fence` comes first."""

    def __init__(
        self,
        cluster: Cluster,
        transactional_id: str,
        position_topic: str,
        timeout_ms: int,
        batch_bytes: Mapping[str, int] | None = None,
    ) -> None:
        """`batch_bytes`: of topics that accept only smaller batches."""
        self.is_careful = False
        """Whether each row is sent alone, so that a refusal is about that row."""
        self._batch_bytes = batch_bytes or {}
        self._missing: set[str] = set()
        self._cluster = cluster
        self._id = transactional_id
        self._place = TopicPartition(position_topic, 0)
        self._timeout_ms = timeout_ms
        self._identity: ProducerIdentity | None = None
        self._writer: TransactionalWriter | None = None
        self._topics: dict[str, RecordWriter] = {}
        self._partitions: dict[str, tuple[list[int], list[int]]] = {}
        self._chunks = 0
        self._opened = 0.0

    @property
    def open_ms(self) -> int:
        """How long the transaction has been open; 0 if none is."""
        return 0 if self._writer is None else int((time.monotonic() - self._opened) * 1_000)

    def peek(self) -> Position | None:
        """The position while another relay may be running; creates its topic if it is missing."""
        ensure_topic(self._cluster, self._place.topic)
        return read_position(self._cluster, self._place.topic, self._id, fenced=False)

    def fence(self) -> Position | None:
        """Takes the transactional id over, and returns the position."""
        self._identity = self._cluster.init_producer_id(self._id, self._timeout_ms)
        return read_position(self._cluster, self._place.topic, self._id, fenced=True)

    def add(self, topic: str, record: Record, number: int) -> None:
        """Writes a row into the transaction of the chunk. `number` grows from row to row.

        RowRefused if this row cannot be written: the transaction is as it was before.
        ChunkRefused if a row of the chunk cannot, and it is not known which.
        """
        if len(record.value or b"") + len(record.key or b"") > READABLE_BYTES:
            raise RecordRefused.unreadable()
        writer = self._topics.get(topic) or self._open_topic(topic)
        partition = None
        if record.key is None:
            # Small chunks would all begin with the same partition.
            available = self._partitions[topic][1]
            partition = available[self._chunks % len(available)]
        try:  # Not a context manager: it is entered for each row.
            writer.add(record, number, partition)
            if self.is_careful:
                writer.flush()
        except Refused as problem:
            self._raise_if_known(problem)
            raise

    def write_position(self, position: Position) -> None:
        """Writes the position, with the rows that were not sent yet; all are acknowledged."""
        record = Record(key=self._id.encode(), value=encode_position(position))
        with self._noticing_a_fence():
            writer = self._open()
            for topic in self._topics.values():
                topic.put()
            writer.put_records(self._place, [record])
            writer.flush()

    def commit(self) -> None:
        """Commits the transaction; rows and position are visible, or neither."""
        assert self._identity is not None
        assert self._writer is not None
        with self._noticing_a_fence():
            self._writer.close()
            self._identity = self._cluster.end_txn(self._identity, commit=True)
            self._forget_writers()
            if not self._identity.is_tv2:
                mine = self._identity
                self._identity = self._cluster.init_producer_id(
                    self._id, self._timeout_ms, mine.producer_id, mine.producer_epoch
                )
        self._chunks += 1

    def abandon(self) -> None:
        """Aborts the open transaction, if that is possible; else the next fence does."""
        if self._writer is not None and self._identity is not None:
            self._writer.close()
            self._forget_writers()
            with contextlib.suppress(ClientError):
                self._cluster.end_txn(self._identity, commit=False)

    def require_ownership(self) -> None:
        """Raises RelayFenced if another relay has the id. Only valid between transactions."""
        assert self._identity is not None
        view = self._cluster.describe_transactions([self._id])[self._id]
        mine = (self._identity.producer_id, self._identity.producer_epoch)
        if view is not None and (view.producer_id, view.producer_epoch) != mine:
            raise self._fenced()

    def _open(self) -> TransactionalWriter:
        assert self._identity is not None
        if self._writer is None:
            self._writer = self._cluster.writer(self._identity)
            self._opened = time.monotonic()
        return self._writer

    def _open_topic(self, topic: str) -> RecordWriter:
        if topic not in self._partitions:
            view = self._find_topic(topic)
            indexes = [each.index for each in view.partitions]
            available = [each.index for each in view.partitions if each.leader >= 0]
            self._partitions[topic] = indexes, available or indexes
        indexes, available = self._partitions[topic]
        size = self._batch_bytes.get(topic, BATCH_BYTES)
        made = RecordWriter(self._open(), topic, indexes, available=available, batch_bytes=size)
        self._topics[topic] = made
        return made

    def _find_topic(self, topic: str) -> TopicView:
        deadline = time.monotonic() + TOPIC_PATIENCE_SECONDS
        while True:
            try:
                view = self._cluster.find_topic(topic)
            except Refused as problem:
                if problem.code in ROW_CODES:
                    raise RecordRefused.of(problem) from problem
                raise
            if view is not None:
                self._missing.discard(topic)
                return view
            if topic in self._missing or time.monotonic() >= deadline:
                self._missing.add(topic)
                raise TopicMissing(
                    f"topic {topic!r} does not exist: create it (fencepost topic create), or "
                    "correct --topic"
                )
            time.sleep(TOPIC_RETRY_SECONDS)

    def _forget_writers(self) -> None:
        self._writer = None
        self._topics = {}

    def _raise_if_known(self, problem: Refused) -> None:
        """Raises what a refused batch means, unless it is no row's fault."""
        if isinstance(problem, ProducerFenced):
            raise self._fenced() from problem
        at = problem.partition
        if problem.code not in ROW_CODES or at is None or at == self._place:
            return
        if self.is_careful and self._writer is not None and self._writer.withdraw():
            raise RecordRefused.of(problem) from problem
        raise ChunkRefused(problem) from problem

    @contextlib.contextmanager
    def _noticing_a_fence(self) -> Iterator[None]:
        try:
            yield
        except Refused as problem:
            self._raise_if_known(problem)
            # With version 2 a fence is one epoch ahead, which is also where a commit would end.
            if problem.code == ErrorCode.INVALID_TXN_STATE:
                raise self._fenced() from problem
            raise

    def _fenced(self) -> RelayFenced:
        self._forget_writers()
        return RelayFenced(
            f"another relay has taken over the transactional id {self._id!r}, or a transaction "
            f"was open for longer than {self._timeout_ms} ms and was aborted. An unfinished chunk "
            "is not visible; if no other relay runs, start again"
        )
