"""Settlements in, refunds and audit rows out, in one transaction per micro-batch.

`spark-pipelines run` imports this file and runs what it defines until everything is read.
"""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from fencepost.spark import route
from fencepost_examples.refunds.spark.pipeline import (
    as_records,
    decide,
    ledger_topic,
    read_settlements,
    rules_table,
    transactional_id,
)
from fencepost_examples.refunds.spark.settlements import Topics

spark = SparkSession.active()
servers = spark.conf.get("refunds.bootstrap.servers") or ""
prefix = spark.conf.get("refunds.prefix") or ""
topics = Topics.of(prefix=prefix)

dp.create_sink(
    "refunds",
    "fencepost",
    {
        "kafka.bootstrap.servers": servers,
        "transactionalId": transactional_id(prefix),
        "ledgerTopic": ledger_topic(prefix),
    },
)


@dp.append_flow(target="refunds")
def decided_settlements() -> DataFrame:
    """Decides every settlement, and brings refunds and audit rows to their writers."""
    settlements = read_settlements(spark, servers, topics.settlements, per_batch=1_000)
    records = as_records(decide(settlements, rules_table(spark)), topics)
    return route(records, servers, options={"kafka.compression.type": "lz4"})
