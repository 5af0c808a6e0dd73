"""A driver on a cluster: copies a topic to another until it is told to finish.

Arguments: files with orders (`application.py`), carried out one after the other in one session.
Prints one line for each thing that a test waits for or counts: `running`, `route <name>`,
`finished`, or `failed: <reason>`. It needs fencepost and Spark, and nothing of the tests.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True)
class Orders:
    """What the driver is told."""

    master: str
    bootstrap: str
    source: str
    target: str
    transactional_id: str
    checkpoint: str
    finish: str
    """When this file exists, the driver finishes what is there and ends."""
    rows_per_batch: int = 2_000
    settings: dict[str, str] = field(default_factory=dict)
    sink: dict[str, Any] = field(default_factory=dict)
    """More arguments of the sink."""
    source_format: str = "fencepost"
    reader: dict[str, str] = field(default_factory=dict)
    """More options of the source."""


def say(line: str) -> None:
    print(line, flush=True)


def tell_routes() -> None:
    """Prints the route of each attempt that has written its rows."""
    from tests.spark.ways.watching import watch_ways

    watch_ways(setattr, lambda way, _: say(f"route {way}"))


def make_session(orders: Orders) -> SparkSession:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "3",
        "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
    }
    conf = SparkConf().setAll(list((settings | orders.settings).items()))
    spark = SparkSession.builder.master(orders.master).config(conf=conf).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def start(spark: SparkSession, orders: Orders) -> StreamingQuery:
    from fencepost.spark import TransactionalSink

    sink = TransactionalSink(
        orders.bootstrap,
        transactional_id=orders.transactional_id,
        topic=orders.target,
        **orders.sink,
    )
    rows = (
        spark.readStream.format(orders.source_format)
        .option("kafka.bootstrap.servers", orders.bootstrap)
        .option("subscribe", orders.source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", orders.rows_per_batch)
        .options(**orders.reader)
        .load()
    )
    return (
        rows.select("key", "value")
        .writeStream.foreachBatch(sink)
        .option("checkpointLocation", orders.checkpoint)
        .start()
    )


def carry_out(spark: SparkSession, orders: Orders) -> bool:
    """Whether the query finished without a failure."""
    query = start(spark, orders)
    say("running")
    finish = Path(orders.finish)
    try:
        while query.isActive and not finish.exists():
            time.sleep(0.1)
        query.processAllAvailable()
    except Exception as problem:  # noqa: BLE001 - the reason goes to the test.
        say(f"failed: {' '.join(str(problem).split())}")
        return False
    query.stop()
    say("finished")
    return True


def main(paths: list[str]) -> int:
    given = [Orders(**json.loads(Path(path).read_text())) for path in paths]
    tell_routes()
    spark = make_session(given[0])
    succeeded = [carry_out(spark, orders) for orders in given]
    spark.stop()
    return 0 if all(succeeded) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
