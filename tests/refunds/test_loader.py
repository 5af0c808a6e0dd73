"""The loader writes committed rows once, however often it runs and wherever it is killed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fencepost.base.failures import FencepostError
from fencepost.base.ids import TopicPartition
from fencepost.client.blocking import Cluster
from fencepost.records.opened import Record
from fencepost_examples.refunds.spark import loader
from fencepost_examples.refunds.spark.fill import write_settlements
from fencepost_examples.refunds.spark.loader import load_topic
from fencepost_examples.refunds.spark.settlements import SETTLEMENT_SCHEMA
from tests.refunds.conftest import Place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300), pytest.mark.filterwarnings("default")]


class Warehouse:
    """One table and its loader."""

    def __init__(self, spark: SparkSession, place: Place) -> None:
        self._spark = spark
        self._place = place
        self.folder = place.folder / "warehouse"

    def load(self) -> int:
        topic = self._place.topics.settlements
        return load_topic(self._spark, self._place.bootstrap, self.folder, topic, SETTLEMENT_SCHEMA)

    def rows(self) -> Counter[str]:
        table = self._spark.read.parquet(str(self.folder / self._place.topics.settlements))
        return Counter(row.refund_id for row in table.select("refund_id").collect())


@pytest.fixture
def warehouse(spark: SparkSession, place: Place) -> Warehouse:
    return Warehouse(spark, place)


def expected(count: int) -> Counter[str]:
    return Counter(f"refund-{number:07}" for number in range(count))


def test_loading_twice_leaves_the_same_rows(
    warehouse: Warehouse, cluster: Cluster, place: Place
) -> None:
    write_settlements(cluster, place.topics.settlements, 100)
    assert warehouse.load() == 100
    assert warehouse.load() == 0
    assert warehouse.rows() == expected(100)


def test_a_second_load_adds_only_new_rows(
    warehouse: Warehouse, cluster: Cluster, place: Place
) -> None:
    write_settlements(cluster, place.topics.settlements, 40)
    warehouse.load()
    write_settlements(cluster, place.topics.settlements, 60)
    assert warehouse.load() == 60
    assert warehouse.rows() == expected(40) + expected(60)


@pytest.mark.parametrize("moment", ["before its offsets", "before it is finished"])
def test_a_load_that_died_is_repeated_by_the_next_one(
    warehouse: Warehouse,
    cluster: Cluster,
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
) -> None:
    class Killed(BaseException):
        pass

    def die(*_: Any) -> None:
        raise Killed

    write_settlements(cluster, place.topics.settlements, 30)
    warehouse.load()
    write_settlements(cluster, place.topics.settlements, 50)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text" if moment == "before its offsets" else "rename", die)
        with pytest.raises(Killed):
            warehouse.load()
    unfinished = warehouse.folder / place.topics.settlements / loader.UNFINISHED
    assert list(unfinished.glob("*.parquet")), "it should have died after its rows were written"
    assert warehouse.rows() == expected(30), "rows of an unfinished load must not be seen"
    assert warehouse.load() == 50
    assert warehouse.rows() == expected(30) + expected(50)


def test_rows_of_aborted_and_open_transactions_are_not_loaded(
    warehouse: Warehouse, cluster: Cluster, place: Place
) -> None:
    write_settlements(cluster, place.topics.settlements, 20)
    where = TopicPartition(place.topics.settlements, 0)
    phantom = Record(key=b"k", value=b'{"refund_id": "phantom"}')
    for name, ends in (("aborted", True), ("open", False)):
        identity = cluster.init_producer_id(f"{place.prefix}{name}")
        with cluster.writer(identity) as writer:
            writer.write_records(where, [phantom])
            writer.flush()
            identity = writer.identity
        if ends:
            cluster.end_txn(identity, commit=False)
    warehouse.load()
    assert warehouse.rows() == expected(20)
    cluster.end_txn(identity, commit=True)
    warehouse.load()
    assert warehouse.rows() == expected(20) + Counter(["phantom"])


def test_a_recreated_topic_is_refused(
    warehouse: Warehouse, cluster: Cluster, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_settlements(cluster, place.topics.settlements, 20)
    warehouse.load()
    where = TopicPartition(place.topics.settlements, 0)
    monkeypatch.setattr(loader, "committed_end", lambda *_: {where: 1})
    with pytest.raises(FencepostError, match="created again"):
        warehouse.load()
