"""Goal: `fencepost topic`, `group`, `lag` and `config` say what Kafka's own tools say.

Method: our command and Kafka's tool look at, or change, the same broker. Where both know a field it
is compared; on Apache Kafka and on fencepost.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from fencepost.base.ids import TopicPartition
from fencepost.client.blocking import connect
from fencepost.records.opened import Record
from tests.cli.running import Commands
from tests.compat.conftest import Side


@pytest.fixture
def commands(side: Side, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(side.bootstrap_servers, capsys)


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    return tmp_path / "lines"


def table(text: str) -> list[dict[str, str]]:
    """Reads a table of Kafka's tools: a line of titles, then values between blanks."""
    rows = [line.split() for line in text.splitlines() if line.strip()]
    start = next(i for i, row in enumerate(rows) if row[0] in ("GROUP", "Topic:"))
    return [dict(zip(rows[start], row, strict=False)) for row in rows[start + 1 :]]


@contextmanager
def member(side: Side, topic: str, protocol: str) -> Iterator[confluent_kafka.Consumer]:
    """A consumer with its partitions, in a group of the topic's name."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": side.bootstrap_servers,
            "group.id": topic,
            "client.id": "shop",
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.subscribe([topic])
        while not consumer.assignment():
            consumer.poll(0.1)
        yield consumer
    finally:
        consumer.close()


# Topics.


def test_a_topic_that_we_create_is_described_alike(
    side: Side, commands: Commands, topic: str
) -> None:
    settings = ("--set", "cleanup.policy=compact", "--set", "segment.bytes=10485760")
    commands.run("topic", "create", topic, "--partitions", "3", *settings)
    ours = commands.json("topic", "describe", topic)
    theirs = side.tool("kafka-topics", "--describe", "--topic", topic)
    head, *partitions = theirs.splitlines()
    assert f"TopicId: {ours['topic_id']}" in head
    assert "PartitionCount: 3" in head
    shown = head.partition("Configs: ")[2].strip().split(",")
    named = {name: value for name, _, value in (each.partition("=") for each in shown)}
    # Apache Kafka also prints what is set for all brokers.
    assert ours["settings"].items() <= named.items()
    assert ours["settings"] == {"cleanup.policy": "compact", "segment.bytes": "10485760"}
    for row, line in zip(ours["partitions"], partitions, strict=True):
        found = dict(re.findall(r"(\w+): (\S+)", line))
        assert str(row["partition"]) == found["Partition"]
        assert str(row["leader"]) == found["Leader"]
        assert ",".join(map(str, row["replicas"])) == found["Replicas"]
        assert ",".join(map(str, row["isr"])) == found["Isr"]


def test_offsets_and_sizes_are_those_of_kafkas_tools(
    side: Side, commands: Commands, topic: str, lines: Path
) -> None:
    commands.run("topic", "create", topic, "--partitions", "2")
    lines.write_text("v\n" * 10)
    commands.run("topic", "produce", topic, str(lines), "--partition", "0", "--transaction", topic)
    rows = commands.json("topic", "describe", topic)["partitions"]
    ends = side.tool("kafka-get-offsets", "--topic", topic, "--time", "latest").split()
    starts = side.tool("kafka-get-offsets", "--topic", topic, "--time", "earliest").split()
    assert [f"{topic}:{r['partition']}:{r['high_watermark']}" for r in rows] == ends
    assert [f"{topic}:{r['partition']}:{r['log_start_offset']}" for r in rows] == starts
    assert rows[0]["last_stable_offset"] == 11
    shown = side.tool("kafka-log-dirs", "--describe", "--topic-list", topic).splitlines()[-1]
    (broker,) = json.loads(shown)["brokers"]
    sizes = {
        each["partition"]: each["size"]
        for directory in broker["logDirs"]
        for each in directory["partitions"]
    }
    assert {f"{topic}-{row['partition']}": row["size_bytes"] for row in rows} == sizes


def test_alter_and_delete_have_effect_for_kafkas_tools(
    side: Side, commands: Commands, topic: str
) -> None:
    commands.run("topic", "create", topic)
    commands.run("topic", "alter", topic, "--partitions", "4", "--set", "retention.ms=60000")
    described = side.tool("kafka-topics", "--describe", "--topic", topic)
    assert "PartitionCount: 4" in described
    assert "retention.ms=60000" in described
    listed = {row["topic"] for row in commands.json("topic", "list", "--internal")}
    assert listed == set(side.tool("kafka-topics", "--list").split())
    commands.run("topic", "delete", topic, "--yes")
    assert topic not in side.tool("kafka-topics", "--list").split()
    assert "There is no topic" in commands.refusal("topic", "describe", topic)


# Records.


def test_kafkas_console_reads_what_we_write_and_we_read_what_it_writes(
    side: Side, commands: Commands, topic: str, lines: Path
) -> None:
    commands.run("topic", "create", topic)
    lines.write_text("k1=v1\nk2=v2\n")
    commands.run("topic", "produce", topic, str(lines), "--key-separator", "=")
    side.tool(
        "kafka-console-producer",
        *("--topic", topic, "--property", "parse.key=true", "--property", "key.separator=="),
        *("--compression-codec", "zstd"),
        stdin="k3=v3\nk4=v4\n",
    )
    theirs = side.tool(
        "kafka-console-consumer",
        *("--topic", topic, "--from-beginning", "--max-messages", "4"),
        *("--property", "print.key=true", "--property", "print.offset=true"),
    )
    read = re.findall(r"Offset:(\d+)\s+(\S+)\s+(\S+)", theirs)
    fields = ("--fields", "offset,key,value")
    ours = [
        line.split("\t") for line in commands.run("topic", "consume", topic, *fields).split("\n")
    ]
    assert [list(row) for row in read] == ours[:-1]
    assert [row[2] for row in ours[:-1]] == ["v1", "v2", "v3", "v4"]


def test_a_transaction_is_visible_to_kafkas_console_only_when_it_is_committed(
    side: Side, commands: Commands, topic: str, lines: Path
) -> None:
    commands.run("topic", "create", topic)
    lines.write_text("aborted\n\xff\nnonsense")
    commands.run("topic", "produce", topic, str(lines), "--transaction", topic, "--key-separator",
                 "=", code=1)  # fmt: skip
    lines.write_text("".join(f'{{"value": "aborted-{n}"}}\n' for n in range(5)) + "nonsense")
    said = commands.refusal("topic", "produce", topic, str(lines), "--json", "--transaction", topic)
    assert "Line 6 was not written" in said
    lines.write_text("committed\n")
    commands.run("topic", "produce", topic, str(lines), "--transaction", topic)
    theirs = side.tool(
        "kafka-console-consumer",
        *("--topic", topic, "--from-beginning", "--max-messages", "1"),
        *("--isolation-level", "read_committed"),
    )
    assert theirs.split() == ["committed"]
    assert commands.run("topic", "consume", topic).split() == ["committed"]
    listed = side.tool("kafka-transactions", "describe", "--transactional-id", topic)
    assert "CompleteCommit" in listed


# Groups and lag.


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_lag_and_members_are_those_of_kafka_consumer_groups(
    side: Side, commands: Commands, topic: str, protocol: str
) -> None:
    if protocol == "consumer" and side.name == "fencepost":
        pytest.skip("fencepost serves classic groups only")
    commands.run("topic", "create", topic, "--partitions", "2")
    write(side, topic)
    with member(side, topic, protocol) as consumer:
        consumer.commit(offsets=[confluent_kafka.TopicPartition(topic, 0, 4)], asynchronous=False)
        ours = commands.json("lag", topic)
        described = commands.json("group", "describe", topic)
        theirs = table(side.tool("kafka-consumer-groups", "--describe", "--group", topic))
        states = side.tool("kafka-consumer-groups", "--describe", "--group", topic, "--state")
        listed = {row["group"]: row for row in commands.json("group", "list")}
    assert ours["kind"] == described["kind"] == protocol
    assert ours["state"] == described["state"] == "Stable"
    assert re.search(r"Stable\s+1\s*$", states, re.MULTILINE)
    assert (listed[topic]["kind"], listed[topic]["state"]) == (protocol, "Stable")
    for row in ours["partitions"]:
        (found,) = [each for each in theirs if each["PARTITION"] == str(row["partition"])]
        shown = {
            "CURRENT-OFFSET": row["committed_offset"],
            "LOG-END-OFFSET": row["high_watermark"],
            "LAG": row["offset_lag"],
            "CONSUMER-ID": row["member_id"],
            "HOST": row["host"],
            "CLIENT-ID": row["client_id"],
        }
        assert {name: found[name] for name in shown} == {
            name: "-" if value is None else str(value) for name, value in shown.items()
        }
    # 10 plain, 3 committed, a marker, 5 aborted, a marker, 2 open.
    first, second = ours["partitions"]
    assert values(first) == (6 + 3, 2, 6 + 3 + 5 + 2)
    assert first["offset_lag"] == 18
    assert values(second) == (0, 0, 0)
    with connect(side.bootstrap_servers) as cluster:
        cluster.init_producer_id(f"{topic}-open")


def values(row: dict[str, Any]) -> tuple[int, ...]:
    names = ("behind_records", "hidden_records", "read_uncommitted_records")
    assert {row[name]["certainty"] for name in names} == {"exact"}
    return tuple(row[name]["value"] for name in names)


def write(side: Side, topic: str) -> None:
    """Writes 10 plain records, a committed transaction, an aborted one and an open one."""
    place = TopicPartition(topic, 0)
    with connect(side.bootstrap_servers) as cluster:
        with cluster.writer(cluster.init_producer_id(None)) as writer:
            writer.write_records(place, [Record(value=b"v")] * 10)
            writer.flush()
        for name, count, commit in (
            ("committed", 3, True),
            ("aborted", 5, False),
            ("open", 2, None),
        ):
            identity = cluster.init_producer_id(f"{topic}-{name}")
            with cluster.writer(identity) as writer:
                writer.write_records(place, [Record(value=b"v")] * count)
                writer.flush()
            if commit is not None:
                cluster.end_txn(identity, commit=commit)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (("--to-earliest",), ("--to-earliest",)),
        (("--to-latest",), ("--to-latest",)),
        (("--to-offset", "7"), ("--to-offset", "7")),
        (("--to-offset", "700"), ("--to-offset", "700")),
        (("--shift-by", "-2"), ("--shift-by", "-2")),
        (("--shift-by", "100"), ("--shift-by", "100")),
        (
            ("--to-datetime", "1970-01-01T00:00:00.005Z"),
            ("--to-datetime", "1970-01-01T00:00:00.005Z"),
        ),
    ],
    ids=" ".join,
)
def test_a_reset_plans_what_kafka_consumer_groups_plans(
    side: Side,
    commands: Commands,
    topic: str,
    lines: Path,
    ours: tuple[str, ...],
    theirs: tuple[str, ...],
) -> None:
    commands.run("topic", "create", topic)
    lines.write_text("".join(f'{{"value": "v", "timestamp_ms": {n}}}\n' for n in range(10)))
    commands.run("topic", "produce", topic, str(lines), "--json")
    commands.run("group", "reset", topic, "--topic", topic, "--to-offset", "4", "--yes")
    (row,) = commands.json("group", "reset", topic, "--topic", topic, *ours, "--dry-run")
    assert row["old_offset"] == 4
    planned = table(
        side.tool(
            "kafka-consumer-groups",
            *("--group", topic, "--topic", topic, "--reset-offsets", "--dry-run", *theirs),
        )
    )
    assert [each["NEW-OFFSET"] for each in planned] == [str(row["new_offset"])]
    commands.run("group", "reset", topic, "--all-topics", *ours, "--yes")
    shown = table(side.tool("kafka-consumer-groups", "--describe", "--group", topic))
    assert [each["CURRENT-OFFSET"] for each in shown] == [str(row["new_offset"])]


def test_a_group_with_members_is_refused_and_one_without_is_deleted(
    side: Side, commands: Commands, topic: str
) -> None:
    commands.run("topic", "create", topic)
    reset = ("group", "reset", topic, "--topic", topic, "--to-latest", "--yes")
    with member(side, topic, "classic"):
        assert "has 1 member" in commands.refusal(*reset)
        assert "has 1 member" in commands.refusal("group", "delete", topic, "--yes")
    commands.run(*reset)
    assert topic in side.tool("kafka-consumer-groups", "--list").split()
    commands.run("group", "delete", topic, "--yes")
    assert topic not in side.tool("kafka-consumer-groups", "--list").split()
    assert "There is no group" in commands.refusal("group", "describe", topic)


# Settings.


def test_settings_are_those_of_kafka_configs(side: Side, commands: Commands, topic: str) -> None:
    commands.run("topic", "create", topic)
    at = ("--topic", topic)
    (row,) = commands.json("config", "set", *at, "retention.bytes=1000")
    assert (row["old"], row["new"]) == ("-1", "1000")
    entity = ("--entity-type", "topics", "--entity-name", topic, "--describe")
    assert "retention.bytes=1000 " in side.tool("kafka-configs", *entity)
    everything = side.tool("kafka-configs", *entity, "--all")
    theirs = dict(re.findall(r"^\s+(\S+?)=(.*?) sensitive=", everything, re.MULTILINE))
    ours = {row["name"]: row["value"] or "" for row in commands.json("config", "get", *at, "--all")}
    assert ours == {name: "" if value == "null" else value for name, value in theirs.items()}
    commands.run("config", "set", *at, "--unset", "retention.bytes")
    assert "retention.bytes=" not in side.tool("kafka-configs", *entity)


def test_a_refused_setting_is_explained(side: Side, commands: Commands, topic: str) -> None:
    commands.run("topic", "create", topic)
    said = commands.refusal("config", "set", "--topic", topic, "retention.msx=1")
    assert "did you mean retention.ms?" in said
    said = commands.refusal("config", "set", "--topic", topic, "retention.ms=soon")
    assert "INVALID_CONFIG" in said
    assert commands.json("config", "get", "--topic", topic) == []


def test_brokers_and_groups_have_settings(side: Side, commands: Commands, topic: str) -> None:
    (broker,) = {row["leader"] for row in _first(commands, topic)}
    rows = {r["name"]: r for r in commands.json("config", "get", "--broker", str(broker), "--all")}
    assert rows["transaction.max.timeout.ms"]["value"] == "900000"
    assert rows["transaction.max.timeout.ms"]["source"] in ("default", "file")
    change = ("config", "set", "--group", topic, "consumer.session.timeout.ms=50000")
    if side.name == "fencepost":
        assert "has no setting" in commands.refusal(*change)
        return
    (row,) = commands.json(*change)
    assert (row["old"], row["new"]) == ("45000", "50000")
    (row,) = commands.json("config", "get", "--group", topic)
    assert (row["value"], row["source"]) == ("50000", "group")


def _first(commands: Commands, topic: str) -> list[dict[str, Any]]:
    commands.run("topic", "create", topic)
    rows: list[dict[str, Any]] = commands.json("topic", "describe", topic)["partitions"]
    return rows
