"""`fencepost lag` on an embedded broker."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import confluent_kafka
import pytest

from fencepost.base.ids import TopicPartition
from fencepost.client.blocking import Cluster
from fencepost.client.failures import refusal
from fencepost.records.opened import Record
from tests.cli.commands.groups import commit_offset, consumer, write
from tests.cli.running import Commands


def transact(
    cluster: Cluster, topic: str, partition: int, count: int, *, commit: bool | None
) -> None:
    """Writes a transaction; None leaves it open."""
    identity = cluster.init_producer_id(f"{topic}-{partition}-{count}-{commit}")
    with cluster.writer(identity) as writer:
        records = [Record(timestamp_ms=0, value=b"v")] * count
        writer.write_records(TopicPartition(topic, partition), records)
        writer.flush()
    if commit is not None:
        cluster.end_txn(identity, commit=commit)


def counts(row: dict[str, Any]) -> tuple[Any, ...]:
    names = ("behind_records", "hidden_records", "read_uncommitted_records")
    assert {row[name]["certainty"] for name in names} == {"exact"}
    return tuple(row[name]["value"] for name in names)


def test_lag_counts_neither_markers_nor_aborted_records_and_tells_hidden_ones_apart(
    commands: Commands, cluster: Cluster, topic: str
) -> None:
    transact(cluster, topic, 0, 3, commit=True)
    transact(cluster, topic, 0, 4, commit=False)
    transact(cluster, topic, 0, 2, commit=None)
    write(cluster, topic, 0, 6)
    transact(cluster, topic, 0, 1, commit=False)
    commit_offset(cluster, topic, 0, 8)
    shown = commands.json("lag", topic)
    first, second = shown["partitions"]
    # 10 plain, 3 committed and a marker, 4 aborted and a marker, then 2 open, 6 plain, 1 aborted.
    assert first["committed_offset"] == 8
    assert first["last_stable_offset"] == 19
    assert first["high_watermark"] == 29
    assert first["offset_lag"] == 21
    assert counts(first) == (2 + 3, 2 + 6, 2 + 3 + 4 + 2 + 6 + 1)
    assert second["committed_offset"] is None
    assert counts(second) == (5, 0, 5)
    assert counts(shown["total"]) == (10, 8, 23)
    assert shown["total"]["offset_lag"] == 21


def test_the_owner_of_each_partition_is_shown(
    commands: Commands, cluster: Cluster, topic: str
) -> None:
    with consumer(commands.servers, topic) as member:
        member.commit(offsets=[confluent_kafka.TopicPartition(topic, 0, 7)], asynchronous=False)
        shown = commands.json("lag", topic)
        described = commands.json("group", "describe", topic)
    assert (shown["state"], shown["members"]) == ("Stable", 1)
    for row in shown["partitions"]:
        assert row["client_id"] == "shop"
        assert row["member_id"] == described["members"][0]["member_id"]
        assert row["host"] == described["members"][0]["host"]
    assert counts(shown["partitions"][0])[0] == 3


def test_beyond_the_limit_lag_is_estimated(
    commands: Commands, cluster: Cluster, topic: str
) -> None:
    for _ in range(20):
        transact(cluster, topic, 1, 3, commit=True)
    commit_offset(cluster, topic, 1, 5)
    row = commands.json("lag", topic, "--max-read", "500")["partitions"][1]
    assert row["behind_records"]["certainty"] == "estimated"
    assert 55 <= row["behind_records"]["value"] <= 65
    row = commands.json("lag", topic, "--max-read", "0")["partitions"][1]
    assert row["behind_records"]["certainty"] == "estimated"
    assert row["behind_records"]["value"] == 80
    shown = commands.run("lag", topic, "--max-read", "0")
    assert "~80" in shown
    assert "a larger --max-read makes it exact" in shown


def test_an_offset_outside_of_the_log_counts_what_is_there(
    commands: Commands, cluster: Cluster, topic: str
) -> None:
    commit_offset(cluster, topic, 0, 1_000)
    row = commands.json("lag", topic)["partitions"][0]
    assert counts(row) == (0, 0, 0)
    assert row["offset_lag"] == -990


def test_a_group_whose_topic_was_deleted_has_unknown_lag(
    commands: Commands, cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit_offset(cluster, topic, 0, 3)
    whole = Cluster.metadata

    def without(self: Cluster, *arguments: Any, **more: Any) -> Any:
        view = whole(self, *arguments, **more)
        others = {name: each for name, each in view.topics.items() if name != topic}
        return replace(view, topics=others)

    monkeypatch.setattr(Cluster, "metadata", without)
    (row,) = commands.json("lag", topic)["partitions"]
    assert row["high_watermark"] is None
    assert row["behind_records"]["certainty"] == "unknown"
    assert "unknown" in commands.run("lag", topic)


def test_a_refusal_is_one_sentence(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise refusal("DescribeGroups", 30, about="group 'g'")

    monkeypatch.setattr("fencepost.forensics.lag.describe_group", refuse)
    assert "grant this user READ on the group" in commands.refusal("lag", "g")
