"""The views of Spark on Apache Kafka: its brokers, and its log folders."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="the spark extra is not installed")

from fencepost.base.ids import TopicPartition
from fencepost.client.blocking import connect
from tests.compat.conftest import Side
from tests.spark.views.history import History, write_history
from tests.spark.views.test_data_reader import rows_of


@pytest.fixture(scope="module")
def written(apache_kafka: Side) -> History:
    place = TopicPartition("views", 0)
    apache_kafka.create_topic(place.topic, 1, "--config", "segment.bytes=1048576")
    with connect(apache_kafka.bootstrap_servers) as cluster:
        return write_history(cluster, apache_kafka.bootstrap_servers, place, 4, 100_000)


def test_kafkas_log_folders_show_the_fate_of_every_record(
    written: History, apache_kafka: Side
) -> None:
    rows = rows_of("records", {"path": str(apache_kafka.data)}, subscribe=written.place.topic)
    data = [row for row in rows if row["fate"] != "control"]
    assert {row["value"].decode(): row["fate"] for row in data} == written.fates
    assert len(data) == len(written.fates)


@pytest.mark.parametrize("view", ["records", "transactions", "producers"])
def test_kafkas_folders_and_its_broker_show_the_same(
    written: History, apache_kafka: Side, view: str
) -> None:
    topic = written.place.topic
    there = rows_of(view, {"kafka.bootstrap.servers": written.servers}, subscribe=topic)
    here = rows_of(view, {"path": str(apache_kafka.data)}, subscribe=topic)
    assert sorted(map(str, here)) == sorted(map(str, there))


@pytest.mark.parametrize("where", ["broker", "folder"])
def test_kafkas_internal_topics_are_decoded(
    written: History, apache_kafka: Side, where: str
) -> None:
    place = (
        {"kafka.bootstrap.servers": written.servers}
        if where == "broker"
        else {"path": str(apache_kafka.data)}
    )
    states = rows_of("transaction_state", place)
    mine = [row for row in states if row["transactionalId"] == "views-inner-1"]
    assert mine[-1]["state"] == "CompleteAbort"
    assert {row["producerId"] for row in mine} == {written.identities["inner-1"].producer_id}
    offsets = [row for row in rows_of("offsets", place) if row["topic"] == "views"]
    assert {row["group"]: row["fate"] for row in offsets} == written.offsets
