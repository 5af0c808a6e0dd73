"""Goal: pins and its neighbours say the same about Apache Kafka and fencepost, and as Kafka's tool.

Method: the prepared situations of tests/forensics on both brokers; each field that
kafka-transactions.sh prints too is compared with what it prints there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from fencepost.cli.app import app
from fencepost.client.blocking import connect
from tests.compat.conftest import Side
from tests.compat.test_java_tools import rows as java_rows
from tests.forensics.situations.open_transactions import (
    OpenTransaction,
    forgotten_hanging_transaction,
    hanging_transaction,
    pinned_partition,
    several_producers,
    state_of,
    stuck_marker_on_kafka,
    until,
)


def run(side: Side, *arguments: str, code: int = 0) -> Any:
    result = CliRunner().invoke(
        app,
        [*arguments, "--json", "--bootstrap-servers", side.bootstrap_servers],
        standalone_mode=False,
    )
    if result.exception is not None:
        raise result.exception
    assert (result.return_value or 0) == code, result.output
    return json.loads(result.stdout)


@pytest.fixture
def pinned(side: Side, topic: str) -> Iterator[OpenTransaction]:
    with pinned_partition(side.bootstrap_servers, topic, topic, partitions=2, hidden=3) as opened:
        yield opened


def test_list_and_describe_have_what_kafkas_tool_prints(
    side: Side, topic: str, pinned: OpenTransaction
) -> None:
    (theirs,) = [
        row
        for row in java_rows(side.tool("kafka-transactions", "list"))
        if row["TransactionalId"] == topic
    ]
    (ours,) = run(side, "txn", "list", "--producer-id", theirs["ProducerId"])
    assert ours["transactional_id"] == topic
    assert str(ours["coordinator"]) == theirs["Coordinator"]
    assert ours["state"] == theirs["TransactionState"] == "Ongoing"
    told = side.tool("kafka-transactions", "describe", "--transactional-id", topic)
    (theirs,) = java_rows(told)
    ours = run(side, "txn", "describe", topic)
    assert str(ours["coordinator"]) == theirs["CoordinatorId"]
    assert str(ours["producer_id"]) == theirs["ProducerId"]
    assert str(ours["producer_epoch"]) == theirs["ProducerEpoch"]
    assert ours["state"] == theirs["TransactionState"]
    assert str(ours["timeout_ms"]) == theirs["TransactionTimeoutMs"]
    assert str(ours["start_ms"]) == theirs["CurrentTransactionStartTimeMs"]
    assert sorted(ours["partitions"]) == sorted(theirs["TopicPartitions"].split(","))
    # The tool ran first, and computes the duration with its own clock as well.
    assert ours["age_ms"]["value"] >= int(theirs["TransactionDurationMs"])


def test_producers_have_what_kafkas_tool_prints(
    side: Side, topic: str, pinned: OpenTransaction
) -> None:
    told = side.tool(
        "kafka-transactions", "describe-producers", "--topic", topic, "--partition", "0"
    )
    theirs = {row["ProducerId"]: row for row in java_rows(told)}
    ours = run(side, "txn", "producers", f"{topic}:0")
    assert {str(row["producer_id"]) for row in ours} == set(theirs)
    for row in ours:
        other = theirs[str(row["producer_id"])]
        assert str(row["producer_epoch"]) == other["ProducerEpoch"]
        assert str(row["last_sequence"]) == other["LastSequence"]
        assert str(row["last_written_at_ms"]) == other["LastTimestamp"]
        none = {None: "None"}
        assert (
            none.get(row["start_offset"], str(row["start_offset"]))
            == (other["CurrentTransactionStartOffset"])
        )
        epoch = -1 if row["coordinator_epoch"] is None else row["coordinator_epoch"]
        assert str(epoch) == other["LatestCoordinatorEpoch"]


def test_a_pinned_partition_is_explained(side: Side, topic: str, pinned: OpenTransaction) -> None:
    found = run(side, "pins", topic)
    assert [(row["partition"], row["kind"]) for row in found] == [(0, "open"), (1, "open")]
    for row in found:
        assert (row["last_stable_offset"], row["high_watermark"]) == (0, 4)
        assert row["transactional_id"] == topic
        assert row["producer_id"] == pinned.identity.producer_id
        # Both brokers look for timeouts every 10 seconds, and tell it.
        least, most = row["ends_in_at_least_ms"], row["ends_in_at_most_ms"]
        assert most["value"] - least["value"] == 10_000
        assert "assumed" not in most["source"]
        assert row["client_host"] == ("127.0.0.1" if side.name == "fencepost" else None)


def test_fence_ends_it_for_kafkas_tool_too(side: Side, topic: str, pinned: OpenTransaction) -> None:
    assert run(side, "txn", "fence", topic, "--yes")["changed"] is True
    assert run(side, "pins", topic, "--check") == []
    (theirs,) = java_rows(side.tool("kafka-transactions", "describe", "--transactional-id", topic))
    assert theirs["TransactionState"] == "Empty"
    assert run(side, "txn", "fence", topic, "--yes")["changed"] is False


@pytest.mark.parametrize("action", ["commit", "abort"])
def test_commit_and_abort_end_it_as_its_producer_would(
    side: Side, topic: str, pinned: OpenTransaction, action: str
) -> None:
    ended = run(side, "txn", action, topic, "--yes")
    assert ended["new_producer_epoch"] == pinned.identity.producer_epoch + 1
    with connect(side.bootstrap_servers) as cluster:
        until(lambda: state_of(cluster, topic) == f"Complete{action.capitalize()}")
        (place, _) = pinned.starts
        found = [each.value for each in cluster.records(place, isolation="read_committed")]
    assert found == [b"open"] * (action == "commit") + [b"plain"] * 3


def test_the_next_holder_is_named(side: Side, topic: str) -> None:
    with several_producers(side.bootstrap_servers, topic, [f"{topic}-1", f"{topic}-2"]):
        (row,) = run(side, "pins", topic)
        assert (row["transactional_id"], row["open_producers"]) == (f"{topic}-1", 2)
        assert row["next_last_stable_offset"]["value"] == 1


@pytest.mark.parametrize("situation", [hanging_transaction, forgotten_hanging_transaction])
def test_a_hanging_transaction_is_found_as_by_kafkas_tool_and_aborted(
    side: Side, topic: str, situation: Any
) -> None:
    with situation(side.bootstrap_servers, topic) as opened:
        (theirs,) = java_rows(side.tool("kafka-transactions", "find-hanging", "--topic", topic))
        (ours,) = run(side, "txn", "find-hanging", topic, "--check", code=3)
        assert ours["verdict"] == "hanging"
        assert str(ours["partition"]) == theirs["Partition"]
        assert str(ours["producer_id"]) == theirs["ProducerId"]
        assert str(ours["producer_epoch"]) == theirs["ProducerEpoch"]
        assert str(ours["start_offset"]) == theirs["StartOffset"]
        assert str(ours["last_written_at_ms"]) == theirs["LastTimestamp"]
        assert run(side, "pins", topic)[0]["kind"] == "hanging"
        producer = str(opened.identity.producer_id)
        abort = ("txn", "abort", f"{topic}:0", "--producer-id", producer, "--yes")
        assert run(side, *abort)["changed"] is True
        assert run(side, *abort)["changed"] is False
        told = side.tool("kafka-transactions", "find-hanging", "--topic", topic)
        assert java_rows(told) == []
        assert run(side, "pins", topic) == []


def test_a_live_transaction_is_not_torn(side: Side, topic: str, pinned: OpenTransaction) -> None:
    with pytest.raises(Exception, match="tear it in half"):
        run(side, "txn", "abort", f"{topic}:0", "--start-offset", "0", "--yes")
    assert len(run(side, "pins", topic)) == 2


def test_a_marker_that_kafka_cannot_write_is_told_apart(apache_kafka: Side, topic: str) -> None:
    with stuck_marker_on_kafka(apache_kafka.bootstrap_servers, topic, topic):
        (row,) = run(apache_kafka, "pins", topic)
        assert (row["kind"], row["state"]) == ("ending", "PrepareCommit")
        with pytest.raises(Exception, match="already being committed"):
            run(apache_kafka, "txn", "fence", topic, "--yes")
