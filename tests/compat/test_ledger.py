"""Goal: the Spark sink's ledger works on Apache Kafka as on fencepost, in both protocols.

Method: the store and the commands, without Spark, on both brokers. Tests that need the inside of a
broker (an exhausted epoch, compaction on demand) are in tests/spark; here a test waits for
compaction.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("pyspark", reason="the spark extra is not installed")

from fencepost.base.failures import FencepostError
from fencepost.base.ids import TopicPartition
from fencepost.cli.app import app
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import connect
from fencepost.client.groups import CommittedOffset
from fencepost.client.reading import EARLIEST, LATEST
from fencepost.spark.failures import SinkRefused
from fencepost.spark.ledger.entry import LedgerView, group_of
from fencepost.spark.ledger.rule import Batch, Verdict
from fencepost.spark.ledger.sources import SourceUse
from fencepost.spark.ledger.store import LedgerStore
from tests.forensics.situations.open_transactions import until
from tests.spark.ledger.ledgers import FakeMicroBatch, LedgerCluster, enter

if TYPE_CHECKING:
    from tests.compat.conftest import Side


@pytest.fixture
def home(side: Side, topic: str) -> Iterator[LedgerCluster]:
    """A separate ledger topic, so that tests do not read each other's records."""
    with connect(side.bootstrap_servers) as cluster:
        yield LedgerCluster(None, cluster, f"ledger-{topic}")


@pytest.fixture(params=[1, 2], ids=["tv1", "tv2"])
def protocol(request: pytest.FixtureRequest) -> int:
    """Both transaction protocols in turn."""
    version: int = request.param
    return version


def enter_batch(
    home: LedgerCluster, store: LedgerStore, name: str, batch_id: int, *, commit: bool, version: int
) -> LedgerView:
    """A batch of a driver that has just started."""
    identity = home.begin(name, version)
    view = store.peek()
    micro_batch = FakeMicroBatch("q", batch_id, f'{{"{home.topic}-in": {{"0": {batch_id}}}}}')
    view = enter(store, identity, micro_batch, view)
    home.cluster.end_txn(identity, commit=commit)
    return view


def test_the_entry_is_committed_with_the_source_offsets_or_not_at_all(
    home: LedgerCluster, protocol: int
) -> None:
    home.cluster.create_topics([NewTopic(f"{home.topic}-in", 1, 1)])
    store = home.store(home.topic)
    source = TopicPartition(f"{home.topic}-in", 0)
    last: LedgerView | None = None
    for batch_id, commit in enumerate([True, False, True, False]):
        view = enter_batch(home, store, home.topic, batch_id, commit=commit, version=protocol)
        last = view if commit else last
        home.begin(home.topic, protocol)
        assert home.view(home.topic) == last
    committed = home.cluster.offset_fetch(group_of(home.topic))
    assert {place: each.offset for place, each in committed.items()} == {source: 2}


def test_one_driver_writes_several_batches(home: LedgerCluster, protocol: int) -> None:
    home.cluster.create_topics([NewTopic(f"{home.topic}-in", 1, 1)])
    store = home.store(home.topic)
    identity = home.begin(home.topic, protocol)
    view = store.peek()
    for batch_id in range(5):
        micro_batch = FakeMicroBatch("q", batch_id, f'{{"{home.topic}-in": {{"0": {batch_id}}}}}')
        view = enter(store, identity, micro_batch, view)
        following = home.cluster.end_txn(identity, commit=True)
        if protocol == 1:
            following = home.cluster.init_producer_id(
                home.topic, 60_000, identity.producer_id, identity.producer_epoch
            )
        identity = replace(following, transaction_version=protocol)
    assert home.view(home.topic) == view
    assert view.entry is not None
    assert (view.entry.batch_id, view.entry.serial) == (4, 5)


def test_another_ids_open_transaction_does_not_block_reading(
    home: LedgerCluster, protocol: int
) -> None:
    home.create(1)
    mine, stranger = f"{home.topic}-mine", f"{home.topic}-stranger"
    home.commit(mine, 0)
    home.begin(mine)  # Apache Kafka answers EndTxn before it writes the markers, and this after.
    foreign = home.begin(stranger, protocol)
    home.write(foreign, 0)
    home.commit(mine, 1)
    doomed = home.begin(mine, protocol)
    home.write(doomed, 2)
    assert not home.view(mine, fenced=False).is_settled
    home.begin(mine)
    place = TopicPartition(home.topic, 0)
    stable = home.cluster.list_offsets({place: LATEST}, isolation="read_committed")[place].offset
    assert stable == 2
    assert home.batch_in(mine) == 1
    home.cluster.end_txn(foreign, commit=True)
    home.begin(stranger)
    assert home.batch_in(stranger, fenced=False) == 0


