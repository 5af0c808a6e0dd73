"""The adapter for confluent-kafka (librdkafka).

Its errors say how to react: fatal, requires abort, retriable.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)

from fencepost_examples.refunds.processor.ports import (
    AbortableError,
    FatalError,
    FencedError,
    Message,
    Place,
    RetriableError,
)

MAX_MESSAGES: Final = 100
MAX_IDLE_MS: Final = 10_000

FENCED: Final = frozenset(
    {
        KafkaError._FENCED,  # noqa: SLF001 - librdkafka's own codes begin with an underscore.
        KafkaError.INVALID_PRODUCER_EPOCH,
    }
)


class ConfluentKafka:
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
        self._timeout = timeout_seconds
        self._group = group
        self._source = [TopicPartition(topic, index) for topic, index in source]
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "transactional.id": transactional_id,
                # librdkafka 2.16 forgets a broker that is missing in the metadata, and by default
                # all of them when the last one goes down. If the coordinator of the group was among
                # them, send_offsets_to_transaction waits, beyond its timeout, until some other
                # connection is opened or closed (librdkafka's issues 5511 and 5456). Idle ones are
                # therefore closed soon.
                "metadata.recovery.strategy": "none",
                "connections.max.idle.ms": MAX_IDLE_MS,
                **{key.replace("_", "."): value for key, value in settings.items()},
            }
        )
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": group,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
            }
        )
        self._consumer.assign(self._source)
        self._closed = False

    def init_transactions(self) -> None:
        with translated():
            self._producer.init_transactions(self._timeout)

    def poll(self) -> Sequence[Message]:
        with translated():
            first = self._consumer.poll(0.5)  # `consume` would wait for the full number.
            found = [] if first is None else [first, *self._consumer.consume(MAX_MESSAGES, 0.0)]
        for message in found:
            if message.error() is not None:
                raise RetriableError(message.error())
        return [Message(m.topic(), m.partition(), m.offset(), m.value()) for m in found]

    def begin(self) -> None:
        with translated():
            self._producer.begin_transaction()

    def send(self, topic: str, key: bytes, value: bytes) -> None:
        with translated():
            self._producer.produce(topic, value, key)

    def send_offsets(self, offsets: Mapping[Place, int]) -> None:
        positions = [TopicPartition(*place, offset) for place, offset in offsets.items()]
        with translated():
            self._producer.send_offsets_to_transaction(
                positions, self._consumer.consumer_group_metadata(), self._timeout
            )

    def commit(self) -> None:
        with translated():  # An undelivered message fails the commit.
            self._producer.commit_transaction(self._timeout)

    def abort(self) -> None:
        with translated():
            self._producer.abort_transaction(self._timeout)

    def rewind(self) -> None:
        with translated():
            for place in self._consumer.committed(self._source, self._timeout):
                if place.offset < 0:
                    place.offset = OFFSET_BEGINNING
                self._consumer.seek(place)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._consumer.close()
            # Producer.close would abort the transaction. The next instance or the timeout does
            # that.
            self._producer.purge()


@contextmanager
def translated() -> Iterator[None]:
    """Maps librdkafka's errors to the four kinds."""
    try:
        yield
    except BufferError as problem:
        raise RetriableError("the queue of the producer is full") from problem
    except KafkaException as problem:
        error = problem.args[0]
        if error.code() in FENCED:
            raise FencedError(error.str()) from problem
        if error.fatal():
            raise FatalError(error.str()) from problem
        if error.txn_requires_abort():
            raise AbortableError(error.str()) from problem
        if error.retriable():
            raise RetriableError(error.str()) from problem
        raise FatalError(error.str()) from problem
