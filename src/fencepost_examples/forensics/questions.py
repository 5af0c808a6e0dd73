"""Three questions about a log, each as one DataFrame.

They use the views of `format("fencepost")`, so they run on a broker (fencepost or Apache Kafka) and
on copied log folders alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as sf

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession


def view(spark: SparkSession, name: str, where: Mapping[str, str]) -> DataFrame:
    """Loads a view; `where` has `path`, or `kafka.bootstrap.servers` and a subscription."""
    fixed = name in ("transaction_state", "offsets")
    options = {
        option: value
        for option, value in where.items()
        if not (fixed and option in ("subscribe", "subscribePattern", "assign"))
    }
    return spark.read.format("fencepost").option("view", name).options(**options).load()


def latest_states(states: DataFrame) -> DataFrame:
    """The newest state of each transactional id."""
    newest_first = Window.partitionBy("transactionalId").orderBy(sf.desc("logOffset"))
    return (
        states.withColumn("rank", sf.row_number().over(newest_first)).where("rank = 1").drop("rank")
    )


def hanging_transactions(
    transactions: DataFrame, states: DataFrame, older_than_ms: int = 15 * 60_000 + 5 * 60_000
) -> DataFrame:
    """Open transactions that no coordinator will end.

    KIP-664's rule: open for longer than transaction.max.timeout.ms and five minutes, and the
    coordinator has no ongoing transaction of this producer with this partition. Age is measured
    against the newest time in the log, because a copied log does not know what time it is now.
    """
    newest = states.agg(sf.max("timestamp").alias("newest"))
    held = (
        latest_states(states)
        .where("state IN ('Ongoing', 'PrepareCommit', 'PrepareAbort')")
        .select(
            sf.col("producerId").alias("heldBy"),
            sf.explode("partitions").alias("heldPartition"),
        )
    )
    place = sf.concat_ws("-", "topic", "partition")
    return (
        transactions.where("outcome = 'open'")
        .crossJoin(newest)
        .withColumn("ageMs", sf.unix_millis("newest") - sf.unix_millis("beginTimestamp"))
        .where(sf.col("ageMs") > older_than_ms)
        .join(
            held,
            (sf.col("producerId") == sf.col("heldBy")) & (place == sf.col("heldPartition")),
            "left_anti",
        )
        .select("topic", "partition", "producerId", "producerEpoch", "firstOffset", "ageMs")
        .orderBy(sf.desc("ageMs"))
    )


def slowest_commits(transactions: DataFrame, states: DataFrame, limit: int = 10) -> DataFrame:
    """The transactions that took longest from their first record to their marker.

    The transactional id is joined from `__transaction_state`; it is null where compaction has
    removed the producer's records.
    """
    ids = states.select("producerId", "transactionalId").where("producerId >= 0").distinct()
    return (
        transactions.where("outcome = 'committed'")
        .orderBy(sf.desc("durationMs"))
        .limit(limit)
        .join(ids, "producerId", "left")
        .select("transactionalId", "topic", "partition", "firstOffset", "records", "durationMs")
        .orderBy(sf.desc("durationMs"))
    )


def fencing_storms(states: DataFrame, at_least: int = 5) -> DataFrame:
    """Ids whose producer was replaced again and again within one minute.

    Every InitProducerId writes an Empty record with a new epoch or producer id: two services that
    use the same transactional id fence each other in turn.
    """
    return (
        states.where("state = 'Empty'")
        .groupBy("transactionalId", sf.date_trunc("minute", "timestamp").alias("minute"))
        .agg(
            sf.count("*").alias("producers"),
            sf.min("producerEpoch").alias("firstEpoch"),
            sf.max("producerEpoch").alias("lastEpoch"),
        )
        .where(sf.col("producers") >= at_least)
        .orderBy(sf.desc("producers"))
    )
