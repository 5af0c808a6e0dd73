"""A topic of Apache Kafka into another of as many partitions, through Spark.

`spark-preserve-1k`: fencepost's source and its sink with `preserve_partitioning` beside Spark's own
source and sink, all read_committed. `spark-preserve-gain`: the same beside the sink's normal route,
which places rows by their key and moves them between tasks. A round is one micro-batch of a fresh
query that copies the whole topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench import client
from bench.load import Load, Measure, Round, Scale, Values
from bench.loads.spark_source import fill
from bench.sides import FENCEPOST, KAFKA, Side
from bench.spark import PARTITIONS, Stage, seconds_of, stage, written

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

VALUE_BYTES: Final = 1024
COUNT, QUICK_COUNT = 1_000_000, 300_000
_SOURCE: Final = "spark-preserve-source"


@contextmanager
def _filled(place: Stage, records: int) -> Iterator[None]:
    """Both sides of a load read the same topic, so the first one fills it."""
    if _SOURCE not in place.topics:
        fill(place.broker, _SOURCE, VALUE_BYTES, records)
        place.topics.add(_SOURCE)
    try:
        yield
    finally:
        if _SOURCE in place.topics:
            place.topics.remove(_SOURCE)
            client.delete_topic(place.broker, _SOURCE)


@contextmanager
def _beside_spark(side: Side, scale: Scale, _: Path) -> Iterator[Round]:
    records = scale.of(COUNT, QUICK_COUNT)
    place = stage()
    writing = _preserving if side is FENCEPOST else _sparks_own

    def run(number: int) -> Values:
        rate = _rate(place, writing, f"spark-preserve-{side.name}-{number}", records)
        return {"records": rate, "bytes": rate * VALUE_BYTES / 1e6}

    with _filled(place, records):
        yield run


@contextmanager
def _beside_normal(_: Side, scale: Scale, __: Path) -> Iterator[Round]:
    records = scale.of(COUNT, QUICK_COUNT)
    place = stage()
    ways = {"preserved": _preserving, "normal": _normal}

    def run(number: int) -> Values:
        # The first one of a round has colder caches.
        names = list(ways) if number % 2 else list(reversed(ways))
        found = {
            name: _rate(place, ways[name], f"spark-{name}-{number}", records) for name in names
        }
        return {**found, "ratio": found["preserved"] / found["normal"]}

    with _filled(place, records):
        yield run


def _rate(
    place: Stage, writing: Callable[[Stage, str], DataStreamWriter], topic: str, records: int
) -> float:
    """Records per second of one batch."""
    client.create_topic(place.broker, topic, PARTITIONS)
    seconds = seconds_of(place.run_once(writing(place, topic)))
    assert written(place.broker, topic) >= records, "records are missing"
    client.delete_topic(place.broker, topic)
    return records / seconds


def _preserving(place: Stage, topic: str) -> DataStreamWriter:
    return _ours(place, topic, "key", "value", "partition", preserve_partitioning=True)


def _normal(place: Stage, topic: str) -> DataStreamWriter:
    return _ours(place, topic, "key", "value")


def _ours(place: Stage, topic: str, *columns: str, **arguments: Any) -> DataStreamWriter:
    from fencepost.spark import TransactionalSink

    servers = place.broker.bootstrap_servers
    sink = TransactionalSink(servers, transactional_id=topic, topic=topic, **arguments)
    return place.reading(FENCEPOST, _SOURCE).select(*columns).writeStream.foreachBatch(sink)


def _sparks_own(place: Stage, topic: str) -> DataStreamWriter:
    rows = place.reading(KAFKA, _SOURCE).select("key", "value", "partition")
    return place.writing(KAFKA, rows, topic)


LOADS: Final = (
    Load(
        "spark-preserve-1k",
        "Spark, topic to topic: preserve_partitioning beside Spark's own, 1 M x 1 KB",
        (Measure("records", "records/s", "more", ratio=1.3), Measure("bytes", "MB/s", "more")),
        _beside_spark,
        rounds=6,
        room_bytes=3 * COUNT * VALUE_BYTES,
        quick_rounds=2,
        warmup_seconds=30,
        quick_warmup_seconds=1,
        quick_note=f"{QUICK_COUNT:,} records",
        in_quick=False,
    ),
    Load(
        "spark-preserve-gain",
        "Spark, topic to topic: preserve_partitioning beside the sink's normal route, 1 M x 1 KB",
        (
            Measure("preserved", "records/s, preserved partitions", "more"),
            Measure("normal", "records/s, normal route", "more"),
            Measure("ratio", "preserved / normal", "more"),
        ),
        _beside_normal,
        rounds=4,
        room_bytes=3 * COUNT * VALUE_BYTES,
        quick_rounds=2,
        warmup_seconds=10,
        quick_warmup_seconds=1,
        quick_note=f"{QUICK_COUNT:,} records",
        only_ours=True,
        in_quick=False,
    ),
)