@pytest.mark.timeout(150)
def test_compaction_between_write_and_read_changes_nothing(home: LedgerCluster) -> None:
    home.create(
        1, segment_ms="1", min_cleanable_dirty_ratio="0.001", delete_retention_ms="0",
    )  # fmt: skip
    names = [f"{home.topic}-{n}" for n in range(3)]
    for batch_id in range(6):
        for name in names:
            home.commit(name, batch_id)
        doomed = home.begin(names[0])
        home.write(doomed, 99)
        home.cluster.end_txn(doomed, commit=False)
    place = TopicPartition(home.topic, 0)
    deadline = time.monotonic() + 100
    while batches(home, place)[0].base_offset == 0:
        assert time.monotonic() < deadline, "the log was not compacted in time"
        # A new segment, so that earlier ones may be compacted; aborted, so that nothing changes.
        doomed = home.begin(f"{home.topic}-roll")
        home.write(doomed, 0)
        home.cluster.end_txn(doomed, commit=False)
        time.sleep(1)
    assert home.cluster.list_offsets({place: EARLIEST})[place].offset == 0
    assert [home.batch_in(name) for name in names] == [5, 5, 5]


def batches(home: LedgerCluster, place: TopicPartition) -> list[Any]:
    found: list[Any] = []
    while got := home.cluster.fetch(
        {place: found[-1].next_offset if found else 0}, isolation="read_uncommitted", max_wait_ms=10
    )[place].batches:
        found += got
    return found


def test_added_partitions_change_nothing_and_a_lost_topic_is_noticed(home: LedgerCluster) -> None:
    home.create(1)
    names = [f"{home.topic}-{n}" for n in range(4)]
    for name in names:
        home.commit(name, 3)
    home.add_partitions(5)
    assert [home.batch_in(name) for name in names] == [3] * 4
    home.delete()
    store = home.store(names[0])
    decision = store.decide(store.peek(), Batch("q", 4), SourceUse())
    assert decision.verdict is Verdict.REFUSE
    assert "the cluster has no ledger" in decision.reason


def test_a_ledger_topic_deleted_under_a_running_query_is_created_again(
    home: LedgerCluster, protocol: int
) -> None:
    store = home.store(home.topic)
    identity = home.begin(home.topic, protocol)
    home.delete()
    micro_batch = FakeMicroBatch("q", 0)
    view = enter(store, identity, micro_batch, LedgerView(), sources=SourceUse())
    home.cluster.end_txn(identity, commit=True)
    # Apache Kafka answers the commit before its markers are written.
    until(lambda: not home.view(home.topic).undecided)
    assert home.view(home.topic) == view


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"cleanup.policy": "delete"}, r"cleanup\.policy=delete"),
        ({"cleanup.policy": "compact,delete"}, "exactly compact"),
        ({"segment.bytes": str(1024**3)}, r"segment\.bytes=1073741824"),
    ],
)
def test_a_topic_with_unsafe_settings_is_refused_as_ledger(
    home: LedgerCluster, settings: dict[str, str], named: str
) -> None:
    home.create(1, **settings)
    with pytest.raises(SinkRefused, match=named):
        home.store("id")


def test_the_ledger_commands_work(home: LedgerCluster) -> None:
    def run(*arguments: str) -> Any:
        servers = str(home.cluster.options.bootstrap[0])
        common = ["--topic", home.topic, "--bootstrap-servers", servers, "--json"]
        result = CliRunner().invoke(app, ["ledger", *arguments, *common])
        if result.exception is not None:
            raise result.exception
        return json.loads(result.stdout)

    name = f"{home.topic}-id"
    assert run("create", "--replication-factor", "1")["created"] is True
    assert run("create")["created"] is False
    home.commit(name, 4)
    assert [(row["transactional_id"], row["last_batch"]) for row in run("list")] == [(name, 4)]
    assert run("show", name)["state"] == "CompleteCommit"
    assert run("adopt", name, "--query-id", "p", "--last-batch", "8", "--yes")["last_batch"] == 8
    identity = home.begin(name)
    home.write(identity, 9)
    with pytest.raises(FencepostError, match="is open"):
        run("forget", name, "--yes")
    offsets = {TopicPartition(home.topic, 0): CommittedOffset(3)}
    home.cluster.offset_commit(group_of(name), offsets)
    run("forget", name, "--yes", "--force")
    assert run("list") == []
    assert home.store(name).state_of_id() == "Empty"
