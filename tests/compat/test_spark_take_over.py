"""Goal: `take_over` with Spark's own kafka source is compared with the ledger as with ours.

Method: a query with a new checkpoint, from that source through the sink, on both brokers. Where it
begins is in a file of the checkpoint only, `sources/0/0`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the spark extra is not installed")

from fencepost.client.admin import NewTopic
from fencepost.client.blocking import connect
from fencepost.spark.engine.private_names import CHECKPOINT
from fencepost.spark.ledger.reader import read_ledger_view
from tests.spark.ledger.copying import FIRST, SECOND, Copying, edit
from tests.spark.pipeline import failed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.compat.conftest import Side

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("default"),
]


class TakingOver(Copying):
    """A query of Spark's own source, whose checkpoint is lost between two runs."""

    def rows(self, **options: Any) -> DataFrame:
        given = {
            "kafka.bootstrap.servers": self.bootstrap,
            "subscribe": self.source,
            "startingOffsets": "earliest",
        } | options
        found = self.spark.readStream.format("kafka").options(**given).load()
        return found.select("key", "value")

    def lose_checkpoint(self, name: str) -> None:
        self.checkpoint = self.checkpoint.with_name(name)

    @property
    def owner(self) -> str:
        entry = read_ledger_view(self.cluster, self.target).entry
        assert entry is not None
        return entry.query_id


@pytest.fixture
def taking(
    side: Side, connector_spark: SparkSession, tmp_path: Path, topic: str
) -> Iterator[TakingOver]:
    with connect(side.bootstrap_servers) as cluster:

        def new_topic(partitions: int, name: str) -> str:
            cluster.create_topics([NewTopic(f"{topic}-{name}", partitions, 1)])
            return f"{topic}-{name}"

        yield TakingOver(connector_spark, cluster, tmp_path, new_topic)


def test_a_query_that_begins_elsewhere_cannot_take_over(taking: TakingOver) -> None:
    taking.add(*FIRST)
    assert taking.run() is None
    owner = taking.owner
    taking.add(*SECOND)
    taking.lose_checkpoint("begins-again")
    failure = failed(taking.run(taking.sink(take_over=owner)))
    assert f"{taking.source}-0 ended at 6 and would begin at 0" in failure
    assert taking.output == FIRST
    # With the offsets that the refusal prints, the same query continues.
    taking.lose_checkpoint("begins-there")
    there = json.dumps({taking.source: {"0": len(FIRST)}})
    assert there.replace(" ", "") in failure
    assert taking.run(taking.sink(take_over=owner), startingOffsets=there) is None
    assert taking.output == [*FIRST, *SECOND]


def test_a_start_that_cannot_be_read_is_refused(
    taking: TakingOver, monkeypatch: pytest.MonkeyPatch
) -> None:
    taking.add(*FIRST)
    assert taking.run() is None
    owner = taking.owner
    taking.lose_checkpoint("unreadable")
    monkeypatch.setattr(CHECKPOINT, "folder", "noSuchFolder")
    failure = failed(taking.run(taking.sink(take_over=owner)))
    assert "it is not known where this query begins" in failure
    assert taking.output == FIRST


@pytest.mark.parametrize("moved", [-2, 2], ids=["back", "forward"])
def test_an_edited_checkpoint_of_that_source_is_refused(taking: TakingOver, moved: int) -> None:
    taking.add(*FIRST)
    assert taking.run() is None
    taking.add(*SECOND)
    edit(taking.checkpoint, 0, lambda found: {t: {"0": p["0"] + moved} for t, p in found.items()})
    assert "does not begin where batch 0" in failed(taking.run())
    assert taking.output == FIRST
