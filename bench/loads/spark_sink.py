"""Spark rows into Apache Kafka: one transaction per batch, beside Spark's at-least-once sink.

A round is one micro-batch of a fresh query, from trigger to commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

from bench import client
from bench.load import Load, Measure, Round, Scale, Values
from bench.sides import Side
from bench.spark import PARTITIONS, seconds_of, stage, written

ROOM: Final = 3
"""Multiplied by the bytes of a round: the pipelines fill memory too. With a factor of 1, the broker
took half a second more for a gigabyte of one side than of the other, because its memory was new."""


def _session(
    name: str, value_bytes: int, count: int, quick_count: int
) -> Callable[[Side, Scale, Path], AbstractContextManager[Round]]:
    @contextmanager
    def session(side: Side, scale: Scale, _: Path) -> Iterator[Round]:
        rows = scale.of(count, quick_count)
        place = stage()

        def run(number: int) -> Values:
            topic = f"{name}-{side.name}-{number}"
            client.create_topic(place.broker, topic, PARTITIONS)
            writer = place.writing(side, place.rows(rows, value_bytes), topic)
            seconds = seconds_of(place.run_once(writer))
            assert written(place.broker, topic) >= rows, "records are missing"
            client.delete_topic(place.broker, topic)
            return {"records": rows / seconds, "bytes": rows * value_bytes / seconds / 1e6}

        yield run

    return session


def _load(name: str, title: str, value_bytes: int, count: int, quick_count: int) -> Load:
    return Load(
        name,
        title,
        (Measure("records", "records/s", "more", ratio=1.0), Measure("bytes", "MB/s", "more")),
        _session(name, value_bytes, count, quick_count),
        # Java compiles code that runs once per megabyte only after many rounds.
        rounds=6,
        room_bytes=ROOM * count * value_bytes,
        quick_rounds=2,
        warmup_seconds=30,
        quick_warmup_seconds=1,
        quick_note=f"{quick_count:,} records",
        in_quick=value_bytes == client.RECORD_BYTES,
    )


LOADS: Final = (
    _load(
        "spark-sink-100", "Spark sink beside Spark's own, 5 M x 100 B", 100, 5_000_000, 1_500_000
    ),
    _load("spark-sink-1k", "Spark sink beside Spark's own, 1 M x 1 KB", 1024, 1_000_000, 300_000),
    _load(
        "spark-sink-10k", "Spark sink beside Spark's own, 100 K x 10 KB", 10_240, 100_000, 30_000
    ),
)
