"""What the keeper of the ledger puts into the transaction of a batch, and where."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the spark extra is not installed")

from fencepost.base.ids import TopicPartition
from fencepost.client.options import read_options
from fencepost.client.transactions import ProducerIdentity
from fencepost.spark import keeper as keeper_module
from fencepost.spark.accounts import Account, PartitionReport
from fencepost.spark.failures import SinkRefused
from fencepost.spark.keeper import LedgerKeeper
from fencepost.spark.ledger import Page, decode_entry
from fencepost.spark.moment import Moment

IDENTITY = ProducerIdentity("id", 7, 1, 2)
NO_PAGE = Page(None, None, {})
NOTHING = Account(0, {})
SOME = Account(1, {TopicPartition("rows", 2): PartitionReport(1, 1, 80, 0, 0)})


class PlayedCluster:
    """Takes offsets into a transaction."""

    def __init__(self) -> None:
        self.sent: list[dict[TopicPartition, Any]] = []

    def txn_offset_commit(self, identity: Any, group: str, offsets: Any) -> None:
        assert (identity, group) == (IDENTITY, "fencepost-id")
        self.sent.append(offsets)


class PlayedMoment(Moment):
    """The third batch of a query that reads a topic."""

    def _offsets(self, which: str) -> tuple[str, ...]:
        return ('{"source": {"0": 42}}',)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> PlayedCluster:
    played = PlayedCluster()
    monkeypatch.setattr(keeper_module, "cluster_of", lambda options: played)
    return played


def enter(topic: str | None, account: Account, *, must: bool = False) -> Page | None:
    options = read_options("localhost:9092", {})
    keeper = LedgerKeeper(options, "id", topic, must_commit_sources=must)
    moment = PlayedMoment("query", "run", 2)
    return keeper.enter(IDENTITY, moment, account, NO_PAGE, longest_ms=50, with_sources=True)


def test_the_entry_and_the_offsets_of_the_sources_go_together(cluster: PlayedCluster) -> None:
    page = enter("ledger", SOME)
    place = TopicPartition("ledger", 0)
    assert page is not None
    assert (page.place, page.sources) == (place, {TopicPartition("source", 0): 42})
    (sent,) = cluster.sent
    assert decode_entry(sent[place]) == page.entry
    assert sent[TopicPartition("source", 0)].offset == 42


def test_without_a_topic_the_rows_give_the_ledger_its_place(cluster: PlayedCluster) -> None:
    page = enter(None, SOME)
    assert page is not None
    assert page.place == TopicPartition("rows", 0)


def test_without_rows_and_without_a_place_there_is_nothing_to_commit(
    cluster: PlayedCluster,
) -> None:
    assert enter(None, NOTHING) is None
    assert not cluster.sent


def test_the_ledger_and_a_source_do_not_share_a_place(cluster: PlayedCluster) -> None:
    page = enter("source", SOME)
    assert page is not None
    assert page.sources == {}
    with pytest.raises(SinkRefused, match="pass ledger_topic="):
        enter("source", SOME, must=True)
    assert len(cluster.sent) == 1
