"""fencepost's own client as an adapter of the copier; it speaks TV2."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from fencepost.base.failures import FencepostError
from fencepost.base.ids import TopicPartition
from fencepost.client.blocking import TransactionalWriter, connect
from fencepost.client.failures import ProducerFenced, RetriesExhausted
from fencepost.client.groups import CommittedOffset
from fencepost.client.transactions import ProducerIdentity
from fencepost.records.opened import Record
from fencepost_examples.refunds.processor.ports import (
    AbortableError,
    FatalError,
    FencedError,
    KafkaFailure,
    Message,
    Place,
    RetriableError,
)

MAX_MESSAGES: Final = 100


class OwnClient:
    """One shard: a transactional id and its source partitions."""

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        transactional_id: str,
        group: str,
        source: Sequence[Place],
        timeout_seconds: float = 10.0,
        transaction_timeout_ms: int = 60_000,
    ) -> None:
        limit_ms = int(timeout_seconds * 1000)
        options = {"default.api.timeout.ms": limit_ms, "delivery.timeout.ms": limit_ms}
        options["request.timeout.ms"] = limit_ms
        self._cluster = connect(bootstrap_servers, options)
        self._transactional_id = transactional_id
        self._timeout_ms = transaction_timeout_ms
        self._group = group
        self._source = [TopicPartition(*place) for place in source]
        self._positions: dict[TopicPartition, int] = {}
        self._partition_counts: dict[str, int] = {}
        self._identity: ProducerIdentity | None = None
        self._writer: TransactionalWriter | None = None
        self._rows: defaultdict[TopicPartition, list[Record]] = defaultdict(list)

    def init_transactions(self) -> None:
        with translated(FatalError):
            self._identity = self._cluster.init_producer_id(
                self._transactional_id, timeout_ms=self._timeout_ms
            )

    def poll(self) -> Sequence[Message]:
        if not self._positions:
            self.rewind()
        with translated(RetriableError):
            fetched = self._cluster.fetch(
                self._positions,
                isolation="read_committed",
                max_wait_ms=200,
                partition_max_bytes=8_192,
            )
        found = []
        for partition, part in fetched.items():
            records = list(part.records())[:MAX_MESSAGES]
            found += [Message(*partition, each.offset, each.value) for each in records]
            is_cut = len(records) == MAX_MESSAGES
            self._positions[partition] = records[-1].offset + 1 if is_cut else part.next_offset
        return found

    def begin(self) -> None:
        assert self._identity is not None, "init_transactions comes first"
        self._rows.clear()
        self._writer = self._cluster.writer(self._identity)

    def send(self, topic: str, key: bytes, value: bytes) -> None:
        if topic not in self._partition_counts:
            with translated(AbortableError):
                found = self._cluster.metadata([topic]).topics[topic]
            self._partition_counts[topic] = len(found.partitions)
        index = zlib.crc32(key) % self._partition_counts[topic]
        self._rows[TopicPartition(topic, index)].append(Record(key=key, value=value))

    def send_offsets(self, offsets: Mapping[Place, int]) -> None:
        assert self._identity is not None, "init_transactions comes first"
        assert self._writer is not None, "begin comes first"
        with translated(AbortableError, on_timeout=AbortableError):
            for partition, rows in self._rows.items():
                self._writer.write_records(partition, rows)
            self._writer.flush()
            self._cluster.txn_offset_commit(
                self._identity,
                self._group,
                {TopicPartition(*place): CommittedOffset(at) for place, at in offsets.items()},
            )

    def commit(self) -> None:
        self._end(commit=True)

    def abort(self) -> None:
        self._end(commit=False)

    def _end(self, *, commit: bool) -> None:
        """An unknown outcome is fatal: the next instance's InitProducerId settles it."""
        assert self._identity is not None, "init_transactions comes first"
        self._close_writer()
        with translated(FatalError, on_timeout=FatalError):
            self._identity = self._cluster.end_txn(self._identity, commit=commit)

    def rewind(self) -> None:
        with translated(RetriableError):
            committed = self._cluster.offset_fetch(self._group, self._source)
        self._positions = {
            each: max(committed[each].offset, 0) if each in committed else 0
            for each in self._source
        }

    def close(self) -> None:
        self._close_writer()
        self._cluster.close()

    def _close_writer(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()


@contextmanager
def translated(
    otherwise: type[KafkaFailure], on_timeout: type[KafkaFailure] = RetriableError
) -> Iterator[None]:
    """Maps the client's errors to the four kinds; `otherwise` depends on the call."""
    try:
        yield
    except ProducerFenced as problem:
        raise FencedError(str(problem)) from problem
    except RetriesExhausted as problem:
        raise on_timeout(str(problem)) from problem
    except FencepostError as problem:
        raise otherwise(str(problem)) from problem
