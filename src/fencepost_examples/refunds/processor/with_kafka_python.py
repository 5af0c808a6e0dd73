"""The adapter for kafka-python.

Its errors do not say whether an abort helps, so the processor tries one; if that fails, it stops.

The library retries without a limit, so `commit` and `abort` have no timeout.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError, KafkaTimeoutError, ProducerFencedError
from kafka.structs import OffsetAndMetadata

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


class KafkaPython:
    """One shard: a transactional id and its source partitions."""

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        transactional_id: str,
        group: str,
        source: Sequence[Place],
        timeout_seconds: float = 10.0,
        **settings: Any,
    ) -> None:
        self._source = [TopicPartition(topic, index) for topic, index in source]
        self._producer = KafkaProducer(
            bootstrap_servers=bootstrap_servers,
            transactional_id=transactional_id,
            max_block_ms=int(timeout_seconds * 1000),
            **settings,
        )
        self._consumer = KafkaConsumer(
            bootstrap_servers=bootstrap_servers,
            group_id=group,
            isolation_level="read_committed",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        )
        self._consumer.assign(self._source)
        self._sent: list[Any] = []
        self._closed = False

    def init_transactions(self) -> None:
        with translated(FatalError):
            self._producer.init_transactions()

    def poll(self) -> Sequence[Message]:
        with translated(RetriableError):
            found = self._consumer.poll(timeout_ms=500, max_records=MAX_MESSAGES)
        return [
            Message(record.topic, record.partition, record.offset, record.value)
            for records in found.values()
            for record in records
        ]

    def begin(self) -> None:
        self._sent.clear()
        with translated(FatalError):
            self._producer.begin_transaction()

    def send(self, topic: str, key: bytes, value: bytes) -> None:
        with translated(AbortableError):
            self._sent.append(self._producer.send(topic, value, key))

    def send_offsets(self, offsets: Mapping[Place, int]) -> None:
        positions = {
            TopicPartition(*place): OffsetAndMetadata(offset, "", -1)
            for place, offset in offsets.items()
        }
        with translated(AbortableError):
            self._producer.send_offsets_to_transaction(positions, self._consumer.group_metadata())

    def commit(self) -> None:
        with translated(AbortableError):
            self._producer.flush()
            for sent in self._sent:
                sent.get(timeout=0)
            self._producer.commit_transaction()

    def abort(self) -> None:
        with translated(FatalError):
            self._producer.abort_transaction()

    def rewind(self) -> None:
        with translated(RetriableError):
            for place in self._source:
                committed = self._consumer.committed(place)
                if committed is None:
                    self._consumer.seek_to_beginning(place)
                else:
                    self._consumer.seek(place, committed)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._consumer.close(autocommit=False)
            with suppress(KafkaError):  # What can no longer be sent.
                self._producer.close(timeout=1.0)


@contextmanager
def translated(otherwise: type[KafkaFailure]) -> Iterator[None]:
    """Maps kafka-python's errors to the four kinds; `otherwise` depends on the call."""
    try:
        yield
    except ProducerFencedError as problem:
        raise FencedError(str(problem)) from problem
    except KafkaTimeoutError as problem:
        raise RetriableError(str(problem)) from problem
    except KafkaError as problem:
        if "ProducerFencedError" in str(
            problem
        ):  # Later calls have the first error only in their text.
            raise FencedError(str(problem)) from problem
        raise otherwise(str(problem)) from problem
