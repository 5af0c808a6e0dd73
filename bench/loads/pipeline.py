"""Consume, transform, produce: output and offsets are committed in one transaction.

librdkafka at both ends: a consumer in a group, a transactional producer, `RECORDS_AT_ONCE` records
per transaction. The output is read back with read_committed and counted.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, Message, Producer, TopicPartition

from bench import client
from bench.generate import shared_broker
from bench.load import Load, Measure, Round, Scale, Values
from bench.sides import Broker, Side

RECORDS: Final = 10_000
QUICK_RECORDS: Final = 3_000
RECORDS_AT_ONCE: Final = 100
RETRY_BACKOFF_MS: Final = 5
"""In Apache Kafka's favour: it makes clients retry while it completes the previous transaction, and
librdkafka's default pause is 100 ms. fencepost never does that."""


@contextmanager
def _session(side: Side, scale: Scale, _: Path) -> Iterator[Round]:
    with shared_broker(side, scale) as broker:
        yield lambda number: _round(broker, number, scale.of(RECORDS, QUICK_RECORDS))


def _round(broker: Broker, number: int, count: int) -> Values:
    source, target = f"pipeline-in-{number}", f"pipeline-out-{number}"
    client.create_topic(broker, source)
    client.create_topic(broker, target)
    client.send(client.producer(broker, acks="1"), source, os.urandom(client.RECORD_BYTES), count)
    reader = client.consumer(broker, isolation_level="read_committed", group_id=source)
    reader.subscribe([source])
    writer = client.producer(
        broker, transactional_id="pipeline", linger_ms=0, retry_backoff_ms=RETRY_BACKOFF_MS
    )
    writer.init_transactions()
    values = _carry(reader, writer, target, count)
    reader.close()
    _check(broker, target, count)
    client.delete_topic(broker, source)
    client.delete_topic(broker, target)
    return values


def _carry(reader: Consumer, writer: Producer, target: str, count: int) -> Values:
    first = _next(reader)
    started = time.perf_counter()
    seconds: list[float] = []
    done = 0
    while done < count:
        batch, first = (first, []) if first else (_next(reader), [])
        began = time.perf_counter()
        _step(reader, writer, target, batch)
        seconds.append(time.perf_counter() - began)
        done += len(batch)
    cuts = statistics.quantiles(seconds, n=100)
    return {
        "records": done / (time.perf_counter() - started),
        "p50": cuts[49] * 1000,
        "p99": cuts[98] * 1000,
    }


def _next(reader: Consumer) -> list[Message]:
    deadline = time.monotonic() + client.PATIENCE_SECONDS
    while time.monotonic() < deadline:
        messages = reader.consume(RECORDS_AT_ONCE, 1.0)
        good = [message for message in messages if message.error() is None]
        if good:
            return good
    raise AssertionError("no records came")


def _step(reader: Consumer, writer: Producer, target: str, batch: list[Message]) -> None:
    """One transaction: the output of these records, and their offsets."""
    writer.begin_transaction()
    ends: dict[tuple[str, int], int] = {}
    for message in batch:
        writer.produce(target, message.value())
        ends[message.topic(), message.partition()] = message.offset() + 1
    offsets = [TopicPartition(topic, number, end) for (topic, number), end in ends.items()]
    writer.send_offsets_to_transaction(offsets, reader.consumer_group_metadata())
    writer.commit_transaction()


def _check(broker: Broker, target: str, count: int) -> None:
    reader = client.consumer(broker, isolation_level="read_committed")
    client.read(reader, target, count)
    reader.close()


LOAD: Final = Load(
    "pipeline",
    f"consume-transform-produce, librdkafka, {RECORDS_AT_ONCE} records per transaction",
    (
        Measure("records", "records/s end to end", "more"),
        Measure("p50", "ms per transaction, median", "less"),
        Measure("p99", "ms per transaction, p99", "less"),
    ),
    _session,
    rounds=4,
    quick_rounds=1,
    warmup_seconds=0,
    quick_warmup_seconds=0,
)
