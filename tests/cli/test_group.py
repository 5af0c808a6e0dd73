"""`fencepost group` and `fencepost lag` on an embedded broker."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import confluent_kafka
import pytest

from fencepost.base.ids import TopicPartition
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import Cluster, connect
from fencepost.client.failures import refusal
from fencepost.client.group_admin import ListedGroup
from fencepost.client.groups import CommittedOffset
from fencepost.client.steps import Steps
from fencepost.records.opened import Record
from tests.cli.running import Commands

TIMES_MS = 1_000


@pytest.fixture
def cluster(commands: Commands) -> Iterator[Cluster]:
    with connect(commands.servers) as client:
        yield client


@pytest.fixture
def topic(cluster: Cluster, name: str) -> str:
    """A topic of two partitions; record n of each is n seconds old since 1970."""
    cluster.create_topics([NewTopic(name, 2)])
    write(cluster, name, 0, 10)
    write(cluster, name, 1, 5)
    return name


def write(cluster: Cluster, topic: str, partition: int, count: int) -> None:
    records = [Record(timestamp_ms=n * TIMES_MS, value=b"v") for n in range(count)]
    with cluster.writer(cluster.init_producer_id(None)) as writer:
        writer.write_records(TopicPartition(topic, partition), records)
        writer.flush()


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


def commit_offset(cluster: Cluster, group: str, partition: int, offset: int) -> None:
    place = TopicPartition(group, partition)
    cluster.offset_commit(group, {place: CommittedOffset(offset)})


@contextmanager
def consumer(servers: str, group: str) -> Iterator[confluent_kafka.Consumer]:
    """A member of the group that has got its partitions of the topic of the same name."""
    member = confluent_kafka.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            "client.id": "shop",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    try:
        member.subscribe([group])
        while not member.assignment():
            member.poll(0.05)
        yield member
    finally:
        member.close()


def offsets(rows: list[dict[str, Any]]) -> dict[int, tuple[Any, Any]]:
    return {row["partition"]: (row["old_offset"], row["new_offset"]) for row in rows}


# Groups.


def test_a_group_is_listed_and_described_with_its_members(commands: Commands, topic: str) -> None:
    with consumer(commands.servers, topic):
        listed = {row["group"]: row for row in commands.json("group", "list")}
        assert listed[topic]["state"] == "Stable"
        assert listed[topic]["kind"] == "classic"
        shown = commands.json("group", "describe", topic)
        assert (shown["state"], shown["protocol_type"]) == ("Stable", "consumer")
        (member,) = shown["members"]
        assert member["client_id"] == "shop"
        assert member["topics"] == [topic]
        assert member["assigned"] == [f"{topic}:0", f"{topic}:1"]
    assert commands.json("group", "describe", topic)["members"] == []


def test_an_unknown_group_is_reported_with_the_nearest_name(
    commands: Commands, cluster: Cluster, topic: str
) -> None:
    commit_offset(cluster, topic, 0, 1)
    for command in (("group", "describe"), ("group", "delete"), ("lag",)):
        said = commands.refusal(*command, topic + "x")
        assert f"There is no group '{topic}x'; did you mean {topic}?" in said


def test_a_group_with_members_is_neither_reset_nor_deleted_nor_used(
    commands: Commands, topic: str
) -> None:
    with consumer(commands.servers, topic):
        reset = ("group", "reset", topic, "--topic", topic, "--to-earliest", "--yes")
        for command in (reset, ("group", "delete", topic, "--yes")):
            said = commands.refusal(*command)
            assert "has 1 member (shop at " in said
            assert said.endswith("Nothing was changed.")
        said = commands.refusal("topic", "consume", topic, "--group", topic)
        assert "has 1 member" in said
        assert said.endswith("Nothing was read.")
    commands.run(*reset)
    commands.run("group", "delete", topic, "--yes")
    assert topic not in commands.run("group", "list")


def test_a_member_that_joins_meanwhile_is_reported(
    commands: Commands, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "fencepost.cli.commands.group.resetting.require_no_members", lambda *_: None
    )
    with consumer(commands.servers, topic):
        said = commands.refusal("group", "reset", topic, "--topic", topic, "--to-latest", "--yes")
        assert "stop its consumers" in said


def test_delete_asks(
    commands: Commands, cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit_offset(cluster, topic, 0, 1)
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    said = commands.run("group", "delete", topic, code=1)
    assert f"This will delete group '{topic}': 1 committed offset. Continue? [y/N]:" in said
    assert "Nothing was changed." in said
    assert topic in commands.run("group", "list")


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (("--to-earliest",), {0: (4, 0), 1: (None, 0)}),
        (("--to-latest",), {0: (4, 10), 1: (None, 5)}),
        (("--to-offset", "7"), {0: (4, 7), 1: (None, 5)}),
        (("--shift-by", "-3"), {0: (4, 1), 1: (None, 0)}),
        (("--shift-by", "100"), {0: (4, 10), 1: (None, 5)}),
        (("--to-datetime", "1970-01-01T00:00:03Z"), {0: (4, 3), 1: (None, 3)}),
        (("--to-datetime", "2099-01-01"), {0: (4, 10), 1: (None, 5)}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_offsets_move_within_the_log(
    commands: Commands,
    cluster: Cluster,
    topic: str,
    target: tuple[str, ...],
    expected: dict[int, tuple[int | None, int]],
) -> None:
    commit_offset(cluster, topic, 0, 4)
    arguments = ("group", "reset", topic, "--topic", topic, *target)
    assert offsets(commands.json(*arguments, "--dry-run")) == expected
    assert cluster.offset_fetch(topic) == {TopicPartition(topic, 0): CommittedOffset(4)}
    assert offsets(commands.json(*arguments, "--yes")) == expected
    assert offsets(commands.json(*arguments, "--dry-run"))[0][0] == expected[0][1]


def test_only_named_partitions_move_and_all_topics_are_those_with_offsets(
    commands: Commands, cluster: Cluster, topic: str
) -> None:
    rows = commands.json("group", "reset", topic, "--topic", f"{topic}:1", "--to-latest", "--yes")
    assert offsets(rows) == {1: (None, 5)}
    rows = commands.json("group", "reset", topic, "--all-topics", "--to-earliest", "--yes")
    assert offsets(rows) == {1: (5, 0)}


def test_reset_shows_old_and_new_offsets_and_asks(
    commands: Commands, cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit_offset(cluster, topic, 0, 4)
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    said = commands.run("group", "reset", topic, "--topic", topic, "--to-earliest", code=1)
    assert f"This will move 2 committed offsets of group '{topic}'. Continue? [y/N]:" in said
    assert f"{topic}:0  4 -> 0" in said
    assert f"{topic}:1  no offset -> 0" in said
    assert cluster.offset_fetch(topic)[TopicPartition(topic, 0)].offset == 4


def test_a_group_that_does_not_exist_is_created_after_a_warning(
    commands: Commands, cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit_offset(cluster, topic, 0, 4)
    other = topic + "x"
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    commands.run("group", "reset", other, "--topic", topic, "--to-latest")
    assert (
        f"This will create group '{other}' with 2 committed offsets; there is none of this name; "
        f"did you mean {topic}? Continue?" in commands.noted
    )
    assert len(cluster.offset_fetch(other)) == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--all-topics",), "Say where to"),
        (("--to-earliest",), "Say which offsets"),
        (("--to-earliest", "--to-latest", "--all-topics"), "Say where to"),
        (("--to-earliest", "--all-topics", "--topic", "x"), "Say which offsets"),
        (("--to-datetime", "noon", "--all-topics"), "give a time such as"),
        (("--to-earliest", "--topic", "{}:x"), "is not a partition: write TOPIC:P"),
        (("--to-earliest", "--topic", "{}:9"), "has no partition 9"),
    ],
)
def test_a_reset_that_is_not_clear_is_refused(
    commands: Commands, topic: str, arguments: tuple[str, ...], said: str
) -> None:
    given = [each.replace("{}", topic) for each in arguments]
    assert said in commands.refusal("group", "reset", topic, *given, "--yes")


# Lag.


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


def test_a_group_of_another_kind_is_not_called_missing(
    commands: Commands, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def listed(_: object) -> Steps[list[ListedGroup]]:
        yield from ()
        return [ListedGroup(name, "share", "share", "Stable", 1)]

    monkeypatch.setattr("fencepost.client.group_admin.list_groups", listed)
    assert f"'{name}' is a share group" in commands.refusal("group", "describe", name)


def test_a_refusal_is_one_sentence(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise refusal("DescribeGroups", 30, about="group 'g'")

    monkeypatch.setattr("fencepost.forensics.lag.describe_group", refuse)
    assert "grant this user READ on the group" in commands.refusal("lag", "g")
