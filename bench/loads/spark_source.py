"""A topic of Apache Kafka into Spark, read_committed: fencepost's source beside Spark's own.

librdkafka wrote the topic in transactions, one in ten of them aborted. A round is one micro-batch
of a fresh query that reads the whole topic and drops the rows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

from bench import client
from bench.load import Load, Measure, Round, Scale, Values
from bench.sides import Broker, Side
from bench.spark import PARTITIONS, seconds_of, stage

PER_TRANSACTION: Final = 5_000
ABORTED: Final = 10
"""One in so many transactions is aborted."""


def fill(broker: Broker, topic: str, value_bytes: int, count: int) -> None:
    """Writes that many visible records, and some aborted ones."""
    client.create_topic(broker, topic, PARTITIONS)
    writer = client.producer(broker, transactional_id=topic)
    writer.init_transactions(client.PATIENCE_SECONDS)
    value = os.urandom(value_bytes)
    number = 0
    while count > 0:
        number += 1
        size = min(count, PER_TRANSACTION)
        writer.begin_transaction()
        client.send(writer, topic, value, size)
        if number % ABORTED == 0:
            writer.abort_transaction(client.PATIENCE_SECONDS)
            continue
        writer.commit_transaction(client.PATIENCE_SECONDS)
        count -= size


def _session(
    name: str, value_bytes: int, count: int, quick_count: int
) -> Callable[[Side, Scale, Path], AbstractContextManager[Round]]:
    @contextmanager
    def session(side: Side, scale: Scale, _: Path) -> Iterator[Round]:
        records = scale.of(count, quick_count)
        place = stage()
        if name not in place.topics:
            fill(place.broker, name, value_bytes, records)
            place.topics.add(name)

        def run(_: int) -> Values:
            reader = place.reading(side, name)
            progress = place.run_once(reader.writeStream.format("noop"))
            assert progress["numInputRows"] == records, progress["numInputRows"]
            seconds = seconds_of(progress)
            return {"records": records / seconds, "bytes": records * value_bytes / seconds / 1e6}

        try:
            yield run
        finally:
            # Both sides read the same topic, and it ends for both together.
            if name in place.topics:
                place.topics.remove(name)
                client.delete_topic(place.broker, name)

    return session


def _load(name: str, title: str, value_bytes: int, count: int, quick_count: int) -> Load:
    wanted = 1.0 if value_bytes >= client.RECORD_BYTES else None
    return Load(
        name,
        title,
        (Measure("records", "records/s", "more", ratio=wanted), Measure("bytes", "MB/s", "more")),
        _session(name, value_bytes, count, quick_count),
        rounds=3,
        quick_rounds=2,
        warmup_seconds=8,
        quick_warmup_seconds=1,
        quick_note=f"{quick_count:,} records",
        in_quick=value_bytes == client.RECORD_BYTES,
    )


LOADS: Final = (
    _load(
        "spark-source-100",
        "Spark source beside Spark's own, read_committed, 5 M x 100 B",
        100,
        5_000_000,
        1_500_000,
    ),
    _load(
        "spark-source-1k",
        "Spark source beside Spark's own, read_committed, 1 M x 1 KB",
        1024,
        1_000_000,
        300_000,
    ),
    _load(
        "spark-source-10k",
        "Spark source beside Spark's own, read_committed, 100 K x 10 KB",
        10_240,
        100_000,
        30_000,
    ),
)
