"""`fencepost group reset` on an embedded broker."""

from __future__ import annotations

import io
from typing import Any

import pytest

from fencepost.base.ids import TopicPartition
from fencepost.client.blocking import Cluster
from fencepost.client.groups import CommittedOffset
from tests.cli.commands.groups import commit_offset, consumer
from tests.cli.running import Commands


def offsets(rows: list[dict[str, Any]]) -> dict[int, tuple[Any, Any]]:
    return {row["partition"]: (row["old_offset"], row["new_offset"]) for row in rows}


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
    assert f"{topic}-0  4 -> 0" in said
    assert f"{topic}-1  no offset -> 0" in said
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
        (("--to-earliest", "--topic", "{}:x"), "is not a partition: write TOPIC-P"),
        (("--to-earliest", "--topic", "{}:9"), "has no partition 9"),
    ],
)
def test_a_reset_that_is_not_clear_is_refused(
    commands: Commands, topic: str, arguments: tuple[str, ...], said: str
) -> None:
    given = [each.replace("{}", topic) for each in arguments]
    assert said in commands.refusal("group", "reset", topic, *given, "--yes")
