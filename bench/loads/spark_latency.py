"""How long a small batch takes through Spark, in a query that runs on and on.

The smallest micro-batch: from trigger to commit, ten rows that Spark makes itself into Apache
Kafka; Spark's own sink is called in foreachBatch too. Write to visible: from the write of a record
to one topic until a reader of committed data has it from another, with a query of one side's source
and sink between them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from confluent_kafka import Consumer, TopicPartition

from bench import client
from bench.load import Load, Measure, Round, Scale, Values
from bench.sides import Side
from bench.spark import PARTITIONS, QUERY_SECONDS, Stage, stage

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

ROWS: Final = 10
VALUE_BYTES: Final = 100
BATCHES: Final = 40
QUICK_BATCHES: Final = 15
SKIPPED: Final = 5
"""Batches (or records) at the start of a query that are not counted: they fence, plan and
connect."""

RECORDS: Final = 30
QUICK_RECORDS: Final = 10
PAUSE_SECONDS: Final = 0.05
"""Between a record's arrival and the next one, so that they meet the query at different moments."""


@contextmanager
def _batch_session(side: Side, scale: Scale, _: Path) -> Iterator[Round]:
    wanted = scale.of(BATCHES, QUICK_BATCHES) + SKIPPED
    place = stage()

    def run(number: int) -> Values:
        topic = f"spark-batch-{side.name}-{number}"
        client.create_topic(place.broker, topic, PARTITIONS)
        writer = place.in_batches(side, place.rows(ROWS, VALUE_BYTES), topic)
        query = writer.option("checkpointLocation", place.checkpoint()).start()
        try:
            _await_batches(query, wanted)
            seen = [one["durationMs"] for one in query.recentProgress[SKIPPED:wanted]]
        finally:
            query.stop()
        client.delete_topic(place.broker, topic)
        return {
            "batch": statistics.median(float(one["triggerExecution"]) for one in seen),
            "write": statistics.median(float(one["addBatch"]) for one in seen),
        }

    yield run


def _await_batches(query: StreamingQuery, wanted: int) -> None:
    """Looks seldom: the sink runs in this process, and should not be disturbed."""
    deadline = time.monotonic() + QUERY_SECONDS
    while (last := query.lastProgress) is None or last["batchId"] < wanted:
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline, "the query is too slow"
        time.sleep(0.5)


@contextmanager
def _visible_session(side: Side, scale: Scale, _: Path) -> Iterator[Round]:
    count = scale.of(RECORDS, QUICK_RECORDS)
    place = stage()

    def run(number: int) -> Values:
        source, sink = (f"spark-{way}-{side.name}-{number}" for way in ("in", "out"))
        for topic in (source, sink):
            client.create_topic(place.broker, topic, 1)
        rows = place.reading(side, source).select("key", "value")
        writer = place.in_batches(side, rows, sink)
        query = writer.option("checkpointLocation", place.checkpoint()).start()
        try:
            times = _pass_through(place, source, sink, count + SKIPPED)[SKIPPED:]
        finally:
            query.stop()
        for topic in (source, sink):
            client.delete_topic(place.broker, topic)
        return {"visible": statistics.median(times) * 1000, "worst": max(times) * 1000}

    yield run


def _pass_through(place: Stage, source: str, sink: str, count: int) -> list[float]:
    """Sends one record after the other, each when the one before has come: the seconds of each."""
    writer = client.producer(place.broker, acks="all", linger_ms=0)
    reader = client.consumer(place.broker, isolation_level="read_committed")
    reader.assign([TopicPartition(sink, 0, 0)])
    times = []
    for _ in range(count):
        started = time.perf_counter()
        writer.produce(source, b"x" * VALUE_BYTES)
        writer.flush()
        _await_record(reader)
        times.append(time.perf_counter() - started)
        time.sleep(PAUSE_SECONDS)
    reader.close()
    return times


def _await_record(reader: Consumer) -> None:
    message = reader.poll(client.PATIENCE_SECONDS)
    assert message is not None, "the record never came"
    assert message.error() is None, message.error()


LOADS: Final = (
    Load(
        "spark-batch",
        f"Spark micro-batch of {ROWS} rows beside Spark's own sink",
        (
            Measure("batch", "ms, trigger to commit", "less", ratio=1.0),
            Measure("write", "ms, the sink alone", "less"),
        ),
        _batch_session,
        rounds=4,
        quick_rounds=2,
        warmup_seconds=25,
        quick_warmup_seconds=1,
    ),
    Load(
        "spark-visible",
        "from write to visible through Spark, beside its own connector",
        (
            Measure("visible", "ms, median", "less"),
            Measure("worst", "ms, the slowest", "less"),
        ),
        _visible_session,
        rounds=3,
        quick_rounds=1,
        warmup_seconds=8,
        quick_warmup_seconds=1,
        in_quick=False,
    ),
)
