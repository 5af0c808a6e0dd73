"""What a Spark that is too old for the streaming source says, and which Spark the tests run on."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING

import pytest

from fencepost.base.failures import ConfigError
from tests.spark.conftest import ROOT, on_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = on_spark()

STREAMING_API = "pyspark.sql.streaming.datasource"
STREAM_READER = "fencepost.spark.source.stream_reader"
OPTIONS = {"kafka.bootstrap.servers": "127.0.0.1:9", "subscribe": "some"}


def test_the_tests_run_on_the_spark_that_was_asked_for(spark: SparkSession) -> None:
    pinned = (ROOT / "constraints.txt").read_text()
    (usual,) = re.findall(r"^pyspark==(\S+)$", pinned, re.MULTILINE)
    assert spark.version == os.environ.get("FENCEPOST_TEST_SPARK", usual)


def test_a_stream_is_loaded_or_names_the_spark_that_it_needs(
    spark: SparkSession, bootstrap: str
) -> None:
    reader = spark.readStream.format("fencepost").option("subscribe", "some")
    stream = reader.option("kafka.bootstrap.servers", bootstrap).load()
    assert stream.isStreaming
    if spark.version >= "4.2":
        return
    query = stream.writeStream.format("noop").trigger(availableNow=True).start()
    with pytest.raises(Exception, match=r"needs Spark 4\.2 or newer, and this is Spark 4\.[01]"):
        query.awaitTermination(60)
    query.stop()


def test_without_the_streaming_api_the_source_is_refused_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from fencepost.spark.data_source import FencepostSource

    monkeypatch.setitem(sys.modules, STREAMING_API, None)
    monkeypatch.delitem(sys.modules, STREAM_READER, raising=False)
    source = FencepostSource(OPTIONS)
    with pytest.raises(ConfigError, match=r"needs Spark 4\.2 or newer"):
        source.streamReader(None)  # type: ignore[arg-type]
