"""`fencepost topic list`, `create`, `describe`, `alter` and `delete`."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from fencepost.client.failures import refusal
from tests.cli.running import Commands


def test_a_topic_is_created_described_listed_and_deleted(commands: Commands, name: str) -> None:
    created = commands.json(
        "topic", "create", name, "--partitions", "2", "--set", "cleanup.policy=compact"
    )
    assert created["created"] is True
    shown = commands.json("topic", "describe", name)
    assert shown["topic_id"] == created["topic_id"]
    assert shown["settings"] == {"cleanup.policy": "compact"}
    assert [row["partition"] for row in shown["partitions"]] == [0, 1]
    assert shown["partitions"][0] | {"leader": 0, "replicas": [0], "isr": [0]} == {
        "partition": 0,
        "leader": 0,
        "replicas": [0],
        "isr": [0],
        "log_start_offset": 0,
        "last_stable_offset": 0,
        "high_watermark": 0,
        "size_bytes": 0,
    }
    listed = {row["topic"]: row for row in commands.json("topic", "list")}
    assert listed[name]["partitions"] == 2
    assert listed[name]["leaderless"] == listed[name]["under_replicated"] == 0
    commands.run("topic", "delete", name, "--yes")
    assert name not in {row["topic"] for row in commands.json("topic", "list")}


def test_creating_twice_is_refused_unless_it_may_exist(commands: Commands, topic: str) -> None:
    assert "exists already. Nothing was changed" in commands.refusal("topic", "create", topic)
    again = commands.json("topic", "create", topic, "--if-not-exists")
    assert (again["created"], again["partitions"]) == (False, 3)


def test_an_unknown_topic_is_reported_with_the_nearest_name(commands: Commands, topic: str) -> None:
    for command in (
        ("topic", "describe"),
        ("topic", "delete"),
        ("topic", "consume"),
        ("topic", "produce", "{}", "/dev/null"),
        ("topic", "alter", "--set", "retention.ms=1"),
        ("config", "get", "--topic"),
    ):
        wrong = topic + "x"
        given = [wrong if word == "{}" else word for word in command]
        said = commands.refusal(*given, *([] if wrong in given else [wrong]))
        assert f"There is no topic '{topic}x'; did you mean {topic}?" in said


def test_internal_topics_are_listed_on_demand_and_never_deleted(
    commands: Commands, topic: str, lines: Path
) -> None:
    lines.write_text("v")
    commands.run("topic", "produce", topic, str(lines), "--transaction", "internal")
    assert "__transaction_state" not in commands.run("topic", "list")
    assert "__transaction_state" in commands.run("topic", "list", "--internal")
    said = commands.refusal("topic", "delete", topic, "__transaction_state", "--yes")
    assert "Nothing was changed" in said
    assert topic in commands.run("topic", "list")


def test_delete_asks_and_a_typing_error_deletes_nothing(
    commands: Commands, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "There is no topic" in commands.refusal("topic", "delete", topic, "nonsense", "--yes")
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    assert commands.run("topic", "delete", topic, code=1).split("fencepost: ") == [
        f"This will delete topic '{topic}': 3 partitions and all records. Continue? [y/N]:",
        "Nothing was changed.\n",
    ]
    assert topic in commands.run("topic", "list")


@pytest.mark.parametrize("columns", [200, 80, 60, 40])
def test_a_narrow_terminal_shows_whole_words(
    commands: Commands, topic: str, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fencepost.cli.output._room", lambda: columns)
    shown = commands.run("topic", "describe", topic)
    assert max(map(len, shown.splitlines())) <= columns
    table = shown[shown.index("settings") :]
    known = {"settings", "partition", "leader", "replicas", "isr", "log", "start", "offset", "last"}
    known |= {"stable", "high", "watermark", "size", "-", "0", "1", "2", "B"}
    shown_words = set(table.partition("(Too narrow")[0].split())
    assert {"partition", "leader", "high", "watermark"} <= shown_words <= known
    assert ("(Too narrow for:" in table) == (columns < 80)


def test_alter_adds_partitions_and_changes_settings(commands: Commands, topic: str) -> None:
    rows = commands.json(
        "topic", "alter", topic, "--partitions", "5", "--set", "retention.ms=86400000"
    )
    assert rows[0] == {"name": "partitions", "old": 3, "new": 5}
    assert (rows[1]["name"], rows[1]["new"]) == ("retention.ms", "86400000")
    shown = commands.json("topic", "describe", topic)
    assert len(shown["partitions"]) == 5
    assert shown["settings"] == {"retention.ms": "86400000"}
    commands.run("topic", "alter", topic, "--unset", "retention.ms")
    assert commands.json("topic", "describe", topic)["settings"] == {}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "Nothing to change"),
        (("--partitions", "3"), "can only grow"),
        (("--partitions", "9", "--set", "retention.msx=1"), "did you mean retention.ms?"),
        (("--partitions", "9", "--set", "retention.ms=soon"), "INVALID_CONFIG"),
        (("--set", "nonsense"), "write NAME=VALUE"),
        (("--set", "a=1", "--set", "a=2"), "names a twice"),
    ],
)
def test_a_refused_change_changes_nothing(
    commands: Commands, topic: str, arguments: tuple[str, ...], said: str
) -> None:
    assert said in commands.refusal("topic", "alter", topic, *arguments)
    shown = commands.json("topic", "describe", topic)
    assert (len(shown["partitions"]), shown["settings"]) == (3, {})


def test_settings_in_the_place_of_a_file_get_a_hint(commands: Commands, name: str) -> None:
    said = commands.refusal("topic", "create", name, "--config", "cleanup.policy=compact")
    assert "--set NAME=VALUE" in said


def test_describe_shows_what_it_may_see(
    commands: Commands, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise refusal("DescribeLogDirs", 31)

    monkeypatch.setattr("fencepost.client.topics.replica_sizes", refuse)
    monkeypatch.setattr("fencepost.client.configs.describe_settings", refuse)
    shown = commands.json("topic", "describe", topic)
    assert shown["settings"] is shown["size_bytes"] is None
    assert shown["partitions"][0]["high_watermark"] == 0


def produce(commands: Commands, folder: Path, line: str) -> None:
    (folder / "line").write_text(line)
    commands.run("topic", "produce", "t", str(folder / "line"))
