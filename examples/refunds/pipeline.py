"""The query: settlements in, refunds and audit rows out, in one transaction per batch.

    python -m examples.refunds.pipeline --bootstrap-servers localhost:9092 --checkpoint /tmp/refunds

Without --follow it reads what is there and ends.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import astuple
from typing import TYPE_CHECKING, Any

from examples.refunds.settlements import (
    AUDIT,
    REFUNDS,
    SETTLEMENT_SCHEMA,
    SETTLEMENTS,
    merchant_rules,
)
from fencepost.spark import TransactionalSink

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession

TRANSACTIONAL_ID = "refunds"
APPROVED = "approved"


def make_session(name: str) -> SparkSession:
    """A session for this machine. On a cluster, spark-submit brings its own."""
    from pyspark.sql import SparkSession

    return (
        SparkSession.builder.appName(name)
        .master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )


def read_settlements(spark: SparkSession, bootstrap: str, per_batch: int) -> DataFrame:
    """The topic as typed columns; where they came from stays with them."""
    rows = (
        spark.readStream.format("fencepost")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", SETTLEMENTS)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", per_batch)
        .load()
    )
    parsed = f"from_json(cast(value AS string), '{SETTLEMENT_SCHEMA}') AS s"
    return rows.selectExpr(parsed, "partition", "offset").select("s.*", "partition", "offset")


def rules_table(spark: SparkSession) -> DataFrame:
    """The merchants' rules as a table to join with."""
    schema = "merchant string, highest_paise long, daily_limit_paise long, goodwill_allowed boolean"
    return spark.createDataFrame([astuple(rule) for rule in merchant_rules()], schema)


def decide(settlements: DataFrame, rules: DataFrame) -> DataFrame:
    """Adds the column `decision`: approved, or why not."""
    return settlements.join(rules, "merchant", "left").selectExpr(
        "*",
        f"""CASE
            WHEN highest_paise IS NULL THEN 'refused: unknown merchant'
            WHEN reason = 'goodwill' AND NOT goodwill_allowed THEN 'refused: no goodwill'
            WHEN amount_paise > highest_paise THEN 'refused: above the limit of a refund'
            ELSE '{APPROVED}' END AS decision""",
    )


def limit_per_day(decided: DataFrame) -> DataFrame:
    """The stateful variant: what is approved counts against a limit per merchant and day."""
    from pyspark.sql.streaming.state import GroupStateTimeout

    columns = "refund_id string, merchant string, amount_paise long, reason string, actor string, day string, decision string"
    return decided.groupBy("merchant", "day").applyInPandasWithState(
        _spend, columns, "spent_paise long", "update", GroupStateTimeout.NoTimeout
    )


def _spend(_key: Any, parts: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    import pandas as pd

    spent = state.get[0] if state.exists else 0
    # The order of the topic decides who comes first, not the order in which Spark happens to deliver.
    rows = pd.concat(list(parts)).sort_values(["partition", "offset"])
    decisions = []
    for row in rows.itertuples():
        decision = row.decision
        if decision == APPROVED and spent + row.amount_paise > row.daily_limit_paise:
            decision = "refused: above the limit of the day"
        if decision == APPROVED:
            spent += row.amount_paise
        decisions.append(decision)
    state.update((int(spent),))
    rows["decision"] = decisions
    names = ["refund_id", "merchant", "amount_paise", "reason", "actor", "day", "decision"]
    yield rows[names]


def as_records(decided: DataFrame) -> DataFrame:
    """One audit row per settlement, and one refund per approval: the columns of the sink."""
    return decided.selectExpr(
        "refund_id AS key",
        f"""explode(if(decision = '{APPROVED}', array('{AUDIT}', '{REFUNDS}'), array('{AUDIT}'))) AS topic""",
        "*",
    ).selectExpr(
        "key",
        "topic",
        f"""if(topic = '{AUDIT}',
            to_json(struct(refund_id, merchant, amount_paise, reason, actor, day, decision)),
            to_json(struct(refund_id, merchant, amount_paise))) AS value""",
    )


def start_query(
    spark: SparkSession,
    sink: Callable[[DataFrame, int], None],
    options: argparse.Namespace,
) -> Any:
    """The query, started."""
    settlements = read_settlements(spark, options.bootstrap_servers, options.per_batch)
    decided = decide(settlements, rules_table(spark))
    if options.daily_limit:
        decided = limit_per_day(decided)
    writer = (
        as_records(decided)
        .writeStream.foreachBatch(sink)
        .outputMode("update" if options.daily_limit else "append")
        .option("checkpointLocation", options.checkpoint)
    )
    return (writer if options.follow else writer.trigger(availableNow=True)).start()


def make_sink(options: argparse.Namespace) -> Callable[[DataFrame, int], None]:
    if options.at_least_once:
        from examples.refunds.at_least_once import AtLeastOnceSink

        return AtLeastOnceSink(options.bootstrap_servers)
    return TransactionalSink(
        options.bootstrap_servers,
        transactional_id=TRANSACTIONAL_ID,
        ledger_topic=AUDIT,
        commit_source_offsets=True,
        options={"kafka.compression.type": "lz4"},
    )


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--per-batch", type=int, default=400, help="settlements per batch, at most")
    parser.add_argument("--daily-limit", action="store_true", help="a limit per merchant and day")
    parser.add_argument("--follow", action="store_true", help="go on when everything is read")
    parser.add_argument(
        "--at-least-once", action="store_true", help="without transactions, to see the difference"
    )
    return parser.parse_args(arguments)


def main() -> None:
    options = parse()
    spark = make_session("refunds")
    query = start_query(spark, make_sink(options), options)
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
