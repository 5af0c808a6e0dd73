"""`fencepost group list`, `describe` and `delete` on an embedded broker."""

from __future__ import annotations

import io

import pytest

from fencepost.client.blocking import Cluster
from fencepost.client.group_admin import ListedGroup
from fencepost.client.steps import Steps
from tests.cli.commands.groups import commit_offset, consumer
from tests.cli.running import Commands


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
        assert member["assigned"] == [f"{topic}-0", f"{topic}-1"]
    assert commands.json("group", "describe", topic)["members"] == []


def test_an_unknown_group_is_reported_with_the_nearest_name(
    commands: Commands, cluster: Cluster, topic: str
) -> None:
    commit_offset(cluster, topic, 0, 1)
    for command in (("group", "describe"), ("group", "delete"), ("lag",)):
        said = commands.refusal(*command, topic + "x")
        assert f"There is no group '{topic}x'; did you mean {topic}?" in said


def test_delete_asks(
    commands: Commands, cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit_offset(cluster, topic, 0, 1)
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    said = commands.run("group", "delete", topic, code=1)
    assert f"This will delete group '{topic}': 1 committed offset. Continue? [y/N]:" in said
    assert "Nothing was changed." in said
    assert topic in commands.run("group", "list")


def test_a_group_of_another_kind_is_not_called_missing(
    commands: Commands, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def listed(_: object) -> Steps[list[ListedGroup]]:
        yield from ()
        return [ListedGroup(name, "share", "share", "Stable", 1)]

    monkeypatch.setattr("fencepost.client.group_admin.list_groups", listed)
    assert f"'{name}' is a share group" in commands.refusal("group", "describe", name)
