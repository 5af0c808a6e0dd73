"""Goal: `df.write.format("fencepost")` is one transaction, and repeatable if it has a version."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from fencepost.base.ids import TopicPartition
from fencepost.client.blocking import Cluster
from fencepost.client.failures import UnknownOutcome
from fencepost.client.reading import LATEST
from fencepost.records.opened import Record
from fencepost.spark import route
from fencepost.spark.doors.batch_write import plan_write
from fencepost.spark.doors.commit import commit
from fencepost.spark.doors.options import NO_OVERWRITE, WriteOptions, read_write_options
from fencepost.spark.engine.session import changed_setting
from fencepost.spark.failures import SinkFailed, SinkRefused
from fencepost.spark.ledger.reader import read_ledger_view
from fencepost.spark.ledger.rule import Verdict
from fencepost.spark.transaction.identity import DriverProducer
from fencepost.spark.transaction.states import State
from fencepost.spark.transaction.transaction import Transaction
from fencepost.spark.ways.accounts import Account
from tests.spark.conftest import BrokerProcess, on_spark, read_values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = on_spark()


class Writes:
    """Writes rows to one topic."""

    def __init__(self, spark: SparkSession, bootstrap: str, topic: str) -> None:
        self.spark = spark
        self.bootstrap = bootstrap
        self.topic = topic

    def rows(self, *values: str) -> DataFrame:
        # A key, so that all of them are in one partition.
        return self.spark.createDataFrame(
            [("k", value) for value in values], "key string, value string"
        )

    def routed(self, df: DataFrame) -> DataFrame:
        return route(df, self.bootstrap, topic=self.topic)

    def write(self, df: DataFrame, mode: str | None = "append", **options: Any) -> None:
        writer = df.write.format("fencepost").option("kafka.bootstrap.servers", self.bootstrap)
        if mode is not None:
            writer = writer.mode(mode)
        writer.options(**options).save()


@pytest.fixture
def writes(spark: SparkSession, bootstrap: str, new_topic: Callable[..., str]) -> Writes:
    return Writes(spark, bootstrap, new_topic())


def test_a_write_is_one_transaction_in_the_order_of_the_rows(
    writes: Writes, cluster: Cluster
) -> None:
    values = [f"{n:02}" for n in range(40)]
    rows = writes.routed(writes.rows(*values).repartitionByRange(3, "value"))
    writes.write(rows)
    assert read_values(cluster, writes.topic) == values
    # Without a version nothing says that it happened: a second run writes again.
    writes.write(rows)
    assert sorted(read_values(cluster, writes.topic)) == sorted(2 * values)


def test_the_same_version_again_is_drained_and_a_lower_one_is_refused(
    writes: Writes, cluster: Cluster
) -> None:
    for values, version in ((["a"], 1), (["b"], 1), (["c"], 5)):
        writes.write(writes.routed(writes.rows(*values)), txnAppId=writes.topic, txnVersion=version)
    assert sorted(read_values(cluster, writes.topic)) == ["a", "c"]
    with pytest.raises(Exception, match="and this write is version 4") as refused:
        writes.write(writes.routed(writes.rows("d")), txnAppId=writes.topic, txnVersion=4)
    assert "Nothing was written." in str(refused.value)
    assert sorted(read_values(cluster, writes.topic)) == ["a", "c"]
    entry = read_ledger_view(cluster, writes.topic, fenced=True).entry
    assert entry is not None
    assert (entry.query_id, entry.batch_id) == (writes.topic, 5)


def test_a_write_that_fails_leaves_nothing_and_its_version_can_be_repeated(
    writes: Writes, cluster: Cluster
) -> None:
    rows = [f"'{n}'" for n in range(40)]
    df = writes.spark.sql(f"SELECT explode(array({','.join(rows)})) AS value")
    failing = df.selectExpr(
        "value AS key", "if(value = '39', raise_error('bad row'), value) AS value"
    )
    with pytest.raises(Exception, match="bad row"):
        writes.write(writes.routed(failing), txnAppId=writes.topic, txnVersion=0)
    partitions = [TopicPartition(writes.topic, index) for index in range(3)]
    ends = [
        cluster.list_offsets(dict.fromkeys(partitions, LATEST), isolation=isolation)
        for isolation in ("read_committed", "read_uncommitted")
    ]
    assert ends[0] == ends[1]
    writes.write(writes.routed(writes.rows("a")), txnAppId=writes.topic, txnVersion=0)
    assert read_values(cluster, writes.topic) == ["a"]


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        (None, "ErrorIfExists"),
        ("error", "ErrorIfExists"),
        ("ignore", "Ignore"),
        ("overwrite", NO_OVERWRITE),
    ],
)
def test_modes_other_than_append_are_refused(
    writes: Writes, cluster: Cluster, mode: str | None, words: str
) -> None:
    # Spark refuses all but overwrite before it asks the source.
    with pytest.raises(Exception, match=re.escape(words)):
        writes.write(writes.routed(writes.rows("a")), mode)
    assert read_values(cluster, writes.topic) == []


def test_an_unrouted_dataframe_is_refused(writes: Writes) -> None:
    with pytest.raises(Exception, match="the DataFrame must end in fencepost"):
        writes.write(writes.rows("a"))


def test_brokers_of_another_cluster_in_the_format_are_refused_before_anything_is_written(
    writes: Writes, cluster: Cluster, own_broker: BrokerProcess
) -> None:
    routed = writes.routed(writes.rows("a", "b"))
    with pytest.raises(Exception, match="and the format those of"):
        writes.write(routed, **{"kafka.bootstrap.servers": own_broker.bootstrap_servers})
    assert read_values(cluster, writes.topic) == []


@pytest.mark.parametrize("adaptive", ["true", "false"])
def test_nothing_to_write_is_a_version_too(
    writes: Writes, cluster: Cluster, spark: SparkSession, adaptive: str
) -> None:
    # Adaptive execution replaces an empty shuffle, and the hop with it.
    with changed_setting(spark.conf, "spark.sql.adaptive.enabled", adaptive):
        write_nothing(writes, cluster)


def write_nothing(writes: Writes, cluster: Cluster) -> None:
    empty = writes.rows("a").where("false")
    writes.write(writes.routed(empty), txnAppId=writes.topic, txnVersion=3)
    writes.write(writes.routed(writes.rows("a")), txnAppId=writes.topic, txnVersion=3)
    assert read_values(cluster, writes.topic) == []
    with pytest.raises(Exception, match="and this write is version 2"):
        writes.write(writes.routed(empty), txnAppId=writes.topic, txnVersion=2)


# Without Spark: the plan and the commit.


def options_of(bootstrap: str, **more: str) -> WriteOptions:
    return read_write_options({"kafka.bootstrap.servers": bootstrap} | more, streaming=False)


def versioned(bootstrap: str, name: str, version: int, **more: str) -> WriteOptions:
    return options_of(bootstrap, txnAppId=name, txnVersion=str(version), **more)


def decided(options: WriteOptions) -> Transaction:
    """A transaction as the tasks of a write get it."""
    transaction = plan_write(options)
    assert transaction.decide().verdict is Verdict.WRITE
    return transaction


def commit_write(transaction: Transaction, account: Account) -> None:
    if transaction.state is State.DECIDED:
        transaction.lend()
    commit(transaction, account, "Repeat it")


def write_one(cluster: Cluster, transaction: Transaction, topic: str) -> None:
    with cluster.writer(transaction.lend()) as writer:
        writer.write_records(TopicPartition(topic, 0), [Record(value=b"a")])
        writer.flush()


@pytest.mark.parametrize("has_version", [True, False])
@pytest.mark.parametrize("is_executed", [True, False])
def test_a_lost_answer_to_endtxn_is_settled(
    bootstrap: str,
    cluster: Cluster,
    new_topic: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    has_version: bool,
    is_executed: bool,
) -> None:
    topic, genuine = new_topic(), DriverProducer.commit

    def commit_in_vain(producer: DriverProducer) -> None:
        if is_executed:
            genuine(producer)
        raise UnknownOutcome("the answer is lost")

    monkeypatch.setattr(DriverProducer, "commit", commit_in_vain)
    options = versioned(bootstrap, topic, 0) if has_version else options_of(bootstrap)
    plan = decided(options)
    write_one(cluster, plan, topic)
    if is_executed:
        commit_write(plan, Account(1, {}))
        assert read_values(cluster, topic) == ["a"]
        return
    with pytest.raises(SinkFailed, match="turned out to be aborted"):
        commit_write(plan, Account(1, {}))
    assert read_values(cluster, topic) == []


def test_a_second_run_of_the_same_version_fences_the_first_and_one_of_them_writes(
    bootstrap: str, cluster: Cluster, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    options = versioned(bootstrap, topic, 0)
    first = decided(options)
    write_one(cluster, first, topic)
    second = decided(options)
    with pytest.raises(SinkRefused, match="was taken over by another query"):
        commit_write(first, Account(1, {}))
    write_one(cluster, second, topic)
    commit_write(second, Account(1, {}))
    assert read_values(cluster, topic) == ["a"]
    assert plan_write(options).decide().verdict is Verdict.DRAIN


def test_an_id_of_another_application_is_refused_before_its_owner_is_fenced(
    bootstrap: str, cluster: Cluster, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    options = versioned(bootstrap, topic, 0)
    commit_write(decided(options), Account(0, {}))
    owner = decided(versioned(bootstrap, topic, 1))
    with pytest.raises(SinkRefused, match="and this is txnAppId 'other'"):
        plan_write(versioned(bootstrap, "other", 1, transactionalId=topic))
    with pytest.raises(
        SinkRefused, match="a write without txnAppId and txnVersion needs its own id"
    ):
        plan_write(options_of(bootstrap, transactionalId=topic))
    write_one(cluster, owner, topic)
    commit_write(owner, Account(1, {}))
    assert read_values(cluster, topic) == ["a"]


def test_a_committed_id_without_a_ledger_is_refused_until_adopted(
    bootstrap: str, cluster: Cluster, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    alone = options_of(bootstrap, transactionalId=topic)
    plan = decided(alone)
    write_one(cluster, plan, topic)
    commit_write(plan, Account(1, {}))
    with pytest.raises(SinkRefused, match="pass adopt=true once"):
        plan_write(versioned(bootstrap, topic, 0))
    assert (
        plan_write(versioned(bootstrap, topic, 0, adopt="true")).decide().verdict is Verdict.WRITE
    )
