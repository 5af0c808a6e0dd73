"""Goal: source and sink connect with TLS and SASL without exposing secrets, or name the permission
that they lack.

Method: the Apache Kafka of `test_client_security.py`; a query from topic to topic with each
mechanism, with all output of Spark and Python captured: plans, progress, logs, the ledger, and
error messages. Then the same query with a user that lacks one permission.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fencepost.base.ids import TopicPartition
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import Cluster, connect
from fencepost.records.opened import Record
from fencepost.spark.doors.foreach_batch import TransactionalSink
from fencepost.spark.ledger.entry import group_of
from fencepost.spark.ledger.reader import read_ledger_view
from fencepost.spark.ledger.topic import create_topic
from tests.compat.test_client_security import PASSWORD, Secured, secured
from tests.spark.pipeline import finish
from tools.java_tools import JavaTools

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["secured"]

pytestmark = [
    pytest.mark.timeout(300),
    # Spark closes sockets to its JVM late.
    pytest.mark.filterwarnings("default"),
]

SCRAM_PASSWORD = "scram-secret"


def options_of(mechanism: str, folder: Path) -> dict[str, str]:
    """As Java users write them for PLAIN, and as librdkafka users do for SCRAM."""
    options = {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": str(folder / "ca.pem"),
        "kafka.sasl.mechanism": mechanism,
    }
    if mechanism != "PLAIN":
        return options | {
            "kafka.sasl.username": "scram-user",
            "kafka.sasl.password": SCRAM_PASSWORD,
        }
    escaped = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
    jaas = (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        f'username="alice" password="{escaped}";'
    )
    return options | {"kafka.sasl.jaas.config": jaas}


@pytest.fixture
def plain_listener(secured: Secured) -> Iterator[Cluster]:
    with connect(secured.at("PLAINTEXT")) as cluster:
        yield cluster


class SecretCopy:
    """A query from topic to topic through the secured listener, and all of its output."""

    def __init__(
        self, spark: SparkSession, bootstrap: str, options: Mapping[str, str], folder: Path
    ) -> None:
        self.spark = spark
        self.bootstrap = bootstrap
        self.options = dict(options)
        self.folder = folder
        self.seen: list[str] = []

    def run(self, source: str, target: str) -> str | None:
        sink = TransactionalSink(
            self.bootstrap,
            transactional_id=target,
            topic=target,
            ledger_topic=f"{target}-ledger",
            options=self.options,
        )
        rows = (
            self.spark.readStream.format("fencepost")
            .options(**{"kafka.bootstrap.servers": self.bootstrap, "subscribe": source})
            .options(startingOffsets="earliest", **self.options)
            .load()
        )
        self.seen += [repr(sink), repr(sink.settings), _plan_of(rows)]

        def watch(df: DataFrame, batch_id: int) -> None:
            self.seen.append(_plan_of(df))
            sink(df, batch_id)

        query = (
            rows.writeStream.foreachBatch(watch)
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        failure = finish(query)
        plan: Any = query._jsq
        self.seen += [plan.explainInternal(True), str(query.recentProgress), str(failure)]
        self.seen += [
            path.read_text(errors="replace")
            for path in (self.folder / "checkpoint").rglob("*")
            if path.is_file()
        ]
        return failure

    def assert_unseen(self, *secrets: str) -> None:
        for text in self.seen:
            for secret in secrets:
                assert secret not in text


def _plan_of(df: DataFrame) -> str:
    plan: Any = df._jdf
    return str(plan.queryExecution().toString())


def write(cluster: Cluster, topic: str, values: list[bytes]) -> None:
    cluster.create_topics([NewTopic(topic, 1, 1), NewTopic(f"{topic}-copy", 2, 1)])
    with cluster.writer(cluster.init_producer_id(None)) as writer:
        writer.write_records(TopicPartition(topic, 0), [Record(key=v, value=v) for v in values])
        writer.flush()


@contextmanager
def spark_log(spark: SparkSession, path: Path) -> Iterator[None]:
    """Writes everything that the JVM logs meanwhile to a file."""
    log4j: Any = spark.sparkContext._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
    context = log4j.LogManager.getContext(False)
    root = context.getConfiguration().getRootLogger()
    builder = log4j.core.appender.FileAppender.newBuilder().withFileName(str(path))
    appender = builder.setName("caught").build()
    appender.start()
    root.addAppender(appender, None, None)
    spark.sparkContext.setLogLevel("DEBUG")
    try:
        yield
    finally:
        spark.sparkContext.setLogLevel("OFF")
        root.removeAppender("caught")
        context.updateLoggers()
        appender.stop()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_query_over_sasl_ssl_does_not_expose_its_secrets(
    secured: Secured,
    plain_listener: Cluster,
    connector_spark: SparkSession,
    topic: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    mechanism: str,
) -> None:
    caplog.set_level(logging.DEBUG, logger="fencepost")
    write(plain_listener, topic, [b"a", b"b", b"c"])
    copy = SecretCopy(
        connector_spark, secured.at("SASL_SSL"), options_of(mechanism, secured.folder), tmp_path
    )
    with spark_log(connector_spark, tmp_path / "spark.log"):
        assert copy.run(topic, f"{topic}-copy") is None
    committed = plain_listener.offset_fetch(group_of(f"{topic}-copy"))
    assert {place: found.offset for place, found in committed.items()} == {
        TopicPartition(topic, 0): 3
    }
    view = read_ledger_view(plain_listener, f"{topic}-copy", f"{topic}-copy-ledger")
    assert view.entry is not None
    assert view.entry.sources == {TopicPartition(topic, 0): 3}
    values = [
        record.value
        for partition in range(2)
        for record in plain_listener.records(TopicPartition(f"{topic}-copy", partition))
    ]
    assert sorted(filter(None, values)) == [b"a", b"b", b"c"]
    logged = (tmp_path / "spark.log").read_text(errors="replace")
    assert topic in logged
    copy.seen += [logged, caplog.text, str(committed), str(view)]
    copy.assert_unseen(SCRAM_PASSWORD, PASSWORD, 'pass\\"word')


def test_a_wrong_password_fails_the_query_at_once_and_is_not_printed(
    secured: Secured,
    plain_listener: Cluster,
    connector_spark: SparkSession,
    topic: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, logger="fencepost")
    write(plain_listener, topic, [b"a"])
    good = options_of("SCRAM-SHA-256", secured.folder)
    wrong = good | {"kafka.sasl.password": "hunter2hunter2"}
    copy = SecretCopy(connector_spark, secured.at("SASL_SSL"), wrong, tmp_path)
    failure = copy.run(topic, f"{topic}-copy")
    assert failure is not None
    assert "hunter2hunter2" not in failure
    assert "sasl.password" in failure, failure
    copy.seen.append(caplog.text)
    copy.assert_unseen("hunter2hunter2")


ACLS = "org.apache.kafka.tools.AclCommand"
USER = "User:scram-user"

LACKING = {
    "to see the topic it reads": (
        ["--topic", "{source}"],
        [],
        r"topic '{source}': this user may not read the topic: grant READ on it",
    ),
    "to read the topic it reads": (
        ["--topic", "{source}"],
        ["--topic", "{source}"],
        r"{source}-0: this user may not read the topic: grant READ on it",
    ),
    "to write to the topic it writes": (
        ["--topic", "{target}"],
        ["--topic", "{target}"],
        r"{target}-\d: this user may not write to the topic: grant WRITE on it",
    ),
    "to use the transactional id": (
        ["--transactional-id", "{target}"],
        [],
        (
            r"TRANSACTIONAL_ID_AUTHORIZATION_FAILED .* grant this user WRITE and DESCRIBE on the "
            r"transactional id"
        ),
    ),
    "to see the topic of the ledger": (
        ["--topic", "{target}-ledger"],
        [],
        r"may not use the ledger topic '{target}-ledger': grant READ, WRITE and DESCRIBE on it",
    ),
    "to write to the topic of the ledger": (
        ["--topic", "{target}-ledger"],
        ["--topic", "{target}-ledger"],
        r"may not use the ledger topic '{target}-ledger': grant READ, WRITE and DESCRIBE on it",
    ),
    "to use the group of the sink": (
        ["--group", "fencepost-{target}"],
        [],
        (
            r"group 'fencepost-{target}' was refused with GROUP_AUTHORIZATION_FAILED .* grant this "
            r"user READ on the group"
        ),
    ),
}
"""What is closed to all, what of it the user may still use, and the message of the query."""


@pytest.mark.parametrize("lacking", LACKING.values(), ids=LACKING.keys())
def test_a_query_without_a_permission_names_it_and_writes_nothing(
    secured: Secured,
    plain_listener: Cluster,
    connector_spark: SparkSession,
    tools: JavaTools,
    topic: str,
    tmp_path: Path,
    lacking: tuple[list[str], list[str], str],
) -> None:
    source, target = topic, f"{topic}-copy"
    write(plain_listener, source, [b"a", b"b", b"c"])
    create_topic(plain_listener, f"{target}-ledger", replication_factor=1)
    closed, seen, sentence = (
        [part.format(source=source, target=target) for part in parts]
        for parts in (lacking[0], lacking[1], [lacking[2]])
    )
    at = ["--bootstrap-server", secured.at("PLAINTEXT"), "--add", "--allow-principal"]
    tools.check(ACLS, *at, "User:nobody", "--operation", "All", *closed)
    if seen:
        tools.check(ACLS, *at, USER, "--operation", "Describe", *seen)
    options = options_of("SCRAM-SHA-512", secured.folder)
    copy = SecretCopy(connector_spark, secured.at("SASL_SSL"), options, tmp_path)
    failure = copy.run(source, target)
    assert failure is not None
    assert re.search(sentence[0], failure), failure
    assert not [
        record
        for index in range(2)
        for record in plain_listener.records(
            TopicPartition(target, index), isolation="read_committed"
        )
    ]
