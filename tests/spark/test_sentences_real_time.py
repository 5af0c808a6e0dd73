"""Real-Time Mode: Spark refuses what this package offers, before any code of ours is called.

So the sentence that says what to use instead is not in Spark's exception. `reason_of` has it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fencepost.spark import TransactionalSink, reason_of, route
from fencepost.spark.sentences import REAL_TIME
from tests.spark.conftest import on_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

pytestmark = on_spark()

IN_ALLOWLIST = "OPERATOR_OR_SINK_NOT_IN_ALLOWLIST"


def into_sink(spark: SparkSession, bootstrap: str, topic: str) -> DataStreamWriter:
    sink = TransactionalSink(bootstrap, transactional_id=topic, topic=topic)
    return _rate(spark).writeStream.foreachBatch(sink)


def into_format(spark: SparkSession, bootstrap: str, topic: str) -> DataStreamWriter:
    options = {"kafka.bootstrap.servers": bootstrap, "transactionalId": topic}
    routed = route(_rate(spark), bootstrap, topic=topic)
    return routed.writeStream.format("fencepost").options(**options)


def from_source(spark: SparkSession, bootstrap: str, topic: str) -> DataStreamWriter:
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}
    rows = spark.readStream.format("fencepost").options(**options).load()
    return rows.writeStream.foreach(_forget)


def _rate(spark: SparkSession) -> DataFrame:
    return spark.readStream.format("rate").load().selectExpr("cast(value AS string) AS value")


def _forget(row: Any) -> None:
    pass


@pytest.mark.parametrize(
    ("door", "words"),
    [
        (into_sink, IN_ALLOWLIST),
        (into_format, IN_ALLOWLIST),
        (from_source, "INPUT_STREAM_NOT_SUPPORTED"),
    ],
)
def test_sparks_refusal_of_real_time_mode_is_explained_in_one_sentence(
    spark: SparkSession,
    bootstrap: str,
    new_topic: Callable[..., str],
    tmp_path: Path,
    door: Callable[..., Any],
    words: str,
) -> None:
    writer = door(spark, bootstrap, new_topic()).outputMode("update")
    writer = writer.option("checkpointLocation", str(tmp_path)).trigger(realTime="5 minutes")
    with pytest.raises(Exception, match=rf"STREAMING_REAL_TIME_MODE\.{words}") as refused:
        writer.start().awaitTermination(60)
    assert reason_of(refused.value) == REAL_TIME
