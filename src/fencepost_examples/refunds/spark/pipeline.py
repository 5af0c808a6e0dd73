"""The query: settlements in, refunds and audit rows out, in one transaction per batch.

    python -m fencepost_examples.refunds.spark.pipeline --bootstrap-servers localhost:9092
    --checkpoint /tmp/refunds

Without --follow it ends when it has read everything.
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from fencepost.spark import TransactionalSink
from fencepost.spark.ledger.topic import LEDGER_TOPIC
from fencepost_examples.refunds.spark.at_least_once import AtLeastOnceSink
from fencepost_examples.refunds.spark.daily_limit import limit_per_day
from fencepost_examples.refunds.spark.session import make_session
from fencepost_examples.refunds.spark.settlements import (
    APPROVED,
    AT_LEAST_ONCE,
    EXACTLY_ONCE,
    SETTLEMENT_SCHEMA,
    Topics,
    merchant_rules,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    Sink = Callable[[DataFrame, int], None]


def transactional_id(prefix: str = "") -> str:
    """Returns the pipeline's transactional id, which is also its key in the ledger."""
    return f"{prefix}refunds"


def ledger_topic(prefix: str = "") -> str:
    """Returns the pipeline's ledger topic, with the prefix of its other topics."""
    return f"{prefix}{LEDGER_TOPIC}"


def read_settlements(spark: SparkSession, bootstrap: str, topic: str, per_batch: int) -> DataFrame:
    """Reads the topic as typed columns, with source partition and offset."""
    rows = (
        spark.readStream.format("fencepost")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", per_batch)
        .load()
    )
    return rows.selectExpr(
        f"from_json(cast(value AS string), '{SETTLEMENT_SCHEMA}') AS s",
        "partition AS source_partition",
        "offset AS source_offset",
    ).select("s.*", "source_partition", "source_offset")


def rules_table(spark: SparkSession) -> DataFrame:
    """Returns the merchants' rules as a table to join with.

    As literals in the plan they cost no job per batch.
    """
    rows = ", ".join(
        f"('{rule.merchant}', {rule.highest_paise}L, {rule.daily_limit_paise}L, "
        f"{rule.goodwill_allowed})"
        for rule in merchant_rules()
    )
    return spark.sql(
        f"SELECT * FROM VALUES {rows} AS rules (merchant, highest_paise, daily_limit_paise, "
        "goodwill_allowed)"
    )


def decide(settlements: DataFrame, rules: DataFrame) -> DataFrame:
    """Adds the rules and a column `decision`: approved, or the reason for the refusal."""
    return settlements.join(rules.hint("broadcast"), "merchant", "left").selectExpr(
        "*",
        f"""CASE
            WHEN highest_paise IS NULL THEN 'refused: unknown merchant'
            WHEN reason = 'goodwill' AND NOT goodwill_allowed THEN 'refused: no goodwill'
            WHEN amount_paise > highest_paise THEN 'refused: above the limit of a refund'
            ELSE '{APPROVED}' END AS decision""",
    )


def as_records(decided: DataFrame, topics: Topics) -> DataFrame:
    """Returns one audit row per settlement and one refund per approval, as sink columns."""
    audit, refund = f"'{topics.audit}'", f"'{topics.refunds}'"
    return decided.selectExpr(
        "refund_id AS key",
        f"explode(if(decision = '{APPROVED}', array({audit}, {refund}), array({audit}))) AS topic",
        "*",
    ).selectExpr(
        "key",
        "topic",
        f"""if(topic = {audit},
            to_json(struct(refund_id, merchant, amount_paise, reason, actor, day, decision,
                           source_partition, source_offset)),
            to_json(struct(refund_id, merchant, amount_paise))) AS value""",
    )


def make_sink(bootstrap: str, writing: str = EXACTLY_ONCE, prefix: str = "") -> Sink:
    """Returns the sink with transactions, or the one without."""
    if writing == AT_LEAST_ONCE:
        return AtLeastOnceSink(bootstrap)
    return TransactionalSink(
        bootstrap,
        transactional_id=transactional_id(prefix),
        ledger_topic=ledger_topic(prefix),
        commit_source_offsets=True,
        options={"kafka.compression.type": "lz4"},
    )


def in_turn(sink: Sink, turn: AbstractContextManager[Any]) -> Sink:
    """Lets the queries write in turn: a transaction's write stage needs all cores at once."""

    def write(df: DataFrame, batch_id: int) -> None:
        with turn:
            sink(df, batch_id)

    return write


def start_query(
    spark: SparkSession,
    writing: str,
    options: argparse.Namespace,
    turn: AbstractContextManager[Any],
) -> Any:
    """Starts one query with its own checkpoint."""
    topics = Topics.of(writing, options.prefix)
    settlements = read_settlements(
        spark, options.bootstrap_servers, topics.settlements, options.per_batch
    )
    decided = decide(settlements, rules_table(spark))
    if options.daily_limit:
        decided = limit_per_day(decided)
    sink = make_sink(options.bootstrap_servers, writing, options.prefix)
    writer = (
        as_records(decided, topics)
        .writeStream.foreachBatch(in_turn(sink, turn))
        .outputMode("update" if options.daily_limit else "append")
        .option("checkpointLocation", f"{options.checkpoint}/{writing}")
    )
    return (writer if options.follow else writer.trigger(availableNow=True)).start()


def await_all(spark: SparkSession, queries: Sequence[Any]) -> None:
    """Waits until every query has ended; raises as soon as one fails."""
    while any(query.isActive for query in queries):
        spark.streams.awaitAnyTermination()
        spark.streams.resetTerminated()
    for query in queries:
        query.awaitTermination()


def parser() -> argparse.ArgumentParser:
    """Returns the parser of this program's options."""
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--bootstrap-servers", required=True)
    made.add_argument("--checkpoint", required=True, help="the checkpoint folder")
    made.add_argument("--prefix", default="", help="the prefix of all topic names")
    made.add_argument(
        "--per-batch", type=int, default=1_000, help="at most this many settlements per batch"
    )
    made.add_argument("--daily-limit", action="store_true", help="a limit per merchant and day")
    made.add_argument("--follow", action="store_true", help="wait for more settlements")
    made.add_argument("--master", default="local[2]", help="the Spark master (default: local[2])")
    made.add_argument(
        "--writing",
        action="append",
        choices=(EXACTLY_ONCE, AT_LEAST_ONCE),
        help="how to write (default: exactly-once); given twice, two queries run side by side",
    )
    return made


def main() -> None:
    """Runs the pipeline."""
    options = parser().parse_args()
    spark = make_session("refunds", options.master)
    turn = threading.Lock()
    sides = options.writing or [EXACTLY_ONCE]
    queries = [start_query(spark, side, options, turn) for side in sides]
    await_all(spark, queries)
    spark.stop()


if __name__ == "__main__":
    main()
