"""Consuming transactional records under both isolation levels: librdkafka, and our generator.

One transaction in ten was aborted, so that read_committed has something to skip.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench import client
from bench.generate import generate, shared_broker
from bench.load import Load, Measure, Round, Scale, Values
from bench.sides import Broker, Side

TOPIC: Final = "consume"
TRANSACTIONS: Final = 400
QUICK_TRANSACTIONS: Final = 100
RECORDS: Final = 1000
EVERY_ABORTED: Final = 10
SECONDS: Final = 1.5
QUICK_SECONDS: Final = 1.0
LEVELS: Final = ("read_uncommitted", "read_committed")


@contextmanager
def _session(side: Side, scale: Scale, _: Path) -> Iterator[Round]:
    transactions = scale.of(TRANSACTIONS, QUICK_TRANSACTIONS)
    with shared_broker(side, scale) as broker:
        client.create_topic(broker, TOPIC)
        _fill(broker, transactions)

        def run(number: int) -> Values:
            values: dict[str, float] = {}
            for level in LEVELS if number % 2 == 0 else reversed(LEVELS):
                hidden = transactions // EVERY_ABORTED if level == "read_committed" else 0
                count = (transactions - hidden) * RECORDS
                values[level], values[f"{level} thread"] = _library(broker, level, count)
                seconds = QUICK_SECONDS if scale.quick else SECONDS
                figures = generate(
                    broker, "fetch", topic=TOPIC, producers=4, isolation=level, seconds=seconds
                )
                values[f"{level} bytes"] = figures["megabytes_per_second"]
            values["generator"] = figures["generator_cpu"]
            return values

        try:
            yield run
        finally:
            client.delete_topic(broker, TOPIC)


def _fill(broker: Broker, transactions: int) -> None:
    value = os.urandom(client.RECORD_BYTES)
    writer = client.producer(broker, transactional_id=TOPIC)
    writer.init_transactions()
    for number in range(transactions):
        writer.begin_transaction()
        # The same partitions on both sides; random ones differed by up to a fifth. The second term
        # rotates the aborted transactions too.
        partition = (number + number // EVERY_ABORTED) % client.PARTITIONS
        for _ in range(RECORDS):
            writer.produce(TOPIC, value, partition=partition)
        if number % EVERY_ABORTED == EVERY_ABORTED - 1:
            # Aborted records must have been written first.
            writer.flush()
            writer.abort_transaction()
        else:
            writer.commit_transaction()


def _library(broker: Broker, level: str, count: int) -> tuple[float, float]:
    """Records per second of one librdkafka consumer, and how busy its calling thread was."""
    reader = client.consumer(broker, isolation_level=level)
    # Connected before the clock starts: the start load measures that.
    reader.list_topics(TOPIC, timeout=client.PATIENCE_SECONDS)
    watch = client.Watch()
    client.read(reader, TOPIC, count)
    watch.stop()
    reader.close()
    return count / watch.seconds, watch.thread


LOAD: Final = Load(
    "consume",
    "consume 1 KB, written in transactions of 1,000",
    (
        Measure("read_uncommitted", "librdkafka, read_uncommitted: records/s", "more", ratio=1.0),
        Measure("read_committed", "librdkafka, read_committed: records/s", "more", ratio=1.0),
        Measure("read_uncommitted thread", "processors of the thread that reads", "less"),
        Measure("read_uncommitted bytes", "generator, read_uncommitted: MB/s", "more"),
        Measure("read_committed bytes", "generator, read_committed: MB/s", "more"),
        Measure("generator", "processors of the generator", "less"),
    ),
    _session,
    rounds=4,
    quick_rounds=2,
    warmup_seconds=4,
    quick_warmup_seconds=1,
    on_kfake=True,
)
