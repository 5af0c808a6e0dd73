"""Both queries: settlements are decided into Kafka, and approved refunds are paid in PostgreSQL.

    FENCEPOST_POSTGRES_DSN=... python -m fencepost_examples.refunds.postgres.pipeline
    --bootstrap-servers localhost:9092 --checkpoint /tmp/refunds --until /tmp/closed

The queries follow their topics until the file of --until exists, and then read what is left.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fencepost.spark import PostgresSink
from fencepost_examples.refunds.postgres.tables import PAYING, PAYMENTS, dsn
from fencepost_examples.refunds.spark import pipeline
from fencepost_examples.refunds.spark.pipeline import await_all, in_turn
from fencepost_examples.refunds.spark.session import make_session
from fencepost_examples.refunds.spark.settlements import EXACTLY_ONCE, REFUND_SCHEMA, Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLL_SECONDS: Final = 0.2


def start_paying(
    spark: SparkSession, options: argparse.Namespace, turn: AbstractContextManager[Any]
) -> Any:
    """Starts the query that pays."""
    refunds = (
        spark.readStream.format("fencepost")
        .option("kafka.bootstrap.servers", options.bootstrap_servers)
        .option("subscribe", Topics.of(EXACTLY_ONCE, options.prefix).refunds)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", options.per_batch)
        .load()
        .selectExpr(f"from_json(cast(value AS string), '{REFUND_SCHEMA}') AS r")
        .select("r.*")
    )
    writer = refunds.writeStream.foreachBatch(in_turn(PostgresSink(dsn(), PAYMENTS), turn)).option(
        "checkpointLocation", f"{options.checkpoint}/{PAYING}"
    )
    return (writer if options.follow else writer.trigger(availableNow=True)).start()


def start_deciding(
    spark: SparkSession, options: argparse.Namespace, turn: AbstractContextManager[Any]
) -> Any:
    """Starts the query of `refunds.spark`."""
    return pipeline.start_query(spark, EXACTLY_ONCE, options, turn)


def follow(queries: Sequence[Any], until: Path) -> None:
    """Lets queries run until the file exists; raises as soon as one fails."""
    while not until.exists():
        for query in queries:
            if query.exception() is not None:
                query.awaitTermination()
        time.sleep(POLL_SECONDS)
    for query in queries:
        query.stop()


def main() -> None:
    """Runs the queries."""
    made = pipeline.parser()
    made.add_argument("--until", type=Path, required=True, help="the file that ends it")
    options = made.parse_args()
    spark = make_session("refunds between databases", options.master)
    turn = threading.Lock()
    starts: list[Callable[..., Any]] = [start_deciding, start_paying]
    options.follow = True
    follow([start(spark, options, turn) for start in starts], options.until)
    options.follow = False
    for start in starts:
        # One behind the other: what is decided now is to be paid, too.
        await_all(spark, [start(spark, options, turn)])
    spark.stop()


if __name__ == "__main__":
    main()
