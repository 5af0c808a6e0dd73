"""Source and sink at a broker with TLS, users and ACLs, with exactly the rights of `acl grant`.

The broker is this process's own: what Apache Kafka does is in `compat/test_spark_security.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import fencepost
from fencepost.base.ids import TopicPartition
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import Cluster, connect
from fencepost.records.opened import Record
from fencepost.spark.doors.foreach_batch import TransactionalSink
from fencepost.spark.ledger.topic import create_topic
from fencepost.spark.sentences import reason_of
from tests.spark.conftest import on_spark, read_values
from tests.spark.pipeline import finish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = on_spark()

PASSWORD = "planted-for-spark"


@pytest.fixture(scope="module")
def secure() -> Iterator[fencepost.Broker]:
    with fencepost.Broker(security=fencepost.Security(users={"spark": PASSWORD})) as broker:
        yield broker


@pytest.fixture
def admin(secure: fencepost.Broker) -> Iterator[Cluster]:
    with connect(secure.bootstrap_servers, secure.client_config("admin")) as cluster:
        yield cluster


def lines(admin: Cluster, topic: str, *values: str) -> None:
    with admin.writer(admin.init_producer_id(None)) as writer:
        records = [Record(key=None, value=each.encode()) for each in values]
        writer.write_records(TopicPartition(topic, 0), records)
        writer.flush()


def copy(
    spark: SparkSession, broker: fencepost.Broker, name: str, folder: Path
) -> tuple[str, Exception | None]:
    """Copies NAME-in to NAME-out; returns everything that the query shows, and its failure."""
    given = broker.client_config("spark")
    servers = given.pop("bootstrap.servers")
    options = {f"kafka.{key}": value for key, value in given.items()}
    sink = TransactionalSink(
        servers,
        transactional_id=name,
        topic=f"{name}-out",
        ledger_topic=f"{name}-ledger",
        options=options,
    )
    rows = (
        spark.readStream.format("fencepost")
        .options(**{"kafka.bootstrap.servers": servers, "subscribe": f"{name}-in", **options})
        .option("startingOffsets", "earliest")
        .load()
    )
    seen = [repr(sink)]

    def write(df: Any, batch_id: int) -> None:
        seen.append(str(df._jdf.queryExecution().toString()))
        sink(df.select("key", "value"), batch_id)

    query: Any = (
        rows.writeStream.foreachBatch(write)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    failed = finish(query)
    seen += [query._jsq.explainInternal(True), str(query.recentProgress), str(failed)]
    for path in (folder / "checkpoint").rglob("*"):
        if path.is_file():
            seen.append(path.read_text(errors="replace"))
    return "\n".join(seen), query.exception()


def prepare(admin: Cluster, name: str) -> None:
    admin.create_topics([NewTopic(f"{name}-in"), NewTopic(f"{name}-out")])
    create_topic(admin, f"{name}-ledger", replication_factor=1)


def test_a_query_with_exactly_the_rights_of_the_grant_writes_every_row_once(
    spark: SparkSession, secure: fencepost.Broker, admin: Cluster, tmp_path: Path
) -> None:
    prepare(admin, "granted")
    secure.grant(
        "spark",
        "spark-sink",
        transactional_id="granted",
        topic="granted-out",
        source="granted-in",
        ledger="granted-ledger",
    )
    written = [str(number) for number in range(20)]
    for values in (written[:10], written[10:]):
        lines(admin, "granted-in", *values)
        seen, failure = copy(spark, secure, "granted", tmp_path)
        assert failure is None, seen
        assert PASSWORD not in seen
    assert sorted(read_values(admin, "granted-out")) == sorted(written)


def test_without_the_right_on_its_transactional_id_a_query_says_so_and_writes_nothing(
    spark: SparkSession,
    secure: fencepost.Broker,
    admin: Cluster,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    prepare(admin, "denied")
    secure.grant(
        "spark",
        "spark-sink",
        transactional_id="another",
        topic="denied-out",
        source="denied-in",
        ledger="denied-ledger",
    )
    secure.allow("User:spark read group:fencepost-denied")
    lines(admin, "denied-in", "a", "b")
    seen, failure = copy(spark, secure, "denied", tmp_path)
    assert failure is not None
    sentence = reason_of(failure)
    assert re.search(
        r"TRANSACTIONAL_ID_AUTHORIZATION_FAILED .*grant this user WRITE and DESCRIBE on the "
        r"transactional id",
        sentence,
    ), sentence
    assert "\n" not in sentence
    assert PASSWORD not in seen + caplog.text
    assert read_values(admin, "denied-out") == []
