"""The sink under dynamic allocation beside the same route with a barrier stage.

Where Spark refuses barrier stages, tasks ask the driver for a permit instead
(`spark/ways/permits.py`), and rows always go through Spark's shuffle. Both sinks of a
round shuffle, with the same number of tasks, so only barrier and permits differ. A round is one
micro-batch of a fresh query for each of them, from trigger to commit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench import client
from bench.load import Load, Measure, Round, Scale, Values
from bench.sides import Side
from bench.spark import PARTITIONS, Stage, seconds_of, stage, written

if TYPE_CHECKING:
    from fencepost.spark import TransactionalSink

ROWS: Final = 1_000_000
QUICK_ROWS: Final = 300_000
VALUE_BYTES: Final = 1024
LEAST: Final = 0.9


@contextmanager
def _session(_: Side, scale: Scale, __: Path) -> Iterator[Round]:
    rows = scale.of(ROWS, QUICK_ROWS)
    place = stage()

    def run(number: int) -> Values:
        ways = {"barrier": False, "permits": True}
        # The first one of a round has colder caches.
        names = list(ways) if number % 2 else list(reversed(ways))
        found = {name: _rate(place, rows, f"{name}-{number}", ways[name]) for name in names}
        return {**found, "ratio": found["permits"] / found["barrier"]}

    yield run


def _rate(place: Stage, rows: int, topic: str, by_permit: bool) -> float:
    """Records per second of one batch."""
    client.create_topic(place.broker, topic, PARTITIONS)
    sink = _shuffling(place.broker.bootstrap_servers, topic, by_permit)
    writer = place.rows(rows, VALUE_BYTES).writeStream.foreachBatch(sink)
    seconds = seconds_of(place.run_once(writer))
    assert written(place.broker, topic) >= rows, "records are missing"
    client.delete_topic(place.broker, topic)
    return rows / seconds


def _shuffling(bootstrap_servers: str, topic: str, by_permit: bool) -> TransactionalSink:
    """A sink that uses Spark's shuffle for every batch."""
    from fencepost.spark import TransactionalSink
    from fencepost.spark.doors import run
    from fencepost.spark.ways.row_writer import MAX_DIRECT_FAILURES, RowWriter

    class ShufflingWriter(RowWriter):
        def __init__(self, settings: Any, **_: Any) -> None:
            super().__init__(settings, by_permit=by_permit)
            self._direct_failures = MAX_DIRECT_FAILURES

    setattr(run, "RowWriter", ShufflingWriter)  # noqa: B010
    return TransactionalSink(bootstrap_servers, transactional_id=topic, topic=topic)


LOAD: Final = Load(
    "spark-dynamic",
    "Spark sink under dynamic allocation, 1 M x 1 KB",
    (
        Measure("barrier", "records/s through the shuffle, with a barrier stage", "more"),
        Measure("permits", "records/s through the shuffle, with permits", "more"),
        Measure("ratio", "permits / barrier", "more", limit=LEAST),
    ),
    _session,
    rounds=6,
    quick_rounds=2,
    warmup_seconds=30,
    quick_warmup_seconds=1,
    room_bytes=3 * ROWS * VALUE_BYTES,
    quick_note=f"{QUICK_ROWS:,} records",
    only_ours=True,
    in_quick=False,
)
