"""A topic of Apache Kafka into another through Spark: `preserve_partitioning`, and without it.

Both sides are fencepost's source and sink on the same Apache Kafka. The column of Apache Kafka is
the sink's normal route, which places rows by their key and moves them between tasks. A round is one
micro-batch of a fresh query that copies the whole topic.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench import client
from bench.load import Load, Measure, Round, Scale, Values
from bench.loads.spark_source import fill
from bench.sides import FENCEPOST, Side
from bench.spark import PARTITIONS, seconds_of, stage, written

VALUE_BYTES: Final = 1024
COUNT, QUICK_COUNT = 1_000_000, 300_000
_SOURCE: Final = "spark-preserve-source"


@contextmanager
def _session(side: Side, scale: Scale, _: Path) -> Iterator[Round]:
    from fencepost.spark import TransactionalSink

    records = scale.of(COUNT, QUICK_COUNT)
    place = stage()
    if _SOURCE not in place.topics:
        fill(place.broker, _SOURCE, VALUE_BYTES, records)
        place.topics.add(_SOURCE)
    preserves = side is FENCEPOST
    columns = ["key", "value", "partition"] if preserves else ["key", "value"]

    def run(number: int) -> Values:
        topic = f"spark-preserve-{side.name}-{number}"
        client.create_topic(place.broker, topic, PARTITIONS)
        sink = TransactionalSink(
            place.broker.bootstrap_servers,
            transactional_id=topic,
            topic=topic,
            preserve_partitioning=preserves,
        )
        rows = place.reading(FENCEPOST, _SOURCE).select(*columns)
        seconds = seconds_of(place.run_once(rows.writeStream.foreachBatch(sink)))
        assert written(place.broker, topic) >= records, "records are missing"
        client.delete_topic(place.broker, topic)
        return {"records": records / seconds, "bytes": records * VALUE_BYTES / seconds / 1e6}

    try:
        yield run
    finally:
        if _SOURCE in place.topics:
            place.topics.remove(_SOURCE)
            client.delete_topic(place.broker, _SOURCE)


LOAD: Final = Load(
    "spark-preserve-1k",
    "Spark, topic to topic: preserve_partitioning beside the sink's normal route, 1 M x 1 KB",
    (Measure("records", "records/s", "more", ratio=1.3), Measure("bytes", "MB/s", "more")),
    _session,
    rounds=6,
    room_bytes=3 * COUNT * VALUE_BYTES,
    quick_rounds=2,
    warmup_seconds=30,
    quick_warmup_seconds=1,
    quick_note=f"{QUICK_COUNT:,} records",
    in_quick=False,
)
