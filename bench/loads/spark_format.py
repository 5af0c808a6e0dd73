"""`writeStream.format("fencepost")` beside the same sink in foreachBatch, in long-running queries.

The format plans, commits and reads the ledger in processes that Spark starts for it; the sink does
these in the driver. The sink chooses its direct route for each batch; the format's rows go through
Spark's shuffle and its hop. A round runs one query of each for some batches, and counts what Spark
reports from trigger to commit.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench import client
from bench.load import Load, Measure, Round, Scale, Values
from bench.loads.spark_latency import await_batches
from bench.sides import FENCEPOST, Side
from bench.spark import PARTITIONS, Stage, seconds_of, stage, written

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

ROWS: Final = 100_000
VALUE_BYTES: Final = 1024
BATCHES: Final = 15
QUICK_BATCHES: Final = 5
SKIPPED: Final = 4
LEAST: Final = 0.35


@contextmanager
def _session(_: Side, scale: Scale, __: Path) -> Iterator[Round]:
    batches = scale.of(BATCHES, QUICK_BATCHES)
    place = stage()

    def run(number: int) -> Values:
        names = ["sink", "format"]
        if number % 2:
            names.reverse()
        found = {name: _rate(place, name, f"spark-{name}-{number}", batches) for name in names}
        return {**found, "ratio": found["format"] / found["sink"]}

    yield run


def _rate(place: Stage, name: str, topic: str, batches: int) -> float:
    """Records per second in the median batch."""
    client.create_topic(place.broker, topic, PARTITIONS)
    rows = place.rows(ROWS, VALUE_BYTES)
    if name == "sink":
        writer = place.writing(FENCEPOST, rows, topic)
    else:
        writer = _format(place, rows, topic)
    query = writer.option("checkpointLocation", place.checkpoint()).start()
    try:
        await_batches(query, batches + SKIPPED)
        seen = query.recentProgress[SKIPPED : batches + SKIPPED]
    finally:
        query.stop()
    assert written(place.broker, topic) >= (batches + SKIPPED) * ROWS, "records are missing"
    client.delete_topic(place.broker, topic)
    return ROWS / statistics.median(map(seconds_of, seen))


def _format(place: Stage, rows: DataFrame, topic: str) -> DataStreamWriter:
    from fencepost.spark import route

    servers = place.broker.bootstrap_servers
    routed = route(rows, servers, topic=topic)
    options = {"kafka.bootstrap.servers": servers, "transactionalId": topic}
    return routed.writeStream.format("fencepost").options(**options)


LOAD: Final = Load(
    "spark-format",
    'Spark\'s format("fencepost") beside the sink, batches of 100 K x 1 KB',
    (
        Measure("sink", "records/s, foreachBatch", "more"),
        Measure("format", 'records/s, format("fencepost")', "more"),
        Measure("ratio", "format / sink", "more", limit=LEAST),
    ),
    _session,
    rounds=4,
    quick_rounds=2,
    warmup_seconds=1,
    quick_warmup_seconds=0,
    room_bytes=ROWS * VALUE_BYTES * (BATCHES + SKIPPED) * 3,
    only_ours=True,
    in_quick=False,
)
